"""The stream of a VESN hub as NDJSON: one object {receipt, msg, mmr_proof?} per line (002 §16, D-154).

Byte strings are lower-case hex. On input base64url is accepted, too: the length of a field of fixed size tells which of
both it is, and for a ciphertext its ct_hash.

Contents of a set, read without keys and without checks.
"""

import binascii
import json
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import H
from veen.core.objects.recognise import parse_json
from veen.products.vesn import portability
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.ledger import MmrProof
from veen.products.vesn.logcheck import Findings, LogCheck, TooManyFindings, Trust
from veen.products.vesn.objects import MAX_MSG_BYTES, RECORDS, Msg, Receipt, Record
from veen.products.vesn.portability import MAX_RECORDS, Report
from veen.products.vesn.sealing import Keystore

MAX_LINE_BYTES: Final = 2 * MAX_MSG_BYTES + 64 * 1024
_MAX_DEPTH: Final = 4  # a step of a path in a proof is the deepest object
_SIZES: Final = {
    "label": 32,
    "hub_sig": 64,
    "mmr_root": 32,
    "leaf_hash": 32,
    "sig": 64,
    "ct_hash": 32,
    "client_id": 32,
    "profile_id": 32,
    "sib": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEntry:
    """One line of a stream."""

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None

    @classmethod
    def from_line(cls, line: bytes) -> "StreamEntry":
        """Decode one line. Raise FormatError unless it is one entry."""
        if len(line) > MAX_LINE_BYTES:
            raise MalformedError(f"a line of more than {MAX_LINE_BYTES} bytes", "VESN stream")
        tree = parse_json(line)
        if type(tree) is not dict or not {"receipt", "msg"} <= tree.keys() <= {"receipt", "msg", "mmr_proof"}:
            raise MalformedError("expected an object with receipt, msg and perhaps mmr_proof", "VESN stream")
        proof = tree.get("mmr_proof")
        return cls(
            receipt=Receipt.from_json(_as_hex(tree["receipt"])),
            msg=Msg.from_json(_as_hex(tree["msg"])),
            mmr_proof=None if proof is None else MmrProof.from_json(_as_hex(proof)),
        )

    def to_line(self) -> bytes:
        tree = {"receipt": self.receipt.to_json(), "msg": self.msg.to_json()}
        if self.mmr_proof is not None:
            tree["mmr_proof"] = self.mmr_proof.to_json()
        return json.dumps(tree, separators=(",", ":")).encode() + b"\n"


def verify_stream(lines: Iterable[bytes], trust: Trust) -> Report:
    """Check a stream as a hub served it: signatures, I1 to I4, I6, and proofs where lines have them.

    A stream may begin anywhere. Where it does not begin at stream_seq 1, only proofs show that a root is right.
    """
    findings = Findings()
    log = LogCheck(trust, findings)
    unproven, stopped = 0, False
    try:
        for number, line in enumerate(lines, start=1):
            where = f"line {number}"
            if number > MAX_RECORDS:
                findings.add(Problem.LIMIT, where, f"more than {MAX_RECORDS} lines")
                break
            try:
                unproven += _check_line(where, StreamEntry.from_line(line), log)
            except Violation as exc:
                findings.add_violation(where, exc)
            except FormatError as exc:
                findings.add(Problem.FORMAT, where, str(exc))
    except TooManyFindings:
        stopped = True
    missing = [f"{unproven} entries have no mmr_proof and follow no entry that begins at 1"] if unproven else []
    return Report(
        findings=tuple(findings.items),
        missing=tuple(missing),
        notes=(f"client_seq skips numbers {log.client_seq_gaps} times (D-153)",) if log.client_seq_gaps else (),
        evidence=(),
        logs=tuple(log.logs.values()),
        files={},
        receipts=log.receipts,
        messages=log.messages,
        checkpoints=0,
        tokens=0,
        attachments=0,
        stopped=stopped,
    )


def _check_line(where: str, entry: StreamEntry, log: LogCheck) -> bool:
    """Check one line; return True if its root is not confirmed yet."""
    receipt = entry.receipt
    if receipt.label not in log.logs:
        log.begin_at(receipt)
    if not log.receipt(where, receipt):
        return False
    entry.msg.verify()
    log.message(where, receipt, entry.msg)
    if entry.mmr_proof is not None:
        entry.mmr_proof.verify(leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, mmr_root=receipt.mmr_root)
        return False
    return log.logs[receipt.label].mmr is None


def _as_hex(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return the tree with base64url as hex; other text is left for the reader to refuse."""
    if depth > _MAX_DEPTH:
        return value
    if type(value) is dict:
        tree = {key: _as_hex(element, key, depth + 1) for key, element in value.items()}
        return _set_hex_ciphertext(tree) if "ciphertext" in tree else tree
    if type(value) is list:
        return [_as_hex(element, "sib" if name == "peaks_after" else name, depth + 1) for element in value]
    size = _SIZES.get(name)
    if type(value) is str and size is not None and len(value) != 2 * size:
        data = _from_base64(value)
        return data.hex() if data is not None and len(data) == size else value
    return value


def _set_hex_ciphertext(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with its ciphertext in hex. `abcd` is both hex and base64url: the hash decides."""
    text, ct_hash = tree["ciphertext"], tree.get("ct_hash")
    data = _from_base64(text) if type(text) is str else None
    if data is not None and H(data).hex() == ct_hash:
        return {**tree, "ciphertext": data.hex()}
    return tree


def _from_base64(text: str) -> bytes | None:
    try:
        return urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
    except (binascii.Error, ValueError):
        return None


_SEQUENCES: Final = (portability.RECEIPTS, portability.PAYLOADS, portability.CHECKPOINTS, portability.TOKENS)
_MAX_PROBLEMS: Final = 20
_MAX_LOGS: Final = 1_000


@dataclass(slots=True)
class Summary:
    """Files with their sizes and the kinds of their records; the labels with their ranges."""

    files: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, int, int, str]]:
        return [
            (
                file["name"],
                file["bytes"],
                file["records"],
                ", ".join(f"{n} {kind}" for kind, n in file["kinds"].items()),
            )
            for file in self.files
        ]

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "logs": self.logs, "problems": self.problems}


