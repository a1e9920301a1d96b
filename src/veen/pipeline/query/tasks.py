"""What the tasks of a parallel execution do: pure functions of a job and a part of the log, tested without Spark.

A job names a key file and never holds a key (D-120). However the log is cut into works and whatever order the tasks
end in, sorting what they give restores the one sequence of items that a single process would see.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from veen.core.event import Order
from veen.core.hubkeys import HubIdentity
from veen.pipeline import works
from veen.pipeline.columns import Column, arrow_schema
from veen.pipeline.files import open_fs
from veen.pipeline.opening import Clock, Reader, readers_of
from veen.pipeline.query import canonical
from veen.pipeline.query.aggregate import Partial
from veen.pipeline.query.coverage import Skips
from veen.pipeline.query.descriptor import QueryDescriptor
from veen.pipeline.query.items import Item, Shaper
from veen.pipeline.query.keys import KeyFile
from veen.pipeline.query.opening import Skipped, Witness, entries
from veen.pipeline.query.planning import LabelPlan, Plan
from veen.pipeline.works import Times, Work

__all__ = [
    "GROUPS",
    "ITEMS",
    "SORT_KEYS",
    "Job",
    "QueryWork",
    "boundaries",
    "cut",
    "group_batches",
    "item_batches",
    "item_of",
    "merged_batches",
    "skips_of",
]

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 4 << 20
_MAX_GROUPS: Final = 100_000  # held by a task before it lets go of what it has


def _column(name: str, sql: str, arrow: pa.DataType) -> Column:
    return Column(name, sql, arrow, "")


ITEMS: Final = (
    _column("bucket", "INT", pa.int32()),
    _column("ts", "BIGINT", pa.int64()),  # -1: not an item, but what was skipped
    _column("stream_id", "BINARY", pa.binary()),
    _column("epoch", "BIGINT", pa.int64()),
    _column("stream_seq", "BIGINT", pa.int64()),
    _column("label", "BINARY", pa.binary()),
    _column("leaf_hash", "BINARY", pa.binary()),
    _column("row", "BINARY", pa.binary()),
    _column("partial", "BINARY", pa.binary()),
    *(_column(name, "BINARY", pa.binary()) for name in Witness._fields),
    _column("fault", "STRING", pa.string()),
)
SORT_KEYS: Final = ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")
GROUPS: Final = (_column("key", "BINARY", pa.binary()), _column("partial", "BINARY", pa.binary()))


QueryWork = Work[LabelPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every task knows."""

    uri: str
    descriptor: QueryDescriptor
    identity: HubIdentity | None
    keys: KeyFile
    bounds: tuple[Order, ...] = ()  # where buckets of the logical order begin


def cut(plan: Plan, parts: int) -> list[list[QueryWork]]:
    """About `parts` runs of works with about as many entries each, by label and position."""
    return works.cut(((_slim(one), one.pieces) for one in plan.labels), parts)


def _slim(plan: LabelPlan) -> LabelPlan:
    """What a task must know of a label: not its chunks."""
    return replace(plan, chunks=(), pieces=(), gaps=(), head_receipt=None)


