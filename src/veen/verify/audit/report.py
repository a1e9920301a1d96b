"""Reports of an audit: one page of text, one JSON document, one HTML file, and the tables.

The report of an audit as one HTML file: no script, no font, no picture from anywhere else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from veen.core.objects.identity import canonical_json
from veen.core.verdict import Because, Outcome, Reason, Verdict
from veen.io.local import OsFs
from veen.verify.audit.context import SIGNATURES
from veen.verify.audit.findings import CODES, LogFinding
from veen.verify.audit.outer import WitnessVerdict
from veen.verify.audit.previous import COMMITMENTS_FILE, CURSORS_FILE, FINDINGS_FILE, REPORT_FILE, VERDICT_FILE
from veen.verify.audit.run import AuditResult
from veen.verify.audit.tables import Commitment

_WIDTH: Final = 760
_HEIGHT: Final = 240
_LEFT: Final = 70
_BOTTOM: Final = 28
_CELLS: Final = 60
_MAX_CURVES: Final = 12
_MAX_ROWS: Final = 500
_MAX_TS: Final = 253_402_300_799  # the last second of the year 9999
# No red and no green among the curves: those are the colours of a verdict.
_COLOURS: Final = ("#0b5cad", "#8a5a00", "#6a3fa0", "#00757a", "#a0408a", "#555555")
_DASHES: Final = ("", "6 3", "2 3")
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem;color:#1b1b1b;background:#fff}
header{display:flex;justify-content:space-between;gap:1rem;font-size:13px;color:#555;border-bottom:1px solid #ddd}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.good{color:#11622f}.bad{color:#a11}.warn{color:#8a5a00}
table{border-collapse:collapse;width:100%;font-size:13px}td,th{text-align:left;padding:.25rem .5rem;
border-bottom:1px solid #ddd;vertical-align:top}code{font-size:12px;word-break:break-all}svg{width:100%;height:auto}
ul{padding-left:1.2rem}.axis{stroke:#888;stroke-width:1}.curve{fill:none;stroke-width:2}.chunk{fill-opacity:.25}
.note{font-size:11px;fill:#555}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}td,th,header{border-color:#444}
.note{fill:#aaa}header{color:#aaa}.good{color:#6fcf8f}.bad{color:#ff8080}svg{filter:brightness(1.35)}}
@media print{body{margin:0;max-width:none;color:#000;background:#fff}header{color:#000}
tr,svg{break-inside:avoid}h2{break-after:avoid}thead{display:table-header-group}@page{margin:18mm 15mm}}
"""


