"""What recording costs in calls to the hub: nothing per record but its place in a batch (SDR-11)."""

from collections import Counter

import pytest
from tests.client.hubs import run
from tests.products.recorder.agents import lines_source, numbered, numbers, run_agent
from tests.products.recorder.recorders import recorder_at

from veen.client.transport.inprocess import InProcess
from veen.products.recorder import agent as agents

SUBMIT = ("v1/submit", "tooling/submit_batch")


class CountingWire:
    """A transport that counts the calls by operation."""

    def __init__(self, inner, calls):
        self._inner, self._calls = inner, calls

    async def call(self, operation, body, **options):
        self._calls[operation] += 1
        return await self._inner.call(operation, body, **options)

    async def aclose(self):
        await self._inner.aclose()


async def calls_for(path, count):
    """The calls of one life of an agent that records so many lines."""
    calls: Counter[str] = Counter()
    async with recorder_at(path) as world:
        wire = lambda: CountingWire(InProcess(world.hub.api), calls)  # noqa: E731 - a transport for each connection
        await run_agent(world, [lines_source(numbered(count))], wire=wire)
        assert await numbers(world) == list(range(1, count + 1))
    return calls


@pytest.mark.req("SDR-11")
def test_recording_more_costs_no_calls_but_submits_and_few_of_them(tmp_path, monkeypatch):
    """An agent opens a session, shows its tokens, and submits. More records are more batches, nothing else."""
    monkeypatch.setattr(agents, "_BATCH", 50)

    async def story():
        few, many = await calls_for(tmp_path / "few", 1), await calls_for(tmp_path / "many", 1000)
        assert {name for name, count in many.items() if count > few[name]} <= set(SUBMIT)
        submits = sum(many[name] for name in SUBMIT) - sum(few[name] for name in SUBMIT)
        # 1,000 records are 20 full batches; the source fills the spool while batches leave it, so some are smaller
        assert submits <= 1000 // 50 * 3
        assert not [name for name in many if "checkpoint" in name], "checkpoints are taken beside the agent"

    run(story())
