"""The contents of a keystore: the identity, its prekeys and the keyring, and their one encoding."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Self

from veen.client.errors import NameInvalid
from veen.client.identity.identity import MAX_CLIENT_KEYS, MAX_FORMER, ClientKey, Identity, LongTermKeys
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.prekey import MAX_PREKEYS, PrekeySecret
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.crypto.x25519 import KEY_BYTES
from veen.core.errors import MalformedError
from veen.core.objects.prekey import Prekey
from veen.core.wire import LEFT_OUT_EMPTY, Length, Map, Part, Size, Uint

MAX_STREAMS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Secrets:
    """The secrets of one identity, as a value; only `Keystore` makes them last."""

    identity: Identity
    keyring: Keyring = field(default_factory=Keyring)
    prekeys: tuple[PrekeySecret, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode the secrets in the clear, for the keystore to seal."""
        identity = self.identity
        return _Stored(
            name=identity.name,
            id_sign=identity.id_sign.seed,
            dh_sk=identity.dh_sk,
            client_keys=tuple(
                _StoredKey(seed=key.key.seed, created_at=key.created_at, generation=key.generation)
                for key in identity.client_keys
            ),
            prekeys=tuple(_StoredPrekey(prekey=secret.prekey, sk=secret.sk) for secret in self.prekeys),
            streams=self.keyring.entries,
            former=tuple(
                _StoredFormer(
                    id_sign=keys.id_sign.seed,
                    dh_sk=keys.dh_sk,
                    generation=keys.generation,
                    replaced_at=keys.replaced_at,
                )
                for keys in identity.former
            ),
        ).to_bytes()

    @property
    def own_prekeys(self) -> tuple[PrekeySecret, ...]:
        """Prekeys that the present long-term key signed; the others only open."""
        own = self.identity.id_sign_pk
        return tuple(secret for secret in self.prekeys if secret.prekey.id_sign_pk == own)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode the secrets. A FormatError names a field, never its value."""
        stored = _Stored.from_bytes(data)
        try:
            identity = Identity(
                name=stored.name,
                id_sign=SigningKey(stored.id_sign),
                dh_sk=stored.dh_sk,
                client_keys=tuple(
                    ClientKey(key=SigningKey(key.seed), created_at=key.created_at, generation=key.generation)
                    for key in stored.client_keys
                ),
                former=tuple(
                    LongTermKeys(
                        id_sign=SigningKey(keys.id_sign),
                        dh_sk=keys.dh_sk,
                        generation=keys.generation,
                        replaced_at=keys.replaced_at,
                    )
                    for keys in stored.former
                ),
            )
        except (ValueError, NameInvalid) as exc:
            raise MalformedError(str(exc), _Stored.KIND) from exc
        prekeys = tuple(PrekeySecret(prekey=secret.prekey, sk=secret.sk) for secret in stored.prekeys)
        return cls(identity=identity, keyring=Keyring(stored.streams), prekeys=prekeys)

    def __repr__(self) -> str:
        return f"Secrets({self.identity!r}, {len(self.keyring.entries)} streams, {len(self.prekeys)} prekeys)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _StoredKey(Part, kind="client key"):
    seed: Annotated[bytes, Size(SEED_BYTES)]
    created_at: Uint
    generation: Uint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _StoredPrekey(Part, kind="prekey secret"):
    prekey: Prekey
    sk: Annotated[bytes, Size(KEY_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _StoredFormer(Part, kind="former keys"):
    id_sign: Annotated[bytes, Size(SEED_BYTES)]
    dh_sk: Annotated[bytes, Size(KEY_BYTES)]
    generation: Uint
    replaced_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Stored(Map, kind="secrets"):
    name: str
    id_sign: Annotated[bytes, Size(SEED_BYTES)]
    dh_sk: Annotated[bytes, Size(KEY_BYTES)]
    client_keys: Annotated[tuple[_StoredKey, ...], Length(1, MAX_CLIENT_KEYS)]
    prekeys: Annotated[tuple[_StoredPrekey, ...], Length(0, MAX_PREKEYS)]
    streams: Annotated[tuple[StreamKeys, ...], Length(0, MAX_STREAMS)]
    former: Annotated[tuple[_StoredFormer, ...], Length(0, MAX_FORMER), LEFT_OUT_EMPTY] = ()
