"""The policy of a realm."""

__all__: list[str] = []
