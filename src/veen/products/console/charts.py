"""Pictures of the console as SVG, with a title and a description, without style and script. Tables have the same facts.

Colours and strokes are in console.css. Foreign text is escaped, after control characters were spelled out.

Distribution of the entries of a stream over time: one column for each interval, as SVG and as a table.

A long stream is sampled: the times of at most `MAX_SAMPLES` entries are read, at numbers that stay the same while the
stream grows; entries between two samples are spread evenly over the time between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Final, NamedTuple

from veen.cli.shared.entries import when
from veen.cli.shared.text import safe

_WIDTH: Final = 920
_LEFT: Final = 210
_ROW: Final = 30
_MAX_NAME: Final = 25


def _text(text: str, x: float, y: float, *, anchor: str = "start", kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(safe(text))}</text>'


def row_name(text: str) -> str:
    """Return the name of a row, shortened to the room for it."""
    if text.startswith("hex:"):
        return f"{text[:12]}…{text[-4:]}"
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"


def _svg(kind: str, title: str, about: str, width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart {kind}" role="img" viewBox="0 0 {width:g} {height:g}" '
        f'aria-label="{escape(safe(about))}"><title>{escape(safe(title))}</title><desc>{escape(safe(about))}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _axis(first: int, last: int, y: float, left: float = _LEFT) -> list[str]:
    """Draw both ends of a time axis."""
    return [
        f'<path class="axis" d="M{left:g},{y:g}H{_WIDTH}"/>',
        _text(when(first), left, y + 16, kind="small"),
        _text(when(last), _WIDTH, y + 16, anchor="end", kind="small"),
    ]


# --- a value that changes in steps -------------------------------------------------------------------------------


def steps(
    title: str,
    points: Sequence[tuple[int, int]],
    *,
    bands: Sequence[tuple[int, int]] = (),
    limit: int | None = None,
) -> str:
    """Draw a value over the number of its changes: (time, value after it). `bands`: frozen ranges of changes."""
    if not points:
        return ""
    most = max([value for _, value in points] + ([limit] if limit is not None else [])) or 1
    height, left, count = 200, 60, len(points)
    room = (_WIDTH - left) / count

    def y(value: int) -> float:
        return round(10 + (height - 20) * (1 - value / most), 1)

    parts = [
        f'<rect class="band" x="{left + room * start:g}" y="10" width="{room * max(end - start, 1):g}" '
        f'height="{height - 20}"/>'
        for start, end in bands
    ]
    path = f"M{left},{y(0):g}"
    for number, (_, value) in enumerate(points):
        path += f"H{left + room * number:g}V{y(value):g}"
    parts.append(f'<path class="line" d="{path}H{_WIDTH}"/>')
    if limit is not None:
        parts.append(f'<path class="limit" d="M{left},{y(limit):g}H{_WIDTH}"/>')
        parts.append(_text(f"limit {limit}", _WIDTH, y(limit) - 4, anchor="end", kind="small"))
    parts += [
        _text(str(most), left - 6, 18, anchor="end", kind="small"),
        _text("0", left - 6, y(0), anchor="end", kind="small"),
    ]
    parts += _axis(points[0][0], points[-1][0], height - 8, left)
    about = f"{count} changes from {when(points[0][0])} to {when(points[-1][0])}; at last {points[-1][1]}."
    return _svg("steps", title, about, _WIDTH, height + 14, parts)


# --- bars over time ----------------------------------------------------------------------------------------------


class TimeBar(NamedTuple):
    """A period; `kind` is good, partly, bad or muted."""

    name: str
    start: int
    end: int
    kind: str
    title: str


def gantt(title: str, bars: Sequence[TimeBar], now: int) -> str:
    """Draw a row for each period, and a line at the current time."""
    if not bars:
        return ""
    first, last = min([now, *(bar.start for bar in bars)]), max([now, *(bar.end for bar in bars)])
    span = max(last - first, 1)

    def x(moment: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT) * (moment - first) / span, 1)

    parts = []
    for row, bar in enumerate(bars):
        top = row * _ROW + 6
        parts.append(_text(row_name(bar.name), _LEFT - 10, top + 13, anchor="end"))
        parts.append(
            f'<rect class="bar {bar.kind}" x="{x(bar.start):g}" y="{top}" '
            f'width="{max(x(bar.end) - x(bar.start), 3):g}" height="18"><title>{escape(safe(bar.title))}</title></rect>'
        )
    bottom = len(bars) * _ROW + 6
    parts.append(f'<path class="now" d="M{x(now):g},0V{bottom}"/>')
    parts += _axis(first, last, bottom)
    about = f"{len(bars)} rows from {when(first)} to {when(last)}; the upright line is now, {when(now)}."
    return _svg("gantt", title, about, _WIDTH, bottom + 24, parts)


# --- a grid of cells ---------------------------------------------------------------------------------------------


class GridCell(NamedTuple):
    """A cell: its weight from 0 to 1, its text, and its kind: "" for a plain one, bad, partly or muted."""

    weight: float
    title: str
    kind: str = ""
    mark: str = ""


def grid(title: str, about: str, rows: Mapping[str, Sequence[GridCell]], ends: tuple[str, str] = ("", "")) -> str:
    """Draw rows of cells by name. A mark in the cell repeats its colour."""
    if not rows:
        return ""
    columns = max(len(cells) for cells in rows.values()) or 1
    room = (_WIDTH - _LEFT) / columns
    parts = []
    for row, (name, cells) in enumerate(rows.items()):
        top = row * _ROW
        parts.append(_text(row_name(name), _LEFT - 10, top + 19, anchor="end"))
        for column, item in enumerate(cells):
            shade = f"w{min(4, int(item.weight * 4.999))}" if item.weight > 0 else "w0"
            place = f'x="{_LEFT + column * room:g}" y="{top + 2}" width="{max(room - 2, 1):g}" height="{_ROW - 4}"'
            parts.append(
                f'<rect class="cell {item.kind or shade}" {place}><title>{escape(safe(item.title))}</title></rect>'
            )
            if item.mark:
                parts.append(
                    _text(item.mark, _LEFT + (column + 0.5) * room - 1, top + 20, anchor="middle", kind="mark")
                )
    bottom = len(rows) * _ROW + 4
    parts += [
        _text(ends[0], _LEFT, bottom + 14, kind="small"),
        _text(ends[1], _WIDTH, bottom + 14, anchor="end", kind="small"),
    ]
    return _svg("grid", title, about, _WIDTH, bottom + 20, parts)


# --- runs of numbers ---------------------------------------------------------------------------------------------


class NumberRun(NamedTuple):
    """Entries first to last of a row."""

    row: str
    first: int
    last: int
    kind: str
    title: str


def ranges(title: str, runs: Sequence[NumberRun]) -> str:
    """Draw aligned bars over the same numbers: a range missing in one row shows as a gap."""
    if not runs:
        return ""
    names = list(dict.fromkeys(run.row for run in runs))
    first, last = min(run.first for run in runs), max(run.last for run in runs)
    span = last - first + 1

    def x(number: int) -> float:
        return round(_LEFT + (_WIDTH - _LEFT) * (number - first) / span, 1)

    parts = []
    for row, name in enumerate(names):
        top = row * _ROW + 4
        parts.append(_text(row_name(name), _LEFT - 10, top + 15, anchor="end"))
        parts.append(f'<rect class="track" x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT}" height="20"/>')
        for run in runs:
            if run.row == name:
                parts.append(
                    f'<rect class="bar {run.kind}" x="{x(run.first):g}" y="{top}" '
                    f'width="{max(x(run.last + 1) - x(run.first) - 1, 2):g}" height="20">'
                    f"<title>{escape(safe(run.title))}</title></rect>"
                )
    bottom = len(names) * _ROW + 4
    parts += [
        _text(str(first), _LEFT, bottom + 14, kind="small"),
        _text(str(last), _WIDTH, bottom + 14, anchor="end", kind="small"),
    ]
    about = f"{len(names)} rows over entries {first} to {last}, {len(runs)} runs; what no bar covers is missing."
    return _svg("ranges", title, about, _WIDTH, bottom + 20, parts)


# --- a chain of boxes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainBox:
    """A link of a chain: its result (None: not checked), and its names."""

    name: str
    holds: bool | None
    title: str


def chain(title: str, boxes: Sequence[ChainBox], gap_after: int | None = None) -> str:
    """Draw boxes from left to right, each with a tick, a cross or a question mark; the air gap after `gap_after`
    boxes.
    """
    if not boxes:
        return ""
    room = _WIDTH / len(boxes)
    wide = room - 22
    parts = []
    for number, box in enumerate(boxes):
        left = number * room + 1  # the border of the first box is inside of the picture
        kind = {True: "good", False: "bad", None: "muted"}[box.holds]
        if number:
            gap = " gap" if number == gap_after else ""
            parts.append(f'<path class="link{gap}" d="M{left - 22:g},34H{left:g}"/>')
        parts.append(
            f'<rect class="box {kind}" x="{left:g}" y="8" width="{wide:g}" height="52" rx="6">'
            f"<title>{escape(safe(box.title))}</title></rect>"
        )
        parts.append(_text(box.name, left + wide / 2, 31, anchor="middle"))
        parts.append(
            _text({True: "✓", False: "✕", None: "?"}[box.holds], left + wide / 2, 51, anchor="middle", kind="mark")
        )
    states = ", ".join(
        f"{box.name} { ({True: 'holds', False: 'BROKEN', None: 'not looked at'}[box.holds]) }" for box in boxes
    )
    return _svg("chain", title, f"{states}.", _WIDTH, 68, parts)


# --- layers of nodes ---------------------------------------------------------------------------------------------


def layers(
    title: str, columns: Sequence[tuple[str, Sequence[tuple[str, str, str]]]], edges: Sequence[tuple[str, str, str]]
) -> str:
    """Draw columns of nodes (key, words, kind), and edges (key, words, key) between them."""
    columns = [(name, nodes) for name, nodes in columns if nodes]
    if not columns:
        return ""
    room = _WIDTH / len(columns)
    wide, tall = min(room - 30, 190), 34
    most = int((wide - 12) / 7.2)  # characters that fit
    places: dict[str, tuple[float, float]] = {}
    parts = []
    for number, (name, nodes) in enumerate(columns):
        left = number * room + 4
        parts.append(_text(name, left, 14, kind="small"))
        for row, (key, words, kind) in enumerate(nodes):
            top = 24 + row * (tall + 14)
            places[key] = (left, top + tall / 2)
            parts.append(
                f'<rect class="box {kind}" x="{left:g}" y="{top:g}" width="{wide:g}" height="{tall}" rx="6">'
                f"<title>{escape(safe(key))}</title></rect>"
            )
            parts.append(_text(words if len(words) <= most else f"{words[: most - 1]}…", left + 8, top + 21))
    lines = []
    for source, words, target in edges:
        if source in places and target in places and places[source][0] != places[target][0]:
            (x1, y1), (x2, y2) = sorted((places[source], places[target]))
            start = x1 + wide
            lines.append(
                f'<path class="link" d="M{start:g},{y1:g}C{start + 24:g},{y1:g} {x2 - 24:g},{y2:g} {x2:g},{y2:g}">'
                f"<title>{escape(safe(words))}</title></path>"
            )
    height = 24 + max(len(nodes) for _, nodes in columns) * (tall + 14)
    total = sum(len(nodes) for _, nodes in columns)
    return _svg(
        "layers",
        title,
        f"{total} nodes in {len(columns)} layers and {len(lines)} edges.",
        _WIDTH,
        height,
        [*lines, *parts],
    )


# --- beads on a line ---------------------------------------------------------------------------------------------


class Bead(NamedTuple):
    """A checkpoint at a number of entries; anchored ones are diamonds."""

    number: int
    anchored: bool
    title: str


def beads(title: str, rows: Mapping[str, tuple[int, Sequence[Bead]]]) -> str:
    """Draw a line for each log, and beads where a root was signed or anchored: verified up to the last."""
    if not rows:
        return ""
    parts = []
    for row, (name, (head, points)) in enumerate(rows.items()):
        y = row * _ROW + 16
        parts.append(_text(row_name(name), _LEFT - 10, y + 4, anchor="end"))
        until = max((bead.number for bead in points), default=0)

        def x(number: int, most: int = head or 1) -> float:
            return round(_LEFT + 8 + (_WIDTH - _LEFT - 90) * number / most, 1)

        parts.append(f'<path class="axis" d="M{_LEFT},{y}H{x(head):g}"/>')
        parts.append(f'<path class="line" d="M{_LEFT},{y}H{x(until):g}"/>')
        for bead in points:
            at = x(bead.number)
            shape = (
                f'<path class="anchored" d="M{at:g},{y - 9}L{at + 9:g},{y}L{at:g},{y + 9}L{at - 9:g},{y}z">'
                if bead.anchored
                else f'<circle class="bead" cx="{at:g}" cy="{y}" r="6">'
            )
            end = "</path>" if bead.anchored else "</circle>"
            parts.append(f"{shape}<title>{escape(safe(bead.title))}</title>{end}")
        parts.append(_text(f"✓ until {until}", x(until) + 14, y + 4, kind="small"))
    about = (
        f"{len(rows)} logs; circles are checkpoints, diamonds are anchored ones; the thick line is verified, until the "
        "number at its end."
    )
    return _svg("beads", title, about, _WIDTH, len(rows) * _ROW + 8, parts)


# --- rate and latency ------------------------------------------------------------------------------------------------


def rates(title: str, points: Sequence[tuple[float, float, float, float | None, float | None] | None]) -> str:
    """Draw messages per second as an area above lines of p50 and p99 in milliseconds: (from, to, rate, p50, p99).

    None is a gap in all of them. Latencies have a separate scale, at the right.
    """
    real = [point for point in points if point is not None]
    if not real:
        return ""
    left, right, top, bottom = 60, _WIDTH - 60, 24.0, 170.0
    first, last = real[0][0], real[-1][1]
    span = max(last - first, 1e-9)
    most_rate = max(point[2] for point in real) or 1.0
    most_ms = max((point[4] or 0 for point in real), default=0) or 1.0

    def x(moment: float) -> float:
        return round(left + (right - left) * (moment - first) / span, 1)

    def y(value: float, most: float) -> float:
        return round(bottom - (bottom - top) * value / most, 1)

    parts = []
    for start, end, rate, _, _ in real:
        height = max(bottom - y(rate, most_rate), 0.5)
        parts.append(
            f'<rect class="area" x="{x(start):g}" y="{bottom - height:g}" width="{max(x(end) - x(start), 1):g}" '
            f'height="{height:g}"><title>{when(int(end))}: {rate:.2f} a second</title></rect>'
        )
    for kind, index in (("p50", 3), ("p99", 4)):
        path, is_drawing = "", False
        for point in points:
            value = None if point is None else point[index]
            if point is None or value is None:
                is_drawing = False
                continue
            path += f"{'L' if is_drawing else 'M'}{x(point[0]):g},{y(value, most_ms):g}H{x(point[1]):g}"
            is_drawing = True
        if path:
            parts.append(f'<path class="line {kind}" d="{path}"/>')
    parts += [
        _text(f"{most_rate:.3g} / s", left - 6, top + 4, anchor="end", kind="small"),
        _text("0", left - 6, bottom, anchor="end", kind="small"),
        _text(f"{most_ms:g} ms", right + 6, top + 4, kind="small"),
        _text("0", right + 6, bottom, kind="small"),
        f'<path class="axis" d="M{left},{bottom:g}H{right}"/>',
        _text(when(int(first)), left, bottom + 16, kind="small"),
        _text(when(int(last)), right, bottom + 16, anchor="end", kind="small"),
        f'<rect class="area" x="{left}" y="2" width="12" height="10"/>',
        _text("accepted a second", left + 18, 12, kind="small"),
        f'<path class="line p50" d="M{left + 150},7h22"/>',
        _text("latency p50", left + 178, 12, kind="small"),
        f'<path class="line p99" d="M{left + 270},7h22"/>',
        _text("latency p99", left + 298, 12, kind="small"),
    ]
    if not any(point[2] for point in real):
        parts.append(_text("no message came in this time", (left + right) / 2, (top + bottom) / 2, anchor="middle"))
    gaps = sum(point is None for point in points)
    about = (
        f"{len(real)} spans from {when(int(first))} to {when(int(last))} with {gaps} gaps; at most {most_rate:.3g} "
        f"messages a second, and at most {most_ms:g} ms at p99."
    )
    return _svg("rates", title, about, _WIDTH, bottom + 24, parts)


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
