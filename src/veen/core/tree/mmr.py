"""The Merkle Mountain Range of a label (spec §5.1).

Leaves are numbered by `pos` from 0 (pos = stream_seq - 1). A node is named by (height, index): it covers the
leaves index·2^height … (index+1)·2^height - 1, so a leaf is (0, pos). The peaks of a range of n leaves are the
perfect trees of the binary decomposition of n.

Everything here is one idea: a run of leaves folds into its maximal aligned subtrees (`Span`), and two adjacent
runs merge by joining siblings. The peaks are the Span from 0; consistency and range proofs are Spans; a
parallel audit computes one Span per chunk and merges.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from veen.core.errors import ProofError
from veen.core.hashing import tag_prefix

NodeAt = Callable[[int, int], bytes]  # (height, index) -> hash


class Tags:
    """The domain separation of one kind of tree."""

    __slots__ = ("hash_single_peak", "node_prefix", "root_prefix")

    def __init__(self, *, node: str, root: str, hash_single_peak: bool = False) -> None:
        self.node_prefix = tag_prefix(node)
        self.root_prefix = tag_prefix(root)
        self.hash_single_peak = hash_single_peak


LABEL_TAGS: Final = Tags(node="veen/mmr-node", root="veen/mmr-root")


def are_hashes(values: Iterable[bytes]) -> bool:
    """Return True if all have 32 bytes. Hashes of other lengths could be cut elsewhere and join to the same bytes."""
    return all(len(value) == 32 for value in values)


def root_of(peaks: Sequence[bytes], tags: Tags = LABEL_TAGS) -> bytes:
    """Fold the peaks, by increasing height, into the root. An empty label has no root (D-30)."""
    if not peaks:
        raise ProofError("an empty tree has no root")
    if len(peaks) == 1 and not tags.hash_single_peak:
        return peaks[0]
    return sha256(tags.root_prefix + b"".join(peaks)).digest()


def peak_nodes(size: int) -> list[tuple[int, int]]:
    """Return the peaks of `size` leaves as (height, index), by increasing height (D-30)."""
    return [(height, (size >> height) - 1) for height in range(size.bit_length()) if size >> height & 1]


def span_nodes(start: int, end: int) -> list[tuple[int, int]]:
    """Return the maximal aligned subtrees that cover the leaves start … end - 1, from left to right."""
    nodes = []
    while start < end:
        # As high as the alignment of `start` allows and the rest of the run fills.
        room = (end - start).bit_length() - 1
        height = min((start & -start).bit_length() - 1, room) if start else room
        nodes.append((height, start >> height))
        start += 1 << height
    return nodes


def node_position(height: int, index: int) -> int:
    """Return the position of a node in an append-only file of all nodes: a leaf, then the parents it completes."""
    last_leaf = ((index + 1) << height) - 1
    return 2 * last_leaf - last_leaf.bit_count() + height


def node_count(size: int) -> int:
    """Return the number of nodes of a tree of `size` leaves."""
    return 2 * size - size.bit_count()


class Mmr:
    """The append cursor of a tree: its size and peaks, nothing else. O(1) amortised per leaf, O(log n) memory."""

    __slots__ = ("_stack", "_tags", "size")

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = (), *, tags: Tags = LABEL_TAGS) -> None:
        """Resume from the peaks of `size` leaves, by increasing height."""
        if size < 0 or len(peaks) != size.bit_count() or not are_hashes(peaks):
            raise ProofError(f"{size} leaves have {size.bit_count()} peaks of 32 bytes, not {len(peaks)}")
        self.size = size
        self._stack = list(reversed(peaks))  # the smallest tree last, where appending happens
        self._tags = tags

    def append(self, leaf: bytes) -> list[bytes]:
        """Append a leaf; return the nodes this created, in the order of `node_position`."""
        created = [leaf]
        node, carry, stack = leaf, self.size, self._stack
        prefix = self._tags.node_prefix
        while carry & 1:  # a peak of this height stands alone: join it
            node = sha256(prefix + stack.pop() + node).digest()
            created.append(node)
            carry >>= 1
        stack.append(node)
        self.size += 1
        return created

    def peaks(self) -> tuple[bytes, ...]:
        """Return the peaks by increasing height, as the spec lists them."""
        return tuple(reversed(self._stack))

    def root(self) -> bytes:
        stack, tags = self._stack, self._tags
        if len(stack) < 2:
            return root_of(stack, tags)
        return sha256(tags.root_prefix + b"".join(stack[::-1])).digest()

    def copy(self) -> "Mmr":
        return Mmr(self.size, self.peaks(), tags=self._tags)


@dataclass(frozen=True, slots=True)
class Span:
    """The leaves start … end - 1, folded: the summary monoid of the MMR.

    `nodes` are the hashes of `span_nodes(start, end)`. `merge` is associative; empty Spans are its units.
    """

    start: int
    end: int
    nodes: tuple[bytes, ...]

    @classmethod
    def of(cls, start: int, leaves: Iterable[bytes]) -> Self:
        """Fold leaves, the first of which is at `start`. Needs nothing from before it."""
        level, first, prefix = list(leaves), start, LABEL_TAGS.node_prefix
        if not are_hashes(level):
            raise ProofError("a leaf is not a hash of 32 bytes")
        end = start + len(level)
        left: list[bytes] = []
        right: list[bytes] = []
        while level:  # height by height: a node without its sibling stays as it is, at one end or the other
            if first & 1:
                left.append(level.pop(0))
                first += 1
            if len(level) & 1:
                right.append(level.pop())
            level = [sha256(prefix + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=True)]
            first >>= 1
        return cls(start, end, (*left, *reversed(right)))

    @classmethod
    def from_peaks(cls, size: int, peaks: Sequence[bytes]) -> Self:
        """Return the Span of a whole tree, from its peaks by increasing height."""
        return cls(0, size, tuple(reversed(peaks)))

    def merge(self, other: "Span") -> "Span":
        """Return the Span of both runs; raise ProofError unless `other` begins where this one ends."""
        if self.end != other.start:
            raise ProofError(f"spans do not meet: one ends at {self.end}, the next begins at {other.start}")
        builder = _SpanBuilder(self.start)
        for span in (self, other):
            span.check()
            for (height, _), node in zip(span_nodes(span.start, span.end), span.nodes, strict=True):
                builder.push(height, node)
        return Span(self.start, other.end, tuple(builder.hashes))

    def check(self) -> None:
        """Raise ProofError unless `nodes` has the number of nodes that the bounds require."""
        expected = len(span_nodes(self.start, self.end)) if 0 <= self.start <= self.end else -1
        if not are_hashes(self.nodes):
            raise ProofError("a node is not a hash of 32 bytes")
        if len(self.nodes) != expected:
            raise ProofError(f"leaves {self.start} to {self.end} fold into {expected} nodes, found {len(self.nodes)}")

    def peaks(self) -> tuple[bytes, ...]:
        """Return the peaks by increasing height; only a Span that begins at leaf 0 is a whole tree."""
        if self.start != 0:
            raise ProofError("only a span from leaf 0 has peaks")
        return tuple(reversed(self.nodes))

    def root(self) -> bytes:
        return root_of(self.peaks())


class _SpanBuilder:
    """Builder that joins sibling nodes as they arrive from left to right."""

    __slots__ = ("end", "hashes", "heights")

    def __init__(self, start: int) -> None:
        self.end = start
        self.hashes: list[bytes] = []
        self.heights: list[int] = []

    def push(self, height: int, node: bytes) -> None:
        index = self.end >> height
        self.end += 1 << height
        prefix = LABEL_TAGS.node_prefix
        while index & 1 and self.heights and self.heights[-1] == height:
            self.heights.pop()
            node = sha256(prefix + self.hashes.pop() + node).digest()
            height, index = height + 1, index >> 1
        self.hashes.append(node)
        self.heights.append(height)


class MmrTree:
    """A tree that keeps every node in memory: for small logs, tests and as the model of the node store."""

    __slots__ = ("_mmr", "_nodes", "_tags")

    def __init__(self, leaves: Iterable[bytes] = (), *, tags: Tags = LABEL_TAGS) -> None:
        self._mmr, self._tags = Mmr(tags=tags), tags
        self._nodes: list[bytes] = []
        for leaf in leaves:
            self.append(leaf)

    @property
    def size(self) -> int:
        return self._mmr.size

    def append(self, leaf: bytes) -> None:
        self._nodes.extend(self._mmr.append(leaf))

    def node_at(self, height: int, index: int) -> bytes:
        return self._nodes[node_position(height, index)]

    def peaks(self, size: int | None = None) -> tuple[bytes, ...]:
        """Return the peaks now, or at an earlier size."""
        size = self.size if size is None else size
        return tuple(self.node_at(height, index) for height, index in peak_nodes(size))

    def root(self, size: int | None = None) -> bytes:
        return root_of(self.peaks(size), self._tags)
