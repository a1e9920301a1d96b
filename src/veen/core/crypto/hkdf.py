"""HKDF-SHA256 (RFC 5869), the key derivation of the profile (spec §3.2)."""

from hmac import digest
from typing import Final

HASH_BYTES: Final = 32
MAX_BYTES: Final = 255 * HASH_BYTES  # the block counter is one byte (RFC 5869 §2.3)


def extract(salt: bytes, ikm: bytes) -> bytes:
    """Return a pseudorandom key. HMAC pads its key with zeros: an empty salt is the RFC's default of 32 zero bytes."""
    return digest(salt, ikm, "sha256")


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    if not 0 <= length <= MAX_BYTES:
        raise ValueError(f"HKDF-SHA256 gives 0 to {MAX_BYTES} bytes, not {length}")
    block = digest(prk, info + b"\x01", "sha256")
    if length <= HASH_BYTES:  # nearly every call
        return block[:length]
    blocks = [block]
    for counter in range(2, -(-length // HASH_BYTES) + 1):
        block = digest(prk, b"%b%b%c" % (block, info, counter), "sha256")
        blocks.append(block)
    return b"".join(blocks)[:length]


def hkdf(ikm: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """Extract, then expand."""
    return expand(extract(salt, ikm), info, length)
