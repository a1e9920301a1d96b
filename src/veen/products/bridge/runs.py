"""Sets of positions as runs, and a set that also records positions added more than once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

Run = tuple[int, int]  # both ends inclusive


def union(*sets: Iterable[Run]) -> tuple[Run, ...]:
    """Return the union, as the fewest runs, ascending."""
    runs: list[Run] = []
    for first, last in sorted(run for each in sets for run in each):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], last))
        else:
            runs.append((first, last))
    return tuple(runs)


def overlap(left: Iterable[Run], right: Iterable[Run]) -> tuple[Run, ...]:
    """Return the positions in both; each argument is ascending and free of overlaps."""

    def meet() -> Iterator[Run]:
        ours, others = iter(left), iter(right)
        a, b = next(ours, None), next(others, None)
        while a is not None and b is not None:
            first, last = max(a[0], b[0]), min(a[1], b[1])
            if first <= last:
                yield first, last
            if a[1] < b[1]:
                a = next(ours, None)
            else:
                b = next(others, None)

    return tuple(meet())


def gaps_of(runs: Iterable[Run], first: int, last: int) -> tuple[Run, ...]:
    """Return the positions of first … last that are in none of the runs."""

    def gaps() -> Iterator[Run]:
        at = first
        for begin, end in runs:
            if begin > last:
                break
            if begin > at:
                yield at, begin - 1
            at = max(at, end + 1)
        if at <= last:
            yield at, last

    return tuple(gaps())


def size(runs: Iterable[Run]) -> int:
    return sum(last - first + 1 for first, last in runs)


@dataclass(frozen=True, slots=True)
class Positions:
    """A multiset reduced to the positions in it, and those in it more than once. `merge` is a monoid."""

    once: tuple[Run, ...] = ()
    twice: tuple[Run, ...] = ()

    def merge(self, other: "Positions") -> "Positions":
        both = overlap(self.once, other.once)
        return Positions(union(self.once, other.once), union(self.twice, other.twice, both))

    @classmethod
    def of(cls, positions: Iterable[int]) -> "Positions":
        """Build from single positions in any order; a long ascending run costs little."""
        ordered = sorted(positions)
        runs = union((position, position) for position in ordered)
        doubled = union((a, a) for a, b in pairwise(ordered) if a == b)
        return cls(runs, doubled)


NO_POSITIONS: Final = Positions()
