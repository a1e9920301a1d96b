"""The service without HTTP: what it says stands in the log first, and a crash loses nothing (001 query §7, §8)."""

import asyncio
import contextlib
import re
import shutil
from dataclasses import replace
from hashlib import sha256

import pytest
from tests.client.hubs import run
from tests.lake.query_builders import KEYRING, STREAMS, descriptor
from tests.products.queryservice.services import ALICE, BOB, CAROL, PRINCIPALS, log_at, world_at
from tests.waiting import eventually

from veen.client.errors import Unreachable
from veen.core import canonical
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.errors import (
    DuplicateQuery,
    ExecutionFailed,
    ForbiddenScope,
    InvalidDescriptor,
    NotReady,
    QueryNotFound,
)
from veen.lake.query.recording import ACCESSES, EXECUTIONS, REQUESTS, RESULTS, result_id_of
from veen.overlays.framework.schema import Typed, decode
from veen.overlays.operations.queryaudit import QUERY_AUDIT
from veen.overlays.recorder import events as sdr
from veen.products.queryservice.history import QueryHistory
from veen.products.queryservice.service import QueryService, Unavailable


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("log") / "hub")


def asked(**changes):
    return canonical.encode(descriptor(**changes))


def body_of(event):
    typed = sdr.read(event)
    assert isinstance(typed, Typed)
    return typed.body


FULL = asked(query_id="q-1", scope=[STREAMS[0]], evidence={"mode": "full"})


