"""Columns of the tables, division of rows into files, and their order in a file.

Typed tables: the events of one schema as columns, a table for each schema that an installed overlay declares.

A row of silver whose schema has a table gives one row there: the fields of the body as columns, and the place in the
log. No event of the schema is left out: one that its overlay refuses has NULL in all columns of the body, and its code
in `issue`. A value that does not fit its column is kept in `unfit`, with the reason. Typed rows are a function of
silver, so a table that is new to a place is made from silver, without keys.

States as rows for SQL: with the columns that the overlay declares, and as JSON.

Rows of `state_…` are made by the declaration of the fold's overlay and sorted by their key, so equal states give equal
rows. A value that does not fit its column is kept in `unfit`, with the reason, as for events.

Rows of `gold_entries` need no declaration: each is an entry of a map of the state. A state is a map, or an object whose
fields are maps; maps in maps (records by entity and id) are followed to the innermost key. The value there is one JSON
value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import cache
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from veen.core.canonical import InvalidJson, Json, encode
from veen.lake.log.columns import ENTRIES, Column, arrow_schema, ddl, to_batches
from veen.lake.log.events import SILVER, event_of
from veen.lake.query.fields import payload_of, receipt_id_of
from veen.lake.tables.errors import NoTable
from veen.overlays.framework.fold import AnyFold, Joined
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.schema import Issue
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import ColumnKind, StateTable, TypedTable
from veen.overlays.recorder.events import MAX_TIME

PREFIX: Final = "typed_"
_TIME: Final = pa.timestamp("us", tz="UTC")
ARROW: Final[Mapping[ColumnKind, tuple[str, pa.DataType]]] = {
    "text": ("STRING", pa.string()),
    "integer": ("BIGINT", pa.int64()),
    "boolean": ("BOOLEAN", pa.bool_()),
    "bytes": ("BINARY", pa.binary()),
    "hex": ("STRING", pa.string()),
    "time": ("TIMESTAMP", _TIME),
    "json": ("STRING", pa.string()),
}
_PLACE: Final = (
    Column("hub_time", "TIMESTAMP", _TIME, "when the hub took it; NULL behind the year 9999"),
    Column("receipt_id", "STRING", pa.string(), "the name of its receipt"),
    Column("stream", "STRING", pa.string(), "its name, if the reader's keys have one"),
    Column("stream_id", "BINARY", pa.binary(), "of the label"),
    Column("label", "BINARY", pa.binary(), "the physical log the entry is in"),
    Column("epoch", "BIGINT", pa.int64(), "of the label"),
    Column("stream_seq", "BIGINT", pa.int64(), "position in the label, from 1"),
    Column("leaf_hash", "BINARY", pa.binary(), "msg_id"),
    Column("ts", "BIGINT", pa.int64(), "the greatest hub_ts of the label so far"),
    Column("issue", "STRING", pa.string(), "why the event counts for nothing; NULL if it counts"),
    Column("unfit", "STRING", pa.string(), "values that fit no column, in JSON, with the reason; NULL if all fit"),
)
NO_VALUE: Final = "TABLE.VALUE"  # the issue of an event with a value that its column cannot have
_MAX_REASON: Final = 200
FOREIGN: Final = (OverflowError, TypeError, ValueError, LookupError, AttributeError, InvalidJson)
_FROM_SILVER: Final = ("stream", "stream_id", "label", "epoch", "stream_seq", "leaf_hash", "ts")


@cache
def load_declarations() -> Mapping[str, TypedTable]:
    """Return the declarations of all built-in or installed overlays, by the name of the table."""
    return BUILTIN.with_installed().tables


def is_typed(table: str) -> bool:
    return table.startswith(PREFIX)


def columns_of_typed(table: TypedTable) -> tuple[Column, ...]:
    own = (Column(column.name, *ARROW[column.kind], column.about) for column in table.columns)
    return (*own, *_PLACE)


def definition_of(table: TypedTable) -> str:
    """Return a hash of the declaration. Files of another one are made again."""
    columns = [(column.name, column.sql) for column in columns_of_typed(table)]
    columns += [(column.name, column.kind) for column in table.columns]  # two kinds may have one type
    return sha256(repr((table.schema.name, columns, table.sort)).encode()).hexdigest()


def to_typed_batches(
    silver: pa.RecordBatch | pa.Table, tables: Iterable[TypedTable]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield rows of typed tables for rows of silver, each batch with the name of its table."""
    by_schema = {table.schema.id: table for table in tables}
    opened = silver.filter(pc.and_kleene(silver.column("ok"), pc.is_valid(silver.column("schema"))))
    for schema in sorted({schema for schema in pc.unique(opened.column("schema")).to_pylist() if schema in by_schema}):
        table = by_schema[schema]
        rows = opened.filter(pc.equal(opened.column("schema"), schema))
        for part in rows.to_batches() if isinstance(rows, pa.Table) else (rows,):
            typed = (_row(table, row) for row in part.to_pylist())
            for batch in to_batches(typed, arrow_schema(columns_of_typed(table))):
                yield table.name, batch


