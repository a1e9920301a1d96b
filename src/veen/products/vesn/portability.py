"""The portability set of VESN: its files, written and verified (002 §15).

    identity_card         the public keys, signed by id_sign
    keystore.enc          the encrypted secrets, signed by id_sign
    routing_secret        stream_id and routing_key; gives the labels
    receipts.cborl        RECEIPTs in the order of the log (required)
    payloads.cborl        their MSGs, or only {ct_hash, ciphertext} (D-72 for VEEN; decision 86)
    checkpoints.cborl     CHECKPOINTs
    sync_state            last_stream_seq and last_mmr_root (required)
    cap_tokens.cborl      capability tokens
    attachments/COID      sealed attachments, named by their hash in hex

A `.cborl` file is a CBOR sequence. 002 names the files without defining the bytes of identity_card, keystore.enc,
routing_secret and the tokens: decision 85 does. This module does no I/O: a `Source` brings the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeVar

from veen.core import cbor
from veen.core.errors import FormatError, MalformedError, VeenError
from veen.core.hashing import H
from veen.products.vesn.errors import Finding, Problem, Violation
from veen.products.vesn.logcheck import Findings, Log, LogCheck, TooManyFindings, Trust, equivocation_of
from veen.products.vesn.objects import (
    MAX_MSG_BYTES,
    CapToken,
    Checkpoint,
    Equivocation,
    IdentityCard,
    Msg,
    Pair,
    Receipt,
    Record,
    RoutingSecret,
    SyncState,
)
from veen.products.vesn.sealing import Keystore

IDENTITY_CARD: Final = "identity_card"
KEYSTORE: Final = "keystore.enc"
ROUTING_SECRET: Final = "routing_secret"  # noqa: S105 - the name of a file
RECEIPTS: Final = "receipts.cborl"
PAYLOADS: Final = "payloads.cborl"
CHECKPOINTS: Final = "checkpoints.cborl"
SYNC_STATE: Final = "sync_state"
TOKENS: Final = "cap_tokens.cborl"
ATTACHMENTS: Final = "attachments"
FILES: Final = (
    IDENTITY_CARD,
    KEYSTORE,
    ROUTING_SECRET,
    RECEIPTS,
    PAYLOADS,
    CHECKPOINTS,
    SYNC_STATE,
    TOKENS,
)

SMALL_FILE_BYTES: Final = 64 * 1024  # of a file that is one record
MAX_RECORDS: Final = 4_194_304  # of one file
MAX_ATTACHMENTS: Final = 65_536
_MAX_TOKENS: Final = 4_096
_MAX_ITEMS: Final = 1_024  # in one record
_HEX: Final = frozenset("0123456789abcdef")

Verdict = Literal["verified", "incomplete", "failed"]
R = TypeVar("R", bound=Record)


class Source(Protocol):
    """The source of a set's bytes. Every method may raise a Violation or a FormatError."""

    def names(self) -> Sequence[str]:
        """Return the files by path, sorted: `FILES`, `attachments/…`, and any others."""

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole file. Raise Violation if it is larger than `limit`."""

    def items(self, name: str) -> Iterator[bytes]:
        """Yield the raw items of a CBOR sequence, one after another."""

    def digest(self, name: str) -> "FileSum":
        """Return size and SHA-256 of a file."""


@dataclass(frozen=True, slots=True)
class FileSum:
    size: int
    sha256: bytes


class MemorySource:
    """A set in memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def names(self) -> Sequence[str]:
        return sorted(self._files)

    def read(self, name: str, limit: int) -> bytes:
        data = self._files[name]
        if len(data) > limit:
            raise Violation(Problem.LIMIT, f"{len(data)} bytes, at most {limit} are read")
        return data

    def items(self, name: str) -> Iterator[bytes]:
        return sequence_of([self._files[name]], what=name)

    def digest(self, name: str) -> FileSum:
        return FileSum(len(self._files[name]), sha256(self._files[name]).digest())


def sequence_of(pieces: Iterable[bytes], *, what: str) -> Iterator[bytes]:
    """Split a CBOR sequence into its items, in constant memory. Raise FormatError where it is not CBOR."""
    window = bytearray()
    rest = iter(pieces)
    more, count = True, 0
    while more or window:
        while more and len(window) < 2 * MAX_MSG_BYTES:
            piece = next(rest, b"")
            more = bool(piece)
            window += piece
        data, pos = bytes(window), 0
        # An item that is certainly complete in the window, or the rest once the input has ended.
        while pos < len(data) and (not more or len(data) - pos >= MAX_MSG_BYTES):
            count += 1
            if count > MAX_RECORDS:
                raise Violation(Problem.LIMIT, f"more than {MAX_RECORDS} records")
            try:
                end = cbor.item_end(data, pos, what=what, max_items=_MAX_ITEMS)
            except MalformedError as exc:
                raise MalformedError(f"record {count}: {exc.what}", what) from exc
            if end - pos > MAX_MSG_BYTES:
                raise Violation(Problem.LIMIT, f"record {count} has more than {MAX_MSG_BYTES} bytes")
            yield data[pos:end]
            pos = end
        del window[:pos]


