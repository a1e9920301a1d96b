"""Comparison of two directories of one hub, to prove equivocation (spec §4.3, RCPT-07, DESIGN §9.2).

Where both have an entry at one position, both receipts must be the same. If they are not and the hub signed both,
that is proof of equivocation which anybody can check. If the hub did not sign one of them, that one is forged or
damaged, and the audit of its directory says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from veen.core.errors import FormatError, StatedError, VeenError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.trusted_root import TrustedKeys
from veen.fs.local import Fs
from veen.fs.places import open_fs
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.pinned import ChunkRef, LabelPin, LogView, pin, read_chunk
from veen.storage.scan import read_file
from veen.verify.audit.findings import LogFinding, ordered
from veen.verify.audit.peaks import archived
from veen.verify.entry import read_entry
from veen.verify.identity import signatures_of


class NotComparable(StatedError):
    """Two directories that are not of one hub, or of a hub that is not known."""

    hint = "Compare copies or forks of one hub: the same hub_id in hub-identity.json."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenEquivocation:
    """A position for which the hub signed two different entries, and the evidence."""

    label: bytes
    stream_seq: int
    evidence: Equivocation

    @property
    def file_name(self) -> str:
        return f"equivocation-{self.label.hex()[:16]}-{self.stream_seq}.cbor"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryComparison:
    """What comparing two directories gave; `common` counts the positions that both have, by label."""

    hub_id: bytes
    common: dict[bytes, int]
    proven: tuple[ProvenEquivocation, ...]
    findings: tuple[LogFinding, ...]

    @property
    def ok(self) -> bool:
        return not self.proven and not any(finding.is_evidence for finding in self.findings)


def compare(
    one: str, other: str, identity: HubIdentity | None = None, *, trusted: TrustedKeys | None = None
) -> DirectoryComparison:
    """Compare all positions that both directories have. The first conflict of each label is proof enough.

    `trusted` are keys known from elsewhere: without them, or an identity, the directories say whose they are.
    """
    left, right = pin(one), pin(other)
    who = _same_hub(left, right, identity)
    findings: list[LogFinding] = []
    proven: list[ProvenEquivocation] = []
    common: dict[bytes, int] = {}
    sides = (open_fs(one), open_fs(other))
    for label in sorted(left.labels.keys() & right.labels.keys()):
        pins = (left.labels[label], right.labels[label])
        common[label] = min(pins[0].size, pins[1].size)
        receipts = (_receipts(sides[0], pins[0], pins[1]), _receipts(sides[1], pins[1], pins[0]))
        proof = _first_conflict(label, receipts, who, findings) or _checkpoints(
            sides, label, common[label], who, findings
        )
        if proof is not None:
            proven.append(proof)
    findings += _controls(sides, who)
    if trusted is not None:
        # Of a key that only one side introduces, the other has no record: either journal may show the way to it.
        faults = [trusted.fault(who, _records(fs), signatures_of(fs)) for fs in sides]
        if (fault := faults[0]) is not None and None not in faults:
            findings.append(LogFinding(layout.IDENTITY, 0, "pin", fault))
    return DirectoryComparison(hub_id=who.hub_id, common=common, proven=tuple(proven), findings=ordered(findings))


def _same_hub(left: LogView, right: LogView, given: HubIdentity | None) -> HubIdentity:
    identities = [identity for identity in (given, left.identity, right.identity) if identity is not None]
    if not identities:
        raise NotComparable("neither directory says which hub it is of")
    if len({identity.hub_id for identity in identities}) > 1:
        raise NotComparable(
            f"these are different hubs: {', '.join(sorted({identity.hub_id.hex() for identity in identities}))}"
        )
    return max(identities, key=lambda identity: len(identity.keys))


# --- entries -------------------------------------------------------------------------------------------------


def _receipts(fs: Fs, own: LabelPin, other: LabelPin) -> Iterator[Receipt]:
    """The receipts of a label in order, as far as the other directory goes."""
    for ref in own.chunks:
        if ref.start_seq > other.size:
            return
        yield from _of_chunk(fs, ref)


def _of_chunk(fs: Fs, ref: ChunkRef) -> Iterator[Receipt]:
    """What cannot be read is left out: the audit of its directory names it."""
    try:
        if ref.kind in ("receipts", "heads"):
            yield from (item.receipt for item in archived(fs, ref) if item.receipt is not None)
            return
        data = read_chunk(fs, ref)
    except (VeenError, OSError):
        return
    pos = 0
    for seq in range(ref.start_seq, ref.end_seq + 1):
        entry = read_entry(data, pos, ref, seq)
        if entry is None:
            return
        if entry.item is not None and entry.item.receipt is not None:
            yield entry.item.receipt
        pos += entry.length


def _first_conflict(
    label: bytes, receipts: tuple[Iterator[Receipt], Iterator[Receipt]], who: HubIdentity, findings: list[LogFinding]
) -> ProvenEquivocation | None:
    a, b = next(receipts[0], None), next(receipts[1], None)
    while a is not None and b is not None:
        if a.stream_seq == b.stream_seq:
            if (a.leaf_hash, a.mmr_root) != (b.leaf_hash, b.mmr_root):
                if (proof := _prove(label, a.stream_seq, a, b, who)) is not None:
                    return proof
                what = "the directories differ here, and the hub did not sign both: one of them is forged or damaged"
                findings.append(LogFinding(layout.LOG, 0, "hub_sig", what, label=label, stream_seq=a.stream_seq))
            a, b = next(receipts[0], None), next(receipts[1], None)
        elif a.stream_seq < b.stream_seq:
            a = next(receipts[0], None)
        else:
            b = next(receipts[1], None)
    return None


def _prove(
    label: bytes, seq: int, a: Receipt | Checkpoint, b: Receipt | Checkpoint, who: HubIdentity
) -> ProvenEquivocation | None:
    try:
        keys = [
            who.verify_receipt(signed) if isinstance(signed, Receipt) else who.verify_checkpoint(signed, 0)
            for signed in (a, b)
        ]
        evidence = Equivocation.of(a, b, one_pk=keys[0].hub_pk, other_pk=keys[1].hub_pk)
    except VerifyError:
        return None
    return ProvenEquivocation(label=label, stream_seq=seq, evidence=evidence)


def _checkpoints(
    sides: tuple[Fs, Fs], label: bytes, size: int, who: HubIdentity, findings: list[LogFinding]
) -> ProvenEquivocation | None:
    """Checkpoints outlive the entries below them; those of one position must agree as well (D-40)."""
    names = [{name for name in fs.list(layout.LOG) if _upto(name, label)} for fs in sides]
    for name in sorted(names[0] & names[1]):
        seq = _upto(name, label)
        try:
            a, b = (Checkpoint.from_bytes(read_file(fs, f"{layout.LOG}/{name}")) for fs in sides)
        except (FormatError, OSError):
            continue
        if seq <= size and a.mmr_root != b.mmr_root:
            if (proof := _prove(label, seq, a, b, who)) is not None:
                return proof
            what = "the checkpoints differ, and the hub did not sign both"
            findings.append(LogFinding(f"{layout.LOG}/{name}", 0, "seal", what, label=label, stream_seq=seq))
    return None


def _upto(name: str, label: bytes) -> int:
    file = layout.log_file(name)
    return file.end_seq if file is not None and file.kind == "checkpoint" and file.label == label else 0


# --- control records -----------------------------------------------------------------------------------------


def _controls(sides: tuple[Fs, Fs], who: HubIdentity) -> Iterator[LogFinding]:
    """The first control record that is not the same on both sides; the journal is one chain, so one is enough."""
    for a, b in zip(_records(sides[0]), _records(sides[1]), strict=False):
        if a == b:
            continue
        try:
            for record in (a, b):
                who.verify_control(record)
        except VerifyError:
            what = f"control record {a.seq} differs, and the hub did not sign both"
        else:
            what = f"the hub signed two different control records {a.seq}"
        yield LogFinding(layout.CONTROL, 0, "control", what)
        return


def _records(fs: Fs) -> Iterator[ControlRecord]:
    try:
        yield from (record for _, record in control_records(fs))
    except (VeenError, OSError):
        return
