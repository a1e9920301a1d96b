"""Coverage of a state: numbers of rows, last positions, roots, and entries that could not be read.

A monoid that every task makes beside its summary. The leaves of neighbouring entries fold into runs (`mmr.Span`), so a
task that has read all entries of a label knows the root of exactly what was folded, at the cost of one hash per entry.

Exchange of rows and summaries between tasks: columns of Arrow, and CBOR in slices of bounded size.

A Spark cell has a bound and a state has none, so a summary is cut into slices. No pickle: what an executor returns is
decoded with the types of the fold, like a snapshot from a stranger.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

import pyarrow as pa

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.tree.mmr import Span
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.decryption import Skips
from veen.lake.log.errors import OptionError
from veen.lake.log.events import EVENT_COLUMNS, REASONS, SILVER, LogEntry, NotAnEvent, entry_of, header_of

_RUN: Final = 4_096  # leaves that wait to be folded
_MAX_RUNS: Final = 65_536  # rows in wild disorder: then the root stays unknown, and memory bounded
_NOTHING: Final = PayloadHdr(schema=bytes(32))  # no schema has this id


@dataclass(frozen=True, slots=True, kw_only=True)
class UnopenedCount:
    """Number of entries of one label that could not be read for one reason, and so have no effect."""

    label: bytes
    reason: str
    count: int
    first_seq: int


def all_unopened(*groups: Iterable[UnopenedCount]) -> tuple[UnopenedCount, ...]:
    """Return the sums of counts over readings of different entries, by label and reason."""
    skips = Skips()
    for group in groups:
        for skip in group:
            skips.add(skip.label, skip.reason, skip.first_seq, skip.count)
    return _count_unopened(skips)


def _count_unopened(skips: Skips) -> tuple[UnopenedCount, ...]:
    return tuple(
        UnopenedCount(label=label, reason=kind, count=skip.count, first_seq=skip.first_seq)
        for (label, kind), skip in sorted(
            skips.counts.items(), key=lambda pair: (pair[0][0], REASONS.index(pair[0][1]))
        )
    )


@dataclass(slots=True)
class FoldCoverage:
    """Coverage of the rows read so far. Owned by the task, or by the driver that merges those of tasks."""

    rows: int = 0
    counts: dict[bytes, int] = field(default_factory=dict)  # rows by label
    heads: dict[bytes, int] = field(default_factory=dict)  # the last position by label
    times: dict[bytes, int] = field(default_factory=dict)  # the greatest ts* by label
    skips: Skips = field(default_factory=Skips)
    runs: dict[bytes, list[Span]] = field(default_factory=dict)
    _waiting: dict[bytes, list[tuple[int, bytes]]] = field(default_factory=dict)

    @property
    def ts(self) -> int:
        """Greatest ts* of all labels."""
        return max(self.times.values(), default=0)

    def events(self, entries: Iterable[LogEntry]) -> Iterator[Event]:
        """Record each entry and pass it on as an event.

        An entry that could not be read keeps its place, and has no effect.
        """
        for entry in entries:
            label, seq = entry.label, entry.stream_seq
            self.rows += 1
            self.counts[label] = self.counts.get(label, 0) + 1
            if seq > self.heads.get(label, 0):
                self.heads[label] = seq
            if entry.ts > self.times.get(label, -1):
                self.times[label] = entry.ts
            if entry.leaf_hash is not None:
                waiting = self._waiting.setdefault(label, [])
                waiting.append((seq, entry.leaf_hash))
                if len(waiting) >= _RUN:
                    self._fold_leaves(label)
            if isinstance(entry, Event):
                yield entry
            else:
                self.skips.add(label, entry.reason if entry.reason in REASONS else "malformed", seq)
                yield Event(
                    stream_id=entry.stream_id or b"",
                    label=label,
                    epoch=entry.epoch,
                    stream_seq=seq,
                    leaf_hash=entry.leaf_hash or b"",
                    client_id=entry.client_id or b"",
                    auth_ref=entry.auth_ref,
                    hub_ts=entry.hub_ts or 0,
                    ts=entry.ts,
                    hdr=_NOTHING,
                    body=b"",
                )

    def record(self, entries: Iterable[LogEntry]) -> None:
        """Record entries without using them."""
        for _ in self.events(entries):
            pass

    def _fold_leaves(self, label: bytes) -> None:
        waiting = sorted(set(self._waiting.pop(label, ())))
        runs = self.runs.setdefault(label, [])
        start = 0
        for index in range(1, len(waiting) + 1):
            if index == len(waiting) or waiting[index][0] != waiting[index - 1][0] + 1:
                leaves = [leaf for _, leaf in waiting[start:index]]
                _push(runs, Span.of(waiting[start][0] - 1, leaves))
                start = index

    def absorb(self, other: "FoldCoverage") -> None:
        self.rows += other.rows
        for label, count in other.counts.items():
            self.counts[label] = self.counts.get(label, 0) + count
            self.heads[label] = max(self.heads.get(label, 0), other.heads[label])
            self.times[label] = max(self.times.get(label, 0), other.times[label])
        self.skips.absorb(other.skips.to_tree())
        for label, runs in other.all_runs().items():
            joined = self.all_runs().setdefault(label, [])
            for run in runs:
                _push(joined, run)

    def all_runs(self) -> dict[bytes, list[Span]]:
        """Return the runs after folding all waiting leaves into them."""
        for label in list(self._waiting):
            self._fold_leaves(label)
        return self.runs

    def count_unopened(self) -> tuple[UnopenedCount, ...]:
        return _count_unopened(self.skips)

    def peaks(self, label: bytes, size: int, before: Span | None = None) -> Span | None:
        """Return the tree over the first `size` leaves, which may begin with `before`; None if leaves are unknown."""
        tree = before or Span(0, 0, ())
        for run in sorted(self.all_runs().get(label, ()), key=lambda run: run.start):
            if tree.end == run.start:
                tree = tree.merge(run)
            elif run.end > tree.end:
                return None
        return tree if tree.end == size else None

    def first_of(self, label: bytes) -> int | None:
        """Return the first position if each from there to the head was read once, with its leaf; else None."""
        runs = sorted(self.all_runs().get(label, ()), key=lambda run: run.start)
        if not runs or any(run.end != after.start for run, after in pairwise(runs)):
            return None
        first, head = runs[0].start + 1, self.heads[label]
        return first if runs[-1].end == head and self.counts[label] == head - first + 1 else None

    # --- on its way to the driver --------------------------------------------------------------------------------

    def to_tree(self) -> list[Any]:
        skips = self.skips.to_tree()
        runs = [
            [label, [[run.start, run.end, list(run.nodes)] for run in spans]]
            for label, spans in sorted(self.all_runs().items())
            if len(spans) <= _MAX_RUNS
        ]
        labels = [[label, n, self.heads[label], self.times[label]] for label, n in sorted(self.counts.items())]
        return [self.rows, labels, skips, runs]

    @classmethod
    def from_tree(cls, tree: Any) -> Self:
        rows, labels, skips, runs = tree
        coverage = cls(rows=rows)
        for label, count, head, ts in labels:
            coverage.counts[label], coverage.heads[label], coverage.times[label] = count, head, ts
        coverage.skips.absorb(skips)
        coverage.runs = {
            label: [Span(start, end, tuple(nodes)) for start, end, nodes in spans] for label, spans in runs
        }
        return coverage


def _push(runs: list[Span], run: Span) -> None:
    """Append a run, or join it with the run that ends where it begins."""
    if runs and runs[-1].end == run.start:
        runs[-1] = runs[-1].merge(run)
    else:
        runs.append(run)


_SLICE_BYTES: Final = 8 << 20
_NOT_NEEDED: Final = ("stream",)
NEEDED: Final[tuple[Column, ...]] = tuple(column for column in SILVER if column.name not in _NOT_NEEDED)
EVENTS: Final = (
    *(column for column in SILVER if column.name in EVENT_COLUMNS),
    Column("data", "BINARY", pa.binary(), "the coverage of the task; such a row is no event"),
)
PARCELS: Final = (
    Column("part", "BIGINT", pa.int64(), "which task made it"),
    Column("slice", "BIGINT", pa.int64(), "place of the slice"),
    Column("data", "BINARY", pa.binary(), "a piece of its CBOR"),
)


# --- events --------------------------------------------------------------------------------------------------------


def check_columns(names: Iterable[str]) -> None:
    """Raise OptionError if a frame lacks a column that folding needs."""
    have = set(names)
    if missing := [column.name for column in NEEDED if column.name not in have]:
        raise OptionError(f"a frame of events needs the columns of SILVER; missing: {', '.join(missing)}")


def entries_in(batches: Iterable[pa.RecordBatch]) -> Iterator[LogEntry]:
    """Yield the entries of some batches, in their order. Raise NotAnEvent for an invalid row."""
    for batch in batches:
        whole = all(batch.column(name).null_count == 0 for name in EVENT_COLUMNS if name != "auth_ref")
        if not whole or not all(batch.column("ok").to_pylist()):
            yield from map(entry_of, batch.to_pylist())
            continue
        for row in zip(*(batch.column(name).to_pylist() for name in EVENT_COLUMNS), strict=True):
            fields = dict(zip(EVENT_COLUMNS, row, strict=True))
            try:
                fields["hdr"], fields["origin"] = header_of(fields["hdr"])
            except (VeenError, TypeError) as exc:
                raise NotAnEvent(f"entry {fields['stream_seq']} of a label: the row is not a valid event") from exc
            yield Event(**fields)


# --- coverage ------------------------------------------------------------------------------------------------------


def coverage_row(coverage: FoldCoverage) -> dict[str, Any]:
    """Return the row with the coverage of a task."""
    return {"data": cbor.encode(coverage.to_tree())}


def merge_coverages(rows: Iterable[Mapping[str, Any]]) -> FoldCoverage:
    """Merge the coverages of several tasks."""
    coverage = FoldCoverage()
    for row in rows:
        data = bytes(row["data"])
        tree = cbor.decode(data, what="coverage", max_bytes=len(data), max_items=len(data) + 1)
        coverage.absorb(FoldCoverage.from_tree(tree))
    return coverage


# --- summaries -----------------------------------------------------------------------------------------------------


def pack(part: int, tree: cbor.Item) -> Iterator[pa.RecordBatch]:
    """Encode one item as rows of PARCELS."""
    data, schema = cbor.encode(tree), arrow_schema(PARCELS)
    for number, start in enumerate(range(0, len(data), _SLICE_BYTES)):
        row = {"part": part, "slice": number, "data": data[start : start + _SLICE_BYTES]}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def unpack(rows: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[int, Any]]:
    """Decode rows of PARCELS in any order; yield (part, item) by part."""
    parcels: dict[int, dict[int, bytes]] = {}
    for part, number, data in rows:
        parcels.setdefault(part, {})[number] = bytes(data)
    for part in sorted(parcels):
        slices = parcels.pop(part)
        data = b"".join(slices[number] for number in sorted(slices))
        yield part, cbor.decode(data, what="summary", max_bytes=len(data), max_items=len(data) + 1)
