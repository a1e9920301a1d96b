"""Order-dependent folds: Prefix | Segment (D-82), once for wallet, queue, recovery and all that follow.

A segment holds events that have not met their state yet, in no particular order; segments merge by union. A prefix is
the state after everything up to some point of the logical order (D-27). A summary is an optional prefix and a segment
beyond it. `seal` folds the segment into the prefix; merging never has to, so it stays associative and commutative.

The state is a `Table`: records by key. Steps read and write single records, so what a block of events changed is again
a small table, and states at many points share almost everything.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar, cast, overload

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.event import Event, Order
from veen.overlays.framework.fold import Fold
from veen.overlays.framework.schema import Issue, Place, Typed, Violation, decode
from veen.overlays.framework.state import from_tree, to_tree

K = TypeVar("K")
R = TypeVar("R")
D = TypeVar("D")
V = TypeVar("V")


class _Gone:
    """Mark of a deleted key in a layer. A class, so that it keeps its identity when pickled."""


_GONE: Final = _Gone


class LateEvent(VeenError):
    """An event that belongs before a state already computed without it."""

    hint = "A label joined late, or a hub's clock runs behind: fold again from the events, without this snapshot."

    def __init__(self, label: bytes, stream_seq: int) -> None:
        super().__init__(label, stream_seq)
        self.label, self.stream_seq = label, stream_seq

    def __str__(self) -> str:
        return f"event {self.stream_seq} of label {self.label.hex()} comes before the end of a finished prefix"


class Table(Generic[K, R]):
    """Records by key, in layers. `fork` starts a new top layer; the layers below are shared and never change."""

    __slots__ = ("_below", "_top")

    def __init__(self, below: tuple[dict[K, Any], ...] = ()) -> None:
        self._top: dict[K, Any] = {}
        self._below = below  # newest first

    @overload
    def get(self, key: K) -> R | None: ...
    @overload
    def get(self, key: K, default: D) -> R | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        record = self._top.get(key)
        if record is None:
            for layer in self._below:
                record = layer.get(key)
                if record is not None:
                    break
            else:
                return default
        return default if record is _GONE else record

    def __getitem__(self, key: K) -> R:
        record = self.get(key)
        if record is None:
            raise KeyError(key)
        return record

    def __setitem__(self, key: K, record: R) -> None:
        if record is None:
            raise TypeError("a record is not None: delete the key instead")
        self._top[key] = record

    def __delitem__(self, key: K) -> None:
        self[key]  # KeyError where there is nothing to delete
        self._top[key] = _GONE

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None  # type: ignore[arg-type]  # any object may be asked for

    def items(self) -> Iterator[tuple[K, R]]:
        """Yield all records, in no particular order. The table must not be written meanwhile."""
        for key, record in self.flat().items():
            if record is not _GONE:
                yield key, record

    def flat(self) -> dict[K, Any]:
        """Return all layers as one, deletions marked."""
        if not self._below:
            return self._top
        return merge_layers((self._top, *self._below))

    @property
    def changes(self) -> dict[K, Any]:
        """The top layer: what was written since the fork, deletions marked."""
        return self._top

    def fork(self) -> "Table[K, R]":
        """Return a table with the same records. This one must not be written any more."""
        layers = [self._top, *self._below] if self._top else list(self._below)
        while len(layers) > 1 and 2 * len(layers[0]) >= len(layers[1]):  # so there are O(log n) layers, of growing size
            layers[:2] = [merge_layers(layers[:2])]
        return Table(tuple(layers))


def merge_layers(layers: Iterable[dict[K, Any]]) -> dict[K, Any]:
    """Merge layers, given newest first, into one."""
    merged: dict[K, Any] = {}
    for layer in reversed(list(layers)):
        merged.update(layer)
    return merged


@dataclass(frozen=True, slots=True)
class OrderedPrefix(Generic[K, R]):
    """The state after everything up to `last` in logical order."""

    table: Table[K, R]
    identities: Table[bytes, bool]  # kept only where copies are possible (D-85)
    upto: Mapping[bytes, int]  # by label: the last position that is in the state
    last: Order
    violations: Table[Place, Issue]


@dataclass(frozen=True, slots=True)
class Progress(Generic[K, R]):
    """Prefix(state) | Segment(events) of D-82: a prefix, if any, and what comes after it."""

    prefix: OrderedPrefix[K, R] | None = None
    segment: Mapping[Place, Typed[Any]] = field(default_factory=dict)
    ts: int = 0
    issues: Mapping[Place, Issue] = field(default_factory=dict)  # what could not be decoded


class Ordered(Fold[Progress[K, R], V]):
    """A fold in which each event meets the state left by those before it. The overlay writes `step` and `show`.

    Of mirrored copies (D-85) the first in logical order is stepped, the others are passed over.
    """

    TABLE: ClassVar[Any]  # dict[K, R], by which snapshots are read again

    @abstractmethod
    def step(self, state: Table[K, R], event: Typed[Any]) -> None:
        """Apply one event. Check first and write then: an event that raises Violation must have written nothing."""

    @abstractmethod
    def show(self, state: Table[K, R], as_of: int) -> V:
        """Return the state in the form that users of the overlay read."""

    def summarize(self, events: Iterable[Event]) -> Progress[K, R]:
        segment: dict[Place, Typed[Any]] = {}
        issues: dict[Place, Issue] = {}
        ts, find, mirrors = 0, dict(self.schemas).get, self.mirrors
        for event in events:
            if event.ts > ts:
                ts = event.ts
            schema = find(event.hdr.schema)
            if schema is None:
                continue
            typed = decode(mirrors.with_origin_times(event) if mirrors else event, schema)
            if type(typed) is Issue:
                issues[event.label, event.stream_seq] = typed
            else:
                segment[event.label, event.stream_seq] = cast(Typed[Any], typed)
        return Progress(None, segment, ts, issues)

    def combine(self, parts: Iterable[Progress[K, R]]) -> Progress[K, R]:
        """Merge parts; the longest prefix is kept. Raise LateEvent if it misses an event that belongs into it."""
        parts = list(parts)
        prefixes = [part.prefix for part in parts if part.prefix is not None]
        prefix = max(prefixes, key=lambda p: p.last, default=None)
        segment: dict[Place, Typed[Any]] = {}
        issues: dict[Place, Issue] = {}
        for part in parts:
            segment.update(part.segment)
            issues.update(part.issues)
        if prefix is not None:
            for other in prefixes:
                for label, upto in other.upto.items():
                    if prefix.upto.get(label, 0) < upto:
                        raise LateEvent(label, upto)
            segment = {place: typed for place, typed in segment.items() if _is_after(prefix, place, typed)}
        return Progress(prefix, segment, max((part.ts for part in parts), default=0), issues)

    def seal(self, summary: Progress[K, R]) -> Progress[K, R]:
        if not summary.segment:
            return summary
        ordered = sorted(summary.segment.values(), key=lambda typed: typed.order)
        return Progress(self.advance(summary.prefix, ordered), {}, summary.ts, summary.issues)

    def advance(self, prefix: OrderedPrefix[K, R] | None, events: Iterable[Typed[Any]]) -> OrderedPrefix[K, R]:
        """Return the prefix extended by `events`, which are sorted in logical order and come after it."""
        if prefix is None:
            prefix = OrderedPrefix(Table(), Table(), {}, (0, b"", 0, 0, b""), Table())
        table, identities, violations = prefix.table.fork(), prefix.identities.fork(), prefix.violations.fork()
        upto, mirrors, event = dict(prefix.upto), self.mirrors, None
        copies = bool(mirrors)
        for typed in events:
            event = typed.event
            upto[event.label] = event.stream_seq
            if copies:
                identity = mirrors.identity(event)
                if identity in identities:
                    continue
                identities[identity] = True
            try:
                self.step(table, typed)
            except Violation as exc:
                violations[typed.place] = Issue(*typed.place, exc.code, exc.what)
        return OrderedPrefix(table, identities, upto, prefix.last if event is None else event.order, violations)

    def view(self, summary: Progress[K, R], as_of: int | None = None) -> V:
        prefix = self.seal(summary).prefix
        return self.show(Table() if prefix is None else prefix.table, summary.ts if as_of is None else as_of)

    def issues(self, summary: Progress[K, R]) -> tuple[Issue, ...]:
        prefix = self.seal(summary).prefix
        issues = dict(summary.issues)
        if prefix is not None:
            issues.update(prefix.violations.items())
        return tuple(issues[place] for place in sorted(issues))

    def dump(self, summary: Progress[K, R]) -> cbor.Item:
        """Seal and encode: a prefix is smaller than the events of a segment."""
        summary = self.seal(summary)
        p = summary.prefix
        parts = (
            None
            if p is None
            else (_rows(p.table), _rows(p.identities), p.upto, p.last, sorted(_rows(p.violations).values()))
        )
        return to_tree((parts, summary.ts, sorted(summary.issues.values())), pairs=True)

    def load(self, tree: cbor.Item) -> Progress[K, R]:
        kind = tuple[self.TABLE, dict[bytes, bool], dict[bytes, int], Order, tuple[Issue, ...]]  # type: ignore[name-defined]  # a type known at run time
        parts, ts, issues = from_tree(tuple[kind | None, int, tuple[Issue, ...]], tree)
        prefix: OrderedPrefix[K, R] | None = None
        if parts is not None:
            rows, identities, upto, last, violations = parts
            by_place = {issue.place: issue for issue in violations}
            prefix = OrderedPrefix(Table((rows,)), Table((identities,)), upto, last, Table((by_place,)))
        return Progress(prefix, {}, ts, {issue.place: issue for issue in issues})


def _rows(table: Table[K, R]) -> dict[K, R]:
    return dict(table.items())


def _is_after(prefix: OrderedPrefix[K, R], place: Place, typed: Typed[Any]) -> bool:
    label, stream_seq = place
    if stream_seq <= prefix.upto.get(label, 0):
        return False  # seen before
    if typed.order < prefix.last:
        raise LateEvent(label, stream_seq)
    return True
