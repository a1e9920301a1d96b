"""The agent: exactly once from source to receipt, with its process ended at every boundary; losses are events."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.client.hubs import Clock, run
from tests.products.recorder.agents import (
    FAST,
    Boundary,
    KilledSpool,
    KilledWire,
    connector,
    lines_source,
    numbered,
    numbers,
    recorded,
    run_agent,
    spool_of,
    until_killed,
)
from tests.products.recorder.recorders import ADMIN, DISCLOSURE, recorder_at
from tests.products.recorder.test_evidence import judged
from tests.waiting import eventually

from veen.client.errors import Unreachable
from veen.client.identity.rotation import RotationBounds
from veen.client.transport.inprocess import InProcess
from veen.core.labels import stream_id_of
from veen.core.objects.profile import PRESETS
from veen.core.verdict import Outcome
from veen.products.recorder.agent import Agent, AgentSource, Pace
from veen.products.recorder.events import OPENINGS_STREAM, OWN_STREAM, SourceRecord
from veen.products.recorder.redaction import Redactor, commitment
from veen.products.recorder.roles import successors
from veen.products.recorder.sink import Sinks

COUNT = 150


async def own_events(world):
    return [(event.event_type, payload) for event, payload in await recorded(world, OWN_STREAM)]


@pytest.mark.req("SDR-01", "SDR-12")
def test_lines_become_events_in_their_order_with_start_and_stop(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(COUNT))])
            assert await numbers(world) == list(range(1, COUNT + 1))
            event, payload = (await recorded(world))[0]
            assert (event.subject_id, event.event_type, event.origin) == ("u", "tick", "test-host")
            assert payload["_src"] == {"adapter": "lines", "id": "stdin", "pos": "1"}
            kinds = await own_events(world)
            assert [kind for kind, _ in kinds] == ["recorder.start", "recorder.stop"]
            assert kinds[0][1]["previous"] == "first"

    run(story())


async def lives(world, at, *, count, pace=FAST):
    """Two lives of an agent, the first of which ends at one boundary. Each event must be there once, in order."""
    boundary, source = Boundary(at), f"source-{at}"
    KilledSpool.boundary = boundary
    spool = spool_of(world, "web", cls=KilledSpool)
    wire = KilledWire(InProcess(world.hub.api), boundary)
    before = len(await recorded(world))
    life = run_agent(world, [lines_source(numbered(count), id=source)], spool=spool, wire=lambda: wire, pace=pace)
    killed = await until_killed(life)
    KilledSpool.boundary = Boundary()
    if killed:
        await run_agent(world, [lines_source(numbered(count), id=source)], pace=pace)
    written = (await recorded(world))[before:]
    assert [(payload["_src"]["id"], payload["n"]) for _, payload in written] == [
        (source, n) for n in range(1, count + 1)
    ], boundary.names
    return killed, boundary


BOUNDARIES = {"read", "spooled", "sealed", "written down", "sending", "committed", "receipted", "landed"}


@pytest.mark.req("SDR-12")
def test_killed_at_each_kind_of_boundary_each_event_is_there_once_and_in_order(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            for name in sorted(BOUNDARIES):
                killed, boundary = await lives(world, name, count=70)
                assert killed, (name, boundary.names)

    run(story())


@pytest.mark.slow
@pytest.mark.req("SDR-12")
def test_killed_at_every_boundary_each_event_is_there_once_and_in_order(tmp_path):
    async def story():
        names, at = set(), 0
        async with recorder_at(tmp_path) as world:
            killed = True
            while killed:
                at += 1
                killed, boundary = await lives(world, at, count=70)
                names.add(boundary.names[-1])
            previous = {payload["previous"] for kind, payload in await own_events(world) if kind == "recorder.start"}
            assert previous >= {"stopped", "killed"}
        return names

    assert run(story()) >= BOUNDARIES


def test_a_hub_that_is_away_costs_nothing_but_time(tmp_path):
    """Sources are read and spooled while nothing answers; what was sealed in vain is sent as it is."""

    async def story():
        gate = asyncio.Event()
        async with recorder_at(tmp_path) as world:
            spool = spool_of(world, "web")
            life = asyncio.create_task(
                run_agent(
                    world, [lines_source(numbered(COUNT))], spool=spool,
                    wire=lambda: Gated(InProcess(world.hub.api), gate),
                )
            )  # fmt: skip
            await eventually(lambda: str(spool.position("stdin")).startswith(f"{COUNT}:"))
            assert spool.counts()["sent"] == 0
            gate.set()
            await life
            assert await numbers(world) == list(range(1, COUNT + 1))

    run(story())


class Slow:
    """A hub that takes its time for every request."""

    def __init__(self, inner, seconds):
        self._inner, self._seconds = inner, seconds

    async def call(self, operation, body, **options):
        if operation in ("v1/submit", "tooling/submit_batch"):
            await asyncio.sleep(self._seconds)
        return await self._inner.call(operation, body, **options)

    async def aclose(self):
        await self._inner.aclose()


def test_an_agent_whose_source_has_ended_waits_as_long_as_the_hub_takes_records(tmp_path):
    """12 flights of 0.25 s are longer than the drain time; each of them is shorter."""

    async def story():
        pace = replace(FAST, drain=2.0)
        async with recorder_at(tmp_path) as world:
            await run_agent(
                world, [lines_source(numbered(12 * 64))], pace=pace, wire=lambda: Slow(InProcess(world.hub.api), 0.25)
            )
            assert await numbers(world) == list(range(1, 12 * 64 + 1))

    run(story())


def test_an_agent_whose_hub_takes_nothing_gives_up_after_the_drain_time(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            spool = spool_of(world, "web")
            await run_agent(
                world, [lines_source(numbered(COUNT))], spool=spool, pace=replace(FAST, drain=0.2),
                wire=lambda: Gated(InProcess(world.hub.api), asyncio.Event()),
            )  # fmt: skip
            assert await numbers(world) == []

    run(story())


class Burst:
    """A source that cannot wait, like UDP."""

    kind, id = "burst", "burst"

    def __init__(self, count):
        self._count, self.taken = count, 0

    async def run(self, sink):
        for n in range(self._count):
            record = SourceRecord(subject="s", event_type="t", origin="o", time=1, payload={"n": n}, position=str(n))
            self.taken += await sink.offer([record])


def test_a_full_spool_holds_back_what_can_wait_and_counts_what_cannot(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            burst = Burst(300)
            gate = asyncio.Event()

            class Late(Agent):
                async def _deliver(self):
                    await gate.wait()
                    await super()._deliver()

            role, spool = world.role("web"), spool_of(world, "web", max_bytes=20_000)
            shared = Sinks(spool, "h")
            sources = [AgentSource(burst, stream_id_of("record/app/web")), lines_source(numbered(COUNT))]
            agent = Late(role.keystore, role.tokens, shared, sources, connector(world), pace=FAST)
            life = asyncio.create_task(agent.run())
            await eventually(lambda: spool.counts()["lost"] > 0)
            await eventually(lambda: not spool.has_room(600))
            gate.set()
            await life
            spool.close()
            events = await recorded(world)
            lines = [payload["n"] for _, payload in events if payload["_src"]["id"] == "stdin"]
            assert lines == list(range(1, COUNT + 1))
            payloads = [payload for _, payload in events if payload["_src"]["id"] == "burst"]
            lost = [payload for kind, payload in await own_events(world) if kind == "recorder.loss"]
            assert len(payloads) == burst.taken < 300
            assert sum(payload["count"] for payload in lost) + len(payloads) == 300
            assert {(payload["source"], payload["reason"]) for payload in lost} == {("burst", "spool full")}

    run(story())


def test_redacted_values_leave_the_event_and_can_be_disclosed(tmp_path):
    async def story():
        data = b'{"event":"login","user":"u","password":"swordfish","note":"card 4111111111111111"}\n'
        async with recorder_at(tmp_path) as world:
            redactor = Redactor.of([".password", r"re:\d{16}"])
            await run_agent(world, [lines_source(data, redactor=redactor)])
            ((_, payload),) = await recorded(world)
            assert "swordfish" not in str(payload)
            assert "4111" not in str(payload)
            async with world.client(DISCLOSURE) as client:
                from veen.overlays.recorder import events as sdr
                from veen.products.recorder.events import payload_json

                bodies = [sdr.RecorderEvent.from_bytes(entry.body) async for entry in client.read(OPENINGS_STREAM)]
                openings = [payload_json(body) for body in bodies]
            by_path = {opening["path"]: opening for opening in openings}
            opened = by_path[".password"]
            assert opened["value"] == "swordfish"
            assert payload["password"] == {"_commit": opened["commit"]}
            salt = bytes.fromhex(opened["salt"])
            assert commitment(salt, "swordfish") == opened["commit"] != commitment(salt, "swordfisH")
            assert set(by_path) == {".password", ".note"}

    run(story())


OFTEN = Pace(
    heartbeat=3600.0, losses=0.05, first_pause=0.01, drain=60.0,
    bounds=RotationBounds(max_msgs_per_client_id_per_label=100),
)  # fmt: skip


@pytest.mark.req("SDR-12")
def test_a_client_key_past_its_bounds_is_replaced_in_the_middle_and_names_its_successor(tmp_path):
    """I3 stays checkable: the old key signs who follows, the new one signs whom it follows."""

    async def story():
        async with recorder_at(tmp_path, gated=False) as world:
            before = world.role("web").keystore.identity.client_id
            await run_agent(world, [lines_source(numbered(400))], pace=OFTEN)
            events = await recorded(world)
            assert [payload["n"] for _, payload in events] == list(range(1, 401))
            keys = list(dict.fromkeys(event.principal_id for event, _ in events))
            assert keys[0] == before
            assert len(keys) > 2
            turns = [(event, payload) for event, payload in await recorded(world, OWN_STREAM)
                     if event.event_type == "recorder.rotate"]  # fmt: skip
            said = {(event.principal_id.hex(), payload["previous"], payload["next"]) for event, payload in turns}
            for old, new in pairwise(keys):
                assert (old.hex(), old.hex(), new.hex()) in said
                assert (new.hex(), old.hex(), new.hex()) in said

    run(story())


@pytest.mark.slow
@pytest.mark.req("SDR-12")
def test_killed_at_every_boundary_of_a_key_change_nothing_is_lost_or_doubled(tmp_path):
    async def story():
        at = 0
        async with recorder_at(tmp_path, gated=False) as world:
            killed = True
            while killed:
                at += 1
                killed, _ = await lives(world, at, count=110, pace=OFTEN)
            assert len({event.principal_id for event, _ in await recorded(world)}) > at // 2

    run(story())


def test_a_hub_that_asks_for_tokens_keeps_the_key_and_the_heartbeat_says_so(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            agent = await run_agent(world, [lines_source(numbered(COUNT))], pace=OFTEN)
            assert agent.rotation_due
            assert len({event.principal_id for event, _ in await recorded(world)}) == 1

    run(story())


@pytest.mark.req("SDR-05", "SDR-12")
def test_tokens_issued_in_advance_let_an_agent_replace_its_key_at_a_hub_that_asks_for_tokens(tmp_path):
    """Until they are used up: then the last key goes on, and heartbeats say so."""

    async def story():
        async with recorder_at(tmp_path, keys_ahead=2) as world:
            first = world.role("web").keystore.identity
            expected = [first.client_id, *successors(first, 2)]
            agent = await run_agent(world, [lines_source(numbered(400))], pace=OFTEN)
            events = await recorded(world)
            assert [payload["n"] for _, payload in events] == list(range(1, 401))
            assert list(dict.fromkeys(event.principal_id for event, _ in events)) == expected
            assert agent.rotation_due
            # The admin issues further ones: the next life of the agent goes on with the next key.
            await world.set_up(keys_ahead=1)
            assert not (await run_agent(world, [lines_source(numbered(480))], pace=OFTEN)).rotation_due
            keys = list(dict.fromkeys(event.principal_id for event, _ in await recorded(world)))
            assert keys == [*expected, world.role("web").keystore.identity.client_id]
            assert (await judged(world)).verdict.value is not Outcome.BAD

    run(story())


def test_issuing_in_advance_again_issues_only_what_is_missing(tmp_path):
    async def story():
        async with recorder_at(tmp_path, keys_ahead=3) as world:
            before = {token.auth_ref for token in world.role("web").tokens.all()}
            assert len(before) == 4
            await world.set_up(keys_ahead=3)
            assert {token.auth_ref for token in world.role("web").tokens.all()} == before
            identity = world.role("web").keystore.identity
            assert len(set(successors(identity, 64))) == 64
            assert set(successors(identity, 3)).isdisjoint(successors(world.role("gate").keystore.identity, 3))

    run(story())


def test_another_process_under_the_same_identity_is_told_to_wait(tmp_path):
    from veen.client.errors import IdentityInUse

    async def story():
        async with recorder_at(tmp_path) as world:
            async with world.client("web"):
                with pytest.raises(IdentityInUse):
                    await run_agent(world, [lines_source(numbered(3))])
            await run_agent(world, [lines_source(numbered(3))])
            assert await numbers(world) == [1, 2, 3]

    run(story())


class Gated:
    """A wire that is cut while `gate` is not set; with `only`, for one operation."""

    def __init__(self, inner, gate, only=None):
        self._inner, self._gate, self._only = inner, gate, only

    async def call(self, operation, body, **options):
        if not self._gate.is_set() and self._only in (None, operation):
            raise Unreachable("nobody listens")
        return await self._inner.call(operation, body, **options)

    async def aclose(self):
        await self._inner.aclose()


def test_messages_that_were_sealed_in_an_epoch_that_has_passed_are_sealed_again(tmp_path):
    """The record waits, not the MSG: an outage longer than an epoch, or a token, costs nothing (decision 120)."""

    async def story():
        clock, gate = Clock(int(time.time())), asyncio.Event()
        profile = {"admission.profiles": "rotating"}
        async with recorder_at(tmp_path, settings=profile, clock=clock) as world:
            spool = spool_of(world, "web")
            life = asyncio.create_task(
                run_agent(
                    world, [lines_source(numbered(COUNT))], spool=spool, clock=clock,
                    wire=lambda: Gated(InProcess(world.hub.api), gate, only="tooling/submit_batch"),
                    client_options={"clock": clock},
                )
            )  # fmt: skip
            await eventually(lambda: spool.counts()["in_flight"] > 1)
            assert spool.counts()["waiting"] > COUNT // 2
            clock.now += 10 * PRESETS["rotating"].epoch_sec
            gate.set()
            await life
            assert await numbers(world) == list(range(1, COUNT + 1))

    run(story())


def test_a_missing_token_is_waited_for_and_a_slow_one_is_obeyed(tmp_path):
    """What a collector gets as 401 and 429: nothing is dropped, nothing comes twice."""
    from veen.client.send.captokens import issue
    from veen.core.objects.captoken import Rate

    async def story():
        async with recorder_at(tmp_path) as world:
            role, admin = world.role("web"), world.role(ADMIN)
            streams = [stream_id_of("record/app/web"), stream_id_of(OWN_STREAM), stream_id_of(OPENINGS_STREAM)]
            for token in role.tokens.all():
                role.tokens.remove(token.auth_ref)
            spool = spool_of(world, "web")
            shared = Sinks(spool, "h")
            agent = Agent(
                role.keystore, role.tokens, shared, [lines_source(numbered(COUNT))], connector(world), pace=FAST
            )
            life = asyncio.create_task(agent.run())
            await eventually(lambda: "no token" in str(agent.trouble))
            slow = Rate(per_sec=100, burst=20)
            token = issue(
                admin.keystore.identity.id_sign, role.keystore.identity.client_id, streams, ttl=3600, rate=slow
            )
            role.tokens.put(token)
            await life
            spool.close()
            assert await numbers(world) == list(range(1, COUNT + 1))

    run(story())


def test_a_record_above_the_limits_of_the_hub_is_put_aside_and_the_rest_goes_on(tmp_path):
    async def story():
        data = numbered(5) + b'{"n":6,"x":"' + b"y" * 20_000 + b'"}\n' + b'{"n":7}\n'
        limits = {"limits.max_body_bytes": "8192"}
        async with recorder_at(tmp_path, settings=limits) as world:
            spool = spool_of(world, "web")
            await run_agent(world, [lines_source(data)], spool=spool)
            assert await numbers(world) == [1, 2, 3, 4, 5, 7]
            lost = [payload for kind, payload in await own_events(world) if kind == "recorder.loss"]
            assert [(payload["reason"], payload["count"]) for payload in lost] == [("refused E.SIZE", 1)]

    run(story())
