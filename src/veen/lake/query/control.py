"""Control of an execution: its progress, and the request to stop it."""

import threading
from typing import NamedTuple


class Progress(NamedTuple):
    """Number of finished tasks, and of all that are known so far: parts of a log, or tasks of Spark."""

    done: int
    total: int


class ExecutionControl:
    """Control of one execution, which checks between tasks and rows for a stop. Safe to use from any thread."""

    def __init__(self, name: str = "query", *, pool: str | None = None) -> None:
        """Set the name of its jobs on Spark, and the scheduler pool that they share with others."""
        self.name, self.pool = name, pool
        self.stopped = threading.Event()
        self._reason: Exception | None = None
        self._lock = threading.Lock()  # guards the reason and the two numbers
        self._done = self._total = 0

    def stop(self, reason: Exception) -> None:
        """End the execution at its next check with `reason`. Only the first call has an effect."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
        self.stopped.set()

    def check(self) -> None:
        """Raise the reason if the execution was stopped."""
        if self.stopped.is_set():
            assert self._reason is not None  # noqa: S101 - set before the event
            raise self._reason

    def add(self, *, done: int = 0, total: int = 0) -> None:
        """Add numbers of known or finished tasks."""
        with self._lock:
            self._done += done
            self._total += total

    def set(self, progress: Progress) -> None:
        """Set both numbers, where somebody else counts."""
        with self._lock:
            self._done, self._total = progress

    @property
    def progress(self) -> Progress | None:
        """The progress; None before any task is known."""
        with self._lock:
            return Progress(self._done, self._total) if self._total else None
