"""The hub's side of the proof-of-work prefilter: one hash, no state (spec §8.1, D-58, D-59)."""

from typing import Final

from veen.core.errors import VeenError
from veen.core.pow import PowCookie

__all__ = ["HEADER", "batch_difficulty", "check_pow"]

HEADER: Final = "VEEN-PoW"  # hex of CBOR {challenge, nonce, difficulty}


def check_pow(header: str | None, request: bytes, difficulty: int) -> str | None:
    """Why the request is not paid for; None if it is, or if nothing is asked."""
    if not difficulty:
        return None
    if header is None:
        return "proof of work is missing"
    try:
        PowCookie.from_bytes(bytes.fromhex(header)).verify(request, difficulty)
    except ValueError:
        return "proof of work is not hex"
    except VeenError as exc:
        return str(exc)
    return None


def batch_difficulty(difficulty: int, count: int) -> int:
    """A batch costs about what its messages would cost one by one."""
    return difficulty + max(count - 1, 0).bit_length() if difficulty else 0
