"""The messages that pass the keys of a stream from person to person (D-171).

    veen.keys.generation.v1   a new generation: its public key, and its secret key wrapped for each reader who stays
    veen.keys.wrap.v1         a hand-over of a generation that exists: to cards, or to the holder of an invitation
    veen.keys.join.v1         the holder of an invitation names the card that it was used for
    veen.keys.shred.v1        the secret key of a generation is to be forgotten by all
    veen.keys.owner.v1        another key is the owner's from here on
    veen.card.v1              the author of this message is the identity on the card in it
    veen.speaks.v1            a client key belongs to a principal, whoever sent the message (D-179)

The first four, and the change of owner, count only with the signature of the stream's owner, or of the invitation
that the owner signed. The owner numbers her records, and the number is inside the signature: a record that is
repeated later, by anybody, has a number that was used, and changes nothing. The numbers belong to the stream and not
to a key, so that they continue if the owner's key changes, which the old key and the new one sign. The control key
stays that of the first owner. Records of earlier releases have no number; each counts once, by its digest.

Secret keys are wrapped for the long-term key of a card, each for itself; the secret key of a generation is never sealed
to the public key of another one (D-182): a hand-over wraps exactly the generations that its reader gets. Records of
earlier releases may have `back`, the secret key of the generation before, sealed to the new one. It is read and never
written.

All of them are sealed to the control key of the stream, which anybody who knows the stream and its owner can compute:
writers, who cannot read the stream, must see which key to seal to. The control key keeps them from the hub, and from
nobody else: the list of readers is no secret among members, also former ones.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self

from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Random
from veen.client.identity.keyring import StreamKeys
from veen.core import cbor
from veen.core.crypto import ed25519, hpke, x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, InvalidKeyError, OpenError, SignatureError
from veen.core.hashing import Ht, u64be
from veen.core.labels import schema_id
from veen.core.objects.card import CARD_SCHEMA, CardRecord
from veen.core.objects.speaking import (
    PRINCIPAL_NEXT_SCHEMA,
    SPEAKING_SCHEMAS,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    PrincipalNext,
    SpeaksBinding,
    SpeaksEnd,
)
from veen.core.wire import LEFT_OUT_EMPTY, Bytes32, Bytes64, Length, Map, Part, Size, Uint

GENERATION_SCHEMA: Final = schema_id("veen.keys.generation.v1")
WRAP_SCHEMA: Final = schema_id("veen.keys.wrap.v1")
JOIN_SCHEMA: Final = schema_id("veen.keys.join.v1")
SHRED_SCHEMA: Final = schema_id("veen.keys.shred.v1")
OWNER_SCHEMA: Final = schema_id("veen.keys.owner.v1")
_OWN_SCHEMAS: Final = (GENERATION_SCHEMA, WRAP_SCHEMA, JOIN_SCHEMA, SHRED_SCHEMA, OWNER_SCHEMA, CARD_SCHEMA)
KEY_SCHEMAS: Final = SPEAKING_SCHEMAS.union(_OWN_SCHEMAS)

MAX_WRAPS: Final = 8_192  # of one message: about 800 KB
_MAX_CARDS: Final = 1_024
_MAX_EARLIER: Final = 65_536
_MAX_REASON: Final = 200
_CARD_ID_BYTES: Final = 8
_CT_BYTES: Final = 48  # a key of 32 bytes and the tag
_WRAP_INFO: Final = b"veen/keys-wrap"
_BACK_INFO: Final = b"veen/keys-back"


def control_keys(stream_id: bytes, owner_pk: bytes) -> StreamKeys:
    """Return the key that messages about keys are sealed to, known to all who know the stream and its owner."""
    reader_sk = Ht("veen/keys-control", stream_id + owner_pk)
    return StreamKeys(stream_id=stream_id, reader_pk=x25519.public_key(reader_sk), reader_sk=reader_sk)


def describe(schema: bytes, body: bytes) -> str:
    """Describe a message about keys for people. The fold decides if it counts."""
    try:
        if schema == GENERATION_SCHEMA:
            generation = KeyGeneration.from_bytes(body)
            reason = f": {generation.reason}" if generation.reason else ""
            return f"keys: generation {generation.gen} for {len(generation.wraps)} cards{reason}"
        if schema == WRAP_SCHEMA:
            hand_over = HandOver.from_bytes(body)
            names = ", ".join(card.name for card in hand_over.cards) or "an invitation by code (bearer)"
            earlier = f" and {len(hand_over.earlier)} earlier ones" if hand_over.earlier else ""
            return f"keys: generation {hand_over.gen}{earlier} handed over to {names}"
        if schema == JOIN_SCHEMA:
            return f"keys: {Enrolment.from_bytes(body).card.name} joined by invitation"
        if schema == SHRED_SCHEMA:
            return f"keys: generation {KeyShred.from_bytes(body).gen} is shredded"
        if schema == OWNER_SCHEMA:
            return f"keys: the owner's key is {OwnerChange.from_bytes(body).new_owner_pk.hex()}"
        if schema == SPEAKS_SCHEMA:
            binding = SpeaksBinding.from_bytes(body)
            return f"key {binding.client_id.hex()} speaks for {binding.principal_pk.hex()} until {binding.not_after}"
        if schema == SPEAKS_END_SCHEMA:
            ended = SpeaksEnd.from_bytes(body)
            keys = "all keys" if ended.client_id is None else f"key {ended.client_id.hex()}"
            return f"{keys} of {ended.principal_pk.hex()}: ended" + (f": {ended.reason}" if ended.reason else "")
        if schema == PRINCIPAL_NEXT_SCHEMA:
            following = PrincipalNext.from_bytes(body)
            return f"principal {following.new.hex()} takes the place of {following.old.hex()}"
        return f"card of {AuthorCard.from_bytes(body).card.name}"
    except FormatError as exc:
        return f"a message about keys that cannot be read: {exc}"


def wrap_id(card: IdentityCard) -> bytes:
    """Return the card id as bytes, by which a reader finds her wrap."""
    return bytes.fromhex(card.card_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey(Part, kind="wrapped key"):
    """A secret key of a generation, sealed by HPKE."""

    enc: Bytes32
    ct: Annotated[bytes, Size(_CT_BYTES)]

    @classmethod
    def seal(cls, pk: bytes, info: bytes, aad: bytes, sk: bytes, random: Random) -> Self:
        enc, context = hpke.setup_sender(pk, random(hpke.IKM_BYTES), info)
        return cls(enc=enc, ct=context.seal(aad, sk))

    def open(self, sk: bytes, info: bytes, aad: bytes) -> bytes:
        return hpke.setup_receiver(self.enc, sk, info).open(aad, self.ct)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWrap(Part, kind="key wrap"):
    """A wrapped key and the card that it is for."""

    card_id: Annotated[bytes, Size(_CARD_ID_BYTES)]
    key: WrappedKey


def wrap_for(card: IdentityCard, keys: StreamKeys, *, random: Random = os.urandom) -> KeyWrap:
    """Wrap the secret key of a generation for the holder of a card."""
    aad = _place(keys.stream_id, keys.generation, keys.reader_pk) + wrap_id(card)
    return KeyWrap(card_id=wrap_id(card), key=WrappedKey.seal(card.dh_pk, _WRAP_INFO, aad, keys.secret(), random))


def _unwrap(wraps: Iterable[KeyWrap], card_id: bytes, dh_sk: bytes, place: bytes, pk: bytes) -> bytes | None:
    """Return the secret key that was wrapped for a card; None if there is none, or if it does not match `pk`."""
    for wrap in wraps:
        if wrap.card_id == card_id:
            try:
                sk = wrap.key.open(dh_sk, _WRAP_INFO, place + card_id)
            except OpenError:
                continue
            if _is_pair(sk, pk):
                return sk
    return None


def _is_pair(sk: bytes, pk: bytes) -> bool:
    try:
        return x25519.public_key(sk) == pk
    except InvalidKeyError:
        return False


def _place(stream_id: bytes, gen: int, pk: bytes) -> bytes:
    return stream_id + u64be(gen) + pk


class _Signed(Map):
    """A record that is valid only if signed by the key it names."""

    __slots__ = ()

    TAG: ClassVar[str]

    def signing_digest(self) -> bytes:
        """Return the hash of all fields but `sig`, also of those that later releases added behind it."""
        tree = self.to_tree()
        del tree[_key_of_sig(type(self))]  # type: ignore[arg-type]  # a class is hashable
        return Ht(self.TAG, cbor.encode(tree))

    def check_signed_by(self, public: bytes) -> None:
        """Raise SignatureError unless this key signed it."""
        if not ed25519.verify(public, self.signing_digest(), getattr(self, "sig")):  # noqa: B009 - of each subclass
            raise SignatureError(f"{self.KIND}: sig does not verify")


@cache
def _key_of_sig(kind: "type[Map]") -> int:
    return next(key for key, field in enumerate(kind.wire_fields(), start=1) if field.name == "sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGeneration(_Signed, kind="key generation"):
    """Announcement of a generation: writers seal to `pk` from here on; `wraps` are for the readers who stay."""

    TAG: ClassVar[str] = "veen/keys-generation"

    stream_id: Bytes32
    gen: Uint
    pk: Bytes32
    reason: str
    history: bool  # if False, later invitations hand over no generation before this one
    wraps: Annotated[tuple[KeyWrap, ...], Length(0, MAX_WRAPS)]
    back: WrappedKey | None = None  # of earlier releases: the secret key of gen - 1, sealed to pk
    owner_pk: Bytes32
    sig: Bytes64
    number: Uint | None = None  # of the owner's records in this stream, from 1; None in those of earlier releases

    @classmethod
    def issue(
        cls,
        owner: SigningKey,
        keys: StreamKeys,
        cards: Iterable[IdentityCard],
        *,
        number: int | None = None,
        history: bool = False,
        back: WrappedKey | None = None,
        reason: str = "",
        random: Random = os.urandom,
    ) -> Self:
        """Sign a generation. `back` and a missing number make a record of an earlier release, for tests and vectors."""
        unsigned = cls(
            stream_id=keys.stream_id,
            gen=keys.generation,
            pk=keys.reader_pk,
            reason=reason[:_MAX_REASON],
            history=history,
            wraps=tuple(wrap_for(card, keys, random=random) for card in cards),
            back=back,
            owner_pk=owner.public,
            sig=bytes(64),
            number=number,
        )
        return replace(unsigned, sig=owner.sign(unsigned.signing_digest()))

    def secret_for(self, card_id: bytes, dh_sk: bytes) -> bytes | None:
        return _unwrap(self.wraps, card_id, dh_sk, _place(self.stream_id, self.gen, self.pk), self.pk)


def seal_back(keys: StreamKeys, previous: StreamKeys, *, random: Random = os.urandom) -> WrappedKey:
    """Seal the secret key of a generation to the next one, as earlier releases did: for tests and vectors (D-182)."""
    aad = _place(keys.stream_id, keys.generation, keys.reader_pk)
    return WrappedKey.seal(keys.reader_pk, _BACK_INFO, aad, previous.secret(), random)


def open_back(back: WrappedKey | None, sk: bytes, stream_id: bytes, gen: int, pk: bytes) -> bytes | None:
    """Return the secret key of generation gen - 1 in `back`, opened by that of gen."""
    if back is None:
        return None
    try:
        return back.open(sk, _BACK_INFO, _place(stream_id, gen, pk))
    except OpenError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierGeneration(Part, kind="earlier generation"):
    """An earlier generation in a hand-over, wrapped for the same cards."""

    gen: Uint
    pk: Bytes32
    wraps: Annotated[tuple[KeyWrap, ...], Length(0, MAX_WRAPS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(_Signed, kind="key hand-over"):
    """Hand-over of generation `gen` to `cards`, or to the holder of the secret half of `invite_pk` ("bearer")."""

    TAG: ClassVar[str] = "veen/keys-wrap"

    stream_id: Bytes32
    gen: Uint
    pk: Bytes32
    cards: Annotated[tuple[IdentityCard, ...], Length(0, _MAX_CARDS)]
    wraps: Annotated[tuple[KeyWrap, ...], Length(0, MAX_WRAPS)]
    invite_pk: Bytes32 | None = None
    expires_at: Uint | None = None  # of the invitation: a later user is no reader of the next generation
    owner_pk: Bytes32
    sig: Bytes64
    number: Uint | None = None  # as in KeyGeneration
    earlier: Annotated[tuple[EarlierGeneration, ...], Length(0, _MAX_EARLIER), LEFT_OUT_EMPTY] = ()

    @classmethod
    def issue(
        cls,
        owner: SigningKey,
        keys: StreamKeys,
        cards: Iterable[IdentityCard] = (),
        *,
        number: int | None = None,
        earlier: Iterable[StreamKeys] = (),
        invite_pk: bytes | None = None,
        expires_at: int | None = None,
        random: Random = os.urandom,
    ) -> Self:
        """Sign a hand-over of `keys`, and of `earlier` generations, to the holders of `cards`."""
        cards = tuple(cards)
        unsigned = cls(
            stream_id=keys.stream_id,
            gen=keys.generation,
            pk=keys.reader_pk,
            cards=cards,
            wraps=tuple(wrap_for(card, keys, random=random) for card in cards),
            invite_pk=invite_pk,
            expires_at=expires_at,
            owner_pk=owner.public,
            sig=bytes(64),
            number=number,
            earlier=tuple(
                EarlierGeneration(
                    gen=old.generation,
                    pk=old.reader_pk,
                    wraps=tuple(wrap_for(card, old, random=random) for card in cards),
                )
                for old in earlier
            ),
        )
        return replace(unsigned, sig=owner.sign(unsigned.signing_digest()))

    def secret_for(self, card_id: bytes, dh_sk: bytes) -> bytes | None:
        return _unwrap(self.wraps, card_id, dh_sk, _place(self.stream_id, self.gen, self.pk), self.pk)

    def earlier_for(self, card_id: bytes, dh_sk: bytes) -> list[tuple[int, bytes, bytes]]:
        """Return (gen, pk, secret key) of each earlier generation that is wrapped for a card."""
        places = ((row, _place(self.stream_id, row.gen, row.pk)) for row in self.earlier)
        opened = ((row, _unwrap(row.wraps, card_id, dh_sk, place, row.pk)) for row, place in places)
        return [(row.gen, row.pk, sk) for row, sk in opened if sk is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment(_Signed, kind="key enrolment"):
    """Use of an invitation by the holder of `card`; signed by the key in the invitation."""

    TAG: ClassVar[str] = "veen/keys-join"

    stream_id: Bytes32
    invite_pk: Bytes32
    card: IdentityCard
    sig: Bytes64

    @classmethod
    def issue(cls, invite: SigningKey, stream_id: bytes, card: IdentityCard) -> Self:
        unsigned = cls(stream_id=stream_id, invite_pk=invite.public, card=card, sig=bytes(64))
        return replace(unsigned, sig=invite.sign(unsigned.signing_digest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShred(_Signed, kind="key shredding"):
    """Request of the owner to all readers to forget the secret key of a generation."""

    TAG: ClassVar[str] = "veen/keys-shred"

    stream_id: Bytes32
    gen: Uint
    reason: str
    owner_pk: Bytes32
    sig: Bytes64
    number: Uint | None = None  # as in KeyGeneration

    @classmethod
    def issue(
        cls, owner: SigningKey, stream_id: bytes, gen: int, *, number: int | None = None, reason: str = ""
    ) -> Self:
        unsigned = cls(
            stream_id=stream_id,
            gen=gen,
            reason=reason[:_MAX_REASON],
            owner_pk=owner.public,
            sig=bytes(64),
            number=number,
        )
        return replace(unsigned, sig=owner.sign(unsigned.signing_digest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerChange(Map, kind="key owner"):
    """Change of the owner's key to `new_owner_pk`, signed by both keys.

    The readers stay: one that must not read on is removed by the next generation.
    """

    stream_id: Bytes32
    owner_pk: Bytes32  # the key that the owner has had until now
    new_owner_pk: Bytes32
    number: Uint  # as in KeyGeneration
    sig: Bytes64
    sig_new: Bytes64

    @classmethod
    def issue(cls, owner: SigningKey, new: SigningKey, stream_id: bytes, *, number: int) -> Self:
        unsigned = cls(
            stream_id=stream_id,
            owner_pk=owner.public,
            new_owner_pk=new.public,
            number=number,
            sig=bytes(64),
            sig_new=bytes(64),
        )
        digest = unsigned.signing_digest()
        return replace(unsigned, sig=owner.sign(digest), sig_new=new.sign(digest))

    def signing_digest(self) -> bytes:
        """Return the hash of all fields but the signatures."""
        signatures = {_key_of_sig(OwnerChange), _key_of_sig(OwnerChange) + 1}
        tree: Any = self.to_tree()
        return Ht("veen/keys-owner", cbor.encode({key: value for key, value in tree.items() if key not in signatures}))

    def check_signed_by(self, public: bytes) -> None:
        """Raise SignatureError unless this key and the new one signed it."""
        digest = self.signing_digest()
        if not ed25519.verify(public, digest, self.sig):
            raise SignatureError(f"{self.KIND}: sig does not verify")
        if not ed25519.verify(self.new_owner_pk, digest, self.sig_new):
            raise SignatureError(f"{self.KIND}: sig_new does not verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorCard(CardRecord):
    """The record of veen.card.v1 with a card that has a text form."""

    card: IdentityCard
