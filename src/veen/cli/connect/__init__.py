"""From a service in the directory to a connection."""

__all__: list[str] = []
