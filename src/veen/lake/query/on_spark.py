"""The Spark engine: the same bytes as one process, for any partitioning (D-120).

Two jobs. The first surveys the times of every slice of the log, from which ts* and a division of the logical order into
buckets follow. The second opens, filters and projects, moves each match to its bucket, sorts there, packs the rows and
streams the buckets one after another to the driver, which hashes them once and holds none of them.

Partition numbers are computed, not sampled: a sample would open every entry twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from veen.lake.log.columns import Column, ddl
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Prefix, Times, with_times
from veen.lake.log.slices import divide
from veen.lake.query.aggregate import Partial
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.engine import skip_missing
from veen.lake.query.errors import ExecutionFailed
from veen.lake.query.matches import Match, MatchTally
from veen.lake.query.table_rows import TableTask
from veen.lake.query.table_sql import sql_plan
from veen.lake.query.tasks import (
    BLOB,
    GROUPS,
    MATCHES,
    ORDER_KEYS,
    Part,
    QueryJob,
    add_note,
    boundaries,
    group_batches,
    limit_batches,
    match_batches,
    matches_in,
    merge_batches,
    pack_batches,
    pairs_in,
    with_evidence,
)
from veen.lake.spark.runner import over, parts_for, run_job, survey_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        """Divide the work into tasks. `table` has files that answer a part of the query, besides the log."""
        self._spark, self._prefix = spark, prefix
        self._job = QueryJob(uri=prefix.uri, descriptor=descriptor, identity=prefix.identity, keys=keys)
        size = prefix.size + (table.size if table is not None else 0)
        self._parts = parts or parts_for(spark, size)
        self._tasks = divide(skip_missing(prefix.slices), self._parts)
        self._files = table.divide(self._parts) if table is not None else ()
        self.sql = sql_plan(descriptor) if self._files else None  # files are read by it; None: row by row, in Python
        self._times: list[Times | None] | None = None  # surveyed once, when matches are first asked for

    def matches(self, tally: MatchTally) -> Iterator[Match]:
        if not self._tasks and not self._files:
            return
        query, tasks = self._prepare()
        unsorted = self._frame(query, tasks, match_batches, MATCHES)
        buckets = len(query.bounds) + 1
        divided = unsorted if len(tasks) == 1 else unsorted.repartitionById(buckets, unsorted["bucket"])
        limit = None if query.descriptor.order or query.descriptor.aggregate is not None else query.descriptor.limit

        def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return pack_batches(limit_batches(batches, limit), MATCHES)

        streams = sorted(query.descriptor.stream_names)
        ordered = divided.sortWithinPartitions(*ORDER_KEYS)
        for blob in self._blobs(ordered.mapInArrow(pack, ddl(BLOB)), "query: open, filter and sort"):
            yield from matches_in(blob, streams, tally)

    def groups(self, tally: MatchTally) -> Iterator[tuple[bytes, Partial]]:
        if not self._tasks and not self._files:
            return
        query, tasks = self._prepare()
        descriptor = query.descriptor

        def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pairs = (
                pair
                for batch in batches
                for pair in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            )
            return merge_batches(descriptor, pairs)

        partials = self._frame(query, tasks, group_batches, GROUPS)
        merged = partials.repartition(self._parts, "key").sortWithinPartitions("key").mapInArrow(merge, ddl(GROUPS))
        packed = merged.orderBy("key", "partial").mapInArrow(lambda rows: pack_batches(rows, GROUPS), ddl(BLOB))
        for blob in self._blobs(packed, "query: open, filter and aggregate"):
            for key, data in pairs_in(blob):
                if key:
                    yield key, Partial.from_bytes(data)
                else:
                    add_note(data, tally)

    def _frame(
        self,
        query: QueryJob,
        tasks: Sequence[Part],
        run: Callable[[QueryJob, Part], Iterator[pa.RecordBatch]],
        columns: Sequence[Column],
    ) -> "DataFrame":
        """Run the tasks: those of the log in Python, those of files by SQL if there is a plan for it."""
        plan, files = self.sql, self._files
        if plan is None:
            return over(self._spark, tasks, lambda part: run(query, part), columns)
        from_files = (plan.matches if columns is MATCHES else plan.groups)(self._spark, query, files)
        from_log = [part for part in tasks if not isinstance(part, TableTask)]
        if not from_log:
            return from_files
        return over(self._spark, from_log, lambda part: run(query, part), columns).union(from_files)

    def _prepare(self) -> tuple[QueryJob, list[Part]]:
        """Return the job with its buckets, and its tasks, each slice with the time before it."""
        if len(self._tasks) == 1 and not self._files:  # it reads all slices in order, into one bucket
            return self._job, with_evidence(self._job.descriptor, self._prefix, self._tasks)
        if self._times is None:
            self._times = survey_times(
                self._spark, self._job.uri, self._tasks, what="query: survey times", failure=ExecutionFailed
            )
        tasks = with_times(self._tasks, self._times)
        begins = [file.first_ts for task in self._files for file in task.files]
        bounds = boundaries(tasks, self._times, min(self._parts, _MAX_BUCKETS), more=begins)
        return replace(self._job, bounds=bounds), [
            *with_evidence(self._job.descriptor, self._prefix, tasks),
            *self._files,
        ]

    def _blobs(self, frame: "DataFrame", what: str) -> Iterator[bytes]:
        with run_job(self._spark, what, ExecutionFailed):
            for row in frame.toLocalIterator(prefetchPartitions=True):
                yield bytes(row[0])
