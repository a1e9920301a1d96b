"""The proof-of-work cookie: a cost on each request, which a hub checks with one hash (001 SH1+ §5.2, D-59).

It is not part of a MSG. The challenge is the hash of the request body, so a cookie fits one request only; a hub accepts
it once.
"""

from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import ClassVar, Final

from veen.core.errors import MalformedError, VerifyError
from veen.core.hashing import H, tag_prefix, u64be
from veen.core.wire import Form, Uint, Wire

MAX_DIFFICULTY: Final = 255  # uint8
_TAG: Final = tag_prefix("veen/pow")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowCookie(Wire, kind="veen.pow.cookie.v1"):
    """Proof of work: `nonce` makes Ht("veen/pow", challenge ‖ u64be(nonce)) begin with `difficulty` zero bits."""

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = 128

    challenge: bytes
    nonce: Uint
    difficulty: Uint

    def _check(self) -> None:
        if self.difficulty > MAX_DIFFICULTY:
            raise MalformedError(f"expected at most {MAX_DIFFICULTY}", f"{self.KIND}.difficulty")

    def verify(self, request: bytes, difficulty: int) -> None:
        """Raise VerifyError unless the cookie has `difficulty` for exactly this request."""
        if self.challenge != H(request):
            raise VerifyError("proof of work: the challenge is not the hash of the request")
        if self.difficulty < difficulty:
            raise VerifyError(f"proof of work: {difficulty} zero bits are asked for, {self.difficulty} are offered")
        if not _holds(_TAG + self.challenge, self.nonce, self.difficulty):
            raise VerifyError(f"proof of work: the value does not begin with {self.difficulty} zero bits")


def _holds(prefix: bytes, nonce: int, difficulty: int) -> bool:
    value = int.from_bytes(sha256(prefix + u64be(nonce)).digest(), "big")
    return value.bit_length() <= 256 - difficulty


def solve(request: bytes, difficulty: int, start: int = 0) -> PowCookie:
    """Return the cookie with the smallest nonce from `start` on; this takes about 2^difficulty hashes.

    A hub accepts each cookie once, so a repeated request needs another one: pass another `start`.
    """
    challenge = H(request)
    prefix = _TAG + challenge
    nonce = next(nonce for nonce in count(start) if _holds(prefix, nonce, difficulty))
    return PowCookie(challenge=challenge, nonce=nonce, difficulty=difficulty)
