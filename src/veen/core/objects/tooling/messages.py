"""Requests and responses of the tooling API, and the bounds of its lists.

In this order: what several share · status, identity, health and version · capabilities, streams and attachments · the
cursor of one writer in one label, for that writer alone (D-162) · revocations and authority · proofs at any size and
checkpoints · following a label, and inspection · anchors · requests of a replica to its primary (D-78).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.objects import identity as hubkeys
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.msg import Msg
from veen.core.objects.policies import MAX_POLICY_ITEMS, Authority, Revocation, SizeBound
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import ConsistencyProof, MmrProof
from veen.core.wire import Bytes32, Bytes64, Length, Map, Part, PlainMap, Uint

MAX_BATCH_ITEMS: Final = 1_000
MAX_LISTED: Final = 1_000  # elements of one answer that lists things
MAX_WAIT_SEC: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest(Map, kind="request"):
    """A request with no field but its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(Map, kind="label request"):
    """A request about one label."""

    label: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class OkResponse(Map, kind="ok response"):
    """Confirmation that the hub carried out the request."""

    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResponse(Map, kind="status response"):
    """Everything that a client needs to build messages which this hub accepts (spec §12, D-29)."""

    hub_id: Bytes32
    hub_pk: Bytes32  # signs now
    hub_ts: Uint
    epoch: Uint
    profiles: Annotated[tuple[Profile, ...], Length(1, 16)]
    stream_scope: str  # "open": the hub does not bind tokens to streams (D-24)
    capability_gating: bool
    pow_difficulty: Uint
    limits: PlainMap
    server_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKeyRequest(Map, kind="rotate_key request"):
    """Request for a new key; the present one stays valid for `overlap_sec` seconds after that (spec §8.4).

    A repeated request with the same `request_id` changes nothing and is answered with the record of the first.
    """

    overlap_sec: Uint
    request_id: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKey(Part, kind="hub key"):
    """One key of the identity, valid for receipts with valid_from ≤ hub_ts < valid_until (D-41)."""

    key_id: str
    hub_pk: Bytes32
    valid_from: Uint
    valid_until: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityResponse(Map, kind="identity response"):
    """hub-identity.json and its signature (D-42). Trust in them comes from a pin (spec §8.4, D-174)."""

    hub_id: Bytes32
    anchoring: str
    hub_keys: Annotated[tuple[HubKey, ...], Length(1, MAX_LISTED)]
    sig: Bytes64  # hub-identity.sig: over the bytes of hub-identity.json, which follow from the members above
    server_version: str | None = None

    @classmethod
    def of(cls, identity: hubkeys.HubIdentity, sig: bytes, server_version: str | None = None) -> Self:
        keys = tuple(
            HubKey(key_id=key.key_id, hub_pk=key.hub_pk, valid_from=key.valid_from, valid_until=key.valid_until)
            for key in identity.keys
        )
        return cls(
            hub_id=identity.hub_id, anchoring=identity.anchoring, hub_keys=keys, sig=sig, server_version=server_version
        )

    def to_identity(self) -> hubkeys.HubIdentity:
        """Return the record that `sig` signs; raise IdentityError if its keys do not form one identity with this
        hub_id.
        """
        anchoring: Any = self.anchoring  # one of ANCHORINGS: the identity itself refuses others
        keys = tuple(
            hubkeys.HubKey(hub_pk=key.hub_pk, valid_from=key.valid_from, valid_until=key.valid_until)
            for key in self.hub_keys
        )
        identity = hubkeys.HubIdentity(keys, anchoring)
        if identity.hub_id != self.hub_id:
            raise hubkeys.IdentityError("hub_id is not that of the first key (D-21)")
        if [key.key_id for key in self.hub_keys] != [key.key_id for key in keys]:
            raise hubkeys.IdentityError("a key_id is not that of its hub_pk (D-42)")
        return identity


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthResponse(Map, kind="health response"):
    """Liveness of the process; the other fields are about the label of the latest commit (OBS0.3, D-111).

    A caller without access to metrics, which name readers, gets `ok` alone.
    """

    ok: bool
    profile_id: Bytes32 | None = None
    peaks_count: Uint | None = None
    last_stream_seq: Uint | None = None
    last_mmr_root: Bytes32 | None = None  # an empty hub has none (D-30)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyResponse(Map, kind="readiness response"):
    """Readiness of the hub to admit messages; `reason` if it is not ready."""

    ready: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionResponse(Map, kind="version response"):
    """Versions of the program and of the API."""

    server_version: str
    api_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizeResponse(Map, kind="authorize response"):
    """Result of an authorisation. `record` is the signed entry of the control journal that fixes issued_at (D-46,
    D-47).
    """

    auth_ref: Bytes32
    expires_at: Uint
    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveRequest(Map, kind="derive request"):
    """Request to accept a token that the subject of the token `parent_ref` issued (D-179)."""

    token: CapToken
    parent_ref: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusRequest(Map, kind="cap_status request"):
    """Request for the state of a token."""

    auth_ref: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusResponse(Map, kind="cap_status response"):
    """The exact bytes of the token, and its times."""

    token: bytes  # the exact bytes of the cap_token
    issued_at: Uint
    expires_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegisterRequest(Map, kind="streams request"):
    """Request to register a stream."""

    stream_id: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsResponse(Map, kind="streams response"):
    """The registered streams, in the order of their ids."""

    stream_ids: Annotated[tuple[Bytes32, ...], Length(0, 1 << 20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResponse(Map, kind="record response"):
    """The signed record of the control journal that the operation led to, now or before."""

    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentGrant(Map, kind="attachment grant"):
    """Permission by the holder of a capability to store one attachment at the hub (GEN-12)."""

    auth_ref: Bytes32
    sig: Bytes64  # by the subject of the capability

    @classmethod
    def issue(cls, subject: ed25519.SigningKey, auth_ref: bytes, coid: bytes) -> Self:
        return cls(auth_ref=auth_ref, sig=subject.sign(_grant_digest(auth_ref, coid)))

    def verify(self, subject_pk: bytes, coid: bytes) -> None:
        """Raise SignatureError unless the subject signed for exactly this attachment."""
        if not ed25519.verify(subject_pk, _grant_digest(self.auth_ref, coid), self.sig):
            raise SignatureError("attachment grant: sig does not verify under the subject of the capability")


def _grant_digest(auth_ref: bytes, coid: bytes) -> bytes:
    return Ht("veen/attachment-grant", auth_ref + coid)


_TAG: Final = "veen/cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCursorRequest(Map, kind="client_cursor request"):
    """Request for the cursor of `client_id` in `label`, and for the entry with `client_seq`, if it is given.

    `sig` is by the client key over Ht("veen/cursor", CBOR of the fields before it); `ts` limits the time of its use.
    """

    label: Bytes32
    client_id: Bytes32
    client_seq: Uint | None = None
    ts: Uint
    sig: Bytes64 = b""

    @classmethod
    def issue(cls, key: ed25519.SigningKey, label: bytes, *, ts: int, client_seq: int | None = None) -> Self:
        fields: dict[str, Any] = {"label": label, "client_id": key.public, "client_seq": client_seq, "ts": ts}
        return cls(**fields, sig=key.sign(cls(**fields).signing_digest()))

    def signing_digest(self) -> bytes:
        tree = self.to_tree()
        assert type(tree) is dict  # noqa: S101 - its FORM is map
        return Ht(_TAG, cbor.encode({key: value for key, value in tree.items() if key != _SIG}))

    def verify(self) -> None:
        """Raise SignatureError unless the client key signed this request."""
        if not ed25519.verify(self.client_id, self.signing_digest(), self.sig):
            raise SignatureError("client_cursor request: not signed by client_id")


_SIG: Final = 6  # the key of `sig` in the map


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCursorResponse(Map, kind="client_cursor response"):
    """The last accepted client_seq and prev_ack, both 0 if there is none.

    `stream_seq` and `leaf` are those of the requested entry, absent if the client has no such entry in this label. All
    of it is durable.
    """

    last_client_seq: Uint
    last_prev_ack: Uint
    stream_seq: Uint | None = None
    leaf: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest(Map, kind="policy request"):
    """Policy that an agent folded from the administrative streams of a realm (D-51)."""

    revocations: Annotated[tuple[Revocation, ...], Length(0, MAX_POLICY_ITEMS)] | None = None
    authorities: Annotated[tuple[Authority, ...], Length(0, MAX_POLICY_ITEMS)] | None = None
    bounds: Annotated[tuple[SizeBound, ...], Length(0, MAX_POLICY_ITEMS)] | None = None  # not folded: of the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResponse(Map, kind="policy response"):
    """The records that were appended; none for items that the hub had already, or that have expired."""

    records: Annotated[tuple[ControlRecord, ...], Length(0, 3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecordsResponse(Map, kind="policy records response"):
    """The enforced policies, and the policy records of the journal; `more` is true if the list is not complete."""

    kex1_plus: bool
    auth1: bool
    records: Annotated[tuple[ControlRecord, ...], Length(0, MAX_LISTED)]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAtRequest(Map, kind="proof_at request"):
    """Request for the proof of an old leaf under a later root (D-34)."""

    label: Bytes32
    stream_seq: Uint
    tree_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequest(Map, kind="consistency request"):
    """Request for a consistency proof between two sizes."""

    label: Bytes32
    from_size: Uint
    to_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyResponse(Map, kind="consistency response"):
    """The proof, for the reader to verify against two roots."""

    consistency_proof: ConsistencyProof
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRangeRequest(Map, kind="checkpoint_range request"):
    """Request for checkpoints, listed by (epoch, label); `after` continues behind that label of epoch_min (D-65)."""

    epoch_min: Uint
    epoch_max: Uint
    label: Bytes32 | None = None
    after: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(Map, kind="tail request"):
    """A stream request that waits up to `wait_sec` seconds for entries instead of returning an empty page."""

    label: Bytes32
    from_seq: Uint
    wait_sec: Uint
    max_items: Uint | None = None
    with_receipts: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem(Part, kind="legacy stream item"):
    """An element of the legacy GET stream (001 spec-1 §16)."""

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(Map, kind="inspect request"):
    """Request for one label, or for all of them by (epoch, label) behind `after_epoch` and `after`."""

    label: Bytes32 | None = None
    after_epoch: Uint | None = None
    after: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInfo(Part, kind="label info"):
    """State of a label that the hub knows without reading an entry."""

    label: Bytes32
    epoch: Uint
    last_stream_seq: Uint
    last_mmr_root: Bytes32
    last_hub_ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResponse(Map, kind="inspect response"):
    """Labels of a hub. `label_count` is of the whole hub; `more` is true if the list is not complete."""

    label_count: Uint
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(Map, kind="anchor request"):
    """Request to anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` the checkpoint is anchored already, and the hub only records it. A repeated request
    with the same `request_id` changes nothing and is answered with the record of the first.
    """

    label: Bytes32
    upto_seq: Uint | None = None
    backend: str | None = None
    anchor_ref: bytes | None = None
    request_id: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorResponse(Map, kind="anchor response"):
    """The checkpoint and the record of its anchor."""

    checkpoint: Checkpoint
    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredCheckpoint(Part, kind="anchored checkpoint"):
    """An anchor with its checkpoint, which is absent once the key of its time was removed (D-41)."""

    record: ControlRecord
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(Map, kind="anchors response"):
    """Anchors by upto_seq; `more` is true if the list is not complete."""

    anchors: Annotated[tuple[AnchoredCheckpoint, ...], Length(0, MAX_LISTED)]
    more: bool


_MAX_ENTRIES: Final = 16  # of one attachment; one that belongs to more is never erased


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRequest(Map, kind="feed request"):
    """Request for changes since an earlier answer.

    `control_bytes` is the length of the caller's copy of the control journal; `instance` and `after` are `instance` and
    `commit` of the earlier answer. If nothing has changed, the hub waits up to `wait_sec`.
    """

    control_bytes: Uint
    wait_sec: Uint
    instance: Bytes32 | None = None
    after: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedResponse(Map, kind="feed response"):
    """State of the hub at one moment: every entry that it appends later follows all that this answer counts.

    `labels` are those with entries after `after`; if `complete` is false there are more, and `inspect` lists all of
    them. `control` is the control journal from the requested byte on, or the first part of that.
    """

    instance: Bytes32  # of the process: another one counts its commits anew
    commit: Uint
    hub_ts: Uint  # of the newest entry or control record
    entries: Uint  # of all labels
    control_bytes: Uint  # how long the control journal is
    control: bytes
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedEntry(Map, kind="attached entry"):
    """An entry that an attachment belongs to, by the names that its writer knows."""

    label: Bytes32
    client_id: Bytes32
    client_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttachment(Map, kind="stored attachment"):
    """Metadata of an attachment; its bytes are at /tooling/attachment/<coid>."""

    number: Uint  # of the change
    coid: Bytes32
    size: Uint
    owner: bytes  # whose quota it counts for; empty: nobody's
    pinned: bool  # retention never erases it
    entries: Annotated[tuple[AttachedEntry, ...], Length(0, _MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsRequest(Map, kind="attachments request"):
    """Request for attachments that are new or changed after a number.

    `instance` and `after` are those of an earlier answer.
    """

    after: Uint
    instance: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsResponse(Map, kind="attachments response"):
    """Attachments in the order of their changes; an empty list: no change up to the number `last` remains.

    An instance other than the requested one counts its changes anew, and the answer begins with the first.
    """

    instance: Bytes32
    last: Uint
    attachments: Annotated[tuple[StoredAttachment, ...], Length(0, MAX_LISTED)]
