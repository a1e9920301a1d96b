"""The hub's side of the proof-of-work prefilter (spec §8.1, D-58, D-59)."""

from typing import Final

from veen.core.errors import VeenError
from veen.core.hashing import u64be
from veen.core.pow import PowCookie

HEADER: Final = "VEEN-PoW"  # hex of CBOR {challenge, nonce, difficulty}
_REMEMBERED: Final = 65_536  # cookies, at most twice as many; about 100 bytes each


def check_pow(header: str | None, request: bytes, difficulty: int) -> PowCookie | str:
    """Return the cookie that pays for the request, or the reason why it does not."""
    if header is None:
        return "proof of work is missing"
    try:
        cookie = PowCookie.from_bytes(bytes.fromhex(header))
        cookie.verify(request, difficulty)
    except ValueError:
        return "proof of work is not hex"
    except VeenError as exc:
        return str(exc)
    return cookie


class Payments:
    """The cookies that have paid: each pays once. Owned by the event loop's thread, where all submits begin.

    At least the last `capacity` cookies are remembered, only in memory: after a restart, or after that many others,
    a cookie pays once more. Its message is a duplicate then, so nothing but that work is gained.
    """

    def __init__(self, capacity: int = _REMEMBERED) -> None:
        self._capacity = capacity
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()  # the `capacity` before them

    def spend(self, header: str | None, request: bytes, difficulty: int) -> "bytes | str":
        """Take the cookie for this request. Return its mark, for `refund`, or the reason why it does not pay."""
        cookie = check_pow(header, request, difficulty)
        if isinstance(cookie, str):
            return cookie
        # Without the stated difficulty: one nonce may be sent under several.
        mark = cookie.challenge[:16] + u64be(cookie.nonce)
        if mark in self._recent or mark in self._older:
            return "proof of work was used before"
        if len(self._recent) >= self._capacity:
            self._recent, self._older = set(), self._recent
        self._recent.add(mark)
        return mark

    def refund(self, mark: bytes) -> None:
        """Make the cookie valid again, because the hub did not decide about its request."""
        self._recent.discard(mark)
        self._older.discard(mark)


def batch_difficulty(difficulty: int, count: int) -> int:
    """Return the difficulty for a batch, which costs about as much as its messages one by one."""
    return difficulty + max(count - 1, 0).bit_length() if difficulty else 0
