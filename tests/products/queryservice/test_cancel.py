"""Queries that end before their time: cancelled by who asked, too slow, or stopped with the service (QRY-26)."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.client.hubs import run
from tests.lake.query_builders import KEYRING, STREAMS, descriptor
from tests.products.queryservice.services import ALICE, BOB, CAROL, log_at, world_at
from tests.products.queryservice.test_service import asked, body_of

from veen.client.errors import Unreachable
from veen.core import canonical
from veen.lake.query import api
from veen.lake.query.aggregate import Partial
from veen.lake.query.control import ExecutionControl
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import LocalSource, execute, plan_query
from veen.lake.query.errors import ExecutionFailed, ForbiddenScope, NotReady, QueryCancelled, QueryNotFound
from veen.lake.query.matches import MatchTally
from veen.lake.query.recording import ACCESSES, EXECUTIONS, REQUESTS, RESULTS
from veen.lake.query.store import ResultStore
from veen.products.queryservice.service import QueryService, Unavailable

FULL = asked(query_id="q-1", scope=[STREAMS[0]], evidence={"mode": "full"})


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("log") / "hub")


class Pausing(ExecutionControl):
    """Waits at its twentieth check, in the middle of the rows, until somebody stops the execution or lets it go."""

    def __init__(self, name, gate):
        super().__init__(name)
        self.reached, self._gate, self._checks = threading.Event(), gate, 0

    def check(self):
        self._checks += 1
        if self._checks == 20:
            self.reached.set()
            while not self._gate.is_set() and not self.stopped.wait(0.01):
                pass
        super().check()


class Paused(QueryService):
    """Its executions wait in the middle until `gate` is set."""

    gate: threading.Event

    def _begin(self, request):
        execution = super()._begin(request)
        execution.control = Pausing(request.result_id, self.gate)
        return execution

    async def middle(self, result_id):
        """Wait until the execution is there."""
        control = self._executions[result_id][0].control
        assert isinstance(control, Pausing)
        await asyncio.to_thread(control.reached.wait, 120)
        return control


def paused():
    return type("PausedHere", (Paused,), {"gate": threading.Event()})


async def begun(world, kind=None, **changes):
    """A service with one query of alice in the middle of its execution, and the result_id."""
    service = await world.open(kind or paused(), sync_entries=0, **changes)
    result_id = (await service.submit(ALICE, FULL)).status.result_id
    await service.middle(result_id)
    return service, result_id


def made_by(tmp_path, result_id):
    return {path.name for path in (tmp_path / "store" / "results" / result_id).iterdir()}


@pytest.mark.req("QRY-22", "QRY-26")
def test_a_cancelled_query_is_stopped_recorded_as_failed_and_leaves_no_rows(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world)
            assert "rows.ndjson" in made_by(tmp_path, result_id)
            status = service.status(ALICE, result_id)
            assert (status.state, status.error_code) == ("running", None)
            assert status.progress is not None
            assert 0 <= status.progress.done < status.progress.total
            status = await service.cancel(ALICE, result_id)
            assert (status.state, status.error_code, status.progress) == ("failed", "cancelled", None)
            assert made_by(tmp_path, result_id) == {"query", "running", "final.json"}
            (failure,) = await world.events(EXECUTIONS)
            body = body_of(failure)
            assert (body.event_type, body.subject_id) == ("query.failed", "user:alice")
            assert canonical.parse(body.payload) == {
                "query_id": "q-1",
                "result_id": result_id,
                "error_code": "cancelled",
            }
            assert await world.events(RESULTS) == await world.events(ACCESSES) == []
            with pytest.raises(NotReady, match="cancelled"):
                await service.result(ALICE, result_id, 0, 10)
            with pytest.raises(QueryCancelled):
                await service.submit(ALICE, FULL)
            assert await service.cancel(ALICE, result_id) == status  # again: nothing changes, and nothing is recorded
            assert len(await world.events(EXECUTIONS)) == 1
            await service.aclose()
            again = await world.open()
            assert again.running == 0
            assert again.status(ALICE, result_id).error_code == "cancelled"
            await again.aclose()

    run(scenario())


def test_a_query_that_waits_for_a_place_is_cancelled_without_being_executed(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, first = await begun(world, workers=1)
            second = (await service.submit(ALICE, asked(query_id="q-2"))).status.result_id
            assert service.status(ALICE, second).state == "pending"
            assert (await service.cancel(ALICE, second)).error_code == "cancelled"
            assert made_by(tmp_path, second) == {"query", "final.json"}
            assert service.status(ALICE, first).state == "running"
            service.gate.set()
            await service.wait_idle()
            assert service.status(ALICE, first).state == "completed"
            await service.aclose()

    run(scenario())


def test_only_who_submitted_a_query_may_cancel_it(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world)
            with pytest.raises(QueryNotFound):
                await service.cancel(BOB, result_id)
            with pytest.raises(ForbiddenScope, match="only its submitter"):  # an auditor sees it
                await service.cancel(CAROL, result_id)
            with pytest.raises(QueryNotFound):
                await service.cancel(ALICE, "r-none")
            assert service.status(ALICE, result_id).state == "running"
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-26")
def test_a_query_that_has_ended_is_not_cancelled_any_more(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            submission = await service.submit(ALICE, FULL)
            assert (await service.cancel(ALICE, submission.status.result_id)).state == "completed"
            assert await world.events(EXECUTIONS) == []
            assert (await service.result(ALICE, submission.status.result_id, 0, 5))["rows"]
            await service.aclose()

    run(scenario())


class Recording(QueryService):
    """Its digests wait on their way to the log."""

    gate: asyncio.Event
    on_the_way: asyncio.Event

    async def _record_digest(self, digest):
        self.on_the_way.set()
        await self.gate.wait()
        await super()._record_digest(digest)


@pytest.mark.req("QRY-26", "QRY-27")
def test_a_query_whose_digest_is_on_its_way_to_the_log_is_completed(tmp_path, log):
    """Two ends of one query in the log would be two truths."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(Recording, sync_entries=0)
            service.gate, service.on_the_way = asyncio.Event(), asyncio.Event()
            result_id = (await service.submit(ALICE, FULL)).status.result_id
            await service.on_the_way.wait()
            cancelling = asyncio.create_task(service.cancel(ALICE, result_id))
            await asyncio.sleep(0)
            service.gate.set()
            assert (await cancelling).state == "completed"
            assert len(await world.events(RESULTS)) == 1
            assert await world.events(EXECUTIONS) == []
            await service.aclose()

    run(scenario())


