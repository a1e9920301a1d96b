"""What a hub says about itself."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from veen.core import cbor
from veen.core.profile import Profile
from veen.core.tooling.base import MAX_LISTED, Map, Part
from veen.core.wire import Fields

__all__ = [
    "HealthResponse",
    "HubKey",
    "IdentityResponse",
    "ReadyResponse",
    "RotateKeyRequest",
    "StatusResponse",
    "VersionResponse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResponse(Map):
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
class RotateKeyRequest(Map):
    """A new key joins; the present one stays valid for `overlap_sec` seconds after that (spec §8.4)."""

    KIND: ClassVar[str] = "rotate_key request"

    overlap_sec: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(overlap_sec=f.uint("overlap_sec"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKey(Part):
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
class IdentityResponse(Map):
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
class HealthResponse(Map):
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
class ReadyResponse(Map):
    """Whether the hub would admit messages now, and if not, why."""

    KIND: ClassVar[str] = "readiness response"

    ready: bool
    reason: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(ready=f.flag("ready"), reason=f.optional(f.text, "reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionResponse(Map):
    KIND: ClassVar[str] = "version response"

    server_version: str
    api_version: str

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(server_version=f.text("server_version"), api_version=f.text("api_version"))
