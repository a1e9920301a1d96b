"""veen op."""

__all__: list[str] = []
