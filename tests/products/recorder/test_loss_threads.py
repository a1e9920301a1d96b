"""How users of collectors report that they lost logs, replayed against the agent: nothing lost, nothing doubled.

The threads are those about the OpenTelemetry collector and Vector: a restart under load, a full sending queue, 429 that
an exporter takes as final, and files that rotate while they are written.
"""

import asyncio
import json
import random

import pytest
from tests.client.hubs import run
from tests.products.recorder.agents import FAST, WEB, connector, numbers, recorded, spool_of
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.test_agent import Gated, own_events
from tests.products.recorder.test_http_sources import JSON, sent
from tests.waiting import eventually

from veen.client.send.captokens import issue
from veen.client.transport.inprocess import InProcess
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import Rate
from veen.products.recorder.adapters.otlp import Otlp
from veen.products.recorder.adapters.tail import TailSource
from veen.products.recorder.agent import Agent, AgentSource
from veen.products.recorder.events import OPENINGS_STREAM, OWN_STREAM
from veen.products.recorder.sink import Sinks

STREAM = stream_id_of(WEB)


def agent_of(world, spool, adapter, wire=None, **options):
    role = world.role("web")
    sources = [AgentSource(adapter, STREAM)]
    return Agent(
        role.keystore, role.tokens, Sinks(spool, "host"), sources, connector(world, wire), pace=FAST, **options
    )


class Writer:
    """A service that writes numbered lines, and a logrotate that renames its file."""

    def __init__(self, path, seed):
        self.path, self.count, self._rng, self._old = path, 0, random.Random(seed), 0
        path.touch()

    def write(self):
        with self.path.open("a") as file:
            for _ in range(self._rng.randint(1, 30)):
                self.count += 1
                file.write(json.dumps({"n": self.count, "user": "u", "event": "tick"}) + "\n")

    def rotate(self):
        for number in range(self._old, 0, -1):
            self.path.with_name(f"{self.path.name}.{number}").rename(
                self.path.with_name(f"{self.path.name}.{number + 1}")
            )
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))
        self._old += 1
        self.path.touch()


@pytest.mark.slow
def test_restarts_and_rotation_under_load_lose_and_double_nothing(tmp_path):
    async def story():
        writer = Writer(tmp_path / "app.log", seed=3)
        async with recorder_at(tmp_path) as world:
            for life in range(4):
                spool, stop = spool_of(world, "web"), asyncio.Event()
                adapter = TailSource(
                    "app", writer.path, rotated=True, poll_seconds=0.01
                )  # it may rotate before the first look
                running = asyncio.create_task(agent_of(world, spool, adapter).run(stop))
                for turn in range(6):
                    writer.write()
                    if turn % 3 == 2:
                        writer.rotate()  # the agent may stand anywhere in the file
                    await asyncio.sleep(0.01)
                if life == 3:
                    await eventually(lambda: spool.counts()["in"] >= writer.count)  # noqa: B023 - awaited here
                stop.set()
                await running
                spool.close()
                writer.write()  # while no agent runs
                writer.rotate()
            spool = spool_of(world, "web")
            await agent_of(world, spool, TailSource("app", writer.path, follow=False)).run()
            spool.close()
            assert await numbers(world) == list(range(1, writer.count + 1))
            assert [kind for kind, _ in await own_events(world) if kind == "recorder.loss"] == []

    run(story())


def request(first, count):
    records = [
        {"timeUnixNano": str(1_794_823_200_000_000_000 + n), "body": {"stringValue": str(n)}}
        for n in range(first, first + count)
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()


async def exported(port, body):
    """An exporter: it repeats the identical request after 503, and drops it after anything else but 200."""
    while True:
        status, _, headers = await sent(port, "/v1/logs", body, JSON)
        if status == 200:
            return
        assert (status, headers.get("retry-after")) == (503, "2"), "a sender would drop this for good"


@pytest.mark.req("SDR-12")
def test_a_full_queue_pushes_back_with_503_until_each_record_is_there_once(tmp_path, monkeypatch):
    """A collector drops when its sending queue is full; the agent has no queue but its spool, and says 503."""
    monkeypatch.setattr("veen.products.recorder.adapters.otlp._RECEIPT_SECONDS", 0.2)

    async def story():
        gate = asyncio.Event()
        async with recorder_at(tmp_path) as world:
            spool, stop = spool_of(world, "web", max_bytes=6_000), asyncio.Event()
            adapter = Otlp("otel", "127.0.0.1", 0)
            agent = agent_of(world, spool, adapter, lambda: Gated(InProcess(world.hub.api), gate))
            running = asyncio.create_task(agent.run(stop))
            await adapter.ready.wait()
            # Three: each takes a thread of the pool that the spool uses, too.
            senders = [asyncio.create_task(exported(adapter.port, request(first, 20))) for first in range(0, 60, 20)]
            await eventually(lambda: not spool.has_room(400))
            assert not any(sender.done() for sender in senders)  # no receipt, no 200
            gate.set()
            await asyncio.gather(*senders)
            stop.set()
            await running
            spool.close()
            bodies = sorted(int(payload["body"]) for _, payload in await recorded(world))
            assert bodies == list(range(60))
            assert [kind for kind, _ in await own_events(world) if kind == "recorder.loss"] == []

    run(story())


@pytest.mark.req("SDR-12")
def test_a_hub_that_answers_429_again_and_again_costs_time_and_no_record(tmp_path):
    """Exporters have taken 429 as final and dropped the batch. The agent keeps it, and never answers 429 itself."""

    async def story():
        async with recorder_at(tmp_path) as world:
            role, admin = world.role("web"), world.role(ADMIN)
            for token in role.tokens.all():
                role.tokens.remove(token.auth_ref)
            streams = [STREAM, stream_id_of(OWN_STREAM), stream_id_of(OPENINGS_STREAM)]
            slow = Rate(per_sec=200, burst=10)  # below one batch of the agent
            issuer = admin.keystore.identity.id_sign
            role.tokens.put(issue(issuer, role.keystore.identity.client_id, streams, ttl=3600, rate=slow))
            writer = Writer(tmp_path / "app.log", seed=5)
            while writer.count < 50:  # five times the burst
                writer.write()
            spool = spool_of(world, "web")
            await agent_of(world, spool, TailSource("app", writer.path, follow=False)).run()
            assert spool.counts()["waiting"] == 0
            spool.close()
            assert await numbers(world) == list(range(1, writer.count + 1))

    run(story())
