"""The bar of keys that rotate by themselves: a gated hub, days of simulated time, all writers (KEX1-02, D-179)."""

import json
import time

import pytest
from tests.client.hubs import QUICK, Clock, pin_of, run
from tests.products.recorder.agents import FAST, lines_source, run_agent
from tests.products.recorder.recorders import ADMIN, DISCLOSURE, recorder_at

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.rotation import KeystoreKeys
from veen.client.identity.workers import SlotKeys, take_slot
from veen.client.send.captokens import TokenStore
from veen.client.send.sealing import Draft
from veen.client.state import StateStore
from veen.client.transport.inprocess import InProcess
from veen.core.objects.captoken import CapToken
from veen.core.objects.speaking import SPEAKS_SCHEMA
from veen.lake.log.options import HubAddress, WriteOptions
from veen.lake.spark.writing import RowSender, WritePlan
from veen.overlays.framework.schema import Issue
from veen.overlays.recorder import events as sdr
from veen.products.recorder.events import payload_json
from veen.products.recorder.roles import equip

SHARED = "shared/orders"
SETTINGS = {"admission.kex1_plus": "true", "admission.max_msgs_per_client_id_per_label": "200"}


class Refusals:
    """Count the refusals of the hub that reach a client."""

    def __init__(self, api):
        self.inner, self.seen = InProcess(api), []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def call(self, operation, body=b"", **options):
        answer = await self.inner.call(operation, body, **options)
        if not answer.ok:
            self.seen.append((operation, answer.body))
        return answer


class Days:
    """One identity that writes by several ways to one stream, and a recorder beside it."""

    def __init__(self, world, clock, wire):
        self.world, self.clock, self.wire, self.sent = world, clock, wire, []
        self.keys = StreamKeys.create(SHARED)
        role = world.role("gate")
        with role.lock():
            from dataclasses import replace

            secrets = role.keystore.secrets
            role.keystore.save(replace(secrets, keyring=secrets.keyring.with_keys(self.keys)))
        issuer = world.role(ADMIN).keystore.identity.id_sign
        token = CapToken.issue(issuer, role.keystore.identity.id_sign_pk, [self.keys.stream_id], ttl=40 * 86_400)
        role.tokens.put(token)

    def client(self, identity, state, holder):
        role = self.world.role("gate")
        ring, more = role.keystore.secrets.keyring, {"retry": QUICK, "clock": self.clock}
        tokens = TokenStore(self.world.home.tokens_fs("gate"))
        return Client(self.wire, pin_of(self.world.hub), identity, ring, state, holder=holder, tokens=tokens, **more)

    async def write(self, client, kind, count=1):
        bodies = [f"{kind} {len(self.sent) + number}".encode() for number in range(count)]
        self.sent += bodies
        outcomes = await client.send_many(SHARED, bodies, capability=await client.token(self.keys.stream_id))
        assert [type(outcome).__name__ for outcome in outcomes] == ["Sent"] * count

    async def command(self):
        keystore = self.world.role("gate").keystore
        with StateStore.open(self.world.home, "gate") as state:
            async with self.client(keystore.identity, state, KeystoreKeys(keystore)) as client:
                await client.open()
                await self.write(client, "command")

    async def spark(self, day, *, pause=100, attempts=2):
        identity = self.world.role("gate").keystore.identity
        options = WriteOptions(
            hub=HubAddress(url="http://unused"),
            stream=SHARED,
            identity=str(self.world.home.identity_dir("gate")),
        )
        plan = WritePlan(options=options, write_id=f"day-{day}", epoch=0)
        with StateStore.open(self.world.home, "spark") as state:
            client = self.client(identity, state, None)
            await client.open()
            for attempt in range(attempts):  # Spark runs tasks again
                sender = RowSender(client.session, plan, identity, self.keys, 0, state)
                for part in range(2):
                    bodies = [f"spark {day} {part} {row}".encode() for row in range(3)]
                    rows = [(3 * part + row, Draft(body=body)) for row, body in enumerate(bodies)]
                    assert len(await sender.send(rows)) == 3
                    if not attempt:
                        self.sent += bodies
                        self.clock.now += pause


