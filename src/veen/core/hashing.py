"""The canonical hashes and integer encodings of spec §3.3."""

from hashlib import sha256


def H(data: bytes) -> bytes:  # noqa: N802 - the spec's own name
    """Return SHA-256 of `data`."""
    return sha256(data).digest()


def Ht(tag: str, data: bytes) -> bytes:  # noqa: N802 - the spec's own name
    """Return the domain-separated SHA-256: H(tag || 0x00 || data)."""
    return sha256(tag_prefix(tag) + data).digest()


def tag_prefix(tag: str) -> bytes:
    """Return the bytes that `Ht` puts before its data; hot paths keep them as constants."""
    return tag.encode() + b"\x00"


def u32be(value: int) -> bytes:
    return value.to_bytes(4, "big")


def u64be(value: int) -> bytes:
    return value.to_bytes(8, "big")


def trunc_24(data: bytes) -> bytes:
    """Return the first 24 bytes: a nonce for XChaCha20-Poly1305."""
    return data[:24]
