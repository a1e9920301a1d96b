"""Queries over recorder events whose results anyone can check (001 query API, D-105, D-107 … D-110).

Pure parts first: `canonical` (the JSON that is hashed), `descriptor`, `fields`, `aggregate`, `sampling`, `digest`. Then
what reads a log: `planning` (a pinned prefix), `matches` (events that fit), `evidence`. Two engines that give the same
bytes: `engine` (one process) and `on_spark`, whose tasks are in `tasks`. `store` keeps results, `api` ties it all
together. `remote` asks a query service: `connect`. docs/query.md describes it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veen.lake.query.remote import connect

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """Import `connect` on first use: it needs an HTTP client, which most users of this package do not."""
    if name == "connect":
        from veen.lake.query.remote import connect

        return connect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