def _row(table: TypedTable, row: Mapping[str, Any]) -> dict[str, Any]:
    place = {name: row[name] for name in _FROM_SILVER} | {
        "hub_time": _time(row["hub_ts"]) if row["hub_ts"] <= MAX_TIME else None,
        "receipt_id": receipt_id_of(row["leaf_hash"]),
        "issue": None,
        "unfit": None,
    }
    own: dict[str, Any] = dict.fromkeys(column.name for column in table.columns)
    unfit: dict[str, Any] = {}
    try:
        values = table.read_event(event_of(row))
        if isinstance(values, Issue):
            return own | place | {"issue": values.code}
    except FOREIGN as exc:  # a declaration's own code must not stop the load of everybody else's events
        return own | place | {"issue": NO_VALUE, "unfit": encode({"": reason_of(exc)}).decode()}
    for column in table.columns:
        if column.name not in values:
            continue
        try:
            own[column.name] = to_cell(column.kind, values[column.name])
        except FOREIGN as exc:
            unfit[column.name] = {"why": reason_of(exc), "value": _fit_json(values[column.name])}
    return own | place | ({"issue": NO_VALUE, "unfit": encode(unfit).decode()} if unfit else {})


def reason_of(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:_MAX_REASON].encode(errors="replace").decode()


def _fit_json(value: Any) -> Any:
    """Return a value as JSON, or the name of its type if it has no JSON form."""
    try:
        encode(payload_of(value))
    except (InvalidJson, TypeError, ValueError):
        return type(value).__name__
    return payload_of(value)


