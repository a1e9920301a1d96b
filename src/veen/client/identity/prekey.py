"""Prekeys of an identity with their secret halves, and the check of a peer's prekey (KEX0.2, D-102).

A prekey is replaced when the client key rotates (KEX1+ 4.1), and kept for a while after it has expired, to open what
was sealed to it. Then its secret half is deleted: a thief of the keystore cannot open older messages.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from veen.client.errors import CardInvalid, PrekeyExpired
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, Random
from veen.core.crypto import x25519
from veen.core.errors import SignatureError
from veen.core.objects.prekey import Prekey

PREKEY_TTL_SEC: Final = 7 * 86_400
PREKEY_KEEP_SEC: Final = 90 * 86_400  # after it has expired, the time in which a message to it can still be read
MAX_PREKEYS: Final = 1_024  # in a keystore; the oldest are dropped


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PrekeySecret:
    """A prekey of this identity, with its secret half."""

    prekey: Prekey
    sk: bytes

    @classmethod
    def create(
        cls, identity: Identity, *, now: int, ttl_sec: int = PREKEY_TTL_SEC, random: Random = os.urandom
    ) -> Self:
        sk = random(x25519.KEY_BYTES)
        prekey = Prekey.issue(identity.id_sign, x25519.public_key(sk), expires_at=now + ttl_sec)
        return cls(prekey=prekey, sk=sk)

    def __repr__(self) -> str:
        return f"PrekeySecret({self.prekey.prekey_pk.hex()[:16]}…, expires_at={self.prekey.expires_at})"


def current(prekeys: Iterable[PrekeySecret], now: int) -> PrekeySecret | None:
    """Return the prekey to hand out, which lasts longest; None if all have expired."""
    live = (secret for secret in prekeys if secret.prekey.is_live(now))
    return max(live, key=lambda secret: secret.prekey.expires_at, default=None)


def recent_prekeys(prekeys: Iterable[PrekeySecret], now: int) -> tuple[PrekeySecret, ...]:
    """Return the prekeys that a keystore keeps: the newest, without those that expired long ago."""
    recent = (secret for secret in prekeys if now <= secret.prekey.expires_at + PREKEY_KEEP_SEC)
    return tuple(sorted(recent, key=lambda secret: secret.prekey.expires_at)[-MAX_PREKEYS:])


def check_prekey(prekey: Prekey, card: IdentityCard, now: int) -> bytes:
    """Return the key to seal to for the holder of `card`. Raise if the prekey is another's, forged or expired."""
    if prekey.id_sign_pk != card.id_sign_pk:
        raise CardInvalid(f"the prekey belongs to another identity than {card.name!r} ({card.card_id})")
    try:
        prekey.verify()
    except SignatureError as exc:
        raise CardInvalid(str(exc)) from exc
    if not prekey.is_live(now):
        raise PrekeyExpired(prekey.expires_at, now)
    return prekey.prekey_pk
