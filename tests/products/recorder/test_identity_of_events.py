"""The identity of a recorded event: ids that senders choose hide no other event."""

import asyncio
import http.client
import json

from tests.client.hubs import run
from tests.products.recorder.sources import Taken, running
from tests.products.recorder.test_http_sources import AUDIT, EVENT, JSON, LOGS, sent
from tests.products.recorder.test_integrity import numbered

from veen.products.recorder.adapters.otlp import Otlp
from veen.products.recorder.adapters.webhook import Webhook

STRUCTURED = {"content-type": "application/cloudevents+json"}


def repeats(intake):
    return [payload["_src"].get("repeat", False) for payload in intake.payloads()]


def test_a_kubernetes_event_with_the_audit_id_of_another_is_recorded_and_marked():
    """Any Kubernetes user chooses the header Audit-ID."""
    first = AUDIT["items"][0]
    attack = {**first, "verb": "delete", "user": {"username": "mallory"}}

    async def story():
        intake = Taken()
        async with running(Webhook("k8s", "127.0.0.1", 0, "kubernetes"), intake) as adapter:
            for event in (first, attack, first, attack):
                body = json.dumps({**AUDIT, "items": [event]}).encode()
                assert (await sent(adapter.port, "/", body, JSON))[0] == 204
        assert [payload["verb"] for payload in intake.payloads()] == ["create", "delete"]
        assert repeats(intake) == [False, True]
        assert intake.losses() == []

    run(story())


def test_a_cloud_event_and_a_delivery_of_github_with_a_used_id_are_recorded_and_marked():
    async def story():
        intake = Taken()
        async with running(Webhook("ce", "127.0.0.1", 0, "cloudevents"), intake) as adapter:
            for event in (EVENT, {**EVENT, "data": {"amount": 0}}, EVENT):
                assert (await sent(adapter.port, "/", json.dumps(event).encode(), STRUCTURED))[0] == 204
        assert [payload["data"]["amount"] for payload in intake.payloads()] == [12.5, 0]
        assert repeats(intake) == [False, True]
        intake = Taken()
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook"), intake) as adapter:
            github = {**JSON, "x-github-event": "push", "x-github-delivery": "d-1"}
            for body in (b'{"a":1}', b'{"a":2}', b'{"a":1}'):
                assert (await sent(adapter.port, "/", body, github))[0] == 204
        assert [payload["a"] for payload in intake.payloads()] == [1, 2]
        assert repeats(intake) == [False, True]

    run(story())


def test_verify_reports_an_id_that_was_used_for_two_events(tmp_path):
    from tests.products.recorder.agents import FAST, connector, spool_of
    from tests.products.recorder.recorders import recorder_at
    from tests.products.recorder.test_evidence import judged

    from veen.core.labels import stream_id_of
    from veen.products.recorder.agent import Agent, AgentSource
    from veen.products.recorder.sink import Sinks

    async def story():
        async with recorder_at(tmp_path, streams={"web": ("record/app/web",)}) as world:
            adapter, role, stop = Webhook("ce", "127.0.0.1", 0, "cloudevents"), world.role("web"), asyncio.Event()
            with spool_of(world, "web") as spool:
                source = AgentSource(adapter, stream_id_of("record/app/web"))
                agent = Agent(role.keystore, role.tokens, Sinks(spool, "h"), [source], connector(world), pace=FAST)
                task = asyncio.create_task(agent.run(stop))
                await adapter.ready.wait()
                for number in (1, 2):
                    body = json.dumps({**EVENT, "data": number}).encode()
                    assert (await sent(adapter.port, "/", body, STRUCTURED))[0] == 204
                stop.set()
                await task
            repeats_reported = [(f.code, f.seq) for f in (await judged(world)).findings if f.code == "SDR.REPEAT"]
            assert repeats_reported == [("SDR.REPEAT", 2)]

    run(story())


def post_twice(port, body, headers, times=2):
    """The same request on one connection, each after the answer to the one before."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    statuses = []
    for _ in range(times):
        connection.request("POST", "/v1/logs", body, headers)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
    connection.close()
    return statuses


def test_equal_requests_are_one_for_a_retry_and_two_after_an_answer():
    """Two OTLP requests of equal bytes were one for ever."""
    body = json.dumps(LOGS).encode()

    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0, wait_receipt=False), intake) as adapter:
            count = lambda: intake.spool.counts()["in"]  # noqa: E731 - read three times
            assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
            assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
            assert count() == 1  # another connection: the answer may have been lost
            assert await asyncio.to_thread(post_twice, adapter.port, body, JSON, 3) == [200, 200, 200]
            assert count() == 3  # the sender had its answer twice and sent the records again
            later = intake.shared.clock() + 1300
            intake.shared.clock = lambda: later
            assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
            assert count() == 4  # beyond the time of a retry
            for _ in range(2):
                assert (await sent(adapter.port, "/v1/logs", body, {**JSON, "idempotency-key": "a"}))[0] == 200
            assert count() == 5  # a key of its own, once

    run(story())


def test_a_retry_on_the_same_connection_after_503_is_recorded_once(monkeypatch):
    """The sender has no answer of 200, so it is a retry."""
    monkeypatch.setattr("veen.products.recorder.adapters.otlp._RECEIPT_SECONDS", 0.2)
    body = json.dumps(LOGS).encode()

    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0), intake) as adapter:
            assert await asyncio.to_thread(post_twice, adapter.port, body, JSON) == [503, 503]
            assert intake.spool.counts()["in"] == 1

    run(story())


def test_sequence_numbers_belong_to_the_credential_and_do_not_jump_far():
    """One sender must not make the numbers of another look used or missing."""

    async def story():
        intake = Taken()
        tokens = ("alice-token", "mallory-token")
        async with running(Otlp("otel", "127.0.0.1", 0, token=tokens, wait_receipt=False), intake) as adapter:
            alice, mallory = ({**JSON, "authorization": f"Bearer {token}"} for token in tokens)
            assert (await sent(adapter.port, "/v1/logs", numbered(1, 2), alice))[0] == 200
            assert (await sent(adapter.port, "/v1/logs", numbered(500), mallory))[0] == 200
            assert (await sent(adapter.port, "/v1/logs", numbered(3), alice))[0] == 200
            assert (await sent(adapter.port, "/v1/logs", numbered(5_000_000), alice))[0] == 400
            assert (await sent(adapter.port, "/v1/logs", numbered(4), alice))[0] == 200
        assert [payload["body"] for payload in intake.payloads()] == ["1", "2", "500", "3", "4"]
        senders = [payload["_src"]["sender"] for payload in intake.payloads()]
        assert senders[0] == senders[1] == senders[3] != senders[2]
        assert [count for _, count in intake.losses()] == [1]  # the request that was refused
        assert not any("token" in json.dumps(payload["_src"]).replace("token:", "") for payload in intake.payloads())

    run(story())


def test_numbers_behind_a_gap_take_memory_by_gaps_and_not_by_numbers():
    """One gap kept a million numbers in a set."""
    from veen.products.recorder.integrity import SequenceNumbers

    numbers = SequenceNumbers(1)
    for number in range(3, 50_000):
        numbers.add(number)
    assert (numbers.runs, numbers.missing, numbers.first_missing) == (1, 1, 2)
    for number in range(60_000, 80_000, 2):
        numbers.add(number)
    assert numbers.runs <= 4_097
    assert numbers.missing == 1 + 10_000 + 9_999
    assert numbers.first_missing == 2
