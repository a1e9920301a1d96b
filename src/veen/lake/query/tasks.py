"""Tasks of a parallel execution: pure functions of a job and a part of the log, tested without Spark.

A job names a key file and never holds a key (D-120). However the log is divided into tasks and in whatever order they
end, sorting their results restores the sequence of matches of a single process.

Sorted rows go to the driver in blobs, an Arrow batch of about a MiB each: row by row, Spark would pickle every column
of every row, and no cluster would make a query faster than that one thread (decision 311). A limit is applied before
that, by each task and each bucket; the number of matches that it left out travels with the rest, for the coverage
counts them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import pairwise
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veen.core import canonical
from veen.core.event import Order
from veen.core.objects.identity import HubIdentity
from veen.io.places import open_fs
from veen.lake.log.columns import Column, arrow_schema, to_batches
from veen.lake.log.decryption import Skips
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Prefix, Times
from veen.lake.log.slices import Slice
from veen.lake.query.aggregate import Partial
from veen.lake.query.clauses import MAX_ORDERED
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.evidence import Prover
from veen.lake.query.matches import Match, Matcher, MatchTally, Witness

_BLOB_BYTES: Final = 1 << 20
_MAX_GROUPS: Final = 100_000  # of a task before it passes on what it has


def _column(name: str, sql: str, arrow: pa.DataType) -> Column:
    return Column(name, sql, arrow, "")


MATCHES: Final = (
    _column("bucket", "INT", pa.int32()),
    _column("ts", "BIGINT", pa.int64()),  # -1: not a match, but a note: what was skipped or left out
    _column("stream", "INT", pa.int32()),  # its number among the streams of the scope: compares faster than 32 bytes
    _column("epoch", "BIGINT", pa.int64()),
    _column("stream_seq", "BIGINT", pa.int64()),
    _column("label", "BINARY", pa.binary()),
    _column("leaf_hash", "BINARY", pa.binary()),
    _column("row", "BINARY", pa.binary()),
    _column("partial", "BINARY", pa.binary()),
    *(_column(name, "BINARY", pa.binary()) for name in Witness._fields),
    _column("fault", "STRING", pa.string()),
    _column("verified", "BINARY", pa.binary()),
)
ORDER_KEYS: Final = ("ts", "stream", "epoch", "stream_seq", "leaf_hash")  # the logical order (D-27)
BLOB: Final = (_column("blob", "BINARY", pa.binary()),)
GROUPS: Final = (_column("key", "BINARY", pa.binary()), _column("partial", "BINARY", pa.binary()))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryJob:
    """Arguments of every task."""

    uri: str
    descriptor: QueryDescriptor
    identity: HubIdentity | None
    keys: KeyFile
    bounds: tuple[Order, ...] = ()  # where buckets of the logical order begin


class RowTask(Protocol):
    """A part of a query that is answered from files of a table, not from slices of a log."""

    def matches(self, descriptor: QueryDescriptor) -> Iterator[Match]: ...


@dataclass(frozen=True, slots=True)
class ProvenSlices:
    """Slices whose matches the task verifies, with the heads of their labels and nothing else of the prefix."""

    slices: tuple[Slice, ...]
    heads: Prefix

    @classmethod
    def of(cls, slices: Sequence[Slice], prefix: Prefix) -> Self:
        labels = {part.label for part in slices}
        heads = (replace(head, slices=(), chunks=()) for head in prefix.labels if head.label in labels)
        return cls(tuple(slices), replace(prefix, labels=tuple(heads)))


Part = Sequence[Slice] | RowTask | ProvenSlices


def with_evidence(descriptor: QueryDescriptor, prefix: Prefix, tasks: Iterable[Sequence[Slice]]) -> list[Part]:
    """Return the tasks. In mode "full" they verify what they open; mode "spot" samples rows by their final order."""
    if descriptor.evidence.mode != "full":
        return [*tasks]
    return [ProvenSlices.of(task, prefix) for task in tasks]


def boundaries(
    tasks: Sequence[Sequence[Slice]], times: Sequence[Times | None], buckets: int, *, more: Iterable[int] = ()
) -> tuple[Order, ...]:
    """Return the boundaries of buckets of similar size in the logical order; any division gives the same result.

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
    slices = part.slices if isinstance(part, ProvenSlices) else part
    if not isinstance(slices, Sequence):
        return slices.matches(job.descriptor)
    return Matcher(job.descriptor, job.keys.load(), job.identity).matches(open_fs(job.uri), slices, skips)


