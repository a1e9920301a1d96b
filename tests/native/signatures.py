"""Signatures that no honest signer makes, from a seed: where Ed25519 libraries disagree."""

import random
from hashlib import sha512
from typing import NamedTuple

from nacl.bindings import crypto_core_ed25519_add, crypto_scalarmult_ed25519_base_noclamp

from veen.core.crypto.ed25519 import SigningKey

L = 2**252 + 27742317777372353535851937790883648493  # the order of the base point
P = 2**255 - 19
ORDER_8_Y = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
TORSION = [
    (y | sign << 255).to_bytes(32, "little")
    for y in (0, 1, P - 1, P, P + 1, ORDER_8_Y, P - ORDER_8_Y)
    for sign in (0, 1)
]
CANONICAL_TORSION = [point for point in TORSION if int.from_bytes(point, "little") % 2**255 < P]


class Claim(NamedTuple):
    public: bytes
    message: bytes
    signature: bytes


def _scalar(secret: bytes) -> int:
    half = bytearray(sha512(secret).digest()[:32])
    half[0] &= 248
    half[31] = half[31] & 127 | 64
    return int.from_bytes(half, "little")


def _mul(scalar: int) -> bytes:
    return crypto_scalarmult_ed25519_base_noclamp((scalar % L).to_bytes(32, "little"))


def mixed_order(rng: random.Random) -> Claim:
    """A key, an R, or both with a torsion point added, and S by the honest equation: good for some messages only."""
    seed, message = rng.randbytes(32), rng.randbytes(32)
    scalar, nonce = _scalar(seed), rng.randrange(1, L)
    public, r = _mul(scalar), _mul(nonce)
    if rng.random() < 0.7:
        public = crypto_core_ed25519_add(public, rng.choice(CANONICAL_TORSION))
    if rng.random() < 0.5:
        r = crypto_core_ed25519_add(r, rng.choice(CANONICAL_TORSION))
    h = int.from_bytes(sha512(r + public + message).digest(), "little") % L
    return Claim(public, message, r + ((nonce + h * scalar) % L).to_bytes(32, "little"))


def mutated(rng: random.Random, key: SigningKey) -> Claim:
    """A good signature, and one thing done to it."""
    message = rng.randbytes(32)
    signature, public = key.sign(message), key.public
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    match rng.randrange(12):
        case 0:
            pass
        case 1:
            s ^= 1 << rng.randrange(256)
        case 2:
            r = (int.from_bytes(r, "little") ^ 1 << rng.randrange(256)).to_bytes(32, "little")
        case 3:
            public = (int.from_bytes(public, "little") ^ 1 << rng.randrange(256)).to_bytes(32, "little")
        case 4:
            message = (int.from_bytes(message, "little") ^ 1 << rng.randrange(256)).to_bytes(32, "little")
        case 5:
            s += L * rng.randrange(1, 16)
        case 6:
            public = rng.choice(TORSION)
        case 7:
            r = rng.choice(TORSION)
        case 8:
            public = rng.randrange(P, 2**255).to_bytes(32, "little")
        case 9:
            r, s = rng.choice(TORSION), 0
            public = rng.choice([public, rng.choice(TORSION)])
        case 10:
            public = rng.randbytes(32)
        case _:
            s = rng.choice([0, 1, L - 1, L, L + 1, 2**252, 2**253, 2**256 - 1])
    return Claim(public, message, r + (s % 2**256).to_bytes(32, "little"))


def claims(seed: int, count: int) -> list[Claim]:
    """`count` claims that follow from `seed`; a quarter of them is of mixed order."""
    rng = random.Random(seed)
    keys = [SigningKey(rng.randbytes(32)) for _ in range(4)]
    return [mixed_order(rng) if number % 4 == 0 else mutated(rng, rng.choice(keys)) for number in range(count)]
