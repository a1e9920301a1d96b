"""The query service on Spark: one session for all, a pool for each principal, and jobs that end when told to."""

import asyncio

import pytest
from tests.client.hubs import run
from tests.lake.query_builders import KEYRING, STREAMS, descriptor
from tests.lake.test_spark_control import Work, slow
from tests.products.queryservice.services import ALICE, DORA, log_at, world_at
from tests.waiting import until

from veen.core import canonical
from veen.lake.query import api
from veen.lake.query.recording import EXECUTIONS, RESULTS

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("log") / "hub")


def asked(**changes):
    return canonical.encode(descriptor(**changes))


def are_cores_taken(tracker):
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None) == 2


@pytest.mark.req("QRY-26")
def test_a_query_on_spark_is_cancelled_while_its_job_waits_and_others_are_answered(tmp_path, log, spark):
    gate = tmp_path / "gate"
    busy = Work(spark, "busy", slow(2, gate))  # both cores, until the gate opens
    busy.start()
    tracker = spark.sparkContext.statusTracker()

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(engine="spark", spark=spark, sync_entries=0)
            result_id = (await service.submit(ALICE, asked(query_id="q-1"))).status.result_id
            while (status := service.status(ALICE, result_id)).progress is None:  # noqa: ASYNC110 - Spark is asked
                await asyncio.sleep(0.02)
            assert (status.state, status.progress.done) == ("running", 0)
            status = await service.cancel(ALICE, result_id)
            assert (status.state, status.error_code) == ("failed", "cancelled")
            assert not gate.exists()
            assert await world.events(RESULTS) == []
            assert len(await world.events(EXECUTIONS)) == 1
            assert not tracker.getActiveJobsIds() or tracker.getActiveJobsIds() == list(
                tracker.getJobIdsForGroup("busy")
            )
            gate.touch()
            for principal, query_id in ((ALICE, "q-2"), (DORA, "q-3")):
                question = asked(query_id=query_id, scope=[STREAMS[0]], evidence={"mode": "full"})
                result_id = (await service.submit(principal, question)).status.result_id
                await service.wait_idle()
                page = await service.result(principal, result_id, 0, 1000)
                expected = api.run(log, question, keys=KEYRING, result_id=result_id, now=lambda: 1_700_000_100)
                assert page["result_digest"] == expected.digest.to_json()
                assert list(page["rows"]) == list(expected.rows())
            await service.aclose()

    try:
        until(lambda: are_cores_taken(tracker))
        run(scenario())
    finally:
        gate.touch()
        busy.join(120)
    context = spark.sparkContext._jsc.sc()
    assert all(context.getPoolForName(f"user:{name}").isDefined() for name in ("alice", "dora"))


@pytest.mark.req("QRY-26", "QRY-27")
def test_a_service_that_is_stopped_cancels_its_jobs_and_the_next_one_goes_on(tmp_path, log, spark):
    gate = tmp_path / "gate"
    busy = Work(spark, "busy too", slow(2, gate))
    busy.start()
    tracker = spark.sparkContext.statusTracker()

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(engine="spark", spark=spark, sync_entries=0)
            result_id = (await service.submit(ALICE, asked(query_id="q-1"))).status.result_id
            while service.status(ALICE, result_id).progress is None:  # noqa: ASYNC110 - Spark is asked
                await asyncio.sleep(0.02)
            await service.aclose()
            assert list(tracker.getActiveJobsIds()) == list(tracker.getJobIdsForGroup("busy too"))
            assert not gate.exists()
            gate.touch()
            again = await world.open(engine="spark", spark=spark)
            await again.wait_idle()
            assert again.status(ALICE, result_id).state == "completed"
            await again.aclose()

    try:
        until(lambda: are_cores_taken(tracker))
        run(scenario())
    finally:
        gate.touch()
        busy.join(120)
