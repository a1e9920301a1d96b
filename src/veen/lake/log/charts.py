"""Bar charts for notebooks and pages: self-contained SVG without scripts, the same bytes for the same numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from veen.lake.log.errors import OptionError

_WIDTH: Final = 720
_LEFT: Final = 110
_RIGHT: Final = 60
_ROW: Final = 22
_TOP: Final = 28
_MAX_BARS: Final = 60
_FONT: Final = "font-family='system-ui,sans-serif' font-size='12' fill='currentColor'"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture in SVG. Notebooks draw it."""

    svg: str

    def _repr_html_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg


def bars(title: str, counts: Mapping[str, int], *, marked: frozenset[str] = frozenset()) -> Chart:
    """Draw a bar for each name, in the order of `counts`; mark those in `marked` by sign and colour.

    Counts must not be negative. Lengths are whole pixels, so that the picture does not vary with the machine.
    """
    if len(counts) > _MAX_BARS:
        raise OptionError(f"{len(counts)} bars are more than a picture has room for ({_MAX_BARS})")
    if any(count < 0 for count in counts.values()):
        raise OptionError("a bar cannot have a negative length")
    most = max(counts.values(), default=0) or 1
    room = _WIDTH - _LEFT - _RIGHT
    height = _TOP + _ROW * len(counts) + 6
    drawn = [f"<text x='0' y='16' font-weight='bold' {_FONT}>{escape(title)}</text>"]
    for number, (name, count) in enumerate(counts.items()):
        y, long = _TOP + number * _ROW, count * room // most
        mark, fill = (" ◀", "#c2410c") if name in marked else ("", "#5b7fa6")
        drawn.append(
            f"<text x='{_LEFT - 8}' y='{y + 14}' text-anchor='end' {_FONT}>{escape(name)}</text>"
            f"<rect x='{_LEFT}' y='{y + 2}' width='{long}' height='{_ROW - 6}' fill='{fill}'/>"
            f"<text x='{_LEFT + long + 6}' y='{y + 14}' {_FONT}>{count:,}{mark}</text>"
        )
    about = escape(title, quote=True)
    return Chart(
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{about}' width='{_WIDTH}' "
        f"viewBox='0 0 {_WIDTH} {height}'>{''.join(drawn)}</svg>"
    )
