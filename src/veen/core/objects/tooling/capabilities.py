"""Capabilities, streams and attachments."""

from dataclasses import dataclass
from typing import Annotated, Self

from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.wire import Bytes32, Bytes64, Length, Map, Uint


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
