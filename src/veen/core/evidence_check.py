"""Verification of an evidence file: every signature, hash and proof, from the pinned key of the hub to each entry.

Pure: no clock, no disk, no network. The order is fixed, so that one fault in a file has one code:

1. the hub: its identity record, the rotations of its keys, and whether the pinned key leads to them;
2. the stream: name, stream_id, label and epoch belong together, profiles are those that the entries name;
3. each log: checkpoints are signed and only add to each other, runs ascend and stand under the first checkpoint;
4. each entry: the author's signature, the RECEIPT, its place and its root; the author's own numbering;
5. contents: an opening opens its message.

The result says what was checked and what the file cannot show. Nothing is reported as checked that was not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final, Literal, TypeVar

from veen.core.errors import FormatError, OpenError, ProofError, SignatureError, VeenError, VerifyError
from veen.core.evidence_file import (
    EntryEvidence,
    EvidenceFault,
    EvidenceFile,
    LogEvidence,
    OutsideProof,
    Plaintext,
    QuorumUnmet,
)
from veen.core.hashing import H, Ht
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity, IdentityError
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.run_check import MAX_WARNINGS, Authors, Fault, Pair, Rule, RunCheck, check_signatures, warning_of
from veen.core.sealing.ciphertext import Parts, open_with_opening
from veen.core.tlog.policy import CosignedCheckpoint, WitnessPolicy
from veen.core.tlog.proof import CoseReceipt, OuterLeaf, TlogProof
from veen.core.tlog.tree import QuorumError, TlogError
from veen.core.tree.mmr import Mmr
from veen.core.tree.proof import ConsistencyProof, RangeProof

A = TypeVar("A")
_CHECKED_KINDS: Final = ("tlog-proof", "cose-receipt")
T = TypeVar("T")
Content = Literal["sealed", "opened", "stated"]

_BATCH: Final = 512  # entries whose signatures are checked by one call
_PLACES: Final = {  # rules for the place of an entry: rank, code and words; that its profile is listed has rank 2
    Rule.SEQ: (0, "E.EVIDENCE.GAP", "entry {0.seq} is expected here, found {0.actual}"),
    Rule.LABEL: (1, "E.EVIDENCE.STREAM", "entry {0.seq} is of another log"),
    Rule.LEAF: (3, "E.EVIDENCE.RECEIPT", "entry {0.seq}: the RECEIPT is for another message"),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckedEntry:
    """One entry that passed all checks."""

    seq: int
    label: bytes
    msg_id: bytes
    author: bytes  # client_id: the key that signed the MSG
    client_seq: int
    hub_ts: int  # stated by the hub
    hub_pk: bytes  # the key that signed the RECEIPT
    root: bytes
    msg_bytes: int
    content: Content  # opened: shown by its opening; stated: by the exporter alone
    hdr: PayloadHdr | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLog:
    """One label that passed all checks."""

    label: bytes
    epoch: int
    runs: tuple[tuple[int, int], ...]  # first and last number of each run: nothing is missing inside
    checkpoint: Checkpoint  # the one that the runs stand under
    latest: Checkpoint  # the last one; the log only grew in between
    unknown_witnesses: int  # signatures on the checkpoints that no key of the hub made

    @property
    def is_whole(self) -> bool:
        """True if every entry from the first of the log to the first checkpoint is in the file."""
        return self.runs == ((1, self.checkpoint.upto_seq),)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvidenceReport:
    """Result of the check of an evidence file. Everything in it was verified."""

    identity: HubIdentity
    pinned: bool  # False: the keys are those that the file itself names
    signers: tuple[bytes, ...]  # the hub keys that count
    stream_id: bytes | None
    stream_name: str | None
    logs: tuple[CheckedLog, ...]
    entries: tuple[CheckedEntry, ...]
    outside: tuple[str, ...] = ()  # kinds of proofs that were carried and not checked
    outside_checked: tuple[str, ...] = ()  # what proofs by others show, in sentences
    checks: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = ()  # where hub_ts goes back (D-28)

    @property
    def authors(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys(entry.author for entry in self.entries))

    def contents(self) -> dict[str, int]:
        """Count the entries that are sealed, opened and stated."""
        kinds: tuple[Content, ...] = ("sealed", "opened", "stated")
        return {kind: sum(entry.content == kind for entry in self.entries) for kind in kinds}

    def proves(self) -> list[str]:
        """Return what follows from the checks, in sentences."""
        whose = f"the pinned hub {self.identity.hub_id.hex()}" if self.pinned else "whoever has the keys in this file"
        sentences = [
            "Who signed: each message was signed by the key that is shown as its author.",
            f"Who accepted: {whose} signed a receipt for each of them.",
            "Position and order: each entry has exactly this number in its log, under a root that the hub signed.",
        ]
        for log in self.logs:
            runs = ", ".join(f"{first} to {last}" if first != last else str(first) for first, last in log.runs)
            end = f"of the first {log.checkpoint.upto_seq} entries of log {log.label.hex()[:16]}"
            if log.is_whole:
                sentences.append(f"Completeness: all {end} are here, none is missing.")
            elif len(log.runs) == 1:
                sentences.append(f"Completeness: {runs} {end} are here, with none missing inside that range.")
            else:
                sentences.append(f"Completeness: {runs} {end} are here; others between them were left out.")
        sentences += self.outside_checked
        if self.contents()["opened"]:
            sentences.append("Content: what is marked as opened is what the signed ciphertext decrypts to.")
        return sentences

    def limits(self) -> list[str]:
        """Return what the file cannot prove, in sentences."""
        sentences = [] if self.pinned else ["Whose log this is: no key was given to compare the hub's key with."]
        sentences += [
            "Times are stated by the hub. The order of the entries is proven, the clock is not.",
            "Names of people are not part of it: an author is a key.",
            "Entries outside of the ranges above are not shown, and nothing is claimed about them.",
        ]
        if self.warnings:
            sentences.append(f"The clock of the hub went back: {'; '.join(self.warnings)}.")
        if not self.outside_checked:
            sentences.append(
                "That the hub shows everybody the same log: compare the checkpoint with another reader, or with a "
                "witness."
            )
        if len(self.logs) > 1 or any(log.epoch for log in self.logs):
            sentences.append("That the stream has no entries in epochs that are not listed.")
        contents = self.contents()
        if contents["sealed"]:
            sentences.append("What sealed entries say: only their ciphertext is here.")
        if contents["opened"]:
            sentences.append(
                "That an author did not prepare a ciphertext with two openings: the cipher does not bind a ciphertext "
                "to one key. Ask another reader of the stream if an author and the exporter could be the same person."
            )
        if contents["stated"]:
            sentences.append("That the plaintext of entries marked as stated is what was sealed: the exporter says so.")
        if self.outside:
            kinds = ", ".join(sorted(set(self.outside)))
            sentences.append(f"Proofs by others that the file carries ({kinds}) were not checked here.")
        if unknown := sum(log.unknown_witnesses for log in self.logs):
            sentences.append(f"{unknown} witness signatures on checkpoints are by keys that this check does not have.")
        return sentences


def check_evidence(
    evidence: EvidenceFile, trusted: TrustedKeys | None, policy: WitnessPolicy | None = None
) -> EvidenceReport:
    """Run all checks; raise EvidenceFault at the first that fails. Without `trusted`, trust the keys in the file.

    With a `policy` each log of the file must have a CHECKPOINT that is listed in a log of the policy, under a note that
    satisfies it, and receipts of that log must verify.
    """
    hub = _check_hub(evidence, trusted)
    epoch_sec, profile_ids = _check_profiles(evidence)
    routing_key = routing_key_of(hub.identity.hub_id)
    _check_stream(evidence, routing_key)
    order = [(log.epoch, log.label) for log in evidence.logs]
    _require("E.EVIDENCE.FORM", order == sorted(set(order)), "logs are not listed by epoch and label, each once")
    checkers = [_Log(log, hub, epoch_sec, profile_ids) for log in evidence.logs]
    logs = [checker.check_frame(evidence.stream_id, routing_key) for checker in checkers]
    entries = [entry for checker in checkers for entry in checker.check_entries()]
    used = {msg.profile_id for checker in checkers for msg in checker.messages()}
    _require("E.EVIDENCE.FORM", used == set(profile_ids), "the file lists a profile that no entry names")
    pairs = [pair for checker in checkers for pair in checker.pairs()]
    entries = [_with_content(entry, source, msg) for entry, (source, msg) in zip(entries, pairs, strict=True)]
    unchecked, outside_checked = _check_outside(evidence, policy)
    return EvidenceReport(
        identity=hub.identity,
        pinned=trusted is not None,
        signers=tuple(key.hub_pk for key in hub.signers.keys),
        stream_id=evidence.stream_id,
        stream_name=evidence.stream_name,
        logs=tuple(logs),
        entries=tuple(entries),
        outside=unchecked,
        outside_checked=outside_checked,
        checks=_sentences(evidence, hub, trusted, logs, entries),
        warnings=tuple(warning for checker in checkers for warning in checker.warnings)[:MAX_WARNINGS],
    )


# --- the hub ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hub:
    identity: HubIdentity  # as the file has it
    signers: HubIdentity  # those of its keys that count


def _check_hub(evidence: EvidenceFile, trusted: TrustedKeys | None) -> _Hub:
    identity = _read("the identity of the hub", HubIdentity.from_bytes, evidence.identity)
    root_pk = None if trusted is None else trusted.root_pk
    rotations = {(body.hub_pk, body.retired_pk): body for body in identity.rotations()}
    records = []
    for raw in evidence.rotations:
        record = _read("a rotation", ControlRecord.from_bytes, raw)
        body = record.body
        good = isinstance(body, KeyRotate) and rotations.get((body.hub_pk, body.retired_pk)) == body
        _require("E.EVIDENCE.KEYS", good, f"control record {record.seq} is not a rotation of this identity")
        with_key = body.retired_pk if isinstance(body, KeyRotate) else None
        _require(
            "E.EVIDENCE.KEYS", _is_signed(record, with_key), f"control record {record.seq}: hub_sig does not verify"
        )
        records.append(record)
    order = [record.seq for record in records]
    _require("E.EVIDENCE.FORM", order == sorted(set(order)), "rotations are not in the order of the control journal")
    if trusted is not None and trusted.hub_id not in (None, identity.hub_id):
        raise EvidenceFault("E.EVIDENCE.HUB", f"this is the log of hub {identity.hub_id.hex()}, not of the pinned one")
    signers = identity
    if trusted is not None and root_pk is None:
        signers = _follow_rotations(identity, trusted, records)
    try:
        identity.verify(evidence.identity_sig, root_pk)
    except SignatureError as exc:
        raise EvidenceFault("E.EVIDENCE.KEYS", str(exc)) from exc
    return _Hub(identity, signers)


def _follow_rotations(identity: HubIdentity, trusted: TrustedKeys, records: Sequence[ControlRecord]) -> HubIdentity:
    """Return the keys that rotations reach from the pinned one; the newest key of the identity must be one of them."""
    listed = {key.hub_pk for key in identity.keys}
    reached = trusted.follow_rotations(identity, records)
    for hub_pk in trusted.hub_pks:
        if hub_pk not in listed:
            raise EvidenceFault(
                "E.EVIDENCE.HUB",
                f"the given key {hub_pk.hex()} is not a key of this hub, whose present key is "
                f"{identity.current.hub_pk.hex()}",
            )
        if hub_pk not in reached:
            raise EvidenceFault("E.EVIDENCE.HUB", f"no rotation in the file leads from hub_id to key {hub_pk.hex()}")
    if identity.current.hub_pk not in reached:
        raise EvidenceFault(
            "E.EVIDENCE.HUB",
            f"no rotation in the file leads from the given key to key {identity.current.hub_pk.hex()}, which signs "
            "the identity of the hub",
        )
    keys = tuple(key for key in identity.keys if key.hub_pk in reached)
    return HubIdentity(keys, identity.anchoring, pinned_hub_id=identity.hub_id)


def _is_signed(record: ControlRecord, hub_pk: bytes | None) -> bool:
    try:
        record.verify(hub_pk or b"")
    except SignatureError:
        return False
    return True


# --- the stream ---------------------------------------------------------------------------------------------------


def _check_profiles(evidence: EvidenceFile) -> tuple[int, tuple[bytes, ...]]:
    """Return epoch_sec, which all profiles share, and their ids."""
    profiles = [_read("a profile", Profile.from_bytes, raw) for raw in evidence.profiles]
    ids = tuple(Ht("veen/profile", raw) for raw in evidence.profiles)
    _require("E.EVIDENCE.FORM", list(ids) == sorted(set(ids)), "profiles are not listed by profile_id, each once")
    spans = {profile.epoch_sec for profile in profiles}
    _require("E.EVIDENCE.FORM", len(spans) == 1, "the profiles differ in epoch_sec")
    return spans.pop(), ids


def _check_stream(evidence: EvidenceFile, routing_key: bytes) -> None:
    name, stream_id = evidence.stream_name, evidence.stream_id
    if name is not None:
        of_name = _read("stream_name", stream_id_of, name)
        _require("E.EVIDENCE.STREAM", of_name == stream_id, "stream_id is not that of stream_name")
    if stream_id is None:
        return
    for log in evidence.logs:
        good = log.label == label_of(routing_key, stream_id, log.epoch)
        _require("E.EVIDENCE.STREAM", good, f"label {log.label.hex()} is not that of the stream in epoch {log.epoch}")


# --- logs and entries ---------------------------------------------------------------------------------------------


class _Log:
    """The checks of one label."""

    def __init__(self, log: LogEvidence, hub: _Hub, epoch_sec: int, profile_ids: tuple[bytes, ...]) -> None:
        self._log, self._hub, self._epoch_sec = log, hub, epoch_sec
        self._profile_ids = frozenset(profile_ids)
        self._proofs: list[RangeProof] = []
        self._decoded: list[list[tuple[EntryEvidence, Msg, Receipt]]] = []  # by run
        self._first: Checkpoint | None = None
        self.warnings: list[str] = []

    def messages(self) -> list[Msg]:
        return [msg for run in self._decoded for _, msg, _ in run]

    def pairs(self) -> list[tuple[EntryEvidence, Msg]]:
        return [(source, msg) for run in self._decoded for source, msg, _ in run]

    def check_frame(self, stream_id: bytes | None, routing_key: bytes) -> CheckedLog:
        """Check checkpoints, their consistency proofs and the order of the runs."""
        log = self._log
        checkpoints = [_read("a CHECKPOINT", Checkpoint.from_bytes, raw) for raw in log.checkpoints]
        unknown = sum(self._check_checkpoint(checkpoint, stream_id, routing_key) for checkpoint in checkpoints)
        sizes = [checkpoint.upto_seq for checkpoint in checkpoints]
        _require("E.EVIDENCE.FORM", sizes == sorted(set(sizes)), "checkpoints are not listed by upto_seq, each once")
        self._check_growth(checkpoints)
        self._first = checkpoints[0]
        self._proofs = [_read("a range_proof", RangeProof.from_bytes, run.proof) for run in log.runs]
        runs = tuple((proof.first_seq, proof.last_seq) for proof in self._proofs)
        for (_, last), (first, _) in pairwise(runs):
            _require("E.EVIDENCE.FORM", first > last + 1, "runs do not ascend with a gap between them")
        return CheckedLog(
            label=log.label,
            epoch=log.epoch,
            runs=runs,
            checkpoint=checkpoints[0],
            latest=checkpoints[-1],
            unknown_witnesses=unknown,
        )

    def _check_checkpoint(self, checkpoint: Checkpoint, stream_id: bytes | None, routing_key: bytes) -> int:
        """Check one checkpoint; return the number of witness signatures that no key of the hub made."""
        where = f"CHECKPOINT {checkpoint.upto_seq}"
        good = (checkpoint.label_curr, checkpoint.epoch) == (self._log.label, self._log.epoch)
        _require("E.EVIDENCE.CHECKPOINT", good, f"{where} is about another log")
        if stream_id is not None:
            try:
                checkpoint.check_labels(routing_key, stream_id)
            except VerifyError as exc:
                raise EvidenceFault("E.EVIDENCE.CHECKPOINT", str(exc)) from exc
        self._verify_hub_sig(
            "E.EVIDENCE.CHECKPOINT", where, lambda keys: keys.verify_checkpoint(checkpoint, self._epoch_sec).hub_pk
        )
        keys = [key.hub_pk for key in self._hub.identity.keys]
        return len(checkpoint.witness_sigs or ()) - len(checkpoint.verify_witnesses(keys))

    def _check_growth(self, checkpoints: Sequence[Checkpoint]) -> None:
        log = self._log
        good = len(log.consistency) == len(checkpoints) - 1
        _require(
            "E.EVIDENCE.FORM", good, "a consistency_proof from one checkpoint to the next is missing or superfluous"
        )
        for raw, older, newer in zip(log.consistency, checkpoints, checkpoints[1:], strict=False):
            proof = _read("a consistency_proof", ConsistencyProof.from_bytes, raw)
            try:
                proof.verify(
                    from_size=older.upto_seq,
                    from_root=older.mmr_root,
                    to_size=newer.upto_seq,
                    to_root=newer.mmr_root,
                )
            except ProofError as exc:
                raise EvidenceFault(
                    "E.EVIDENCE.PROOF", f"checkpoints {older.upto_seq}, {newer.upto_seq}: {exc}"
                ) from exc

    def check_entries(self) -> list[CheckedEntry]:
        """Check every entry of every run, in order."""
        authors, last_ts, last_seq = Authors(), 0, 0
        checked = []
        for run, proof in zip(self._log.runs, self._proofs, strict=True):
            decoded = [(entry, *_objects(entry)) for entry in run.entries]
            authors.skip(proof.first_seq - 1 - last_seq)
            check = RunCheck(self._log.label, _tree_of_size(proof), authors, last_ts=last_ts)
            faults = [fault for _, msg, receipt in decoded for fault in check.append(msg, receipt)]
            last_ts, last_seq = check.last_ts, proof.last_seq
            self._check_places(proof, decoded, faults)
            unsigned, signers = self._check_signatures([Pair(msg, receipt) for _, msg, receipt in decoded])
            faults += unsigned
            self._check_authors(proof, [msg for _, msg, _ in decoded], faults)
            self._check_roots(proof, decoded, faults)
            self._check_numbers(faults)
            self.warnings += [f"entry {fault.seq}: {warning_of(fault)}" for fault in faults if fault.rule is Rule.TIME]
            checked += [
                _entry_of(msg, receipt, signer or b"")
                for (_, msg, receipt), signer in zip(decoded, signers, strict=True)
            ]
            self._decoded.append(decoded)
        return checked

    def _check_places(
        self, proof: RangeProof, decoded: Sequence[tuple[EntryEvidence, Msg, Receipt]], faults: Sequence[Fault]
    ) -> None:
        """Check that numbers have no gap, that each RECEIPT is for its MSG, and that all are of this log."""
        misplaced = [
            (seq, 2, "E.EVIDENCE.STREAM", f"entry {seq}: its profile is not listed")
            for seq, (_, msg, _) in enumerate(decoded, start=proof.first_seq)
            if msg.profile_id not in self._profile_ids
        ]
        for fault in faults:
            if fault.rule in _PLACES:
                rank, code, words = _PLACES[fault.rule]
                misplaced.append((fault.seq, rank, code, words.format(fault)))
        if misplaced:
            _, _, code, words = min(misplaced)
            raise EvidenceFault(code, words)
        if proof.last_seq != proof.first_seq + len(decoded) - 1:
            last = proof.first_seq + len(decoded) - 1
            raise EvidenceFault("E.EVIDENCE.GAP", f"entries up to {proof.last_seq} are announced, the last is {last}")

    def _check_signatures(self, pairs: Sequence[Pair]) -> tuple[list[Fault], list[bytes | None]]:
        faults: list[Fault] = []
        signers: list[bytes | None] = []
        for start in range(0, len(pairs), _BATCH):
            unsigned, keys = check_signatures(pairs[start : start + _BATCH], self._hub.signers)
            faults += [fault for of_pair in unsigned for fault in of_pair]
            signers += keys
        return faults, signers

    def _check_authors(self, proof: RangeProof, messages: Sequence[Msg], faults: Sequence[Fault]) -> None:
        """Check that each message is what its author signed, and that its ciphertext has the right form."""
        if (fault := _first(faults, Rule.CT_HASH, Rule.AUTHOR_SIG)) is not None:
            msg = messages[fault.seq - proof.first_seq]
            words = "ct_hash is not the hash of the ciphertext (I1)"
            if fault.rule is Rule.AUTHOR_SIG:
                words = "sig does not verify under client_id"
            raise EvidenceFault("E.EVIDENCE.AUTHOR", f"message {msg.leaf_hash().hex()}: MSG: {words}")
        for msg in messages:
            try:
                Parts.split(msg.ciphertext)
            except VeenError as exc:
                raise EvidenceFault("E.EVIDENCE.AUTHOR", f"message {msg.leaf_hash().hex()}: {exc}") from exc

    def _check_roots(
        self, proof: RangeProof, decoded: Sequence[tuple[EntryEvidence, Msg, Receipt]], faults: Sequence[Fault]
    ) -> None:
        """Check that each RECEIPT signs the root after its entry, and that the checkpoint includes the run."""
        first = self._first
        assert first is not None  # noqa: S101 - check_frame ran
        try:
            Mmr(proof.first_seq - 1, proof.before)
        except ProofError as exc:
            raise EvidenceFault("E.EVIDENCE.PROOF", f"entry {proof.first_seq}: {exc}") from exc
        if (fault := _first(faults, Rule.ROOT, Rule.HUB_SIG)) is not None:
            if fault.rule is Rule.ROOT:
                words = f"entry {fault.seq} does not lead to the root of its RECEIPT"
                raise EvidenceFault("E.EVIDENCE.PROOF", words)
            receipt = decoded[fault.seq - proof.first_seq][2]
            self._verify_hub_sig("E.EVIDENCE.RECEIPT", f"RECEIPT {fault.seq}", partial(_receipt_signer, receipt))
        try:
            proof.verify(
                leaves=[receipt.leaf_hash for _, _, receipt in decoded],
                first_seq=proof.first_seq,
                tree_size=first.upto_seq,
                expected_root=first.mmr_root,
            )
        except ProofError as exc:
            raise EvidenceFault("E.EVIDENCE.PROOF", f"entries {proof.first_seq} to {proof.last_seq}: {exc}") from exc

    def _check_numbers(self, faults: Sequence[Fault]) -> None:
        """Check the numbers of each author, with room for the entries between the runs (I6, I8, I9, D-189)."""
        fault = _first(faults, Rule.CLIENT_SEQ, Rule.ACK_BACK, Rule.ACK_AHEAD)
        if fault is None:
            return
        words = f"prev_ack {fault.actual!r} is not possible here"
        if fault.rule is Rule.CLIENT_SEQ:
            before = fault.expected - 1 if isinstance(fault.expected, int) else 0
            words = f"the author's number {fault.actual!r} follows {before}"
        raise EvidenceFault("E.EVIDENCE.GAP", f"entry {fault.seq}: {words}")

    def _verify_hub_sig(self, code: str, where: str, verify: Callable[[HubIdentity], bytes]) -> bytes:
        """Return the key that signed. A key of the hub that the pin does not reach has a code of its own."""
        try:
            return verify(self._hub.signers)
        except SignatureError as exc:
            try:
                foreign = verify(self._hub.identity)
            except SignatureError:
                raise EvidenceFault(code, f"{where}: hub_sig is by no key of the hub that was valid then") from exc
        raise EvidenceFault(
            "E.EVIDENCE.HUB",
            f"{where} is signed by key {foreign.hex()}, to which the given key does not lead: "
            "give the first key of the hub, or its hub_id as well",
        )


def _receipt_signer(receipt: Receipt, keys: HubIdentity) -> bytes:
    return keys.verify_receipt(receipt).hub_pk


def _tree_of_size(proof: RangeProof) -> Mmr:
    """Return the tree before a run, or any tree of its size if the proof has none: `_check_roots` then refuses it."""
    size = max(proof.first_seq - 1, 0)
    try:
        return Mmr(size, proof.before)
    except ProofError:
        return Mmr(size, [bytes(32)] * size.bit_count())


def _first(faults: Sequence[Fault], *rules: Rule) -> Fault | None:
    """Return the first fault, by entry and then by rule, of those that break one of `rules`."""
    broken = [fault for fault in faults if fault.rule in rules]
    return min(broken, key=lambda fault: (fault.seq, rules.index(fault.rule)), default=None)


def _objects(entry: EntryEvidence) -> tuple[Msg, Receipt]:
    return (
        _read("a MSG", Msg.from_bytes, entry.msg),
        _read("a RECEIPT", Receipt.from_bytes, entry.receipt),
    )


def _entry_of(msg: Msg, receipt: Receipt, hub_pk: bytes) -> CheckedEntry:
    return CheckedEntry(
        seq=receipt.stream_seq,
        label=receipt.label,
        msg_id=receipt.leaf_hash,
        author=msg.client_id,
        client_seq=msg.client_seq,
        hub_ts=receipt.hub_ts,
        hub_pk=hub_pk,
        root=receipt.mmr_root,
        msg_bytes=len(msg.ciphertext),
        content="sealed",
    )


# --- contents and other proofs ------------------------------------------------------------------------------------


def _with_content(entry: CheckedEntry, source: EntryEvidence, msg: Msg) -> CheckedEntry:
    content = source.content
    if content is None:
        return entry
    if isinstance(content, Plaintext):
        hdr = _read(f"the header of entry {entry.seq}", PayloadHdr.from_bytes, content.payload_hdr)
        return replace(entry, content="stated", hdr=hdr, body=content.body)
    try:
        opened = open_with_opening(content, msg)
    except (OpenError, FormatError) as exc:
        raise EvidenceFault("E.EVIDENCE.OPENING", f"entry {entry.seq}: its opening does not open it") from exc
    return replace(entry, content="opened", hdr=opened.hdr, body=opened.body)


def _check_outside(evidence: EvidenceFile, policy: WitnessPolicy | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check the proofs by others; return the kinds that were not checked, and sentences about the rest."""
    proofs = evidence.outside or ()
    checkpoints = {H(raw): (log.label, raw) for log in evidence.logs for raw in log.checkpoints}
    for proof in proofs:
        good = proof.checkpoint_hash in checkpoints
        _require("E.EVIDENCE.FORM", good, f"a {proof.kind} is about a checkpoint that is not in the file")
    if policy is None:
        return tuple(proof.kind for proof in proofs), ()
    cosigned: dict[bytes, CosignedCheckpoint] = {}  # by checkpoint_hash
    for proof in proofs:
        if proof.kind == "tlog-proof":
            leaf = _leaf_of(checkpoints[proof.checkpoint_hash][1])
            cosigned[proof.checkpoint_hash] = _outside(proof, partial(_check_note, leaf=leaf, policy=policy))
    labels = {checkpoints[checkpoint_hash][0] for checkpoint_hash in cosigned}
    missing = [log.label.hex()[:16] for log in evidence.logs if log.label not in labels]
    if missing:
        raise QuorumUnmet(f"no tlog-proof for log {', '.join(missing)}, which a policy demands")
    for proof in proofs:
        if proof.kind == "cose-receipt":
            accepted = cosigned.get(proof.checkpoint_hash)
            if accepted is None:  # its size is not signed, so it needs the note
                raise EvidenceFault(
                    "E.EVIDENCE.OUTSIDE", "a cose-receipt comes without the tlog-proof of its checkpoint"
                )
            leaf = _leaf_of(checkpoints[proof.checkpoint_hash][1])
            _outside(proof, partial(_check_receipt, leaf=leaf, accepted=accepted))
    sentences = [
        f"One list for everybody: a checkpoint of log {checkpoints[checkpoint_hash][0].hex()[:16]} is listed in"
        f" {accepted.log.name}, whose first {accepted.checkpoint.size} leaves were cosigned by"
        f" {', '.join(sorted(accepted.cosigned)) or 'no witness'}."
        for checkpoint_hash, accepted in cosigned.items()
    ]
    return tuple(proof.kind for proof in proofs if proof.kind not in _CHECKED_KINDS), tuple(sentences)


