"""Damage that is never none. A byte set to a fixed value is now and then what it was; a flipped one never is."""


def flipped(data: bytes, at: int = -1) -> bytes:
    """`data` with the lowest bit of its byte `at` flipped."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)
