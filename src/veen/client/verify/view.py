"""The proven prefix of one label, and the checks of its continuation (spec §5.1, §9, D-33, D-35, D-40, D-66).

A view is the size, the peaks and the last receipt of a verified prefix. It only grows: by the entries themselves
(full mode), or by a consistency proof (light mode), and always up to a root that the hub signed. Each contradiction
is a Divergence of its own class; two receipts for one position are evidence.

Everything here is a function of its arguments. An inclusion proof at the size of its own entry (D-33) is just the
peaks before that entry, so one such proof starts a view anywhere in a log, and a view gives the proof of each next
entry.
"""

from collections.abc import Sequence
from typing import Final

from veen.client.errors import (
    Divergence,
    Dropped,
    Equivocated,
    ProofInvalid,
    ReceiptMismatch,
    Reordered,
    RootMismatch,
)
from veen.client.verify.pin import HubPin
from veen.core.errors import ProofError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.evidence import Equivocation, Statement
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Authors, Fault, Rule, RunCheck, check_pair
from veen.core.tree.mmr import Mmr, Span
from veen.core.tree.proof import ConsistencyProof, MmrProof, PathStep


class Forged(Divergence, code="E.DIVERGED.FORGED"):
    """An entry that its author did not sign: no hub may admit it (I1, spec §8.2)."""


# What a broken rule of a run is called, those of a place in the log first: they are reported before all others.
_PLACE: Final[dict[Rule, tuple[type[Divergence], str]]] = {
    Rule.LABEL: (ReceiptMismatch, "an entry is of another label"),
    Rule.LEAF: (ReceiptMismatch, "a receipt is not for the message beside it"),
    Rule.SEQ: (Reordered, "an entry is not at its place"),
    Rule.ROOT: (RootMismatch, "the entries do not lead to the root that the hub signed"),
}
_ENTRY: Final[dict[Rule, tuple[type[Divergence], str]]] = {
    Rule.CT_HASH: (Forged, "MSG: ct_hash is not the hash of the ciphertext (I1)"),
    Rule.AUTHOR_SIG: (Forged, "MSG: sig does not verify under client_id"),
    Rule.CLIENT_SEQ: (Dropped, "an author's messages do not follow each other"),
    Rule.ACK_BACK: (Forged, "prev_ack goes back"),
    Rule.ACK_AHEAD: (Forged, "prev_ack names an entry that did not exist"),
}


def divergence(fault: Fault, label: bytes) -> Divergence:
    """Return the error for a broken rule of a run."""
    kind, words = (_PLACE | _ENTRY)[fault.rule]
    if fault.rule is Rule.SEQ and _is_beyond(fault):
        kind = Dropped
    if fault.rule in (Rule.ACK_BACK, Rule.ACK_AHEAD):
        return kind(words, label=label, seq=fault.seq)
    return kind(words, label=label, seq=fault.seq, expected=fault.expected, found=fault.actual)


def _is_beyond(fault: Fault) -> bool:
    return isinstance(fault.actual, int) and isinstance(fault.expected, int) and fault.actual > fault.expected


