"""A tree of merged summaries over a growing sequence: any range is the merge of O(log n) of them (spec §11.3).

Leaves come in order; `fanout` neighbours merge into a node one level up as soon as they are complete. Only complete,
aligned nodes exist, so nothing ever has to be merged again. A wide tree keeps fewer levels, and so less memory: each
level holds at most the whole state once.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

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
