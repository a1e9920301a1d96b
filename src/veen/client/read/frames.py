"""Ranges of a stream as Arrow tables and pandas frames. Both libraries are loaded on first use.

One row for each verified entry; one that could not be opened has no body and an error. Hashes
and keys are binary, times are seconds of the hub.
"""

from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from veen.client.errors import ExtraMissing
from veen.client.read.reading import Entry

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_BATCH: Final = 4_096  # rows that are Python objects at one time
_EXTRA: Final = "notebook"

COLUMNS: Final = (
    ("seq", "number"),
    ("epoch", "number"),
    ("label", "hash"),
    ("msg_id", "hash"),
    ("client_id", "hash"),
    ("client_seq", "number"),
    ("hub_ts", "number"),
    ("ts", "number"),
    ("schema", "hash"),
    ("parent_id", "hash"),
    ("auth_ref", "hash"),
    ("expires_at", "number"),
    ("body", "bytes"),
    ("attachments", "names"),
    ("error", "text"),
    ("mmr_root", "hash"),
)


def to_arrow(entries: Iterable[Entry]) -> "pa.Table":
    """Return a table of entries, in their order. Raise ExtraMissing without pyarrow."""
    arrow = _load("pyarrow", "to_arrow()")
    schema = arrow.schema([(name, _type(arrow, kind)) for name, kind in COLUMNS])
    batches = [
        arrow.RecordBatch.from_pylist([row_of(entry) for entry in some], schema=schema) for some in _in_batches(entries)
    ]
    return arrow.Table.from_batches(batches, schema=schema)


def to_pandas(entries: Iterable[Entry]) -> "pd.DataFrame":
    """Return a frame of entries; numbers that may be missing are nullable, so none becomes a float."""
    pandas = _load("pandas", "to_pandas()")
    arrow = _load("pyarrow", "to_pandas()")
    nullable = {arrow.uint64(): pandas.UInt64Dtype()}
    return to_arrow(entries).to_pandas(types_mapper=nullable.get)


def _load(name: str, feature: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        raise ExtraMissing(_EXTRA, feature) from exc


def _type(arrow: Any, kind: str) -> Any:
    return {
        "number": arrow.uint64(),
        "hash": arrow.binary(32),
        "bytes": arrow.large_binary(),
        "text": arrow.string(),
        "names": arrow.list_(arrow.string()),
    }[kind]


def row_of(entry: Entry) -> dict[str, Any]:
    """Return an entry by the names of the columns."""
    msg, receipt, event = entry.msg, entry.receipt, entry.event
    return {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "label": msg.label,
        "msg_id": entry.msg_id,
        "client_id": msg.client_id,
        "client_seq": msg.client_seq,
        "hub_ts": receipt.hub_ts,
        "ts": entry.ts,
        "schema": event.hdr.schema if event else None,
        "parent_id": event.hdr.parent_id if event else None,
        "auth_ref": msg.auth_ref,
        "expires_at": event.hdr.expires_at if event else None,
        "body": entry.body if event else None,
        "attachments": [attachment.name or attachment.coid.hex() for attachment in entry.attachments],
        "error": entry.error,
        "mmr_root": receipt.mmr_root,
    }


def _in_batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    source = iter(entries)
    while some := list(islice(source, _BATCH)):
        yield some
