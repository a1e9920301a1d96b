"""Metrics and log lines of a query service, in the formats of a hub.

Neither names a stream, a subject or a query: a line has the result_id, and of a client the first digits of its id.

Retention of results: limited in size and age. The log keeps every request and digest.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import MemoryHandler
from typing import IO, Any, Final

from veen import __version__
from veen.io.metrics_text import Family, Histogram, exposition
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


LEVELS: Final = ("debug", "info", "warning", "error")
_ENDS: Final = ("completed", "failed", "cancelled")
_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3600.0)
_LOGGERS: Final = (("veen", "debug"), ("uvicorn.error", "warning"))  # and the lowest level that is of interest
_COMPONENT: Final = "query"
_MAX_KEPT: Final = 10_000  # lines before the service listens


class ServiceMetrics:
    """Counters of one service since its start. Belongs to its event loop."""

    def __init__(self) -> None:
        self.submitted = self.unrecorded = self.deliveries = self.rows = 0
        self.execution = Histogram(_SECONDS)
        self._ends = dict.fromkeys(_ENDS, 0)
        self._refusals: dict[str, int] = {}  # by error_code: there are as many as the API has
        self._start = time.time()

    def count_end(self, how: str) -> None:
        self._ends[how] += 1

    def count_delivery(self, rows: int) -> None:
        self.deliveries += 1
        self.rows += rows

    def count_refusal(self, error_code: str) -> None:
        self._refusals[error_code] = self._refusals.get(error_code, 0) + 1

    def text(self, running: int, retention: ResultRetention, erased: int = 0) -> bytes:
        """Return the metrics for Prometheus; `running`: executions in progress."""
        return exposition(self._families(running, retention, erased))

    def _families(self, running: int, retention: ResultRetention, erased: int) -> Iterable[Family]:
        yield Family("veen_build_info", "gauge", "The release that runs.", [(_build(), 1)])
        start = "When the process started to serve."
        yield Family.single("veen_query_start_time_seconds", "gauge", start, round(self._start, 3))
        yield Family.single(
            "veen_query_running", "gauge", "Queries that have not ended, waiting ones included.", running
        )
        yield Family.single(
            "veen_query_stored_bytes", "gauge", "What results that have ended take in the store.", retention.size
        )
        about = "Entries of the query streams that were erased before they were read: their queries are not known."
        yield Family.single("veen_query_erased_entries", "gauge", about, erased)
        for name, about, value in (
            ("removed_results", "Results that were removed: too old, or too much was stored.", retention.removed),
            ("submitted", "Queries that were recorded.", self.submitted),
            ("deliveries", "Answers with rows, each of which is in the audit stream.", self.deliveries),
            ("rows", "Rows in them.", self.rows),
            ("unrecorded", "Records that the log did not take; alert when it grows.", self.unrecorded),
        ):
            yield Family.single(f"veen_query_{name}_total", "counter", about, value)
        for how, value in self._ends.items():
            yield Family.single(f"veen_query_{how}_total", "counter", f"Queries that ended {how}.", value)
        yield Family.by(
            "veen_query_refusals_total", "counter", "Refused requests, by error_code.", "code", self._refusals
        )
        yield Family.of(
            "veen_query_execution_seconds", "Executions, from their place to their last row.", self.execution
        )


def _build() -> str:
    return f'veen_build_info{{version="{__version__}"}}'


# --- lines ---------------------------------------------------------------------------------------------------------


def line(logger: logging.Logger, operation: str, message: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log one line about the service. `fields` has values of the service, never of a query."""
    logger.log(level, message, extra={"operation": operation, "fields": fields})


class LineFormatter(logging.Formatter):
    """Formats one JSON object per line, or text for a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message, fields = record.getMessage(), getattr(record, "fields", {})
        operation, level = getattr(record, "operation", "log"), record.levelname.lower()
        if record.exc_info and record.exc_info[0] is not None:  # the kind, never the values
            message += f": {record.exc_info[0].__name__}"
        moment = datetime.fromtimestamp(record.created, UTC)
        if not self._as_json:
            values = "".join(f" {name}={value}" for name, value in fields.items())
            return f"{moment:%H:%M:%S} {level:<7} {operation}: {message}{values}"
        stamp = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
        about = {"ts": stamp, "level": level, "component": _COMPONENT, "operation": operation, "message": message}
        return json.dumps(about | fields, ensure_ascii=False)


@contextmanager
def lines_to(stream: IO[str], level: str) -> Iterator[Callable[[], None]]:
    """Write the lines of this process to `stream` while inside, from when the function that is given is called.

    Until then they are kept: the first thing that a service says is its address.
    """
    writer = logging.StreamHandler(stream)
    writer.setFormatter(LineFormatter(as_json=not stream.isatty()))
    handler = MemoryHandler(_MAX_KEPT, flushLevel=logging.CRITICAL, target=writer)

    def begin() -> None:
        handler.flush()
        handler.capacity = 1

    loggers = [logging.getLogger(name) for name, _ in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger, (_, lowest) in zip(loggers, _LOGGERS, strict=True):
        logger.addHandler(handler)
        logger.setLevel(max(level, lowest, key=LEVELS.index).upper())
        logger.propagate = False
    try:
        yield begin
    finally:
        for logger, (was, propagated) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(was)
            logger.propagate = propagated
        handler.close()
