"""Authenticated encryption: XChaCha20-Poly1305 for bodies and attachments, ChaCha20-Poly1305 inside HPKE (spec §3.2).

A ciphertext carries its 16-byte tag at the end. Nonces are the caller's business: never two plaintexts under one
(key, nonce), which spec §4.2 reaches by a fresh key for every message (D-09).
"""

from typing import Final

from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError
from nacl.exceptions import TypeError as ParameterError  # what PyNaCl raises for a key or nonce of the wrong length

from veen.core.errors import InvalidKeyError, OpenError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 24
CHACHA_NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


def seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """Encrypt with XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03)."""
    try:
        return crypto_aead_xchacha20poly1305_ietf_encrypt(plaintext, aad, nonce, key)
    except CryptoError as exc:
        raise InvalidKeyError(f"XChaCha20-Poly1305: {exc}") from exc


def open_(key: bytes, nonce: bytes, aad: bytes, ciphertext: bytes) -> bytes:
    """Reverse `seal`; raise OpenError unless key, nonce, aad and ciphertext are exactly those of the sealer."""
    if len(ciphertext) < TAG_BYTES:  # PyNaCl would raise a bare ValueError
        raise OpenError
    try:
        return crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext, aad, nonce, key)
    except ParameterError as exc:
        raise InvalidKeyError(f"XChaCha20-Poly1305: {exc}") from exc
    except CryptoError as exc:
        raise OpenError from exc


def chacha_seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """Encrypt with ChaCha20-Poly1305 and the 12-byte nonce of RFC 8439."""
    try:
        return crypto_aead_chacha20poly1305_ietf_encrypt(plaintext, aad, nonce, key)
    except CryptoError as exc:
        raise InvalidKeyError(f"ChaCha20-Poly1305: {exc}") from exc


def chacha_open(key: bytes, nonce: bytes, aad: bytes, ciphertext: bytes) -> bytes:
    """Reverse `chacha_seal`; raise as `open_` does."""
    if len(ciphertext) < TAG_BYTES:  # PyNaCl would raise a bare ValueError
        raise OpenError
    try:
        return crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext, aad, nonce, key)
    except ParameterError as exc:
        raise InvalidKeyError(f"ChaCha20-Poly1305: {exc}") from exc
    except CryptoError as exc:
        raise OpenError from exc
