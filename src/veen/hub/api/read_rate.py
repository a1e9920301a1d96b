"""The rate at which one reader is served (001 COMP0.3): bulk reading must not displace writers.

Bytes that a reader was sent count as seconds of its rate. A reader that is more than a second ahead is refused with
the time of its next turn; an answer that has begun is never cut short. Readers that owe nothing are forgotten, so
memory is bounded by the readers of the last seconds.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from veen.core.errors import ApiCode
from veen.hub.api.reply import ApiError, Reply

_AHEAD_SEC: Final = 1.0  # seconds of its rate that a reader may be ahead
_LEAST_BYTES: Final = 1024  # the least that an answer counts as: a small one is work, too
_SWEEP: Final = 1024  # readers, until those that owe nothing are removed


class ReadRateLimiter:
    """The readers that were served lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._even_at: dict[str, float] = {}  # time at which each reader owes nothing again
        self._sweep_at = _SWEEP

    async def serve(self, reader: str, rate: int, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of `answer` if the reader's turn has come; raise ApiError if not. `rate` is in bytes per
        second."""
        early = self._early(reader)
        if early > 0:
            message = "this reader has used up its rate for now"
            raise ApiError(ApiCode.RATE, message, detail={"bytes_per_second": rate}, retry_after=math.ceil(early))
        reply = await answer()
        if reply.stream is not None:
            reply.stream = self._pace(reader, rate, reply.stream)
        else:
            self._count(reader, rate, len(reply.body))
        return reply

    async def _pace(self, reader: str, rate: int, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Pass on an answer without a known end, and wait between its pieces instead of refusing."""
        try:
            async for data in stream:
                yield data
                self._count(reader, rate, len(data))
                await asyncio.sleep(max(self._early(reader), 0.0))
        finally:
            await stream.aclose()

    def _early(self, reader: str) -> float:
        return self._even_at.get(reader, 0.0) - self._clock() - _AHEAD_SEC

    def _count(self, reader: str, rate: int, size: int) -> None:
        now = self._clock()
        self._even_at[reader] = max(self._even_at.get(reader, now), now) + max(size, _LEAST_BYTES) / rate
        if len(self._even_at) >= self._sweep_at:
            self._even_at = {name: at for name, at in self._even_at.items() if at > now}
            self._sweep_at = max(_SWEEP, 2 * len(self._even_at))  # a sweep stays cheap even if many owe something
