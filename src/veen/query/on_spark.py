"""The Spark engine: the same bytes as one process, for any partitioning (D-120).

Two jobs. The first surveys the times of every slice of the log, from which ts* and a division of the logical order
into buckets follow. The second opens, filters and projects, moves each match to its bucket, sorts there, and streams
the buckets one after another to the driver, which hashes them once and holds none of them.

Partition numbers are computed, not sampled: a sample would open every entry twice.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.log.columns import ddl
from veen.log.keys import KeyFile
from veen.log.prefix import Prefix
from veen.log.skips import Skips
from veen.log.slices import divide
from veen.log.times import Times, with_times
from veen.query.aggregate import Partial
from veen.query.descriptor import QueryDescriptor
from veen.query.engine import present
from veen.query.errors import ExecutionFailed
from veen.query.matches import Match
from veen.query.table_rows import TableTask
from veen.query.tasks import (
    GROUPS,
    MATCHES,
    SORT_KEYS,
    Part,
    QueryJob,
    boundaries,
    group_batches,
    match_batches,
    match_of,
    merged_batches,
    skips_of,
)
from veen.spark.runner import job, over, parts_for, surveyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkSource"]

_MAX_BUCKETS: Final = 256


class SparkSource:
    """The matches of one query, found by a cluster or by all cores."""

    def __init__(
        self,
        spark: "SparkSession",
        prefix: Prefix,
        descriptor: QueryDescriptor,
        keys: KeyFile,
        *,
        parts: int | None = None,
        table: TableTask | None = None,
    ) -> None:
        """`table`: files that answer a part of the query, besides the log."""
        self._spark = spark
        self._job = QueryJob(uri=prefix.uri, descriptor=descriptor, identity=prefix.identity, keys=keys)
        size = prefix.size + (table.size if table is not None else 0)
        self._parts = parts or parts_for(spark, size)
        self._tasks = divide(present(prefix.slices), self._parts)
        self._files = table.divided(self._parts) if table is not None else ()
        self._times: list[Times | None] | None = None  # surveyed once, when matches are first asked for

    def matches(self, skips: Skips) -> Iterator[Match]:
        if not self._tasks and not self._files:
            return
        query, tasks = self._prepared()
        unsorted = over(self._spark, tasks, lambda part: match_batches(query, part), MATCHES)
        buckets = len(query.bounds) + 1
        divided = unsorted if len(tasks) == 1 else unsorted.repartitionById(buckets, unsorted["bucket"])
        ordered = divided.sortWithinPartitions(*SORT_KEYS)
        for row in self._rows(ordered, "query: open, filter and sort"):
            if row["ts"] < 0:
                skips_of(bytes(row["row"]), skips)
            else:
                yield match_of(row)

    def groups(self, skips: Skips) -> Iterator[tuple[bytes, Partial]]:
        if not self._tasks and not self._files:
            return
        query, tasks = self._prepared()
        descriptor = query.descriptor

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pairs = (
                pair
                for batch in batches
                for pair in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            )
            return merged_batches(descriptor, pairs)

        partials = over(self._spark, tasks, lambda part: group_batches(query, part), GROUPS)
        merged = partials.repartition(self._parts, "key").sortWithinPartitions("key").mapInArrow(merge, ddl(GROUPS))
        for row in self._rows(merged.orderBy("key", "partial"), "query: open, filter and aggregate"):
            if row["key"]:
                yield bytes(row["key"]), Partial.from_bytes(bytes(row["partial"]))
            else:
                skips_of(bytes(row["partial"]), skips)

    def _prepared(self) -> tuple[QueryJob, list[Part]]:
        """The job with its buckets, and its tasks, each slice with the time before it."""
        if len(self._tasks) == 1 and not self._files:  # it reads all slices in order, into one bucket
            return self._job, [*self._tasks]
        if self._times is None:
            self._times = surveyed(
                self._spark, self._job.uri, self._tasks, what="query: survey times", failure=ExecutionFailed
            )
        tasks = with_times(self._tasks, self._times)
        begins = [file.first_ts for task in self._files for file in task.files]
        bounds = boundaries(tasks, self._times, min(self._parts, _MAX_BUCKETS), more=begins)
        return replace(self._job, bounds=bounds), [*tasks, *self._files]

    def _rows(self, frame: "DataFrame", what: str) -> Iterator[Any]:
        with job(self._spark, what, ExecutionFailed):
            yield from frame.toLocalIterator(prefetchPartitions=True)
