"""Checks of receipts and messages, one after another (002 §12, D-117, D-153). Pure: records in, findings out.

I1, I2, I4 and I6 are checked for each message, I3 by folding all leaves from the first on. I5 and I7 need the opened
payload_hdr, so `check_payload` checks them where a reader has it; in an import ciphertexts are opaque (D-116).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from veen.core.cbor import U64_MAX
from veen.core.tree.mmr import Mmr
from veen.products.vesn.errors import Finding, Problem, Violation
from veen.products.vesn.ledger import att_root_of, new_mmr
from veen.products.vesn.objects import (
    DEFAULT_PROFILE,
    CapToken,
    Checkpoint,
    Equivocation,
    Msg,
    PayloadHdr,
    Profile,
    Receipt,
    RoutingSecret,
    label_of,
)
from veen.products.vesn.sealing import ROTATE_AFTER

MAX_FINDINGS: Final = 100  # a set with more is not read to its end
MAX_LABELS: Final = 65_536
MAX_CLIENTS: Final = 262_144
MAX_CHECKPOINTS: Final = 65_536
MAX_STEPS: Final = 4 * MAX_CHECKPOINTS
_EPOCH_SKEW: Final = 1  # a message near a boundary may carry the label of the epoch before or after

SUPPORTED: Final = (DEFAULT_PROFILE, Profile(epoch_sec=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Keys that the verifier trusts, and profiles that it supports."""

    hub_pks: tuple[bytes, ...]
    witness_pks: tuple[bytes, ...] = ()
    profiles: tuple[Profile, ...] = SUPPORTED
    ignore: frozenset[str] = frozenset()  # files that are not checked

    def profiles_by_id(self) -> dict[bytes, Profile]:
        return {profile.profile_id(): profile for profile in self.profiles}


class TooManyFindings(Exception):
    """The limit of findings is reached."""


class Findings:
    """The findings so far; raises TooManyFindings at the limit."""

    def __init__(self) -> None:
        self.items: list[Finding] = []

    def add(self, problem: Problem, where: str, what: str) -> None:
        self.items.append(Finding(problem, where, what))
        if len(self.items) >= MAX_FINDINGS:
            raise TooManyFindings

    def add_violation(self, where: str, violation: Violation) -> None:
        self.add(violation.problem, where, violation.what)


# --- one entry --------------------------------------------------------------------------------------------------


def check_message(receipt: Receipt, msg: Msg, *, profiles: Mapping[bytes, Profile], observed: int) -> None:
    """Raise Violation unless the message is that of the receipt (I2), supported (I4), and within prev_ack (I6).

    `msg.verify` has checked I1 and the signature. `observed` is the last stream_seq before this entry.
    """
    if msg.leaf_hash() != receipt.leaf_hash:
        raise Violation(Problem.I2, "leaf_hash of the receipt is not that of the message (I2)")
    if msg.label != receipt.label:
        raise Violation(Problem.LABEL, "message and receipt have different labels")
    profile = profiles.get(msg.profile_id)
    if profile is None:
        raise Violation(Problem.I4, f"profile_id {msg.profile_id.hex()[:16]}… is not supported (I4)")
    if profile.pad_block and len(msg.ciphertext) % profile.pad_block:
        raise Violation(
            Problem.PADDING, f"{len(msg.ciphertext)} bytes of ciphertext are no multiple of {profile.pad_block}"
        )
    if msg.prev_ack > observed:
        raise Violation(Problem.I6, f"prev_ack {msg.prev_ack} is above {observed}, the last stream_seq before (I6)")


def check_payload(
    hdr: PayloadHdr,
    *,
    coids: Sequence[bytes] | None = None,
    tokens: Iterable[CapToken] = (),
    stream_id: bytes,
    first_used_at: int,
    hub_ts: int,
) -> None:
    """Raise Violation unless I5 and I7 hold for an opened header. `coids` are those of the attachments, in order."""
    if hdr.att_root is not None and (coids is None or att_root_of(coids) != hdr.att_root):
        raise Violation(Problem.I5, "att_root is not the root of the attachments (I5)")
    if hdr.cap_ref is not None:
        token = next((token for token in tokens if token.cap_ref() == hdr.cap_ref), None)
        if token is None:
            raise Violation(Problem.I7, "cap_ref names a token that is not at hand (I7)")
        token.check(stream_id=stream_id, first_used_at=first_used_at, now=hub_ts)


