"""HPKE (RFC 9180), base mode with export: X25519-HKDF-SHA256, HKDF-SHA256, ChaCha20-Poly1305 (spec §3.2, D-08, D-20).

Nothing here draws randomness: a sender brings 32 fresh random bytes for its ephemeral key. VEEN sets up a context for
every message and seals once in it (D-09); sequence numbers are there because the RFC and its test vectors have them.
"""

from functools import lru_cache
from hmac import digest
from typing import Final, NamedTuple

from veen.core.crypto import x25519
from veen.core.crypto.aead import CHACHA_NONCE_BYTES, KEY_BYTES, chacha_open, chacha_seal
from veen.core.crypto.hkdf import HASH_BYTES, MAX_BYTES, expand, extract
from veen.core.errors import InvalidKeyError, OpenError

IKM_BYTES: Final = 32

# LabeledExtract and LabeledExpand (RFC 9180 §4) put a version, a suite and a label before their input. All of that is
# constant here, and every key fits one hash block, so each step below is one HMAC over a prefix, the input and 0x01.
_KEM: Final = b"HPKE-v1KEM\x00\x20"
_SUITE: Final = b"HPKE-v1HPKE\x00\x20\x00\x01\x00\x03"
_SK: Final = b"\x00\x20" + _KEM + b"sk\x01"
_DKP_PRK: Final = _KEM + b"dkp_prk"
_EAE_PRK: Final = _KEM + b"eae_prk"
_SHARED_SECRET: Final = b"\x00\x20" + _KEM + b"shared_secret"
_SECRET: Final = _SUITE + b"secret"  # no PSK in base mode, so its input is empty
_PSK_ID_HASH: Final = extract(b"", _SUITE + b"psk_id_hash")
_SEC: Final = _SUITE + b"sec"


class _Schedule(NamedTuple):
    """Inputs with which the key schedule expands `secret`, for one `info`."""

    key: bytes
    base_nonce: bytes
    exporter: bytes


@lru_cache(maxsize=8)  # VEEN's info is always empty (D-08)
def _schedule(info: bytes) -> _Schedule:
    context = b"\x00" + _PSK_ID_HASH + extract(b"", _SUITE + b"info_hash" + info)  # 0x00 is base mode

    def expansion(label: bytes, length: int) -> bytes:
        return length.to_bytes(2, "big") + _SUITE + label + context + b"\x01"

    return _Schedule(
        key=expansion(b"key", KEY_BYTES),
        base_nonce=expansion(b"base_nonce", CHACHA_NONCE_BYTES),
        exporter=expansion(b"exp", HASH_BYTES),
    )


class Context:
    """One side of an encryption. The sender's only seals and the receiver's only opens: they share key and nonces."""

    __slots__ = ("_base_nonce", "_exporter_secret", "_key", "_sends", "_seq")

    def __init__(self, shared_secret: bytes, info: bytes, *, sends: bool) -> None:
        secret = digest(shared_secret, _SECRET, "sha256")
        schedule = _schedule(info)
        self._key = digest(secret, schedule.key, "sha256")
        self._base_nonce = int.from_bytes(digest(secret, schedule.base_nonce, "sha256")[:CHACHA_NONCE_BYTES], "big")
        self._exporter_secret = digest(secret, schedule.exporter, "sha256")
        self._sends = sends
        self._seq = 0  # of the next seal or open; RFC 9180 counts from 0

    def seal(self, aad: bytes, pt: bytes) -> bytes:
        if not self._sends:
            raise ValueError("a receiver's context must not seal: it would use the sender's nonces again")
        ct = chacha_seal(self._key, self._nonce(), aad, pt)
        self._seq += 1
        return ct

    def open(self, aad: bytes, ct: bytes) -> bytes:
        """Return the next plaintext, or raise OpenError.

        A failure does not use up the sequence number (RFC 9180 §5.2).
        """
        if self._sends:
            raise ValueError("a sender's context must not open: its sequence numbers are those of its own messages")
        pt = chacha_open(self._key, self._nonce(), aad, ct)
        self._seq += 1
        return pt

    def export(self, exporter_context: bytes, length: int) -> bytes:
        """Return a secret that both sides derive, bound to `exporter_context` (RFC 9180 §5.3)."""
        if not 0 <= length <= MAX_BYTES:  # before `length` is put into two bytes
            raise ValueError(f"HPKE exports 0 to {MAX_BYTES} bytes, not {length}")
        return expand(self._exporter_secret, length.to_bytes(2, "big") + _SEC + exporter_context, length)

    def _nonce(self) -> bytes:
        # After 2^96 messages to_bytes raises, so a nonce never comes round again.
        return (self._base_nonce ^ self._seq).to_bytes(CHACHA_NONCE_BYTES, "big")

    def __repr__(self) -> str:
        return f"Context({'sender' if self._sends else 'receiver'}, seq={self._seq})"


def _extract_and_expand(dh: bytes, enc: bytes, pk_r: bytes) -> bytes:
    """Return the shared secret of the KEM: ExtractAndExpand (RFC 9180 §4.1)."""
    eae_prk = digest(b"", _EAE_PRK + dh, "sha256")
    return digest(eae_prk, b"%b%b%b\x01" % (_SHARED_SECRET, enc, pk_r), "sha256")


def derive_key_pair(ikm: bytes) -> tuple[bytes, bytes]:
    """Derive secret and public key from at least 32 bytes of key material: DeriveKeyPair (RFC 9180 §7.1.3)."""
    if len(ikm) < IKM_BYTES:
        raise InvalidKeyError(f"HPKE key material: expected at least {IKM_BYTES} bytes, found {len(ikm)}")
    sk = digest(digest(b"", _DKP_PRK + ikm, "sha256"), _SK, "sha256")
    return sk, x25519.public_key(sk)


def setup_sender(pk_r: bytes, ikm_e: bytes, info: bytes = b"") -> tuple[bytes, Context]:
    """Return `enc` and the sender's context. `ikm_e` must be fresh: the same bytes twice give the same key twice
    (D-09).
    """
    sk_e, enc = derive_key_pair(ikm_e)
    return enc, Context(_extract_and_expand(x25519.exchange(sk_e, pk_r), enc, pk_r), info, sends=True)


def setup_receiver(enc: bytes, sk_r: bytes, info: bytes = b"", pk_r: bytes | None = None) -> Context:
    """Return the receiver's context. Pass a known `pk_r`: computing it costs as much as a signature.

    `enc` comes from outside, so an invalid one raises OpenError, like any other altered ciphertext.
    """
    return Context(receiver_secret(enc, sk_r, pk_r), info, sends=False)


def receiver_secret(enc: bytes, sk_r: bytes, pk_r: bytes | None = None) -> bytes:
    """Return the shared secret of one encapsulation, which opens what was sealed in its context alone (D-134)."""
    if pk_r is None:
        pk_r = x25519.public_key(sk_r)
    elif len(sk_r) != x25519.KEY_BYTES:
        raise InvalidKeyError(f"X25519 secret key: expected {x25519.KEY_BYTES} bytes, found {len(sk_r)}")
    try:
        dh = x25519.exchange(sk_r, enc)
    except InvalidKeyError as exc:
        raise OpenError from exc
    return _extract_and_expand(dh, enc, pk_r)


def receiver_of_secret(shared_secret: bytes, info: bytes = b"") -> Context:
    """Return the context of a receiver that was given the shared secret and has no key."""
    if len(shared_secret) != HASH_BYTES:
        raise InvalidKeyError(f"HPKE shared secret: expected {HASH_BYTES} bytes, found {len(shared_secret)}")
    return Context(shared_secret, info, sends=False)
