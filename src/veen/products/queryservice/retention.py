"""Retention of results: limited in size and age. The log keeps every request and digest."""

import time
from collections import deque

from veen.lake.query.errors import QUERY_REFUSALS, QueryNotFound
from veen.lake.query.store import ResultStore


class ResultRetention:
    """Removes finished results, the oldest first. Belongs to the event loop of the service.

    The newest result stays whatever its size: its client could never fetch it otherwise. Ages are those of files, by
    the clock of the machine.
    """

    def __init__(self, store: ResultStore, *, keep_bytes: int, keep_seconds: float) -> None:
        store.remove_remains()
        self._store, self._keep_bytes, self._keep_seconds = store, keep_bytes, keep_seconds
        self._stored = deque(store.list_ended())  # the oldest first
        self.size = sum(stored.size for stored in self._stored)  # in bytes
        self.removed = 0  # results, since the start

    def add(self, result_id: str) -> None:
        """Add a finished result."""
        stored = self._store.measure(result_id)
        self._stored.append(stored)
        self.size += stored.size

    def sweep(self) -> None:
        """Remove results that are too old, and the oldest ones while all together are too large.

        A result that cannot be removed is skipped and tried again next time; its error is raised at the end.
        """
        oldest_kept, failure = time.time() - self._keep_seconds, None
        for stored in list(self._stored):
            is_too_much = self.size > self._keep_bytes and stored is not self._stored[-1]
            if stored.ended_at >= oldest_kept and not is_too_much:
                break
            try:
                self._store.remove(stored.result_id)
            except QueryNotFound:
                pass  # removed elsewhere
            except (OSError, *QUERY_REFUSALS) as exc:
                failure = exc
                continue
            self._stored.remove(stored)
            self.size -= stored.size
            self.removed += 1
        if failure is not None:
            raise failure