def _check_note(data: bytes, *, leaf: bytes, policy: WitnessPolicy) -> CosignedCheckpoint:
    proof = TlogProof.from_bytes(data)
    proof.check(leaf)
    return policy.check(proof.note)


def _check_receipt(data: bytes, *, leaf: bytes, accepted: CosignedCheckpoint) -> None:
    CoseReceipt.from_bytes(data).verify(accepted.log, leaf, accepted.checkpoint)


def _leaf_of(raw: bytes) -> bytes:
    return OuterLeaf.of_checkpoint(Checkpoint.from_bytes(raw)).to_bytes()


def _outside(proof: OutsideProof, check: Callable[[bytes], T]) -> T:
    try:
        return check(proof.data)
    except QuorumError as exc:
        raise QuorumUnmet(f"{proof.kind}: {exc}") from exc
    except TlogError as exc:
        raise EvidenceFault("E.EVIDENCE.OUTSIDE", f"{proof.kind}: {exc}") from exc


# --- shared -------------------------------------------------------------------------------------------------------


def _require(code: str, good: bool, what: str) -> None:
    if not good:
        raise EvidenceFault(code, what)


def _read(what: str, read: Callable[[A], T], raw: A) -> T:
    """Call `read` with `raw`; raise EvidenceFault if the bytes are not the canonical encoding of an object."""
    try:
        return read(raw)
    except IdentityError as exc:
        raise EvidenceFault("E.EVIDENCE.KEYS", f"{what}: {exc}") from exc
    except FormatError as exc:
        raise EvidenceFault("E.EVIDENCE.FORM", f"{what}: {exc}") from exc


