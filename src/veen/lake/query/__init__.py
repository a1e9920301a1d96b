"""Queries over recorder events whose results anyone can check (001 query API, D-105, D-107 … D-110).

`descriptor`, `clauses`, `fields`, `aggregate` and `digest` are pure. `matches` reads events that fit from a log, and
`evidence` verifies them. Two engines give the same bytes: `engine` (one process, with the plan over a pinned prefix)
and `on_spark`, whose tasks are in `tasks`. `store` keeps results, `api` ties it all together.
`remote` asks a query service: `connect`. docs/query.md describes it.
"""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.lake.query.api import Comparison, Result, replay, run, verify
    from veen.lake.query.remote import connect

__all__ = ["Comparison", "Result", "connect", "replay", "run", "verify"]

# Asking a service needs an HTTP client, and running a query does not.
__getattr__ = names_of(
    __name__,
    {
        "Comparison": "veen.lake.query.api:Comparison",
        "Result": "veen.lake.query.api:Result",
        "connect": "veen.lake.query.remote:connect",
        "replay": "veen.lake.query.api:replay",
        "run": "veen.lake.query.api:run",
        "verify": "veen.lake.query.api:verify",
    },
)
