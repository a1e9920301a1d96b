"""The audit on Spark: the same functions, applied by executors to the chunks where they are (DESIGN §7).

Tasks are paths and ranges; files are opened on the executor. Results are small and return pickled, in waves, so that
the driver holds those of one wave at a time.
"""

import math
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from veen.io.places import open_fs
from veen.lake.log.columns import Column
from veen.lake.spark.connect import parallelism
from veen.lake.spark.runner import over
from veen.lake.spark.session import describe
from veen.lake.spark.settings import SparkSettings
from veen.verify.audit.context import AuditContext
from veen.verify.audit.engine import Step, Weight, cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_WAVE: Final = 512  # partitions
_ONE_TASK_BYTES: Final = 1 << 20  # a fifth of a second, signatures included
_RESULTS: Final = (Column("part", "BIGINT", pa.int64(), ""), Column("results", "BINARY", pa.binary(), "pickled"))


class SparkEngine:
    """Engine that applies steps in `mapInArrow`. `partitions` is the number of tasks. Default: by size of the log."""

    def __init__(self, session: "SparkSession", partitions: int | None = None) -> None:
        self._session, self._partitions = session, partitions

    def map(
        self, step: Step[T, R], context: AuditContext, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]:
        """Yield the result of `step` for each task, in their order; tasks of Spark run it."""
        parts = cut(tasks, self._parts(sum(map(weight, tasks)), len(tasks)), weight)
        for first in range(0, len(parts), _WAVE):
            wave = parts[first : first + _WAVE]
            with describe(self._session, f"audit, {what}: parts {first + 1} to {first + len(wave)} of {len(parts)}"):
                yield from self._wave(step, context, wave)

    def _parts(self, size: int, count: int) -> int:
        if self._partitions is not None:
            return max(1, min(self._partitions, count))
        partition_bytes = SparkSettings.of(self._session).partition_bytes
        if size <= min(_ONE_TASK_BYTES, partition_bytes):
            return 1
        cores = int(self._session.conf.get("spark.default.parallelism", "0") or 0)
        cores = cores or parallelism(self._session)
        wanted = max(2 * cores, math.ceil(size / partition_bytes))
        whole = math.ceil(wanted / cores) * cores  # parts weigh the same: no core waits for another at the end
        return max(1, min(count, whole))

    def _wave(self, step: Step[T, R], context: AuditContext, wave: list[tuple[T, ...]]) -> Iterator[R]:
        def run(numbered: tuple[int, tuple[T, ...]]) -> Iterator[pa.RecordBatch]:
            number, part = numbered
            fs = open_fs(context.uri)
            results = pickle.dumps([step(fs, context, task) for task in part])
            yield pa.record_batch({"part": pa.array([number], pa.int64()), "results": pa.array([results])})

        rows = over(self._session, list(enumerate(wave)), run, _RESULTS).collect()
        for row in sorted(rows, key=lambda row: int(row["part"])):
            yield from pickle.loads(bytes(row["results"]))  # noqa: S301 - made by our own executors
