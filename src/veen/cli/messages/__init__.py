"""send, stream, tail, resync, attachment."""

__all__: list[str] = []
