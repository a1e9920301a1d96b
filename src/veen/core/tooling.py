"""Requests and responses of the tooling API, in the style of the data plane (D-61). They are our additions.

Maps have integer keys in CBOR and names in JSON; unknown keys are refused, optional fields are omitted. Requests
that carry a wire object as their whole body (a cap_token, an equivocation) need no envelope and have none.
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Final, Self

from veen.core import cbor, ed25519
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.msg import Msg
from veen.core.policies import MAX_POLICY_ITEMS, Authority, Revocation
from veen.core.profile import Profile
from veen.core.proof import ConsistencyProof, MmrProof
from veen.core.receipt import Receipt
from veen.core.wire import Fields, Form, Wire

__all__ = [
    "MAX_BATCH_ITEMS",
    "MAX_LISTED",
    "MAX_WAIT_SEC",
    "AnchorRequest",
    "AnchorResponse",
    "AnchoredCheckpoint",
    "AnchorsResponse",
    "AttachmentGrant",
    "AuthorizeResponse",
    "CapStatusRequest",
    "CapStatusResponse",
    "CheckpointRangeRequest",
    "ConsistencyRequest",
    "ConsistencyResponse",
    "HealthResponse",
    "HubKey",
    "IdentityResponse",
    "InspectRequest",
    "InspectResponse",
    "LabelInfo",
    "LabelRequest",
    "LegacyItem",
    "OkResponse",
    "PolicyRecordsResponse",
    "PolicyRequest",
    "PolicyResponse",
    "ProofAtRequest",
    "ReadyResponse",
    "RecordResponse",
    "RotateKeyRequest",
    "StatusResponse",
    "StreamRegisterRequest",
    "StreamsResponse",
    "TailRequest",
    "VersionRequest",
    "VersionResponse",
]

MAX_BATCH_ITEMS: Final = 1_000
MAX_LISTED: Final = 1_000  # elements of one answer that lists things
MAX_WAIT_SEC: Final = 60


class _Map(Wire):
    """A map whose fields are the dataclass's own, in their order, after `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, **{name: getattr(self, name) for name in _fields_of(type(self))}}


class _Part(Wire):
    """A map inside another one: no `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"

    def _write(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _fields_of(type(self))}


@cache
def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest(_Map):
    """A request that says nothing but which version it speaks."""

    KIND: ClassVar[str] = "request"

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(_Map):
    KIND: ClassVar[str] = "label request"

    label: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class OkResponse(_Map):
    KIND: ClassVar[str] = "ok response"

    ok: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(ok=f.flag("ok"))


# --- capabilities and streams -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizeResponse(_Map):
    """`record` is the signed entry of the control journal that fixes issued_at (D-46, D-47)."""

    KIND: ClassVar[str] = "authorize response"

    auth_ref: bytes
    expires_at: int
    record: ControlRecord

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            auth_ref=f.bstr("auth_ref", 32),
            expires_at=f.uint("expires_at"),
            record=f.object("record", ControlRecord),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusRequest(_Map):
    KIND: ClassVar[str] = "cap_status request"

    auth_ref: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(auth_ref=f.bstr("auth_ref", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusResponse(_Map):
    KIND: ClassVar[str] = "cap_status response"

    token: bytes  # the exact bytes of the cap_token
    issued_at: int
    expires_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(token=f.blob("token"), issued_at=f.uint("issued_at"), expires_at=f.uint("expires_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegisterRequest(_Map):
    KIND: ClassVar[str] = "streams request"

    stream_id: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(stream_id=f.bstr("stream_id", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsResponse(_Map):
    """The registered streams, in the order of their ids."""

    KIND: ClassVar[str] = "streams response"

    stream_ids: tuple[bytes, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(stream_ids=f.bstrs("stream_ids", 32, at_most=1 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResponse(_Map):
    """The signed record of the control journal that an operation led to, now or before."""

    KIND: ClassVar[str] = "record response"

    record: ControlRecord

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(record=f.object("record", ControlRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentGrant(_Map):
    """The holder of a capability vouches for one attachment: the price of a place in the hub's store (GEN-12)."""

    KIND: ClassVar[str] = "attachment grant"

    auth_ref: bytes
    sig: bytes  # by the subject of the capability

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(auth_ref=f.bstr("auth_ref", 32), sig=f.bstr("sig", 64))

    @classmethod
    def issue(cls, subject: ed25519.SigningKey, auth_ref: bytes, coid: bytes) -> Self:
        return cls(auth_ref=auth_ref, sig=subject.sign(_grant_digest(auth_ref, coid)))

    def verify(self, subject_pk: bytes, coid: bytes) -> None:
        """Raise SignatureError unless the subject vouches for exactly this attachment."""
        if not ed25519.verify(subject_pk, _grant_digest(self.auth_ref, coid), self.sig):
            raise SignatureError("attachment grant: sig does not verify under the subject of the capability")


