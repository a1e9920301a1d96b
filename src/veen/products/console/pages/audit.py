"""Audit page: results of `veen audit run --out DIR`, and the range of each log that this console has read, as grids.

A cell of the second grid is a run of entries: read and verified by this console, or not read.

Equivocation page: two contradicting statements of one hub side by side, with the differences marked.

Settings page: the settings of this console and its limits. They are chosen at start.
"""

import json
from pathlib import Path
from typing import Any, Final

from veen import __version__
from veen.client.errors import HubRefused
from veen.client.transport.calls import is_not_found
from veen.core.errors import VeenError
from veen.core.objects.evidence import Equivocation
from veen.products.console.charts import GridCell, grid
from veen.products.console.errors import BadAddress
from veen.products.console.events import MAX_EVENTS
from veen.products.console.views import (
    CONSOLE,
    Console,
    DigestCell,
    LinkCell,
    MarkCell,
    PageView,
    Query,
    Section,
    fault_of,
)
from veen.products.console.writes import MAX_FORM_BYTES, MAX_UPLOAD_BYTES, compare_fields

_CELLS: Final = 32
_MAX_ENTRIES: Final = 2_000  # of one stream, that a visit of the page reads
_MAX_VERDICT: Final = 16 << 20
_VERDICT: Final = "verdict.json"


async def audit(console: Console, query: Query) -> PageView:
    runs = [_verdict(path) for path in console.local.audits]
    rows = [await _read(console, keys) for keys in console.shown_streams()]
    rows = [row for row in rows if row["head"] or row["error"]]
    failed = [row for row in rows if row["error"] is not None and row["error"]["diverged"]]
    sections = [section for run in runs for section in _run_sections(run)]
    sections.append(
        Section(
            title="Verified by this console, now",
            note=f"Each row is a stream, each cell a part of its entries: ✓ read and verified now, ✕ it does not "
            f"verify, empty: not read. At most the newest {_MAX_ENTRIES} entries of a stream are read for this page.",
            kind="bad" if failed else "",
            picture=grid(
                "Verified by this console",
                f"{len(rows)} streams; {len(failed)} do not verify.",
                {row["stream"]: _cells(row) for row in rows},
                ("first entry", "newest entry"),
            ),
            columns=("Stream", "Entries", "Read now", "Result"),
            rows=tuple(
                (
                    LinkCell(row["stream"], f"/stream/{row['stream_id']}"),
                    row["head"],
                    f"{row['from_seq']} to {row['head']}" if row["head"] else "none",
                    MarkCell("verified", "good")
                    if row["error"] is None
                    else MarkCell(f"{row['error']['code']}: {row['error']['cause']}", "bad"),
                )
                for row in rows
            ),
        )
    )
    bad_run = any(not run["ok"] for run in runs)
    return PageView(
        template="report.html",
        title="Audit runs",
        command="veen audit run DATA_DIR --out DIR",
        data={"runs": runs, "logs": rows},
        verified_by=CONSOLE if rows and not failed else None,
        verified_what="signatures, order and roots of the entries that are marked; audits are shown as they are."
        if rows and not failed
        else "an answer of the hub does not verify."
        if failed
        else "nothing was written to the streams of your keyring.",
        sections=tuple(sections),
        failed=bool(failed) or bad_run,
    )


async def _read(console: Console, keys: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "stream": str(keys), "stream_id": keys.stream_id.hex(), "head": 0, "from_seq": 1, "error": None,
    }  # fmt: skip
    try:
        for checkpoint in await console.checkpoints_of(keys):
            row["head"] = checkpoint.upto_seq
            row["from_seq"] = max(checkpoint.upto_seq - _MAX_ENTRIES + 1, 1)
            async for _ in console.client.read(
                keys, from_seq=row["from_seq"], to_seq=checkpoint.upto_seq, epoch=checkpoint.epoch, open=False
            ):
                pass
    except VeenError as exc:
        if not (isinstance(exc, HubRefused) and is_not_found(exc)):
            console.note_failure(exc, str(keys))
            row["error"] = fault_of(exc)
            row["bad_seq"] = getattr(exc, "seq", None)
    return row


