"""Folding events as they come: one pass in logical order, and never all events in memory (D-27, D-82).

Compact folds take events in any order; ordered ones settle each at once, since nothing earlier will follow.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from veen.core.event import Event
from veen.overlays.framework.decode import Issue, Place, Typed, decode
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.ordered import LateEvent, Ordered, OrderedPrefix, Progress


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
        typed = self._new(events)
        first = next(typed, None)
        prefix = self._base.prefix
        if first is not None:  # nothing counts: then there is no prefix either, as in the summary of nothing
            prefix = self._fold.advance(prefix, chain((first,), typed))
        return Progress(prefix, {}, self._ts, self._issues)

    def _new(self, events: Iterator[Event]) -> Iterator[Typed[Any]]:
        """Decoded, without what the base has or what stands twice; LateEvent if one belongs before its end."""
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
            typed = decode(mirrors.timed(event) if mirrors else event, schema)
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
