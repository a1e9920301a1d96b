"""Rows that tasks hand on: events, and one row that tells what the task has seen."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.core.event import Event
from veen.pipeline.columns import Column
from veen.pipeline.events import SILVER
from veen.pipeline.folds.seen import Seen

__all__ = ["EVENTS", "batched", "event_row", "noted", "read_noted"]

_BATCH_ROWS: Final = 4_096
_BATCH_BYTES: Final = 4 << 20
_CARRIED: Final = (
    "stream_id", "label", "epoch", "stream_seq", "leaf_hash", "client_id", "auth_ref", "hub_ts", "ts", "hdr", "body",
)  # fmt: skip
_SEEN: Final = Column("data", "BINARY", pa.binary(), "what the task has seen; such a row is no event")
EVENTS: Final = (*(column for column in SILVER if column.name in _CARRIED), _SEEN)


def event_row(event: Event) -> dict[str, Any]:
    """The event as columns of EVENTS."""
    return {
        "stream_id": event.stream_id,
        "label": event.label,
        "epoch": event.epoch,
        "stream_seq": event.stream_seq,
        "leaf_hash": event.leaf_hash,
        "client_id": event.client_id,
        "auth_ref": event.auth_ref,
        "hub_ts": event.hub_ts,
        "ts": event.ts,
        "hdr": event.hdr.to_bytes(),
        "body": event.body,
    }


def noted(seen: Seen) -> dict[str, Any]:
    """The row that tells what a task has seen."""
    return {"data": cbor.encode(seen.to_tree())}


def read_noted(rows: Iterable[Mapping[str, Any]]) -> Seen:
    """What several tasks have seen."""
    seen = Seen()
    for row in rows:
        data = bytes(row["data"])
        seen.absorb(Seen.from_tree(cbor.decode(data, what="seen", max_bytes=len(data), max_items=len(data) + 1)))
    return seen


def batched(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches of bounded size. Columns that a row does not name are NULL."""
    held: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += len(row.get("body") or b"") + len(row.get("data") or b"")
        if len(held) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(held, schema=schema)
            held, size = [], 0
    yield pa.RecordBatch.from_pylist(held, schema=schema)
