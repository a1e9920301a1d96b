"""Folding events as they come: one pass in logical order, and never all events in memory (D-27, D-82).

Compact folds take events in any order; ordered ones settle each at once, since nothing earlier will follow.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar, cast

from veen.core.event import Event, Order
from veen.overlays.framework.fold import AnyFold, Fold
from veen.overlays.framework.ordered import LateEvent, Ordered, OrderedPrefix, Progress
from veen.overlays.framework.schema import Issue, Place, Typed, decode

T = TypeVar("T")
V = TypeVar("V")


def fold_events(fold: AnyFold, events: Iterable[Event], base: Any = None) -> Any:
    """Return the summary of `base` and of events in logical order. Events that are in `base` change nothing."""
    if isinstance(fold, Ordered):
        return _Advance(fold, fold.identity() if base is None else fold.seal(base)).over(iter(events))
    summary = fold.summarize(events)
    return summary if base is None else fold.merge(base, summary)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The state of an ordered fold after the first `count` events in logical order."""

    count: int
    summary: Any


class RunningFold(Generic[T, V]):
    """A fold that continues as events arrive, in order within each label. Each event is decoded and applied once.

    A compact fold keeps its summary alone. An ordered one keeps the events, and marks at growing distances: an event
    that belongs before the end, because labels are read one after another, makes it go back to the mark before it.
    """

    def __init__(self, fold: Fold[T, V], base: T | None = None) -> None:
        """Start after `base`, the summary of all events before those that will be added."""
        self.fold = fold
        self._waiting: list[Event] = []  # not yet in the summary
        self._events: list[Event] = []  # those in the summary, in logical order; of ordered folds only
        self._marks = [_Mark(0, fold.identity() if base is None else fold.seal(base))]

    def add(self, event: Event) -> None:
        """Queue an event. It is folded when the state is read."""
        self._waiting.append(event)

    def summary(self) -> T:
        """Return the summary of all events so far."""
        if self._waiting:
            waiting = sorted(self._waiting, key=lambda event: event.order)
            if isinstance(self.fold, Ordered):
                self._advance(waiting)
            else:
                self._marks = [_Mark(0, fold_events(self.fold, waiting, self._marks[-1].summary))]
            self._waiting.clear()
        return cast(T, self._marks[-1].summary)

    def view(self, as_of: int | None = None) -> V:
        return self.fold.view(self.summary(), as_of)

    def issues(self) -> tuple[Issue, ...]:
        return self.fold.issues(self.summary())

    def _advance(self, waiting: list[Event]) -> None:
        """Fold sorted events on top of the last mark that is not after the first of them."""
        place = bisect_left(self._events, waiting[0].order, key=lambda event: event.order)
        while len(self._marks) > 1 and self._marks[-1].count > place:
            self._marks.pop()
        mark = self._marks[-1]
        late = self._events[place:]
        del self._events[place:]
        self._events.extend(heapq.merge(late, waiting, key=_order))
        summary = fold_events(self.fold, self._events[mark.count :], mark.summary)
        self._marks.append(_Mark(len(self._events), summary))
        self._thin()

    def _thin(self) -> None:
        """Keep O(log n) marks: the distance between neighbours grows with the distance from the end."""
        end, marks = self._marks[-1].count, self._marks[:1]
        for mark, following in zip(self._marks[1:], self._marks[2:], strict=False):
            if following.count - marks[-1].count > (end - following.count) // 2:
                marks.append(mark)
        self._marks = [*marks, self._marks[-1]]


def _order(event: Event) -> Order:
    return event.order


class _Advance:
    """An ordered fold that advances event by event."""

    def __init__(self, fold: Ordered[Any, Any, Any], base: Progress[Any, Any]) -> None:
        self._fold, self._base, self._ts = fold, base, base.ts
        self._issues: dict[Place, Issue] = dict(base.issues)

    def over(self, events: Iterator[Event]) -> Progress[Any, Any]:
        typed = self._new(events)
        first = next(typed, None)
        prefix = self._base.prefix
        if first is not None:  # nothing counts: then there is no prefix either, as in the summary of nothing
            prefix = self._fold.advance(prefix, chain((first,), typed))
        return Progress(prefix, {}, self._ts, self._issues)

    def _new(self, events: Iterator[Event]) -> Iterator[Typed[Any]]:
        """Yield new events decoded; skip those in the base and repeated ones. Raise LateEvent if one precedes it."""
        prefix: OrderedPrefix[Any, Any] | None = self._base.prefix
        heads = {} if prefix is None else prefix.upto
        last = None if prefix is None else prefix.last
        find, mirrors = dict(self._fold.schemas).get, self._fold.mirrors
        for event in events:
            if event.ts > self._ts:
                self._ts = event.ts
            schema = find(event.hdr.schema)
            if schema is None:
                continue
            typed = decode(mirrors.with_origin_times(event) if mirrors else event, schema)
            if type(typed) is Issue:
                self._issues[event.label, event.stream_seq] = typed
                continue
            assert type(typed) is Typed  # noqa: S101 - tells mypy what the line above has left
            if heads and event.stream_seq <= heads.get(event.label, 0):
                continue
            order = event.order
            if last is not None and order <= last:
                if order == last:
                    continue
                raise LateEvent(event.label, event.stream_seq)
            last = order
            yield typed
