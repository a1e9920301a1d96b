"""A proof as a picture: the hashes on the way from one message to the root (spec §5.2).

`Picture.of` computes every hash on the way, so a picture shows computed values and no claims. `text` draws it for a
terminal, `svg` for a page. A small tree is drawn as a tree; a large one as a ladder with a step on each line,
because a path of twenty levels has no readable tree.

The picture of a proof as SVG: readable without colour, in light and dark themes, and by screen readers.

Shape and outline show the role: a square is the message, a diamond a sibling, a triangle a peak, a circle a hash that
was computed on the way. Colour repeats it. Shapes are filled with the background, so that no line runs into them.

Values of the client in a notebook: cards for entries and receipts, a picture for proofs.

Receipts, checkpoints and all other wire objects bring their own card (`veen.core.html`). As in `repr`, bodies are not
shown: a notebook is saved and shared, and showing a value must not publish it. Print `entry.body` to see it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from veen.core.html import field_html, shown, table
from veen.core.tree.mmr import LABEL_TAGS, peak_nodes, root_of
from veen.core.tree.proof import MmrProof

if TYPE_CHECKING:
    from veen.client.read.reading import Entry
    from veen.client.send.writing import Sent
    from veen.client.verify.evidence import Proven

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


_STEP_X: Final = 104
_STEP_Y: Final = 72
_MARGIN: Final = 60
_HEAD: Final = 64  # for the title and the verdict
_LEGEND_STEP: Final = 22
_MIN_WIDTH: Final = 520
# Colours repeat the meaning of shapes. Those of the dark theme have the same contrast to its background.
_STYLE: Final = """
.veen{--paper:#fff;--ink:#1b1b1b;--own:#0b5cad;--aid:#8a5a00;--root:#11622f;--way:#0b5cad}
@media(prefers-color-scheme:dark){.veen{--paper:#161616;--ink:#e8e8e8;--own:#7ab8ff;--aid:#e0b060;--root:#6fcf8f;\
--way:#7ab8ff}}
.veen .paper{fill:var(--paper);stroke:none}
.veen text{font:12px ui-monospace,monospace;fill:var(--ink);stroke:var(--paper);stroke-width:4px;paint-order:stroke}
.veen .title{font:600 16px system-ui,sans-serif}
.veen .verdict{font:13px system-ui,sans-serif;fill:var(--root)}
.veen .words{font:12px system-ui,sans-serif}
.veen path{stroke:var(--ink);fill:none;stroke-width:1.5}
.veen .way{stroke:var(--way);stroke-width:3.5}
.veen .leaf path,.veen .sibling path,.veen .peak path,.veen .computed path,.veen .root path{fill:var(--paper)}
.veen .leaf path{fill:var(--own);stroke:var(--own)}
.veen .sibling path,.veen .peak path{stroke:var(--aid)}
.veen .computed path{stroke-dasharray:3 2}
.veen .root path{stroke:var(--root)}
"""


class _Mark(NamedTuple):
    """A shape with its text to the left (-1), below (0) or to the right (1) of it."""

    x: float
    y: float
    role: str  # leaf, sibling, peak, computed, root
    name: str
    hash: bytes
    side: int = 0
    step: int = 0  # of the fold, in which it appears


class _Drawing:
    """A drawing. `folded` is the number of finished steps of the fold; None draws all alike. `step` is the present
    one."""

    def __init__(self, folded: int | None) -> None:
        self.marks: list[_Mark] = []
        self.lines: list[str] = []
        self.step, self._folded = 0, folded

    def add(self, mark: _Mark) -> _Mark:
        mark = mark._replace(step=self.step)
        self.marks.append(mark)
        return mark

    def state(self, step: int) -> str:
        """Return the further class of the parts of a step."""
        if self._folded is None or step < self._folded:
            return ""
        return " now" if step == self._folded else " later"

    def away_from(self, mark: _Mark, other: _Mark) -> None:
        """Put the text of a mark on the side away from the line to another one."""
        if mark.side and other.x > mark.x:
            self.marks[self.marks.index(mark)] = mark._replace(side=-1)

    def line(self, a: _Mark, b: _Mark, *, on_way: bool = False) -> None:
        self._path(f"M{a.x:g},{a.y:g}L{b.x:g},{b.y:g}", on_way)

    def elbow(self, a: _Mark, b: _Mark) -> None:
        """Draw a line up from `a`, then along to `b`."""
        self._path(f"M{a.x:g},{a.y:g}V{b.y:g}H{b.x:g}", False)

    def _path(self, d: str, on_way: bool) -> None:
        self.lines.append(f'<path class="{"way" if on_way else "side"}{self.state(self.step)}" d="{d}"/>')


def to_svg(picture: Picture, *, signed_by: str | None = None, styled: bool = True, folded: int | None = None) -> str:
    """Return one SVG element, without scripts and without references to anything outside.

    `signed_by` is the hub whose signature over the root was verified; without it the picture claims no signature.
    Without `styled` the page brings the rules for `.veen` itself: a strict policy forbids a style inside of it.
    With `folded`, the parts of that step of the fold have the class `now`, and later parts the class `later`;
    the step after the last join is the root.
    """
    drawing = (_draw_tree if picture.tree_size <= TREE_MAX else _draw_ladder)(picture, folded)
    roles = [role for role in _ROLES if any(mark.role == role for mark in drawing.marks)]
    reach = [_MARGIN if mark.side == 0 else _MARGIN + 60 if mark.side > 0 else 16 for mark in drawing.marks]
    verdict = _verdict(picture, signed_by)
    width = max(
        _MIN_WIDTH, 7.5 * len(verdict), *(mark.x + room for mark, room in zip(drawing.marks, reach, strict=True))
    )
    bottom = max(mark.y for mark in drawing.marks) + _MARGIN
    height = bottom + len(roles) * _LEGEND_STEP + _HEAD
    about = (
        f"Message {picture.stream_seq} of {picture.tree_size} is under root {short(picture.root)}: "
        f"{picture.hashes} hashes prove it."
    )
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="veen" role="img" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" aria-label="{escape(about)}">',
            f"<title>Inclusion proof of message {picture.stream_seq}</title><desc>{escape(about)}</desc>",
            f"<style>{_STYLE}</style>" if styled else "",
            f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
            f'<text class="title" x="16" y="26">Message {picture.stream_seq} of {picture.tree_size}</text>',
            f'<text class="verdict" x="16" y="48">{escape(verdict)}</text>',
            f'<g transform="translate(0 {_HEAD})">',
            *drawing.lines,
            *(part for mark in drawing.marks for part in _shape(mark, drawing.state(mark.step))),
            *(part for number, role in enumerate(roles) for part in _legend(role, bottom + number * _LEGEND_STEP)),
            "</g></svg>",
        )
    )


def _verdict(picture: Picture, signed_by: str | None) -> str:
    plural = "hash leads" if picture.hashes == 1 else "hashes lead"
    signature = "" if signed_by is None else f", signed by {signed_by}"
    return f"\u2713 verified: {picture.hashes} {plural} from the message to root {short(picture.root)}{signature}"


def _draw_tree(picture: Picture, folded: int | None = None) -> _Drawing:
    """Draw named nodes side by side, in the order of the entries, and computed nodes above their children."""
    drawing = _Drawing(folded)
    siblings = [step.sibling for step in picture.steps]
    named = [picture.leaf, *siblings, *(peak for peak in picture.peaks if peak != picture.own_peak)]
    columns = {node: number for number, node in enumerate(sorted(named))}

    def place(node: Node, role: str, x: float | None = None) -> _Mark:
        level = (node.last - node.first + 1).bit_length() - 1
        across = _MARGIN + columns[node] * _STEP_X if x is None else x
        side = 1 if role == "computed" else 0
        return drawing.add(_Mark(across, _MARGIN + (top - level) * _STEP_Y, role, node.span, node.hash, side))

    top = max((peak.last - peak.first + 1).bit_length() for peak in picture.peaks)
    own = place(picture.leaf, "leaf")
    for drawing.step, step in enumerate(picture.steps, start=1):
        sibling = place(step.sibling, "sibling")
        parent = place(step.parent, "computed", (own.x + sibling.x) / 2)
        drawing.line(own, parent, on_way=True)
        drawing.line(sibling, parent)
        drawing.away_from(own, parent)
        own = parent
    drawing.step = len(picture.steps) + 1
    peaks = [own if peak == picture.own_peak else place(peak, "peak") for peak in picture.peaks]
    if len(peaks) > 1:
        across = sum(peak.x for peak in peaks) / len(peaks)
        root = drawing.add(_Mark(across, _MARGIN / 2, "root", "root", picture.root, 1))
        for peak in peaks:
            drawing.line(peak, root, on_way=peak is own)
        drawing.away_from(own, root)
    return drawing


def _draw_ladder(picture: Picture, folded: int | None = None) -> _Drawing:
    """Draw the way as one upright line with siblings left and right of it, and the other peaks in a row beside its
    end."""
    drawing = _Drawing(folded)
    bottom = _MARGIN + (len(picture.steps) + 1) * _STEP_Y
    spine = _MARGIN + 2.2 * _STEP_X
    own = drawing.add(_Mark(spine, bottom, "leaf", picture.leaf.span, picture.leaf.hash, 1))
    for level, step in enumerate(picture.steps, start=1):
        drawing.step = level
        side = -1 if step.sibling_is_left else 1
        above = bottom - level * _STEP_Y
        sibling = step.sibling
        mark = _Mark(spine + side * _STEP_X, above + _STEP_Y / 2, "sibling", sibling.span, sibling.hash, side)
        parent = drawing.add(_Mark(spine, above, "computed", step.parent.span, step.parent.hash, -side))
        drawing.line(own, parent, on_way=True)
        drawing.elbow(drawing.add(mark), parent)
        own = parent
    drawing.step = len(picture.steps) + 1
    others = [peak for peak in picture.peaks if peak != picture.own_peak]
    if others:
        root = drawing.add(_Mark(spine, own.y - _STEP_Y, "root", "root", picture.root, -1))
        drawing.line(own, root, on_way=True)
        for number, peak in enumerate(others, start=2):
            across = spine + (1.25 * number - 0.25) * _STEP_X  # its text is beside it
            drawing.elbow(drawing.add(_Mark(across, own.y, "peak", peak.span, peak.hash, 1)), root)
    return drawing


_OUTLINES: Final = {
    "leaf": "M-8,-8h16v16h-16z",
    "sibling": "M0,-10L10,0L0,10L-10,0z",
    "peak": "M0,-10L10,8H-10z",
    "computed": "M-9,0a9,9 0 1,0 18,0a9,9 0 1,0 -18,0z",
    "root": "M-12,-8h24v16h-24zM-8,-4h16v8h-16z",
}
_ROLES: Final = {
    "leaf": "the message",
    "sibling": "a hash from the proof",
    "peak": "a peak from the proof",
    "computed": "computed on the way",
    "root": "the root",
}
_WORDS: Final = {-1: ("end", -16, -4, 10), 0: ("middle", 0, 24, 38), 1: ("start", 16, -4, 10)}


def _legend(role: str, y: float) -> Iterator[str]:
    """Yield one line of the legend: the shape and its meaning."""
    yield f'<g class="{role}" transform="translate(26 {y:g}) scale(.8)"><path d="{_OUTLINES[role]}"/></g>'
    yield f'<text class="words" x="48" y="{y + 4:g}">{_ROLES[role]}</text>'


def _shape(mark: _Mark, state: str) -> Iterator[str]:
    """Yield a shape that can be focused by keyboard and has its hash as a title."""
    anchor, x, first, second = _WORDS[mark.side]
    yield f'<g class="{mark.role}{state}" tabindex="0" transform="translate({mark.x:g} {mark.y:g})">'
    yield f"<title>{escape(mark.name)}: {_ROLES[mark.role]}, {mark.hash.hex()}</title>"
    yield f'<path d="{_OUTLINES[mark.role]}"/>'
    yield f'<text text-anchor="{anchor}" x="{x}" y="{first}">{escape(mark.name)}</text>'
    yield f'<text text-anchor="{anchor}" x="{x}" y="{second}">{short(mark.hash)}</text></g>'


def proof_html(proven: "Proven") -> str:
    """Return the picture of a valid proof, with its receipt below it."""
    picture = Picture.of(
        proven.proof, stream_seq=proven.receipt.stream_seq, root=proven.root, tree_size=proven.tree_size
    )
    return f"<div>{to_svg(picture, signed_by='the pinned hub')}{shown(proven.receipt)}</div>"


def entry_html(entry: "Entry") -> str:
    state = shown(entry.error) if entry.event is None else f"opened, {len(entry.body)} bytes"
    names = [attachment.name or attachment.coid for attachment in entry.attachments]
    rows = [
        ("seq", shown(entry.seq)),
        ("time", _time(entry.ts)),
        ("author", shown(entry.msg.client_id)),
        ("msg_id", shown(entry.msg_id)),
        ("body", "sealed" if entry.event is None and entry.error is None else state),
        *([("attachments", shown(names))] if names else []),
        ("root", shown(entry.receipt.mmr_root)),
        ("verified by", "this client: signatures of author and hub, order, place under the root"),
    ]
    return table(f"Entry {entry.seq} \u2713 verified", rows)


def message_html(sent: "Sent") -> str:
    rows = [
        ("seq", shown(sent.seq)),
        ("msg_id", shown(sent.msg_id)),
        ("label", shown(sent.label)),
        ("root", shown(sent.root)),
        ("time", _time(sent.receipt.hub_ts)),
        ("bytes", shown(len(sent.raw))),
        ("verified by", "this client: the signature of the pinned hub, and the place under the root"),
    ]
    return table(f"Message {sent.seq} \u2713 receipt verified", rows)


def _time(seconds: int) -> str:
    return field_html("hub_ts", seconds)
