"""The remembered state of a label (RESYNC0.4, D-66): a value, and the only steps that change it.

A message is stored before it is sent (`with_pending`), and dropped once its receipt is verified (`with_receipts`), so
after a crash at any moment the same bytes are sent again, and never two messages with one client_seq (D-09, D-56).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal, NamedTuple, Self

from veen.core.crypto import hkdf
from veen.core.errors import MalformedError, ProofError
from veen.core.hashing import u64be
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.core.wire import LOCAL, Bytes32, Choice, Length, Map, Size, Uint

Mode = Literal["full", "light"]

RK_BYTES: Final = 32
_MAX_PEAKS: Final = 64


def rekey(rk: bytes, stream_seq: int) -> bytes:
    """Return the next link of the rekey chain, made by the receipt with this stream_seq (D-11)."""
    return hkdf.hkdf(rk, b"", b"veen/rk" + u64be(stream_seq), RK_BYTES)


def session_keys(rk: bytes) -> tuple[bytes, bytes]:
    """Return (send, recv) of a link. No formula of v0.0.1 uses them; they are derived as the spec defines them
    (D-11)."""
    return hkdf.hkdf(rk, b"", b"veen/send", RK_BYTES), hkdf.hkdf(rk, b"", b"veen/recv", RK_BYTES)


class Pending(NamedTuple):
    """A MSG that was sent, or was about to be, and has no receipt yet: the exact bytes to send again."""

    client_seq: int
    msg: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelState(Map, kind="label state"):
    """The state of one client key on one label of one hub. `pending` has its own rows: it may be large."""

    hub_id: Bytes32
    label: Bytes32
    client_id: Bytes32
    profile_id: Bytes32
    mode: Annotated[Mode, Choice("full", "light")]
    client_seq: Uint = 0  # the last one used
    prev_ack: Uint = 0
    last_stream_seq: Uint = 0  # the last verified entry
    last_mmr_root: Bytes32 | None = None  # at last_stream_seq; None while that is 0
    peaks: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PEAKS)] = ()  # full mode: those of last_stream_seq leaves
    rk: Annotated[bytes, Size(RK_BYTES)] = field(repr=False)
    last_receipt: Receipt | None = None  # the newest one seen: evidence against a hub that rewinds
    pending: Annotated[tuple[Pending, ...], LOCAL] = field(default=(), repr=False)

    def _check(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise MalformedError unless the parts agree: the peaks with the root, the receipt and prev_ack with the
        rest."""
        if self.client_seq >= 2**63:  # no table has a wider integer (D-07)
            raise MalformedError("client_seq is beyond all use", self.KIND)
        if (self.last_mmr_root is None) != (self.last_stream_seq == 0):
            raise MalformedError("there is a root exactly when there are entries", self.KIND)
        if self.mode == "light" and self.peaks:
            raise MalformedError("a light client keeps no peaks (D-66)", self.KIND)
        if self.mode == "full":
            try:
                tree = Mmr(self.last_stream_seq, self.peaks)
            except ProofError as exc:
                raise MalformedError(str(exc), self.KIND) from exc
            if tree.size and tree.root() != self.last_mmr_root:
                raise MalformedError("the peaks do not fold into the root", self.KIND)
        if self.prev_ack > self.last_stream_seq:
            raise MalformedError("prev_ack lies beyond what was verified", self.KIND)
        receipt = self.last_receipt
        if receipt is not None and (receipt.label != self.label or receipt.stream_seq > self.last_stream_seq):
            raise MalformedError("the receipt is not of this state", self.KIND)
        numbers = [pending.client_seq for pending in self.pending]
        if numbers != sorted(set(numbers)) or (numbers and not 1 <= numbers[0] <= numbers[-1] <= self.client_seq):
            raise MalformedError("a pending message does not fit client_seq", self.KIND)

    # --- steps -----------------------------------------------------------------------------------------

    def with_pending(self, *messages: bytes) -> Self:
        """Add messages that are about to be sent. Save the result first: then a crash cannot reuse their client_seq."""
        pending = list(self.pending)
        client_seq = self.client_seq
        for data in messages:
            msg = Msg.from_bytes(data)
            client_seq += 1
            if (msg.label, msg.client_id, msg.client_seq) != (self.label, self.client_id, client_seq):
                raise ValueError(f"the next message has client_seq {client_seq} on this label, by this client key")
            pending.append(Pending(client_seq, data))
        return replace(self, client_seq=client_seq, pending=tuple(pending))

    def with_receipts(self, receipts: Mapping[int, Receipt]) -> Self:
        """Drop pending messages by client_seq -> verified receipt. The log is verified up to the last of them."""
        rk = self.rk
        for client_seq in sorted(receipts):
            rk = rekey(rk, receipts[client_seq].stream_seq)
        return replace(
            self,
            prev_ack=max(self.prev_ack, *(receipt.stream_seq for receipt in receipts.values()), 0),
            rk=rk,
            pending=tuple(pending for pending in self.pending if pending.client_seq not in receipts),
        )

    def withdraw(self, client_seq: int) -> Self:
        """Free the client_seqs of this message and all after it, none of which the hub admitted."""
        pending_before = tuple(pending for pending in self.pending if pending.client_seq < client_seq)
        return replace(self, client_seq=client_seq - 1, pending=pending_before)

    def for_next_key(self, client_id: bytes) -> Self:
        """Return the initial state of the identity's next client key: the log as verified so far, and client_seq 0
        (D-102a)."""
        return replace(self, client_id=client_id, client_seq=0, pending=())