def to_cell(kind: ColumnKind, value: Any) -> Any:
    """Convert a value for a column of this kind. Raise TypeError or ValueError if it does not fit.

    None is NULL, or null in JSON.
    """
    if kind == "json":
        return encode(payload_of(value)).decode()
    return None if value is None else _WRITERS[kind](value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()  # a lone surrogate has no UTF-8
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("no whole number of 64 bits")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return value


def _octets(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("no byte string")
    return value


def _time(value: Any) -> datetime:
    if not 0 <= _integer(value) <= MAX_TIME:
        raise ValueError("no time up to the year 9999")
    return datetime.fromtimestamp(value, UTC)


_WRITERS: Final[Mapping[ColumnKind, Callable[[Any], Any]]] = {
    "text": _text,
    "integer": _integer,
    "boolean": _boolean,
    "bytes": _octets,
    "hex": lambda value: _octets(value).hex(),
    "time": _time,
}


STATE_PREFIX: Final = "state_"
FOLD: Final = Column("fold", "STRING", pa.string(), "the name of the fold")
STATE_HASH: Final = Column("state_hash", "BINARY", pa.binary(), "of the state, as its class defines it")
_UNFIT: Final = Column("unfit", "STRING", pa.string(), "values that fit no column, in JSON, with the reason; or NULL")


# --- with the columns of a declaration ------------------------------------------------------------------------------


@cache
def state_declarations() -> Mapping[str, StateTable]:
    """Return the declarations of all built-in or installed overlays, by the name of the table."""
    return BUILTIN.with_installed().states


def is_state(table: str) -> bool:
    return table.startswith(STATE_PREFIX)


def state_columns(table: StateTable) -> tuple[Column, ...]:
    own = (Column(column.name, *ARROW[column.kind], column.about) for column in table.columns)
    return (FOLD, STATE_HASH, *own, _UNFIT)


def state_definition(table: StateTable) -> str:
    """Return a hash of the declaration. Rows of another one are made again."""
    columns = [(column.name, column.kind) for column in table.columns]
    return sha256(repr((table.fold, table.part, columns, table.key)).encode()).hexdigest()


def definitions_of(fold: AnyFold) -> dict[str, str]:
    """Return the tables of a fold's state, or of all its parts, with the hashes of their declarations."""
    classes = set(_classes(fold))
    return {name: state_definition(table) for name, table in state_declarations().items() if table.fold in classes}


def state_tables(name: str, fold: AnyFold, view: Any, state_hash: bytes) -> dict[str, pa.Table]:
    """Return the rows of each table that an installed overlay declares for the fold, by the name of the table."""
    views = dict(_views(fold, view))
    return {
        table.name: _state_table(table, views[table.fold], {"fold": name, "state_hash": state_hash})
        for table in state_declarations().values()
        if table.fold in views
    }


def _classes(fold: AnyFold) -> Iterator[str]:
    if isinstance(fold, Joined):
        for part in fold.folds:
            yield from _classes(part)
    else:
        yield fold.name


def _views(fold: AnyFold, view: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(fold, Joined):
        for part in fold.folds:
            yield from _views(part, view[part.name])
    else:
        yield fold.name, view


def _state_table(table: StateTable, view: Any, place: Mapping[str, Any]) -> pa.Table:
    empty = dict.fromkeys(column.name for column in table.columns)
    try:
        rows = [_state_row(table, values) for values in table.rows(view)]
    except FOREIGN as exc:  # a declaration's own code must not stop the tables of everybody else
        rows = [empty | {"unfit": encode({"": reason_of(exc)}).decode()}]
    rows.sort(key=lambda row: _order(table, row))
    return pa.Table.from_pylist([{**place, **row} for row in rows], schema=arrow_schema(state_columns(table)))


def _state_row(table: StateTable, values: Mapping[str, object]) -> dict[str, Any]:
    row: dict[str, Any] = {"unfit": None}
    unfit: dict[str, Any] = {}
    for column in table.columns:
        value = values.get(column.name)
        try:
            row[column.name] = _cell(column.kind, value)
        except FOREIGN as exc:
            row[column.name] = None
            unfit[column.name] = {"why": reason_of(exc), "value": _plain(value)}
    return row | {"unfit": encode(unfit).decode()} if unfit else row


def _cell(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    return encode(_json(value)).decode() if kind == "json" else to_cell(kind, value)


def _plain(value: Any) -> Json:
    """Return a value as JSON, or the name of its type if it has no JSON form."""
    try:
        plain = _json(value)
        encode(plain)
    except (InvalidJson, TypeError, ValueError):
        return type(value).__name__
    return plain


def _order(table: StateTable, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key: the key of the row, then all its values, if a declaration repeats a key."""
    key = tuple((row[name] is not None, row[name]) for name in table.key)
    return key, repr(sorted(row.items()))


# --- as JSON --------------------------------------------------------------------------------------------------------


def state_entries(state: Any) -> list[tuple[str, str, str]]:
    """Return (part, key, value) in the order of part and key."""
    rows = []
    for path, value in _leaves(state, ()):
        *outer, key = path or ("",)
        rows.append(("/".join(map(_key, outer)), _key(key), encode(_json(value)).decode()))
    return sorted(rows)


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(member, (*path, key))
    elif not path and is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), (field.name,))
    else:
        yield path, value


def _key(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else encode(_json(value)).decode()


def _json(value: Any) -> Json:
    if isinstance(value, Free):
        return payload_of(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _json(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {_key(key): _json(member) for key, member in value.items()}
    if isinstance(value, Set):
        return sorted((_json(member) for member in value), key=encode)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(member) for member in value]
    return _json(value.value) if isinstance(value, Enum) else value


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
