"""Portable sets: an identity with its keys, tokens and state, as files."""
