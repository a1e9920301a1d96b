"""IdentityCard, the public side of an identity as one line of text: `veen1…` (spec-1 §15, UX: secrets).

The holder of a card can check what the identity signs, seal to it, and issue capability tokens to its client key. The
card is signed by id_sign, so a card that was altered on its way is noticed even if its checksum was made to fit.
"""

from dataclasses import dataclass
from typing import Final, Self

from veen.client.errors import CardInvalid, KeyTextInvalid
from veen.client.identity import bech32
from veen.core.errors import FormatError
from veen.core.objects.card import Card, card_id_of

__all__ = ["IdentityCard", "card_id_of"]

_PREFIX: Final = "veen"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCard(Card):
    """A card with its text form."""

    def verify(self) -> None:
        """Raise CardInvalid unless the identity itself signed this card."""
        if not self.is_signed:
            raise CardInvalid("the identity card is not signed by the key it names")

    def to_text(self) -> str:
        return bech32.to_text(_PREFIX, self.to_bytes())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode a card and check its signature. Raise CardInvalid with the fault of the text."""
        try:
            card = cls.from_bytes(bech32.from_text(_PREFIX, text))
        except (KeyTextInvalid, FormatError) as exc:
            raise CardInvalid(f"this is not an identity card: {exc}") from exc
        card.verify()
        return card
