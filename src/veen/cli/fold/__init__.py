"""veen fold."""

__all__: list[str] = []
