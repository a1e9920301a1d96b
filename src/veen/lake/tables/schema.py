"""The columns of the tables, how rows are divided into files, and the order inside of one."""

from datetime import date, timedelta
from typing import Final

import pyarrow as pa

from veen.lake.log.columns import ENTRIES, Column, ddl
from veen.lake.log.events import SILVER
from veen.lake.tables.errors import NoTable
from veen.lake.tables.states import FOLD, STATE_HASH, installed_states, state_columns
from veen.lake.tables.typed import installed, is_typed, typed_columns

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
    """NoTable if there is no table of this name, or no installed overlay declares it."""
    if table in COLUMNS:
        return COLUMNS[table]
    typed = installed()
    if table in typed:
        return typed_columns(typed[table])
    states = installed_states()
    if table in states:
        return state_columns(states[table])
    raise NoTable(f"there is no table {table!r}; there are {', '.join((*COLUMNS, *typed, *states))}")


def arrow_of(table: str) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.arrow) for column in columns_of(table)])


def ddl_of(table: str) -> str:
    """As in docs/tables.md: the columns of the files, and those that their directories add."""
    columns = columns_of(table)
    return ddl((*columns, *PARTITIONS) if is_partitioned(table) else columns)


def is_partitioned(table: str) -> bool:
    """Whether its files are divided by stream and day."""
    return table in SORT or is_typed(table)


def sort_of(table: str) -> tuple[str, ...]:
    """The columns that the rows of an hour are sorted by; of typed tables also where no overlay declares them."""
    if table in SORT:
        return SORT[table]
    declared = installed().get(table)
    return (*(declared.sort if declared is not None else ()), "ts", "label", "epoch", "stream_seq")


def day_of(ts: int) -> int:
    """Days since 1970. A hub whose clock is beyond all calendars writes on the last day."""
    return min(ts // DAY, _LAST_DAY)


def sid_of(stream_id: bytes | None) -> str:
    return stream_id.hex() if stream_id is not None else "unknown"


def group_of(stream_id: bytes | None, day: int) -> str:
    """The directory of rows, below their table."""
    return f"sid={sid_of(stream_id)}/day={(date(1970, 1, 1) + timedelta(days=day)).isoformat()}"
