"""Inputs of a fold on Spark: rows of SILVER in a DataFrame, or a log that its tasks open themselves.

A task that opens its part of a log and folds it in one go sends a summary to the JVM. Rows of SILVER would be written
for the JVM and read back from it, headers and bodies included, which takes longer than most folds do.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from veen.io.places import open_fs
from veen.lake.folds.coverage import NEEDED, entries_in
from veen.lake.log.columns import Column, ddl
from veen.lake.log.events import EventJob, LogEntry
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Prefix
from veen.lake.log.slices import Slice
from veen.lake.spark.connect import partition_count
from veen.lake.spark.runner import divide_timed, over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EntryStep = Callable[[Iterator[LogEntry]], Iterator[pa.RecordBatch]]


class FoldInput(Protocol):
    """Entries in parts, each the work of a task."""

    @property
    def parts(self) -> int:
        """Number of tasks."""

    def map_entries(self, step: EntryStep, columns: Sequence[Column]) -> "DataFrame":
        """Apply `step` to the entries of each part; return its rows as a DataFrame."""


@dataclass(frozen=True, slots=True)
class FrameInput:
    """A DataFrame with the columns of SILVER."""

    frame: "DataFrame"

    @property
    def parts(self) -> int:
        return partition_count(self.frame)

    def map_entries(self, step: EntryStep, columns: Sequence[Column]) -> "DataFrame":
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return step(entries_in(batches))

        needed = self.frame.select(*(column.name for column in NEEDED))  # in one order of columns
        return needed.mapInArrow(run, ddl(columns))


@dataclass(frozen=True, slots=True)
class LogInput:
    """A pinned prefix, divided into tasks. Keys are named, and read where tasks run (D-120)."""

    session: "SparkSession"
    job: EventJob
    tasks: Sequence[Sequence[Slice]]

    @classmethod
    def of(cls, session: "SparkSession", prefix: Prefix, keys: KeyFile, parts: int | None = None) -> "LogInput":
        """Divide a prefix into tasks. With more than one task run a job that surveys times."""
        job = EventJob(prefix.uri, keys.absolute(), identity=prefix.identity)
        return cls(session, job, divide_timed(session, prefix, parts))

    @property
    def parts(self) -> int:
        return len(self.tasks)

    def map_entries(self, step: EntryStep, columns: Sequence[Column]) -> "DataFrame":
        job = self.job

        def run(slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
            return step(job.opener().events(open_fs(job.uri), slices))

        return over(self.session, self.tasks, run, columns)


def input_of(source: "DataFrame | FoldInput") -> FoldInput:
    return source if isinstance(source, FrameInput | LogInput) else FrameInput(source)
