"""Priority of writers on the event loop's thread.

That thread orders messages and does all other work of requests: reading pages, encoding, refusing. While clients
write, the other work gets a third of the time: after each piece, the next one waits twice as long as that piece took.
Without a writer nothing waits. The work is done in small pieces, so a message waits for one piece at most.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_WRITING_SEC: Final = 0.5  # clients count as writing for this long after an accepted message
_WAIT: Final = 2  # seconds to wait for each second of work
_TICK_SEC: Final = 0.001  # the resolution of the event loop's timers
_MOST_SEC: Final = 0.25  # the longest wait that one piece of work causes, however long it took


class WriterPriority:
    """The wait for readers' work while clients write. Every field is owned by the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._free_at = 0.0  # time by `clock` at which the next piece of other work may begin
        self._wrote_at = -_WRITING_SEC  # time by `clock` at which the last message was accepted
        self._next = asyncio.Lock()  # keeps the order of coroutines in `wait`

    def note_write(self) -> None:
        """Note that a message was accepted."""
        self._wrote_at = self.clock()

    def charge(self, seconds: float) -> None:
        """Charge `seconds` of work for a client that does not write."""
        now = self.clock()
        if now - self._wrote_at < _WRITING_SEC:
            self._free_at = max(self._free_at, now) + min(_WAIT * seconds, _MOST_SEC)

    def delay(self) -> float:
        """Return the seconds until the next piece of such work may begin, 0 if it may begin now.

        It is never a fraction of a tick: a timer of the event loop that fires early would be set again and again.
        """
        left = self._free_at - self.clock()
        return max(left, _TICK_SEC) if left > 0 else 0.0

    async def wait(self) -> None:
        """Wait before a piece of work, or between two: let other tasks run, and writers first."""
        if not self.delay():
            await asyncio.sleep(0)
            return
        async with self._next:
            while wait := self.delay():  # noqa: ASYNC110 - it is time that is waited for
                await asyncio.sleep(wait)

    def charge_for(self, work: Coroutine[Any, Any, T]) -> "_Measured[T]":
        """Return an awaitable for `work` that charges the time its pieces take on this thread, but not its waiting."""
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