def _lost(*_):
    raise Unreachable("the answer is lost")


@pytest.mark.req("QRY-26")
def test_a_cancellation_that_the_log_did_not_confirm_is_said_and_can_be_repeated_or_found_after_a_restart(
    tmp_path, log
):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, record_seconds=0.3)
            world.wire.lies.append(_lost)
            with pytest.raises(Unavailable, match="cancel it again"):
                await service.cancel(ALICE, result_id)
            assert service.running == 0  # it does not go on meanwhile
            assert service.status(ALICE, result_id).state != "failed"
            world.wire.lies.clear()
            restarted = await world.open()
            assert restarted.running == 0
            assert restarted.status(ALICE, result_id).error_code == "cancelled"
            assert made_by(tmp_path, result_id) == {"query", "running", "final.json"}
            assert (await restarted.cancel(ALICE, result_id)).error_code == "cancelled"
            await restarted.aclose()
            await service.aclose()

    run(scenario())


def test_a_cancellation_is_repeated_in_the_same_service(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world, record_seconds=0.3)
            world.wire.lies.append(_lost)
            with pytest.raises(Unavailable):
                await service.cancel(ALICE, result_id)
            world.wire.lies.clear()
            assert (await service.cancel(ALICE, result_id)).error_code == "cancelled"
            await service.aclose()

    run(scenario())


class Dying(Paused):
    """Dies between the record of a failure and what it does to the store."""

    async def _fail(self, request, exc):
        store, self._store = self._store, Dead(Path())  # whatever would follow the record does not happen
        with pytest.raises(Killed):
            await super()._fail(request, exc)
        self._store = store


class Killed(Exception):
    """Stands for the end of the process."""


class Dead(ResultStore):
    def fail(self, result_id, error_code, message):
        raise Killed