def check_entry(
    receipt: Receipt, msg: Msg, *, mmr: Mmr, hub_pks: Sequence[bytes], profiles: Mapping[bytes, Profile]
) -> None:
    """Raise Violation unless a streamed pair holds: hub_sig, I1 to I4, I6. Advances `mmr` by the leaf."""
    receipt.verify(hub_pks)
    msg.verify()
    check_message(receipt, msg, profiles=profiles, observed=mmr.size)
    if receipt.stream_seq != mmr.size + 1:
        raise Violation(Problem.GAP, f"stream_seq is {receipt.stream_seq}, expected {mmr.size + 1}")
    mmr.append(receipt.leaf_hash)
    if mmr.root() != receipt.mmr_root:
        raise Violation(Problem.I3, "mmr_root is not the root of the leaves up to here (I3)")


# --- a whole log ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Log:
    """The receipts of one label.

    `mmr` is None after a gap or a wrong root: from there on I3 cannot be checked. `closed`: the log continued under
    another label, which then owns `mmr`.
    """

    label: bytes
    mmr: Mmr | None
    first_seq: int
    last_seq: int
    last_root: bytes
    continues: bytes | None = None  # the label before this one, if a checkpoint links them
    closed: bool = False


@dataclass(slots=True)
class _Anchor:
    """A checkpoint and its comparison with the receipts."""

    checkpoint: Checkpoint
    where: str
    compared: bool = False
    holds: bool = False

    def compare(self, root: bytes) -> None:
        self.compared = True
        self.holds |= self.checkpoint.mmr_root == root


@dataclass(slots=True)
class _Author:
    last_seq: int
    label: bytes
    messages: int = 0


