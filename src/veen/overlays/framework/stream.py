"""Folding events as they come: one pass in logical order, and never all events in memory (D-27, D-82).

Compact folds take events in any order; ordered ones settle each at once, since nothing earlier will follow.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from veen.core.event import Event
from veen.overlays.framework.decode import Issue, Place, Typed
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.ordered import LateEvent, Ordered, OrderedPrefix, Progress

__all__ = ["fold_events"]

_BATCH: Final = 1_024


def fold_events(fold: AnyFold, events: Iterable[Event], base: Any = None) -> Any:
    """The summary of events in logical order, after those in `base`; what was seen before changes nothing."""
    if isinstance(fold, Ordered):
        return _Advance(fold, fold.identity() if base is None else fold.seal(base)).over(iter(events))
    summary = fold.summarize(events)
    return summary if base is None else fold.merge(base, summary)


class _Advance:
    """An ordered fold, event after event."""

    def __init__(self, fold: Ordered[Any, Any, Any], base: Progress[Any, Any]) -> None:
        self._fold, self._base, self._ts = fold, base, base.ts
        self._issues: dict[Place, Issue] = dict(base.issues)

    def over(self, events: Iterator[Event]) -> Progress[Any, Any]:
        typed = self._new(self._typed(events))
        first = next(typed, None)
        prefix = self._base.prefix
        if first is not None:  # nothing counts: then there is no prefix either, as in the summary of nothing
            prefix = self._fold.advance(prefix, _after(first, typed))
        return Progress(prefix, {}, self._ts, self._issues)

    def _typed(self, events: Iterator[Event]) -> Iterator[Typed[Any]]:
        while batch := list(islice(events, _BATCH)):
            summary = self._fold.summarize(batch)
            self._issues.update(summary.issues)
            self._ts = max(self._ts, summary.ts)
            yield from summary.segment.values()  # in the order of the batch

    def _new(self, typed: Iterator[Typed[Any]]) -> Iterator[Typed[Any]]:
        """Without what the base has, or what stands twice; LateEvent if one belongs before the end of the base."""
        prefix: OrderedPrefix[Any, Any] | None = self._base.prefix
        heads = {} if prefix is None else prefix.upto
        last = None if prefix is None else prefix.last
        for event in typed:
            label, stream_seq = event.place
            if stream_seq <= heads.get(label, 0) or event.order == last:
                continue
            if last is not None and event.order < last:
                raise LateEvent(label, stream_seq)
            last = event.order
            yield event


def _after(first: Typed[Any], rest: Iterator[Typed[Any]]) -> Iterator[Typed[Any]]:
    yield first
    yield from rest
