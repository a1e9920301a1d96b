"""Distribution of the entries of a stream over time: one column for each interval, as SVG and as a table.

A long stream is sampled: the times of at most `MAX_SAMPLES` entries are read, at numbers that stay the same while the
stream grows; entries between two samples are spread evenly over the time between them.
"""

from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import Final, NamedTuple

from veen.cli.shared.entries import when

MAX_SAMPLES: Final = 64
_COLUMNS: Final = 48
_PITCH: Final = 14
_HEIGHT: Final = 56


class TimeColumn(NamedTuple):
    """The entries whose hub_ts is in `start` … `end`, both included."""

    start: int
    end: int
    entry_count: int


def sample_numbers(head: int, most: int = MAX_SAMPLES) -> list[int]:
    """Return the entries to sample: the first, the last, and multiples of a power of two between them."""
    step = 1
    while head // step > most - 2:
        step *= 2
    return sorted({1, head, *range(step, head + 1, step)}) if head else []


def time_columns(samples: Sequence[tuple[int, int]], columns: int = _COLUMNS) -> tuple[TimeColumn, ...]:
    """Return equal intervals of whole seconds, from samples (number of an entry, its time) in ascending order.

    The columns sum up to all entries from the first sample to the last, and are exact where samples are neighbours.
    """
    if not samples:
        return ()
    # A hub whose clock went back has entries with the times of earlier ones: they count at the latest time so far.
    times = accumulate((ts for _, ts in samples), max)
    samples = [(seq, ts) for (seq, _), ts in zip(samples, times, strict=True)]
    first, last = samples[0][1], samples[-1][1]
    span = -(-(last - first + 1) // columns)
    number = (last - first) // span + 1
    ends = [min(first + (index + 1) * span - 1, last) for index in range(number)]
    totals = [0, *_count_until(samples, ends)]
    return tuple(
        TimeColumn(first + index * span, end, totals[index + 1] - totals[index]) for index, end in enumerate(ends)
    )


def _count_until(samples: Sequence[tuple[int, int]], moments: Sequence[int]) -> list[int]:
    """Return the number of entries at each of some ascending moments, from the first sample on."""
    totals, index = [], 0
    start = samples[0][0] - 1
    for moment in moments:
        while index + 1 < len(samples) and samples[index + 1][1] <= moment:
            index += 1
        seq, ts = samples[index]
        between = 0
        if index + 1 < len(samples):
            later, until = samples[index + 1]
            between = (later - seq - 1) * (moment - ts) // (until - ts)
        totals.append(seq + between - start)
    return totals


def strip(columns: Sequence[TimeColumn], shown: tuple[int, int] | None = None) -> str:
    """Draw the columns; the style sheet of the page has the colours. `shown`: the times of a page."""
    most = max((column.entry_count for column in columns), default=0)
    total = sum(column.entry_count for column in columns)
    if not most:
        return ""
    about = f"{total} entries from {when(columns[0].start)} to {when(columns[-1].end)}, at most {most} in one column."
    bars = []
    for index, column in enumerate(columns):
        height = round(_HEIGHT * column.entry_count / most, 1)
        title = f"{when(column.start)}: {column.entry_count}"
        here = shown is not None and column.start <= shown[1] and shown[0] <= column.end
        mark = ' class="here"' if here else ""
        bars.append(
            f'<rect{mark} x="{index * _PITCH}" y="{_HEIGHT - height:g}" width="{_PITCH - 2}" height="{height:g}">'
            f"<title>{escape(title)}</title></rect>"
        )
    width = max(len(columns), _COLUMNS) * _PITCH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="density" role="img" preserveAspectRatio="none" '
        f'viewBox="0 0 {width} {_HEIGHT + 1}" aria-label="{escape(about)}">'
        f"<title>Entries over time</title><desc>{escape(about)}</desc>{''.join(bars)}"
        f'<path d="M0,{_HEIGHT + 0.5}H{width}"/></svg>'
    )
