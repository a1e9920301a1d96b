"""X25519 (RFC 7748), the Diffie-Hellman function of the profile (spec §3.2)."""

from typing import Final

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from veen.core.errors import InvalidKeyError

KEY_BYTES: Final = 32


def public_key(sk: bytes) -> bytes:
    _check_length("secret", sk)
    return crypto_scalarmult_base(sk)


def exchange(sk: bytes, pk: bytes) -> bytes:
    """Return the shared secret. Raise InvalidKeyError for a low-order `pk`, whose secret would be all zero."""
    _check_length("secret", sk)
    _check_length("public", pk)
    try:
        return crypto_scalarmult(sk, pk)
    except CryptoError as exc:  # libsodium's own all-zero check, in constant time (RFC 7748 §6.1, RFC 9180 §7.1.4)
        raise InvalidKeyError("X25519 public key: a point of low order") from exc


def _check_length(kind: str, key: bytes) -> None:
    # libsodium trusts its caller about lengths and would read past the end of a short key.
    if len(key) != KEY_BYTES:
        raise InvalidKeyError(f"X25519 {kind} key: expected {KEY_BYTES} bytes, found {len(key)}")
