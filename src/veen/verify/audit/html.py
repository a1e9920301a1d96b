"""The report of an audit as one HTML file: no script, no font, no picture from anywhere else."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from veen.verify.audit.findings import CODES, LogFinding
from veen.verify.audit.tables import Commitment

__all__ = ["page"]

_WIDTH: Final = 760
_HEIGHT: Final = 240
_LEFT: Final = 70
_BOTTOM: Final = 28
_CELLS: Final = 60
_MAX_CURVES: Final = 12
_MAX_ROWS: Final = 500
_MAX_TS: Final = 253_402_300_799  # the last second of the year 9999
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.good{color:#11622f}.bad{color:#a11}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{text-align:left;padding:.25rem .5rem;
border-bottom:1px solid #ddd;vertical-align:top}code{font-size:12px;word-break:break-all}svg{width:100%;height:auto}
.axis{stroke:#888;stroke-width:1}.curve{fill:none;stroke-width:2}.note{font-size:11px;fill:#555}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}td,th{border-color:#444}.note{fill:#aaa}
.good{color:#6fcf8f}.bad{color:#ff8080}}
"""


def page(
    verdict: dict[str, Any], keys_line: str, commitments: Sequence[Commitment], findings: Sequence[LogFinding]
) -> str:
    """The whole page; equal results give equal bytes."""
    good = bool(verdict["ok"])
    title = "The evidence is good" if good else "The evidence is bad"
    parts = [
        f"<p class='{'bad' if verdict['keys'] == 'not pinned' else 'good'}'>{escape(keys_line)}</p>",
        f"<h1 class='{'good' if good else 'bad'}'>{title}</h1>",
        _table(("", ""), _facts(verdict)),
        "<h2>Entries over time</h2>",
        _growth(commitments),
        "<h2>Labels</h2>",
        _table(("label", "entries", "root"), _labels(verdict)),
        "<h2>Findings</h2>",
        _grid(verdict, findings) if findings else "<p class='good'>None.</p>",
        _table(("severity", "entry", "file", "byte", "what"), _found(findings)) if findings else "",
    ]
    if len(findings) > _MAX_ROWS:
        parts.append(f"<p>The first {_MAX_ROWS} of {len(findings)}; the table has all.</p>")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>VEEN audit: {title.lower()}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _facts(verdict: dict[str, Any]) -> Iterable[tuple[str, str]]:
    counts = verdict["counts"]
    yield "hub", f"<code>{verdict['hub_id'] or 'unknown'}</code>"
    yield "level", escape(str(verdict["level"]))
    for name in sorted(counts):
        yield name.replace("_", " "), f"{counts[name]:,}"
    yield "errors", f"{verdict['findings']['errors']:,}"
    yield "warnings", f"{verdict['findings']['warnings']:,}"