_TITLES: Final = {  # title, class and mark
    Outcome.GOOD: ("The evidence is good", "good", "\u2713"),
    Outcome.INCOMPLETE: ("The verdict is incomplete", "warn", "?"),
    Outcome.BAD: ("The evidence is bad", "bad", "\u2717"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """Data of a report that differs from run to run. No result depends on it."""

    made_at: str = ""  # UTC
    version: str = ""
    command: str = ""
    names: Mapping[bytes, str] = field(default_factory=dict)  # label -> stream, where whoever ran it knows

    def name_of(self, label: bytes) -> str:
        return self.names.get(label) or f"{label.hex()[:16]}\u2026"


def page(
    verdict: dict[str, Any],
    outcome: Verdict,
    keys_line: str,
    commitments: Sequence[Commitment],
    findings: Sequence[LogFinding],
    about: ReportContext | None = None,
) -> str:
    """Return the whole page; equal results, and equal `about`, give equal bytes."""
    about = about or ReportContext()
    title, style, mark = _TITLES[outcome.value]
    more = f"<p>The first {_MAX_ROWS} of {len(findings)}; the table has all.</p>" if len(findings) > _MAX_ROWS else ""
    parts = [
        f"<header><span>VEEN audit</span><span>hub {escape((verdict['hub_id'] or 'unknown')[:16])}</span>"
        f"<span>{escape(about.made_at)}</span></header>",
        f"<p class='{'bad' if verdict['keys'] == 'not pinned' else 'good'}'>{escape(keys_line)}</p>",
        f"<h1 class='{style}'>{mark} {title}</h1>",
        "<ul>" + "".join(f"<li>{escape(reason.text)}</li>" for reason in outcome.reasons) + "</ul>"
        if outcome.reasons
        else "",
        "<h2>What was compared</h2>",
        _table(("stream", "label", "read up to", "head", "stated by", "checked under"), _compare_rows(outcome, about)),
        "<h2>Findings</h2>",
        _grid(verdict, findings, about) if findings else "<p class='good'>None.</p>",
        _table(("severity", "entry", "file", "byte", "what"), _render_findings(findings)) if findings else "",
        more,
        "<h2>What was checked</h2>",
        _table(("", ""), _facts(verdict, about)),
        "<h2>What was not checked</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in _list_unchecked(verdict)) + "</ul>",
        "<h2>Entries over time</h2>",
        _growth(commitments, about),
        "<h2>Labels</h2>",
        _table(("stream", "label", "entries", "root"), _labels(verdict, about)),
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>VEEN audit: {title.lower()}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


_LEVELS: Final = {
    "full": "full: every hash, every root and every signature",
    "sampled": "sampled: every hash and every root, a sample of the signatures",
    "structure": "structure: every hash and every root, no signature",
}


def _facts(verdict: dict[str, Any], about: ReportContext) -> Iterable[tuple[str, str]]:
    counts = verdict["counts"]
    for name, text in (("made", about.made_at), ("by", about.version), ("command", about.command)):
        if text:
            yield name, f"<code>{escape(text)}</code>"
    yield "hub", f"<code>{verdict['hub_id'] or 'unknown'}</code>"
    yield "hub key", f"<code>{escape(verdict['pin'] or 'not pinned')}</code>"
    yield "level", escape(_LEVELS.get(str(verdict["level"]), str(verdict["level"])))
    for name in sorted(counts):
        yield name.replace("_", " "), f"{counts[name]:,}"
    yield "errors", f"{verdict['findings']['errors']:,}"
    yield "warnings", f"{verdict['findings']['warnings']:,}"


def _list_unchecked(verdict: dict[str, Any]) -> Iterable[str]:
    """Yield what a reader might assume although it was not checked."""
    if verdict["keys"] == "not pinned":
        yield "Whose log it is: no key was pinned, so the directory itself said which keys are its hub's."
    if verdict["level"] == "sampled":
        yield "Signatures outside the sample."
    elif verdict["level"] == "structure":
        yield "All signatures of authors and of the hub."
    for row in verdict["labels"]:
        if row["resumed_at"]:
            yield f"The first {row['resumed_at']:,} entries of label {row['label'][:16]}\u2026: an earlier audit did."
    yield "What the messages say: they are sealed, and were not opened."
    yield "Entries after the last one here, and labels that the hub did not hand over."
    yield "Whether the hub shows others another log: compare two copies with veen audit diff."


def _compare_rows(outcome: Verdict, about: ReportContext) -> Iterable[tuple[str, ...]]:
    for row in outcome.compared[:_MAX_ROWS]:
        name = about.names.get(bytes.fromhex(row.log))
        style = "" if row.is_whole else " class='bad'"
        yield (
            escape(name or "not known here"),
            f"<code>{escape(row.log)}</code>",
            f"<span{style}>{row.read:,}</span>",
            "none" if row.head is None else f"{row.head:,}",
            escape(row.stated_by.value),
            f"<code>{escape(row.identity or 'keys that the directory names')}</code>",
        )


def _labels(verdict: dict[str, Any], about: ReportContext) -> Iterable[tuple[str, ...]]:
    for row in verdict["labels"]:
        name = about.names.get(bytes.fromhex(row["label"]))
        root = f"<code>{row['mmr_root']}</code>" if row["mmr_root"] else "<span class='bad'>not known</span>"
        yield escape(name or "not known here"), f"<code>{row['label']}</code>", f"{row['size']:,}", root


def _render_findings(findings: Sequence[LogFinding]) -> Iterable[tuple[str, ...]]:
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
    """Return a table of cells that are HTML already."""
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>" if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


# --- pictures ------------------------------------------------------------------------------------------------


def _growth(commitments: Sequence[Commitment], about: ReportContext) -> str:
    """Return a diagram of the number of entries of each label, in integers, so that equal logs give equal bytes.

    Of a chunk the times of the first and of the last entry are known: the log grew between them in an unknown way,
    which is a box and not a line. Between two chunks nothing was written, which is a level line.
    """
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
        colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
        boxes, path, reached = "", "", 0
        for row in curves[label]:
            (left, low), (right, top) = at(row.first_ts, row.start - 1), at(row.last_ts, row.end)
            path += f"{'L' if reached else 'M'}{left} {low}M{right} {top}"
            reached = row.end
            boxes += (
                f"<rect class='chunk' x='{left}' y='{top}' width='{max(2, right - left)}' height='{max(2, low - top)}'"
                f" fill='{colour}' stroke='{colour}'/>"
            )
        x, y = at(first + span, reached)
        path += f"L{x} {y}"
        drawn.append(
            f"<g><title>{escape(about.name_of(label))}: {reached} entries</title>{boxes}"
            f"<path class='curve' stroke='{colour}' stroke-dasharray='{dash}' d='{path}'/></g>"
        )
    drawn += [_key(number, about.name_of(label), curves[label][-1].end) for number, label in enumerate(shown)]
    note = f" The {_MAX_CURVES} longest of {len(curves)} labels." if len(curves) > len(shown) else ""
    words = (
        "A box is a chunk, from its first entry to its last: the log grew within it, when exactly is not drawn. "
        f"A level line: nothing was written.{note}"
    )
    height = _HEIGHT + 10 + (len(shown) + 1) // 2 * 18
    return _svg("entries of each label over time", height, drawn) + f"<p>{words}</p>"


def _key(number: int, name: str, entries: int) -> str:
    """Return the legend, in two columns."""
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
    x, y = _LEFT + number % 2 * (_WIDTH // 2), _HEIGHT + 14 + number // 2 * 18
    return (
        f"<path class='curve' stroke='{colour}' stroke-dasharray='{dash}' d='M{x} {y - 4}H{x + 28}'/>"
        f"<text class='note' x='{x + 36}' y='{y}'>{escape(name[:40])}, {entries:,} entries</text>"
    )


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


def _grid(verdict: dict[str, Any], findings: Sequence[LogFinding], about: ReportContext) -> str:
    """Return labels by position: a red cell has an error, an amber one a warning."""
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
        drawn.append(f"<text class='note' x='0' y='{y + 11}'>{escape(about.name_of(bytes.fromhex(label))[:22])}</text>")
        for cell in range(_CELLS):
            hit = worst.get((label, cell))
            fill = "#8a8" if hit is None else "#c22" if hit.severity == "error" else "#da3"
            title = "" if hit is None else f"<title>entry {hit.stream_seq}: {escape(hit.message)}</title>"
            x = 150 + cell * wide
            drawn.append(f"<rect x='{x}' y='{y}' width='{wide - 1}' height='14' fill='{fill}'>{title}</rect>")
    drawn += [_swatch(number, *row) for number, row in enumerate(_SWATCHES)]
    y = 26 + len(rows) * 18
    legend = f"<g transform='translate(150 {y})'>" + "".join(drawn[-len(_SWATCHES) :]) + "</g>"
    return _svg("where the findings are, from the first entry to the last", y + 20, [*drawn[: -len(_SWATCHES)], legend])


_SWATCHES: Final = (("#c22", "error"), ("#da3", "warning"), ("#8a8", "nothing found"))


def _swatch(number: int, fill: str, words: str) -> str:
    x = number * 120
    return (
        f"<rect x='{x}' y='0' width='12' height='12' fill='{fill}'/>"
        f"<text class='note' x='{x + 18}' y='10'>{words}</text>"
    )


def _svg(about: str, height: int, drawn: Iterable[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' role='img' aria-label='{about}' viewBox='0 0 {_WIDTH} {height}'>"
        + "".join(drawn)
        + "</svg>"
    )


_SHOWN: Final = 20  # findings on the page; the table has all


def document(result: AuditResult) -> dict[str, Any]:
    """Return the verdict as a value that does not depend on the engine, the machine or the time."""
    return {
        "keys": "pinned" if result.pin else "given" if result.identity_given else "not pinned",
        "pin": result.pin.to_text() if result.pin else None,
        "kind": "veen.audit",
        "ver": 1,
        "ok": result.ok,
        "verdict": result.verdict.to_json(),
        "inputs": dict(result.inputs),
        "level": result.level,
        "hub_id": result.hub_id.hex() if result.hub_id else None,
        "counts": dict(result.counts),
        **({} if result.witnesses is None else {"witnesses": _witnesses(result.witnesses)}),
        "labels": [
            {
                "label": label.label.hex(),
                "epoch": label.epoch,
                "stream_id": label.stream_id.hex() if label.stream_id else None,
                "size": label.size,
                "mmr_root": label.root.hex() if label.root else None,
                "resumed_at": label.resumed_at,
            }
            for label in result.labels
        ],
        "findings": {
            "errors": sum(finding.severity == "error" for finding in result.findings),
            "warnings": sum(finding.severity == "warning" for finding in result.findings),
            "codes": dict(sorted(Counter(finding.code for finding in result.findings).items())),
            "first": [_value_of_finding(finding) for finding in _worst_first(result.findings)[:_SHOWN]],
        },
    }


def _witnesses(verdict: WitnessVerdict) -> dict[str, Any]:
    return {
        "origin": verdict.origin,
        "leaves": verdict.size,
        "cosigned_by": dict(sorted(verdict.cosigned.items())),
        "entries_covered": verdict.covered,
        "entries_behind": verdict.entries - verdict.covered,
    }


def _value_of_finding(finding: LogFinding) -> dict[str, Any]:
    return {
        "label": finding.label.hex() if finding.label else None,
        "stream_seq": finding.stream_seq,
        "path": finding.path,
        "offset": finding.offset,
        "code": finding.code,
        "message": finding.message,
        "severity": finding.severity,
    }


def _worst_first(findings: tuple[LogFinding, ...]) -> list[LogFinding]:
    """Sort findings: a wrong hub key first, then evidence, errors and warnings."""
    return sorted(
        findings, key=lambda finding: (finding.code != "pin", not finding.is_evidence, finding.severity != "error")
    )


def verdict_of(summary: Mapping[str, Any]) -> Verdict:
    """Return the verdict of an audit from a `document`, of this or an earlier version."""
    if "verdict" in summary:
        verdict = Verdict.from_json(summary["verdict"])
        signatures = SIGNATURES[summary["level"]]  # a verdict of an earlier version says nothing of them
        return replace(verdict, compared=tuple(replace(row, signatures=signatures) for row in verdict.compared))
    reasons = [Reason(Because.COVERAGE, "the stored verdict does not say what was compared")]
    if not summary["ok"]:
        first = next((finding["message"] for finding in summary["findings"]["first"]), "the stored verdict is bad")
        reasons.insert(0, Reason(Because.EVIDENCE, first))
    return Verdict((), tuple(reasons))


def headline(summary: dict[str, Any]) -> str:
    """Return the result in one line."""
    counts, findings = summary["counts"], summary["findings"]
    verdict = verdict_of(summary)
    said = {
        Outcome.GOOD: f"the evidence is good{verdict.level}",
        Outcome.BAD: "the evidence is BAD",
        Outcome.INCOMPLETE: f"the verdict is incomplete{verdict.level}",
    }[verdict.value]
    return (
        f"{said}: {counts['labels']} labels, {counts['entries']} entries, {counts['signatures']} signatures verified, "
        f"{findings['errors']} errors, {findings['warnings']} warnings"
    )


def keys_line(summary: dict[str, Any]) -> str:
    """Return the first line of every report: the source of the keys that the log was checked with."""
    match summary.get("keys"):
        case "pinned":
            return f"keys pinned: {summary['pin']}"
        case "given":
            return "keys given: by an identity record from elsewhere"
        case _:
            return "keys not pinned: the directory itself says which keys are its hub's, so this may be any hub's log"


def lines(summary: dict[str, Any]) -> Iterator[str]:
    """Return one page of text from a `document`, of this or an earlier version."""
    yield keys_line(summary)
    yield headline(summary)
    yield f"hub      {summary['hub_id'] or 'unknown'}"
    yield f"level    {summary['level']}" + (
        "" if summary["level"] == "full" else "  (not every signature was verified)"
    )
    if (vouched := summary.get("witnesses")) is not None:
        names = ", ".join(vouched["cosigned_by"]) or "nobody, and the policy asks for nobody"
        yield f"witness  {vouched['entries_covered']} entries in the list cosigned by {names}"
    for label in summary["labels"]:
        root = label["mmr_root"] or "not known: see the findings"
        resumed = f", of which {label['resumed_at']} were judged by an earlier audit" if label["resumed_at"] else ""
        yield f"label    {label['label']}  {label['size']} entries{resumed}"
        yield f"         root {root}"
    for code, count in summary["findings"]["codes"].items():
        yield f"finding  {count} x {code}: {CODES.get(code, '')}"
    for finding in summary["findings"]["first"]:
        entry = "" if finding["stream_seq"] is None else f"entry {finding['stream_seq']}: "
        where = f"{finding['path']}, byte {finding['offset']}"
        yield f"{finding['severity']}: {where}: {entry}{finding['message']} [{finding['code']}]"
    more = int(summary["findings"]["errors"]) + int(summary["findings"]["warnings"]) - len(summary["findings"]["first"])
    if more > 0:
        yield f"and {more} more in {FINDINGS_FILE}"


def audit_lines(result: AuditResult) -> Iterator[str]:
    """Yield the page that `veen audit run` prints."""
    return lines(document(result))


def write(result: AuditResult, directory: Path, about: ReportContext | None = None) -> dict[str, Any]:
    """Write the result to `directory`, the verdict last: a directory with a verdict is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / VERDICT_FILE).unlink(missing_ok=True)
    summary, fs = document(result), OsFs(directory)
    for name, table in (
        (FINDINGS_FILE, result.findings_table),
        (COMMITMENTS_FILE, result.commitments_table),
        (CURSORS_FILE, result.cursors_table),
    ):
        buffer = BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        fs.replace(name, buffer.getvalue())
    fs.replace(
        REPORT_FILE,
        page(summary, result.verdict, keys_line(summary), result.commitments, result.findings, about).encode(),
    )
    fs.replace(VERDICT_FILE, canonical_json(summary))
    return summary
