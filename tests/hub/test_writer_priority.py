"""Most of the thread for those who write."""

import asyncio

import pytest

from veen.hub.sequencer.writer_priority import WriterPriority


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_nobody_waits_while_nobody_writes(clock):
    priority = WriterPriority(clock)
    priority.charge(0.2)
    assert priority.delay() == 0


def test_work_waits_twice_as_long_as_it_took_while_somebody_writes(clock):
    priority = WriterPriority(clock)
    priority.note_write()
    priority.charge(0.01)
    priority.charge(0.02)
    assert priority.delay() == pytest.approx(0.06)
    clock.now += 0.07
    assert priority.delay() == 0


def test_a_delay_is_never_shorter_than_a_timer_can_be(clock):
    """A timer for less fires at once: the hub would look at the clock, set it again, and do nothing else."""
    priority = WriterPriority(clock)
    priority.note_write()
    priority.charge(0.01)
    clock.now += 0.01999
    assert priority.delay() == pytest.approx(0.001)
    clock.now += 0.0001
    assert priority.delay() == 0


def test_one_long_piece_does_not_shut_the_lane(clock):
    priority = WriterPriority(clock)
    priority.note_write()
    priority.charge(60.0)
    assert priority.delay() <= 0.25


def test_pieces_are_charged_and_waiting_is_not(clock):
    charged = []

    class Noted(WriterPriority):
        def charge(self, seconds):
            charged.append(seconds)

    priority = Noted(clock)

    async def work():
        clock.now += 0.01
        await asyncio.sleep(0)
        clock.now += 0.02
        return "done"

    async def scenario():
        async def meanwhile():
            clock.now += 5.0

        other = asyncio.create_task(meanwhile())
        result = await priority.charge_for(work())
        await other
        return result

    assert asyncio.run(scenario()) == "done"
    assert charged == pytest.approx([0.01, 0.02])


def test_a_cancelled_operation_can_clean_up(clock):
    priority, cleaned = WriterPriority(clock), []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    async def operation():
        await priority.charge_for(work())

    async def scenario():
        task = asyncio.create_task(operation())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert cleaned


def test_those_who_rest_go_on_in_their_order():
    priority, order = WriterPriority(), []
    priority.note_write()
    priority.charge(0.05)

    async def work(number):
        await priority.wait()
        order.append(number)

    async def scenario():
        await asyncio.gather(*(work(number) for number in range(5)))

    asyncio.run(scenario())
    assert order == [0, 1, 2, 3, 4]