def _sentences(
    evidence: EvidenceFile,
    hub: _Hub,
    trusted: TrustedKeys | None,
    logs: Sequence[CheckedLog],
    entries: Sequence[CheckedEntry],
) -> tuple[str, ...]:
    """Return the checks that were made, in words."""
    by = "the root that was given" if trusted is not None and trusted.root_pk is not None else "its present key"
    lines = [f"the identity of hub {hub.identity.hub_id.hex()} is signed by {by}"]
    if trusted is not None and trusted.root_pk is None:
        count = len(hub.signers.keys)
        lines.append(f"the given key leads to {count} of {len(hub.identity.keys)} keys of the hub")
    if evidence.stream_id is not None:
        name = "" if evidence.stream_name is None else f" of {evidence.stream_name!r}"
        lines.append(f"the labels are those of stream {evidence.stream_id.hex()}{name}")
    for log in logs:
        runs = ", ".join(f"{first}..{last}" for first, last in log.runs)
        lines.append(
            f"log {log.label.hex()}: entries {runs} stand under the root that the hub signed for "
            f"{log.checkpoint.upto_seq} entries, {log.checkpoint.mmr_root.hex()}"
        )
        if log.latest is not log.checkpoint:
            lines.append(f"the log only grew from {log.checkpoint.upto_seq} to {log.latest.upto_seq} entries")
    lines.append(f"{len(entries)} messages are signed by their authors, {len({e.author for e in entries})} keys")
    lines.append(f"{len(entries)} receipts are signed by the hub, each for its message, number and root")
    if opened := sum(entry.content == "opened" for entry in entries):
        lines.append(f"{opened} openings open their messages")
    return tuple(lines)
