"""What the plans share where they touch Spark."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from veen.pipeline.events import SORT_KEYS
from veen.pipeline.folds.errors import FoldFailed
from veen.pipeline.folds.rows import NEEDED
from veen.pipeline.session import described

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["collected", "kept", "order_of", "part_number", "rows_in", "slim", "streamed", "tabled"]


def part_number() -> int:
    """Which part of the frame a task has. Also the place to begin a task: see `gc.freeze`."""
    from pyspark import TaskContext

    gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow each time
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def slim(frame: "DataFrame") -> "DataFrame":
    """Only what folding needs, in one order of columns."""
    return frame.select(*(column.name for column in NEEDED))


def order_of() -> list["Column"]:
    """The logical order as columns (D-27), never the order of arrival."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    return [F.col(name) for name in SORT_KEYS]


def collected(frame: "DataFrame", what: str) -> list[Any]:
    """All rows, which are few."""
    with _words(), described(frame.sparkSession, what):
        return list(frame.collect())


def tabled(frame: "DataFrame", what: str) -> list[dict[str, Any]]:
    """The same through Arrow, for rows that are as many as a state has records."""
    with _words(), described(frame.sparkSession, what):
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return rows


def rows_in(frame: "DataFrame", what: str) -> Iterator[tuple[Any, ...]]:
    """The same as tuples in the order of the columns, which cost less than dicts."""
    with _words(), described(frame.sparkSession, what):
        table = frame.toArrow()
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def streamed(frame: "DataFrame", what: str) -> Iterator[Any]:
    """Row after row, one partition ahead."""
    with _words(), described(frame.sparkSession, what):
        yield from frame.toLocalIterator(prefetchPartitions=True)


@contextmanager
def kept(frame: "DataFrame") -> Iterator["DataFrame"]:
    """A frame that is read more than once and computed only once: on executors, in memory or on their disks."""
    from pyspark import StorageLevel

    held = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield held
    finally:
        held.unpersist()


@contextmanager
def _words() -> Iterator[None]:
    """A task that fails says so in one line of ours, not in pages of a JVM."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from veen.pipeline.query.onspark import words_of

    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise FoldFailed(words_of(str(exc))) from None
