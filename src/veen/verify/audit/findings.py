"""The findings of an audit: their codes, their order, and the Arrow table of them (empty for a good log).

The order of findings, and so the bytes of the table, depends on the log alone, not on the engine.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from veen.storage.findings import CONTROL_RULES, LogFinding, Severity

__all__ = [
    "CODES",
    "SCHEMA",
    "LogFinding",
    "from_table",
    "merge_runs",
    "place_finding",
    "reason_of",
    "sort_findings",
    "to_table",
    "without_control",
]

CODES: Final = {
    "frame": "no whole frame is where one must be",
    "entry_hash": "the bytes of an entry are not those that were written (spec §4.8.1)",
    "format": "a MSG or RECEIPT is not canonical CBOR (I10)",
    "place": "an entry lies where another one belongs, or belongs to another label",
    "ct_hash": "ct_hash is not the hash of the ciphertext (I1)",
    "leaf_hash": "leaf_hash is not that of the message (I2)",
    "mmr_root": "a receipt's root is not the root after its entry (I3)",
    "profile": "an entry has a profile that is not supported (I4)",
    "prev_ack": "prev_ack names an entry that did not exist yet, or goes back (I6)",
    "client_seq": "the sequence of a writer has a hole or a double (I8, I9)",
    "size": "a message is larger than the limits of its time, or its length fields do not hold (I11)",
    "epoch": "an entry lies outside the epoch of its label (I12)",
    "msg_sig": "a message is not signed by its client_id",
    "hub_sig": "a receipt is not signed by the hub",
    "hub_key": "a receipt is signed by a key that was not valid at its hub_ts (D-41)",
    "capability": "an entry was not authorised: no token, another's, expired, or for another stream",
    "time": "hub_ts runs backwards (D-28)",
    "gap": "entries are in no file, although later ones are",
    "cut": "the log was longer: something speaks of entries that are gone",
    "missing": "a file that must be there is not",
    "seal": "a checkpoint contradicts its entries or is not signed as it must be",
    "rebuildable": "a file that follows from the log is wrong: `veen hub rebuild-index` makes it again",
    "limits": "a chunk does not end where the limits of its time demand (D-70)",
    "retention": "an erased chunk is not as the record of its erasure says (D-74)",
    "control": "the control journal is broken, or contradicts the log",
    "identity": "the identity of the hub is missing, broken or not as the control journal tells",
    "pin": "the pinned keys do not vouch for the keys of this log: it is another hub's, or forged",
    "journal": "the write-ahead journal is broken",
    "anchor": "the local chain of anchors is broken",
    "witness": "the witnesses of the policy do not vouch for this log",
    "policy": "the log may be good, and fewer witnesses cosigned it than the policy asks for",
    "history": "the log does not continue what an earlier audit has seen",
    "unverified": "could not be checked, because of damage that is told elsewhere",
    "unknown": "a file that no hub writes",
    "leftover": "of a step that was cut off; harmless",
}

_CONTROL_RULES: Final = CONTROL_RULES | {"size", "epoch"}  # an audit also judges these by the limits of their time
_VALUES: Final = re.compile(r"[0-9a-f]{8,}|[0-9]+")  # by which the messages of one fault differ

SCHEMA: Final = pa.schema(
    [
        pa.field("label", pa.binary()),
        pa.field("stream_seq", pa.int64()),
        pa.field("path", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("severity", pa.string(), nullable=False),
    ]
)


def _key(finding: LogFinding) -> tuple[bytes, int, str, int, str, str]:
    return (
        finding.label or b"",
        finding.stream_seq or 0,
        finding.path,
        finding.offset,
        finding.code,
        finding.message,
    )


def sort_findings(findings: Iterable[LogFinding]) -> tuple[LogFinding, ...]:
    """Return the findings by position, without duplicates."""
    return tuple(sorted(set(findings), key=_key))


def merge_runs(findings: Iterable[LogFinding]) -> Iterator[LogFinding]:
    """Merge runs of neighbouring entries with the same fault, so that a bad chunk is not a thousand rows."""
    runs: dict[tuple[str, Severity, str], tuple[LogFinding, int]] = {}
    for finding in findings:
        key, seq = (finding.code, finding.severity, _VALUES.sub("#", finding.message)), finding.stream_seq
        if seq is None:
            yield finding
            continue
        run = runs.get(key)
        if run is not None and seq in (run[1], run[1] + 1):
            runs[key] = (run[0], seq)
            continue
        if run is not None:
            yield _run_finding(*run)
        runs[key] = (finding, seq)
    for run in runs.values():
        yield _run_finding(*run)


def _run_finding(first: LogFinding, last: int) -> LogFinding:
    if first.stream_seq in (None, last):
        return first
    return replace(first, message=f"{first.message}; so it is up to entry {last}")


def place_finding(finding: LogFinding, label: bytes | None = None, stream_seq: int | None = None) -> LogFinding:
    """Convert a finding of a rule that both verifiers share to one of an audit, with its position and code."""
    code = "frame" if finding.code == "entry" else finding.code
    return replace(finding, label=label, stream_seq=stream_seq, code=code)


def without_control(finding: LogFinding) -> LogFinding:
    """Return the finding for a log with an incomplete control journal: rules that need its records are not checked."""
    if finding.severity == "warning" or finding.code not in _CONTROL_RULES:
        return finding
    message = f"{finding.message}; records of the control journal are missing"
    return replace(finding, code="unverified", message=message, severity="warning")


def reason_of(exc: Exception) -> str:
    """Return the reason why a file cannot be opened, without the path of this machine."""
    return (exc.strerror if isinstance(exc, OSError) else None) or "not a regular file"


def to_table(findings: Iterable[LogFinding]) -> pa.Table:
    rows = [{name: getattr(finding, name) for name in SCHEMA.names} for finding in sort_findings(findings)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> tuple[LogFinding, ...]:
    return tuple(LogFinding(**row) for row in table.select(SCHEMA.names).to_pylist())
