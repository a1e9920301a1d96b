"""VEEN: a verifiable, end-to-end encrypted log that nobody has to trust."""

__version__ = "0.1.0"

from veen import _moved

_moved.install()
