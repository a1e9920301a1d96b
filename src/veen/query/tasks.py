"""What the tasks of a parallel execution do: pure functions of a job and a part of the log, tested without Spark.

A job names a key file and never holds a key (D-120). However the log is divided into tasks and whatever order they end
in, sorting what they give restores the one sequence of matches that a single process would see.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from veen.core.event import Order
from veen.core.objects.identity import HubIdentity
from veen.fs.places import open_fs
from veen.log.columns import Column, arrow_schema, batched
from veen.log.events import SORT_KEYS
from veen.log.keys import KeyFile
from veen.log.skips import Skips
from veen.log.slices import Slice
from veen.log.times import Times
from veen.query import canonical
from veen.query.aggregate import Partial
from veen.query.descriptor import QueryDescriptor
from veen.query.matches import Match, Matcher, Witness

__all__ = [
    "GROUPS",
    "MATCHES",
    "SORT_KEYS",
    "Part",
    "QueryJob",
    "RowTask",
    "boundaries",
    "group_batches",
    "match_batches",
    "match_of",
    "merged_batches",
    "skips_of",
]

_MAX_GROUPS: Final = 100_000  # of a task before it passes on what it has


def _column(name: str, sql: str, arrow: pa.DataType) -> Column:
    return Column(name, sql, arrow, "")


MATCHES: Final = (
    _column("bucket", "INT", pa.int32()),
    _column("ts", "BIGINT", pa.int64()),  # -1: not a match, but what was skipped
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
GROUPS: Final = (_column("key", "BINARY", pa.binary()), _column("partial", "BINARY", pa.binary()))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJob:
    """What every task knows."""

    uri: str
    descriptor: QueryDescriptor
    identity: HubIdentity | None
    keys: KeyFile
    bounds: tuple[Order, ...] = ()  # where buckets of the logical order begin


class RowTask(Protocol):
    """A part of a query that is answered from elsewhere than slices of a log: from files of a table."""

    def matches(self, descriptor: QueryDescriptor) -> Iterator[Match]: ...


Part = Sequence[Slice] | RowTask


def boundaries(
    tasks: Sequence[Sequence[Slice]], times: Sequence[Times | None], buckets: int, *, more: Iterable[int] = ()
) -> tuple[Order, ...]:
    """Where to divide the logical order so that buckets are of similar size; any division gives the same result.

    `more`: times at which files of a table begin.
    """
    slices = [part for task in tasks for part in task]
    starts: list[Order] = [
        (max(part.before_ts, span.first_ts), part.stream.stream_id or b"", part.stream.epoch, part.first, b"")
        for part, span in zip(slices, times, strict=True)
        if span is not None
    ]
    starts = sorted({*starts, *((begin, b"", 0, 0, b"") for begin in more)})
    step = max(1, -(-len(starts) // buckets))
    return tuple(starts[step::step])


# --- matches -----------------------------------------------------------------------------------------------------


def _matches(job: QueryJob, part: Part, skips: Skips) -> Iterator[Match]:
    if not isinstance(part, Sequence):
        return part.matches(job.descriptor)
    return Matcher(job.descriptor, job.keys.load(), job.identity).matches(open_fs(job.uri), part, skips)


def match_batches(job: QueryJob, part: Part) -> Iterator[pa.RecordBatch]:
    """The matches in some slices or files, then what was skipped in them."""
    skips = Skips()

    def rows() -> Iterator[dict[str, Any]]:
        for match in _matches(job, part, skips):
            ts, stream_id, epoch, stream_seq, leaf_hash = match.order
            row = {
                "bucket": bisect_right(job.bounds, match.order),
                "ts": ts,
                "stream_id": stream_id,
                "epoch": epoch,
                "stream_seq": stream_seq,
                "label": match.label,
                "leaf_hash": leaf_hash,
                "row": match.row,
                "partial": match.partial.to_bytes() if match.partial else None,
                "fault": match.fault,
            }
            yield row | match.witness._asdict() if match.witness else row
        for number, data in enumerate(_skip_rows(skips)):
            yield {"bucket": 0, "ts": -1, "stream_id": b"", "epoch": 0, "stream_seq": number, "row": data}

    yield from batched(rows(), arrow_schema(MATCHES))


def _skip_rows(skips: Skips) -> Iterator[bytes]:
    for label, *rest in skips.to_tree():
        yield canonical.encode([label.hex(), *rest])


def skips_of(data: bytes, into: Skips) -> None:
    """Take in what a task has skipped."""
    label, *rest = canonical.parse(data)
    into.absorb([[bytes.fromhex(label), *rest]])


def match_of(row: Any) -> Match:
    """A match from its columns: a mapping, or a row of Spark."""

    def data(name: str) -> bytes:
        value = row[name]
        return b"" if value is None else bytes(value)

    return Match(
        order=(row["ts"], data("stream_id"), row["epoch"], row["stream_seq"], data("leaf_hash")),
        label=data("label"),
        row=data("row"),
        partial=None if row["partial"] is None else Partial.from_bytes(data("partial")),
        witness=None if row["receipt"] is None else Witness(*(data(name) for name in Witness._fields)),
        fault=row["fault"],
    )


# --- groups ------------------------------------------------------------------------------------------------------


def group_batches(job: QueryJob, part: Part) -> Iterator[pa.RecordBatch]:
    """What some slices or files add to each group; the empty key carries what was skipped."""
    aggregate = job.descriptor.aggregate
    assert aggregate is not None  # noqa: S101 - only aggregates come here
    skips = Skips()

    def rows() -> Iterator[dict[str, Any]]:
        groups: dict[bytes, Partial] = {}
        for match in _matches(job, part, skips):
            assert match.partial is not None  # noqa: S101 - as above
            group = groups.setdefault(match.row, match.partial)
            if group is not match.partial:
                group.absorb(aggregate, match.partial)
            if len(groups) >= _MAX_GROUPS:
                yield from ({"key": key, "partial": group.to_bytes()} for key, group in groups.items())
                groups.clear()
        yield from ({"key": key, "partial": group.to_bytes()} for key, group in groups.items())
        yield from ({"key": b"", "partial": data} for data in _skip_rows(skips))

    yield from batched(rows(), arrow_schema(GROUPS))


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

    yield from batched(rows(), arrow_schema(GROUPS))
