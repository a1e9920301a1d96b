"""Portable sets: an identity and what it knows, as files."""