def _cells(row: dict[str, Any]) -> list[GridCell]:
    head, first = max(row["head"], 1), row["from_seq"]
    count = min(_CELLS, head)
    cells = []
    for number in range(count):
        start, end = number * head // count + 1, (number + 1) * head // count
        bad = row["error"] is not None and (row.get("bad_seq") is None or start <= row["bad_seq"] <= end)
        words = f"entries {start} to {end}"
        if bad:
            cells.append(GridCell(0, f"{words}: do not verify", "bad", "✕"))
        elif end < first or row["error"] is not None:
            cells.append(GridCell(0, f"{words}: not read", "muted"))
        else:
            cells.append(GridCell(0, f"{words}: verified", "good", "✓"))
    return cells


def _verdict(path: Path) -> dict[str, Any]:
    file = path / _VERDICT if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            value = json.loads(stream.read(_MAX_VERDICT))
    except (OSError, ValueError, RecursionError) as exc:
        raise BadAddress(f"{file}: no verdict of an audit can be read") from exc
    if not isinstance(value, dict) or value.get("kind") != "veen.audit":
        raise BadAddress(f"{file}: not a verdict of veen audit run")
    return {"directory": str(path), **value}


def _run_sections(run: dict[str, Any]) -> list[Section]:
    findings = run["findings"]["first"]
    bad = {finding["label"] for finding in findings if finding["severity"] == "error"}
    codes = list(run["findings"]["codes"]) or ["all checks"]
    rows = {
        f"{label['label'][:16]}…": [
            GridCell(0, f"{code}: found here", "bad", "✕")
            if any(finding["label"] == label["label"] and finding["code"] == code for finding in findings)
            else GridCell(0, f"{code}: nothing found", "good", "✓")
            for code in codes
        ]
        for label in run["labels"][:100]
    }
    return [
        Section(
            title=f"Audit in {run['directory']}",
            kind="" if run["ok"] else "bad",
            facts=(
                (
                    "Verdict",
                    MarkCell("the evidence is good", "good") if run["ok"] else MarkCell("the evidence is BAD", "bad"),
                ),
                ("Level", run["level"]),
                ("Keys", run["keys"]),
                ("Hub", DigestCell(run["hub_id"]) if run["hub_id"] else None),
                ("Labels with errors", len(bad - {None})),
                *((name, count) for name, count in run["counts"].items()),
            ),
            picture=grid("Labels and checks", f"{len(rows)} labels × {len(codes)} codes.", rows, (codes[0], codes[-1])),
            columns=("Label", "Entry", "Code", "What"),
            rows=tuple(
                (
                    None if finding["label"] is None else DigestCell(finding["label"]),
                    finding["stream_seq"],
                    MarkCell(finding["code"], "bad" if finding["severity"] == "error" else "partly"),
                    finding["message"],
                )
                for finding in findings
            ),
            empty="No findings.",
        )
    ]


_MAX_FILES: Final = 50
_MAX_BYTES: Final = 1 << 20


async def equivocation(console: Console, query: Query) -> PageView:
    reports = [_verify_file(console, name, data) for name, data in _files(console.local.evidence)]
    reports += [_verify_file(console, "met by this console", exc.evidence.to_bytes()) for exc in console.equivocations]
    sections: list[Section] = []
    for report in reports:
        sections += report_sections(report)
    good = [report for report in reports if report["verdict"] == "verified"]
    return PageView(
        template="report.html",
        title="Equivocation",
        command="veen equivocation show FILE",
        data={"reports": reports},
        verified_by=CONSOLE if good else None,
        verified_what=f"{len(good)} of {len(reports)} reports prove that a hub signed two histories."
        if reports
        else "no report is known: no command of this machine and not this console met a hub with two histories.",
        sections=tuple(sections),
    )


def _files(directory: Path | None) -> list[tuple[str, bytes]]:
    if directory is None or not directory.is_dir():
        return []
    paths = sorted(path for path in directory.iterdir() if path.is_file() and path.stat().st_size <= _MAX_BYTES)
    return [(path.name, path.read_bytes()) for path in paths[:_MAX_FILES]]


