"""Control of the jobs of one piece of work in a shared session: scheduler pool, progress, cancellation.

Jobs that a thread starts inside `control_jobs` form a group. A watcher thread polls them a few times a second: it
reports their tasks, and once the work is stopped it cancels them, again and again until the work has ended, so that a
job which begins a moment later does not escape. With Spark Connect a tag replaces the group, and neither pools nor
tasks are known.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from veen.lake.spark.connect import is_connect, tag_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