@dataclass(slots=True)
class LogCheck:
    """Checks a log. Feed checkpoints first, then receipts in order, each with its message if it exists; then
    `finish`.
    """

    trust: Trust
    findings: Findings
    secret: RoutingSecret | None = None
    logs: dict[bytes, Log] = field(default_factory=dict)
    receipts: int = 0
    messages: int = 0
    checkpoints: int = 0
    unjudged_witness_sigs: int = 0
    client_seq_gaps: int = 0
    unrotated_clients: int = 0
    last: Receipt | None = None  # the last receipt with a good signature
    suspects: dict[tuple[bytes, int], Receipt] = field(default_factory=dict)  # out of order: perhaps equivocation
    _highest: int = 0
    _anchors: list[_Anchor] = field(default_factory=list)
    _due: dict[tuple[bytes, int], list[_Anchor]] = field(default_factory=dict)  # (label, upto_seq)
    _links: dict[tuple[bytes, int], list[Checkpoint]] = field(default_factory=dict)  # by (label_curr, upto_seq)
    _epochs: dict[bytes, int] = field(default_factory=dict)  # by label_curr
    _root_at: dict[tuple[bytes, int], bytes] = field(default_factory=dict)  # where checkpoints are
    _steps: int = 0  # from link to link, over the whole set
    _authors: dict[bytes, _Author] = field(default_factory=dict)
    _profiles: dict[bytes, Profile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._profiles = self.trust.profiles_by_id()

    def checkpoint(self, where: str, checkpoint: Checkpoint) -> None:
        self.checkpoints += 1
        if self.checkpoints > MAX_CHECKPOINTS:
            raise Violation(Problem.LIMIT, f"more than {MAX_CHECKPOINTS} checkpoints")
        try:
            checkpoint.verify(self.trust.hub_pks, self.trust.witness_pks)
        except Violation as exc:
            self.findings.add_violation(where, exc)
            return
        if not self.trust.witness_pks:
            self.unjudged_witness_sigs += len(checkpoint.witness_sigs or ())
        if self.secret is not None:
            expected = label_of(self.secret.routing_key, self.secret.stream_id, checkpoint.epoch)
            if expected != checkpoint.label_curr:
                self.findings.add(Problem.LABEL, where, "label_curr is not the label of the stream in this epoch")
        anchor = _Anchor(checkpoint, where)
        self._anchors.append(anchor)
        for label in {checkpoint.label_prev, checkpoint.label_curr}:
            self._due.setdefault((label, checkpoint.upto_seq), []).append(anchor)
        if checkpoint.label_prev != checkpoint.label_curr:
            self._links.setdefault((checkpoint.label_curr, checkpoint.upto_seq), []).append(checkpoint)
            self._epochs.setdefault(checkpoint.label_curr, checkpoint.epoch)

    def receipt(self, where: str, receipt: Receipt) -> bool:
        """Check a receipt: signature, position, root. False if it has no place in the log."""
        self.receipts += 1
        try:
            receipt.verify(self.trust.hub_pks)
        except Violation as exc:
            self.findings.add_violation(where, exc)
            return False
        self.last = receipt
        log = self.logs.get(receipt.label) or self._begin(where, receipt)
        if log.closed or receipt.stream_seq <= log.last_seq:
            self.suspects.setdefault((receipt.label, receipt.stream_seq), receipt)
            self.findings.add(
                Problem.GAP, where, f"stream_seq {receipt.stream_seq} comes after {self._last_seq(log)} of the same log"
            )
            return False
        if receipt.stream_seq != log.last_seq + 1:
            self.findings.add(
                Problem.GAP,
                where,
                f"stream_seq is {receipt.stream_seq}, expected {log.last_seq + 1}: entries are missing",
            )
            log.mmr = None
        elif log.mmr is not None:
            log.mmr.append(receipt.leaf_hash)
            if log.mmr.root() != receipt.mmr_root:
                self.findings.add(Problem.I3, where, "mmr_root is not the root of the leaves up to here (I3)")
                log.mmr = None
        log.first_seq = log.first_seq or receipt.stream_seq
        log.last_seq, log.last_root = receipt.stream_seq, receipt.mmr_root
        place = (receipt.label, receipt.stream_seq)
        for anchor in self._due.get(place, ()):
            self._root_at[place] = receipt.mmr_root
            anchor.compare(receipt.mmr_root)
        return True

    def begin_at(self, receipt: Receipt) -> None:
        """Take the label of `receipt` as one whose entries before it are not available: I3 is then not checked."""
        if receipt.stream_seq > 1:
            if len(self.logs) >= MAX_LABELS:
                raise Violation(Problem.LIMIT, f"more than {MAX_LABELS} labels")
            self.logs[receipt.label] = Log(receipt.label, None, 0, receipt.stream_seq - 1, b"")

    def message(self, where: str, receipt: Receipt, msg: Msg) -> None:
        """Check the message of a receipt; its own signature and I1 were checked by `Msg.verify`."""
        self.messages += 1
        try:
            check_message(receipt, msg, profiles=self._profiles, observed=max(self._highest, receipt.stream_seq - 1))
        except Violation as exc:
            self.findings.add_violation(where, exc)
        self._highest = max(self._highest, receipt.stream_seq)
        self._author(where, msg)

    def finish(self) -> None:
        """Report faults that only the end shows: checkpoints without an entry, or with a root that matches none."""
        for anchor in sorted(self._anchors, key=lambda anchor: anchor.checkpoint.epoch):
            checkpoint = anchor.checkpoint
            upto = checkpoint.upto_seq
            root = self._root_at.get((checkpoint.label_prev, upto))
            if not anchor.compared and root is not None:  # between two epochs without a message
                anchor.compare(root)
            if root is not None:
                self._root_at.setdefault((checkpoint.label_curr, upto), root)
            if not anchor.compared:
                self.findings.add(Problem.GAP, anchor.where, f"it covers stream_seq {upto}, which no receipt has")
            elif not anchor.holds:
                self.findings.add(
                    Problem.CHECKPOINT, anchor.where, f"mmr_root is not that of the receipt at stream_seq {upto}"
                )

    def equivocations(self, receipts: Iterable[Receipt]) -> list[Equivocation]:
        """Return evidence for the suspects, from a second pass over all receipts."""
        evidence = {}
        for receipt in receipts:
            suspect = self.suspects.get((receipt.label, receipt.stream_seq))
            if suspect is not None and receipt != suspect:
                proof = equivocation_of(receipt, suspect, self.trust.hub_pks)
                if proof is not None:
                    evidence[receipt.label, receipt.stream_seq] = proof
        return list(evidence.values())

    # --- labels and authors ---------------------------------------------------------------------------------

    def _begin(self, where: str, receipt: Receipt) -> Log:
        """Return the log of a new label: it continues another log, or begins a tree (D-117)."""
        if len(self.logs) >= MAX_LABELS:
            raise Violation(Problem.LIMIT, f"more than {MAX_LABELS} labels")
        if self.secret is not None and receipt.label not in self._labels_near(receipt):
            self.findings.add(
                Problem.LABEL, where, "it is not a label of the stream of routing_secret; --epoch-sec may be missing"
            )
        before = self._before(receipt)
        if before is None:
            log = Log(receipt.label, new_mmr(), 0, 0, b"")
        else:
            log = Log(receipt.label, before.mmr, 0, before.last_seq, before.last_root, continues=before.label)
            before.closed, before.mmr = True, None
        self.logs[receipt.label] = log
        return log

    def _before(self, receipt: Receipt) -> Log | None:
        """Return the log that checkpoints link to this label and that ends just before the receipt.

        Epochs without a message leave labels without receipts, so a link may lead over several checkpoints.
        """
        upto = receipt.stream_seq - 1
        wanted, visited = [receipt.label], {receipt.label}
        while wanted:
            for link in self._links.get((wanted.pop(), upto), ()):
                self._steps += 1
                if self._steps > MAX_STEPS:
                    raise Violation(Problem.LIMIT, "the checkpoints link too many labels")
                if link.label_prev in visited:
                    continue
                log = self.logs.get(link.label_prev)
                if log is not None and not log.closed and log.last_seq == upto:
                    return log
                visited.add(link.label_prev)
                wanted.append(link.label_prev)
        return None

    def _labels_near(self, receipt: Receipt) -> set[bytes]:
        """Return the labels of the stream around the time of a receipt."""
        assert self.secret is not None  # noqa: S101 - asked by the caller
        epochs = {0, self._epochs.get(receipt.label, 0)}
        for profile in self.trust.profiles:
            if profile.epoch_sec:
                now = profile.epoch_at(receipt.hub_ts)
                epochs |= {epoch for epoch in range(now - _EPOCH_SKEW, now + _EPOCH_SKEW + 1) if 0 <= epoch <= U64_MAX}
        return {label_of(self.secret.routing_key, self.secret.stream_id, epoch) for epoch in epochs}

    def _last_seq(self, log: Log) -> int:
        return max(other.last_seq for other in self.logs.values()) if log.closed else log.last_seq

    def _author(self, where: str, msg: Msg) -> None:
        author = self._authors.get(msg.client_id)
        if author is None:
            if len(self._authors) >= MAX_CLIENTS:
                raise Violation(Problem.LIMIT, f"more than {MAX_CLIENTS} client_ids")
            self._authors[msg.client_id] = _Author(msg.client_seq, msg.label, 1)
            return
        if msg.client_seq <= author.last_seq:
            self.findings.add(
                Problem.CLIENT_SEQ, where, f"client_seq {msg.client_seq} does not follow {author.last_seq}"
            )
        elif msg.client_seq > author.last_seq + 1:
            self.client_seq_gaps += 1  # reported, never refused (D-153)
        author.messages += 1
        rotated_late = msg.label != author.label or author.messages == ROTATE_AFTER + 1
        self.unrotated_clients += rotated_late
        author.last_seq, author.label = max(author.last_seq, msg.client_seq), msg.label


def equivocation_of(receipt: Receipt, other: Receipt, hub_pks: Iterable[bytes]) -> Equivocation | None:
    """Return evidence if both receipts are signed by one of the keys and contradict each other."""
    for hub_pk in hub_pks:
        try:
            return Equivocation.of(receipt, other, hub_pk=hub_pk)
        except Violation:
            continue
    return None
