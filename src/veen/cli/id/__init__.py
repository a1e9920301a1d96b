"""veen id."""

__all__: list[str] = []
