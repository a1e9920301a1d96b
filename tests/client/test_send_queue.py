"""Many tasks send to one stream at a time: fewer round trips, and for each of them the same as alone."""

import asyncio

from tests.client.hubs import IMPATIENT, bodies, connected, run
from tests.waiting import eventually

from veen.client.errors import Unreachable
from veen.client.send.writing import Sent
from veen.core.errors import LimitError
from veen.testing.hostile import LosesAnswers


def requests(wire):
    return [operation for operation, _ in wire.calls if "submit" in operation]


def test_a_hundred_senders_wait_for_a_few_round_trips_and_each_gets_its_own_receipt(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            texts = [b"message %d" % number for number in range(100)]
            sents = await asyncio.gather(*(client.send("orders", text) for text in texts))
            assert [sent.receipt.stream_seq for sent in sents] == list(range(1, 101))
            assert await bodies(client) == texts
            assert requests(wire) == ["v1/submit", "tooling/submit_batch", "tooling/submit_batch"]
            await client.send("orders", b"alone")
            assert requests(wire)[3:] == ["v1/submit"]

    run(check())


def test_lost_answers_double_nothing_for_any_of_them(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            wire.lies.append(LosesAnswers(1, "tooling/submit_batch"))
            texts = [b"message %d" % number for number in range(30)]
            sents = await asyncio.gather(*(client.send("orders", text) for text in texts))
            assert sorted(sent.seq for sent in sents) == list(range(1, 31))
            assert await bodies(client) == texts

    run(check())


def test_a_message_that_is_too_large_concerns_its_sender_alone(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            texts = [b"first", b"second", bytes(8_000_000), b"fourth"]
            outcomes = await asyncio.gather(*(client.send("orders", text) for text in texts), return_exceptions=True)
            assert isinstance(outcomes[2], LimitError)
            assert [type(outcome) for outcome in outcomes].count(Sent) == 3
            assert await bodies(client) == [b"first", b"second", b"fourth"]

    run(check())


def test_a_hub_that_is_away_is_told_to_everyone_and_what_was_sealed_is_sent_later_once(tmp_path):
    async def check():
        async with connected(tmp_path, retry=IMPATIENT) as (_, wire, client):
            await client.send("orders", b"before")
            wire.lies.append(LosesAnswers(10**6, "tooling/submit_batch"))
            texts = [b"message %d" % number for number in range(10)]
            outcomes = await asyncio.gather(*(client.send("orders", text) for text in texts), return_exceptions=True)
            assert isinstance(outcomes[0], Sent)
            assert all(isinstance(outcome, Unreachable) for outcome in outcomes[1:])
            wire.lies.clear()
            await client.send("orders", b"after")
            assert sorted(await bodies(client)) == sorted([b"before", *texts, b"after"])

    run(check())


def test_a_sender_that_gives_up_while_it_waits_sends_nothing(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            tasks = [asyncio.create_task(client.send("orders", b"message %d" % number)) for number in range(5)]
            await asyncio.sleep(0)
            tasks[3].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(outcomes[3], asyncio.CancelledError)
            assert len(await bodies(client)) == 4

    run(check())


def test_a_client_that_closes_waits_for_what_is_on_its_way(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            tasks = [asyncio.create_task(client.send("orders", b"%d" % number)) for number in range(20)]
            await eventually(lambda: "tooling/submit_batch" in requests(wire))
            await client.aclose()
            assert all(isinstance(sent, Sent) for sent in await asyncio.gather(*tasks))

    run(check())
