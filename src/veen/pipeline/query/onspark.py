"""The Spark engine: the same bytes as one process, for any partitioning (D-120).

Two jobs. The first looks at the times of every part of the log, from which ts* and a division of the logical order
into buckets follow. The second opens, filters and projects, moves each item to its bucket, sorts there, and streams
the buckets one after another to the driver, which hashes them once and holds none of them.

Partition numbers are computed, not sampled: a sample would open every entry twice.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from veen.pipeline.columns import ddl
from veen.pipeline.query.aggregate import Partial
from veen.pipeline.query.coverage import Skips
from veen.pipeline.query.descriptor import QueryDescriptor
from veen.pipeline.query.errors import ExecutionFailed
from veen.pipeline.query.items import Item
from veen.pipeline.query.keys import KeyFile
from veen.pipeline.query.planning import Plan
from veen.pipeline.query.tasks import (
    GROUPS,
    ITEMS,
    SORT_KEYS,
    Job,
    QueryWork,
    boundaries,
    cut,
    group_batches,
    item_batches,
    item_of,
    merged_batches,
    skips_of,
)
from veen.pipeline.session import described
from veen.pipeline.works import Times, over, parts_for, surveyed, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkSource", "words_of"]

_MAX_BUCKETS: Final = 256


class SparkSource:
    """Matching events of one plan, found by a cluster or by all cores."""

    def __init__(
        self,
        spark: "SparkSession",
        plan: Plan,
        descriptor: QueryDescriptor,
        keys: KeyFile,
        *,
        parts: int | None = None,
    ) -> None:
        self._spark = spark
        self._job = Job(uri=plan.uri, descriptor=descriptor, identity=plan.identity, keys=keys)
        self._parts = parts or parts_for(spark, sum(piece.size for one in plan.labels for piece in one.pieces))
        self._tasks = cut(plan, self._parts)
        self._times: list[Times | None] | None = None

    def items(self, skips: Skips) -> Iterator[Item]:
        if not self._tasks:
            return
        job, tasks, buckets = self._prepared()
        found = over(self._spark, len(tasks), lambda number: item_batches(job, tasks[number]), ITEMS)
        ordered = found.repartitionById(buckets, found["bucket"]).sortWithinPartitions(*SORT_KEYS)
        for row in self._rows(ordered, "query: open, filter and sort"):
            if row["ts"] < 0:
                skips_of(bytes(row["row"]), skips)
            else:
                yield item_of(row)

    def groups(self, skips: Skips) -> Iterator[tuple[bytes, Partial]]:
        if not self._tasks:
            return
        job, tasks, _ = self._prepared()
        descriptor = job.descriptor

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pairs = (
                pair
                for batch in batches
                for pair in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            )
            return merged_batches(descriptor, pairs)

        found = over(self._spark, len(tasks), lambda number: group_batches(job, tasks[number]), GROUPS)
        merged = found.repartition(self._parts, "key").sortWithinPartitions("key").mapInArrow(merge, ddl(GROUPS))
        for row in self._rows(merged.orderBy("key", "partial"), "query: open, filter and aggregate"):
            if row["key"]:
                yield bytes(row["key"]), Partial.from_bytes(bytes(row["partial"]))
            else:
                skips_of(bytes(row["partial"]), skips)

    def _prepared(self) -> tuple[Job, list[list[QueryWork]], int]:
        """The job and its works, each with the time before it."""
        if self._times is None:
            self._times = surveyed(
                self._spark, self._job.uri, self._tasks, lambda found: self._rows(found, "query: look at times")
            )
        tasks = timed(self._tasks, self._times)
        bounds = boundaries(tasks, self._times, min(self._parts, _MAX_BUCKETS))
        job = Job(
            uri=self._job.uri,
            descriptor=self._job.descriptor,
            identity=self._job.identity,
            keys=self._job.keys,
            bounds=bounds,
        )
        return job, tasks, len(bounds) + 1

    def _rows(self, frame: "DataFrame", what: str) -> Iterator[Any]:
        try:
            with described(self._spark, what):
                yield from frame.toLocalIterator(prefetchPartitions=True)
        except (PySparkException, Py4JError) as exc:  # a local iterator passes on what the JVM threw as it is
            raise ExecutionFailed(words_of(str(exc))) from None  # its text can be pages long


def words_of(text: str) -> str:
    """The line of ours in the traceback of a worker, or the first line there is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("veen.") and ": " in line]
    return ours[-1].partition(": ")[2] if ours else lines[0] if lines else "the job failed"
