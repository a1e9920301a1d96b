"""Recovery of a keystore whose passphrase is lost: a second passphrase, or a random key on paper.

A keystore is sealed under a root key that is derived from its passphrase. A recovery slot has this root key, sealed by
HPKE to a public key; the secret key is derived from the second passphrase or from the recovery key. So a new passphrase
needs no recovery secret: the new root key is sealed to the same public keys. The slots are associated data of the
keystore, so nobody can add one without its passphrase.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Self

from nacl.bindings import crypto_pwhash_SALTBYTES

from veen.client.errors import KeystoreDamaged, KeyTextInvalid, WrongRecoverySecret
from veen.client.identity import bech32
from veen.client.identity.identity import Random
from veen.client.identity.passphrases import Kdf
from veen.core.crypto import aead, hpke
from veen.core.errors import InvalidKeyError, OpenError
from veen.core.wire import Bytes32, Choice, Part, Size, Uint

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
