"""Fakes that implement the real interfaces: a disk that fails, for tests of VEEN and of what is built on it."""

__all__: list[str] = []
