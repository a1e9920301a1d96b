"""The objects of the wire, one topic a module."""

__all__: list[str] = []
