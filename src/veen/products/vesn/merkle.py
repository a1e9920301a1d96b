"""The Merkle mountain range of VESN: append, root, attachments, inclusion proofs (002 §7, §8, §10).

The append of 002 §7 breaks at four leaves if read to the letter; D-115 reads it as ordinary binary carry. Two things
differ from VEEN: the root is hashed also with a single peak, and `dir` 0 of a proof means that the sibling is on the
left (D-31).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from veen.core.errors import MalformedError
from veen.core.hashing import Ht
from veen.core.tree.mmr import Mmr, MmrTree, Tags, peak_nodes, root_of
from veen.core.wire import Bytes32, Length, Uint, Version
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.objects import Record

MMR_TAGS: Final = Tags(node="vesn/mmr-node", root="vesn/mmr-root", hash_single_peak=True)
_ATT_TAGS: Final = Tags(node="vesn/att-node", root="vesn/att-root", hash_single_peak=True)
_MAX_PATH: Final = 64

NodeAt = Callable[[int, int], bytes]  # (height, index) -> hash


def new_mmr(size: int = 0, peaks: Sequence[bytes] = ()) -> Mmr:
    """Return the append cursor of a stream: S = (seq, peaks) of 002 §7."""
    return Mmr(size, peaks, tags=MMR_TAGS)


def att_root_of(coids: Sequence[bytes]) -> bytes:
    """Return the root over the coids of a message, in the order of the attachments (002 §10)."""
    tree = Mmr(tags=_ATT_TAGS)
    for coid in coids:
        tree.append(coid)
    return tree.root() if coids else Ht("vesn/att-root", b"")


class Tree(MmrTree):
    """A tree with all of its nodes in memory, for making proofs."""

    def __init__(self) -> None:
        super().__init__(tags=MMR_TAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record, kind="VESN path step"):
    """A sibling on the way up. `dir` 0: the sibling is on the left; 1: on the right (002 §8)."""

    dir: Uint
    sib: Bytes32

    def _check(self) -> None:
        if self.dir > 1:
            raise MalformedError("expected 0 or 1", "VESN mmr_proof.path.dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class MmrProof(Record, kind="VESN mmr_proof"):
    """mmr_proof (002 §8): `path` leads from the leaf to its peak, `peaks_after` are the other peaks (as D-32)."""

    ver: ClassVar[Version] = 1
    path: Annotated[tuple[Step, ...], Length(0, _MAX_PATH)]
    leaf_hash: Bytes32
    peaks_after: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PATH)]

    def verify(self, *, leaf_hash: bytes, stream_seq: int, mmr_root: bytes, tree_size: int | None = None) -> None:
        """Raise Violation unless the leaf is number `stream_seq` of the tree of `tree_size` leaves with this root.

        The size of the tree is the stream_seq of the RECEIPT whose root is checked, by default that of the leaf itself.
        With the size known, there is one valid proof for each leaf.
        """
        size = stream_seq if tree_size is None else tree_size
        if not 1 <= stream_seq <= size:
            raise Violation(Problem.I3, f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
        if self.leaf_hash != leaf_hash:
            raise Violation(Problem.I3, "the proof is for another leaf")
        pos, node = stream_seq - 1, leaf_hash
        height = _peak_height(pos, size)
        heights = [peak for peak, _ in peak_nodes(size)]
        if len(self.path) != height or len(self.peaks_after) != len(heights) - 1:
            raise Violation(Problem.I3, f"the proof does not have the shape of leaf {stream_seq} of {size}")
        for level, step in enumerate(self.path):
            is_right = pos >> level & 1
            if step.dir != 1 - is_right:
                raise Violation(Problem.I3, f"step {level + 1} of the path has the wrong direction")
            node = Ht("vesn/mmr-node", step.sib + node if is_right else node + step.sib)
        peaks = list(self.peaks_after)
        peaks.insert(heights.index(height), node)
        if root_of(peaks, MMR_TAGS) != mmr_root:
            raise Violation(Problem.I3, "the proof does not lead to mmr_root")


def prove(node_at: NodeAt, stream_seq: int, tree_size: int | None = None) -> MmrProof:
    """Return the proof of a leaf at a tree size; reads O(log n) nodes."""
    size = stream_seq if tree_size is None else tree_size
    if not 1 <= stream_seq <= size:
        raise Violation(Problem.I3, f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
    pos = stream_seq - 1
    height = _peak_height(pos, size)
    path = tuple(Step(dir=1 - (pos >> level & 1), sib=node_at(level, pos >> level ^ 1)) for level in range(height))
    others = tuple(node_at(*peak) for peak in peak_nodes(size) if peak[0] != height)
    return MmrProof(path=path, leaf_hash=node_at(0, pos), peaks_after=others)


def _peak_height(pos: int, size: int) -> int:
    """Return the height of the peak above leaf `pos`: the highest bit in which pos and size differ."""
    return (pos ^ size).bit_length() - 1
