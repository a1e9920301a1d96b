"""How long a service keeps results, and what it does when the log takes no record (PRODUCTS §4.2)."""

import os
import time

import pytest
from tests.client.hubs import run
from tests.lake.query_builders import STREAMS
from tests.products.queryservice.services import ALICE, BOB, PRINCIPALS, log_at, world_at
from tests.products.queryservice.test_cancel import begun, paused
from tests.products.queryservice.test_service import asked
from tests.waiting import eventually

from veen.client.errors import Unreachable
from veen.core.canonical import InvalidJson
from veen.lake.query.errors import NotReady, QueryNotFound
from veen.lake.query.recording import EXECUTIONS, RESULTS
from veen.lake.query.store import ResultStore
from veen.products.queryservice.observe import ResultRetention
from veen.products.queryservice.principals import Principals
from veen.products.queryservice.service import Unavailable


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("log") / "hub")


async def answered(service, *query_ids):
    """Their result_ids."""
    return [(await service.submit(ALICE, asked(query_id=name))).status.result_id for name in query_ids]


def names_in(tmp_path, directory="results"):
    return sorted(path.name for path in (tmp_path / "store" / directory).iterdir())


@pytest.mark.req("QRY-23", "QRY-25")
def test_the_oldest_results_go_when_all_take_too_much_and_the_newest_stays(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(keep_bytes=1)  # less than any result
            first, second = await answered(service, "q-1", "q-2")
            assert names_in(tmp_path) == [second]
            assert names_in(tmp_path, "queries") == ["q-2.json"]
            assert (service.retention.removed, service.retention.size) == (1, world.store.measure(second).size)
            assert service.status(ALICE, first).state == "completed"  # the log still has the digest
            with pytest.raises(QueryNotFound, match="not kept any more"):
                await service.result(ALICE, first, 0, 10)
            with pytest.raises(QueryNotFound, match="not kept any more"):
                service.coverage(ALICE, first)
            with pytest.raises(QueryNotFound, match="another query_id"):
                await service.submit(ALICE, asked(query_id="q-1"))  # the same query again is the first one
            with pytest.raises(QueryNotFound, match="there is no result"):
                await service.result(BOB, first, 0, 10)  # to others it never was there
            assert (await service.result(ALICE, second, 0, 10))["rows"]
            await service.aclose()
            restarted = await world.open(keep_bytes=1)
            assert restarted.running == 0  # what was removed is not executed again
            assert names_in(tmp_path) == [second]
            await restarted.aclose()

    run(scenario())


@pytest.mark.req("QRY-23")
def test_a_result_is_kept_until_it_is_too_old(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(keep_seconds=10**6)
            old, new = await answered(service, "q-1", "q-2")
            for result_id, age in ((old, 10**6 + 1), (new, 10**6 - 3600)):
                ended_at = time.time() - age
                os.utime(tmp_path / "store" / "results" / result_id / "final.json", (ended_at, ended_at))
            await service.aclose()
            restarted = await world.open(keep_seconds=10**6)
            assert names_in(tmp_path) == [new]
            assert restarted.retention.removed == 1
            await restarted.aclose()

    run(scenario())


@pytest.mark.req("QRY-26")
def test_failed_results_go_with_the_others_and_running_ones_never(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, keep_bytes=1)
            with pytest.raises(NotReady, match="only completed or failed"):
                world.store.remove(result_id)
            service.retention.sweep()
            assert names_in(tmp_path) == [result_id]
            await service.cancel(ALICE, result_id)
            service.gate.set()
            (other,) = await answered(service, "q-2")
            await service.wait_idle()
            assert names_in(tmp_path) == [other]
            status = service.status(ALICE, result_id)
            assert (status.state, status.error_code) == ("failed", "cancelled")
            await service.aclose()

    run(scenario())


def test_a_removal_that_a_crash_cut_off_is_finished_at_the_next_start(tmp_path):
    remains = tmp_path / "results" / ".removed-r-1"
    remains.mkdir(parents=True)
    for name in ("query", "rows.ndjson", "final.json"):
        (remains / name).write_bytes(b"{}\n")
    store = ResultStore(tmp_path)
    assert store.list_ended() == []
    assert not store.has_result("r-1")
    retention = ResultRetention(store, keep_bytes=1, keep_seconds=1)
    assert list((tmp_path / "results").iterdir()) == []
    assert (retention.size, retention.removed) == (0, 0)


def test_results_that_cannot_be_removed_fail_no_query_and_are_tried_again(tmp_path, log, monkeypatch):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(keep_bytes=1)
            with monkeypatch.context() as patch:
                patch.setattr(ResultStore, "remove", _busy)
                first, second = await answered(service, "q-1", "q-2")
            assert service.status(ALICE, second).state == "completed"
            assert names_in(tmp_path) == sorted((first, second))
            (third,) = await answered(service, "q-3")
            assert names_in(tmp_path) == [third]
            assert await world.events(EXECUTIONS) == []
            await service.aclose()

    run(scenario())


def _busy(*_):
    raise OSError("the directory is busy")


def test_a_damaged_result_keeps_no_other_from_being_removed(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(keep_bytes=10**9)
            damaged, *_, newest = await answered(service, "q-1", "q-2", "q-3")
            final = tmp_path / "store" / "results" / damaged / "final.json"
            ended_at = final.stat().st_mtime
            final.write_bytes(b"{")
            os.utime(final, (ended_at, ended_at))  # still the oldest
            retention = ResultRetention(world.store, keep_bytes=1, keep_seconds=10**6)
            with pytest.raises(InvalidJson):
                retention.sweep()
            assert names_in(tmp_path) == sorted((damaged, newest))
            assert retention.removed == 1
            await service.aclose()

    run(scenario())


def test_files_of_others_in_the_store_are_passed_over(tmp_path):
    for name in ("not an id", "r-without-a-query"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "final.json").write_bytes(b"{}")
    assert ResultStore(tmp_path).list_ended() == []


def test_a_store_that_is_not_there_yet_has_nothing_to_remove(tmp_path):
    retention = ResultRetention(ResultStore(tmp_path / "none"), keep_bytes=1, keep_seconds=1)
    retention.sweep()
    assert retention.size == 0


# --- a log that takes no record ---------------------------------------------------------------------------------


def _lost(*_):
    raise Unreachable("the answer is lost")


@pytest.mark.req("QRY-26", "QRY-27")
def test_a_digest_that_the_log_did_not_take_is_recorded_once_it_does(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, record_seconds=0.3, retry_seconds=0.05)
            world.wire.lies.append(_lost)
            service.gate.set()
            await eventually(lambda: service.metrics.unrecorded >= 2)
            assert service.status(ALICE, result_id).state == "running"
            world.wire.lies.clear()
            await eventually(lambda: service.status(ALICE, result_id).state == "completed")
            assert len(await world.events(RESULTS)) == 1
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-26")
def test_a_failure_that_the_log_did_not_take_is_recorded_later_without_another_execution(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, record_seconds=0.3, retry_seconds=0.05)
            world.wire.lies.append(_lost)
            with pytest.raises(Unavailable):
                await service.cancel(ALICE, result_id)
            executed = sum(service.metrics.execution.counts)
            await eventually(lambda: service.metrics.unrecorded >= 3)
            world.wire.lies.clear()
            await eventually(lambda: service.status(ALICE, result_id).error_code == "cancelled")
            assert sum(service.metrics.execution.counts) == executed
            assert len(await world.events(EXECUTIONS)) == 1
            await service.aclose()

    run(scenario())


def test_a_service_that_is_closed_tries_nothing_again(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, record_seconds=0.3, retry_seconds=3600)
            world.wire.lies.append(_lost)
            with pytest.raises(Unavailable):
                await service.cancel(ALICE, result_id)
            await service.aclose()
            assert [retry.cancelled() for retry in service._retries.values()] == [True]

    run(scenario())


# --- principals that change ----------------------------------------------------------------------------------------


@pytest.mark.req("QRY-20")
def test_queries_of_a_principal_who_is_gone_end_and_those_of_others_go_on(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, paused())
            bobs = await service.submit(BOB, asked(query_id="q-b", scope=[STREAMS[0]], limit=2))
            left = tuple(principal for principal in PRINCIPALS.members if principal != ALICE)
            service.replace_principals(Principals(members=left, classes=PRINCIPALS.classes))
            await eventually(lambda: service.status(ALICE, result_id).state == "failed")
            assert "may not ask any more" in str(service.status(ALICE, result_id).message)
            service.gate.set()
            await service.wait_idle()
            assert service.status(BOB, bobs.status.result_id).state == "completed"
            await service.aclose()

    run(scenario())
