"""What a request means: operations, tooling, pages, tails; independent of the transport."""

__all__: list[str] = []