# --- writing ----------------------------------------------------------------------------------------------------


def encode_set(
    *,
    receipts: Iterable[Receipt],
    payloads: Iterable[Msg | Pair] = (),
    checkpoints: Iterable[Checkpoint] = (),
    tokens: Iterable[CapToken] = (),
    attachments: Iterable[bytes] = (),
    card: IdentityCard | None = None,
    keystore: Keystore | None = None,
    routing: RoutingSecret | None = None,
) -> dict[str, bytes]:
    """Return the files of a set, by path."""
    listed = list(receipts)
    state = SyncState(
        last_mmr_root=listed[-1].mmr_root if listed else bytes(32),
        last_stream_seq=listed[-1].stream_seq if listed else 0,
    )
    single: dict[str, Record | None] = {
        IDENTITY_CARD: card,
        KEYSTORE: keystore,
        ROUTING_SECRET: routing,
        SYNC_STATE: state,
    }
    sequences: dict[str, Iterable[Record]] = {
        RECEIPTS: listed,
        PAYLOADS: payloads,
        CHECKPOINTS: checkpoints,
        TOKENS: tokens,
    }
    files = {name: record.to_bytes() for name, record in single.items() if record is not None}
    files |= {name: b"".join(record.to_bytes() for record in records) for name, records in sequences.items()}
    files |= {f"{ATTACHMENTS}/{H(data).hex()}": data for data in attachments}
    return files


def is_attachment(path: str) -> bool:
    folder, _, name = path.partition("/")
    return folder == ATTACHMENTS and len(name) == 64 and set(name) <= _HEX


