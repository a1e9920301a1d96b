"""The picture of a proof as SVG: readable without colour, in light and dark, by screen readers too.

Shape and outline carry the role: a square is the message, a diamond a sibling, a triangle a peak, a circle what was
computed on the way.
"""

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from veen.client.read.picture import TREE_MAX, Node, Picture, short

__all__ = ["to_svg"]

_STEP_X: Final = 104
_STEP_Y: Final = 72
_MARGIN: Final = 60
_STYLE: Final = """
.veen text{font:12px ui-monospace,monospace;fill:currentColor}
.veen path{stroke:currentColor;fill:none;stroke-width:1.5}
.veen .way{stroke-width:3.5}
.veen .leaf path{fill:currentColor}
.veen .computed path{stroke-dasharray:3 2}
"""


class _Mark(NamedTuple):
    """A shape with its words to the left (-1), below (0) or to the right (1) of it."""

    x: float
    y: float
    role: str  # leaf, sibling, peak, computed, root
    name: str
    hash: bytes
    side: int = 0


class _Drawing:
    def __init__(self) -> None:
        self.marks: list[_Mark] = []
        self.lines: list[str] = []

    def add(self, mark: _Mark) -> _Mark:
        self.marks.append(mark)
        return mark

    def line(self, a: _Mark, b: _Mark, *, on_way: bool = False) -> None:
        self._path(f"M{a.x:g},{a.y:g}L{b.x:g},{b.y:g}", on_way)

    def elbow(self, a: _Mark, b: _Mark) -> None:
        """Up from `a`, then along to `b`."""
        self._path(f"M{a.x:g},{a.y:g}V{b.y:g}H{b.x:g}", False)

    def _path(self, d: str, on_way: bool) -> None:
        self.lines.append(f'<path class="{"way" if on_way else "side"}" d="{d}"/>')


def to_svg(picture: Picture, *, styled: bool = True) -> str:
    """One SVG element, without scripts and without references to anything outside.

    Without `styled` the page brings the rules for `.veen` itself: a strict policy forbids a style inside of it.
    """
    drawing = _tree(picture) if picture.tree_size <= TREE_MAX else _ladder(picture)
    width = max(mark.x for mark in drawing.marks) + _MARGIN
    height = max(mark.y for mark in drawing.marks) + _MARGIN
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
            *drawing.lines,
            *(part for mark in drawing.marks for part in _shape(mark)),
            "</svg>",
        )
    )


def _tree(picture: Picture) -> _Drawing:
    """What the proof names stands side by side, as the entries lie; what was computed stands above its children."""
    drawing = _Drawing()
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
    for step in picture.steps:
        sibling = place(step.sibling, "sibling")
        parent = place(step.parent, "computed", (own.x + sibling.x) / 2)
        drawing.line(own, parent, on_way=True)
        drawing.line(sibling, parent)
        own = parent
    peaks = [own if peak == picture.own_peak else place(peak, "peak") for peak in picture.peaks]
    if len(peaks) > 1:
        across = sum(peak.x for peak in peaks) / len(peaks)
        root = drawing.add(_Mark(across, _MARGIN / 2, "root", "root", picture.root, 1))
        for peak in peaks:
            drawing.line(peak, root, on_way=peak is own)
    return drawing


def _ladder(picture: Picture) -> _Drawing:
    """The way is one upright line with siblings left and right of it; the other peaks stand in a row beside its end."""
    drawing = _Drawing()
    bottom = _MARGIN + (len(picture.steps) + 1) * _STEP_Y
    spine = _MARGIN + 2.2 * _STEP_X
    own = drawing.add(_Mark(spine, bottom, "leaf", picture.leaf.span, picture.leaf.hash, 1))
    for level, step in enumerate(picture.steps, start=1):
        side = -1 if step.sibling_is_left else 1
        above = bottom - level * _STEP_Y
        sibling = step.sibling
        mark = _Mark(spine + side * _STEP_X, above + _STEP_Y / 2, "sibling", sibling.span, sibling.hash, side)
        parent = drawing.add(_Mark(spine, above, "computed", step.parent.span, step.parent.hash, -side))
        drawing.line(own, parent, on_way=True)
        drawing.elbow(drawing.add(mark), parent)
        own = parent
    others = [peak for peak in picture.peaks if peak != picture.own_peak]
    if others:
        root = drawing.add(_Mark(spine, own.y - _STEP_Y, "root", "root", picture.root, -1))
        drawing.line(own, root, on_way=True)
        for number, peak in enumerate(others, start=3):
            drawing.elbow(drawing.add(_Mark(spine + number * _STEP_X, own.y, "peak", peak.span, peak.hash)), root)
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
    "root": "the signed root",
}
_WORDS: Final = {-1: ("end", -16, -4, 10), 0: ("middle", 0, 24, 38), 1: ("start", 16, -4, 10)}


def _shape(mark: _Mark) -> Iterator[str]:
    """A shape that can be reached by keyboard and says its hash when asked."""
    anchor, x, first, second = _WORDS[mark.side]
    yield f'<g class="{mark.role}" tabindex="0" transform="translate({mark.x:g} {mark.y:g})">'
    yield f"<title>{escape(mark.name)}: {_ROLES[mark.role]}, {mark.hash.hex()}</title>"
    yield f'<path d="{_OUTLINES[mark.role]}"/>'
    yield f'<text text-anchor="{anchor}" x="{x}" y="{first}">{escape(mark.name)}</text>'
    yield f'<text text-anchor="{anchor}" x="{x}" y="{second}">{short(mark.hash)}</text></g>'
