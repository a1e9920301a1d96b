"""The log cut into works for tasks that run anywhere, and a first look at its times (D-27, D-120).

ts* of an entry is the greatest hub_ts of its label so far, so a task must know what came before its part. A first job
looks at times alone; then every work is told. However the log is cut, each entry gets the ts* that one process sees.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, Column, arrow_schema, chosen, ddl
from veen.pipeline.files import open_fs
from veen.pipeline.plan import Piece
from veen.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TIMES", "Times", "Work", "cut", "numbered", "over", "parts_for", "survey_batches", "surveyed", "timed"]

_HUB_TS: Final = chosen(["stream_seq", "hub_ts"], ENTRIES)
_MAX_TASKS: Final = 10_000
TIMES: Final = tuple(Column(name, "BIGINT", pa.int64(), "") for name in ("work", "first_ts", "last_ts"))


class _Labelled(Protocol):
    @property
    def label(self) -> bytes: ...


L = TypeVar("L", bound=_Labelled)


class Times(NamedTuple):
    """The first hub_ts of a work and the greatest one."""

    first_ts: int
    last_ts: int


class Work(NamedTuple, Generic[L]):
    """A part of a chunk, and the greatest hub_ts of the label before it."""

    plan: L  # what a task must know of the label
    piece: Piece
    before_ts: int = 0


def cut(labels: Iterable[tuple[L, Sequence[Piece]]], parts: int) -> list[list[Work[L]]]:
    """About `parts` runs of works with about as many entries each, by label and position."""
    labels = list(labels)
    total = sum(piece.last - piece.first + 1 for _, pieces in labels for piece in pieces)
    share = max(1, -(-total // parts))
    tasks: list[list[Work[L]]] = [[]]
    room = share
    for plan, pieces in labels:
        for ref, first, last in pieces:
            while first <= last:
                end = min(last, first + room - 1)
                tasks[-1].append(Work(plan, Piece(ref, first, end)))
                room -= end - first + 1
                first = end + 1
                if not room:
                    tasks.append([])
                    room = share
    return [task for task in tasks if task]


def numbered(tasks: Sequence[Sequence[Work[L]]]) -> list[list[tuple[int, Work[L]]]]:
    """Each work with its number, counted over all tasks."""
    found, number = [], 0
    for task in tasks:
        found.append(list(enumerate(task, start=number)))
        number += len(task)
    return found


def survey_batches(uri: str, works: Iterable[tuple[int, Work[L]]]) -> Iterator[pa.RecordBatch]:
    """The times of works, by number. Reads no more than frames: opening costs a hundred times as much."""
    fs = open_fs(uri)
    rows = []
    for number, work in works:
        if work.piece.ref.kind == "missing":
            continue
        times: list[int] = []
        for batch in bronze.batches(
            fs, work.piece.ref, _HUB_TS, level="none", first=work.piece.first, last=work.piece.last
        ):
            found = [ts for ts in batch.column(1).to_pylist() if ts is not None]
            if found:
                times += [found[0], max(found)]
        if times:
            rows.append({"work": number, "first_ts": times[0], "last_ts": max(times)})
    yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TIMES))


def timed(
    tasks: Sequence[Sequence[Work[L]]], times: Sequence[Times | None], before: Mapping[bytes, int] | None = None
) -> list[list[Work[L]]]:
    """Works that know the time before them; `before` has ts* of labels that do not begin at their first entry."""
    known = dict(before or {})
    found, number = [], 0
    for task in tasks:  # works of a label stand in its order
        made = []
        for work in task:
            label = work.plan.label
            made.append(work._replace(before_ts=known.get(label, 0)))
            if (seen := times[number]) is not None:
                known[label] = max(known.get(label, 0), seen.last_ts)
            number += 1
        found.append(made)
    return found


# --- on Spark ----------------------------------------------------------------------------------------------------


def parts_for(spark: "SparkSession", size: int) -> int:
    """How many tasks to open `size` bytes of log in."""
    return min(_MAX_TASKS, max(int(spark.sparkContext.defaultParallelism), size // Settings.of(spark).open_bytes))


def over(
    spark: "SparkSession", count: int, run: Callable[[int], Iterable[pa.RecordBatch]], columns: Sequence[Column]
) -> "DataFrame":
    """One task per number. What the function closes over is all that travels: paths and ranges."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow each time
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from run(number)

    return spark.range(0, count, 1, count).mapInArrow(each, ddl(columns))


def surveyed(
    spark: "SparkSession | None",
    uri: str,
    tasks: Sequence[Sequence[Work[L]]],
    rows: Callable[["DataFrame"], Iterable[Any]] | None = None,
) -> list[Times | None]:
    """The times of every work, found by the cluster or, without one, here.

    `rows` collects them from Spark, if the caller has a way of its own.
    """
    counted = numbered(tasks)
    times: list[Times | None] = [None] * sum(map(len, tasks))
    found: Iterable[Any]
    if spark is None:
        found = (row for task in counted for batch in survey_batches(uri, task) for row in batch.to_pylist())
    else:
        frame = over(spark, len(tasks), lambda number: survey_batches(uri, counted[number]), TIMES)
        found = rows(frame) if rows is not None else frame.collect()
    for row in found:
        times[row["work"]] = Times(row["first_ts"], row["last_ts"])
    return times
