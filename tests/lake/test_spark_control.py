"""Work among other work in one session: pools, progress and cancellation, on a real Spark."""

import threading
import time
from typing import Any

import pytest
from tests.lake.query_builders import KEYRING, descriptor, filled
from tests.waiting import until

from veen.lake.query import api
from veen.lake.query.control import ExecutionControl
from veen.lake.query.descriptor import normalise
from veen.lake.query.errors import QueryCancelled
from veen.lake.spark.progress import GroupTasks, control_jobs

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("log"), 60).done()


class Work(threading.Thread):
    """Jobs of one group in a thread; `outcome` is what they gave or raised."""

    def __init__(self, spark, name, run, *, pool=None):
        super().__init__(name=name)
        self._spark, self._run, self._pool = spark, run, pool
        self.stopped, self.reports = threading.Event(), []
        self.outcome: Any = None

    def run(self):
        try:
            with control_jobs(
                self._spark,
                self.name,
                pool=self._pool,
                stopped=self.stopped,
                report=lambda *counts: self.reports.append(counts),
            ):
                self.outcome = self._run(self._spark)
        except Exception as exc:
            self.outcome = exc


def slow(tasks, gate):
    """Rows of `tasks` tasks, each of which waits until the file `gate` is there."""

    def wait(batches):
        while not gate.exists():
            time.sleep(0.02)
        yield from batches

    return lambda spark: spark.range(0, tasks, 1, tasks).mapInArrow(wait, "id BIGINT").collect()


def test_jobs_of_a_group_end_when_they_are_stopped_and_others_go_on(spark, tmp_path):
    gate = tmp_path / "gate"
    work = Work(spark, "stopped-group", slow(2, gate))
    other = Work(spark, "other-group", lambda session: session.range(7).count())
    tracker = spark.sparkContext.statusTracker()
    work.start()
    until(lambda: tracker.getJobIdsForGroup("stopped-group"))
    other.start()
    work.stopped.set()
    for thread in (work, other):
        thread.join(120)
        assert not thread.is_alive()
    assert isinstance(work.outcome, Exception)
    assert "cancelled" in str(work.outcome)
    assert other.outcome == 7
    gate.touch()


def test_a_job_that_begins_after_the_stop_does_not_escape(spark, tmp_path):
    work = Work(spark, "late-group", slow(1, tmp_path / "never"))
    work.stopped.set()
    work.start()
    work.join(120)
    assert isinstance(work.outcome, Exception)


def test_tasks_are_counted_while_they_run(spark, tmp_path):
    gate = tmp_path / "gate"
    work = Work(spark, "counted-group", slow(5, gate))
    work.start()
    until(lambda: (0, 5) in work.reports)
    gate.touch()
    work.join(120)
    assert len(work.outcome) == 5
    counted = GroupTasks(spark.sparkContext.statusTracker(), "counted-group")
    until(lambda: counted.count() == (5, 5))
    assert GroupTasks(spark.sparkContext.statusTracker(), "no-group").count() == (0, 0)


def test_a_thread_has_its_own_pool_and_keeps_nothing_of_it(spark):
    context = spark.sparkContext
    names = ("spark.scheduler.pool", "spark.jobGroup.id")
    before = [context.getLocalProperty(name) for name in names]
    with control_jobs(spark, "mine", pool="alice", stopped=threading.Event(), report=lambda *_: None):
        assert [context.getLocalProperty(name) for name in names] == ["alice", "mine"]
    assert [context.getLocalProperty(name) for name in names] == before


def test_a_pool_gets_its_share_while_another_has_much_to_do(spark, tmp_path):
    """Tasks of the heavy job end one by one, when they are let go; the other pool needs some of them to end."""

    def wait(batches):
        for batch in batches:
            for number in batch.column("id").to_pylist():
                while not (tmp_path / str(number)).exists():
                    time.sleep(0.01)
            yield batch

    heavy = Work(
        spark, "heavy", lambda session: session.range(0, 40, 1, 40).mapInArrow(wait, "id BIGINT").collect(), pool="a"
    )
    light = Work(spark, "light", lambda session: session.range(0, 4, 1, 4).count(), pool="b")
    heavy.start()
    until(lambda: (0, 40) in heavy.reports)
    light.start()
    until(lambda: spark.sparkContext.statusTracker().getJobIdsForGroup("light"))
    for number in range(30):  # between the two stages of the light job its core may go to the heavy one again
        (tmp_path / str(number)).touch()
        light.join(1)
        if not light.is_alive():
            break
    assert light.outcome == 4
    assert heavy.is_alive()  # one after another, the light job would come after all forty
    for number in range(40):
        (tmp_path / str(number)).touch()
    heavy.join(120)
    assert len(heavy.outcome) == 40


def test_a_query_on_spark_stops_with_the_reason_it_was_given(spark, log):
    question = normalise(descriptor()).descriptor
    control = ExecutionControl("r-stopped", pool="alice")

    class Sink:
        rows = 0

        def row(self, row):
            self.rows += 1
            control.stop(QueryCancelled("enough"))

        def evidence(self, entry):
            """Not of interest."""

    sink = Sink()
    with pytest.raises(QueryCancelled, match="enough"):
        api.answer_into(
            sink, log, question, result_id="r-1", keys=KEYRING, engine="spark", spark=spark, control=control
        )
    assert sink.rows == 1
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("r-stopped")  # its jobs are those of the group


def test_a_query_whose_job_is_cancelled_fails_with_the_reason_of_the_stop(spark, log):
    """The words of the JVM about a cancelled job are nobody's reason."""
    control = ExecutionControl("r-before", pool="alice")
    control.stop(QueryCancelled("before it began"))
    with pytest.raises(QueryCancelled, match="before it began"):
        api.answer_into(
            _Nothing(), log, normalise(descriptor()).descriptor, result_id="r-1", keys=KEYRING, engine="spark",
            spark=spark, control=control,
        )  # fmt: skip


class _Nothing:
    def row(self, row):
        """Not of interest."""

    evidence = row
