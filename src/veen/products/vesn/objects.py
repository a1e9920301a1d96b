"""The records of VESN v0.0.1 (002 §2 to §16), the predecessor of VEEN.

Every record is a CBOR map with text keys in canonical order: shorter keys first, then bytewise. Optional fields are
left out, integers have their shortest form (002 §1, §18; D-114). `_read` and `_write` of each class list the fields
in that canonical order, which is not the order of the text. Hashes and signatures have tags that begin with "vesn/".
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import MalformedError
from veen.core.hashing import H, Ht, u64be
from veen.core.wire import Bytes32, Bytes64, Form, Length, Uint, Version, Wire
from veen.products.vesn.errors import Problem, Refused, Violation

# 002 names no sizes. These are above every legal record of the portability set and bound what is read.
MAX_MSG_BYTES: Final = 1024 * 1024 + 1024
MAX_WITNESSES: Final = 64
MAX_CAP_STREAMS: Final = 256
MAX_CAP_LINKS: Final = 8
_MAX_DETAIL: Final = 4096
_NO_LINK: Final = bytes(32)  # prev_link_hash of the first link


class Record(Wire):
    """Base of the VESN records: canonical maps with text keys."""

    __slots__ = ()

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = 64 * 1024
    MAX_ITEMS: ClassVar[int] = 1024

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the one canonical encoding. Raise FormatError for anything else."""
        record = super().from_bytes(data)
        if (
            cbor.encode(record.to_tree()) != data
        ):  # bodies of VEEN may say null for an absent field; here it is an error
            raise MalformedError("a field that must be omitted is null", cls.KIND)
        return record

    def digest_without(self, *omitted: str) -> bytes:
        """Return the digest that a signature of this record covers: Ht("vesn/sig", CBOR without the signature) (002
        §1).
        """
        tree = self.to_tree()
        return Ht("vesn/sig", cbor.encode({name: value for name, value in tree.items() if name not in omitted}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Record, kind="VESN profile"):
    """Algorithms and parameters (002 §2). Only the parameters may differ from the default."""

    dh: str = "x25519"
    kdf: str = "hkdf-sha256"
    sig: str = "ed25519"
    aead: str = "xchacha20poly1305"
    mmr_hash: str = "sha256"
    epoch_sec: Uint = 60
    pad_block: Uint = 0

    def profile_id(self) -> bytes:
        return Ht("vesn/profile", self.to_bytes())

    def epoch_at(self, unix_time: int) -> int:
        """Return the epoch at a time: E of 002 §4."""
        return unix_time // self.epoch_sec if self.epoch_sec else 0


DEFAULT_PROFILE: Final = Profile()


def label_of(routing_key: bytes, stream_id: bytes, epoch: int) -> bytes:
    """Return the label of a stream in an epoch, which the hub sees (002 §4)."""
    return Ht("vesn/label", routing_key + stream_id + u64be(epoch))


def leaf_hash_of(ct_hash: bytes, client_id: bytes, client_seq: int) -> bytes:
    """Return leaf_hash, which is also msg_id (002 §5.1). It covers neither the label nor the profile."""
    return Ht("vesn/leaf", ct_hash + client_id + u64be(client_seq))


@dataclass(frozen=True, slots=True, kw_only=True)
class Msg(Record, kind="VESN MSG"):
    """MSG, the envelope that the hub sees (002 §5.1). It has no auth_ref."""

    MAX_BYTES: ClassVar[int] = MAX_MSG_BYTES

    sig: Bytes64
    ver: ClassVar[Version] = 1
    label: Bytes32
    ct_hash: Bytes32
    prev_ack: Uint
    client_id: Bytes32
    ciphertext: bytes
    client_seq: Uint
    profile_id: Bytes32

    @classmethod
    def compose(
        cls,
        key: ed25519.SigningKey,
        *,
        profile_id: bytes,
        label: bytes,
        client_seq: int,
        prev_ack: int,
        ciphertext: bytes,
    ) -> Self:
        """Sign a message."""
        unsigned = cls(
            sig=b"",
            label=label,
            ct_hash=H(ciphertext),
            prev_ack=prev_ack,
            client_id=key.public,
            ciphertext=ciphertext,
            client_seq=client_seq,
            profile_id=profile_id,
        )
        return replace(unsigned, sig=key.sign(unsigned.digest_without("sig")))

    def leaf_hash(self) -> bytes:
        return leaf_hash_of(self.ct_hash, self.client_id, self.client_seq)

    def verify(self) -> None:
        """Raise Violation unless I1 holds and the client signed the message."""
        if H(self.ciphertext) != self.ct_hash:
            raise Violation(Problem.I1, "ct_hash is not the hash of the ciphertext (I1)")
        if not ed25519.verify(self.client_id, self.digest_without("sig"), self.sig):
            raise Violation(Problem.SIG, "sig does not verify under client_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Record, kind="VESN payload"):
    """A payload as 002 §15 words it: "ciphertext and ct_hash", without the rest of its MSG (decision 86)."""

    MAX_BYTES: ClassVar[int] = MAX_MSG_BYTES

    ct_hash: Bytes32
    ciphertext: bytes

    def verify(self) -> None:
        if H(self.ciphertext) != self.ct_hash:
            raise Violation(Problem.I1, "ct_hash is not the hash of the ciphertext (I1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Record, kind="VESN RECEIPT"):
    """RECEIPT: one message at one position of the stream, under one root (002 §5.2)."""

    ver: ClassVar[Version] = 1
    label: Bytes32
    hub_ts: Uint
    hub_sig: Bytes64
    mmr_root: Bytes32
    leaf_hash: Bytes32
    stream_seq: Uint  # from 1; global over the labels of a stream

    @classmethod
    def issue(
        cls, key: ed25519.SigningKey, *, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
    ) -> Self:
        unsigned = cls(
            label=label, hub_ts=hub_ts, hub_sig=b"", mmr_root=mmr_root, leaf_hash=leaf_hash, stream_seq=stream_seq
        )
        return replace(unsigned, hub_sig=key.sign(unsigned.digest_without("hub_sig")))

    def verify(self, hub_pks: Collection[bytes]) -> None:
        """Raise Violation unless one of the hub keys signed this receipt."""
        digest = self.digest_without("hub_sig")
        if not any(ed25519.verify(hub_pk, digest, self.hub_sig) for hub_pk in hub_pks):
            raise Violation(Problem.SIG, "hub_sig does not verify under the given hub key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Record, kind="VESN CHECKPOINT"):
    """CHECKPOINT: the root at an epoch boundary (002 §5.3). hub_sig and witness_sigs cover the same bytes."""

    ver: ClassVar[Version] = 1
    epoch: Uint
    hub_sig: Bytes64
    mmr_root: Bytes32
    upto_seq: Uint
    label_curr: Bytes32
    label_prev: Bytes32
    witness_sigs: Annotated[tuple[Bytes64, ...], Length(1, MAX_WITNESSES)] | None = None

    @classmethod
    def issue(
        cls,
        key: ed25519.SigningKey,
        *,
        label_prev: bytes,
        label_curr: bytes,
        upto_seq: int,
        mmr_root: bytes,
        epoch: int,
        witnesses: Iterable[ed25519.SigningKey] = (),
    ) -> Self:
        unsigned = cls(
            epoch=epoch, hub_sig=b"", mmr_root=mmr_root, upto_seq=upto_seq, label_curr=label_curr, label_prev=label_prev
        )
        digest = unsigned.digest_without("hub_sig", "witness_sigs")
        signatures = tuple(witness.sign(digest) for witness in witnesses)
        return replace(unsigned, hub_sig=key.sign(digest), witness_sigs=signatures or None)

    def verify(self, hub_pks: Collection[bytes], witness_pks: Collection[bytes] = ()) -> None:
        """Raise Violation unless a hub key signed it, and a different witness key each of witness_sigs.

        Without witness keys the co-signatures are not checked.
        """
        digest = self.digest_without("hub_sig", "witness_sigs")
        if not any(ed25519.verify(hub_pk, digest, self.hub_sig) for hub_pk in hub_pks):
            raise Violation(Problem.SIG, "hub_sig does not verify under the given hub key")
        left = list(dict.fromkeys(witness_pks))
        for number, signature in enumerate((self.witness_sigs or ()) if left else (), start=1):
            signer = next((key for key in left if ed25519.verify(key, digest, signature)), None)
            if signer is None:
                raise Violation(Problem.SIG, f"witness_sigs[{number}] verifies under no witness key that was given")
            left.remove(signer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadHdr(Record, kind="VESN payload_hdr"):
    """payload_hdr, sealed inside the ciphertext (002 §6)."""

    schema: Bytes32
    cap_ref: Bytes32 | None = None
    att_root: Bytes32 | None = None
    parent_id: Bytes32 | None = None
    expires_at: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Record, kind="VESN rate"):
    """A token bucket (002 §11)."""

    burst: Uint
    per_sec: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow(Record, kind="VESN allow"):
    """Rights of a token (002 §11)."""

    ttl: Uint  # seconds after the first use of the token (decision 87)
    rate: Rate | None = None
    stream_ids: Annotated[tuple[Bytes32, ...], Length(1, MAX_CAP_STREAMS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapToken(Record, kind="VESN cap_token"):
    """cap_token (002 §11). Each link of sig_chain is the issuer's signature over the grant and the link before it."""

    ver: ClassVar[Version] = 1
    allow: Allow
    issuer_pk: Bytes32
    sig_chain: Annotated[tuple[Bytes64, ...], Length(1, MAX_CAP_LINKS)]
    subject_pk: Bytes32

    @classmethod
    def issue(cls, issuer: ed25519.SigningKey, subject_pk: bytes, allow: Allow) -> Self:
        token = cls(allow=allow, issuer_pk=issuer.public, sig_chain=(), subject_pk=subject_pk)
        return token.extend(issuer)

    def extend(self, issuer: ed25519.SigningKey) -> Self:
        """Return the token with one more link."""
        return replace(self, sig_chain=(*self.sig_chain, issuer.sign(self._link_digest(len(self.sig_chain)))))

    def cap_ref(self) -> bytes:
        return Ht("vesn/cap", self.to_bytes())

    def _link_digest(self, number: int) -> bytes:
        """Return the digest of a link: the formula of 001 under VESN's tag (D-116)."""
        previous = H(self.sig_chain[number - 1]) if number else _NO_LINK
        return Ht("vesn/cap-link", self.issuer_pk + self.subject_pk + cbor.encode(self.allow.to_tree()) + previous)

    def verify(self) -> None:
        """Raise Violation unless there is a chain and every link of it verifies.

        Each link covers the hash of the one before, so no chain that verifies has a cycle.
        """
        if not self.sig_chain:
            raise Violation(Problem.I7, "sig_chain is empty")
        for number, signature in enumerate(self.sig_chain):
            if not ed25519.verify(self.issuer_pk, self._link_digest(number), signature):
                raise Violation(Problem.I7, f"link {number + 1} of sig_chain does not verify under issuer_pk")

    def check(self, *, stream_id: bytes, first_used_at: int, now: int) -> None:
        """Raise Violation unless the token is valid, unexpired at `now`, and for this stream (I7)."""
        self.verify()
        if now > first_used_at + self.allow.ttl:
            raise Violation(Problem.I7, f"the token expired {now - first_used_at - self.allow.ttl} s before")
        if stream_id not in self.allow.stream_ids:
            raise Violation(Problem.I7, "the token is not for this stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState(Record, kind="VESN sync_state"):
    """sync_state: the last receipt that the owner of a set had (002 §15)."""

    last_mmr_root: Bytes32
    last_stream_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RoutingSecret(Record, kind="VESN routing_secret"):
    """routing_secret of one stream: with it labels can be recomputed (002 §4, §15; decision 85)."""

    stream_id: Bytes32
    routing_key: Bytes32

    def __repr__(self) -> str:
        return f"RoutingSecret(stream_id={self.stream_id.hex()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCard(Record, kind="VESN identity_card"):
    """identity_card: the public long-term keys, signed by id_sign (002 §3, §15; decision 85)."""

    sig: Bytes64
    ver: ClassVar[Version] = 1
    id_dh_pk: Bytes32
    id_sign_pk: Bytes32

    @classmethod
    def issue(cls, id_sign: ed25519.SigningKey, id_dh_pk: bytes) -> Self:
        unsigned = cls(sig=b"", id_dh_pk=id_dh_pk, id_sign_pk=id_sign.public)
        return replace(unsigned, sig=id_sign.sign(unsigned.digest_without("sig")))

    def verify(self) -> None:
        if not ed25519.verify(self.id_sign_pk, self.digest_without("sig"), self.sig):
            raise Violation(Problem.SIG, "sig does not verify under id_sign_pk")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply(Record, kind="VESN error"):
    """The answer of a hub that refuses: {code, detail?} (002 §13)."""

    code: str
    detail: str | None = None

    @classmethod
    def of(cls, refused: Refused) -> Self:
        return cls(code=refused.refusal.value, detail=refused.detail[:_MAX_DETAIL])


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivocation(Record, kind="VESN equivocation"):
    """Two receipts of one hub for one position that differ: portable evidence (002 §14, §16)."""

    ver: ClassVar[Version] = 1
    first: Receipt  # the receipt with the smaller bytes, so that equal evidence has equal bytes
    hub_pk: Bytes32
    second: Receipt

    @classmethod
    def of(cls, receipt: Receipt, other: Receipt, *, hub_pk: bytes) -> Self:
        """Build evidence. Raise Violation unless the two prove that the holder of `hub_pk` equivocated."""
        first, second = sorted((receipt, other), key=Receipt.to_bytes)
        evidence = cls(first=first, hub_pk=hub_pk, second=second)
        evidence.verify()
        return evidence

    def verify(self) -> None:
        """Raise Violation unless both receipts are signed, name one position, and name different roots or leaves."""
        first, second = self.first, self.second
        for receipt in (first, second):
            receipt.verify((self.hub_pk,))
        if (first.label, first.stream_seq) != (second.label, second.stream_seq):
            raise Violation(Problem.EQUIVOCATION, "the receipts are for different positions")
        if (first.mmr_root, first.leaf_hash) == (second.mmr_root, second.leaf_hash):
            raise Violation(Problem.EQUIVOCATION, "the receipts agree")
        if first.to_bytes() > second.to_bytes():
            raise Violation(Problem.EQUIVOCATION, "the receipts are not in the order of their bytes")


# Records in the files of a set; `inspect` tries them in this order.
RECORDS: Final[tuple[type[Record], ...]] = (
    Receipt,
    Msg,
    Checkpoint,
    Pair,
    CapToken,
    SyncState,
    IdentityCard,
    RoutingSecret,
    Equivocation,
    Profile,
    ErrorReply,
)
