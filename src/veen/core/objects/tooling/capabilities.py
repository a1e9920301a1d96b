"""Capabilities, streams and attachments."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.objects.control import ControlRecord
from veen.core.wire import Bytes32, Bytes64, Length, Map, Uint

__all__ = [
    "AttachmentGrant",
    "AuthorizeResponse",
    "CapStatusRequest",
    "CapStatusResponse",
    "RecordResponse",
    "StreamRegisterRequest",
    "StreamsResponse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizeResponse(Map):
    """`record` is the signed entry of the control journal that fixes issued_at (D-46, D-47)."""

    KIND: ClassVar[str] = "authorize response"

    auth_ref: Bytes32
    expires_at: Uint
    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusRequest(Map):
    """Asks for what the hub holds about a token."""

    KIND: ClassVar[str] = "cap_status request"

    auth_ref: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusResponse(Map):
    """The exact bytes of the token, and its time."""

    KIND: ClassVar[str] = "cap_status response"

    token: bytes  # the exact bytes of the cap_token
    issued_at: Uint
    expires_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegisterRequest(Map):
    """Registers a stream."""

    KIND: ClassVar[str] = "streams request"

    stream_id: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsResponse(Map):
    """The registered streams, in the order of their ids."""

    KIND: ClassVar[str] = "streams response"

    stream_ids: Annotated[tuple[Bytes32, ...], Length(0, 1 << 20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResponse(Map):
    """The signed record of the control journal that an operation led to, now or before."""

    KIND: ClassVar[str] = "record response"

    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentGrant(Map):
    """The holder of a capability vouches for one attachment: the price of a place in the hub's store (GEN-12)."""

    KIND: ClassVar[str] = "attachment grant"

    auth_ref: Bytes32
    sig: Bytes64  # by the subject of the capability

    @classmethod
    def issue(cls, subject: ed25519.SigningKey, auth_ref: bytes, coid: bytes) -> Self:
        return cls(auth_ref=auth_ref, sig=subject.sign(_grant_digest(auth_ref, coid)))

    def verify(self, subject_pk: bytes, coid: bytes) -> None:
        """Raise SignatureError unless the subject vouches for exactly this attachment."""
        if not ed25519.verify(subject_pk, _grant_digest(self.auth_ref, coid), self.sig):
            raise SignatureError("attachment grant: sig does not verify under the subject of the capability")


def _grant_digest(auth_ref: bytes, coid: bytes) -> bytes:
    return Ht("veen/attachment-grant", auth_ref + coid)