def _grant_digest(auth_ref: bytes, coid: bytes) -> bytes:
    return Ht("veen/attachment-grant", auth_ref + coid)


# --- policy views -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest(_Map):
    """What an agent folded from the administrative streams of a realm (D-51)."""

    KIND: ClassVar[str] = "policy request"

    revocations: tuple[Revocation, ...] | None = None
    authorities: tuple[Authority, ...] | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            revocations=f.optional(f.objects, "revocations", Revocation, at_most=MAX_POLICY_ITEMS),
            authorities=f.optional(f.objects, "authorities", Authority, at_most=MAX_POLICY_ITEMS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResponse(_Map):
    """The records that were appended; none where the hub knew everything already, or it is over."""

    KIND: ClassVar[str] = "policy response"

    records: tuple[ControlRecord, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(records=f.objects("records", ControlRecord, at_most=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecordsResponse(_Map):
    """What is enforced, and the policy records of the control journal; `more` says that the list goes on."""

    KIND: ClassVar[str] = "policy records response"

    kex1_plus: bool
    auth1: bool
    records: tuple[ControlRecord, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            kex1_plus=f.flag("kex1_plus"),
            auth1=f.flag("auth1"),
            records=f.objects("records", ControlRecord, at_most=MAX_LISTED),
            more=f.flag("more"),
        )


# --- anchors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(_Map):
    """Anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` somebody has done so elsewhere, and the hub only records it.
    """

    KIND: ClassVar[str] = "anchor request"

    label: bytes
    upto_seq: int | None = None
    backend: str | None = None
    anchor_ref: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            upto_seq=f.optional(f.uint, "upto_seq"),
            backend=f.optional(f.text, "backend"),
            anchor_ref=f.optional(f.blob, "anchor_ref"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorResponse(_Map):
    KIND: ClassVar[str] = "anchor response"

    checkpoint: Checkpoint
    record: ControlRecord

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(checkpoint=f.object("checkpoint", Checkpoint), record=f.object("record", ControlRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredCheckpoint(_Part):
    """An anchor beside its checkpoint, which is absent once the key of its time was taken away (D-41)."""

    KIND: ClassVar[str] = "anchored checkpoint"

    record: ControlRecord
    checkpoint: Checkpoint | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(record=f.object("record", ControlRecord), checkpoint=f.optional(f.object, "checkpoint", Checkpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(_Map):
    """By upto_seq; `more` says that the list goes on."""

    KIND: ClassVar[str] = "anchors response"

    anchors: tuple[AnchoredCheckpoint, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(anchors=f.objects("anchors", AnchoredCheckpoint, at_most=MAX_LISTED), more=f.flag("more"))


# --- proofs and checkpoints -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAtRequest(_Map):
    """An old leaf under a later root (D-34)."""

    KIND: ClassVar[str] = "proof_at request"

    label: bytes
    stream_seq: int
    tree_size: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), stream_seq=f.uint("stream_seq"), tree_size=f.uint("tree_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequest(_Map):
    KIND: ClassVar[str] = "consistency request"

    label: bytes
    from_size: int
    to_size: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), from_size=f.uint("from_size"), to_size=f.uint("to_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyResponse(_Map):
    KIND: ClassVar[str] = "consistency response"

    consistency_proof: ConsistencyProof
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            consistency_proof=f.object("consistency_proof", ConsistencyProof),
            server_version=f.optional(f.text, "server_version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRangeRequest(_Map):
    """The answer lists (epoch, label) in order; `after` continues behind that label of epoch_min (D-65)."""

    KIND: ClassVar[str] = "checkpoint_range request"

    epoch_min: int
    epoch_max: int
    label: bytes | None = None
    after: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            epoch_min=f.uint("epoch_min"),
            epoch_max=f.uint("epoch_max"),
            label=f.optional(f.bstr, "label", 32),
            after=f.optional(f.bstr, "after", 32),
        )


# --- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(_Map):
    """As a stream request, but an empty page waits for entries up to `wait_sec` seconds."""

    KIND: ClassVar[str] = "tail request"

    label: bytes
    from_seq: int
    wait_sec: int
    max_items: int | None = None
    with_receipts: bool | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            from_seq=f.uint("from_seq"),
            wait_sec=f.uint("wait_sec"),
            max_items=f.optional(f.uint, "max_items"),
            with_receipts=f.optional(f.flag, "with_receipts"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem(_Part):
    """An element of the legacy GET stream (001 spec-1 §16)."""

    KIND: ClassVar[str] = "legacy stream item"

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            receipt=f.object("receipt", Receipt),
            msg=f.object("msg", Msg),
            mmr_proof=f.optional(f.object, "mmr_proof", MmrProof),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(_Map):
    """One label, or all of them by (epoch, label) behind `after_epoch` and `after`."""

    KIND: ClassVar[str] = "inspect request"

    label: bytes | None = None
    after_epoch: int | None = None
    after: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.optional(f.bstr, "label", 32),
            after_epoch=f.optional(f.uint, "after_epoch"),
            after=f.optional(f.bstr, "after", 32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInfo(_Part):
    """What the hub knows about a label without reading any entry."""

    KIND: ClassVar[str] = "label info"

    label: bytes
    epoch: int
    last_stream_seq: int
    last_mmr_root: bytes
    last_hub_ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            label=f.bstr("label", 32),
            epoch=f.uint("epoch"),
            last_stream_seq=f.uint("last_stream_seq"),
            last_mmr_root=f.bstr("last_mmr_root", 32),
            last_hub_ts=f.uint("last_hub_ts"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResponse(_Map):
    """`label_count` is of the whole hub; `more` says that the list goes on."""

    KIND: ClassVar[str] = "inspect response"

    label_count: int
    labels: tuple[LabelInfo, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label_count=f.uint("label_count"),
            labels=f.objects("labels", LabelInfo, at_most=MAX_LISTED),
            more=f.flag("more"),
        )


# --- the hub itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResponse(_Map):
    """All a client needs to build messages this hub accepts (spec §12, D-29)."""

    KIND: ClassVar[str] = "status response"

    hub_id: bytes
    hub_pk: bytes  # signs now
    hub_ts: int
    epoch: int
    profiles: tuple[Profile, ...]
    stream_scope: str  # "open": the hub does not bind tokens to streams (D-24)
    capability_gating: bool
    pow_difficulty: int
    limits: dict[str, Any]
    server_version: str

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            hub_id=f.bstr("hub_id", 32),
            hub_pk=f.bstr("hub_pk", 32),
            hub_ts=f.uint("hub_ts"),
            epoch=f.uint("epoch"),
            profiles=f.objects("profiles", Profile, at_least=1, at_most=16),
            stream_scope=f.text("stream_scope"),
            capability_gating=f.flag("capability_gating"),
            pow_difficulty=f.uint("pow_difficulty"),
            limits=f.free("limits"),
            server_version=f.text("server_version"),
        )

    def _write(self) -> dict[str, Any]:
        return {**super(StatusResponse, self)._write(), "limits": cbor.sort_keys(self.limits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKeyRequest(_Map):
    """A new key joins; the present one stays valid for `overlap_sec` seconds after that (spec §8.4)."""

    KIND: ClassVar[str] = "rotate_key request"

    overlap_sec: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(overlap_sec=f.uint("overlap_sec"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKey(_Part):
    """One key of the identity, valid for receipts with valid_from ≤ hub_ts < valid_until (D-41)."""

    KIND: ClassVar[str] = "hub key"

    key_id: str
    hub_pk: bytes
    valid_from: int
    valid_until: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            key_id=f.text("key_id"),
            hub_pk=f.bstr("hub_pk", 32),
            valid_from=f.uint("valid_from"),
            valid_until=f.optional(f.uint, "valid_until"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityResponse(_Map):
    """The identity record (D-42). Trust in it comes from a pin, not from this answer (spec §8.4)."""

    KIND: ClassVar[str] = "identity response"

    hub_id: bytes
    hub_keys: tuple[HubKey, ...]
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            hub_id=f.bstr("hub_id", 32),
            hub_keys=f.objects("hub_keys", HubKey, at_least=1, at_most=MAX_LISTED),
            server_version=f.optional(f.text, "server_version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthResponse(_Map):
    """The process is alive; the rest is about the label that was committed to last (OBS0.3, D-111)."""

    KIND: ClassVar[str] = "health response"

    ok: bool
    profile_id: bytes
    peaks_count: int
    last_stream_seq: int
    last_mmr_root: bytes | None = None  # an empty hub has none (D-30)

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            ok=f.flag("ok"),
            profile_id=f.bstr("profile_id", 32),
            peaks_count=f.uint("peaks_count"),
            last_stream_seq=f.uint("last_stream_seq"),
            last_mmr_root=f.optional(f.bstr, "last_mmr_root", 32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyResponse(_Map):
    """Whether the hub would admit messages now, and if not, why."""

    KIND: ClassVar[str] = "readiness response"

    ready: bool
    reason: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(ready=f.flag("ready"), reason=f.optional(f.text, "reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionResponse(_Map):
    KIND: ClassVar[str] = "version response"

    server_version: str
    api_version: str

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(server_version=f.text("server_version"), api_version=f.text("api_version"))