def stream_numbers(descriptor: QueryDescriptor) -> dict[bytes, int]:
    """Return the number of each stream of the scope, in the order of their ids."""
    return {stream_id: number for number, stream_id in enumerate(sorted(descriptor.stream_names))}


def match_batches(job: QueryJob, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the matches in some slices or files, then notes: entries skipped in them, and matches beyond a limit."""
    tally, numbers = MatchTally(), stream_numbers(job.descriptor)

    def rows() -> Iterator[dict[str, Any]]:
        for match in _verify(job, part, _limit_matches(job.descriptor, _matches(job, part, tally), tally)):
            ts, stream_id, epoch, stream_seq, leaf_hash = match.order
            row = {
                "bucket": bisect_right(job.bounds, match.order),
                "ts": ts,
                "stream": numbers[stream_id],
                "epoch": epoch,
                "stream_seq": stream_seq,
                "label": match.label,
                "leaf_hash": leaf_hash,
                "row": match.row,
                "partial": match.partial.to_bytes() if match.partial else None,
                "fault": match.fault,
                "verified": match.verified,
            }
            yield row | match.witness._asdict() if match.witness else row
        yield from _notes(tally)

    yield from to_batches(rows(), arrow_schema(MATCHES))


def _verify(job: QueryJob, part: Part, matches: Iterator[Match]) -> Iterator[Match]:
    """Add evidence to the matches, if the part has the heads for it."""
    if not isinstance(part, ProvenSlices):
        yield from matches
        return
    with Prover(part.heads, job.descriptor, rebuilds=False) as prover:
        yield from prover.verify_signed(matches)


def _limit_matches(descriptor: QueryDescriptor, matches: Iterator[Match], tally: MatchTally) -> Iterator[Match]:
    """Return the matches that can be rows of the result as far as this task knows: at most the limit."""
    limit, orders = descriptor.limit, descriptor.order
    if descriptor.aggregate is not None or limit is None or limit > MAX_ORDERED:
        return matches
    count = 0

    def count_matches() -> Iterator[Match]:
        nonlocal count
        for match in matches:
            count += 1
            yield match

    def key(match: Match) -> list[Any]:
        row = canonical.parse(match.row) if orders else {}
        return [*(order.key(row) for order in orders), match.order]

    # No match ends the reading early, not even behind the limit: what a query covers and skips must not depend on it
    # (decision 311). So all are counted, and only those that may be rows are kept.
    first = nsmallest(limit, count_matches(), key=key)
    tally.left_out += count - len(first)
    return iter(first)


def _notes(tally: MatchTally) -> Iterator[dict[str, Any]]:
    for number, data in enumerate(_skip_rows(tally)):
        yield {"bucket": 0, "ts": -1, "stream": 0, "epoch": 0, "stream_seq": number, "row": data}


def _skip_rows(tally: MatchTally) -> Iterator[bytes]:
    for label, *rest in tally.to_tree():
        yield canonical.encode([label.hex(), *rest])
    if tally.left_out:
        yield canonical.encode(tally.left_out)


def add_note(data: bytes, tally: MatchTally) -> None:
    """Add the skipped entries or left out matches of a task."""
    note = canonical.parse(data)
    if type(note) is int:
        tally.left_out += note
        return
    label, *rest = note
    tally.absorb([[bytes.fromhex(label), *rest]])


# --- on the way to the driver ------------------------------------------------------------------------------------


def limit_batches(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Limit sorted rows of MATCHES to the first `limit` matches; keep notes, and add one with the number left out."""
    # Each task has applied the limit already; here it is applied to a bucket, which many tasks fill (decision 311).
    tally, remaining = MatchTally(), limit
    for batch in batches:
        if remaining is None:
            yield batch
            continue
        notes = int(pc.sum(pc.less(batch.column("ts"), 0)).as_py() or 0)  # they sort before all matches
        count = min(remaining, batch.num_rows - notes)
        remaining -= count
        tally.left_out += batch.num_rows - notes - count
        yield batch.slice(0, notes + count)
    if tally.left_out:
        yield from to_batches(_notes(tally), arrow_schema(MATCHES))


def pack_batches(batches: Iterable[pa.RecordBatch], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """Pack rows into BLOBs of about a MiB: each an Arrow batch of `columns`, in the order of the rows."""
    schema, blob = arrow_schema(columns), arrow_schema(BLOB)
    for batch in batches:
        rows = batch if batch.schema.equals(schema) else batch.cast(schema)
        for first, count in _cuts(rows):
            data = rows.slice(first, count).serialize().to_pybytes()
            yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=blob)


def _cuts(batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of runs of rows with about as many bytes as a blob has."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    numbers = np.cumsum(sizes) // _BLOB_BYTES
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    for first, end in pairwise(begins):
        if end > first:
            yield first, end - first


def _unpack(blob: bytes, columns: Sequence[Column]) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(blob), arrow_schema(columns))


def _bytes_of(column: pa.Array) -> list[bytes]:
    """Return the values of a binary column, b"" for NULL; several times faster than `to_pylist`."""
    _, offsets, data = column.buffers()
    if data is None:
        return [b""] * len(column)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    values = data.to_pybytes()
    return [values[begin:end] for begin, end in pairwise(ends)]


def matches_in(blob: bytes, streams: Sequence[bytes], tally: MatchTally) -> Iterator[Match]:
    """Yield the matches of a blob; add notes to the tally. `streams` has the ids of the scope, sorted."""
    batch = _unpack(blob, MATCHES)
    numbers = [batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in ORDER_KEYS[:4]]
    texts = [_bytes_of(batch.column(name)) for name in ("leaf_hash", "label", "row")]
    optional = [batch.column(name) for name in ("partial", "fault", "verified", *Witness._fields)]
    empty = [None] * batch.num_rows  # a column of NULLs alone: cheaper than its own list
    others = [empty if column.null_count == len(column) else column.to_pylist() for column in optional]
    for row in zip(*numbers, *texts, *others, strict=True):
        ts, stream, epoch, stream_seq, leaf_hash, label, data, partial, fault, verified, *witness = row
        if ts < 0:
            add_note(data, tally)
            continue
        yield Match(
            (ts, streams[stream], epoch, stream_seq, leaf_hash),
            label,
            data,
            None if partial is None else Partial.from_bytes(partial),
            None if witness[0] is None else Witness(*witness),
            fault,
            verified,
        )


def pairs_in(blob: bytes) -> list[tuple[bytes, bytes]]:
    """Return the key and partial of each group in a blob."""
    batch = _unpack(blob, GROUPS)
    return list(zip(*(_bytes_of(column) for column in batch.columns), strict=True))


# --- groups ------------------------------------------------------------------------------------------------------


def group_batches(job: QueryJob, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the contribution of some slices or files to each group; the empty key carries skipped entries."""
    aggregate = job.descriptor.aggregate
    assert aggregate is not None  # noqa: S101 - only aggregates come here
    tally = MatchTally()

    def rows() -> Iterator[dict[str, Any]]:
        groups: dict[bytes, Partial] = {}
        for match in _matches(job, part, tally):
            assert match.partial is not None  # noqa: S101 - as above
            group = groups.setdefault(match.row, match.partial)
            if group is not match.partial:
                group.absorb(aggregate, match.partial)
            if len(groups) >= _MAX_GROUPS:
                yield from ({"key": key, "partial": group.to_bytes()} for key, group in groups.items())
                groups.clear()
        yield from ({"key": key, "partial": group.to_bytes()} for key, group in groups.items())
        yield from ({"key": b"", "partial": data} for data in _skip_rows(tally))

    yield from to_batches(rows(), arrow_schema(GROUPS))


def merge_batches(descriptor: QueryDescriptor, sorted_rows: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """Yield one row per group, from rows sorted by key."""
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

    yield from to_batches(rows(), arrow_schema(GROUPS))
