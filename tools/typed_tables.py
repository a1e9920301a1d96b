"""Write docs/typed-tables.md: the typed tables of the built-in overlays, from their declarations.

python tools/typed_tables.py            # write the page
python tools/typed_tables.py --check    # is it current?
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from veen.lake.log.columns import Column
from veen.lake.tables.schema import PARTITIONS, columns_of_typed, state_columns
from veen.overlays.framework.registry import BUILTIN

PAGE: Final = Path(__file__).parents[1] / "docs" / "typed-tables.md"
_HEAD: Final = """# Typed tables of the built-in overlays

One table for each schema, filled by `veen table load` ([tables.md](tables.md#typed-tables)). Made from the
declarations by `tools/typed_tables.py`. Byte strings are hex, lists and maps are canonical JSON, absent fields are
NULL. A field whose name a column of every table has is called `body_…`. Words that SQL reserves (`group`, `class`) are
quoted: `` `group` `` in Spark, `"group"` elsewhere.
"""
_STATES: Final = """## States

Filled by `veen table load --fold NAME` ([tables.md](tables.md#states)); the declarations stand in the modules of the
overlays. Every table begins with `fold` (STRING, the name that was given to `--fold`) and `state_hash` (BINARY, which
leads to the roots in `gold`) and ends with `unfit` (STRING, values that fit no column, in JSON, with the reason; NULL
if all fit). Times of the hub, and those that a schema defines in seconds, are TIMESTAMP; a writer's own `ts` is BIGINT.
`order_…` is the place in the logical order. Rows are sorted by their key, 100,000 in a file, so
that the statistics of Parquet tell a reader which file can hold a key.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    place = columns_of_typed(BUILTIN.tables["typed_sdr_event_v1"])[-_count_shared() :]
    parts.append("## Columns of every table\n\n" + _rows(place))
    parts[-1] += _rows(PARTITIONS, head=False)
    for overlay in BUILTIN.values():
        if not overlay.tables:
            continue
        parts.append(f"## {overlay.name}: {overlay.about}\n")
        for table in overlay.tables:
            own = columns_of_typed(table)[: len(table.columns)]
            parts.append(f"### `{table.name}`\n\n{_rows(own)}")
    parts.append(_STATES)
    for overlay in BUILTIN.values():
        for state in overlay.states:
            parts.append(
                f"### `{state.name}`\n\nOf `--fold {state.fold}`: {state.about}.\n\n{_rows(state_columns(state)[2:-1])}"
            )
    return "\n".join(parts)


def _count_shared() -> int:
    table = BUILTIN.tables["typed_sdr_event_v1"]
    return len(columns_of_typed(table)) - len(table.columns)


def _rows(columns: Iterable[Column], *, head: bool = True) -> str:
    lines = ["| column | type | |", "|---|---|---|"] if head else []
    lines += [f"| `{column.name}` | {column.sql} | {column.about} |" for column in columns]
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        if PAGE.read_text("utf-8") != page():
            sys.stderr.write("docs/typed-tables.md is not current: run python tools/typed_tables.py\n")
            return 1
        return 0
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
