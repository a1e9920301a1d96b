"""Sending: sealing, signing, submitting, retrying; and the tokens that allow it."""
