"""IdentityCard, the public side of an identity as one line of text: `veen1…` (spec-1 §15, UX: secrets).

Whoever has a card can check what the identity signs, seal to it, and issue capability tokens to its client key. The
card is signed by id_sign, so a card that was altered on its way is noticed even if its checksum was made to fit.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from veen.client.errors import CardInvalid, KeyTextInvalid
from veen.client.identity import bech32
from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import FormatError
from veen.core.hashing import H, Ht
from veen.core.wire import Bytes32, Bytes64, Map

_PREFIX: Final = "veen"
_SIG_TAG: Final = "veen/card"


def card_id_of(id_sign_pk: bytes) -> str:
    """The short name of an identity: it stays when client keys rotate."""
    return H(id_sign_pk).hex()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCard(Map, kind="identity_card"):
    """An identity and the client key it uses now, said by itself."""

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

    def verify(self) -> None:
        """Raise CardInvalid unless the identity itself signed this card."""
        if not ed25519.verify(self.id_sign_pk, self.signing_digest(), self.sig):
            raise CardInvalid("the identity card is not signed by the key it names")

    @property
    def card_id(self) -> str:
        return card_id_of(self.id_sign_pk)

    def to_text(self) -> str:
        return bech32.to_text(_PREFIX, self.to_bytes())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The card, its signature checked; CardInvalid says what is wrong with the text."""
        try:
            card = cls.from_bytes(bech32.from_text(_PREFIX, text))
        except (KeyTextInvalid, FormatError) as exc:
            raise CardInvalid(f"this is not an identity card: {exc}") from exc
        card.verify()
        return card