def _verify_file(console: Console, name: str, data: bytes) -> dict[str, Any]:
    try:
        evidence = Equivocation.from_bytes(data)
        evidence.verify()
    except VeenError as exc:
        return {"file": name, "verdict": "failed", "error": fault_of(exc), "fields": [], "hub_pks": []}
    pinned = {key.hub_pk for key in console.pin.keys}
    return {
        "file": name,
        "verdict": "verified",
        "error": None,
        "of_this_hub": bool(pinned & set(evidence.hub_pks)),
        "hub_pks": [key.hex() for key in evidence.hub_pks],
        "kinds": [evidence.first.KIND, evidence.second.KIND],
        "fields": compare_fields(evidence),
    }


def report_sections(report: dict[str, Any]) -> list[Section]:
    if report["verdict"] != "verified":
        error = report["error"]
        return [
            Section(
                title=f"{report['file']}: proves nothing",
                facts=(("Code", error["code"]), ("Why", error["cause"])),
            )
        ]
    whose = "the hub of this console" if report["of_this_hub"] else "another hub than that of this console"
    return [
        Section(
            title=f"{report['file']}: two statements of {whose}",
            kind="bad",
            facts=(
                ("Verdict", MarkCell("✕ it convicts the hub: both are signed, and both cannot be true", "bad")),
                ("Signed by", DigestCell(report["hub_pks"][0])),
            ),
            columns=("Field", f"First: {report['kinds'][0]}", f"Second: {report['kinds'][1]}", ""),
            rows=tuple(
                (
                    field["name"],
                    _value(field["first"]),
                    _value(field["second"]),
                    MarkCell("differs", "bad") if field["differs"] else "",
                )
                for field in report["fields"]
            ),
        )
    ]


def _value(value: Any) -> Any:
    return DigestCell(value) if isinstance(value, str) and len(value) > 16 else value


async def settings(console: Console, query: Query) -> PageView:
    local = console.local
    running = {
        "hub": console.url,
        "identity": console.identity,
        "pin": console.pin.to_text(),
        "release": __version__,
        "streams": len(console.keyring.entries),
        "data_dir": None if local.data_dir is None else str(local.data_dir),
        "audits": [str(path) for path in local.audits],
        "witnesses": None if local.witness_policy is None else list(local.witness_policy.witnesses),
        "write": console.writer is not None,
        **local.settings,
    }
    bounds = {"events_of_a_fold": MAX_EVENTS, "upload_bytes": MAX_UPLOAD_BYTES}
    return PageView(
        template="report.html",
        title="Settings",
        command="veen config show",
        data={"settings": running, "bounds": bounds},
        verified_by=None,
        verified_what="these are settings of this machine, not facts of a log.",
        sections=(
            Section(
                title="This console",
                facts=(
                    ("Hub", console.url),
                    ("Identity", console.identity),
                    ("Pinned key", DigestCell(console.pin.newest.hub_pk.hex())),
                    ("Streams of the keyring", len(console.keyring.entries)),
                    ("Data directory", running["data_dir"] or "not given: queries are not answered here"),
                    ("Audits", ", ".join(map(str, local.audits)) or "none given"),
                    (
                        "Writing",
                        "never: this console is read-only"
                        if console.writer is None
                        else f"as {console.identity}: messages, anchors, revocations (--allow-write)",
                    ),
                    (
                        "Witness policy",
                        "none: cosignatures are not verified"
                        if local.witness_policy is None
                        else f"{len(local.witness_policy.witnesses)} witnesses",
                    ),
                    *local.settings.items(),
                ),
            ),
            Section(
                title="Appearance",
                note="Light or dark follows the setting of your browser or system. The browser stores nothing but the "
                "session cookie.",
            ),
            Section(
                title="Bounds",
                columns=("What", "At most"),
                rows=(
                    ("entries of a stream that a page folds", f"{MAX_EVENTS:,}"),
                    ("size of a file to verify", f"{MAX_UPLOAD_BYTES // 1024**2} MiB"),
                    ("size of a message to send", f"{MAX_FORM_BYTES // 1024} KiB as a form"),
                ),
            ),
        ),
    )
