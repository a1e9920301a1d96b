"""Secrets, what a keystore holds: the identity, its prekeys and the keyring, and their one encoding."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from veen.client.errors import NameInvalid
from veen.client.identity import MAX_CLIENT_KEYS, ClientKey, Identity
from veen.client.keyring import Keyring, StreamKeys
from veen.client.prekey import MAX_PREKEYS, PrekeySecret
from veen.core.ed25519 import SEED_BYTES, SigningKey
from veen.core.errors import MalformedError
from veen.core.prekey import Prekey
from veen.core.wire import Fields, Form, Wire
from veen.core.x25519 import KEY_BYTES

__all__ = ["MAX_STREAMS", "Secrets"]

MAX_STREAMS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Secrets:
    """A value; only `Keystore` makes it last."""

    identity: Identity
    keyring: Keyring = field(default_factory=Keyring)
    prekeys: tuple[PrekeySecret, ...] = ()

    def to_bytes(self) -> bytes:
        """In the clear: for the keystore to seal."""
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
        ).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse; a FormatError names a field, never its value."""
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
            )
        except (ValueError, NameInvalid) as exc:
            raise MalformedError(str(exc), _Stored.KIND) from exc
        prekeys = tuple(PrekeySecret(prekey=one.prekey, sk=one.sk) for one in stored.prekeys)
        return cls(identity=identity, keyring=Keyring(stored.streams), prekeys=prekeys)

    def __repr__(self) -> str:
        return f"Secrets({self.identity!r}, {len(self.keyring.entries)} streams, {len(self.prekeys)} prekeys)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _StoredKey(Wire):
    KIND: ClassVar[str] = "client key"
    FORM: ClassVar[Form] = "map"

    seed: bytes
    created_at: int
    generation: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(seed=f.bstr("seed", SEED_BYTES), created_at=f.uint("created_at"), generation=f.uint("generation"))

    def _write(self) -> dict[str, Any]:
        return {"seed": self.seed, "created_at": self.created_at, "generation": self.generation}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _StoredPrekey(Wire):
    KIND: ClassVar[str] = "prekey secret"
    FORM: ClassVar[Form] = "map"

    prekey: Prekey
    sk: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(prekey=f.object("prekey", Prekey), sk=f.bstr("sk", KEY_BYTES))

    def _write(self) -> dict[str, Any]:
        return {"prekey": self.prekey, "sk": self.sk}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Stored(Wire):
    KIND: ClassVar[str] = "secrets"
    FORM: ClassVar[Form] = "map"

    name: str
    id_sign: bytes
    dh_sk: bytes
    client_keys: tuple[_StoredKey, ...]
    prekeys: tuple[_StoredPrekey, ...]
    streams: tuple[StreamKeys, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            name=f.text("name"),
            id_sign=f.bstr("id_sign", SEED_BYTES),
            dh_sk=f.bstr("dh_sk", KEY_BYTES),
            client_keys=f.objects("client_keys", _StoredKey, at_least=1, at_most=MAX_CLIENT_KEYS),
            prekeys=f.objects("prekeys", _StoredPrekey, at_most=MAX_PREKEYS),
            streams=f.objects("streams", StreamKeys, at_most=MAX_STREAMS),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "name": self.name,
            "id_sign": self.id_sign,
            "dh_sk": self.dh_sk,
            "client_keys": self.client_keys,
            "prekeys": self.prekeys,
            "streams": self.streams,
        }
