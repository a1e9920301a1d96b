"""The audit on Spark: the same functions, applied by executors to the chunks where they lie (DESIGN §7).

Tasks are paths and ranges; files are opened on the executor. Results are small and come back pickled, in waves, so that
the driver holds those of one wave at a time.
"""

import gc
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from veen.pipeline.audit.context import Context
from veen.pipeline.audit.engine import Step, Weight, cut
from veen.pipeline.files import open_fs
from veen.pipeline.session import described
from veen.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkEngine"]

T = TypeVar("T")
R = TypeVar("R")

_WAVE: Final = 512  # partitions
_SCHEMA: Final = "part BIGINT, results BINARY"


class SparkEngine:
    """Applies steps in `mapInArrow`. `partitions` fixes how many tasks there are; None lets the bytes decide."""

    def __init__(self, session: "SparkSession", partitions: int | None = None) -> None:
        self._session, self._partitions = session, partitions

    def map(
        self, step: Step[T, R], context: Context, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]:
        parts = cut(tasks, self._parts(sum(map(weight, tasks)), len(tasks)), weight)
        judged_by = pickle.dumps(context)
        for first in range(0, len(parts), _WAVE):
            wave = parts[first : first + _WAVE]
            with described(self._session, f"audit, {what}: parts {first + 1} to {first + len(wave)} of {len(parts)}"):
                yield from self._wave(step, judged_by, wave)

    def _parts(self, size: int, count: int) -> int:
        if self._partitions is not None:
            return max(1, min(self._partitions, count))
        cores = int(self._session.conf.get("spark.default.parallelism", "0") or 0)
        cores = cores or self._session.sparkContext.defaultParallelism
        wanted = max(2 * cores, math.ceil(size / Settings.of(self._session).partition_bytes))
        whole = math.ceil(wanted / cores) * cores  # parts weigh the same: no core waits for another at the end
        return max(1, min(count, whole))

    def _wave(self, step: Step[T, R], judged_by: bytes, wave: list[tuple[T, ...]]) -> Iterator[R]:
        payload = [pickle.dumps((step, part)) for part in wave]

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in batch.column(0).to_pylist():
                    results = _apply(judged_by, payload[part])
                    yield pa.record_batch({"part": pa.array([part], pa.int64()), "results": pa.array([results])})

        frame = self._session.range(0, len(wave), 1, len(wave)).mapInArrow(run, _SCHEMA)
        rows: list[Any] = sorted(frame.collect(), key=lambda row: int(row["part"]))
        for row in rows:
            yield from pickle.loads(bytes(row["results"]))  # noqa: S301 - made by our own executors


def _apply(judged_by: bytes, payload: bytes) -> bytes:
    """On an executor."""
    gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow each time
    context: Context = pickle.loads(judged_by)  # noqa: S301 - made by our own driver
    step, part = pickle.loads(payload)  # noqa: S301 - as above
    fs = open_fs(context.uri)
    return pickle.dumps([step(fs, context, task) for task in part])