def record_of(raw: bytes) -> Record:
    """Decode bytes as any VESN record. Raise FormatError if they are none."""
    kinds: tuple[type[Record], ...] = (*RECORDS, Keystore)
    for kind in kinds:
        try:
            return kind.from_bytes(raw)
        except FormatError:
            continue
    raise MalformedError("not a record of VESN", "record")


def records_of(source: portability.Source, name: str) -> Iterator[Record]:
    """Yield every record of a file."""
    for raw in source.items(name):
        yield record_of(raw)


def summary_of(source: portability.Source) -> Summary:
    summary, ranges = Summary(), dict[bytes, list[int]]()
    for name in source.names():
        kinds: Counter[str] = Counter()
        size = 0
        try:
            size = source.digest(name).size
            if portability.is_attachment(name):
                kinds["attachment"] += 1
            elif name in _SEQUENCES:
                for record in records_of(source, name):
                    kinds[record.KIND] += 1
                    if isinstance(record, Receipt):
                        _count(ranges, record)
            elif name in portability.FILES:
                kinds[record_of(source.read(name, portability.SMALL_FILE_BYTES)).KIND] += 1
        except (FormatError, Violation) as exc:
            if len(summary.problems) < _MAX_PROBLEMS:
                summary.problems.append(f"{name[:100]!a}: {exc}")
        summary.files.append(
            {"name": name, "bytes": size, "records": sum(kinds.values()), "kinds": dict(sorted(kinds.items()))}
        )
    summary.logs = [
        {"label": label.hex(), "first_seq": first, "last_seq": last} for label, (first, last) in ranges.items()
    ]
    return summary


def _count(ranges: dict[bytes, list[int]], receipt: Receipt) -> None:
    seqs = ranges.get(receipt.label)
    if seqs is not None:
        seqs[:] = [min(seqs[0], receipt.stream_seq), max(seqs[1], receipt.stream_seq)]
    elif len(ranges) < _MAX_LOGS:
        ranges[receipt.label] = [receipt.stream_seq] * 2
