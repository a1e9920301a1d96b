"""Equivocation page: two contradicting statements of one hub side by side, with the differences marked."""

from pathlib import Path
from typing import Any, Final

from veen.core.errors import VeenError
from veen.core.objects.evidence import Equivocation
from veen.products.console.report import DigestCell, MarkCell, Section
from veen.products.console.uploads import compare_fields
from veen.products.console.views import CONSOLE, Console, PageView, Query, fault_of

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
