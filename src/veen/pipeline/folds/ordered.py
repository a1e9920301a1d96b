"""Folds in which every event meets the state left by those before it (D-82): sorted by all, stepped by one.

Executors open, sort and cut away what does not count; the driver steps through what is left, one event after another
and in constant memory beside the state. No plan can do better for a fold of which nothing more is known.

Where the records of a state are independent of each other (`KEYS`), as those of two ids of CRUD are, each executor
steps through some of them by itself, and the tables are put side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.core.event import Event
from veen.overlays.crud import Crud, CrudFold
from veen.overlays.decode import Issue, Place, Typed, decode
from veen.overlays.ordered import Ordered, Prefix, Progress, Table
from veen.overlays.queue import Queue, QueueFold
from veen.overlays.stream import fold_events
from veen.pipeline.columns import Column, arrow_schema, ddl
from veen.pipeline.events import Found, event_of
from veen.pipeline.folds.onspark import collected, kept, order_of, part_number, slim, streamed
from veen.pipeline.folds.rows import found_in
from veen.pipeline.folds.seen import Seen
from veen.pipeline.folds.shipping import PARCELS, pack, unpack
from veen.pipeline.folds.tasks import EVENTS, batched, event_row, noted, read_noted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KEYS", "by_key", "counting_rows", "in_order", "is_keyed", "united"]

AnyOrdered = Ordered[Any, Any, Any]
KeyOf = Callable[[Typed[Any]], bytes]


def _crud_key(typed: Typed[Crud]) -> bytes:
    return cbor.encode([typed.body.entity, typed.body.id])


def _queue_key(typed: Typed[Queue]) -> bytes:
    return typed.event.leaf_hash if typed.body.ref is None else typed.body.ref


# By the class of the fold: the part of the state that an event reads and writes, and nothing else of it.
KEYS: Final[Mapping[type[AnyOrdered], KeyOf]] = MappingProxyType({CrudFold: _crud_key, QueueFold: _queue_key})

KEYED: Final = (*EVENTS, Column("key", "BINARY", pa.binary(), "of the records that the event is about"))


def is_keyed(fold: Any) -> bool:
    """Whether the records of the state are independent. A copy may lie about its original and so tie two of them."""
    return type(fold) in KEYS and not fold.mirrors


# --- what tasks do ------------------------------------------------------------------------------------------------


def counting_rows(fold: AnyOrdered, found: Iterable[Found], key_of: KeyOf | None = None) -> Iterator[dict[str, Any]]:
    """The events that the fold counts, and a last row that tells of all."""
    seen, find = Seen(), dict(fold.schemas).get
    for event in seen.events(found):
        schema = find(event.hdr.schema)
        if schema is not None:
            row = event_row(event)
            if key_of is not None:
                typed = decode(event, schema)
                row["key"] = b"" if isinstance(typed, Issue) else key_of(typed)  # the fold will say what is wrong
            yield row
    yield noted(seen)


def united(parts: Iterable[Progress[Any, Any]]) -> Progress[Any, Any]:
    """Parts that share no record, side by side: as if one had stepped through all of their events."""
    rows: dict[Any, Any] = {}
    identities: dict[bytes, bool] = {}
    violations: dict[Place, Issue] = {}
    issues: dict[Place, Issue] = {}
    upto: dict[bytes, int] = {}
    last, ts = None, 0
    for part in parts:
        ts = max(ts, part.ts)
        issues.update(part.issues)
        if part.prefix is not None:
            rows.update(part.prefix.table.items())
            identities.update(part.prefix.seen.items())
            violations.update(part.prefix.violations.items())
            for label, seq in part.prefix.upto.items():
                upto[label] = max(upto.get(label, 0), seq)
            last = part.prefix.last if last is None else max(last, part.prefix.last)
    prefix: Prefix[Any, Any] | None = None
    if last is not None:
        prefix = Prefix(Table((rows,)), Table((identities,)), upto, last, Table((violations,)))
    return Progress(prefix, {}, ts, issues)


# --- on Spark -----------------------------------------------------------------------------------------------------


def in_order(frame: "DataFrame", fold: AnyOrdered, base: Any = None) -> tuple[Progress[Any, Any], Seen]:
    """The summary of all rows after `base`; LateEvent if one belongs before its end."""

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from batched(counting_rows(fold, found_in(batches)), arrow_schema(EVENTS))

    with kept(slim(frame).mapInArrow(cut, ddl(EVENTS))) as rows:
        seen = read_noted(collected(rows.where("data IS NOT NULL").select("data"), f"fold {fold.name}: open"))
        ordered = rows.where("data IS NULL").drop("data").orderBy(*order_of())
        events = map(event_of, streamed(ordered, f"fold {fold.name}: sort, and step on the driver"))
        summary = fold_events(fold, events, base)
    return replace(summary, ts=max(summary.ts, seen.ts)), seen


def by_key(frame: "DataFrame", fold: AnyOrdered, parts: int | None = None) -> tuple[Progress[Any, Any], Seen]:
    """The summary of all rows of a fold with independent records."""
    key_of = KEYS[type(fold)]

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from batched(counting_rows(fold, found_in(batches), key_of), arrow_schema(KEYED))

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, seen = part_number(), Seen()
        summary = fold_events(fold, _events(batches, seen))
        yield from pack(number, [fold.dump(summary), seen.to_tree()])

    rows = slim(frame).mapInArrow(cut, ddl(KEYED))
    count = parts or frame.rdd.getNumPartitions()
    stepped = rows.repartition(count, "key").sortWithinPartitions(*order_of()).mapInArrow(step, ddl(PARCELS))
    found = collected(stepped, f"fold {fold.name}: step through {count} groups of records")
    seen, summaries = Seen(), []
    for _, (tree, told) in unpack((row["part"], row["slice"], row["data"]) for row in found):
        summaries.append(fold.load(tree))
        seen.absorb(Seen.from_tree(told))
    summary = united(summaries)
    return replace(summary, ts=max(summary.ts, seen.ts)), seen


def _events(batches: Iterator[pa.RecordBatch], seen: Seen) -> Iterator[Event]:
    for batch in batches:
        for row in batch.to_pylist():
            if row["data"] is not None:
                seen.absorb(read_noted([row]))
            else:
                yield event_of(row)
