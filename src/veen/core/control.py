"""The control journal: everything a hub knows that no label log tells (D-46).

Token authorisations, registered streams, limits, key rotations, retention, anchors and policy views are records of
one hash chain, each signed by the hub. Label logs and this journal together are the whole state of a hub.
"""

from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, ClassVar, Final, Self

from veen.core import cbor, ed25519
from veen.core.captoken import CapToken
from veen.core.errors import MalformedError, SignatureError, VerifyError
from veen.core.hashing import H, Ht
from veen.core.policies import PolicyAuthority, PolicyRevocation
from veen.core.wire import Fields, Form, Wire

__all__ = [
    "BODIES",
    "AnchorPublish",
    "CapAuthorize",
    "ControlRecord",
    "KeyRotate",
    "LabelOpen",
    "LimitsSet",
    "PolicyAuthority",
    "PolicyRevocation",
    "RetentionDrop",
    "StreamRegister",
]

_GENESIS: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAuthorize(Wire):
    """A token was accepted; the hub_ts of its first such record is its issued_at (D-47)."""

    KIND: ClassVar[str] = "cap.authorize"
    FORM: ClassVar[Form] = "map"

    auth_ref: bytes
    token_hash: bytes
    token: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(auth_ref=f.bstr("auth_ref", 32), token_hash=f.bstr("token_hash", 32), token=f.blob("token"))

    def _write(self) -> dict[str, Any]:
        return {"auth_ref": self.auth_ref, "token_hash": self.token_hash, "token": self.token}

    @classmethod
    def of(cls, token: CapToken) -> Self:
        data = token.to_bytes()
        return cls(auth_ref=token.auth_ref(), token_hash=H(data), token=data)

    def check(self) -> CapToken:
        """The token, after checking that the record is about exactly these bytes."""
        token = CapToken.from_bytes(self.token)
        if H(self.token) != self.token_hash or not compare_digest(token.auth_ref(), self.auth_ref):
            raise VerifyError("control record: auth_ref or token_hash does not match the token")
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRegister(Wire):
    """A stream whose labels the hub resolves although no token names it (D-23)."""

    KIND: ClassVar[str] = "stream.register"
    FORM: ClassVar[Form] = "map"

    stream_id: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(stream_id=f.bstr("stream_id", 32))

    def _write(self) -> dict[str, Any]:
        return {"stream_id": self.stream_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOpen(Wire):
    """The first entry of a label follows: which stream and epoch it is, as far as the hub knows (D-23).

    With it, checkpoints can be checked from the data directory alone (spec §4.4.1). A hub with open stream scope
    does not know the stream.
    """

    KIND: ClassVar[str] = "label.open"
    FORM: ClassVar[Form] = "map"

    label: bytes
    epoch: int
    stream_id: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(label=f.bstr("label", 32), epoch=f.uint("epoch"), stream_id=f.optional(f.bstr, "stream_id", 32))

    def _write(self) -> dict[str, Any]:
        return {"label": self.label, "epoch": self.epoch, "stream_id": self.stream_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSet(Wire):
    """The limit registry from here on; each label follows with its next chunk (D-75)."""

    KIND: ClassVar[str] = "limits.set"
    FORM: ClassVar[Form] = "map"

    limits: dict[str, Any]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(limits=f.free("limits"))

    def _write(self) -> dict[str, Any]:
        return {"limits": cbor.sort_keys(self.limits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotate(Wire):
    """A hub key joins the active set (spec §8.4)."""

    KIND: ClassVar[str] = "key.rotate"
    FORM: ClassVar[Form] = "map"

    hub_pk: bytes
    valid_from: int
    retired_pk: bytes | None = None
    retired_until: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            hub_pk=f.bstr("hub_pk", 32),
            valid_from=f.uint("valid_from"),
            retired_pk=f.optional(f.bstr, "retired_pk", 32),
            retired_until=f.optional(f.uint, "retired_until"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "hub_pk": self.hub_pk,
            "valid_from": self.valid_from,
            "retired_pk": self.retired_pk,
            "retired_until": self.retired_until,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDrop(Wire):
    """The payloads of a sealed chunk were erased; receipts and proofs stay (D-74)."""

    KIND: ClassVar[str] = "retention.drop"
    FORM: ClassVar[Form] = "map"

    label: bytes
    start_seq: int
    end_seq: int
    entry_hashes_root: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            label=f.bstr("label", 32),
            start_seq=f.uint("start_seq"),
            end_seq=f.uint("end_seq"),
            entry_hashes_root=f.bstr("entry_hashes_root", 32),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "start_seq": self.start_seq,
            "end_seq": self.end_seq,
            "entry_hashes_root": self.entry_hashes_root,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPublish(Wire):
    """A checkpoint's root was anchored outside (D-104)."""

    KIND: ClassVar[str] = "anchor.publish"
    FORM: ClassVar[Form] = "map"

    label: bytes
    upto_seq: int
    mmr_root: bytes
    backend: str
    anchor_ref: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            label=f.bstr("label", 32),
            upto_seq=f.uint("upto_seq"),
            mmr_root=f.bstr("mmr_root", 32),
            backend=f.text("backend"),
            anchor_ref=f.blob("anchor_ref"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "upto_seq": self.upto_seq,
            "mmr_root": self.mmr_root,
            "backend": self.backend,
            "anchor_ref": self.anchor_ref,
        }


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
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord(Wire):
    """One link of the journal: `prev_hash` is the hash of the record before, zeros for the first."""

    KIND: ClassVar[str] = "control record"
    FORM: ClassVar[Form] = "array"

    seq: int  # 1-based
    hub_ts: int
    prev_hash: bytes
    body: Wire
    hub_sig: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
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

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "seq": self.seq,
            "kind": self.body.KIND,
            "hub_ts": self.hub_ts,
            "prev_hash": self.prev_hash,
            "body": self.body,
            "hub_sig": self.hub_sig,
        }

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
