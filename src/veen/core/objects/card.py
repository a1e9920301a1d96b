"""The card of an identity, and veen.card.v1, the message whose author says that it is the identity on a card.

The text form of a card, `veen1…`, is in `veen.client.identity.card`.

Prekeys: X25519 keys that an identity offers for messages to itself (spec-1 §3, KEX0.2, D-102).

Point-to-point messages are sealed to a prekey instead of a stream's reader key (D-10). After `expires_at` nobody seals
to it any more; its secret half stays with the identity and opens what was sealed before.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import H, Ht
from veen.core.labels import schema_id
from veen.core.wire import Bytes32, Bytes64, Map, Uint

CARD_SCHEMA: Final = schema_id("veen.card.v1")
_SIG_TAG: Final = "veen/card"


def card_id_of(id_sign_pk: bytes) -> str:
    """Return the short name of an identity: it stays when client keys rotate."""
    return H(id_sign_pk).hex()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card(Map, kind="identity_card"):
    """An identity and the client key it uses now, signed by the identity."""

    MAX_BYTES: ClassVar[int] = 512

    id_sign_pk: Bytes32
    dh_pk: Bytes32
    client_id: Bytes32  # changes with every rotation: a card is a snapshot (KEX0.2)
    name: str
    sig: Bytes64

    @classmethod
    def issue(cls, id_sign: ed25519.SigningKey, *, dh_pk: bytes, client_id: bytes, name: str) -> Self:
        unsigned = cls(id_sign_pk=id_sign.public, dh_pk=dh_pk, client_id=client_id, name=name, sig=b"")
        return replace(unsigned, sig=id_sign.sign(unsigned.signing_digest()))

    def signing_digest(self) -> bytes:
        tree = self.to_tree()
        del tree[6]  # the card without sig
        return Ht(_SIG_TAG, cbor.encode(tree))

    @property
    def is_signed(self) -> bool:
        """True if the identity itself signed this card."""
        return ed25519.verify(self.id_sign_pk, self.signing_digest(), self.sig)

    @property
    def card_id(self) -> str:
        return card_id_of(self.id_sign_pk)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRecord(Map, kind="author card"):
    """The author of the message is the identity on this card: both keys sign, the one on the card and its own."""

    card: Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Prekey(Map, kind="prekey"):
    """A statement of `id_sign_pk` that it may be reached under `prekey_pk` until `expires_at`."""

    id_sign_pk: Bytes32
    prekey_pk: Bytes32
    expires_at: Uint  # seconds; the last second in which it may be used, as with a cap_token (D-48)
    sig: Bytes64

    @classmethod
    def issue(cls, id_sign: ed25519.SigningKey, prekey_pk: bytes, *, expires_at: int) -> Self:
        unsigned = cls(id_sign_pk=id_sign.public, prekey_pk=prekey_pk, expires_at=expires_at, sig=b"")
        return replace(unsigned, sig=id_sign.sign(unsigned.signing_digest()))

    def signing_digest(self) -> bytes:
        """Return the digest that sig signs: Ht("veen/prekey", CBOR of the map without sig)."""
        tree = self.to_tree()
        del tree[5]
        return Ht("veen/prekey", cbor.encode(tree))

    def verify(self) -> None:
        """Raise SignatureError unless the identity it names signed this prekey."""
        if not ed25519.verify(self.id_sign_pk, self.signing_digest(), self.sig):
            raise SignatureError("prekey: sig does not verify under id_sign_pk")

    def is_live(self, now: int) -> bool:
        """Return True if a new message may be sealed to it; opening an old one is always allowed (KEX0-05)."""
        return now <= self.expires_at
