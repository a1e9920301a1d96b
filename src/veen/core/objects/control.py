"""The control journal: state of a hub that is in no label log (D-46).

Token authorisations, registered streams, limits, key rotations, retention, anchors and policy views are records of
one hash chain, each signed by the hub. Label logs and this journal together are the whole state of a hub.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Annotated, ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import MalformedError, SignatureError, VerifyError
from veen.core.hashing import H, Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import PolicyAuthority, PolicyBounds, PolicyRevocation
from veen.core.wire import (
    Bytes32,
    Bytes64,
    Fields,
    Form,
    Part,
    PlainMap,
    Uint,
    Version,
    Wire,
    WireField,
    WireType,
    reference,
)

__all__ = [
    "BODIES",
    "AnchorPublish",
    "CapAuthorize",
    "CapDerive",
    "ControlRecord",
    "HubFence",
    "HubPromote",
    "KeyRotate",
    "LabelOpen",
    "LimitsSet",
    "OuterKey",
    "PolicyAuthority",
    "PolicyBounds",
    "PolicyRevocation",
    "RequestDone",
    "RetentionDrop",
    "StreamRegister",
    "root_of_heads",
]

_GENESIS: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAuthorize(Part, kind="cap.authorize"):
    """A token was accepted; the hub_ts of its first such record is its issued_at (D-47)."""

    auth_ref: Bytes32
    token_hash: Bytes32
    token: bytes

    @classmethod
    def of(cls, token: CapToken) -> Self:
        data = token.to_bytes()
        return cls(auth_ref=token.auth_ref(), token_hash=H(data), token=data)

    def check(self) -> CapToken:
        """Return the token; raise VerifyError unless the record is about exactly these bytes."""
        token = CapToken.from_bytes(self.token)
        if H(self.token) != self.token_hash or not compare_digest(token.auth_ref(), self.auth_ref):
            raise VerifyError("control record: auth_ref or token_hash does not match the token")
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class CapDerive(CapAuthorize, kind="cap.derive"):
    """A token was accepted because the subject of another one, `parent_ref`, issued it (D-179).

    It counts as that of a cap.authorize, while the other one counts too.
    """

    parent_ref: Bytes32

    @classmethod
    def from_parent(cls, token: CapToken, parent_ref: bytes) -> Self:
        data = token.to_bytes()
        return cls(auth_ref=token.auth_ref(), token_hash=H(data), token=data, parent_ref=parent_ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegister(Part, kind="stream.register"):
    """A stream whose labels the hub resolves although no token names it (D-23)."""

    stream_id: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOpen(Part, kind="label.open"):
    """The first entry of a label follows: which stream and epoch it is, as far as the hub knows (D-23).

    With it, checkpoints can be checked from the data directory alone (spec §4.4.1). A hub with open stream scope
    does not know the stream.
    """

    label: Bytes32
    epoch: Uint
    stream_id: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSet(Part, kind="limits.set"):
    """The limit registry from here on; each label follows with its next chunk (D-75)."""

    limits: PlainMap


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotate(Part, kind="key.rotate"):
    """A hub key joins the active set (spec §8.4)."""

    hub_pk: Bytes32
    valid_from: Uint
    retired_pk: Bytes32 | None = None
    retired_until: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDrop(Part, kind="retention.drop"):
    """The payloads of a sealed chunk were erased; receipts and proofs stay (D-74)."""

    label: Bytes32
    start_seq: Uint
    end_seq: Uint
    entry_hashes_root: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPublish(Part, kind="anchor.publish"):
    """A checkpoint's root was anchored outside (D-104)."""

    label: Bytes32
    upto_seq: Uint
    mmr_root: Bytes32
    backend: str
    anchor_ref: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterKey(Part, kind="outer.key"):
    """The key of the hub's outer log: a client that pinned the hub key learns from it which notes are valid (D-172)."""

    origin: str
    vkey: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFence(Part, kind="hub.fence"):
    """The hub stops admitting: no entry follows this record, until a hub.promote names the next primary (D-78)."""

    upto: Uint  # entries of all labels
    root: Bytes32  # of the heads of all labels (`root_of_heads`)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPromote(Part, kind="hub.promote"):
    """A replica goes on as the primary, with what it had then (D-78). Whoever signs for this identity and does not have
    this record in its journal was replaced."""

    source: str  # the address of the primary that the replica followed
    upto: Uint  # entries of all labels
    root: Bytes32  # of the heads of all labels
    complete: bool  # whether a hub.fence of the primary proves that nothing is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone(Part, kind="request.done"):
    """The record before this one is the outcome of an administrative request; both became durable together.

    A hub that is asked again under this id answers with that record, also after a restart. It is a record of its own,
    so that records of keys and anchors, which clients verify, stay as they are.
    """

    request_id: Bytes32
    record: Uint  # seq of the outcome


