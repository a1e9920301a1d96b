"""Columns of the tables, division of rows into files, and their order in a file."""

from datetime import date, timedelta
from typing import Final

import pyarrow as pa

from veen.lake.log.columns import ENTRIES, Column, ddl
from veen.lake.log.events import SILVER
from veen.lake.tables.errors import NoTable
from veen.lake.tables.states import FOLD, STATE_HASH, state_columns, state_declarations
from veen.lake.tables.typed import columns_of_typed, is_typed, load_declarations

_ENTRY: Final = {column.name: column for column in ENTRIES}
_TS: Final = next(column for column in SILVER if column.name == "ts")
_OK: Final = tuple(column for column in SILVER if column.name in ("ok", "reason"))


def _column(name: str, sql: str, arrow: pa.DataType, about: str) -> Column:
    return Column(name, sql, arrow, about)


# Without the place of the frame: a chunk is sealed, compressed and moved, and the rows stay the same.
BRONZE: Final = (
    *(_ENTRY[name] for name in ("label", "epoch", "stream_id", "stream_seq", "hub_ts")),
    _TS,
    *(
        _ENTRY[name]
        for name in (
            "leaf_hash", "mmr_root", "entry_hash", "profile_id", "client_id", "client_seq", "prev_ack", "auth_ref",
            "ct_hash", "msg", "receipt",
        )
    ),
    *_OK,
)  # fmt: skip
GOLD: Final = (
    FOLD,
    _column("schema", "BINARY", pa.binary(), "one that the fold reads"),
    _column("label", "BINARY", pa.binary(), "a label that the state was made of"),
    _column("upto_seq", "BIGINT", pa.int64(), "up to and including this position"),
    _column("mmr_root", "BINARY", pa.binary(), "the root of the label there"),
    STATE_HASH,
)
GOLD_STATE: Final = (
    FOLD,
    STATE_HASH,
    _column("snapshot", "BINARY", pa.binary(), "the state with its cuts, in canonical CBOR"),
)
GOLD_ISSUES: Final = (
    FOLD,
    _column("label", "BINARY", pa.binary(), "where the entry is that counts for nothing"),
    _column("stream_seq", "BIGINT", pa.int64(), "its position"),
    _column("code", "STRING", pa.string(), "what is wrong with it"),
    _column("what", "STRING", pa.string(), "the same for people"),
)
GOLD_ENTRIES: Final = (
    FOLD,
    STATE_HASH,
    _column(
        "part", "STRING", pa.string(), "which part of the state: names and outer keys with / between them; or empty"
    ),
    _column("key", "STRING", pa.string(), "text as it is, bytes as hex, anything else as canonical JSON"),
    _column("value", "STRING", pa.string(), "what the state has there, as canonical JSON"),
)
COLUMNS: Final = {
    "bronze": BRONZE,
    "silver": SILVER,
    "gold": GOLD,
    "gold_state": GOLD_STATE,
    "gold_issues": GOLD_ISSUES,
    "gold_entries": GOLD_ENTRIES,
}
PARTITIONS: Final = (  # directories of bronze and silver, and columns of what is read from them
    _column("sid", "STRING", pa.string(), "stream_id in hex, or unknown"),
    _column("day", "DATE", pa.date32(), "of ts"),
)
# Time first, in hours; then what people ask for. Row groups of a file so differ in time, schema and client.
SORT: Final = {
    "bronze": ("client_id", "ts", "label", "epoch", "stream_seq"),
    "silver": ("schema", "client_id", "ts", "label", "epoch", "stream_seq"),
}
HOUR: Final = 3600
DAY: Final = 86_400
_LAST_DAY: Final = (date.max - date(1970, 1, 1)).days


def columns_of(table: str) -> tuple[Column, ...]:
    """Return the columns of a table. Raise NoTable for an unknown name, or one that no installed overlay declares."""
    if table in COLUMNS:
        return COLUMNS[table]
    typed = load_declarations()
    if table in typed:
        return columns_of_typed(typed[table])
    states = state_declarations()
    if table in states:
        return state_columns(states[table])
    raise NoTable(f"there is no table {table!r}; there are {', '.join((*COLUMNS, *typed, *states))}")


def arrow_of(table: str) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.arrow) for column in columns_of(table)])


def ddl_of(table: str) -> str:
    """Return the columns of the files and those of their directories as DDL, as in docs/tables.md."""
    columns = columns_of(table)
    return ddl((*columns, *PARTITIONS) if is_partitioned(table) else columns)


def is_partitioned(table: str) -> bool:
    """Return True if the files of a table are divided by stream and day."""
    return table in SORT or is_typed(table)


def sort_of(table: str) -> tuple[str, ...]:
    """Return the columns by which the rows of an hour are sorted; also of typed tables without a declaration."""
    if table in SORT:
        return SORT[table]
    declared = load_declarations().get(table)
    return (*(declared.sort if declared is not None else ()), "ts", "label", "epoch", "stream_seq")


def day_of(ts: int) -> int:
    """Return days since 1970. A time beyond the calendar belongs to the last day."""
    return min(ts // DAY, _LAST_DAY)


def sid_of(stream_id: bytes | None) -> str:
    return stream_id.hex() if stream_id is not None else "unknown"


def group_of(stream_id: bytes | None, day: int) -> str:
    """Return the directory of rows, below their table."""
    return f"sid={sid_of(stream_id)}/day={(date(1970, 1, 1) + timedelta(days=day)).isoformat()}"
