"""How long a service keeps results: up to so many bytes, and for so long. The log keeps every request and digest."""

import time
from collections import deque

from veen.lake.query.errors import QUERY_REFUSALS, QueryNotFound
from veen.lake.query.store import ResultStore


class ResultRetention:
    """Removes results that have ended, the oldest first. Belongs to the event loop of the service.

    The newest result stays whatever its size: whoever waits for it could never fetch it otherwise. Ages are those of
    files, so they are told by the clock of the machine.
    """

    def __init__(self, store: ResultStore, *, keep_bytes: int, keep_seconds: float) -> None:
        store.remove_remains()
        self._store, self._keep_bytes, self._keep_seconds = store, keep_bytes, keep_seconds
        self._stored = deque(store.ended())  # the oldest first
        self.size = sum(stored.size for stored in self._stored)  # in bytes
        self.removed = 0  # results, since the start

    def add(self, result_id: str) -> None:
        """A result has ended."""
        stored = self._store.measured(result_id)
        self._stored.append(stored)
        self.size += stored.size

    def sweep(self) -> None:
        """Remove what is too old, and the oldest results as long as all of them take too much.

        A result that cannot be removed is passed over, tried again next time, and its error is raised at the end.
        """
        oldest_kept, failure = time.time() - self._keep_seconds, None
        for stored in list(self._stored):
            is_too_much = self.size > self._keep_bytes and stored is not self._stored[-1]
            if stored.ended_at >= oldest_kept and not is_too_much:
                break
            try:
                self._store.remove(stored.result_id)
            except QueryNotFound:
                pass  # somebody else has removed it
            except (OSError, *QUERY_REFUSALS) as exc:
                failure = exc
                continue
            self._stored.remove(stored)
            self.size -= stored.size
            self.removed += 1
        if failure is not None:
            raise failure
