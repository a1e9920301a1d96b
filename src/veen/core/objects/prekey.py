"""Prekeys: X25519 keys that an identity offers for messages to itself (spec-1 §3, KEX0.2, D-102).

Point-to-point messages are sealed to a prekey instead of a stream's reader key (D-10). After `expires_at` nobody seals
to it any more; its secret half stays with the identity and opens what was sealed before.
"""

from dataclasses import dataclass, replace
from typing import Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import Ht
from veen.core.wire import Bytes32, Bytes64, Map, Uint


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
