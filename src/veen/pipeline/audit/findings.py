"""What an audit finds, as values and as an Arrow table (empty when all is well).

The order of findings, and so the bytes of the table, depends on the log alone: not on who found them first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa

from veen.storage import findings as stored

__all__ = ["CODES", "SCHEMA", "Finding", "Severity", "collapsed", "from_storage", "from_table", "ordered", "to_table"]

Severity = Literal["error", "warning"]

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
    "journal": "the write-ahead journal is broken",
    "anchor": "the local chain of anchors is broken",
    "history": "the log does not continue what an earlier audit has seen",
    "unverified": "could not be checked, because of damage that is told elsewhere",
    "unknown": "a file that no hub writes",
    "leftover": "of a step that was cut off; harmless",
}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong: where, and what it means. `label` and `stream_seq` where it is about an entry."""

    label: bytes | None = None
    stream_seq: int | None = None
    path: str
    offset: int = 0
    code: str
    message: str
    severity: Severity = "error"

    @property
    def is_evidence(self) -> bool:
        """Whether the log itself is bad, and not only a file that follows from it."""
        return self.severity == "error" and self.code != "rebuildable"

    def __str__(self) -> str:
        entry = "" if self.stream_seq is None else f"entry {self.stream_seq}: "
        return f"{self.severity}: {self.path}, byte {self.offset}: {entry}{self.message} [{self.code}]"


def _key(finding: Finding) -> tuple[bytes, int, str, int, str, str]:
    return (
        finding.label or b"",
        finding.stream_seq or 0,
        finding.path,
        finding.offset,
        finding.code,
        finding.message,
    )


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """By place; what was found twice is told once."""
    return tuple(sorted(set(found), key=_key))


def collapsed(found: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for a run of neighbouring entries with the same fault, so that a bad chunk is not a thousand rows."""
    runs: dict[tuple[str, Severity, str], tuple[Finding, int]] = {}
    for finding in found:
        key, seq = (finding.code, finding.severity, _VALUES.sub("#", finding.message)), finding.stream_seq
        if seq is None:
            yield finding
            continue
        run = runs.get(key)
        if run is not None and seq in (run[1], run[1] + 1):
            runs[key] = (run[0], seq)
            continue
        if run is not None:
            yield _told(*run)
        runs[key] = (finding, seq)
    for run in runs.values():
        yield _told(*run)


def _told(first: Finding, last: int) -> Finding:
    if first.stream_seq in (None, last):
        return first
    return replace(first, message=f"{first.message}; so it is up to entry {last}")


def from_storage(found: stored.Finding, label: bytes | None = None, stream_seq: int | None = None) -> Finding:
    """A finding of `veen.storage`, whose codes are kept."""
    return Finding(
        label=label,
        stream_seq=stream_seq,
        path=found.path,
        offset=found.offset,
        code="frame" if found.code == "entry" else found.code,
        message=found.message,
        severity=found.severity,
    )


def to_table(found: Iterable[Finding]) -> pa.Table:
    rows = [{name: getattr(finding, name) for name in SCHEMA.names} for finding in ordered(found)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> tuple[Finding, ...]:
    return tuple(Finding(**row) for row in table.select(SCHEMA.names).to_pylist())
