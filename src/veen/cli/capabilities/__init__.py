"""Capability tokens and proof of work."""