class LabelView:
    """A verified prefix of a label. Copy it before a step, and keep the copy if the step succeeds.

    A light client that starts again knows size and root but no peaks; the next proof restores them (D-66).
    """

    __slots__ = ("_root", "_size", "_tree", "label", "last")

    def __init__(
        self,
        label: bytes,
        size: int = 0,
        root: bytes | None = None,
        *,
        peaks: Sequence[bytes] | None = (),
        last: Receipt | None = None,
    ) -> None:
        self.label, self.last = label, last
        self._size, self._root = size, root
        self._tree = None if peaks is None and size else Mmr(size, peaks or ())

    @property
    def size(self) -> int:
        return self._size if self._tree is None else self._tree.size

    @property
    def root(self) -> bytes | None:
        """Root at `size`; an empty label has none (D-30)."""
        if self._tree is None:
            return self._root
        return self._tree.root() if self._tree.size else None

    @property
    def is_whole(self) -> bool:
        """True if the peaks are known, so that the next entry can be appended."""
        return self._tree is not None

    @property
    def peaks(self) -> tuple[bytes, ...] | None:
        return None if self._tree is None else self._tree.peaks()

    def copy(self) -> "LabelView":
        return LabelView(self.label, self.size, self.root, peaks=self.peaks, last=self.last)

    # --- growing ---------------------------------------------------------------------------------------

    def append(self, leaf_hash: bytes, receipt: Receipt) -> None:
        """Append the next entry. Its receipt must be about this leaf, at this place, under the root that results.

        The signature is checked elsewhere: the signature of the last receipt covers a whole run of entries.
        """
        check = RunCheck(self.label, self._require_tree(receipt))
        faults = check_pair(None, receipt, self.label, self.size + 1)
        if leaf_hash != receipt.leaf_hash:
            faults.append(Fault(Rule.LEAF, receipt.stream_seq, leaf_hash, receipt.leaf_hash))
        self._raise_misplaced(faults)
        self._raise_misplaced(check.add_leaf(leaf_hash, receipt.hub_ts, receipt.mmr_root))
        self.last = receipt

    def append_entry(self, msg: Msg, receipt: Receipt, authors: Authors, last_ts: int = 0) -> list[Fault]:
        """Append the next entry with its MSG; return broken rules that are not about its place in the log."""
        faults = RunCheck(self.label, self._require_tree(receipt), authors, last_ts=last_ts).append(msg, receipt)
        if faults:
            self._raise_misplaced(faults)
        self.last = receipt
        return faults

    def _require_tree(self, receipt: Receipt) -> Mmr:
        if self._tree is None:
            raise ProofInvalid("the peaks of the log are not known yet", label=self.label, seq=receipt.stream_seq)
        return self._tree

    def _raise_misplaced(self, faults: Sequence[Fault]) -> None:
        for rule in _PLACE:
            for fault in faults:
                if fault.rule is rule:
                    raise divergence(fault, self.label)

    def start_before(self, receipt: Receipt, proof: MmrProof) -> None:
        """Begin at the entry of a receipt whose signature is verified, from its inclusion proof alone."""
        try:
            proof.verify(leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, expected_root=receipt.mmr_root)
        except ProofError as exc:
            raise ProofInvalid(str(exc), label=self.label, seq=receipt.stream_seq) from exc
        self._tree = Mmr(receipt.stream_seq - 1, peaks_before(proof))
        self.last = None

    def skip_to(self, size: int, proof: ConsistencyProof) -> None:
        """Grow to `size` without the entries. The result counts once a signed root confirms it (`append`)."""
        try:
            if (proof.from_size, proof.to_size) != (self.size, size) or self.peaks not in (None, proof.peaks):
                raise ProofError("the consistency proof is for another log, or for other sizes")
            old = Span.from_peaks(self.size, proof.peaks)
            old.check()
            if old.root() != self.root:
                raise ProofError("the consistency proof does not begin at the root that is known")
            merged = old.merge(Span(self.size, size, proof.added))
        except ProofError as exc:
            raise ProofInvalid(str(exc), label=self.label, seq=size) from exc
        self._tree = Mmr(size, merged.peaks())
        if size != old.end:
            self.last = None

    # --- what is known ---------------------------------------------------------------------------------

    def proof_of_next(self, leaf_hash: bytes) -> MmrProof:
        """Return the inclusion proof of the next entry under the root of its own receipt (D-33)."""
        peaks = self.peaks
        if peaks is None:
            raise ProofInvalid("the peaks of the log are not known yet", label=self.label, seq=self.size + 1)
        steps = ((self.size + 1) & -(self.size + 1)).bit_length() - 1
        path = tuple(PathStep(dir=1, sib=peak) for peak in peaks[:steps])
        return MmrProof(leaf_hash=leaf_hash, path=path, peaks_after=peaks[steps:])

    def check_known(self, statement: Statement, pin: HubPin, epoch_sec: int = 0) -> None:
        """Raise Equivocated if a statement about the position of the last receipt contradicts it."""
        if self.last is not None:
            contradiction(self.last, statement, pin, epoch_sec)


def peaks_before(proof: MmrProof) -> tuple[bytes, ...]:
    """Return the peaks just before the entry of a verified proof: the siblings, then the other peaks (D-33)."""
    return (*(step.sib for step in proof.path), *proof.peaks_after)


def contradiction(one: Statement, other: Statement, pin: HubPin, epoch_sec: int = 0) -> None:
    """Raise Equivocated, with evidence, if two statements that the hub signed cannot both be true (RCPT-07)."""
    (label, seq, root, leaf), (other_label, other_seq, other_root, other_leaf) = _claim(one), _claim(other)
    same_leaf = leaf is None or other_leaf is None or leaf == other_leaf
    if (label, seq) != (other_label, other_seq) or (root == other_root and same_leaf):
        return
    one_pk, other_pk = _signer(one, pin, epoch_sec), _signer(other, pin, epoch_sec)
    evidence = Equivocation.of(one, other, one_pk=one_pk, other_pk=other_pk)
    raise Equivocated("the hub signed two histories", evidence, label=label, seq=seq)


def _claim(statement: Statement) -> tuple[bytes, int, bytes, bytes | None]:
    if isinstance(statement, Checkpoint):
        return statement.label_curr, statement.upto_seq, statement.mmr_root, None
    return statement.label, statement.stream_seq, statement.mmr_root, statement.leaf_hash


def _signer(statement: Statement, pin: HubPin, epoch_sec: int) -> bytes:
    if isinstance(statement, Checkpoint):
        return pin.check_checkpoint(statement, epoch_sec).hub_pk
    return pin.check_receipt(statement).hub_pk


def check_order(label: bytes, first: int, seqs: Sequence[int]) -> None:
    """Check that entries of a page are `first`, `first` + 1, …: raise Reordered for another order, Dropped for a
    gap."""
    wanted = range(first, first + len(seqs))
    if list(seqs) == list(wanted):
        return
    at, received = next((want, seq) for want, seq in zip(wanted, seqs, strict=True) if want != seq)
    if sorted(seqs) == list(wanted) or received < at:
        raise Reordered(
            "entries come in another order than their numbers", label=label, seq=at, expected=at, found=received
        )
    raise Dropped("an entry is missing", label=label, seq=at, expected=at, found=received)