def root_of_heads(heads: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """Return a hash over (label, number of entries, root) of all labels, by label: the state of a hub at one moment."""
    return Ht("veen/heads", b"".join(label + size.to_bytes(8, "big") + root for label, size, root in sorted(heads)))


# The kinds a journal may hold; a record of another kind is not understood, so it is refused.
BODIES: Final[dict[str, type[Wire]]] = {
    body.KIND: body
    for body in (
        CapAuthorize,
        StreamRegister,
        LabelOpen,
        LimitsSet,
        KeyRotate,
        RetentionDrop,
        AnchorPublish,
        PolicyRevocation,
        PolicyAuthority,
        OuterKey,
        HubFence,
        HubPromote,
        RequestDone,
        PolicyBounds,
        CapDerive,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord(Wire, kind="control record"):
    """One link of the journal: `prev_hash` is the hash of the record before, zeros for the first."""

    FORM: ClassVar[Form] = "array"

    ver: ClassVar[Version] = 1
    seq: Uint  # 1-based
    hub_ts: Uint
    prev_hash: Bytes32
    body: Annotated[
        Wire,
        WireType(
            Fields.object,
            (),
            "the map that `kind` names",
            {"anyOf": [reference(body) for body in BODIES.values()]},
            tuple(BODIES.values()),
        ),
    ]
    hub_sig: Bytes64

    @property
    def kind(self) -> str:
        return self.body.KIND

    @classmethod
    def wire_fields(cls) -> tuple[WireField, ...]:
        ver, seq, *others = super(ControlRecord, cls).wire_fields()
        kind = WireField("kind", "kind", WireType(Fields.text, (), "text", {"enum": list(BODIES)}))
        return (ver, seq, kind, *others)

    @classmethod
    def _read(cls, f: Fields) -> Self:
        """Read the fields; `kind` decides the type of `body`."""
        f.version()
        seq, kind = f.uint("seq"), f.text("kind")
        if kind not in BODIES:
            raise MalformedError(f"unknown kind {kind!r}", cls.KIND)
        return cls(
            seq=seq,
            hub_ts=f.uint("hub_ts"),
            prev_hash=f.bstr("prev_hash", 32),
            body=f.object("body", BODIES[kind]),
            hub_sig=f.bstr("hub_sig", 64),
        )

    @classmethod
    def issue(cls, key: ed25519.SigningKey, previous: Self | None, body: Wire, *, hub_ts: int) -> Self:
        """Sign the record that follows `previous`."""
        unsigned = cls(
            seq=previous.seq + 1 if previous else 1,
            hub_ts=hub_ts,
            prev_hash=previous.record_hash() if previous else _GENESIS,
            body=body,
            hub_sig=b"",
        )
        return replace(unsigned, hub_sig=key.sign(unsigned.signing_digest()))

    def record_hash(self) -> bytes:
        return H(self.to_bytes())

    def signing_digest(self) -> bytes:
        return Ht("veen/control", cbor.encode(self.to_tree()[:-1]))

    def verify(self, hub_pk: bytes) -> None:
        """Raise SignatureError unless `hub_pk` signed this record."""
        if not ed25519.verify(hub_pk, self.signing_digest(), self.hub_sig):
            raise SignatureError(f"control record {self.seq}: hub_sig does not verify under the given hub key")

    def check_follows(self, previous: Self | None) -> None:
        """Raise VerifyError unless this is the next link of the chain; time never runs backwards (D-28)."""
        if self.seq != (previous.seq + 1 if previous else 1):
            raise VerifyError(f"control record {self.seq}: a record is missing before it")
        if self.prev_hash != (previous.record_hash() if previous else _GENESIS):
            raise VerifyError(f"control record {self.seq}: does not continue the record before it")
        if previous and self.hub_ts < previous.hub_ts:
            raise VerifyError(f"control record {self.seq}: its time lies before that of the record before it")
