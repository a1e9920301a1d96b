"""veen docs."""

__all__: list[str] = []
