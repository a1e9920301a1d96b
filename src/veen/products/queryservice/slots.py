"""Places for executions, shared fairly among principals."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """Gives a free place to the principal with the fewest, then to the longest waiting. Belongs to one event loop.

    With several places the last is not for a principal that has all the others, so nobody waits behind the queries of
    one person alone.
    """

    def __init__(self, count: int) -> None:
        self._count, self._most = count, max(1, count - 1)  # of all, and of one principal
        self._taken: Counter[str] = Counter()  # by principal
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []  # in the order in which they came

    @asynccontextmanager
    async def place(self, who: str, turn: "asyncio.Future[None]") -> AsyncIterator[None]:
        """Wait for a place and hold it. An exception that is set on `turn` ends the waiting."""
        self._waiting.append((who, turn))
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # given, and not wanted any more
                self._release(who)
            raise
        try:
            yield
        finally:
            self._release(who)

    def _release(self, who: str) -> None:
        self._taken[who] -= 1
        self._grant()

    def _grant(self) -> None:
        while self._taken.total() < self._count:
            self._waiting = [(who, turn) for who, turn in self._waiting if not turn.done()]
            ready = [(who, turn) for who, turn in self._waiting if self._taken[who] < self._most]
            if not ready:
                return
            who, turn = min(ready, key=lambda waiting: self._taken[waiting[0]])  # of equal ones the first
            self._taken[who] += 1
            turn.set_result(None)