@pytest.mark.req("QRY-26")
def test_a_service_that_dies_after_it_recorded_a_cancellation_has_it_at_its_next_start(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            kind = type("DyingHere", (Dying,), {"gate": threading.Event()})
            service, result_id = await begun(world, kind)
            with pytest.raises(Unavailable):
                await service.cancel(ALICE, result_id)
            assert "rows.ndjson" in made_by(tmp_path, result_id)
            again = await world.open()
            assert again.running == 0
            assert again.status(ALICE, result_id).error_code == "cancelled"
            assert made_by(tmp_path, result_id) == {"query", "running", "final.json"}
            await again.aclose()
            await service.aclose()

    run(scenario())


def test_rows_that_a_crash_left_of_a_failed_query_are_removed_at_the_next_start(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world)
            await service.cancel(ALICE, result_id)
            await service.aclose()
            (tmp_path / "store" / "results" / result_id / "rows.ndjson").write_bytes(b"{}\n")
            again = await world.open()
            assert "rows.ndjson" not in made_by(tmp_path, result_id)
            await again.aclose()

    run(scenario())


def test_an_execution_that_takes_too_long_fails_by_itself(tmp_path, log):
    """A client that went away long ago does not keep a job running for ever."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(paused(), max_seconds=0.05)
            with pytest.raises(ExecutionFailed, match=r"more than the 0\.05 s"):
                await service.submit(ALICE, FULL)
            (failure,) = await world.events(EXECUTIONS)
            assert canonical.parse(body_of(failure).payload)["error_code"] == "execution_failed"
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-26", "QRY-27")
def test_a_service_that_is_stopped_stops_its_executions_and_the_next_start_goes_on(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service, result_id = await begun(world)
            await service.aclose()
            assert service.running == 0
            assert await world.events(EXECUTIONS) == await world.events(RESULTS) == []
            again = await world.open()
            await again.wait_idle()
            expected = api.run(log, FULL, keys=KEYRING, result_id=result_id, now=lambda: 1_700_000_100)
            assert (await again.submit(ALICE, FULL)).digest == expected.digest
            await again.aclose()

    run(scenario())


def test_whoever_waits_for_an_answer_and_goes_away_ends_nothing(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(paused())
            waiting = asyncio.create_task(service.submit(ALICE, FULL))
            while not service.running:  # noqa: ASYNC110 - nothing tells when it begins
                await asyncio.sleep(0.01)
            (result_id,) = service._executions
            await service.middle(result_id)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            service.gate.set()
            await service.wait_idle()
            assert service.status(ALICE, result_id).state == "completed"
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-02")
def test_a_request_whose_receipt_was_lost_is_recorded_once_and_keeps_its_result_id(tmp_path, log):
    """The log may have it: a retry sends the same message, and a restart finds the same result."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(record_seconds=0.3)
            world.wire.lies.append(_lost)
            with pytest.raises(Unavailable):
                await service.submit(ALICE, FULL)
            world.wire.lies.clear()
            first = await service.submit(ALICE, FULL)
            assert len(await world.events(REQUESTS)) == 1
            await service.aclose()
            again = await world.open()
            assert (await again.submit(ALICE, FULL)).digest == first.digest
            await again.aclose()

    run(scenario())


# --- the engine --------------------------------------------------------------------------------------------------


class Sink:
    def __init__(self, control, rows):
        self.control, self.left, self.rows = control, rows, []

    def row(self, row):
        self.rows.append(row)
        if len(self.rows) == self.left:
            self.control.stop(QueryCancelled("enough"))

    def evidence(self, entry):
        """Not of interest."""


@pytest.mark.parametrize("evidence", [{"mode": "none"}, {"mode": "full"}])
def test_the_engine_stops_at_the_next_row(log, evidence):
    control = ExecutionControl()
    sink = Sink(control, 3)
    question = normalise(descriptor(evidence=evidence)).descriptor
    with pytest.raises(QueryCancelled, match="enough"):
        api.answer_into(sink, log, question, result_id="r-1", keys=KEYRING, control=control)
    assert len(sink.rows) == 3


@pytest.mark.parametrize("changes", [{}, {"aggregate": {"group_by": ["origin"], "metrics": ["count"]}}])
def test_a_source_is_closed_when_the_query_fails_although_the_exception_is_still_there(log, changes):
    question = normalise(descriptor(evidence={"mode": "none"}, projection=["subject_id"], **changes)).descriptor
    prefix = plan_query(log, question)
    closed = []

    class WatchedSource(LocalSource):
        def matches(self, tally):
            try:
                yield from super().matches(tally)
            finally:
                closed.append("matches")

        def groups(self, tally):
            assert question.aggregate is not None
            try:
                yield canonical.encode(["here"]), Partial.empty(question.aggregate)
            finally:
                closed.append("groups")

    class FailingSink(Sink):
        def row(self, row):
            raise QueryCancelled("at the first")

    source, sink = WatchedSource(prefix, question, KEYRING), FailingSink(ExecutionControl(), 0)
    with pytest.raises(QueryCancelled) as failure:
        execute(prefix, question, "r-1", source, sink, now=lambda: 0)
    assert closed == ["groups" if changes else "matches"]
    assert failure.traceback[-1].name == "row"  # its frames are there, and what they hold


def test_the_engine_stops_at_the_next_part_of_the_log_if_nothing_matches(log):
    control = ExecutionControl()
    question = normalise(descriptor(filter={"subject_id": "nobody"})).descriptor
    prefix = plan_query(log, question)
    source = LocalSource(prefix, question, KEYRING, control)
    control.stop(QueryCancelled("at once"))
    with pytest.raises(QueryCancelled, match="at once"):
        next(source.matches(MatchTally()))


def test_progress_counts_the_parts_of_the_log_and_ends_with_all_of_them(log):
    control = ExecutionControl()
    assert control.progress is None
    question = normalise(descriptor()).descriptor
    prefix = plan_query(log, question)
    source = LocalSource(prefix, question, KEYRING, control)
    execute(prefix, question, "r-1", source, Sink(control, 0), now=lambda: 0, control=control)
    assert control.progress is not None
    assert control.progress.done == control.progress.total > 1


def test_the_first_reason_to_stop_counts():
    control = ExecutionControl()
    control.check()
    control.stop(QueryCancelled("first"))
    control.stop(ExecutionFailed("second"))
    with pytest.raises(QueryCancelled, match="first"):
        control.check()
