"""Sums that cannot count twice: folds that add, over ranges that may overlap (spec §11.1).

Addition forgets what it added, so two sums over overlapping ranges cannot be merged. Here a sum is therefore kept per
span: a run of 2^h positions of one label, aligned like the subtrees of the MMR. Two aligned spans are disjoint, or one
lies within the other; in the second case the larger knows all that the smaller does. Siblings join, so a contiguous
range takes O(log n) spans however it was put together.
"""

from abc import abstractmethod
from bisect import bisect_right
from typing import Any, Generic, NamedTuple, TypeVar

from veen.core.event import Event
from veen.overlays.framework.fold import Compact
from veen.overlays.framework.schema import Typed

P = TypeVar("P")
V = TypeVar("V")


class SeqSpan(NamedTuple, Generic[P]):
    """The sum over the positions start … end - 1 (from 0) of a label."""

    start: int
    end: int
    value: P

    @property
    def size(self) -> int:
        return self.end - self.start


Spans = dict[bytes, list[SeqSpan[P]]]  # by label: sorted, disjoint, no two siblings


class Additive(Compact[Spans[P], V], Generic[P, V]):
    """A fold that adds. The overlay writes `zero`, `piece`, `plus` and `total`; SUMMARY is `Spans[type of a sum]`."""

    @abstractmethod
    def zero(self) -> P:
        """Return the sum of no events."""

    @abstractmethod
    def piece(self, event: Typed[Any]) -> P:
        """Return what one event adds."""

    @abstractmethod
    def plus(self, a: P, b: P) -> P:
        """Return the sum of two sums as a new value. Associative and commutative."""

    @abstractmethod
    def total(self, value: P, as_of: int) -> V:
        """Return the state, given the sum of all events."""

    def start(self) -> Spans[P]:
        return {}

    def add(self, into: Spans[P], event: Typed[Any]) -> None:
        self._put(into, event.event, self.piece(event))

    def pass_over(self, into: Spans[P], event: Event) -> None:
        self._put(into, event, self.zero())  # a hole would keep its neighbours from joining

    def absorb(self, into: Spans[P], other: Spans[P]) -> None:
        for label, spans in other.items():
            previous = into.get(label)
            into[label] = list(spans) if previous is None else self._union(previous, spans)

    def show(self, state: Spans[P], as_of: int) -> V:
        value = self.zero()
        for spans in state.values():
            for span in spans:
                value = self.plus(value, span.value)
        return self.total(value, as_of)

    def _put(self, into: Spans[P], event: Event, value: P) -> None:
        spans = into.setdefault(event.label, [])
        start = event.stream_seq - 1
        span = SeqSpan(start, start + 1, value)
        if not spans or spans[-1].end <= start:
            self._push(spans, span)
            return
        index = bisect_right(spans, start, key=lambda s: s.start) - 1
        if index < 0 or spans[index].end <= start:
            into[event.label] = self._union(spans, [span])

    def _union(self, a: list[SeqSpan[P]], b: list[SeqSpan[P]]) -> list[SeqSpan[P]]:
        """Merge two lists of spans. Of two spans of which one contains the other, keep the larger."""
        merged: list[SeqSpan[P]] = []
        # By start, the larger first: so a span comes after all that may contain it.
        for span in sorted((*a, *b), key=lambda s: (s.start, -s.end)):
            if not merged or span.start >= merged[-1].end:
                self._push(merged, span)
        return merged

    def _push(self, spans: list[SeqSpan[P]], span: SeqSpan[P]) -> None:
        """Append, then join siblings from the right."""
        while spans:
            left = spans[-1]
            if left.end != span.start or left.size != span.size or left.start & span.size:
                break
            spans.pop()
            span = SeqSpan(left.start, span.end, self.plus(left.value, span.value))
        spans.append(span)
