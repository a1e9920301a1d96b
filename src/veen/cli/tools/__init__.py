"""bench, selftest, vesn."""

__all__: list[str] = []
