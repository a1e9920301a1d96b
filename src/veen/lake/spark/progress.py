"""Progress of running Spark jobs in one line.

A thread polls Spark a few times a second. A failed poll, because Spark is stopping or has forgotten a stage, is no
error: the line then says less.

Control of the jobs of one piece of work in a shared session: scheduler pool, progress, cancellation.

Jobs that a thread starts inside `control_jobs` form a group. A watcher thread polls them a few times a second: it
reports their tasks, and once the work is stopped it cancels them, again and again until the work has ended, so that a
job which begins a moment later does not escape. With Spark Connect a tag replaces the group, and neither pools nor
tasks are known.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from veen.lake.spark.connect import is_connect, tag_of
from veen.lake.spark.session import current_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

FAIR: Final = {"spark.scheduler.mode": "FAIR"}  # for a new session whose users share it; a pool needs no file

Report = Callable[[int, int], None]

_POLL_SECONDS: Final = 0.1
_REPORT_EVERY: Final = 3  # looks
_PROPERTIES: Final = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.scheduler.pool",
)


@contextmanager
def control_jobs(
    session: "SparkSession", name: str, *, pool: str | None, stopped: threading.Event, report: Report
) -> Iterator[None]:
    """Run the jobs of this thread as group `name` in `pool`; report finished and all tasks; cancel them if stopped."""
    if is_connect(session):
        session.addTag(tag := tag_of(name))
        try:
            with _watch(lambda: session.interruptTag(tag), lambda: None, stopped):
                yield
        finally:
            session.removeTag(tag)
        return
    context: Any = session.sparkContext
    before = {name: context.getLocalProperty(name) for name in _PROPERTIES}
    context.setJobGroup(name, name, interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", pool)
    tasks = GroupTasks(context.statusTracker(), name)
    try:
        with _watch(lambda: context.cancelJobGroup(name), lambda: report(*tasks.count()), stopped):
            yield
    finally:
        for key, value in before.items():  # the thread is used again
            context.setLocalProperty(key, value)


@contextmanager
def _watch(cancel: Callable[[], object], look: Callable[[], None], stopped: threading.Event) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        looks = 0
        while not ended.wait(_POLL_SECONDS):
            looks += 1
            try:
                if stopped.is_set():
                    cancel()
                elif looks % _REPORT_EVERY == 0:
                    look()
            except Exception:  # noqa: S112 - any error of a bridge to a JVM that may be going away
                continue

    thread = threading.Thread(target=watch, name="spark-control", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class GroupTasks:
    """Counter of the tasks of a group of jobs. Owned by one thread."""

    def __init__(self, tracker: Any, group: str) -> None:
        """Set the tracker, SparkContext.statusTracker(), and the group."""
        self._tracker, self._group = tracker, group
        self._ended: dict[int, tuple[int, int]] = {}  # by job: it is not asked about again

    def count(self) -> tuple[int, int]:
        """Return the number of finished tasks, and of all tasks of the jobs that have begun so far."""
        done = total = 0
        for job in sorted(self._tracker.getJobIdsForGroup(self._group)):
            job_done, job_total = self._ended.get(job) or self._count_job(job)
            done, total = done + job_done, total + job_total
        return done, total

    def _count_job(self, job: int) -> tuple[int, int]:
        info = self._tracker.getJobInfo(job)
        if info is None:
            return 0, 0
        numbers = sorted(int(number) for number in info.stageIds)
        stages = [stage for number in numbers if (stage := self._tracker.getStageInfo(number)) is not None]
        started = [
            place
            for place, stage in enumerate(stages)
            if stage.numActiveTasks or stage.numCompletedTasks or stage.numFailedTasks
        ]
        # A stage before one that has started and of which no task ran is skipped: an earlier job left its output.
        last = started[-1] if started else -1
        counted = [stage for place, stage in enumerate(stages) if place > last or place in started]
        done = sum(stage.numCompletedTasks for stage in counted)
        if info.status != "RUNNING":
            self._ended[job] = done, done
            return done, done
        return done, sum(stage.numTasks for stage in counted)


STARTING: Final = "starting Spark: a Java virtual machine, some seconds"

Tell = Callable[[str], None]
_EVERY_SECONDS: Final = 0.5


def entries_behind(query: "StreamingQuery") -> int | None:
    """Return the number of unread entries of a stream, as of its last progress; None before the first one.

    For a query over several logs it is the sum over all.
    """
    progress: Any = query.lastProgress
    if progress is None:
        return None
    behind = 0
    for source in progress["sources"]:
        newest, read = (_heads_of(source[name]) for name in ("latestOffset", "endOffset"))
        behind += sum(max(0, seq - read.get(label, 0)) for label, seq in newest.items())
    return behind


def _heads_of(offset: Any) -> dict[str, int]:
    """Return the heads of an offset in any form of Spark: JSON text, a mapping, or nothing. Other sources have none."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    heads = offset.get("heads") if isinstance(offset, dict) else None
    return heads if isinstance(heads, dict) else {}


