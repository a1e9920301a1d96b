"""The runner: one Spark task for each part of some work, and jobs with descriptions and readable errors (D-120).

Events of a pinned prefix as a DataFrame: the rows of `veen.lake.log.events`, by tasks (D-79, D-120).

frame = events_frame(spark, make_prefix("./hub"), KeyFile("reader.keys"))
"""

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from veen.lake.log.columns import Column, ddl
from veen.lake.log.entries import Level
from veen.lake.log.errors import PipelineError, SparkFailed
from veen.lake.log.events import SILVER, EventJob, event_batches, prefix_of
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import TIMES, Prefix, Times, survey_batches, times_by_slice, with_times
from veen.lake.log.slices import Slice, divide
from veen.lake.spark.connect import parallelism
from veen.lake.spark.session import describe
from veen.lake.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_TASKS: Final = 10_000
_MAX_SHARED_BYTES: Final = 16 << 20  # of tasks that are given to tasks, over all of them: less than a second's work
_ONE_TASK_BYTES: Final = 4 << 20  # less than a second's work: dividing it, and surveying it first, would take longer

T = TypeVar("T")


def over(
    spark: "SparkSession", tasks: Sequence[T], run: Callable[[T], Iterable[pa.RecordBatch]], columns: Sequence[Column]
) -> "DataFrame":
    """Return a DataFrame of the batches that `run` gives for each of `tasks`, with a Spark task for each.

    Tasks are small values: paths and ranges, never keys. A few of them are part of the function that every task gets.
    Many travel as rows, so that a task gets only its own: else each task of a long log would read the whole plan again.
    """
    payloads = [pickle.dumps(task) for task in tasks]
    count = len(payloads)
    if count * sum(map(len, payloads)) > _MAX_SHARED_BYTES:
        return _rows_of(spark, payloads).mapInArrow(
            lambda batches: _each(batches, "task", pickle.loads, run), ddl(columns)
        )
    numbers = spark.range(0, count, 1, count)
    return numbers.mapInArrow(
        lambda batches: _each(batches, "id", lambda number: pickle.loads(payloads[number]), run),  # noqa: S301 - ours
        ddl(columns),
    )


def _rows_of(spark: "SparkSession", payloads: Sequence[bytes]) -> "DataFrame":
    """Return a frame of the payloads with one partition for each."""
    schema = pa.schema([("number", pa.int32()), ("task", pa.binary())])
    table = pa.table([pa.array(range(len(payloads)), pa.int32()), pa.array(payloads, pa.binary())], schema=schema)
    frame = spark.createDataFrame(table)
    return frame.repartitionById(len(payloads), frame["number"])


def _each(
    batches: Iterable[pa.RecordBatch],
    column: str,
    load: Callable[[Any], T],
    run: Callable[[T], Iterable[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow each time
    for batch in batches:
        for value in batch.column(column).to_pylist():
            yield from run(load(value))


def collect(
    spark: "SparkSession | None",
    tasks: Sequence[T],
    run: Callable[[T], Iterable[pa.RecordBatch]],
    columns: Sequence[Column],
    *,
    what: str,
    failure: type[PipelineError],
) -> list[Any]:
    """Return all rows of `over`, which must be few; without Spark run the tasks in this process."""
    if spark is None or not tasks:
        return [row for task in tasks for batch in run(task) for row in batch.to_pylist()]
    with run_job(spark, what, failure):
        return list(over(spark, tasks, run, columns).collect())


@contextmanager
def run_job(spark: "SparkSession", what: str, failure: type[PipelineError]) -> Iterator[None]:
    """Describe the jobs that begin inside; raise `failure` with one line for a failed one, not pages of a JVM."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with describe(spark, what):
            yield
    except (PySparkException, Py4JError) as exc:  # a local iterator passes on what the JVM threw as it is
        raise failure(words_of(str(exc))) from None


def words_of(text: str) -> str:
    """Return our line in the traceback of a worker, or its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("veen.") and ": " in line]
    return ours[-1].partition(": ")[2] if ours else lines[0] if lines else "the job failed"


# --- tasks of a log ------------------------------------------------------------------------------------------------


def parts_for(spark: "SparkSession", size: int) -> int:
    """Return the number of tasks to open `size` bytes of log."""
    open_bytes = SparkSettings.of(spark).open_bytes
    if size <= min(_ONE_TASK_BYTES, open_bytes):
        return 1
    return min(_MAX_TASKS, max(parallelism(spark), size // open_bytes))


def survey_times(
    spark: "SparkSession | None", uri: str, tasks: Sequence[Sequence[Slice]], *, what: str, failure: type[PipelineError]
) -> list[Times | None]:
    """Return the times of every slice, found by the cluster or, without one, here."""
    numbered, count = [], 0
    for task in tasks:
        numbered.append((count, task))
        count += len(task)
    rows = collect(spark, numbered, lambda task: survey_batches(uri, *task), TIMES, what=what, failure=failure)
    return times_by_slice(rows, count)


def divide_timed(
    spark: "SparkSession | None",
    prefix: Prefix,
    parts: int | None = None,
    *,
    failure: type[PipelineError] = SparkFailed,
) -> list[list[Slice]]:
    """Divide the prefix into tasks, each slice with ts* before it. Run a job that surveys times."""
    if parts is None:
        parts = parts_for(spark, prefix.size) if spark is not None else 1
    tasks = divide(prefix.slices, parts)
    if len(tasks) <= 1:
        return tasks  # one task reads all slices in order, and needs to know nothing of others
    return with_times(tasks, survey_times(spark, prefix.uri, tasks, what="events: survey times", failure=failure))


def events_frame(
    spark: "SparkSession",
    source: str | Prefix,
    keys: KeyFile,
    *,
    parts: int | None = None,
    verify: Level = "hash",
    **selected: Any,
) -> "DataFrame":
    """Return the entries as a DataFrame with the columns of SILVER, unsorted: sort by SORT_KEYS where it matters.

    The frame is of one prefix: call `make_prefix` first to have its cuts. `parts` is the number of tasks.
    """
    prefix = prefix_of(source, selected)
    job = EventJob(prefix.uri, keys.absolute(), verify, prefix.identity)
    tasks = divide_timed(spark, prefix, parts)
    if not tasks:
        return spark.createDataFrame([], ddl(SILVER))
    return over(spark, tasks, lambda slices: event_batches(job, slices), SILVER)
