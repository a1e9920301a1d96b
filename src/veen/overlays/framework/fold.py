"""Folds: state as a pure function of events, computed from any cut of the log (spec §11.1, §11.3, D-79 … D-85).

Every overlay is a monoid of summaries. `lift` makes a summary of one event, `merge` joins two, `identity` is the empty
one, and `view` shows the state. Whoever folds, be it the local runner, a snapshot or Spark, differs only in where the
log is cut: merge is associative and commutative, and seeing an event twice changes nothing.

Two bases serve all overlays. `Compact` is for folds in which the order of events decides nothing but ties: last writer
wins, sets, counters. `Ordered` is for folds in which every event meets the state left by those
before it (D-82). Overlays write the few methods named there; decoding, mirrored copies, issues and time are done here.

A summary is a value: nothing may change it once it has been returned. All of them pickle, for work on other machines.

Deduplication of mirrored events: an event and its copies count once (D-85, spec §11.1).

Several folds as one: one pass over the log, one snapshot, one cut for all of them (spec §0).

Overlays compose by what they declare: the schemas that a fold reads and the state class that it makes. What needs the
states of several overlays, such as who may spend from a wallet, is a function of their views at the same cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, TypeVar

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.event import COPY_SCHEMA, Event, copy_body, origin_passed_on
from veen.overlays.framework.schema import Draft, Issue, Place, SchemaSet, Typed, Violation, decode
from veen.overlays.framework.state import from_tree, state_bytes, to_tree


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Rules that tell copies from originals: sent by a bridge, or of a schema in which every parent_id means a copy.

    A copy carries the msg_id of its original as parent_id. This is configuration of the reader, like the labels that it
    folds: two readers with the same labels and the same mirrors hold the same state.
    """

    bridges: frozenset[bytes] = frozenset()  # client_ids
    schemas: frozenset[bytes] = frozenset()

    @classmethod
    def by(cls, bridges: Iterable[bytes] = (), schemas: Iterable[bytes] = ()) -> "Mirrors":
        return cls(frozenset(bridges), frozenset(schemas))

    def __bool__(self) -> bool:
        return bool(self.bridges or self.schemas)

    def original_of(self, event: Event) -> bytes | None:
        """Return the msg_id of the original if this event is a copy, else None."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id
        return None

    def with_origin_times(self, event: Event) -> Event:
        """Return the event with the times that folds compare: for a copy, those of the original by its bridge (D-193).

        Its place in the logical order stays that of the copy. What anybody else states of an origin has no effect.
        """
        origin = event.origin
        if origin is None or event.client_id not in self.bridges or event.placed is not None:
            return event
        return replace(event, hub_ts=origin.hub_ts, ts=origin.ts, placed=event.ts)

    def identity(self, event: Event) -> bytes:
        """Return the id that all copies of an event share: the msg_id of the original."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id or event.leaf_hash
        return event.leaf_hash


NO_MIRRORS: Final = Mirrors()


def copy_draft(event: Event, *, hub_id: bytes, mirrors: Mirrors = NO_MIRRORS) -> Draft:
    """Return the message by which a bridge copies an event of the hub `hub_id`, with its origin (D-187, D-193).

    The origin of a copy is kept if one of the bridges of `mirrors` sent it.
    """
    origin = origin_passed_on(
        event.origin,
        hub_id=hub_id,
        msg_id=event.msg_id if event.origin is not None else mirrors.original_of(event) or event.msg_id,
        hub_ts=event.hub_ts,
        ts=event.ts,
        is_bridge=event.client_id in mirrors.bridges,
    )
    return Draft(
        schema=COPY_SCHEMA,
        body=copy_body(event.hdr.schema, event.body, origin),
        parent_id=origin.msg_id,
        expires_at=event.hdr.expires_at,
    )


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


Summaries = tuple[Any, ...]  # in the order of the folds


class Joined(Fold[Summaries, dict[str, Any]]):
    """The views of some folds by their names. Each keeps its own mirrors."""

    def __init__(self, folds: Iterable[AnyFold]) -> None:
        super().__init__()
        self._folds = sorted(folds, key=lambda fold: fold.name)
        self.name = "+".join(fold.name for fold in self._folds)
        self.schemas = SchemaSet()
        for fold in self._folds:
            self.schemas |= fold.schemas

    @property
    def folds(self) -> Sequence[AnyFold]:
        """The folds by name, in the order of their summaries, for callers that fold each by itself."""
        return self._folds

    def settings(self) -> Mapping[str, bytes]:
        return {fold.name: fold.semantics() for fold in self._folds}

    def summarize(self, events: Iterable[Event]) -> Summaries:
        batch = list(events)
        return tuple(fold.summarize(batch) for fold in self._folds)

    def combine(self, parts: Iterable[Summaries]) -> Summaries:
        summaries = list(parts)
        return tuple(fold.combine(part[i] for part in summaries) for i, fold in enumerate(self._folds))

    def seal(self, summary: Summaries) -> Summaries:
        return tuple(fold.seal(part) for fold, part in zip(self._folds, summary, strict=True))

    def view(self, summary: Summaries, as_of: int | None = None) -> dict[str, Any]:
        return {fold.name: fold.view(part, as_of) for fold, part in zip(self._folds, summary, strict=True)}

    def issues(self, summary: Summaries) -> tuple[Issue, ...]:
        issues = {issue for fold, part in zip(self._folds, summary, strict=True) for issue in fold.issues(part)}
        return tuple(sorted(issues))

    def dump(self, summary: Summaries) -> cbor.Item:
        return [fold.dump(part) for fold, part in zip(self._folds, summary, strict=True)]

    def load(self, tree: cbor.Item) -> Summaries:
        if type(tree) is not list or len(tree) != len(self._folds):
            raise MalformedError("a summary of other folds", self.name)
        return tuple(fold.load(part) for fold, part in zip(self._folds, tree, strict=True))