@pytest.mark.req("QRY-04", "QRY-12", "QRY-17", "QRY-21", "QRY-27")
def test_a_small_query_is_recorded_answered_recorded_again_and_audited(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            submission = await service.submit(ALICE, FULL)
            expected = api.run(
                log, FULL, keys=KEYRING, result_id=submission.status.result_id, now=lambda: 1_700_000_100
            )
            assert submission.digest == expected.digest
            times = [row[name] for row in submission.rows for name in ("event_time", "hub_commit_time") if name in row]
            assert times
            for text in (submission.digest.executed_at, *times):
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
            assert list(submission.rows) == list(expected.rows())
            (request,) = await world.events(REQUESTS)
            (result,) = await world.events(RESULTS)
            (access,) = await world.events(ACCESSES)
            body = body_of(request)
            assert (body.event_type, body.subject_id, body.principal_id) == (
                "query.submitted", "user:alice", world.client.client_id,
            )  # fmt: skip
            assert body.payload == normalise(FULL).descriptor.to_bytes()
            assert submission.status.result_id == result_id_of(request.leaf_hash)
            assert (body_of(result).event_type, body_of(result).subject_id, body_of(result).principal_id) == (
                "query.result", "service:query", world.client.client_id,
            )  # fmt: skip
            assert body_of(result).payload == submission.digest.to_bytes()
            audit = decode(access, QUERY_AUDIT)
            assert isinstance(audit, Typed)
            assert audit.body.requester_identity == ALICE.client_id
            assert audit.body.resource_identifier == f'["{STREAMS[0]}"]'
            assert audit.body.resource_class == "confidential"
            assert audit.body.result_digest == sha256(submission.digest.to_bytes()).digest()
            assert await world.events(EXECUTIONS) == []
            await service.aclose()

    run(scenario())


def test_a_result_of_an_earlier_release_is_read_although_its_subject_asked_for_it(tmp_path, log):
    """Earlier releases recorded who asked as the subject of query.result."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(subject_id=ALICE.subject_id)
            submission = await service.submit(ALICE, FULL)
            await service.aclose()
            again = await world.open()
            result_id = submission.status.result_id
            assert again.status(ALICE, result_id).state == "completed"
            page = await again.result(ALICE, result_id, 0, 100)
            assert page["rows"] == list(submission.rows)
            assert len(await world.events(RESULTS)) == 1
            await again.aclose()

    run(scenario())


@pytest.mark.req("QRY-07", "QRY-11", "QRY-12")
def test_conditions_on_any_field_are_answered_and_recorded_in_their_one_form(tmp_path, log):
    """Spelled in another order, with a text that would be SQL elsewhere; a wrong one leaves no record."""
    where = [
        {"field": "subject_id", "op": "^=", "value": "user:"},
        {"field": "payload.where.rack", "op": "in", "value": [2, 0, 1, 0]},
        {"field": "event_type", "op": "=", "value": "login"},
    ]
    question = asked(query_id="q-w", filter={"where": where}, limit=5, order=[{"field": "subject_id"}])
    hostile = asked(query_id="q-h", filter={"where": [{"field": "origin", "op": "=", "value": "' OR 1=1; --"}]})
    wrong = asked(query_id="q-x", filter={"where": [{"field": "payload.a'); DROP TABLE x", "op": "~", "value": 1}]})

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            submission = await service.submit(ALICE, question)
            expected = api.run(
                log, question, keys=KEYRING, result_id=submission.status.result_id, now=lambda: 1_700_000_100
            )
            assert submission.digest == expected.digest
            assert list(submission.rows) == list(expected.rows())
            assert 0 < len(submission.rows) <= 5
            assert all(row["event_type"] == "login" and row["subject_id"] >= "user:" for row in submission.rows)
            nothing = await service.submit(ALICE, hostile)
            assert nothing.digest is not None
            assert nothing.digest.row_count == 0
            with pytest.raises(InvalidDescriptor, match=r"filter\.where\.0\.op"):
                await service.submit(ALICE, wrong)
            requests = [canonical.parse(body_of(event).payload) for event in await world.events(REQUESTS)]
            assert [request["query_id"] for request in requests] == ["q-w", "q-h"]
            recorded = requests[0]["filter"]
            assert recorded["event_type"] == ["login"]
            assert [condition["value"] for condition in recorded["where"]] == [[0, 1, 2], "user:"]
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-21", "QRY-22", "QRY-23", "QRY-24")
def test_a_larger_query_is_accepted_and_fetched_in_pages_each_of_which_is_audited(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(sync_entries=0)
            submission = await service.submit(ALICE, asked(query_id="q-2"))
            assert submission.digest is None
            result_id = submission.status.result_id
            await service.wait_idle()
            assert service.status(ALICE, result_id).state == "completed"
            first = await service.result(ALICE, result_id, 0, 5)
            second = await service.result(ALICE, result_id, 5, 5)
            assert first["page"] == {
                "offset": 0,
                "limit": 5,
                "total": first["result_digest"]["row_count"],
                "has_more": True,
            }
            whole = list(api.run(log, asked(query_id="q-2"), keys=KEYRING).rows())
            assert first["rows"] + second["rows"] == whole[:10]
            assert len(await world.events(ACCESSES)) == 2
            about = service.descriptor(ALICE, "q-2")
            assert about["descriptor"] == normalise(asked(query_id="q-2")).descriptor.to_json()
            (request,) = await world.events(REQUESTS)
            assert about["record_event"] == {
                "stream": REQUESTS,
                "seq": 1,
                "hub_id": world.client.hub_id.hex(),
                "receipt_id": f"rcpt-{request.leaf_hash.hex()}",
            }
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-02")
def test_the_same_query_of_the_same_principal_is_executed_once_and_any_other_is_a_duplicate(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            first, *rest = await asyncio.gather(*(service.submit(ALICE, FULL) for _ in range(5)))
            assert {submission.status.result_id for submission in rest} == {first.status.result_id}
            assert len(await world.events(REQUESTS)) == len(await world.events(RESULTS)) == 1
            with pytest.raises(DuplicateQuery):
                await service.submit(CAROL, FULL)
            with pytest.raises(DuplicateQuery):
                await service.submit(ALICE, asked(query_id="q-1"))
            assert len(await world.events(REQUESTS)) == 1
            await service.aclose()

    run(scenario())


def test_who_may_not_ask_leaves_no_record(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            for scope in ([STREAMS[1]], ["record/nowhere"]):
                with pytest.raises(ForbiddenScope):
                    await service.submit(BOB, asked(scope=scope))
            with pytest.raises(ForbiddenScope):  # allowed by the pattern, but the service has no key
                await service.submit(ALICE, asked(scope=["record/nowhere"]))
            assert await world.events(REQUESTS) == []
            await service.aclose()

    run(scenario())


def test_results_of_others_look_as_if_they_were_not_there(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            result_id = (await service.submit(ALICE, FULL)).status.result_id
            for ask in (
                lambda: service.status(BOB, result_id),
                lambda: service.descriptor(BOB, "q-1"),
                lambda: service.coverage(BOB, result_id),
            ):
                with pytest.raises(QueryNotFound):
                    ask()
            with pytest.raises(QueryNotFound):
                await service.result(BOB, result_id, 0, 10)
            assert service.status(CAROL, result_id).state == "completed"
            await service.aclose()

    run(scenario())


@pytest.mark.req("QRY-26")
def test_a_failed_query_is_recorded_has_no_digest_and_stays_failed_after_a_restart(tmp_path, log):
    async def scenario():
        (tmp_path / "empty").mkdir()
        async with world_at(tmp_path, str(tmp_path / "empty")) as world:
            service = await world.open()
            with pytest.raises(ExecutionFailed, match="there is no log"):
                await service.submit(ALICE, FULL)
            (failure,) = await world.events(EXECUTIONS)
            value = canonical.parse(body_of(failure).payload)
            assert (value["query_id"], value["error_code"]) == ("q-1", "execution_failed")
            assert await world.events(RESULTS) == []
            await service.aclose()
            world.data_dir = log  # it is there now: a state that ended does not change
            again = await world.open()
            assert again.running == 0
            assert again.status(ALICE, value["result_id"]).state == "failed"
            with pytest.raises(NotReady):
                await again.result(ALICE, value["result_id"], 0, 1)
            shutil.rmtree(tmp_path / "store")
            forgotten = await world.open()
            assert forgotten.running == 0
            assert forgotten.status(ALICE, value["result_id"]).state == "failed"
            await again.aclose()
            await forgotten.aclose()

    run(scenario())


def test_a_result_with_more_rows_than_the_principal_may_get_fails(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            with pytest.raises(ExecutionFailed, match="more than the 3 rows"):
                await service.submit(BOB, asked(scope=[STREAMS[0]]))
            await service.aclose()

    run(scenario())


def test_no_row_leaves_if_its_delivery_cannot_be_recorded(tmp_path, log):
    """D-135: before the first row leaves, for each delivery, fail closed."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(record_seconds=0.3)
            result_id = (await service.submit(ALICE, FULL)).status.result_id
            world.wire.lies.append(_down)
            with pytest.raises(Unavailable):
                await service.result(ALICE, result_id, 0, 10)
            with pytest.raises(Unavailable):
                await service.submit(ALICE, asked(query_id="q-9"))
            world.wire.lies.clear()
            assert (await service.result(ALICE, result_id, 0, 10))["rows"]
            await service.aclose()

    run(scenario())


def test_too_many_queries_that_wait_are_refused(tmp_path, log):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(max_waiting=0)
            with pytest.raises(Unavailable, match="try again later"):
                await service.submit(ALICE, FULL)
            assert await world.events(REQUESTS) == []
            await service.aclose()

    run(scenario())


def test_requests_of_an_outage_are_recorded_afterwards_and_nobody_is_refused_for_ever(tmp_path, log):
    """Requests without a receipt had filled the room for good; their clients need not come back."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(record_seconds=1.0, retry_seconds=0.05, max_waiting=4)
            world.wire.lies.append(_down)
            for number in range(2):
                with pytest.raises(Unavailable, match="does not take the record"):
                    await service.submit(ALICE, asked(query_id=f"q-{number}"))
            with pytest.raises(Unavailable, match="2 of yours"):  # one principal has half of the room
                await service.submit(ALICE, asked(query_id="q-2"))
            with pytest.raises(Unavailable, match="does not take the record"):
                await service.submit(CAROL, asked(query_id="q-3"))
            world.wire.lies.clear()
            await eventually(lambda: len(service._history.digests) == 3)
            assert not service._unanswered
            assert len(await world.events(REQUESTS)) == len(await world.events(RESULTS)) == 3
            with contextlib.suppress(Unavailable):  # a record that takes longer than its second is sent again by itself
                await service.submit(ALICE, asked(query_id="q-4"))
            await eventually(lambda: len(service._history.digests) == 4)
            await service.aclose()

    run(scenario())


def test_a_result_is_not_delivered_after_its_scope_was_withdrawn(tmp_path, log):
    """The scope of whoever asks is checked at every delivery."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            result_id = (await service.submit(ALICE, FULL)).status.result_id
            narrowed = replace(ALICE, scopes=("record/none",))
            service.replace_principals(replace(PRINCIPALS, members=(narrowed, *PRINCIPALS.members[1:])))
            audits = len(await world.events(ACCESSES))
            with pytest.raises(ForbiddenScope):
                await service.result(narrowed, result_id, 0, 10)
            with pytest.raises(ForbiddenScope):
                service.coverage(narrowed, result_id)
            with pytest.raises(ForbiddenScope):
                await service.submit(narrowed, FULL)
            assert len(await world.events(ACCESSES)) == audits
            assert (await service.result(ALICE, result_id, 0, 10))["rows"]
            await service.aclose()

    run(scenario())


def test_records_by_other_keys_are_no_history_of_the_service(tmp_path, log):
    """Whoever may write to the query streams cannot give the service requests or ends."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open()
            result_id = (await service.submit(ALICE, FULL)).status.result_id
            await service.aclose()
            copies = {stream: await world.events(stream) for stream in (REQUESTS, RESULTS)}
            foreign = QueryHistory(frozenset({b"m" * 32}))
            own = QueryHistory(frozenset({world.client.client_id}))
            for event in (*copies[REQUESTS], *copies[RESULTS]):
                foreign.add(event)
                own.add(event)
            assert (list(foreign.requests), list(foreign.digests)) == ([], [])
            assert (list(own.results), list(own.digests)) == ([result_id], [result_id])
            forged = replace(copies[REQUESTS][0], client_id=b"m" * 32)  # the same request by somebody else
            own = QueryHistory(frozenset({world.client.client_id}))
            own.add(forged)
            assert list(own.requests) == []

    run(scenario())


# --- crashes -----------------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands for the end of the process: whatever would follow the step does not happen."""


class Dying(QueryService):
    """Ends at a step."""

    step = ""

    def _begin(self, request):
        if self.step != "recorded":
            super()._begin(request)

    def _answer(self, request, control):
        if self.step == "executing":
            with self._store.start(request.result_id) as writer:
                writer.row(b"{}")
                raise Killed
        digest = super()._answer(request, control)
        if self.step == "prepared":
            raise Killed
        return digest

    async def _record_digest(self, digest):
        await super()._record_digest(digest)
        if self.step == "digest":
            raise Killed

    async def _fail(self, request, exc):
        assert isinstance(exc, Killed)


@pytest.mark.req("QRY-26", "QRY-27")
@pytest.mark.parametrize("step", ["recorded", "executing", "prepared", "digest"])
def test_a_service_that_dies_at_any_step_goes_on_under_the_same_result_id(tmp_path, log, step):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            kind = type("DyingAtStep", (Dying,), {"step": step})
            service = await world.open(kind)
            assert (await service.submit(ALICE, FULL)).digest is None
            (request,) = await world.events(REQUESTS)
            result_id = result_id_of(request.leaf_hash)
            again = await world.open()
            await again.wait_idle()
            submission = await again.submit(ALICE, FULL)
            assert submission.status.result_id == result_id
            expected = api.run(log, FULL, keys=KEYRING, result_id=result_id, now=lambda: 1_700_000_100)
            assert submission.digest == expected.digest
            assert list(submission.rows) == list(expected.rows())
            assert len(await world.events(REQUESTS)) == len(await world.events(RESULTS)) == 1
            with pytest.raises(NotReady):
                world.store.fail(result_id, "execution_failed", "after it was completed")
            assert again.status(ALICE, result_id).state == "completed"
            await again.aclose()

    run(scenario())


def test_a_digest_in_the_log_is_compared_with_the_one_that_was_made(tmp_path, log):
    """A store that was changed while the service was down does not deliver under a digest of the log."""

    async def scenario():
        async with world_at(tmp_path, log) as world:
            service = await world.open(type("DyingAtDigest", (Dying,), {"step": "digest"}))
            assert (await service.submit(ALICE, FULL)).digest is None
            (request,) = await world.events(REQUESTS)
            directory = world.store._directory(result_id_of(request.leaf_hash))
            digest = canonical.parse((directory / "digest.json").read_bytes())
            (directory / "digest.json").write_bytes(canonical.encode(digest | {"hub_id": "another hub"}))
            again = await world.open()
            await again.wait_idle()
            with pytest.raises(ExecutionFailed, match="another digest"):
                await again.submit(ALICE, FULL)
            await again.aclose()

    run(scenario())


def _down(*_):
    raise Unreachable("the hub is down")
