"""The local runner. It folds a log once and answers for any moment of it from cached summaries (spec §11.3, OVL-10).

The log is cut into blocks of `interval` events, the summaries of blocks are merged in a tree, and a view as of some
position is the merge of O(log n) summaries and at most one block of events. Compact folds have one tree for each label.
Ordered folds have one tree over the logical order of all labels (D-27): what a block changed in the tables is a
summary, given all before it. Should an event turn up that belongs earlier, the blocks after it are folded again.

A tree of merged summaries over a growing sequence: any range is the merge of O(log n) of them (spec §11.3).

Leaves come in order; `fanout` neighbours merge into a node one level up as soon as they are complete. Only complete,
aligned nodes exist, so nothing ever has to be merged again. A wide tree keeps fewer levels, and so less memory: each
level holds at most the whole state once.
"""

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from veen.core.event import Event, Order
from veen.overlays.framework.fold import Fold
from veen.overlays.framework.ordered import Ordered, OrderedPrefix, Progress, Table, merge_layers
from veen.overlays.framework.schema import Issue, Place

N = TypeVar("N")


class MergeTree(Generic[N]):
    """Nodes by level and index. `merge` takes neighbours from left to right."""

    def __init__(self, merge: Callable[[Sequence[N]], N], *, fanout: int = 8) -> None:
        if fanout < 2:
            raise ValueError("a tree has a fanout of at least 2")
        self._merge, self._fanout = merge, fanout
        self._levels: list[list[N]] = [[]]

    def __len__(self) -> int:
        """Return the number of leaves."""
        return len(self._levels[0])

    def append(self, leaf: N) -> None:
        node, level = leaf, 0
        while True:
            if level == len(self._levels):
                self._levels.append([])
            nodes = self._levels[level]
            nodes.append(node)
            if len(nodes) % self._fanout:
                return
            node, level = self._merge(nodes[-self._fanout :]), level + 1

    def truncate(self, leaves: int) -> None:
        """Drop all but the first `leaves` leaves."""
        size = 1
        for nodes in self._levels:
            del nodes[leaves // size :]
            size *= self._fanout

    def leaf(self, index: int) -> N:
        return self._levels[0][index]

    def cover(self, start: int, end: int) -> list[N]:
        """Return the fewest nodes that together cover the leaves start … end - 1, from left to right."""
        if not 0 <= start <= end <= len(self):
            raise ValueError(f"no leaves {start} to {end} among {len(self)}")
        nodes = []
        while start < end:
            level, size = 0, 1
            while start % (size * self._fanout) == 0 and start + size * self._fanout <= end:
                level, size = level + 1, size * self._fanout
            nodes.append(self._levels[level][start // size])
            start += size
        return nodes

    def prefix(self, fits: Callable[[N], bool]) -> list[N]:
        """Return the fewest nodes that cover the leading leaves that fit. After a misfit no later leaf may fit."""
        largest: list[N] = []
        start = 0
        for level in range(len(self._levels) - 1, -1, -1):
            size = self._fanout**level
            nodes = self._levels[level]
            while start // size < len(nodes) and fits(nodes[start // size]):
                largest.append(nodes[start // size])
                start += size
        return largest


T = TypeVar("T")
V = TypeVar("V")

Heads = Mapping[bytes, int]  # by label: a position, up to and including which a prefix goes


class Source(Protocol):
    """A source of events: reads of a client, a partition of Spark, a list."""

    def heads(self) -> Heads:
        """Return the last position of each label."""

    def events(self, label: bytes, from_seq: int, to_seq: int) -> Iterable[Event]:
        """Return the events from_seq … to_seq, both included, in order and without gaps."""


class MemorySource:
    """Events that are held in memory, such as those of one read of a client."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._by_label: dict[bytes, list[Event]] = {}
        for event in sorted(events, key=lambda e: e.stream_seq):
            self.append(event)

    def append(self, event: Event) -> None:
        """Add an event. Events of a label come in order; one that is already there is skipped."""
        events = self._by_label.setdefault(event.label, [])
        if event.stream_seq > len(events) + 1:
            raise ValueError(f"label {event.label.hex()} has a gap before {event.stream_seq}")
        if event.stream_seq == len(events) + 1:
            events.append(event)

    def heads(self) -> Heads:
        return {label: len(events) for label, events in self._by_label.items()}

    def events(self, label: bytes, from_seq: int, to_seq: int) -> Sequence[Event]:
        return self._by_label.get(label, [])[from_seq - 1 : to_seq]


def cut_at(source: Source, ts: int) -> dict[bytes, int]:
    """Return, by label, the last position whose ts* is at most `ts`. Read O(log n) events of each label."""

    def ts_at(label: bytes, stream_seq: int) -> int:
        (event,) = source.events(label, stream_seq, stream_seq)
        return event.ts

    return {
        label: bisect_left(range(1, head + 1), ts + 1, key=lambda seq, label=label: ts_at(label, seq))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        for label, head in source.heads().items()
    }


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of an answer: number of cached summaries merged, and of events read from the source."""

    summaries: int
    events: int


class Runner(Generic[T, V]):
    """One fold over one source. `cost` tells what the last answer took."""

    def __init__(self, fold: Fold[T, V], source: Source, *, interval: int = 1024, fanout: int = 8) -> None:
        if interval < 1:
            raise ValueError("a block has at least one event")
        self.fold, self.source = fold, source
        self.cost = Cost(0, 0)
        self._cache: _Cache = (
            _ByOrder(fold, source, interval, fanout)
            if isinstance(fold, Ordered)
            else _ByLabel(fold, source, interval, fanout)
        )

    def refresh(self) -> None:
        """Fold what the source has gained. Answers do this by themselves."""
        self._cache.refresh()

    def summary(self, upto: Heads | None = None) -> T:
        """Return the summary of the whole source, or of the labels in `upto`, each up to its position."""
        self.refresh()
        heads = self.source.heads()
        if upto is None:
            upto = heads
        for label, seq in upto.items():
            if seq > heads.get(label, 0):
                raise ValueError(f"label {label.hex()} ends before {seq}")
        summary, self.cost = self._cache.summary(upto)
        return summary  # type: ignore[no-any-return]  # the cache is of this fold

    def view(self, upto: Heads | None = None, *, as_of: int | None = None) -> V:
        """Return the state up to some positions. What expires is evaluated at `as_of`."""
        return self.fold.view(self.summary(upto), as_of)

    def view_at(self, ts: int) -> V:
        """Return the state that was known at the time `ts`, evaluated at that time."""
        return self.view(cut_at(self.source, ts), as_of=ts)

    def issues(self, upto: Heads | None = None) -> tuple[Issue, ...]:
        """Return the events without effect, each with its code, up to given positions."""
        return self.fold.issues(self.summary(upto))

    def range(self, label: bytes, from_seq: int, to_seq: int) -> T:
        """Return the summary of a range of one label; for an ordered fold, a segment of events (D-82)."""
        self.refresh()
        summary, self.cost = self._cache.range(label, from_seq, to_seq)
        return summary  # type: ignore[no-any-return]  # the cache is of this fold


class _Cache(ABC):
    """Interface of a cache of summaries."""

    @abstractmethod
    def refresh(self) -> None: ...

    @abstractmethod
    def summary(self, upto: Heads) -> tuple[Any, Cost]: ...

    @abstractmethod
    def range(self, label: bytes, from_seq: int, to_seq: int) -> tuple[Any, Cost]: ...


class _ByLabel(_Cache):
    """For folds that merge in any order: block k of a label is always the same, whatever other labels do."""

    def __init__(self, fold: Fold[Any, Any], source: Source, interval: int, fanout: int) -> None:
        self._fold, self._source, self._interval, self._fanout = fold, source, interval, fanout
        self._trees: dict[bytes, MergeTree[Any]] = {}

    def refresh(self) -> None:
        for label, head in self._source.heads().items():
            tree = self._trees.get(label)
            if tree is None:
                tree = self._trees[label] = MergeTree(self._fold.combine, fanout=self._fanout)
            start, end = len(tree) * self._interval, head - head % self._interval
            if start < end:
                events = iter(self._source.events(label, start + 1, end))
                for _ in range(start, end, self._interval):
                    tree.append(self._fold.summarize(islice(events, self._interval)))

    def summary(self, upto: Heads) -> tuple[Any, Cost]:
        parts: list[Any] = []
        cached = read = 0
        for label, seq in upto.items():
            own, cost = self._parts(label, 1, seq)
            parts += own
            cached, read = cached + cost.summaries, read + cost.events
        return self._fold.combine(parts), Cost(cached, read)

    def range(self, label: bytes, from_seq: int, to_seq: int) -> tuple[Any, Cost]:
        parts, cost = self._parts(label, from_seq, to_seq)
        return self._fold.combine(parts), cost

    def _parts(self, label: bytes, from_seq: int, to_seq: int) -> tuple[list[Any], Cost]:
        """Return the cached blocks inside of the range, and summaries of the events at its ends."""
        first, last = -(-(from_seq - 1) // self._interval), to_seq // self._interval
        if first >= last or label not in self._trees:
            return [self._read(label, from_seq, to_seq)], Cost(0, max(0, to_seq - from_seq + 1))
        nodes = self._trees[label].cover(first, last)
        inner_from, inner_to = first * self._interval + 1, last * self._interval
        parts = [*nodes]
        if from_seq < inner_from:
            parts.append(self._read(label, from_seq, inner_from - 1))
        if inner_to < to_seq:
            parts.append(self._read(label, inner_to + 1, to_seq))
        return parts, Cost(len(nodes), inner_from - from_seq + to_seq - inner_to)

    def _read(self, label: bytes, from_seq: int, to_seq: int) -> Any:
        return self._fold.summarize(self._source.events(label, from_seq, to_seq))


@dataclass(frozen=True, slots=True)
class _Block:
    """The changes that neighbouring events made to the tables, given all events before them. Later blocks win."""

    tables: tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]  # records, identities seen, violations
    issues: Mapping[Place, Issue]
    upto: Heads  # of all events
    counted: Heads  # of those that the fold counts
    last: Order  # of those that the fold counts
    end: Order  # of all
    ts: int


def _merge_blocks(blocks: Sequence[_Block]) -> _Block:
    """Merge neighbouring blocks, given from left to right."""
    issues: dict[Place, Issue] = {}
    upto: dict[bytes, int] = {}
    counted: dict[bytes, int] = {}
    for block in blocks:
        issues.update(block.issues)
        upto.update(block.upto)
        counted.update(block.counted)
    layers = [merge_layers(block.tables[i] for block in reversed(blocks)) for i in range(3)]
    return _Block(
        (layers[0], layers[1], layers[2]),
        issues,
        upto,
        counted,
        blocks[-1].last,
        blocks[-1].end,
        max(block.ts for block in blocks),
    )


class _ByOrder(_Cache):
    """For ordered folds: blocks of the logical order of all labels."""

    def __init__(self, fold: Ordered[Any, Any, Any], source: Source, interval: int, fanout: int) -> None:
        self._fold, self._source, self._interval = fold, source, interval
        self._tree: MergeTree[_Block] = MergeTree(_merge_blocks, fanout=fanout)
        self._heads: dict[bytes, int] = {}
        self._upto: dict[bytes, int] = {}
        self._prefix: OrderedPrefix[Any, Any] | None = None

    def refresh(self) -> None:
        heads = dict(self._source.heads())
        if heads == self._heads:
            return
        self._heads = heads
        first = next(self._events(self._upto, heads), None)
        if first is not None and len(self._tree) and first.order < self._tree.leaf(len(self._tree) - 1).end:
            self._go_back(first.order)
        blocks = (sum(heads.values()) - sum(self._upto.values())) // self._interval
        if blocks:
            events = self._events(self._upto, heads)
            for _ in range(blocks):
                self._append(list(islice(events, self._interval)))

    def _go_back(self, order: Order) -> None:
        """Drop every block that an event at `order` would have changed."""
        keep = bisect_left(range(len(self._tree)), order, key=lambda index: self._tree.leaf(index).end)
        self._tree.truncate(keep)
        nodes = self._tree.cover(0, keep)
        self._upto = {label: seq for node in nodes for label, seq in node.upto.items()}
        self._prefix = _prefix_of(nodes)

    def _append(self, events: list[Event]) -> None:
        summary = self._fold.summarize(events)
        before = self._prefix
        in_order = [summary.segment[place] for e in events if (place := (e.label, e.stream_seq)) in summary.segment]
        after = self._prefix = self._fold.advance(before, in_order)
        upto = {event.label: event.stream_seq for event in events}
        counted = {typed.event.label: typed.event.stream_seq for typed in in_order}
        tables = after.table.changes, after.identities.changes, after.violations.changes
        self._tree.append(_Block(tables, summary.issues, upto, counted, after.last, events[-1].order, summary.ts))
        self._upto.update(upto)

    def summary(self, upto: Heads) -> tuple[Any, Cost]:
        nodes = self._tree.prefix(
            lambda node: all(seq <= upto.get(label, 0) for label, seq in node.upto.items()),
        )
        done = {label: seq for node in nodes for label, seq in node.upto.items()}
        rest = list(self._events(done, upto))
        tail = self._fold.summarize(rest)
        if not nodes:
            return tail, Cost(0, len(rest))
        issues = {place: issue for node in nodes for place, issue in node.issues.items()}
        head = Progress(_prefix_of(nodes), {}, max(node.ts for node in nodes), issues)
        return self._fold.combine((head, tail)), Cost(len(nodes), len(rest))

    def range(self, label: bytes, from_seq: int, to_seq: int) -> tuple[Any, Cost]:
        events = list(self._source.events(label, from_seq, to_seq))
        return self._fold.summarize(events), Cost(0, len(events))

    def _events(self, after: Heads, upto: Heads) -> Iterator[Event]:
        """Yield the events after some positions, in logical order."""
        runs = [
            self._source.events(label, after.get(label, 0) + 1, seq)
            for label, seq in upto.items()
            if after.get(label, 0) < seq
        ]
        return heapq.merge(*runs, key=lambda event: event.order)


def _prefix_of(nodes: Sequence[_Block]) -> OrderedPrefix[Any, Any] | None:
    """Return the state after the leading nodes. Their tables become layers; nothing is copied."""
    if not nodes:
        return None
    layers = [tuple(node.tables[i] for node in reversed(nodes)) for i in range(3)]
    counted = {label: seq for node in nodes for label, seq in node.counted.items()}
    return OrderedPrefix(Table(layers[0]), Table(layers[1]), counted, nodes[-1].last, Table(layers[2]))
