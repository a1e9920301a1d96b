"""Capability tokens and proof of work."""

__all__: list[str] = []
