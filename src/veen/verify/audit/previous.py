"""Files of an audit in a directory, from which the next audit continues.

audit.json            the verdict; canonical JSON, the same for every engine
findings.parquet      empty when all is well
commitments.parquet   what was found true, by chunk
cursors.parquet       where writers stood after the last sealed chunks
report.html           the same for people
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from veen.core.errors import StatedError
from veen.core.verdict import Verdict
from veen.io.inside import FileRefused, check_inside, check_size, read_path
from veen.verify.audit import findings as found_tables
from veen.verify.audit.findings import LogFinding
from veen.verify.audit.tables import COMMITMENTS, CURSORS, Commitment, Cursor

VERDICT_FILE: Final = "audit.json"
FINDINGS_FILE: Final = "findings.parquet"
COMMITMENTS_FILE: Final = "commitments.parquet"
CURSORS_FILE: Final = "cursors.parquet"
REPORT_FILE: Final = "report.html"
_MAX_VERDICT_BYTES: Final = 256 << 20
_MAX_TABLE_BYTES: Final = 4 << 30


class PreviousError(StatedError):
    """A directory without a valid result of an earlier audit, or with that of another hub."""

    hint = "Give the directory that `veen audit run --out DIR` wrote for the same hub, or leave out --earlier."


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """An earlier audit that the caller trusts: entries that it confirmed are not read again."""

    verdict: Mapping[str, Any]
    findings: tuple[LogFinding, ...]
    commitments: Mapping[bytes, tuple[Commitment, ...]]
    cursors: Mapping[bytes, tuple[Cursor, ...]]
    findings_by_label: Mapping[bytes, tuple[LogFinding, ...]]

    @classmethod
    def of(
        cls,
        verdict: Mapping[str, Any],
        findings: Iterable[LogFinding],
        commitments: Iterable[Commitment],
        cursors: Iterable[Cursor],
    ) -> Self:
        by_label: dict[bytes, list[Commitment]] = {}
        stood: dict[bytes, list[Cursor]] = {}
        findings = tuple(findings)
        findings_by_label: dict[bytes, list[LogFinding]] = {}
        for finding in findings:
            if finding.label is not None:
                findings_by_label.setdefault(finding.label, []).append(finding)
        for row in commitments:
            by_label.setdefault(row.label, []).append(row)
        for cursor in cursors:
            stood.setdefault(cursor.label, []).append(cursor)
        return cls(
            verdict=verdict,
            findings=findings,
            findings_by_label={label: tuple(rows) for label, rows in findings_by_label.items()},
            commitments={label: tuple(rows) for label, rows in by_label.items()},
            cursors={label: tuple(rows) for label, rows in stood.items()},
        )

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the result of an earlier audit; raise PreviousError if it is invalid."""
        try:
            verdict = json.loads(read_path(directory / VERDICT_FILE, _MAX_VERDICT_BYTES))
            findings = found_tables.from_table(_table(directory / FINDINGS_FILE, found_tables.SCHEMA))
            rows = _table(directory / COMMITMENTS_FILE, COMMITMENTS).to_pylist()
            cursors = _table(directory / CURSORS_FILE, CURSORS).to_pylist()
            if type(verdict) is not dict or verdict.get("kind") != "veen.audit":
                raise PreviousError(f"{directory / VERDICT_FILE}: not the verdict of an audit")
            if "verdict" in verdict:
                Verdict.from_json(verdict["verdict"])
            commitments = [Commitment(**{**row, "peaks": tuple(row["peaks"])}) for row in rows]
            return cls.of(verdict, findings, commitments, (Cursor(**row) for row in cursors))
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException, FileRefused) as exc:
            raise PreviousError(f"{directory}: not the result of an audit: {exc}") from exc

    def check_hub(self, hub_id: bytes | None) -> None:
        hub_before = self.verdict.get("hub_id")
        if hub_before != (hub_id.hex() if hub_id else None):
            raise PreviousError(
                f"the earlier audit is of hub {hub_before}, this is {hub_id.hex() if hub_id else 'unknown'}"
            )

    def check_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Check that skipped entries were audited with equal inputs."""
        before = self.verdict.get("inputs")
        if type(before) is not dict:
            raise PreviousError(
                "the earlier audit does not say under which options it was made: a whole audit is needed, once"
            )
        for name in sorted({*before, *inputs}):
            if before.get(name) != inputs.get(name):
                was, now = (f"{name} {value.get(name)}" for value in (before, inputs))
                raise PreviousError(
                    f"the earlier audit was made with {was}, this one with {now}: a whole audit is needed"
                )

    @property
    def heads(self) -> dict[bytes, int]:
        """Return the last confirmed entry of each label."""
        return {label: self.head(label) for label in self.commitments}

    def resume_at(self, label: bytes) -> int:
        """Return the end of the last sealed chunk if the tree was known there, else 0."""
        own = next((cursor for cursor in self.cursors.get(label, ()) if cursor.client_id is None), None)
        if own is None or own.upto not in self.peaks(label):
            return 0
        return own.upto

    def head(self, label: bytes) -> int:
        """Return the last confirmed entry."""
        return max((row.end for row in self.commitments.get(label, ())), default=0)

    def peaks(self, label: bytes) -> dict[int, tuple[bytes, ...]]:
        return {row.end: row.peaks for row in self.commitments.get(label, ())}

    def marks(self, label: bytes) -> dict[int, bytes]:
        """Return earlier roots, which the log must still have."""
        return {row.end: row.root for row in self.commitments.get(label, ())}

    def state(self, label: bytes) -> tuple[tuple[Commitment, ...], tuple[Cursor, ...]]:
        upto = self.resume_at(label)
        return tuple(row for row in self.commitments.get(label, ()) if row.end <= upto), self.cursors.get(label, ())

    def findings_upto(self, label: bytes, last: int) -> tuple[LogFinding, ...]:
        """Return the findings about the part that is not read again."""
        return tuple(
            finding
            for finding in self.findings_by_label.get(label, ())
            if finding.stream_seq is not None and finding.stream_seq <= last
        )


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    check_inside(path.parent, path.name)
    check_size(path.stat().st_size, _MAX_TABLE_BYTES, str(path))
    table = pq.ParquetFile(path).read()  # one file: a name with `=` or a directory would mean a dataset
    if table.schema.names != schema.names:
        raise PreviousError(f"{path}: has the columns {table.schema.names}, expected {schema.names}")
    return table.cast(schema)
