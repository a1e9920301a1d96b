"""RPC0: calls and answers as messages."""

__all__: list[str] = []
