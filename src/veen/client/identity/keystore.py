"""keystore.enc: the secrets of one identity under a passphrase (UX: secrets, D-102).

A key is stretched from the passphrase by argon2id and seals the secrets with XChaCha20-Poly1305; the header is its
associated data. The parameters are in the header, so they may grow, and they are bounded when read, so a file cannot
make the client allocate gigabytes. A checksum over the whole file and a check value of the key distinguish three cases
that would otherwise look the same: a disk error, a wrong passphrase, and a file that somebody altered.

With kdf "none" the key is public: such a file only looks sealed. It is for tests and unattended machines, and
has to be asked for by name (`--insecure-plain-keystore`).

The contents of a keystore: the identity, its prekeys and the keyring, and their one encoding.

Recovery of a keystore whose passphrase is lost: a second passphrase, or a random key on paper.

A keystore is sealed under a root key that is derived from its passphrase. A recovery slot has this root key, sealed by
HPKE to a public key; the secret key is derived from the second passphrase or from the recovery key. So a new passphrase
needs no recovery secret: the new root key is sealed to the same public keys. The slots are associated data of the
keystore, so nobody can add one without its passphrase.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Annotated, Any, ClassVar, Final, Self

from nacl.bindings import crypto_pwhash_SALTBYTES

from veen.client.errors import (
    IdentityExists,
    KeystoreDamaged,
    KeyTextInvalid,
    LocalError,
    NameInvalid,
    WrongPassphrase,
    WrongRecoverySecret,
)
from veen.client.home import CARD, KEYSTORE, Home
from veen.client.identity import bech32
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import (
    MAX_CLIENT_KEYS,
    MAX_FORMER,
    MAX_PREKEYS,
    ClientKey,
    Identity,
    LongTermKeys,
    PrekeySecret,
    Random,
    recent_prekeys,
)
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.passphrases import Kdf
from veen.core import cbor
from veen.core.crypto import aead, hkdf, hpke
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.crypto.x25519 import KEY_BYTES
from veen.core.errors import FormatError, InvalidKeyError, MalformedError, OpenError
from veen.core.hashing import Ht
from veen.core.objects.card import Prekey
from veen.core.wire import LEFT_OUT_EMPTY, Bytes32, Choice, Length, Map, Part, Size, Uint
from veen.io.inside import FileRefused, check_size
from veen.io.local import Fs

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


MAX_SLOTS: Final = 8
_PREFIX: Final = "veenrecovery"
_INFO: Final = b"veen/keystore-recovery"
_KEY_BYTES: Final = 32
_SEALED_BYTES: Final = aead.KEY_BYTES + 16  # with the tag of ChaCha20-Poly1305


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySlot(Part, kind="recovery slot"):
    """One further way to open a keystore."""

    kind: Annotated[str, Choice("key", "passphrase")]
    memory_kib: Uint  # 0 for a recovery key, which needs no stretching
    passes: Uint
    salt: Annotated[bytes, Size(crypto_pwhash_SALTBYTES)]
    pk: Bytes32
    enc: Bytes32
    box: Annotated[bytes, Size(_SEALED_BYTES)]  # the root key

    @property
    def id(self) -> str:
        """Short name of the slot, for lists and for its removal."""
        return self.pk.hex()[:8]

    @classmethod
    def for_key(cls, root: bytes, bound_to: bytes, random: Random) -> tuple[Self, str]:
        """Make a random recovery key. Return its slot and its text."""
        secret = random(_KEY_BYTES)
        salt = random(crypto_pwhash_SALTBYTES)
        slot = cls._seal("key", Kdf(memory_kib=0, passes=0), salt, secret, root, bound_to, random)
        return slot, bech32.to_text(_PREFIX, secret)

    @classmethod
    def for_passphrase(cls, passphrase: str, kdf: Kdf, root: bytes, bound_to: bytes, random: Random) -> Self:
        """Return a slot that a second passphrase opens."""
        salt = random(crypto_pwhash_SALTBYTES)
        return cls._seal("passphrase", kdf, salt, kdf.key(passphrase, salt), root, bound_to, random)

    @classmethod
    def _seal(
        cls, kind: str, kdf: Kdf, salt: bytes, secret: bytes, root: bytes, bound_to: bytes, random: Random
    ) -> Self:
        _, pk = hpke.derive_key_pair(secret)
        empty = cls(
            kind=kind, memory_kib=kdf.memory_kib, passes=kdf.passes, salt=salt, pk=pk, enc=pk, box=bytes(_SEALED_BYTES)
        )
        return empty.reseal(root, bound_to, random)

    def reseal(self, root: bytes, bound_to: bytes, random: Random) -> Self:
        """Return this slot with another root key inside. `bound_to` is the salt of the keystore."""
        enc, context = hpke.setup_sender(self.pk, random(hpke.IKM_BYTES), _INFO)
        return replace(self, enc=enc, box=context.seal(bound_to, root))

    def open(self, text: str, bound_to: bytes) -> bytes | None:
        """Return the root key of the keystore, or None if `text` is not the secret of this slot."""
        if self.kind == "key":
            secret = recovery_key_of(text)
            if secret is None:
                return None
        else:
            secret = Kdf(memory_kib=self.memory_kib, passes=self.passes).key(text, self.salt)
        sk, pk = hpke.derive_key_pair(secret)
        if pk != self.pk:
            return None
        try:
            return hpke.setup_receiver(self.enc, sk, _INFO, pk).open(bound_to, self.box)
        except (OpenError, InvalidKeyError) as exc:
            raise KeystoreDamaged("the recovery secret is right, but the file was altered") from exc

    def to_public(self) -> dict[str, Any]:
        """Return the public part, for lists."""
        return {"id": self.id, "kind": self.kind}


def recovery_key_of(text: str) -> bytes | None:
    """Return the bytes of a recovery key given as text, or None if the text is not one.

    Raise KeyTextInvalid for a recovery key that was mistyped.
    """
    if not text.strip().lower().startswith(f"{_PREFIX}1"):
        return None
    secret = bech32.from_text(_PREFIX, text)
    if len(secret) != _KEY_BYTES:
        raise KeyTextInvalid("it is not a recovery key: its length is wrong")
    return secret


def open_slots(slots: Iterable[RecoverySlot], text: str, bound_to: bytes) -> bytes:
    """Return the root key by the first slot that `text` opens. Raise WrongRecoverySecret if it opens none.

    A recovery key is never tried as a passphrase.
    """
    kind = "passphrase" if recovery_key_of(text) is None else "key"
    for slot in slots:
        if slot.kind == kind and (root := slot.open(text, bound_to)) is not None:
            return root
    raise WrongRecoverySecret


MAX_KEYSTORE_BYTES: Final = 4 * 1024 * 1024
MAX_CARD_BYTES: Final = 4_096  # a card as text has less than a quarter of that
_SUM_BYTES: Final = 32
_CHECK_BYTES: Final = 16
_SEALED: Final = 8  # keys of two fields in the map
_CHECKSUM: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedKeystore(Map, kind="keystore"):
    """The bytes of keystore.enc. Everything but `sealed` and `checksum` is its associated data."""

    MAX_BYTES: ClassVar[int] = MAX_KEYSTORE_BYTES

    kdf: str  # "argon2id", or "none": anyone who has the file has the keys
    memory_kib: Uint
    passes: Uint
    salt: Annotated[bytes, Size(crypto_pwhash_SALTBYTES)]
    key_check: Annotated[bytes, Size(_CHECK_BYTES)]
    nonce: Annotated[bytes, Size(aead.NONCE_BYTES)]
    sealed: bytes
    checksum: Annotated[bytes, Size(_SUM_BYTES)]  # of everything else; detects disk errors, not attacks
    recovery: Annotated[tuple[RecoverySlot, ...], Length(1, MAX_SLOTS), LEFT_OUT_EMPTY] = ()

    @property
    def is_plain(self) -> bool:
        return self.kdf == "none"

    def header(self) -> bytes:
        tree = self.to_tree()
        return cbor.encode({key: value for key, value in tree.items() if key not in (_SEALED, _CHECKSUM)})

    def sum(self) -> bytes:
        return Ht("veen/keystore-sum", self.header() + self.sealed)

    @classmethod
    def read(cls, fs: Fs) -> Self:
        """Read the file and check everything that needs no passphrase."""
        try:
            file = fs.open(KEYSTORE)
        except FileNotFoundError as exc:
            raise KeystoreDamaged("the file is missing") from exc
        try:
            if file.size() > MAX_KEYSTORE_BYTES:
                raise KeystoreDamaged(f"it has {file.size()} bytes; no keystore has more than {MAX_KEYSTORE_BYTES}")
            data = file.read_at(0, file.size())
        finally:
            file.close()
        try:
            sealed = cls.from_bytes(data)
        except FormatError as exc:
            raise KeystoreDamaged(str(exc)) from exc
        if not compare_digest(sealed.sum(), sealed.checksum):
            raise KeystoreDamaged("its checksum is wrong: bytes of the file were altered")
        if sealed.kdf not in ("argon2id", "none"):
            raise KeystoreDamaged(f"this release does not know the key derivation {sealed.kdf!r}")
        return sealed


class Keystore:
    """An open keystore: the secrets, and the key to write them again without the passphrase."""

    def __init__(self, fs: Fs, header: SealedKeystore, root: bytes, secrets: Secrets, random: Random) -> None:
        self._fs, self._header, self._root, self._random = fs, header, root, random
        self.secrets = secrets

    @classmethod
    def create(
        cls, fs: Fs, secrets: Secrets, passphrase: str | None, *, kdf: Kdf | None = None, random: Random = os.urandom
    ) -> Self:
        """Create a keystore, never over another one. Without a passphrase it is the insecure plain form."""
        if fs.exists(KEYSTORE):
            raise IdentityExists(secrets.identity.name)
        header, root = _fresh_header(passphrase, kdf or Kdf(), random)
        keystore = cls(fs, header, root, secrets, random)
        keystore.save(secrets)
        return keystore

    @classmethod
    def open(cls, fs: Fs, passphrase: str | None, *, key: bytes | None = None, random: Random = os.urandom) -> Self:
        """Open a keystore. Raise WrongPassphrase or KeystoreDamaged. `key` is the `unlock_key` of an earlier
        opening."""
        sealed = SealedKeystore.read(fs)
        if sealed.is_plain:
            root = _plain_root(sealed.salt)
        elif key is not None:
            root = key
        elif passphrase is None:
            raise WrongPassphrase
        else:
            root = Kdf(memory_kib=sealed.memory_kib, passes=sealed.passes).key(passphrase, sealed.salt)
        if not compare_digest(_key_check(root), sealed.key_check):
            if sealed.is_plain:
                raise KeystoreDamaged("it was altered")
            raise WrongPassphrase
        try:
            opened = aead.open_(_seal_key(root), sealed.nonce, sealed.header(), sealed.sealed)
            secrets = Secrets.from_bytes(opened)
        except (OpenError, FormatError) as exc:  # neither message shows any of the secrets
            raise KeystoreDamaged("the passphrase is right, but the file was altered") from exc
        return cls(fs, sealed, root, secrets, random)

    @property
    def is_plain(self) -> bool:
        return self._header.is_plain

    @property
    def salt(self) -> bytes:
        """Salt of the key. It changes with the passphrase; an agent stores `unlock_key` under it."""
        return self._header.salt

    @property
    def unlock_key(self) -> bytes:
        """Key that argon2id made from the passphrase. It opens this file and does not reveal the passphrase."""
        return self._root

    @property
    def identity(self) -> Identity:
        return self.secrets.identity

    def save(self, secrets: Secrets) -> None:
        """Write all secrets durably, or leave the file as it was. The caller holds the lock of the identity.

        The card is written after the keystore: after a crash in between it has the previous client key, which
        `open_identity` repairs.
        """
        self._write(self._header, self._root, secrets)

    def _write(self, header: SealedKeystore, root: bytes, secrets: Secrets) -> None:
        if not self.is_current():
            raise LocalError("another process has changed the keystore since it was opened: open it again")
        header = replace(header, nonce=self._random(aead.NONCE_BYTES))
        written = replace(header, sealed=aead.seal(_seal_key(root), header.nonce, header.header(), secrets.to_bytes()))
        written = replace(written, checksum=written.sum())
        self._fs.replace(KEYSTORE, written.to_bytes(), private=True)
        self._header, self._root, self.secrets = written, root, secrets
        self.write_card()

    def is_current(self) -> bool:
        """Return True if the file is still the one that was read or written here: every save has a new nonce."""
        if not self._fs.exists(KEYSTORE):
            return not self._header.nonce
        return SealedKeystore.read(self._fs).nonce == self._header.nonce

    def file_bytes(self) -> bytes:
        """Return the bytes of keystore.enc on disk, which are sealed and may be copied."""
        return self._header.to_bytes()

    def write_card(self) -> None:
        if not self.card_is_current():
            self._fs.replace(CARD, self._card())

    def card_is_current(self) -> bool:
        return self._fs.exists(CARD) and _card_bytes(self._fs) == self._card()

    def _card(self) -> bytes:
        return f"{self.identity.card().to_text()}\n".encode()

    def rotate(self, now: int, *, seed: bytes | None = None) -> Identity:
        """Make a new client key and a new prekey, durably, before anything is signed with them (KEX1+ 4.1)."""
        identity = self.identity.with_new_client_key(now, random=self._random, seed=seed)
        prekey = PrekeySecret.create(identity, now=now, random=self._random)
        self.save(
            replace(self.secrets, identity=identity, prekeys=recent_prekeys((*self.secrets.prekeys, prekey), now))
        )
        return identity

    def replace_keys(self, now: int) -> Identity:
        """Replace the long-term keys, the client key and the prekey in one durable save; the former ones are kept."""
        identity = self.identity.with_new_keys(now, random=self._random)
        prekey = PrekeySecret.create(identity, now=now, random=self._random)
        self.save(
            replace(self.secrets, identity=identity, prekeys=recent_prekeys((*self.secrets.prekeys, prekey), now))
        )
        return identity

    @classmethod
    def recover(cls, fs: Fs, secret: str, *, random: Random = os.urandom) -> Self:
        """Open with a recovery key or a second passphrase. Raise WrongPassphrase if the file has no slot for it."""
        sealed = SealedKeystore.read(fs)
        return cls.open(fs, None, key=open_slots(sealed.recovery, secret, sealed.salt), random=random)

    def change_passphrase(self, passphrase: str | None, *, kdf: Kdf | None = None) -> None:
        """Seal with a new salt and a new key. The old passphrase opens only old copies of the file."""
        self._reseal(passphrase, kdf, self.recoveries)

    @property
    def recoveries(self) -> tuple[RecoverySlot, ...]:
        """Further ways to open this keystore."""
        return self._header.recovery

    def make_recovery_key(self) -> tuple[RecoverySlot, str]:
        """Make a random recovery key. Return its slot, for `add_recovery`, and its text, which is not stored."""
        return RecoverySlot.for_key(self._root, self.salt, self._random)

    def make_recovery_passphrase(self, passphrase: str, *, kdf: Kdf | None = None) -> RecoverySlot:
        """Return the slot of a second passphrase, which opens this keystore by `recover` alone.

        Raise LocalError for the passphrase that opens it already: who forgets one forgets the other.
        """
        header = self._header
        present = Kdf(memory_kib=header.memory_kib, passes=header.passes)
        if not self.is_plain and compare_digest(_key_check(present.key(passphrase, self.salt)), header.key_check):
            raise LocalError("the second passphrase is the one that opens the keystore already: choose another")
        return RecoverySlot.for_passphrase(passphrase, kdf or Kdf(), self._root, self.salt, self._random)

    def add_recovery(self, slot: RecoverySlot) -> None:
        """Store a slot that was made for this keystore since its passphrase changed last, durably."""
        if self.is_plain:
            raise LocalError("the keystore has no passphrase that could be lost: every command opens it")
        if len(self.recoveries) == MAX_SLOTS:
            raise LocalError(f"the keystore has {MAX_SLOTS} recovery secrets already: remove one first")
        self._write(replace(self._header, recovery=(*self.recoveries, slot)), self._root, self.secrets)

    def remove_recovery(self, slot_id: str, passphrase: str, *, kdf: Kdf | None = None) -> None:
        """Remove a recovery secret, and seal the keystore under a new key.

        The key is new because the removed secret still opens older copies of the file, which have the previous key.
        `passphrase` seals the keystore from now on.
        """
        rest = tuple(slot for slot in self.recoveries if slot.id != slot_id)
        if len(rest) == len(self.recoveries):
            raise LocalError(f"the keystore has no recovery secret {slot_id!r}")
        self._reseal(passphrase, kdf, rest)

    def _reseal(self, passphrase: str | None, kdf: Kdf | None, slots: tuple[RecoverySlot, ...]) -> None:
        header, root = _fresh_header(passphrase, kdf or Kdf(), self._random)
        slots = tuple(slot.reseal(root, header.salt, self._random) for slot in slots)
        self._write(replace(header, recovery=() if passphrase is None else slots), root, self.secrets)

    def __repr__(self) -> str:
        return f"Keystore({self.identity!r}, {'plain' if self.is_plain else 'sealed'})"


def _card_bytes(fs: Fs) -> bytes:
    file = fs.open(CARD)
    try:
        return file.read_at(0, check_size(file.size(), MAX_CARD_BYTES, CARD))
    except FileRefused as exc:
        raise KeystoreDamaged(str(exc)) from exc
    finally:
        file.close()


def read_card(fs: Fs) -> IdentityCard:
    """Read the public card; no passphrase is required."""
    try:
        data = _card_bytes(fs)
    except FileNotFoundError as exc:
        raise KeystoreDamaged(f"the file {CARD} beside it is missing") from exc
    return IdentityCard.from_text(data.decode(errors="replace"))


def create_identity(
    home: Home,
    name: str,
    passphrase: str | None,
    *,
    now: int,
    kdf: Kdf | None = None,
    random: Random = os.urandom,
) -> Keystore:
    """Create an identity with its first prekey. Raise IdentityExists instead of overwriting another's keys."""
    identity = Identity.create(name, now=now, random=random)
    secrets = Secrets(identity=identity, prekeys=(PrekeySecret.create(identity, now=now, random=random),))
    with home.lock(name):
        return Keystore.create(home.identity_fs(name), secrets, passphrase, kdf=kdf, random=random)


