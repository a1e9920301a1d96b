"""How fast one reader is served (001 COMP0.3): bulk reading must not take the hub from those who write.

What a reader was given counts as seconds of its rate. Whoever is more than a second ahead is told when to come back;
an answer that has begun is never cut short. Those who owe nothing are forgotten, so memory follows the readers of the
last seconds and not all there ever were.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from veen.core.errors import ApiCode
from veen.hub.api.reply import ApiError, Reply

_AHEAD_SEC: Final = 1.0  # that a reader may be
_LEAST_BYTES: Final = 1024  # that any answer counts as: a small one is work, too
_SWEEP: Final = 1024  # readers, until those who owe nothing are looked for


class ReadRateLimiter:
    """The readers that were given something lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._even_at: dict[str, float] = {}  # when each will have waited for all it was given
        self._sweep_at = _SWEEP

    async def serve(self, reader: str, rate: int, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """What `answer` gives, if the reader's turn has come; ApiError otherwise. `rate` is in bytes a second."""
        early = self._early(reader)
        if early > 0:
            message = "this reader was given as much as it may have for now"
            raise ApiError(ApiCode.RATE, message, detail={"bytes_per_second": rate}, retry_after=math.ceil(early))
        reply = await answer()
        if reply.stream is not None:
            reply.stream = self._paced(reader, rate, reply.stream)
        else:
            self._count(reader, rate, len(reply.body))
        return reply

    async def _paced(self, reader: str, rate: int, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """An answer without a known end waits instead: its reader is there anyway."""
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
            self._sweep_at = max(_SWEEP, 2 * len(self._even_at))  # however many owe something, a sweep stays cheap
