"""Places for executions: nobody waits behind the queries of one person alone."""

import asyncio

import pytest
from tests.client.hubs import run

from veen.products.queryservice.service import FairSlots


class Queue:
    """Executions that hold their place until they are let go; `begun` is the order in which they got one."""

    def __init__(self, count):
        self.slots, self.begun, self.gates, self.tasks = FairSlots(count), [], {}, {}

    async def add(self, *names):
        """`alice-1` is of alice."""
        for name in names:
            self.gates[name], turn = asyncio.Event(), asyncio.get_running_loop().create_future()
            self.tasks[name] = asyncio.create_task(self._hold(name, turn))
        await self.pause()

    async def _hold(self, name, turn):
        async with self.slots.place(name.partition("-")[0], turn):
            self.begun.append(name)
            await self.gates[name].wait()

    async def end(self, name):
        self.gates[name].set()
        await self.tasks[name]
        await self.pause()

    async def pause(self):
        for _ in range(5):
            await asyncio.sleep(0)


def test_one_place_is_left_to_others():
    async def scenario():
        queue = Queue(3)
        await queue.add("alice-1", "alice-2", "alice-3", "bob-1")
        assert queue.begun == ["alice-1", "alice-2", "bob-1"]
        await queue.end("bob-1")
        assert queue.begun[3:] == []  # alice has all but one
        await queue.end("alice-1")
        assert queue.begun[3:] == ["alice-3"]

    run(scenario())


def test_a_free_place_goes_to_who_has_fewest_and_then_to_who_waits_longest():
    async def scenario():
        queue = Queue(3)
        await queue.add("alice-1", "alice-2", "bob-1", "alice-3", "bob-2", "carol-1", "dora-1")
        assert queue.begun == ["alice-1", "alice-2", "bob-1"]
        await queue.end("alice-1")
        await queue.end("bob-1")
        await queue.end("alice-2")
        assert queue.begun[3:] == ["carol-1", "bob-2", "alice-3"]

    run(scenario())


def test_a_single_place_is_for_anybody():
    async def scenario():
        queue = Queue(1)
        await queue.add("alice-1", "alice-2")
        await queue.end("alice-1")
        assert queue.begun == ["alice-1", "alice-2"]

    run(scenario())


def test_who_goes_away_holds_no_place():
    async def scenario():
        queue = Queue(1)
        await queue.add("alice-1", "bob-1", "carol-1")
        queue.tasks["bob-1"].cancel()
        await queue.end("alice-1")
        assert queue.begun == ["alice-1", "carol-1"]
        queue.tasks["carol-1"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await queue.tasks["carol-1"]
        await queue.add("dora-1")
        assert queue.begun[-1] == "dora-1"

    run(scenario())


def test_who_is_given_a_place_in_the_moment_of_going_away_gives_it_back():
    async def scenario():
        queue = Queue(1)
        await queue.add("alice-1", "bob-1", "carol-1")
        queue.gates["alice-1"].set()
        await asyncio.sleep(0)  # its place is bob's, who has not noticed yet
        assert queue.begun == ["alice-1"]
        queue.tasks["bob-1"].cancel()
        await queue.pause()
        assert queue.begun == ["alice-1", "carol-1"]

    run(scenario())
