"""Test support for VEEN and for programs that use it: a real hub in this process, and fakes of the real interfaces."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veen.testing.hubs import RunningHub, hub

__all__ = ["RunningHub", "hub"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from veen.testing import hubs

    return getattr(hubs, name)
