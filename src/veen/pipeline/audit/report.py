"""An audit for people and programs: one page of text, one JSON document, one HTML file, and the tables."""

from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from veen.core.hubkeys import canonical_json
from veen.pipeline.audit.findings import CODES, Finding
from veen.pipeline.audit.html import page
from veen.pipeline.audit.previous import COMMITMENTS_FILE, CURSORS_FILE, FINDINGS_FILE, REPORT_FILE, VERDICT_FILE
from veen.pipeline.audit.run import AuditResult
from veen.storage.fs import OsFs

__all__ = ["document", "lines", "verdict", "write"]

_SHOWN: Final = 20  # findings on the page; the table has all


def document(result: AuditResult) -> dict[str, Any]:
    """The verdict as a value. Nothing in it depends on the engine, on the machine or on when it was made."""
    return {
        "kind": "veen.audit",
        "ver": 1,
        "ok": result.ok,
        "level": result.level,
        "hub_id": result.hub_id.hex() if result.hub_id else None,
        "counts": dict(result.counts),
        "labels": [
            {
                "label": one.label.hex(),
                "epoch": one.epoch,
                "stream_id": one.stream_id.hex() if one.stream_id else None,
                "size": one.size,
                "mmr_root": one.root.hex() if one.root else None,
                "resumed_at": one.resumed_at,
            }
            for one in result.labels
        ],
        "findings": {
            "errors": sum(found.severity == "error" for found in result.findings),
            "warnings": sum(found.severity == "warning" for found in result.findings),
            "codes": dict(sorted(Counter(found.code for found in result.findings).items())),
            "first": [_told(found) for found in _worst_first(result.findings)[:_SHOWN]],
        },
    }


def _told(found: Finding) -> dict[str, Any]:
    return {
        "label": found.label.hex() if found.label else None,
        "stream_seq": found.stream_seq,
        "path": found.path,
        "offset": found.offset,
        "code": found.code,
        "message": found.message,
        "severity": found.severity,
    }


def _worst_first(found: tuple[Finding, ...]) -> list[Finding]:
    return sorted(found, key=lambda finding: (not finding.is_evidence, finding.severity != "error"))


def verdict(told: dict[str, Any]) -> str:
    """One line."""
    counts, found = told["counts"], told["findings"]
    said = "the evidence is good" if told["ok"] else "the evidence is BAD"
    return (
        f"{said}: {counts['labels']} labels, {counts['entries']} entries, {counts['signatures']} signatures verified, "
        f"{found['errors']} errors, {found['warnings']} warnings"
    )


def lines(told: dict[str, Any]) -> Iterator[str]:
    """One page, from what `document` gave, be it now or in an earlier audit."""
    yield verdict(told)
    yield f"hub      {told['hub_id'] or 'unknown'}"
    yield f"level    {told['level']}" + ("" if told["level"] == "full" else "  (not every signature was verified)")
    for one in told["labels"]:
        root = one["mmr_root"] or "not known: see the findings"
        taken = f", of which {one['resumed_at']} were judged by an earlier audit" if one["resumed_at"] else ""
        yield f"label    {one['label']}  {one['size']} entries{taken}"
        yield f"         root {root}"
    for code, count in told["findings"]["codes"].items():
        yield f"finding  {count} x {code}: {CODES.get(code, '')}"
    for found in told["findings"]["first"]:
        entry = "" if found["stream_seq"] is None else f"entry {found['stream_seq']}: "
        where = f"{found['path']}, byte {found['offset']}"
        yield f"{found['severity']}: {where}: {entry}{found['message']} [{found['code']}]"
    more = int(told["findings"]["errors"]) + int(told["findings"]["warnings"]) - len(told["findings"]["first"])
    if more > 0:
        yield f"and {more} more in {FINDINGS_FILE}"


def write(result: AuditResult, directory: Path) -> dict[str, Any]:
    """Leave the result in `directory`, the verdict last: a directory with a verdict is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / VERDICT_FILE).unlink(missing_ok=True)
    told, fs = document(result), OsFs(directory)
    for name, table in (
        (FINDINGS_FILE, result.findings_table),
        (COMMITMENTS_FILE, result.commitments_table),
        (CURSORS_FILE, result.cursors_table),
    ):
        made = BytesIO()
        pq.write_table(table, made, compression="zstd")
        fs.replace(name, made.getvalue())
    fs.replace(REPORT_FILE, page(told, result.commitments, result.findings).encode())
    fs.replace(VERDICT_FILE, canonical_json(told))
    return told
