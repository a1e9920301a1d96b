"""Writers have priority on the event loop's thread.

That thread orders messages and does all other work of requests: it reads pages, encodes them and refuses. While clients
write, the other work gets a third of the time: after each piece of it the next one waits twice as long as that took.
Without a writer nothing waits. The work is done in small pieces, so a message waits for one piece at most.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_WRITING_SEC: Final = 0.5  # after an accepted message its client counts as writing
_WAIT: Final = 2  # seconds to wait for each second of work
_TICK_SEC: Final = 0.001  # the resolution of the event loop's timers
_MOST_SEC: Final = 0.25  # that one piece of work may cause to wait, however long the machine took for it


class WriterPriority:
    """Says how long work for readers must wait. Every field belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._free_at = 0.0  # when the next piece of other work may begin; by `clock`, like the time below
        self._wrote_at = -_WRITING_SEC  # when the last message was accepted
        self._next = asyncio.Lock()  # coroutines in `wait` go on in the order in which they came

    def wrote(self) -> None:
        """A message was accepted."""
        self._wrote_at = self.clock()

    def charge(self, seconds: float) -> None:
        """Work that took `seconds` was done for a client that does not write."""
        now = self.clock()
        if now - self._wrote_at < _WRITING_SEC:
            self._free_at = max(self._free_at, now) + min(_WAIT * seconds, _MOST_SEC)

    def delay(self) -> float:
        """Seconds until the next piece of such work may begin; 0 if it may now.

        Never a fraction of a tick: a timer of the event loop that fires early would be set again and again.
        """
        left = self._free_at - self.clock()
        return max(left, _TICK_SEC) if left > 0 else 0.0

    async def wait(self) -> None:
        """Called before a piece of work and between two: lets other tasks run, and writers first."""
        if not self.delay():
            await asyncio.sleep(0)
            return
        async with self._next:
            while wait := self.delay():  # noqa: ASYNC110 - it is time that is waited for
                await asyncio.sleep(wait)

    def measured(self, work: Coroutine[Any, Any, T]) -> "_Measured[T]":
        """Await this instead of `work`: the time that its pieces take on this thread is charged, its waiting is not."""
        return _Measured(self, work)


class _Measured(Generic[T]):
    def __init__(self, priority: WriterPriority, work: Coroutine[Any, Any, T]) -> None:
        self._priority, self._work = priority, work

    def __await__(self) -> Generator[Any, Any, T]:
        priority, work = self._priority, self._work
        failure: BaseException | None = None
        while True:
            began = priority.clock()
            try:
                awaited = work.send(None) if failure is None else work.throw(failure)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                priority.charge(priority.clock() - began)
            failure = None
            try:
                yield awaited
            except BaseException as exc:  # a cancellation, too, is passed on to the work
                failure = exc
