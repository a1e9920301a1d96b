"""Typed tables: the events of one schema as columns, a table for each schema that an installed overlay declares.

A row of silver whose schema has a table gives one row there: the fields of the body as columns, and the place in the
log. No event of the schema is left out: one that its overlay refuses has NULL in all columns of the body, and its code
in `issue`. A value that does not fit its column is kept in `unfit`, with the reason. Typed rows are a function of
silver, so a table that is new to a place is made from silver, without keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from veen.core.canonical import InvalidJson, encode
from veen.lake.log.columns import Column, arrow_schema, to_batches
from veen.lake.log.events import event_of
from veen.lake.query.fields import payload_of, receipt_id_of
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.typed_table import ColumnKind, TypedTable
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