def boundaries(tasks: Sequence[Sequence[QueryWork]], times: Sequence[Times | None], buckets: int) -> tuple[Order, ...]:
    """Where to divide the logical order so that buckets are of similar size; any division gives the same result."""
    flat = [work for task in tasks for work in task]
    starts = sorted(
        (max(work.before_ts, seen.first_ts), work.plan.stream_id, work.plan.epoch, work.piece.first, b"")
        for work, seen in zip(flat, times, strict=True)
        if seen is not None
    )
    step = max(1, -(-len(starts) // buckets))
    return tuple(starts[step::step])


# --- items -----------------------------------------------------------------------------------------------------


def _found(job: Job, found: Sequence[QueryWork], skips: Skips) -> Iterator[Item]:
    fs, keyring = open_fs(job.uri), job.keys.load()
    readers: dict[bytes, Reader] = {}
    shaper = Shaper(job.descriptor, job.identity)
    for plan, piece, before_ts in found:
        reader = readers.get(plan.stream_id)
        if reader is None:
            reader = readers[plan.stream_id] = readers_of(keyring, plan.stream_id)
        for one in entries(fs, plan, piece, Clock(before_ts), reader, job.descriptor.filter):
            if isinstance(one, Skipped):
                skips.add(plan.label, one.kind, one.stream_seq)
            else:
                yield shaper.item(one)


def item_batches(job: Job, found: Sequence[QueryWork]) -> Iterator[pa.RecordBatch]:
    """The items of some works, then what was skipped in them."""
    skips = Skips()
    schema = arrow_schema(ITEMS)
    proven = job.descriptor.evidence.mode != "none"  # else what proves an item need not travel

    def rows() -> Iterator[dict[str, Any]]:
        for item in _found(job, found, skips):
            ts, stream_id, epoch, stream_seq, leaf_hash = item.order
            row = {
                "bucket": bisect_right(job.bounds, item.order),
                "ts": ts,
                "stream_id": stream_id,
                "epoch": epoch,
                "stream_seq": stream_seq,
                "label": item.label,
                "leaf_hash": leaf_hash,
                "row": item.row,
                "partial": item.partial.to_bytes() if item.partial else None,
                "fault": item.fault,
            }
            yield row | item.witness._asdict() if proven else row
        for number, row_bytes in enumerate(_skip_rows(skips)):
            yield {"bucket": 0, "ts": -1, "stream_id": b"", "epoch": 0, "stream_seq": number, "row": row_bytes}

    yield from _batched(rows(), schema)


def _batched(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        held.append(row)
        size += len(row.get("row") or b"") + len(row.get("partial") or b"")
        if len(held) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(held, schema=schema)
            held, size = [], 0
    yield pa.RecordBatch.from_pylist(held, schema=schema)


def _skip_rows(skips: Skips) -> Iterator[bytes]:
    for (label, kind), found in sorted(skips.found.items()):
        yield canonical.encode([label.hex(), kind, found.first_seq, found.count])


def skips_of(data: bytes, into: Skips) -> None:
    """Take in what a task has skipped."""
    label, kind, first_seq, count = canonical.parse(data)
    into.add(bytes.fromhex(label), kind, first_seq, count)


def item_of(row: Any) -> Item:
    """An item from its columns: a mapping, or a row of Spark."""

    def data(name: str) -> bytes:
        value = row[name]
        return b"" if value is None else bytes(value)

    return Item(
        order=(row["ts"], data("stream_id"), row["epoch"], row["stream_seq"], data("leaf_hash")),
        label=data("label"),
        row=data("row"),
        partial=None if row["partial"] is None else Partial.from_bytes(data("partial")),
        witness=Witness(*(data(name) for name in Witness._fields)),
        fault=row["fault"],
    )


# --- groups ------------------------------------------------------------------------------------------------------


def group_batches(job: Job, found: Sequence[QueryWork]) -> Iterator[pa.RecordBatch]:
    """What some works add to each group; the empty key carries what was skipped."""
    aggregate = job.descriptor.aggregate
    assert aggregate is not None  # noqa: S101 - only aggregates come here
    skips, schema = Skips(), arrow_schema(GROUPS)

    def rows() -> Iterator[dict[str, Any]]:
        groups: dict[bytes, Partial] = {}
        for item in _found(job, found, skips):
            assert item.partial is not None  # noqa: S101 - as above
            known = groups.setdefault(item.row, item.partial)
            if known is not item.partial:
                known.absorb(aggregate, item.partial)
            if len(groups) >= _MAX_GROUPS:
                yield from ({"key": key, "partial": one.to_bytes()} for key, one in groups.items())
                groups.clear()
        yield from ({"key": key, "partial": one.to_bytes()} for key, one in groups.items())
        yield from ({"key": b"", "partial": data} for data in _skip_rows(skips))

    yield from _batched(rows(), schema)


def merged_batches(descriptor: QueryDescriptor, sorted_rows: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """One row per group, from rows sorted by key."""
    aggregate = descriptor.aggregate
    assert aggregate is not None  # noqa: S101 - only aggregates come here

    def rows() -> Iterator[dict[str, Any]]:
        current: bytes | None = None
        partial = Partial.empty(aggregate)
        for key, data in sorted_rows:
            if not key:
                yield {"key": key, "partial": data}
                continue
            if key != current:
                if current is not None:
                    yield {"key": current, "partial": partial.to_bytes()}
                current, partial = key, Partial.from_bytes(data)
            else:
                partial.absorb(aggregate, Partial.from_bytes(data))
        if current is not None:
            yield {"key": current, "partial": partial.to_bytes()}

    yield from _batched(rows(), arrow_schema(GROUPS))