async def lived(tmp_path, days):
    clock = Clock(int(time.time()))
    async with recorder_at(tmp_path, settings=SETTINGS, clock=clock) as world:
        producers = {"web": (world.role("web"), ["record/app/web"])}
        hub_id = world.hub.identity.hub_id
        equip(
            world.role(ADMIN),
            producers,
            world.role(DISCLOSURE),
            ttl=40 * 86_400,
            hub_id=hub_id,
            now=int(clock()),
            derived=True,
        )
        for token in world.role("web").tokens.all():
            if token.token.subject_pk == world.role("web").keystore.identity.client_id:
                world.role("web").tokens.remove(token.auth_ref)
        wire = Refusals(world.hub.api)
        life = Days(world, clock, wire)
        role = world.role("gate")
        slot = next(take_slot(world.home, role.keystore.identity, int(clock())))
        with StateStore.open(slot.home, "gate") as state:
            async with life.client(slot.identity, state, SlotKeys(slot)) as worker:  # all the time
                await worker.open()
                records = 0
                for day in range(days):
                    for _ in range(6):
                        await life.command()
                        await life.write(worker, "worker", 25)
                        clock.now += 4 * 3_600
                    await life.spark(day)
                    lines = b"".join(
                        json.dumps({"n": records + n, "user": "u", "event": "tick"}).encode() + b"\n"
                        for n in range(1, 6)
                    )
                    records += 5
                    agent = await run_agent(
                        world,
                        [lines_source(lines, id=f"day-{day}")],
                        wire=lambda: wire,
                        pace=FAST,
                        client_options={
                            "clock": clock,
                            "tokens": TokenStore(world.home.tokens_fs("web")),
                        },
                        clock=clock,
                    )
                    assert not agent.rotation_due
                entries = [entry async for entry in worker.read(SHARED)]
        bodies = [entry.body for entry in entries if entry.event.hdr.schema != SPEAKS_SCHEMA]
        assert sorted(bodies) == sorted(life.sent)  # none lost, none doubled
        assert await numbers(world) == list(range(1, records + 1))
        refused = [body for operation, body in wire.seen if "submit" in operation]
        assert refused == []
        return {entry.msg.client_id for entry in entries}


async def numbers(world):
    """The numbers of the records of the recorder, in the order of the log."""
    async with world.client(ADMIN) as client:
        events = [entry.event async for entry in client.read("record/app/web")]
    typed = [sdr.read(event) for event in events if event.hdr.schema != SPEAKS_SCHEMA]
    bodies = [event.body for event in typed if not isinstance(event, Issue)]
    assert len(bodies) == len(typed)
    return [payload_json(body)["n"] for body in bodies]


@pytest.mark.req("KEX1-02")
def test_three_days_of_commands_a_worker_a_recorder_and_a_spark_writer(tmp_path):
    assert len(run(lived(tmp_path, 3))) >= 3 + 3 + 3


@pytest.mark.slow
@pytest.mark.req("KEX1-02")
def test_twenty_days_of_commands_a_worker_a_recorder_and_a_spark_writer(tmp_path):
    assert len(run(lived(tmp_path, 20))) >= 20 + 20 + 20


@pytest.mark.req("KEX1-02")
def test_a_spark_task_that_runs_for_more_than_a_day_goes_on_with_another_key(tmp_path):
    """The refusal decides, not the clock of an attempt: so every attempt goes on from the same row."""

    async def check():
        clock = Clock(int(time.time()))
        async with recorder_at(tmp_path, settings=SETTINGS, clock=clock) as world:
            wire = Refusals(world.hub.api)
            life = Days(world, clock, wire)
            await life.spark(0, pause=86_500, attempts=3)
            keystore = world.role("gate").keystore
            with StateStore.open(world.home, "gate") as state:
                async with life.client(keystore.identity, state, None) as client:
                    await client.open()
                    entries = [entry async for entry in client.read(SHARED)]
            assert [entry.body for entry in entries] == life.sent
            assert len({entry.msg.client_id for entry in entries}) == 2

    run(check())
