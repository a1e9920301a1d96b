"""Verification of signatures on all cores: an entry has two, and they take most of the time of a verification.

Entries are read and checked in order, in one process; worker processes verify only their signatures. A worker returns
one result for a whole batch. This process verifies a bad batch again, entry by entry, and every other finding waits for
the earlier batches. A report, and its order, therefore does not depend on the number of processes.
"""

import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Final

from veen.core.crypto import ed25519
from veen.storage.scan import ScannedEntry

_BATCH: Final = 1024  # entries; a directory with fewer needs no process
_NICE: Final = 5  # the process that reads entries has priority: workers depend on it


class SignaturePool:
    """Pool that takes entries with their signatures and calls `judge` with those that may be bad, in order."""

    def __init__(self, jobs: int, judge: Callable[[ScannedEntry], None]) -> None:
        self._jobs, self._judge = jobs, judge
        self._items: list[ScannedEntry] = []
        self._work: list[bytes] = []
        self._sent: deque[tuple[Future[bool], list[ScannedEntry]]] = deque()
        self._workers: ProcessPoolExecutor | None = None
        self._settling = False

    def add(self, item: ScannedEntry, work: bytes) -> None:
        """Add an entry; `work` are its jobs, as `ed25519.verify_many` takes them."""
        self._items.append(item)
        self._work.append(work)
        if len(self._items) < _BATCH:
            return
        if self._jobs == 1:
            self.settle()
            return
        if self._workers is None:
            self._workers = ProcessPoolExecutor(self._jobs, get_context("spawn"), initializer=begin_worker)
        try:
            self._sent.append((self._workers.submit(_all_good, b"".join(self._work)), self._items))
        except BrokenProcessPool:  # a worker was killed: one process is enough
            self.settle()
        self._items, self._work = [], []
        while len(self._sent) > 2 * self._jobs:
            self._take()

    def settle(self) -> None:
        """Verify all entries that were added so far. Reporting a finding calls this again, which then does nothing."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._sent:
                self._take()
            items, work, self._items, self._work = self._items, self._work, [], []
            if not _all_good(b"".join(work)):
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

    def _judge_here(self, items: list[ScannedEntry]) -> None:
        settling, self._settling = self._settling, True
        try:
            for item in items:
                self._judge(item)
        finally:
            self._settling = settling

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)


def begin_worker() -> None:
    """Prepare a worker process; its first call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that was started, which ends its workers
    os.nice(_NICE)


def _all_good(jobs: bytes) -> bool:
    return 0 not in ed25519.verify_many(jobs)
