"""Statements that bind a client key to a principal: bodies of messages in the stream that they name (D-179).

    veen.speaks.v1           a client key speaks for a principal, within a time; both keys sign
    veen.speaks.end.v1       the principal ends one binding, or all its bindings before this statement
    veen.principal.next.v1   another key takes the place of the principal's own; both keys sign

A principal is an id_sign_pk. A statement is valid wherever it was copied and whoever sent it, because the keys that it
names have signed it; it has an effect in the stream that it names and in no other. What effect, is decided by
the folds of that stream (`veen.overlays.framework.speaking`): here are the objects and their signatures.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, SignatureError
from veen.core.hashing import Ht
from veen.core.labels import schema_id
from veen.core.wire import Bytes32, Bytes64, Form, Part, Uint, Wire

MAX_SPEAKS_SEC: Final = 87_000  # not_after - not_before: a day, the life of a key (KEX1+ §4.1), and ten minutes
MAX_REASON_BYTES: Final = 400

SPEAKS_SCHEMA: Final = schema_id("veen.speaks.v1")
SPEAKS_END_SCHEMA: Final = schema_id("veen.speaks.end.v1")
PRINCIPAL_NEXT_SCHEMA: Final = schema_id("veen.principal.next.v1")
SPEAKING_SCHEMAS: Final = frozenset((SPEAKS_SCHEMA, SPEAKS_END_SCHEMA, PRINCIPAL_NEXT_SCHEMA))


class _Statement(Wire):
    """Base of the statements. Every signature in a statement signs `signing_digest`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = 1_024
    TAG: ClassVar[str]

    def _fields_to_sign(self) -> list[cbor.Item]:
        """Return the fields that the signatures cover, in their order. Every statement defines its own."""
        raise NotImplementedError

    def signing_digest(self) -> bytes:
        """Return the hash of all fields but the signatures, in order, absent ones as null."""
        return Ht(self.TAG, cbor.encode(self._fields_to_sign()))

    def _check_signature(self, public: bytes, name: str) -> None:
        if not ed25519.verify(public, self.signing_digest(), getattr(self, name)):
            raise SignatureError(f"{self.KIND}: {name} does not verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeaksBinding(_Statement, kind="veen.speaks.v1"):
    """`client_id` speaks for `principal_pk` in one stream, from `not_before` up to and including `not_after`."""

    TAG: ClassVar[str] = "veen/speaks"

    principal_pk: Bytes32
    client_id: Bytes32
    stream_id: Bytes32
    not_before: Uint  # both are compared with ts* of an event (D-27)
    not_after: Uint
    sig_client: Bytes64
    sig_principal: Bytes64

    @classmethod
    def issue(
        cls, principal: SigningKey, client: SigningKey, *, stream_id: bytes, not_before: int, not_after: int
    ) -> Self:
        unsigned = cls(
            principal_pk=principal.public,
            client_id=client.public,
            stream_id=stream_id,
            not_before=not_before,
            not_after=not_after,
            sig_client=bytes(64),
            sig_principal=bytes(64),
        )
        digest = unsigned.signing_digest()
        return replace(unsigned, sig_client=client.sign(digest), sig_principal=principal.sign(digest))

    def _fields_to_sign(self) -> list[cbor.Item]:
        return [self.principal_pk, self.client_id, self.stream_id, self.not_before, self.not_after]

    @property
    def has_legal_lifetime(self) -> bool:
        """True if the lifetime is positive and not longer than MAX_SPEAKS_SEC."""
        return 0 < self.not_after - self.not_before <= MAX_SPEAKS_SEC

    def verify(self) -> None:
        """Raise SignatureError unless both keys signed it."""
        self._check_signature(self.client_id, "sig_client")
        self._check_signature(self.principal_pk, "sig_principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeaksEnd(_Statement, kind="veen.speaks.end.v1"):
    """A statement that ends the binding of `client_id` by `principal_pk`; without client_id, all its earlier bindings.

    A statement about all bindings takes effect once: a repetition ends nothing. `ended_at` tells two of them apart.
    """

    TAG: ClassVar[str] = "veen/speaks-end"

    principal_pk: Bytes32
    client_id: Bytes32 | None = None
    stream_id: Bytes32
    reason: str | None = None
    ended_at: Uint | None = None
    sig_principal: Bytes64

    @classmethod
    def issue(
        cls,
        principal: SigningKey,
        *,
        stream_id: bytes,
        client_id: bytes | None = None,
        reason: str | None = None,
        ended_at: int | None = None,
    ) -> Self:
        unsigned = cls(
            principal_pk=principal.public,
            client_id=client_id,
            stream_id=stream_id,
            reason=reason,
            ended_at=ended_at,
            sig_principal=bytes(64),
        )
        unsigned._check()
        return replace(unsigned, sig_principal=principal.sign(unsigned.signing_digest()))

    def _check(self) -> None:
        size = len((self.reason or "").encode())
        if size > MAX_REASON_BYTES:
            raise FieldSizeError(f"{self.KIND}.reason", f"at most {MAX_REASON_BYTES} bytes", size)

    def _fields_to_sign(self) -> list[cbor.Item]:
        return [self.principal_pk, self.client_id, self.stream_id, self.reason, self.ended_at]

    def verify(self) -> None:
        """Raise SignatureError unless the principal signed it."""
        self._check_signature(self.principal_pk, "sig_principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalNext(_Statement, kind="veen.principal.next.v1"):
    """A statement that `new` replaces `old` in one stream: `old` binds no further client keys."""

    TAG: ClassVar[str] = "veen/principal-next"

    old: Bytes32
    new: Bytes32
    stream_id: Bytes32
    sig_old: Bytes64
    sig_new: Bytes64

    @classmethod
    def issue(cls, old: SigningKey, new: SigningKey, *, stream_id: bytes) -> Self:
        unsigned = cls(old=old.public, new=new.public, stream_id=stream_id, sig_old=bytes(64), sig_new=bytes(64))
        digest = unsigned.signing_digest()
        return replace(unsigned, sig_old=old.sign(digest), sig_new=new.sign(digest))

    def _fields_to_sign(self) -> list[cbor.Item]:
        return [self.old, self.new, self.stream_id]

    def verify(self) -> None:
        """Raise SignatureError unless both keys signed it."""
        self._check_signature(self.old, "sig_old")
        self._check_signature(self.new, "sig_new")


SpeakingStatement = SpeaksBinding | SpeaksEnd | PrincipalNext


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfKey(Part, kind="end of an author key"):
    """Place of the statement that ended an author key."""

    ts: Uint  # ts*
    epoch: Uint
    stream_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorKey(Part, kind="author key"):
    """A client key and the identity that proved to own it, in one stream, with its validity and end."""

    client_id: Bytes32
    id_sign_pk: Bytes32
    not_before: Uint | None = None  # of its binding; a card has no dates
    not_after: Uint | None = None
    ended: EndOfKey | None = None

    def covers(self, ts: int, place: tuple[int, int] | None = None) -> bool:
        """Return True if an entry at a place (epoch, stream_seq) is attributed to the identity.

        Without a place, the entry is of another stream or comes after everything that was read.
        """
        if self.not_before is not None and ts < self.not_before:
            return False
        if self.not_after is not None and ts > self.not_after:
            return False
        end = self.ended
        if end is None:
            return True
        if place is None:
            return ts <= end.ts
        epoch, stream_seq = place
        return stream_seq <= end.stream_seq if epoch == end.epoch else (ts, epoch) < (end.ts, end.epoch)


def describe_statement(schema: bytes, body: bytes) -> str:
    """Describe a statement in words. The fold decides its effect."""
    try:
        if schema == SPEAKS_SCHEMA:
            binding = SpeaksBinding.from_bytes(body)
            return f"key {binding.client_id.hex()[:16]}… speaks for {binding.principal_pk.hex()[:16]}…"
        if schema == SPEAKS_END_SCHEMA:
            end = SpeaksEnd.from_bytes(body)
            which = "no key" if end.client_id is None else f"key {end.client_id.hex()[:16]}… no more"
            return f"{which} speaks for {end.principal_pk.hex()[:16]}… from here on"
        following = PrincipalNext.from_bytes(body)
        return f"principal {following.new.hex()[:16]}… takes the place of {following.old.hex()[:16]}…"
    except FormatError as exc:
        return f"a statement about a client key that cannot be read: {exc}"
