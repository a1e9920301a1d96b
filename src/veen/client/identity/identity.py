"""The secret side of a client: its identity and the keys that it signs with (spec-1 §3, KEX0.2, D-102a).

`id_sign` and `dh_sk` are long-term keys: they sign the card and prekeys, and open what is sealed to the card. A MSG
is signed by the current client key, which rotates; nothing in a MSG links it to `id_sign` or to the client key
before (KEX0-04). Only the keystore records that these keys are one identity.

After a theft the long-term keys are replaced. The former ones stay in the keystore: they open what was sealed to
them, and sign their successor.

Prekeys of an identity with their secret halves, and the check of a peer's prekey (KEX0.2, D-102).

A prekey is replaced when the client key rotates (KEX1+ 4.1), and kept for a while after it has expired, to open what
was sealed to it. Then its secret half is deleted: a thief of the keystore cannot open older messages.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

from veen.client.errors import CardInvalid, NameInvalid, PrekeyExpired
from veen.client.identity.card import IdentityCard, card_id_of
from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.errors import LimitError, SignatureError
from veen.core.hashing import Ht
from veen.core.objects.card import Prekey

Random = Callable[[int], bytes]

MAX_CLIENT_KEYS: Final = 4_096  # eleven years of one a day; the oldest ones are dropped
MAX_FORMER: Final = 32  # replaced long-term keys: half the number that a principal can succeed (D-179)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return the name if an identity may have it, else raise NameInvalid: it is part of paths and of the card."""
    if not _NAME.fullmatch(name):
        raise NameInvalid(name)
    return name


def principal_stream(id_sign_pk: bytes) -> bytes:
    """Return the id of the stream in which an identity keeps records of its devices (ID §4.1)."""
    return Ht("id/stream/principal", id_sign_pk)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ClientKey:
    """A key that signs MSGs for a limited time."""

    key: SigningKey
    created_at: int  # local seconds: the start of the lifetime of KEX1+
    generation: int  # from 1

    @property
    def client_id(self) -> bytes:
        return self.key.public

    def __repr__(self) -> str:
        return f"ClientKey(generation={self.generation}, client_id={self.client_id.hex()[:16]}…)"


