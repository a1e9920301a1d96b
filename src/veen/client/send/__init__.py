"""Sending: seal, sign, submit, retry; and the tokens that allow it."""
