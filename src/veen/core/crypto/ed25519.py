"""Ed25519 (RFC 8032), as libsodium signs and verifies it (spec §3.2, D-19).

There is exactly one acceptance rule in VEEN, and every part applies it through `verify` and `verify_many`, or has the
worker threads of `veen_native` apply it. Ed25519 libraries disagree about signatures that no honest signer makes; two
rules would let one hub admit what another refuses, and admission must be a function of the bytes alone (I13). So the
rule is written down here and pinned by tests (ed25519-speccheck, Wycheproof).

Two implementations of the rule exist: libsodium's, which is the reference and always there, and that of `veen_native`,
which is used where it is built. They are compared on the published cases, on torsion cases by construction, and on ten
million mutated signatures (`benchmarks/signatures.py`); a signature on which they differ is a defect of the second.

`verify(A, M, R || S)` accepts exactly when all of this holds:

- A is 32 bytes and the signature is 64 bytes.
- S is canonical: S < L, the order of the base point. S + L is refused, so signatures cannot be altered into others.
- A is canonical: its y coordinate is below p = 2^255 - 19. It is the encoding of a point on the curve.
- A is not of small order (none of the 8 torsion points, in any encoding), and neither is R.
- S*B - h*A, encoded canonically, is byte for byte R, where h = SHA-512(R || A || M) mod L. This is the cofactorless
  equation; a non-canonical R never equals a canonical encoding and is refused by it.

A of mixed order (a torsion point added to an honest key) is not refused as such: its signatures hold when h happens to
cancel the torsion. Newer libsodium sources tolerate a small-order difference in the last step (a cofactored equation),
which accepts more. A change of PyNaCl or of the libsodium below it therefore is a change of protocol unless the tests
of this module pass unchanged.

Signing is deterministic and its time does not depend on the secret key. Verification works on public data only; its
final comparison is constant-time.
"""

from typing import Final

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from veen.core.errors import InvalidKeyError
from veen.native import LOADED

SEED_BYTES: Final = 32
PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
JOB_BYTES: Final = 128  # of `verify_many`


class SigningKey:
    """A secret key that signs. Two are equal when their public keys are; `repr` shows the public key only."""

    __slots__ = ("_secret", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise InvalidKeyError(f"Ed25519 seed: expected {SEED_BYTES} bytes, found {len(seed)}")
        public, secret = crypto_sign_seed_keypair(seed)
        self.public: Final = public
        # libsodium's 64-byte form, seed || public: expanding the seed for every signature would double its cost.
        self._secret: Final = secret

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes that the key is made from."""
        return self._secret[:SEED_BYTES]

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""
        return crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def __eq__(self, other: object) -> bool:
        return self.public == other.public if isinstance(other, SigningKey) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.public)

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()[:16]}…)"


def libsodium_verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Verify as `verify` does, with libsodium: the reference."""
    # libsodium trusts its caller about lengths and would read past the end of a short key.
    if len(public) != PUBLIC_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except BadSignatureError:
        return False
    return True


def libsodium_verify_many(jobs: bytes) -> bytes:
    """Verify as `verify_many` does, with libsodium: the reference."""
    if len(jobs) % JOB_BYTES:
        raise ValueError(f"jobs: expected a multiple of {JOB_BYTES} bytes, found {len(jobs)}")
    verdicts = bytearray()
    for pos in range(0, len(jobs), JOB_BYTES):
        key_at = pos + JOB_BYTES - PUBLIC_BYTES
        try:
            crypto_sign_open(jobs[pos:key_at], jobs[key_at : key_at + PUBLIC_BYTES])
        except BadSignatureError:
            verdicts.append(0)
        else:
            verdicts.append(1)
    return bytes(verdicts)


_verify: Final = libsodium_verify if LOADED.module is None else LOADED.module.verify
_verify_many: Final = libsodium_verify_many if LOADED.module is None else LOADED.module.verify_many


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Apply the one acceptance rule (I13). Return False for anything that is not a valid signature; never raise."""
    if type(public) is not bytes or type(message) is not bytes or type(signature) is not bytes:
        return False
    return _verify(public, message, signature)


def verify_many(jobs: bytes) -> bytes:
    """Return a byte for each job: 1 if its signature is valid, else 0. A job is `signature 64 · digest 32 · key 32`."""
    return _verify_many(jobs)
