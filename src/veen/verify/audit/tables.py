"""The commitments and cursors of an audit, as Arrow tables from which the next audit continues.

commitments   label, start, end, peaks, root, count, first_ts, last_ts: a row for each chunk all of whose roots
              were found true; peaks and root are those after its last entry
cursors       where each writer stood after the last sealed chunk of a label; one row without client_id per label
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_MOST: Final = (1 << 63) - 1

COMMITMENTS: Final = pa.schema(
    [
        pa.field("label", pa.binary(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
        pa.field("peaks", pa.list_(pa.binary()), nullable=False),
        pa.field("root", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("first_ts", pa.int64(), nullable=False),
        pa.field("last_ts", pa.int64(), nullable=False),
    ]
)
CURSORS: Final = pa.schema(
    [
        pa.field("label", pa.binary(), nullable=False),
        pa.field("upto", pa.int64(), nullable=False),
        pa.field("client_id", pa.binary()),
        pa.field("client_seq", pa.int64(), nullable=False),
        pa.field("prev_ack", pa.int64(), nullable=False),
        pa.field("lost", pa.int64(), nullable=False),
        pa.field("last_ts", pa.int64(), nullable=False),
        pa.field("total_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Commitment:
    """A chunk whose roots are all true."""

    label: bytes
    start: int
    end: int
    peaks: tuple[bytes, ...]
    root: bytes
    count: int
    first_ts: int
    last_ts: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """Cursor of a writer; without client_id, of the label: `total_bytes` is then that of its last sealed chunk."""

    label: bytes
    upto: int
    client_id: bytes | None
    client_seq: int
    prev_ack: int
    lost: int
    last_ts: int
    total_bytes: int


def table_of(rows: Iterable[Commitment | Cursor], schema: pa.Schema) -> pa.Table:
    """Return a table sorted by the first columns, which are unique."""
    records = [{name: _clip(getattr(row, name)) for name in schema.names} for row in rows]
    records.sort(key=lambda row: tuple(b"" if row[name] is None else row[name] for name in schema.names[:3]))
    return pa.Table.from_pylist(records, schema=schema)


def _clip(value: Any) -> Any:
    """Limit a number: a forged receipt may have one that no table can store (D-07), and has its finding already."""
    return min(value, _MOST) if type(value) is int else value
