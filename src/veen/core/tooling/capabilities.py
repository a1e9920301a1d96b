"""Capabilities, streams and attachments."""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core import ed25519
from veen.core.control import ControlRecord
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.tooling.base import Map
from veen.core.wire import Fields

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
class CapStatusRequest(Map):
    KIND: ClassVar[str] = "cap_status request"

    auth_ref: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(auth_ref=f.bstr("auth_ref", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatusResponse(Map):
    KIND: ClassVar[str] = "cap_status response"

    token: bytes  # the exact bytes of the cap_token
    issued_at: int
    expires_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(token=f.blob("token"), issued_at=f.uint("issued_at"), expires_at=f.uint("expires_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegisterRequest(Map):
    KIND: ClassVar[str] = "streams request"

    stream_id: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(stream_id=f.bstr("stream_id", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsResponse(Map):
    """The registered streams, in the order of their ids."""

    KIND: ClassVar[str] = "streams response"

    stream_ids: tuple[bytes, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(stream_ids=f.bstrs("stream_ids", 32, at_most=1 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResponse(Map):
    """The signed record of the control journal that an operation led to, now or before."""

    KIND: ClassVar[str] = "record response"

    record: ControlRecord

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(record=f.object("record", ControlRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentGrant(Map):
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
