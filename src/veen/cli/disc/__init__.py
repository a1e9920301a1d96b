"""Discovery and connect."""

__all__: list[str] = []