@dataclass(frozen=True, kw_only=True, repr=False)
class LongTermKeys:
    """The keys on a card: those of an identity, or those that it had before they were replaced."""

    id_sign: SigningKey
    dh_sk: bytes
    generation: int  # of the last client key made before they were replaced
    replaced_at: int  # local seconds

    @property
    def id_sign_pk(self) -> bytes:
        return self.id_sign.public

    @cached_property
    def dh_pk(self) -> bytes:
        return x25519.public_key(self.dh_sk)

    @property
    def card_id(self) -> str:
        return card_id_of(self.id_sign_pk)

    def __repr__(self) -> str:
        return f"LongTermKeys(card {self.card_id})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Identity:
    """An identity, as a value: rotation returns a new one, which lasts only once the keystore has it."""

    name: str
    id_sign: SigningKey
    dh_sk: bytes
    client_keys: tuple[ClientKey, ...]  # by generation; the last one is in use, the others are retired
    former: tuple[LongTermKeys, ...] = ()  # the oldest first

    def __post_init__(self) -> None:
        check_name(self.name)
        generations = [key.generation for key in self.client_keys]
        if not generations or generations != list(range(generations[0], generations[0] + len(generations))):
            raise ValueError("an identity has client keys, by generation without gaps")

    @classmethod
    def create(cls, name: str, *, now: int, random: Random = os.urandom) -> Self:
        """Make an identity with new keys."""
        return cls(
            name=name,
            id_sign=SigningKey(random(SEED_BYTES)),
            dh_sk=random(x25519.KEY_BYTES),
            client_keys=(ClientKey(key=SigningKey(random(SEED_BYTES)), created_at=now, generation=1),),
        )

    def with_new_client_key(self, now: int, *, random: Random = os.urandom, seed: bytes | None = None) -> Self:
        """Return the identity with a new client key, which begins at client_seq 1 (D-102a).

        `seed` is the seed of a key that was prepared before, for example for a token that is issued in advance.
        """
        key = SigningKey(random(SEED_BYTES) if seed is None else seed)
        fresh = ClientKey(key=key, created_at=now, generation=self.client_key.generation + 1)
        return replace(self, client_keys=(*self.client_keys, fresh)[-MAX_CLIENT_KEYS:])

    def with_new_keys(self, now: int, *, random: Random = os.urandom) -> Self:
        """Return the identity with new long-term keys and a new client key, because somebody else has the present
        ones.

        Raise LimitError if that was done too often: the number of successors is limited.
        """
        if len(self.former) >= MAX_FORMER:
            raise LimitError("former long-term keys of an identity", len(self.former) + 1, MAX_FORMER)
        former = LongTermKeys(
            id_sign=self.id_sign, dh_sk=self.dh_sk, generation=self.client_key.generation, replaced_at=now
        )
        fresh = replace(self, id_sign=SigningKey(random(SEED_BYTES)), dh_sk=random(x25519.KEY_BYTES))
        return replace(fresh, former=(*self.former, former)).with_new_client_key(now, random=random)

    def act_as(self, former: LongTermKeys) -> Self:
        """Return this identity with a former long-term key in the first place, for acts that only that key may still
        do.

        It opens everything that this one opens.
        """
        own = LongTermKeys(
            id_sign=self.id_sign,
            dh_sk=self.dh_sk,
            generation=self.client_key.generation,
            replaced_at=former.replaced_at,
        )
        others = tuple(keys for keys in self.former if keys.id_sign_pk != former.id_sign_pk)
        return replace(self, id_sign=former.id_sign, dh_sk=former.dh_sk, former=(*others, own))

    @property
    def openings(self) -> tuple[tuple[str, bytes], ...]:
        """Id of each card of the identity and the key that opens messages to it; the present one first."""
        return (
            (self.card_id, self.dh_sk),
            *((keys.card_id, keys.dh_sk) for keys in reversed(self.former)),
        )

    @property
    def principals(self) -> tuple[bytes, ...]:
        """The id_sign_pk of the identity, after those that it replaced."""
        return (*(keys.id_sign_pk for keys in self.former), self.id_sign_pk)

    @property
    def client_key(self) -> ClientKey:
        """The newest client key, which signs what is sent."""
        return self.client_keys[-1]

    @property
    def client_id(self) -> bytes:
        """The public half of the newest client key."""
        return self.client_key.client_id

    @property
    def id_sign_pk(self) -> bytes:
        """The public long-term key that signs."""
        return self.id_sign.public

    @cached_property
    def dh_pk(self) -> bytes:
        return x25519.public_key(self.dh_sk)

    @property
    def card_id(self) -> str:
        """The short name of the identity that cards show."""
        return card_id_of(self.id_sign_pk)

    def client_key_of(self, client_id: bytes) -> ClientKey | None:
        """Return the key of a client_id if it is or was a key of this identity, else None."""
        return next((key for key in reversed(self.client_keys) if key.client_id == client_id), None)

    def card(self) -> IdentityCard:
        """Return the public card of the identity."""
        return IdentityCard.issue(self.id_sign, dh_pk=self.dh_pk, client_id=self.client_id, name=self.name)

    def former_card(self, former: LongTermKeys) -> IdentityCard:
        """Return the last card of a former long-term key, by which others can exclude it."""
        keys = (key for key in reversed(self.client_keys) if key.generation <= former.generation)
        client_id = next((key.client_id for key in keys), self.client_keys[0].client_id)
        return IdentityCard.issue(former.id_sign, dh_pk=former.dh_pk, client_id=client_id, name=self.name)

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, card {self.card_id})"


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
