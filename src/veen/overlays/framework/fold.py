"""Folds: state as a pure function of events, computed from any cut of the log (spec §11.1, §11.3, D-79 … D-85).

Every overlay is a monoid of summaries. `lift` makes a summary of one event, `merge` joins two, `identity` is the empty
one, and `view` shows the state. Whoever folds, be it the local runner, a snapshot or Spark, differs only in where the
log is cut: merge is associative and commutative, and seeing an event twice changes nothing.

Two bases serve all overlays. `Compact` is for folds in which the order of events decides nothing but ties: last writer
wins, sets, counters. `Ordered` is for folds in which every event meets the state left by those
before it (D-82). Overlays write the few methods named there; decoding, mirrored copies, issues and time are done here.

A summary is a value: nothing may change it once it has been returned. All of them pickle, for work on other machines.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.event import Event
from veen.overlays.framework.decode import Issue, Place, Typed, Violation, decode
from veen.overlays.framework.dedup import NO_MIRRORS, Mirrors
from veen.overlays.framework.schema import SchemaSet
from veen.overlays.framework.state import from_tree, state_bytes, to_tree

T = TypeVar("T")  # what merges
S = TypeVar("S")  # the part of it that the overlay defines
V = TypeVar("V")  # what is shown


class Fold(ABC, Generic[T, V]):
    """What runners, snapshots and pipelines know of an overlay."""

    name: str  # unique among folds; the state class of D-93
    schemas: SchemaSet  # the events it counts; it passes over all others
    version: ClassVar[int] = 1  # of its rules: raised when the same events give another state or other issues

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS) -> None:
        self.mirrors = mirrors

    def settings(self) -> Any:
        """What besides events and mirrors decides the state, in canonical form: binds snapshots to it."""
        return None

    def semantics(self) -> bytes:
        """All that decides the state besides the events: a summary made under other semantics is never mixed in."""
        return state_bytes((self.version, self.mirrors, self.settings()))

    def identity(self) -> T:
        """e: the summary of no events."""
        return self.summarize(())

    def lift(self, event: Event) -> T:
        """The summary of one event."""
        return self.summarize((event,))

    def merge(self, left: T, right: T) -> T:
        """⊕, associative and commutative."""
        return self.combine((left, right))

    @abstractmethod
    def summarize(self, events: Iterable[Event]) -> T:
        """The merge of the lifted events, at the cost of one pass."""

    @abstractmethod
    def combine(self, parts: Iterable[T]) -> T:
        """The merge of all parts, at the cost of one pass."""

    def seal(self, summary: T) -> T:
        """The same summary in the form that is cheapest to view and to extend. Only ordered folds have two forms."""
        return summary

    @abstractmethod
    def view(self, summary: T, as_of: int | None = None) -> V:
        """The state at the time `as_of`; by default at ts* of the last event (D-80), never at the wall clock."""

    @abstractmethod
    def issues(self, summary: T) -> tuple[Issue, ...]:
        """Everything that had no effect, by label and position (D-81)."""

    @abstractmethod
    def dump(self, summary: T) -> cbor.Item:
        """The summary as one CBOR item, equal for equal summaries."""

    @abstractmethod
    def load(self, tree: cbor.Item) -> T:
        """The summary that `dump` wrote; a FormatError if it is none of this fold."""

    def _typed(self, event: Event) -> Typed[Any]:
        """An event that was once decoded, decoded again."""
        schema = self.schemas.get(event.hdr.schema)
        typed = None if schema is None else decode(event, schema)
        if typed is None or isinstance(typed, Issue):
            raise MalformedError("an event that does not belong here", self.name)
        return typed


AnyFold = Fold[Any, Any]


@dataclass(frozen=True, slots=True)
class Summary(Generic[S]):
    """What a compact fold knows of some events."""

    state: S  # of the originals
    ts: int  # the greatest ts* of all events, also of those passed over
    issues: Mapping[Place, Issue]
    originals: frozenset[bytes]  # msg_ids, kept only where copies are possible
    copies: Mapping[bytes, Typed[Any]]  # by the msg_id of the original: the first in logical order


class Compact(Fold[Summary[S], V]):
    """A fold with a compact commutative monoid. The overlay writes `start`, `add`, `absorb` and `show`.

    Mirrored copies (D-85) wait beside the state: one of them counts where the original is not among the events, the
    first in logical order. An original always keeps its own place.
    """

    SUMMARY: ClassVar[Any]  # the type of S, by which snapshots are read again

    @abstractmethod
    def start(self) -> S:
        """A new, empty state. It is changed in place until it is returned."""

    @abstractmethod
    def add(self, into: S, event: Typed[Any]) -> None:
        """Count one event. A Violation may depend on this event alone."""

    @abstractmethod
    def absorb(self, into: S, other: S) -> None:
        """Merge `other`, which must stay as it is, into `into`. Whatever `into` already knows changes nothing."""

    @abstractmethod
    def show(self, state: S, as_of: int) -> V:
        """The state as people and programs want it."""

    def pass_over(self, into: S, event: Event) -> None:
        """An event that does not count; only folds that keep track of positions care."""

    def summarize(self, events: Iterable[Event]) -> Summary[S]:
        state, ts = self.start(), 0
        issues: dict[Place, Issue] = {}
        originals: set[bytes] = set()
        copies: dict[bytes, Typed[Any]] = {}
        find, mirrors = dict(self.schemas).get, self.mirrors
        for event in events:
            if event.ts > ts:
                ts = event.ts
            schema = find(event.hdr.schema)
            if schema is None:
                self.pass_over(state, event)
                continue
            typed = decode(mirrors.timed(event) if mirrors else event, schema)
            if type(typed) is Issue:
                issues[event.label, event.stream_seq] = typed
                self.pass_over(state, event)
                continue
            assert type(typed) is Typed  # noqa: S101 - tells mypy what the line above has left
            if mirrors:
                original = mirrors.original_of(event)
                if original is not None:
                    _keep_first(copies, original, typed)
                    continue
                originals.add(event.leaf_hash)
            self._add(state, issues, typed)
        return Summary(state, ts, issues, frozenset(originals), copies)

    def combine(self, parts: Iterable[Summary[S]]) -> Summary[S]:
        state, ts = self.start(), 0
        issues: dict[Place, Issue] = {}
        originals: set[bytes] = set()
        copies: dict[bytes, Typed[Any]] = {}
        for part in parts:
            self.absorb(state, part.state)
            ts = max(ts, part.ts)
            issues.update(part.issues)
            originals.update(part.originals)
            for original, typed in part.copies.items():
                _keep_first(copies, original, typed)
        return Summary(state, ts, issues, frozenset(originals), copies)

    def view(self, summary: Summary[S], as_of: int | None = None) -> V:
        return self.show(self._counted(summary)[0], summary.ts if as_of is None else as_of)

    def issues(self, summary: Summary[S]) -> tuple[Issue, ...]:
        issues = self._counted(summary)[1]
        return tuple(issues[place] for place in sorted(issues))

    def dump(self, summary: Summary[S]) -> cbor.Item:
        copies = sorted((typed.event for typed in summary.copies.values()), key=lambda event: event.order)
        parts = (summary.state, summary.ts, sorted(summary.issues.values()), summary.originals, copies)
        return to_tree(parts, pairs=True)

    def load(self, tree: cbor.Item) -> Summary[S]:
        kind = tuple[self.SUMMARY, int, tuple[Issue, ...], frozenset[bytes], tuple[Event, ...]]  # type: ignore[name-defined]  # a type known at run time
        state, ts, issues, originals, events = from_tree(kind, tree)
        copies = {self.mirrors.identity(event): self._typed(event) for event in events}
        return Summary(state, ts, {issue.place: issue for issue in issues}, originals, copies)

    def _counted(self, summary: Summary[S]) -> tuple[S, Mapping[Place, Issue]]:
        """The state with those copies whose originals are elsewhere."""
        lone = [typed for original, typed in summary.copies.items() if original not in summary.originals]
        if not lone:
            return summary.state, summary.issues
        state, issues = self.start(), dict(summary.issues)
        self.absorb(state, summary.state)
        for typed in lone:
            self._add(state, issues, typed)
        return state, issues

    def _add(self, state: S, issues: dict[Place, Issue], typed: Typed[Any]) -> None:
        try:
            self.add(state, typed)
        except Violation as exc:
            issues[typed.place] = Issue(*typed.place, exc.code, exc.what)
            self.pass_over(state, typed.event)


def _keep_first(copies: dict[bytes, Typed[Any]], original: bytes, typed: Typed[Any]) -> None:
    previous = copies.get(original)
    if previous is None or typed.order < previous.order:
        copies[original] = typed
