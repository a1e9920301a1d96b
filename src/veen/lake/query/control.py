"""What an execution shares with whoever watches it: how far it is, and whether it is to stop."""

import threading
from typing import NamedTuple


class Progress(NamedTuple):
    """Tasks that are done, of all that are known so far: parts of a log, or tasks of Spark."""

    done: int
    total: int


class ExecutionControl:
    """One execution. It checks between tasks and rows whether it is to stop; any thread may stop it and look at it."""

    def __init__(self, name: str = "query", *, pool: str | None = None) -> None:
        """`name` is that of its jobs on Spark, and `pool` the scheduler pool they share with others."""
        self.name, self.pool = name, pool
        self.stopped = threading.Event()
        self._reason: Exception | None = None
        self._lock = threading.Lock()  # guards the reason and the two numbers
        self._done = self._total = 0

    def stop(self, reason: Exception) -> None:
        """End the execution at its next check with `reason`; the first one counts."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
        self.stopped.set()

    def check(self) -> None:
        """Raise the reason if the execution is to stop."""
        if self.stopped.is_set():
            assert self._reason is not None  # noqa: S101 - set before the event
            raise self._reason

    def add(self, *, done: int = 0, total: int = 0) -> None:
        """Count tasks that became known or were done."""
        with self._lock:
            self._done += done
            self._total += total

    def set(self, progress: Progress) -> None:
        """Say all of it at once, where somebody else counts."""
        with self._lock:
            self._done, self._total = progress

    @property
    def progress(self) -> Progress | None:
        """None before any task is known."""
        with self._lock:
            return Progress(self._done, self._total) if self._total else None
