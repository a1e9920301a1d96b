"""veen wallet."""

__all__: list[str] = []
