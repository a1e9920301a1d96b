"""The law of growth: twice the data costs at most about twice the work. What is counted are operations, never seconds.

Each case runs some work at a size and returns the number of operations that it took. A case that looks at all items for
each item has a factor of four.
"""

import asyncio

import pytest

from tests.hub import builders as w
from tests.products.policy.test_agent import FOLDS, NAMES, revoke, say
from tests.waiting import eventually
from veen.overlays.framework import decode, fold
from veen.products.policy.agent import PolicyAgent
from veen.testing.links import FakeHub

FACTOR = 2.5


def policy_agent(size, monkeypatch):
    """Bodies that the policy agent decodes while it follows a stream and is asked for the policy after every record."""
    count = 0
    decode_once = decode.decode

    def counted(event, schema):
        nonlocal count
        count += 1
        return decode_once(event, schema)

    monkeypatch.setattr(fold, "decode", counted)

    async def scenario():
        source = FakeHub()
        await say(source, revoke(0))
        agent = PolicyAgent(FOLDS, NAMES, {}, clock=lambda: w.NOW)
        following = asyncio.create_task(agent.run(source.link("agent")))
        for number in range(1, size):
            await say(source, revoke(number))
            await asyncio.sleep(0)
            agent.policy()
        await eventually(lambda: len(agent.policy().revocations) == size)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(scenario())
    return count


CASES = [policy_agent]


@pytest.mark.parametrize("work", CASES, ids=lambda work: work.__name__)
def test_twice_the_data_is_at_most_about_twice_the_work(work, monkeypatch):
    with monkeypatch.context() as patched:
        small = work(40, patched)
    with monkeypatch.context() as patched:
        large = work(80, patched)
    assert 0 < large <= FACTOR * small, f"{small} operations, then {large}"
