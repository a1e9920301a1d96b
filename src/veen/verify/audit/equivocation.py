"""Comparison of two directories of one hub, to prove equivocation (spec §4.3, RCPT-07, DESIGN §9.2).

If both have an entry at one position, both receipts must be equal. If they are not and the hub signed both, that is
proof of equivocation which anybody can check. If the hub did not sign one of them, that one is forged or damaged, and
the audit of its directory reports it.

The root in a receipt covers all entries before it, so equal receipts at one position that the hub signed prove one
history up to there. Entries that only one side has, or that cannot be read, were not compared: the verdict is
incomplete.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from veen.core.errors import FormatError, StatedError, VeenError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity, HubKey
from veen.core.objects.receipt import Receipt
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.pinned import ChunkRef, LabelPin, LogView, pin, read_chunk, without
from veen.storage.scan import read_file
from veen.verify.audit.chunk import read_archive
from veen.verify.audit.findings import LogFinding, sort_findings
from veen.verify.audit.outer import OuterFiles
from veen.verify.entry import read_entry
from veen.verify.identity import signatures_of


class NotComparable(StatedError):
    """Two directories that are not of one hub, or of an unknown hub."""

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
    """Result of comparing two directories; `common` counts the compared positions, by label."""

    hub_id: bytes
    common: dict[bytes, int]
    proven: tuple[ProvenEquivocation, ...]
    findings: tuple[LogFinding, ...]
    compared: tuple[Coverage, ...]
    reservations: tuple[Reason, ...] = ()  # of the caller, who knows more than the directories

    @property
    def verdict(self) -> Verdict:
        """The verdict: bad for two signed histories or a forged side; incomplete if positions were not compared."""
        reasons = [
            Reason(Because.EVIDENCE, f"the hub signed two entries {proof.stream_seq} of label {proof.label.hex()}")
            for proof in self.proven
        ]
        reasons += [Reason(finding.because, str(finding)) for finding in self.findings if finding.severity == "error"]
        return Verdict.of(self.compared, (*self.reservations, *reasons))

    @property
    def ok(self) -> bool:
        return self.verdict.is_good


def compare(
    one: str, other: str, identity: HubIdentity | None = None, *, trusted: TrustedKeys | None = None
) -> DirectoryComparison:
    """Compare all positions that both directories have. The first conflict of each label is sufficient proof."""
    sides = (open_fs(one), open_fs(other))
    listed = [OuterFiles.read(fs).heads() for fs in sides]  # before the pins: see there
    views = left, right = pin(one), pin(other)
    who = _same_hub(left, right, identity)
    findings: list[LogFinding] = []
    proven: list[ProvenEquivocation] = []
    common: dict[bytes, int] = {}
    checkpoints = [_checkpoint_names(fs) for fs in sides]
    for label in sorted(left.labels.keys() & right.labels.keys()):
        upto = min(left.labels[label].size, right.labels[label].size)
        first, second = (_Side(fs, view.labels[label], upto) for fs, view in zip(sides, views, strict=True))
        pair = _Pair(label, who, first, second)
        proof = pair.compare_receipts() or pair.compare_checkpoints(*(names.get(label, {}) for names in checkpoints))
        if proof is not None:
            proven.append(proof)
        findings += pair.findings
        common[label] = pair.agreed
    findings += _controls(sides, who)
    if trusted is not None:
        # Of a key that only one side introduces, the other has no record: either journal may show the way to it.
        faults = [trusted.fault(who, _records(fs), signatures_of(fs)) for fs in sides]
        if (fault := faults[0]) is not None and None not in faults:
            findings.append(LogFinding(layout.IDENTITY, 0, "pin", fault))
    key = trusted.to_text() if trusted is not None else None
    if key is None and identity is not None:
        key = f"ed25519:{identity.keys[-1].hub_pk.hex()}"
    rows = [
        row
        for view, heads in zip(views, listed, strict=True)
        for row in view.coverage(key, read=common, stated={StatedBy.OWN_FILES: heads})
    ]
    by_log: dict[str, Coverage] = {}
    for row in sorted(rows, key=lambda row: row.head or 0):  # the side that goes further says how much there is
        by_log[row.log] = replace(row, read=common.get(bytes.fromhex(row.log), 0))
    return DirectoryComparison(
        hub_id=who.hub_id,
        common=common,
        proven=tuple(proven),
        findings=sort_findings(findings),
        compared=tuple(by_log[log] for log in sorted(by_log)),
    )


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


@dataclass(slots=True)
class _Side:
    """The receipts of a label in one directory, in order, as far as both directories go."""

    fs: Fs
    pinned: LabelPin
    upto: int
    first_lost: int | None = None  # the first position whose receipt should be here and cannot be read

    def receipts(self) -> Iterator[Receipt]:
        expected = 1
        for ref in self.pinned.chunks:
            if ref.start_seq > self.upto:
                break
            if ref.start_seq > expected:
                self._lose(next(iter(without((expected, ref.start_seq - 1), self.pinned.erased)), (0, 0))[0])
            yield from self._of_chunk(ref)
            expected = ref.end_seq + 1

    def _lose(self, seq: int) -> None:
        if 0 < seq <= self.upto and (self.first_lost is None or seq < self.first_lost):
            self.first_lost = seq

    def _of_chunk(self, ref: ChunkRef) -> Iterator[Receipt]:
        """Yield what can be read: the audit of the directory reports the rest."""
        seq = ref.start_seq
        try:
            if ref.kind in ("receipts", "heads"):
                for item in read_archive(self.fs, ref):
                    if item.receipt is not None:
                        yield item.receipt
                    seq = item.stream_seq + 1
                return
            data, pos = read_chunk(self.fs, ref), 0
            while seq <= ref.end_seq and (entry := read_entry(data, pos, ref, seq)) is not None:
                if entry.item is not None and entry.item.receipt is not None:
                    yield entry.item.receipt
                else:
                    self._lose(seq)
                seq, pos = seq + 1, pos + entry.length
        except (VeenError, OSError):
            pass
        if seq <= ref.end_seq:
            self._lose(seq)


@dataclass(slots=True)
class _Pair:
    """One label in both directories."""

    label: bytes
    who: HubIdentity
    left: _Side
    right: _Side
    findings: list[LogFinding] = field(default_factory=list)
    agreed: int = 0  # up to this position both sides have the history that the hub signed

    def compare_receipts(self) -> ProvenEquivocation | None:
        """Return the proof of the first position for which the hub signed two entries."""
        sides = (self.left.receipts(), self.right.receipts())
        newest: Receipt | None = None
        a, b = next(sides[0], None), next(sides[1], None)
        while a is not None and b is not None:
            if a.stream_seq == b.stream_seq:
                if (a.leaf_hash, a.mmr_root) != (b.leaf_hash, b.mmr_root):
                    if (proof := _prove(self.label, a.stream_seq, a, b, self.who)) is not None:
                        return proof
                    what = "the directories differ here, and the hub did not sign both: one is forged or damaged"
                    self._add(layout.LOG, "hub_sig", what, a.stream_seq)
                else:
                    newest = a
                a, b = next(sides[0], None), next(sides[1], None)
            elif a.stream_seq < b.stream_seq:
                a = next(sides[0], None)
            else:
                b = next(sides[1], None)
        if newest is not None:
            self._agree(newest, newest.stream_seq)
        return None

    def compare_checkpoints(self, left: Mapping[int, str], right: Mapping[int, str]) -> ProvenEquivocation | None:
        """Compare the checkpoints of equal positions, which outlive the entries before them (D-40)."""
        newest: Checkpoint | None = None
        for seq in sorted(left.keys() & right.keys()):
            if seq > self.left.upto:
                break
            path = f"{layout.LOG}/{left[seq]}"
            try:
                a, b = (Checkpoint.from_bytes(read_file(side.fs, path)) for side in (self.left, self.right))
            except (FormatError, StorageError, OSError):
                continue
            if a.mmr_root == b.mmr_root:
                newest = a
                continue
            if (proof := _prove(self.label, seq, a, b, self.who)) is not None:
                return proof
            self._add(path, "seal", "the checkpoints differ, and the hub did not sign both", seq)
        if newest is not None and newest.upto_seq > self.agreed:
            self._agree(newest, newest.upto_seq)
        for side in (self.left, self.right):
            if side.first_lost is not None:
                self.agreed = min(self.agreed, side.first_lost - 1)
        for finding in self.findings:
            self.agreed = min(self.agreed, (finding.stream_seq or 1) - 1)
        return None

    def _agree(self, signed: Receipt | Checkpoint, seq: int) -> None:
        try:
            _verify(signed, self.who)
        except VerifyError:
            self._add(layout.LOG, "hub_sig", "both directories have what the hub did not sign", seq)
        else:
            self.agreed = max(self.agreed, seq)

    def _add(self, path: str, code: str, what: str, seq: int) -> None:
        self.findings.append(LogFinding(path, 0, code, what, label=self.label, stream_seq=seq))


def _verify(signed: Receipt | Checkpoint, who: HubIdentity) -> HubKey:
    return who.verify_receipt(signed) if isinstance(signed, Receipt) else who.verify_checkpoint(signed, 0)


def _prove(
    label: bytes, seq: int, a: Receipt | Checkpoint, b: Receipt | Checkpoint, who: HubIdentity
) -> ProvenEquivocation | None:
    try:
        keys = [_verify(signed, who) for signed in (a, b)]
        evidence = Equivocation.of(a, b, one_pk=keys[0].hub_pk, other_pk=keys[1].hub_pk)
    except VerifyError:
        return None
    return ProvenEquivocation(label=label, stream_seq=seq, evidence=evidence)


def _checkpoint_names(fs: Fs) -> dict[bytes, dict[int, str]]:
    """Return the names of all checkpoints, by label and position: one listing for all labels."""
    names: dict[bytes, dict[int, str]] = {}
    for name in fs.list(layout.LOG):
        if name.startswith("checkpoint-") and (file := layout.log_file(name)) and file.kind == "checkpoint":
            names.setdefault(file.label, {})[file.end_seq] = name
    return names


# --- control records -----------------------------------------------------------------------------------------


def _controls(sides: tuple[Fs, Fs], who: HubIdentity) -> Iterator[LogFinding]:
    """Yield the first control record that differs; the journal is one chain, so one is enough."""
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
