"""pending: messages that got no receipt."""

__all__: list[str] = []
