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
    """A fold: the interface by which runners, snapshots and pipelines use an overlay."""

    name: str  # unique among folds; the state class of D-93
    schemas: SchemaSet  # the events it counts; it passes over all others
    version: ClassVar[int] = 1  # of its rules: raised when the same events give another state or other issues

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS) -> None:
        self.mirrors = mirrors

    def settings(self) -> Any:
        """Return the settings, besides mirrors, that decide the state, in canonical form. They bind snapshots."""
        return None

    def semantics(self) -> bytes:
        """Return all settings that decide the state, encoded. Summaries with other settings are never merged."""
        return state_bytes((self.version, self.mirrors, self.settings()))

    def identity(self) -> T:
        """Return e, the summary of no events."""
        return self.summarize(())

    def lift(self, event: Event) -> T:
        """Return the summary of one event."""
        return self.summarize((event,))

    def merge(self, left: T, right: T) -> T:
        """Merge two summaries (⊕). Associative and commutative."""
        return self.combine((left, right))

    @abstractmethod
    def summarize(self, events: Iterable[Event]) -> T:
        """Return the merge of the lifted events, computed in one pass."""

    @abstractmethod
    def combine(self, parts: Iterable[T]) -> T:
        """Merge all parts, in one pass."""

    def seal(self, summary: T) -> T:
        """Return the summary in the form that is cheapest to view and to extend. Only ordered folds have two forms."""
        return summary

    @abstractmethod
    def view(self, summary: T, as_of: int | None = None) -> V:
        """Return the state at the time `as_of`. Default: ts* of the last event (D-80), never the wall clock."""

    @abstractmethod
    def issues(self, summary: T) -> tuple[Issue, ...]:
        """Return the events without effect and the reasons, by label and position (D-81)."""

    @abstractmethod
    def dump(self, summary: T) -> cbor.Item:
        """Return the summary as one CBOR item. Equal summaries give equal items."""

    @abstractmethod
    def load(self, tree: cbor.Item) -> T:
        """Read a summary that `dump` wrote. Raise FormatError if it is of another fold or damaged."""

    def _decode_again(self, event: Event) -> Typed[Any]:
        """Decode an event of a stored summary again. Raise MalformedError if it is none of this fold."""
        schema = self.schemas.get(event.hdr.schema)
        typed = None if schema is None else decode(event, schema)
        if typed is None or isinstance(typed, Issue):
            raise MalformedError("an event that does not belong here", self.name)
        return typed


AnyFold = Fold[Any, Any]


@dataclass(frozen=True, slots=True)
class Summary(Generic[S]):
    """The summary of a compact fold: its state, copies without originals, issues and the latest ts*."""

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
        """Return a new, empty state. It may be changed in place until a summary contains it."""

    @abstractmethod
    def add(self, into: S, event: Typed[Any]) -> None:
        """Apply one event. A Violation may depend on this event alone, not on the state."""

    @abstractmethod
    def absorb(self, into: S, other: S) -> None:
        """Merge `other` into `into`. Leave `other` unchanged. What `into` already contains has no effect."""

    @abstractmethod
    def show(self, state: S, as_of: int) -> V:
        """Return the state in the form that users of the overlay read."""

    def pass_over(self, into: S, event: Event) -> None:
        """Skip an event that does not count. Only folds that track positions override this."""

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
            typed = decode(mirrors.with_origin_times(event) if mirrors else event, schema)
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
        return self.show(self._apply_copies(summary)[0], summary.ts if as_of is None else as_of)

    def issues(self, summary: Summary[S]) -> tuple[Issue, ...]:
        issues = self._apply_copies(summary)[1]
        return tuple(issues[place] for place in sorted(issues))

    def dump(self, summary: Summary[S]) -> cbor.Item:
        copies = sorted((typed.event for typed in summary.copies.values()), key=lambda event: event.order)
        parts = (summary.state, summary.ts, sorted(summary.issues.values()), summary.originals, copies)
        return to_tree(parts, pairs=True)

    def load(self, tree: cbor.Item) -> Summary[S]:
        kind = tuple[self.SUMMARY, int, tuple[Issue, ...], frozenset[bytes], tuple[Event, ...]]  # type: ignore[name-defined]  # a type known at run time
        state, ts, issues, originals, events = from_tree(kind, tree)
        copies = {self.mirrors.identity(event): self._decode_again(event) for event in events}
        return Summary(state, ts, {issue.place: issue for issue in issues}, originals, copies)

    def _apply_copies(self, summary: Summary[S]) -> tuple[S, Mapping[Place, Issue]]:
        """Return state and issues, with those copies applied whose originals are not among the events."""
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
