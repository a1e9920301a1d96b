"""veen bridge."""

__all__: list[str] = []
