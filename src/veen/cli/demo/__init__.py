"""veen demo."""

__all__: list[str] = []
