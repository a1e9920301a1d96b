"""The signatures of many entries, on all cores: verification needs two for each entry, and for little else much time.

Entries are read and judged in order, in one process; only their signatures are verified beside it. A worker says
whether a whole batch is good. A batch that is not is gone through again here, and every other finding waits for the
batches before it, so a report does not depend on the number of processes, down to its order.
"""

import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Final

from veen.core import ed25519
from veen.storage.scan import Item

__all__ = ["SignaturePool"]

_BATCH: Final = 1024  # entries; a directory with fewer needs no process
_NICE: Final = 5  # reading comes first: without it there is nothing to verify


class SignaturePool:
    """Takes entries with their signatures; `judge` is given those that may be bad."""

    def __init__(self, jobs: int, judge: Callable[[Item], None]) -> None:
        self._jobs, self._judge = jobs, judge
        self._items: list[Item] = []
        self._work: list[bytes] = []
        self._sent: deque[tuple[Future[bool], list[Item]]] = deque()
        self._workers: ProcessPoolExecutor | None = None
        self._settling = False

    def add(self, item: Item, work: bytes) -> None:
        """`work` are the jobs of the entry, as `ed25519.verify_many` takes them."""
        self._items.append(item)
        self._work.append(work)
        if len(self._items) < _BATCH:
            return
        if self._workers is None:
            self._workers = ProcessPoolExecutor(self._jobs, get_context("spawn"), initializer=_begin)
        try:
            self._sent.append((self._workers.submit(_all_good, b"".join(self._work)), self._items))
        except BrokenProcessPool:  # a worker was killed: one process is enough
            self.settle()
        self._items, self._work = [], []
        while len(self._sent) > 2 * self._jobs:
            self._take()

    def settle(self) -> None:
        """Judge all that was added so far. What this finds asks for it again, and need not wait."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._sent:
                self._take()
            items, self._items, self._work = self._items, [], []
            for item in items:
                self._judge(item)
        finally:
            self._settling = False

    def _take(self) -> None:
        future, items = self._sent.popleft()
        try:
            good = future.result()
        except BrokenProcessPool:  # the entries are still here
            good = False
        if not good:
            self._judge_here(items)

    def _judge_here(self, items: list[Item]) -> None:
        settling, self._settling = self._settling, True
        try:
            for item in items:
                self._judge(item)
        finally:
            self._settling = settling

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who interrupts means the process that was started
    os.nice(_NICE)


def _all_good(jobs: bytes) -> bool:
    return 0 not in ed25519.verify_many(jobs)
