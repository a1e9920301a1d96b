"""A clock that goes back and forth: each event is recorded once and in order, and its evidence holds."""

import asyncio
import time
from typing import Any

import pytest
from tests.client.hubs import Clock, run
from tests.products.recorder.agents import lines_source, numbered, numbers, run_agent, spool_of
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.test_evidence import judged
from tests.waiting import eventually

from veen.core.verdict import Outcome
from veen.overlays.recorder.config import Configuration
from veen.products.recorder.roles import record_streams
from veen.products.recorder.setup import heads_of, is_due, read_chain, read_history, select_covered, take

HOUR, DAY = 3600, 86_400


async def take_checkpoint(world, now):
    """As `veen recorder checkpoint --if-due`: the checkpoint, or None."""
    ring = world.role(ADMIN).keystore.secrets.keyring
    streams = record_streams(ring)
    async with world.authority(ADMIN) as authority:
        client = authority.client
        configuration = (await read_history(client, None)).now
        last = (await read_chain(client, None)).last
        events = sum(head.last_seq for head in await heads_of(client, select_covered(streams)))
        if not is_due(last, events, now, configuration):
            return None
        return await take(authority, streams, configuration, last, now=now)


@pytest.mark.parametrize("jumps", [(HOUR, -2 * HOUR, HOUR), (-DAY // 2, DAY // 2, 0)])
def test_an_agent_whose_clock_jumps_records_each_event_once(tmp_path, jumps):
    """The hub's clock is right; that of the agent's machine is set back and forth while it runs."""

    async def story():
        clock = Clock(int(time.time()))
        async with recorder_at(tmp_path) as world:
            for life, jump in enumerate(jumps, start=1):
                spool = spool_of(world, "web")
                options = {"clock": clock, "client_options": {"clock": clock}, "spool": spool}
                running = asyncio.create_task(run_agent(world, [lines_source(numbered(60 * life))], **options))
                await eventually(lambda: spool.counts()["in"] > 60 * (life - 1))  # noqa: B023 - awaited here
                clock.now += jump  # while it runs
                await running
            assert await numbers(world) == list(range(1, 60 * len(jumps) + 1))
            report = await judged(world)
            assert report.verdict.value is not Outcome.BAD, report.to_json()

    run(story())


def test_a_hub_whose_clock_jumps_gives_times_that_never_go_back(tmp_path):
    async def story():
        clock = Clock(int(time.time()))
        async with recorder_at(tmp_path, clock=clock) as world:
            for life, jump in enumerate((HOUR, -HOUR, 2 * HOUR, -HOUR), start=1):
                await run_agent(world, [lines_source(numbered(20 * life))])
                assert await take_checkpoint(world, int(clock.now)) is not None
                clock.now += jump
            assert await numbers(world) == list(range(1, 81))
            report = await judged(world, now=int(clock.now) + DAY)
            assert not [p for s in report.streams for p in s.periods if p.state in ("invalid", "missing")]
            async with world.client(ADMIN) as client:
                times = [entry.ts async for entry in client.read("record/app/web")]
            assert times == sorted(times)

    run(story())


def test_a_token_that_only_a_wrong_clock_calls_expired_is_used_again_when_the_clock_is_right(tmp_path):
    """Ten days ahead every token is over: the records wait on disk, and none is lost."""

    async def story():
        clock = Clock(int(time.time()))
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(5))], clock=clock)
            clock.now += 10 * DAY
            spool = spool_of(world, "web")
            running = asyncio.create_task(run_agent(world, [lines_source(numbered(40))], clock=clock, spool=spool))
            await eventually(lambda: spool.counts()["waiting"] >= 35)
            sent = spool.counts()["sent"]
            clock.now -= 10 * DAY
            await running
            assert sent < 40
            assert await numbers(world) == list(range(1, 41))

    run(story())


@pytest.mark.parametrize(("now", "events", "due"), [
    (1_000 + 299, 20, False),
    (1_000 + 300, 20, True),
    (1_000 + 300, 10, False),  # nothing new
    (999, 20, True),  # the clock went back: the last one lies ahead
    (1_000 - DAY, 20, True),
    (1_000 - DAY, 10, False),
])  # fmt: skip
def test_a_checkpoint_is_due_by_time_also_after_the_clock_went_back(now, events, due):
    class Body:
        ts, events = 1_000, 10

    class Last:
        body = Body

    configuration = Configuration(every_sec=300, every_events=10**9)
    last: Any = Last
    assert is_due(last, events, now, configuration) is due


def test_checkpoints_go_on_after_the_clock_of_the_admin_went_back(tmp_path):
    async def story():
        now = int(time.time())
        async with recorder_at(tmp_path) as world:
            is_taken = []
            for life, moment in enumerate((now + 30 * DAY, now, now + 10, now + DAY), start=1):
                await run_agent(world, [lines_source(numbered(10 * life))])
                is_taken.append(await take_checkpoint(world, moment) is not None)
            assert is_taken == [True, True, False, True]
            report = await judged(world)
            assert report.ok, report.to_json()

    run(story())