# --- verifying --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Contents and verdict of a set.

    `findings`: the faults; `missing`: checks that could not be made, with reasons; `notes`: remarks without effect on
    the verdict. `stopped`: reading ended early because of too many findings.
    """

    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    evidence: tuple[Equivocation, ...]
    logs: tuple[Log, ...]
    files: Mapping[str, FileSum]
    receipts: int
    messages: int
    checkpoints: int
    tokens: int
    attachments: int
    stopped: bool

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return "failed"
        return "incomplete" if self.missing else "verified"

    def to_json(self) -> dict[str, Any]:
        """Return the report with bytes in hex, as in every JSON form (D-62)."""
        return {
            "verdict": self.verdict,
            "receipts": self.receipts,
            "messages": self.messages,
            "checkpoints": self.checkpoints,
            "tokens": self.tokens,
            "attachments": self.attachments,
            "logs": [
                {
                    "label": log.label.hex(),
                    "first_seq": log.first_seq,
                    "last_seq": log.last_seq,
                    "last_root": log.last_root.hex(),
                    "continues": log.continues.hex() if log.continues else None,
                }
                for log in self.logs
            ],
            "findings": [
                {"code": finding.code, "where": finding.where, "what": finding.what} for finding in self.findings
            ],
            "missing": list(self.missing),
            "notes": list(self.notes),
            "stopped": self.stopped,
            "files": {
                name: {"size": entry.size, "sha256": entry.sha256.hex()} for name, entry in sorted(self.files.items())
            },
        }


OnReceipt = Callable[[bytes], None]


def verify_set(source: Source, trust: Trust, *, on_receipt: OnReceipt | None = None) -> Report:
    """Read and check every file of a set. Raises nothing that the bytes cause: all of that is in the report.

    `on_receipt` gets the bytes of each receipt that has a place in the log, in order.
    """
    return _SetCheck(source, trust, on_receipt or (lambda _: None)).run()


@dataclass(slots=True)
class _SetCheck:
    source: Source
    trust: Trust
    on_receipt: OnReceipt
    findings: Findings = field(default_factory=Findings)
    names: frozenset[str] = frozenset()
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evidence: list[Equivocation] = field(default_factory=list)
    files: dict[str, FileSum] = field(default_factory=dict)
    tokens: int = 0
    attachments: int = 0
    without_message: int = 0
    pairs: int = 0

    def run(self) -> Report:
        log = LogCheck(self.trust, self.findings)
        stopped = False
        try:
            self._read(log)
        except TooManyFindings:
            stopped = True
        self._remarks(log)
        return Report(
            findings=tuple(self.findings.items),
            missing=tuple(self.missing),
            notes=tuple(self.notes),
            evidence=tuple(self.evidence),
            logs=tuple(log.logs.values()),
            files=self.files,
            receipts=log.receipts,
            messages=log.messages,
            checkpoints=log.checkpoints,
            tokens=self.tokens,
            attachments=self.attachments,
            stopped=stopped,
        )

    def _read(self, log: LogCheck) -> None:
        try:
            self.names = frozenset(self.source.names())
        except Violation as exc:
            self.findings.add_violation("the set", exc)
            return
        self._check_names()
        card = self._single(IDENTITY_CARD, IdentityCard)
        if card is not None:
            self._run_check(IDENTITY_CARD, card.verify)
        keystore = self._single(KEYSTORE, Keystore)
        if keystore is not None and card is not None:
            self._run_check(KEYSTORE, lambda: keystore.verify(card.id_sign_pk))
        elif keystore is not None:
            self.missing.append(f"{KEYSTORE} was not judged: there is no {IDENTITY_CARD} with the key that signs it")
        log.secret = self._single(ROUTING_SECRET, RoutingSecret)
        self._run_check(TOKENS, self._check_tokens)
        self._run_check(CHECKPOINTS, lambda: self._check_checkpoints(log))
        self._run_check(RECEIPTS, lambda: self._check_log(log))
        log.finish()
        self._check_sync_state(log)
        if log.suspects:
            self._run_check(RECEIPTS, lambda: self._convict(log))
        self._check_attachments()

    # --- files -----------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        for name in (RECEIPTS, SYNC_STATE):
            if name not in self.names and name not in self.trust.ignore:
                self.findings.add(Problem.FILE, name, "the file is missing")
        for name in sorted(self.names):
            if name not in FILES and not is_attachment(name) and name not in self.trust.ignore:
                self.findings.add(Problem.FILE, _printable(name), "no set has a file of this name")
                continue
            self._run_check(name, partial(self._sum, name))
        for name in sorted(self.trust.ignore & self.names):
            self.missing.append(f"{_printable(name)} was not judged, as asked")

    def _sum(self, name: str) -> None:
        self.files[name] = self.source.digest(name)

    def _has(self, name: str) -> bool:
        return name in self.names and name not in self.trust.ignore

    def _single(self, name: str, kind: type[R]) -> R | None:
        """Return the record of a file that contains one."""
        if not self._has(name):
            return None
        records: list[R] = []
        self._run_check(name, lambda: records.append(kind.from_bytes(self.source.read(name, SMALL_FILE_BYTES))))
        return records[0] if records else None

    def _run_check(self, name: str, check: Callable[[], None]) -> None:
        """Run a check of a file; a fault becomes a finding, and the other files are still checked."""
        try:
            check()
        except Violation as exc:
            self.findings.add_violation(_printable(name), exc)
        except FormatError as exc:
            self.findings.add(Problem.FORMAT, _printable(name), str(exc))

    def _records(self, name: str, kind: type[R]) -> Iterator[tuple[str, bytes, R]]:
        """Yield (where, bytes, record) for each record of a file; a malformed one is a finding and is skipped."""
        if not self._has(name):
            return
        for number, raw in enumerate(self.source.items(name), start=1):
            where = f"{name}, record {number}"
            try:
                record = kind.from_bytes(raw)
            except FormatError as exc:
                self.findings.add(Problem.FORMAT, where, str(exc))
                continue
            yield where, raw, record

    # --- contents --------------------------------------------------------------------------------------------

    def _check_tokens(self) -> None:
        for where, _, token in self._records(TOKENS, CapToken):
            self.tokens += 1
            if self.tokens > _MAX_TOKENS:
                raise Violation(Problem.LIMIT, f"more than {_MAX_TOKENS} tokens")
            self._run_check(where, token.verify)

    def _check_checkpoints(self, log: LogCheck) -> None:
        for where, _, checkpoint in self._records(CHECKPOINTS, Checkpoint):
            log.checkpoint(where, checkpoint)

    def _check_log(self, log: LogCheck) -> None:
        """Check receipts and messages side by side: messages are in the order of their receipts, some may be absent."""
        payloads = self._payloads()
        payload = next(payloads, None)
        for where, raw, receipt in self._records(RECEIPTS, Receipt):
            if not log.receipt(where, receipt):
                continue
            self.on_receipt(raw)
            if payload is None:
                self.without_message += 1
            elif isinstance(payload[1], Pair):  # by its place alone: nothing in it names its receipt
                self.pairs += 1
                payload = next(payloads, None)
            elif payload[1].leaf_hash() == receipt.leaf_hash:
                log.message(payload[0], receipt, payload[1])
                payload = next(payloads, None)
            else:
                self.without_message += 1
        if payload is not None:
            self.findings.add(Problem.I2, payload[0], "no receipt from here on has the leaf_hash of this message (I2)")

    def _payloads(self) -> Iterator[tuple[str, Msg | Pair]]:
        """Yield each valid payload. A file that is not a CBOR sequence is a finding and ends the iteration."""
        if not self._has(PAYLOADS):
            return
        number = 0
        try:
            for raw in self.source.items(PAYLOADS):
                number += 1
                where = f"{PAYLOADS}, record {number}"
                try:
                    payload: Msg | Pair = Pair.from_bytes(raw) if raw[:1] == b"\xa2" else Msg.from_bytes(raw)
                    payload.verify()
                except Violation as exc:
                    self.findings.add_violation(where, exc)
                except FormatError as exc:
                    self.findings.add(Problem.FORMAT, where, str(exc))
                else:
                    yield where, payload
        except Violation as exc:
            self.findings.add_violation(PAYLOADS, exc)
        except FormatError as exc:
            self.findings.add(Problem.FORMAT, PAYLOADS, str(exc))

    def _check_sync_state(self, log: LogCheck) -> None:
        state = self._single(SYNC_STATE, SyncState)
        if state is None:
            return
        last = log.last
        expected = (last.stream_seq, last.mmr_root) if last is not None else (0, bytes(32))
        if (state.last_stream_seq, state.last_mmr_root) != expected:
            self.findings.add(
                Problem.SYNC,
                SYNC_STATE,
                f"it ends at stream_seq {state.last_stream_seq}; the last receipt has {expected[0]} or another root",
            )

    def _convict(self, log: LogCheck) -> None:
        receipts = (receipt for _, _, receipt in self._records(RECEIPTS, Receipt))
        self.evidence = log.equivocations(receipts)
        for proof in self.evidence:
            place = f"label {proof.first.label.hex()[:16]}…, stream_seq {proof.first.stream_seq}"
            self.findings.add(Problem.EQUIVOCATION, RECEIPTS, f"{place}: the hub signed two different receipts")

    def _check_attachments(self) -> None:
        for name, entry in self.files.items():
            if is_attachment(name) and name not in self.trust.ignore:
                self.attachments += 1
                if entry.sha256.hex() != name.rpartition("/")[2]:
                    self.findings.add(Problem.ATTACHMENT, name, "the bytes do not have the hash that is their name")

    def _remarks(self, log: LogCheck) -> None:
        if self.without_message:
            self.missing.append(f"{self.without_message} of {log.receipts} entries have no message in {PAYLOADS}")
        if self.pairs:
            self.missing.append(
                f"{self.pairs} payloads have no client_id and client_seq, so nothing ties them to a receipt (I2)"
            )
        if log.unjudged_witness_sigs:
            self.missing.append(
                f"{log.unjudged_witness_sigs} witness_sigs were not judged: no witness key was given (--witness)"
            )
        if log.secret is None and log.receipts:
            self.notes.append(f"labels were not compared with the stream: there is no {ROUTING_SECRET}")
        if log.client_seq_gaps:
            self.notes.append(f"client_seq skips numbers {log.client_seq_gaps} times (D-153)")
        if log.unrotated_clients:
            self.notes.append(f"client_id was not rotated as 002 §3 asks, {log.unrotated_clients} times")
        trees = sum(log_.continues is None for log_ in log.logs.values())
        if trees > 1:
            self.notes.append(f"the set has {trees} separate trees: no checkpoint links their labels (D-117)")


def conflicts(source: Source, other: Source, hub_pks: Sequence[bytes]) -> list[Equivocation]:
    """Return evidence from two sets of one hub: positions for which it signed different statements (002 §14).

    Unreadable records are skipped: `verify_set` reports them.
    """
    statements: dict[tuple[bytes, int], bytes] = {}
    for receipt in _readable(source):
        statements.setdefault((receipt.label, receipt.stream_seq), receipt.mmr_root + receipt.leaf_hash)
    suspects: dict[tuple[bytes, int], Receipt] = {}
    for receipt in _readable(other):
        place = (receipt.label, receipt.stream_seq)
        statement = statements.get(place)
        if statement is not None and statement != receipt.mmr_root + receipt.leaf_hash and len(suspects) < 100:
            suspects[place] = receipt
    evidence: dict[tuple[bytes, int], Equivocation] = {}
    for receipt in _readable(source) if suspects else ():
        place = (receipt.label, receipt.stream_seq)
        if place in suspects and place not in evidence:
            proof = equivocation_of(receipt, suspects[place], hub_pks)
            if proof is not None:
                evidence[place] = proof
    return list(evidence.values())


def _readable(source: Source) -> Iterator[Receipt]:
    try:
        for raw in source.items(RECEIPTS):
            try:
                yield Receipt.from_bytes(raw)
            except FormatError:
                continue
    except (VeenError, KeyError):
        return


def _printable(name: str) -> str:
    """Return a foreign file name, safe to print and of bounded length."""
    return name if name.isascii() and name.isprintable() and len(name) <= 100 else ascii(name[:100])
