"""Work for readers beside the event loop's thread, which orders messages: two threads, with bounds (decisions.md 72,
146).

A request of a hundred bytes may ask for an entry of a compressed chunk of 64 MiB, or for a thousand checkpoints.
Only the client that asked waits for it. Requests for the same file share the work; a request beyond the bound is
refused with 503.

Files are unpacked in a thread of lower priority, which works without the interpreter. Other work needs the
interpreter, and Python runs one thread at a time, so this work takes time from the event loop's thread. It is done
in slices of a millisecond and charged like other work for readers: while clients write, readers get a third of the
time. Its thread has the priority of the event loop's thread, which would otherwise wait for an interpreter whose
owner does not run.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from veen.hub.api.reply import ApiError
from veen.hub.sequencer.writer_priority import WriterPriority
from veen.storage.reader import Packed, Unpacked

A = TypeVar("A")
T = TypeVar("T")

_MAX_FILES: Final = 16  # files that wait or are being unpacked, each up to 64 MiB
_MAX_WORK: Final = 256  # pieces of other work, each of a few milliseconds
_NICE: Final = 10
_SLICE_SEC: Final = 0.001  # of work before the event loop's thread gets its turn


class ReadWorker:
    """The two worker threads. Fields are owned by the event loop's thread. Each thread starts with its first work."""

    def __init__(self, priority: WriterPriority, max_files: int = _MAX_FILES, max_work: int = _MAX_WORK) -> None:
        self._priority = priority
        self._max_files, self._max_work = max_files, max_work
        self._unpacker = ThreadPoolExecutor(1, "veen-reads-unpack", _lower_priority)
        self._thread = ThreadPoolExecutor(1, "veen-reads")
        self._unpacking: dict[str, asyncio.Future[Unpacked]] = {}  # by path; each waits or runs
        self._working = 0  # other pieces of work that wait or run
        self._closed = False  # the hub stops: no work is accepted, and work that had not begun was cancelled

    async def unpack(self, packed: Packed) -> Unpacked:
        """Return the content of a packed file. Raise ApiError (503) if there is too much work or the hub stops."""
        running = self._unpacking.get(packed.path)
        if running is None:
            if len(self._unpacking) >= self._max_files:
                raise ApiError.unavailable("too many compressed chunks are being read")
            running = self._start(self._unpacker, packed.unpack)
            self._unpacking[packed.path] = running
            running.add_done_callback(lambda _: self._unpacking.pop(packed.path, None))
        await asyncio.wait((running,))  # a cancelled request leaves the work to the others that wait for it
        return _result(running)

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work that reads only immutable data. Raise ApiError (503) as `each`."""
        (result,) = await self.each(lambda function: function(), [work])
        return result

    async def each(self, function: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """Return the results of `function` for each item, in order, computed in slices.

        The function may read only immutable data. Raise ApiError (503) if there is too much work or the hub stops.
        """
        if self._working >= self._max_work:
            raise ApiError.unavailable("too many large answers are being made")
        results: list[T] = []  # the worker thread appends while this coroutine waits for it

        def work() -> float:
            began = time.thread_time()
            seconds = 0.0
            while seconds < _SLICE_SEC and len(results) < len(items):
                results.append(function(items[len(results)]))
                seconds = time.thread_time() - began
            return seconds

        self._working += 1
        try:
            while len(results) < len(items):
                await self._priority.wait()
                running = self._start(self._thread, work)
                try:
                    await asyncio.wait((running,))
                finally:
                    running.cancel()  # if the request was cancelled; no effect on work that has begun or is done
                self._priority.charge(_result(running))
        finally:
            self._working -= 1
        return results

    def _start(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._closed:
            raise _hub_is_stopping()
        return asyncio.get_running_loop().run_in_executor(thread, work)

    def close(self) -> None:
        """Refuse new work and cancel work that has not begun; requests that wait for it get the 503 of a stopping
        hub."""
        self._closed = True
        for thread in (self._unpacker, self._thread):
            thread.shutdown(wait=False, cancel_futures=True)


def _result(done: "asyncio.Future[T]") -> T:
    if done.cancelled():
        raise _hub_is_stopping()
    return done.result()


def _hub_is_stopping() -> ApiError:
    return ApiError.unavailable("the hub is stopping")


def _lower_priority() -> None:
    """Lower the priority of this thread, where threads have one."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
