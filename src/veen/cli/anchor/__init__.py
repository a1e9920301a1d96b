"""Anchors."""

__all__: list[str] = []
