"""Changing the user's configuration: `veen.client.config.edit`, under the name that commands know it by."""

from veen.client.config.edit import change, locked, remove_context, write

__all__ = ["change", "locked", "remove_context", "write"]