class SparkStage(Protocol):
    """Attributes of a stage in Spark's status tracker."""

    @property
    def numTasks(self) -> int: ...  # noqa: N802 - Spark's names
    @property
    def numActiveTasks(self) -> int: ...  # noqa: N802
    @property
    def numCompletedTasks(self) -> int: ...  # noqa: N802
    @property
    def numFailedTasks(self) -> int: ...  # noqa: N802


class Tracker(Protocol):
    """Interface of SparkContext.statusTracker()."""

    def getActiveStageIds(self) -> list[int]: ...  # noqa: N802 - Spark's names
    def getStageInfo(self, stageId: int, /) -> SparkStage | None: ...  # noqa: N802, N803
    def getExecutorInfos(self) -> Sequence[object]: ...  # noqa: N802


@dataclass(frozen=True, slots=True)
class _Tasks:
    total: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0


def _tasks(tracker: Tracker) -> _Tasks:
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    return _Tasks(
        sum(stage.numTasks for stage in stages),
        sum(stage.numCompletedTasks for stage in stages),
        sum(stage.numActiveTasks for stage in stages),
        sum(stage.numFailedTasks for stage in stages),
    )


def format_line(tracker: Tracker, phase: str, *, on_cluster: bool = False) -> str:
    """Format progress as `pass 2: 12 of 40 tasks, 2 running, 1 failed and tried again`, or the phase alone."""
    tasks = _tasks(tracker)
    if not tasks.total:
        return phase
    text = f"{tasks.done} of {tasks.total} tasks"
    if on_cluster and len(tracker.getExecutorInfos()) <= 1:  # the driver's own: the machines are busy, or too small
        text += " wait for an executor"
    elif tasks.running:  # Spark tells it late, and of short tasks not at all
        text += f", {tasks.running} running"
    if tasks.failed:  # a task that failed for good would have ended the job
        text += f", {tasks.failed} failed and tried again"
    return f"{phase}: {text}" if phase else text


@contextmanager
def watch_tasks(session: "SparkSession", tell: Tell, *, every: float = _EVERY_SECONDS) -> Iterator[Tell]:
    """Pass `tell` a line about running tasks while inside; provide a function that sets the phase.

    Without a phase the description of the jobs is shown.
    """
    phase = ""
    done = threading.Event()
    if is_connect(session):  # which tells nothing of stages
        yield tell
        return
    tracker: Any = session.sparkContext.statusTracker()
    on_cluster = not session.sparkContext.master.startswith("local")

    def name(detail: str) -> None:
        nonlocal phase
        phase = detail
        tell(detail)

    def ask() -> None:
        while not done.wait(every):
            try:
                tell(format_line(tracker, phase or current_work(), on_cluster=on_cluster))
            except Exception:  # noqa: S112 - any error of a bridge to a JVM that may be going away
                continue

    thread = threading.Thread(target=ask, name="spark-progress", daemon=True)
    thread.start()
    try:
        yield name
    finally:
        done.set()
        thread.join()


watching = watch_tasks  # the name of earlier documents
