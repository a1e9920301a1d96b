"""Status, identity, health and version of a hub."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

from veen.core.objects import identity as hubkeys
from veen.core.objects.profile import Profile
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Bytes32, Bytes64, Length, Map, Part, PlainMap, Uint


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
