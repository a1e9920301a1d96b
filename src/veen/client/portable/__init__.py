"""Portable sets: an identity and what it knows, as files."""

__all__: list[str] = []
