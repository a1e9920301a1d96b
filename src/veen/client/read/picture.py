"""A proof as a picture: the hashes on the way from one message to the root (spec §5.2).

`Picture.of` computes every hash on the way, so a picture shows computed values and no claims. `text` draws it for a
terminal, `svg` for a page. A small tree is drawn as a tree; a large one as a ladder with a step on each line,
because a path of twenty levels has no readable tree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, Self

from veen.core.tree.mmr import LABEL_TAGS, peak_nodes, root_of
from veen.core.tree.proof import MmrProof

TREE_MAX: Final = 32  # entries; beyond that the ladder


class Node(NamedTuple):
    """A node of the tree and the entries below it."""

    first: int  # stream_seq
    last: int
    hash: bytes

    @property
    def span(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class Step(NamedTuple):
    """Two nodes that join into one."""

    own: Node
    sibling: Node
    parent: Node

    @property
    def sibling_is_left(self) -> bool:
        return self.sibling.first < self.own.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All nodes that the verification of one proof uses."""

    stream_seq: int
    tree_size: int
    root: bytes
    leaf: Node
    steps: tuple[Step, ...]  # from the leaf up to its peak
    peaks: tuple[Node, ...]  # from left to right, the leaf's own among them

    @classmethod
    def of(cls, proof: MmrProof, *, stream_seq: int, root: bytes, tree_size: int | None = None) -> Self:
        """Verify a proof and return its picture; raise ProofError if it does not verify."""
        size = stream_seq if tree_size is None else tree_size
        proof.verify(leaf_hash=proof.leaf_hash, stream_seq=stream_seq, expected_root=root, tree_size=size)
        pos = stream_seq - 1
        leaf = own = Node(stream_seq, stream_seq, proof.leaf_hash)
        steps = []
        for height, step in enumerate(proof.path):
            sibling = _node(height, (pos >> height) ^ 1, step.sib)
            pair = step.sib + own.hash if step.dir else own.hash + step.sib
            parent = _node(height + 1, pos >> (height + 1), sha256(LABEL_TAGS.node_prefix + pair).digest())
            steps.append(Step(own, sibling, parent))
            own = parent
        others = iter(proof.peaks_after)
        peaks = [
            own if height == len(proof.path) else _node(height, index, next(others))
            for height, index in peak_nodes(size)
        ]
        assert root_of([peak.hash for peak in peaks]) == root  # noqa: S101 - the proof was verified above
        return cls(
            stream_seq=stream_seq,
            tree_size=size,
            root=root,
            leaf=leaf,
            steps=tuple(steps),
            peaks=tuple(reversed(peaks)),
        )

    @property
    def own_peak(self) -> Node:
        return self.steps[-1].parent if self.steps else self.leaf

    @property
    def hashes(self) -> int:
        """Number of hashes in the proof."""
        return len(self.steps) + len(self.peaks) - 1


def short(data: bytes) -> str:
    digits = data.hex()
    return f"{digits[:4]}…{digits[-4:]}"


def text(picture: Picture) -> Iterator[str]:
    """Yield the lines of the drawing."""
    yield f"root {short(picture.root)}"
    if picture.tree_size > TREE_MAX:
        yield from _ladder(picture)
        return
    for number, peak in enumerate(picture.peaks):
        last = number == len(picture.peaks) - 1
        lines = (
            _subtree(picture, len(picture.steps)) if peak == picture.own_peak else [f"{peak.span} {short(peak.hash)}"]
        )
        yield f"{'└' if last else '├'}─ peak {lines[0]}"
        yield from (f"{' ' if last else '│'}       {line}" for line in lines[1:])


def _subtree(picture: Picture, height: int) -> list[str]:
    """Return the lines of the node above the leaf at `height`, with the known nodes below it."""
    if height == 0:
        return [f"{picture.leaf.span} {short(picture.leaf.hash)}  <- this message"]
    step = picture.steps[height - 1]
    sibling = [f"{step.sibling.span} {short(step.sibling.hash)}  sibling"]
    own = _subtree(picture, height - 1)
    first, second = (sibling, own) if step.sibling_is_left else (own, sibling)
    head = f"{step.parent.span} {short(step.parent.hash)} "
    blank = " " * len(head)
    lines = [f"{head}─┬─ {first[0]}"]
    lines += [f"{blank} │  {line}" for line in first[1:]]
    lines.append(f"{blank} └─ {second[0]}")
    lines += [f"{blank}    {line}" for line in second[1:]]
    return lines


def _ladder(picture: Picture) -> Iterator[str]:
    """Yield one join per line, from the message up."""
    spans = [picture.leaf.span, *(step.parent.span for step in picture.steps), *(peak.span for peak in picture.peaks)]
    width = max(map(len, spans))
    yield f"{picture.leaf.span:>{width}}  {short(picture.leaf.hash)}  <- this message"
    for step in picture.steps:
        side = "left" if step.sibling_is_left else "right"
        joined = f"with {step.sibling.span} {short(step.sibling.hash)} on its {side}"
        yield f"{step.parent.span:>{width}}  {short(step.parent.hash)}  {joined}"
    yield f"{len(picture.peaks)} peaks hash to the root:"
    for peak in picture.peaks:
        mark = "  <- the one above" if peak == picture.own_peak else ""
        yield f"{peak.span:>{width}}  {short(peak.hash)}{mark}"


def _node(height: int, index: int, value: bytes) -> Node:
    return Node((index << height) + 1, (index + 1) << height, value)
