"""Queries over recorder events whose results anyone can check (001 query API, D-105, D-107 … D-110).

Pure parts first: `canonical` (the JSON that is hashed), `descriptor`, `fields`, `aggregate`, `sampling`, `digest`. Then
what reads a log: `planning` (a pinned prefix), `matches` (events that fit), `evidence`. Two engines that give the same
bytes: `engine` (one process) and `on_spark`, whose tasks are in `tasks`. `store` keeps results, `api` ties it all
together. docs/query.md describes it.
"""

__all__: list[str] = []