def open_identity(home: Home, name: str, passphrase: str | None, *, key: bytes | None = None) -> Keystore:
    """Open the keystore of an identity. Reading needs no lock; saving requires `home.lock(name)`."""
    home.require(name)
    keystore = Keystore.open(home.identity_fs(name), passphrase, key=key)
    if keystore.identity.name != name:
        raise KeystoreDamaged(f"it is that of {keystore.identity.name!r}, not of {name!r}")
    if not keystore.card_is_current():
        # A crash came between keystore and card. If another process has the lock, its next save repairs the card.
        with contextlib.suppress(LocalError, OSError), home.lock(name):
            if keystore.is_current():
                keystore.write_card()
    return keystore


def _fresh_header(passphrase: str | None, kdf: Kdf, random: Random) -> tuple[SealedKeystore, bytes]:
    salt = random(crypto_pwhash_SALTBYTES)
    if passphrase is None:
        name, kdf, root = "none", Kdf(memory_kib=0, passes=0), _plain_root(salt)
    elif not passphrase:
        raise LocalError("an empty passphrase protects nothing")
    else:
        name, root = "argon2id", kdf.key(passphrase, salt)
    header = SealedKeystore(
        kdf=name,
        memory_kib=kdf.memory_kib,
        passes=kdf.passes,
        salt=salt,
        key_check=_key_check(root),
        nonce=b"",
        sealed=b"",
        checksum=b"",
    )
    return header, root


def _plain_root(salt: bytes) -> bytes:
    return Ht("veen/keystore-plain", salt)


def _seal_key(root: bytes) -> bytes:
    return hkdf.hkdf(root, b"", b"veen/keystore-key", aead.KEY_BYTES)


def _key_check(root: bytes) -> bytes:
    """Return the check value that distinguishes a wrong passphrase from altered bytes; it helps an attacker no more
    than the seal."""
    return hkdf.hkdf(root, b"", b"veen/keystore-check", _CHECK_BYTES)
