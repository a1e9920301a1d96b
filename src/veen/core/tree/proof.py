"""Proofs about a label's MMR, and their strict verification (spec §5.2 … §5.4, D-31 … D-35).

Three kinds, all deterministic and minimal:

- `MmrProof`, the spec's inclusion proof: one leaf under the root of any size not smaller than its stream_seq.
  The map carries no size; the verifier takes it from the RECEIPT or CHECKPOINT whose root it checks.
- `ConsistencyProof`, our addition: the log of one size is a prefix of the log of a later size.
- `RangeProof`, our addition: a contiguous run of leaves under one root.

A verifier derives from the sizes how many hashes of which height there must be, so no proof can be changed,
reordered, extended or shortened and still pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from veen.core.errors import ProofError
from veen.core.limits import MAX_PROOF_PATH
from veen.core.tree.mmr import LABEL_TAGS, NodeAt, Span, are_hashes, peak_nodes, root_of, span_nodes
from veen.core.wire import Bytes32, Length, Map, Part, Uint

_MAX_PEAKS = 64
_MAX_SPAN_NODES = 128  # a run of leaves rises to its highest subtree and falls again


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep(Part, kind="path step"):
    """One sibling on the way up. `dir` 0: our node is the left one; 1: it is the right one (D-31)."""

    dir: Uint
    sib: Bytes32


# A frozen dataclass keeps its slots from assignment, but not from those who have their descriptors.
_set_dir, _set_sib = (PathStep.__dict__[name].__set__ for name in ("dir", "sib"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MmrProof(Map, kind="mmr_proof"):
    """Inclusion proof: `path` leads from the leaf to its peak, `peaks_after` are all other peaks (D-32)."""

    leaf_hash: Bytes32
    path: Annotated[tuple[PathStep, ...], Length(0, MAX_PROOF_PATH)]
    peaks_after: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PEAKS)]  # by increasing height

    def verify(self, *, leaf_hash: bytes, stream_seq: int, expected_root: bytes, tree_size: int | None = None) -> None:
        """Raise ProofError unless this proves `leaf_hash` at `stream_seq` under `expected_root`.

        `tree_size` is the size of the tree of the root: the stream_seq of a RECEIPT, the upto_seq of a CHECKPOINT.
        It defaults to `stream_seq`, the root in the entry's own RECEIPT (D-33).
        """
        size = stream_seq if tree_size is None else tree_size
        if not 1 <= stream_seq <= size:
            raise ProofError(f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
        if self.leaf_hash != leaf_hash:
            raise ProofError("the proof is for another leaf")
        if not are_hashes((leaf_hash, *(step.sib for step in self.path), *self.peaks_after)):
            raise ProofError("a node is not a hash of 32 bytes")
        pos = stream_seq - 1
        height = _peak_height(pos, size)
        if len(self.path) != height:
            raise ProofError(f"leaf {stream_seq} of {size} has a path of {height} steps, found {len(self.path)}")
        node, prefix = leaf_hash, LABEL_TAGS.node_prefix
        for level, step in enumerate(self.path):
            if step.dir != pos >> level & 1:
                raise ProofError(f"step {level} of the path has the wrong direction for leaf {stream_seq}")
            pair = step.sib + node if step.dir else node + step.sib
            node = sha256(prefix + pair).digest()
        root = root_of(self._all_peaks(node, height, size))
        if root != expected_root:
            raise ProofError(f"the proof leads to root {root.hex()}, expected {expected_root.hex()}")

    def _all_peaks(self, acc: bytes, height: int, size: int) -> list[bytes]:
        """Return all peaks, with `acc` at the place that its height demands: integrate_peak of spec §5.4."""
        heights = [peak_height for peak_height, _ in peak_nodes(size)]
        if len(self.peaks_after) != len(heights) - 1:
            raise ProofError(f"a tree of {size} has {len(heights) - 1} other peaks, found {len(self.peaks_after)}")
        peaks = list(self.peaks_after)
        peaks.insert(heights.index(height), acc)
        if len(set(peaks)) != len(peaks):
            raise ProofError("a peak occurs twice")
        return peaks


def prove_inclusion(node_at: NodeAt, stream_seq: int, tree_size: int | None = None) -> MmrProof:
    """Return the one minimal proof for a leaf at a size; reads O(log n) nodes."""
    size = stream_seq if tree_size is None else tree_size
    if not 1 <= stream_seq <= size:
        raise ProofError(f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
    pos = stream_seq - 1
    height = _peak_height(pos, size)
    path, index, new = [], pos, object.__new__
    for level in range(height):
        step = new(PathStep)  # filled by its slots: a third of what its own constructor takes, twenty times a proof
        _set_dir(step, index & 1)
        _set_sib(step, node_at(level, index ^ 1))
        path.append(step)
        index >>= 1
    peaks = [node_at(*peak) for peak in peak_nodes(size) if peak[0] != height]
    return MmrProof(leaf_hash=node_at(0, pos), path=tuple(path), peaks_after=tuple(peaks))


def _peak_height(pos: int, size: int) -> int:
    """Return the height of the peak above leaf `pos`: where the binary forms of pos and size first differ."""
    return (pos ^ size).bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyProof(Map, kind="consistency_proof"):
    """Proof that the tree of `from_size` leaves is a prefix of the tree of `to_size` leaves.

    `peaks` are those of the smaller tree by increasing height; `added` are the maximal aligned subtrees of
    the leaves in between, from left to right. The first fold to the old root; both together to the new one.
    """

    from_size: Uint
    to_size: Uint
    peaks: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PEAKS)]
    added: Annotated[tuple[Bytes32, ...], Length(0, _MAX_SPAN_NODES)]

    def verify(self, *, from_size: int, from_root: bytes, to_size: int, to_root: bytes) -> None:
        """Raise ProofError unless a log with `from_root` was only appended to on its way to `to_root`."""
        if (self.from_size, self.to_size) != (from_size, to_size):
            raise ProofError(f"the proof is for sizes {self.from_size} and {self.to_size}")
        if not 1 <= from_size <= to_size:
            raise ProofError(f"a log of {to_size} entries cannot extend one of {from_size}")
        old = Span.from_peaks(from_size, self.peaks)
        old.check()
        if old.root() != from_root:
            raise ProofError("the proof does not lead to the older root")
        if old.merge(Span(from_size, to_size, self.added)).root() != to_root:
            raise ProofError("the proof does not lead to the newer root: the log was not only appended to")


def prove_consistency(node_at: NodeAt, from_size: int, to_size: int) -> ConsistencyProof:
    """Return the one minimal consistency proof between two sizes; reads O(log n) nodes."""
    if not 1 <= from_size <= to_size:
        raise ProofError(f"a log of {to_size} entries cannot extend one of {from_size}")
    return ConsistencyProof(
        from_size=from_size,
        to_size=to_size,
        peaks=tuple(node_at(*node) for node in peak_nodes(from_size)),
        added=tuple(node_at(*node) for node in span_nodes(from_size, to_size)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeProof(Map, kind="range_proof"):
    """Proof that the leaves `first_seq` … `last_seq` have these places in a tree of `tree_size` leaves.

    `before` are the peaks of the leaves before the range, by increasing height; `after` are the maximal
    aligned subtrees of the leaves after it, from left to right.
    """

    first_seq: Uint
    last_seq: Uint
    tree_size: Uint
    before: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PEAKS)]
    after: Annotated[tuple[Bytes32, ...], Length(0, _MAX_SPAN_NODES)]

    def verify(self, *, leaves: Sequence[bytes], first_seq: int, tree_size: int, expected_root: bytes) -> None:
        """Raise ProofError unless `leaves` begin at `first_seq` in the tree that has `expected_root`."""
        if (self.first_seq, self.tree_size) != (first_seq, tree_size):
            raise ProofError(f"the proof is for a range from {self.first_seq} in a tree of {self.tree_size}")
        if not leaves or self.last_seq != first_seq + len(leaves) - 1:
            raise ProofError(f"the proof is for leaves {self.first_seq} to {self.last_seq}, given {len(leaves)}")
        _check_range(first_seq, self.last_seq, tree_size)
        before = Span.from_peaks(first_seq - 1, self.before)
        within = Span.of(first_seq - 1, leaves)
        after = Span(self.last_seq, tree_size, self.after)
        if before.merge(within).merge(after).root() != expected_root:
            raise ProofError("the range does not lead to the expected root")


def prove_range(node_at: NodeAt, first_seq: int, last_seq: int, tree_size: int) -> RangeProof:
    """Return the one minimal proof for a run of leaves; reads O(log n) nodes."""
    _check_range(first_seq, last_seq, tree_size)
    return RangeProof(
        first_seq=first_seq,
        last_seq=last_seq,
        tree_size=tree_size,
        before=tuple(node_at(*node) for node in peak_nodes(first_seq - 1)),
        after=tuple(node_at(*node) for node in span_nodes(last_seq, tree_size)),
    )


def _check_range(first_seq: int, last_seq: int, tree_size: int) -> None:
    if not 1 <= first_seq <= last_seq <= tree_size:
        raise ProofError(f"{first_seq} to {last_seq} is not a range inside a tree of {tree_size} leaves")
