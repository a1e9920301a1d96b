"""Queries over recorder events whose results anyone can check (001 query API, D-105, D-107 … D-110).

Pure parts first: `canonical` (the JSON that is hashed), `descriptor`, `fields`, `rows`, `aggregate`, `sampling`,
`digest`. Then what reads a log: `planning`, `opening`, `evidence`. Two engines that give the same bytes: `engine` (one
process) and `onspark`, whose tasks are in `tasks`. `store` keeps results, `api` ties it all together. docs/query.md
tells the whole story.
"""

__all__: list[str] = []
