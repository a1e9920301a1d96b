"""How the entries of a page lie in time: one column for each span of time, as SVG, and the same as a table."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from veen.cli.shared.entries import when

__all__ = ["TimeColumn", "strip", "time_columns"]

_COLUMNS: Final = 48
_WIDTH: Final = 14
_HEIGHT: Final = 56


class TimeColumn(NamedTuple):
    """The entries whose hub_ts is in `start` … `end`, both included."""

    start: int
    end: int
    entry_count: int


def time_columns(times: Sequence[int], columns: int = _COLUMNS) -> tuple[TimeColumn, ...]:
    """Equal spans of whole seconds from the first time to the last; no more columns than there are seconds."""
    if not times:
        return ()
    first, last = min(times), max(times)
    span = -(-(last - first + 1) // columns)
    number = (last - first) // span + 1
    counts = [0] * number
    for moment in times:
        counts[(moment - first) // span] += 1
    return tuple(
        TimeColumn(first + index * span, min(first + (index + 1) * span - 1, last), count)
        for index, count in enumerate(counts)
    )


def strip(columns: Sequence[TimeColumn]) -> str:
    """The picture; what is needed to draw it is in the style sheet of the page."""
    most = max((column.entry_count for column in columns), default=0)
    total = sum(column.entry_count for column in columns)
    if not most:
        return ""
    about = f"{total} entries from {when(columns[0].start)} to {when(columns[-1].end)}, at most {most} in one column."
    bars = []
    for index, column in enumerate(columns):
        height = round(_HEIGHT * column.entry_count / most, 1)
        title = f"{when(column.start)}: {column.entry_count}"
        bars.append(
            f'<rect x="{index * _WIDTH}" y="{_HEIGHT - height:g}" width="{_WIDTH - 2}" height="{height:g}">'
            f"<title>{escape(title)}</title></rect>"
        )
    width = max(len(columns), _COLUMNS) * _WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="density" role="img" preserveAspectRatio="none" '
        f'viewBox="0 0 {width} {_HEIGHT + 1}" aria-label="{escape(about)}">'
        f"<title>Entries over time</title><desc>{escape(about)}</desc>{''.join(bars)}"
        f'<path d="M0,{_HEIGHT + 0.5}H{width}"/></svg>'
    )