def _labels(verdict: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    for row in verdict["labels"]:
        root = f"<code>{row['mmr_root']}</code>" if row["mmr_root"] else "<span class='bad'>not known</span>"
        yield f"<code>{row['label']}</code>", f"{row['size']:,}", root


def _found(findings: Sequence[LogFinding]) -> Iterable[tuple[str, ...]]:
    for finding in findings[:_MAX_ROWS]:
        style = "bad" if finding.severity == "error" else ""
        means = escape(CODES.get(finding.code, ""), quote=True)
        yield (
            f"<span class='{style}'>{finding.severity}</span>",
            "" if finding.stream_seq is None else str(finding.stream_seq),
            f"<code>{escape(finding.path)}</code>",
            str(finding.offset),
            f"{escape(finding.message)} <abbr title='{means}'>{escape(finding.code)}</abbr>",
        )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>" if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


# --- pictures ------------------------------------------------------------------------------------------------


def _growth(commitments: Sequence[Commitment]) -> str:
    """A curve per label: how many entries it had, after each chunk; integers only, so that bytes do not vary."""
    curves: dict[bytes, list[Commitment]] = {}
    for row in commitments:
        curves.setdefault(row.label, []).append(row)
    if not curves:
        return "<p>No entry was found true.</p>"
    shown = sorted(curves, key=lambda label: (-curves[label][-1].end, label))[:_MAX_CURVES]
    first = min(row.first_ts for label in shown for row in curves[label])
    span = max(1, max(row.last_ts for label in shown for row in curves[label]) - first)
    most = max(curves[label][-1].end for label in shown)
    wide, high = _WIDTH - _LEFT - 10, _HEIGHT - _BOTTOM - 10

    def at(ts: int, size: int) -> tuple[int, int]:
        return _LEFT + (ts - first) * wide // span, 10 + high - size * high // most

    drawn = [_axes(first, first + span, most)]
    for number, label in enumerate(shown):
        x, y = at(curves[label][0].first_ts, 0)
        path = f"M{x} {y}"
        for row in curves[label]:
            x, y = at(row.last_ts, row.end)
            path += f"L{x} {y}"
        hue = number * 360 // len(shown)
        drawn.append(
            f"<path class='curve' stroke='hsl({hue} 60% 45%)' d='{path}'>"
            f"<title>{label.hex()}: {curves[label][-1].end} entries</title></path>"
        )
    note = f"<p>The {_MAX_CURVES} longest of {len(curves)} labels.</p>" if len(curves) > len(shown) else ""
    return _svg("entries of each label over time", _HEIGHT, drawn) + note


def _axes(first: int, last: int, most: int) -> str:
    base = _HEIGHT - _BOTTOM
    return (
        f"<path class='axis' fill='none' d='M{_LEFT} 10V{base}H{_WIDTH - 10}'/>"
        f"<text class='note' x='{_LEFT - 6}' y='16' text-anchor='end'>{most:,}</text>"
        f"<text class='note' x='{_LEFT - 6}' y='{base}' text-anchor='end'>0</text>"
        f"<text class='note' x='{_LEFT}' y='{_HEIGHT - 8}'>{_time(first)}</text>"
        f"<text class='note' x='{_WIDTH - 10}' y='{_HEIGHT - 8}' text-anchor='end'>{_time(last)}</text>"
    )


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(min(seconds, _MAX_TS), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _grid(verdict: dict[str, Any], findings: Sequence[LogFinding]) -> str:
    """Labels by position: a red cell holds an error, an amber one a warning."""
    sizes = {row["label"]: int(row["size"]) for row in verdict["labels"]}
    worst: dict[tuple[str, int], LogFinding] = {}
    for finding in findings:
        if finding.label is None or not (size := sizes.get(finding.label.hex())):
            continue
        place = (finding.label.hex(), min(_CELLS - 1, max(0, ((finding.stream_seq or 1) - 1) * _CELLS // size)))
        if place not in worst or (worst[place].severity, finding.severity) == ("warning", "error"):
            worst[place] = finding
    rows = sorted({label for label, _ in worst})
    if not rows:
        return ""
    wide = (_WIDTH - 160) // _CELLS
    drawn = []
    for number, label in enumerate(rows):
        y = 10 + number * 18
        drawn.append(f"<text class='note' x='0' y='{y + 11}'>{label[:16]}…</text>")
        for cell in range(_CELLS):
            hit = worst.get((label, cell))
            fill = "#8a8" if hit is None else "#c22" if hit.severity == "error" else "#da3"
            title = "" if hit is None else f"<title>entry {hit.stream_seq}: {escape(hit.message)}</title>"
            x = 150 + cell * wide
            drawn.append(f"<rect x='{x}' y='{y}' width='{wide - 1}' height='14' fill='{fill}'>{title}</rect>")
    return _svg("where the findings are", 20 + len(rows) * 18, drawn)


def _svg(about: str, height: int, drawn: Iterable[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{about}' viewBox='0 0 {_WIDTH} {height}'>"
        + "".join(drawn)
        + "</svg>"
    )
