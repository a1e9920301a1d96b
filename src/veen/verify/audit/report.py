"""Reports of an audit: one page of text, one JSON document, one HTML file, and the tables."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from veen.core.objects.identity import canonical_json
from veen.core.verdict import Because, Outcome, Reason, Verdict
from veen.io.local import OsFs
from veen.verify.audit.context import SIGNATURES
from veen.verify.audit.findings import CODES, LogFinding
from veen.verify.audit.html import ReportContext, page
from veen.verify.audit.outer import WitnessVerdict
from veen.verify.audit.previous import COMMITMENTS_FILE, CURSORS_FILE, FINDINGS_FILE, REPORT_FILE, VERDICT_FILE
from veen.verify.audit.run import AuditResult

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
