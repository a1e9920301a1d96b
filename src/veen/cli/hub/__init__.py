"""veen hub."""

__all__: list[str] = []
