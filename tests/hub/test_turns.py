"""While somebody writes, clients that cause other work wait for their turn; those whose messages are accepted never do.

A clock of our own stands still unless a test moves it, so how fast this machine is decides nothing.
"""

import asyncio
import math
import time
from contextlib import contextmanager
from functools import partial

import pytest
from tests.hub import builders as w
from tests.hub.servers import LiveHub, post
from tests.hub.test_knownheads import record_feeds
from tests.hub.test_overload import RARELY, Transport, statuses
from tests.waiting import eventually

from veen.core.objects.envelopes import StreamItem, StreamRequest, SubmitRequest
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.hub.api import pages
from veen.hub.api.reply import dump_json
from veen.hub.http.connection import Connection
from veen.hub.http.server import _TURN, Listener
from veen.io.shares import ConnectionSlot, ConnectionSlots, Shares
from veen.storage.frame import encode

STEP = 2**-10  # seconds; sums of it are exact


class SteppingClock:
    """Goes on by `step` seconds each time it is asked."""

    def __init__(self, step):
        self.now, self.step = math.ceil(time.perf_counter()) + 60.0, step  # later than all that the hub has noted

    def __call__(self):
        self.now += self.step
        return self.now


def attacked(hub, step=0.0):
    """As if a message had been accepted just now, and other work had taken long; by a clock that goes on by `step`."""
    priority = hub.server.priority
    priority.clock = SteppingClock(step)
    priority.note_write()
    priority.charge(60.0)
    return priority


@contextmanager
def connected(hub):
    transport = Transport()
    connection = Connection(hub.server)
    connection.connection_made(transport)
    try:
        yield transport, connection
    finally:
        connection.connection_lost(None)


def answered(transport, count):
    return statuses(transport) == [200] * count


def message(seq, size):
    sizes = (20).to_bytes(4, "big") + size.to_bytes(4, "big")
    return w.msg(token=w.FREE_TOKEN, seq=seq, ciphertext=bytes(32) + sizes + b"h" * 20 + b"\xfe" * size)


def submit(seq, size=24):
    return post("/v1/submit", SubmitRequest(msg=message(seq, size)).to_bytes())


@pytest.mark.parametrize("cuts", ["head", "bytes"])
def test_a_writer_whose_request_comes_in_parts_does_not_wait(tmp_path, cuts):
    """Most clients send head and body apart. The hub took such a body for work without a message (once 20 ms each)."""
    with LiveHub(tmp_path, settings=RARELY, workers=1) as hub:

        async def scenario():
            priority = attacked(hub, step=1e-6)
            with connected(hub) as (transport, connection):
                for seq in range(1, 4):
                    data = submit(seq)
                    head = data.index(b"\r\n\r\n") + 4
                    for part in (
                        (data[:head], data[head:]) if cuts == "head" else [data[i : i + 1] for i in range(len(data))]
                    ):
                        connection.data_received(part)
                        assert priority.delay()
                        assert transport.reading
                        assert not hub.server._delayed
                    await eventually(partial(answered, transport, seq))

        hub.run(scenario(), timeout=20)


def test_a_writer_of_large_messages_does_not_wait(tmp_path):
    with LiveHub(tmp_path, settings=RARELY, workers=1) as hub:

        async def scenario():
            attacked(hub, step=20e-6)  # for each piece of 4 KiB: 5 ms in all
            with connected(hub) as (transport, connection):
                data = submit(1, 1_000_000)
                for start in range(0, len(data), 65_536):
                    connection.data_received(data[start : start + 65_536])
                    assert transport.reading
                await eventually(lambda: statuses(transport) == [200])

        hub.run(scenario(), timeout=20)


def test_a_client_that_sends_tiny_chunks_waits_for_its_turn(tmp_path):
    with LiveHub(tmp_path, settings=RARELY) as hub:

        async def scenario():
            priority = attacked(hub, step=100e-6)
            with connected(hub) as (transport, connection):
                connection.data_received(b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
                assert transport.reading
                connection.data_received(b"2\r\nxx\r\n" * 8192)
                assert not transport.reading
                assert connection in hub.server._delayed
                left = len(connection._unparsed)
                assert left > 40_000  # a few hundred chunks were parsed, not thousands
                priority.clock.now += 1.0
                await eventually(lambda: len(connection._unparsed) < left)

        hub.run(scenario(), timeout=20)


def charges(hub):
    """What is charged to those who do not write, by a clock that goes on by `STEP` each time it is asked."""
    amounts: list[float] = []
    priority = hub.server.priority
    priority.clock = SteppingClock(STEP)
    priority.charge = amounts.append
    return amounts


def test_connecting_is_charged_to_those_who_do_not_write(tmp_path):
    with LiveHub(tmp_path, settings=RARELY) as hub:

        async def scenario():
            amounts = charges(hub)
            with connected(hub):
                assert sum(amounts) >= 3 * STEP

        hub.run(scenario(), timeout=20)


def test_sending_a_page_is_charged_to_those_who_do_not_write(tmp_path):
    with LiveHub(tmp_path, settings=RARELY) as hub:

        async def scenario():
            await hub.services.sequencer.submit(w.msg(token=w.FREE_TOKEN, seq=1).to_bytes())
            with connected(hub) as (transport, connection):
                amounts = charges(hub)
                write = transport.write

                def slow_write(data):
                    hub.server.priority.clock.now += 5.0
                    write(data)

                transport.write = slow_write
                read = StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True)
                connection.data_received(post("/v1/stream", read.to_bytes()))
                await eventually(lambda: statuses(transport) == [200])
                assert sum(amounts) >= 5.0

        hub.run(scenario(), timeout=20)


def test_a_listener_pauses_between_its_turns_while_others_write():
    """Whoever connects in floods takes no more of the thread than others who do not write."""

    async def scenario():
        slots, accepted, asked = ConnectionSlots(Shares(1000)), [], []

        def enter(peer):
            slot = slots.enter("127.0.0.1")
            accepted.append(slot)
            return slot

        def delay():
            asked.append(len(accepted))
            return 0.001

        def make(slot: ConnectionSlot):
            return asyncio.Protocol()

        listener = Listener(make, enter, 10.0, None, delay)
        host, port = await listener.open("127.0.0.1", 0, 128)
        clients = [await asyncio.open_connection(host, port) for _ in range(5 * _TURN)]
        await eventually(lambda: len(asked) == 5)
        assert asked == [_TURN, 2 * _TURN, 3 * _TURN, 4 * _TURN, 5 * _TURN]
        for _, writer in clients:
            writer.close()
        await listener.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("size", [0, 1, pages._LONG - 500, pages._LONG, 100_000])
@pytest.mark.parametrize("with_receipt", [True, False])
def test_an_item_with_a_long_ciphertext_is_the_same_json(tmp_path, size, with_receipt):
    with LiveHub(tmp_path) as hub:
        raw = message(1, size).to_bytes()
        receipt = hub.run(_submitted(hub, raw))
    item = StreamItem(
        stream_seq=1, msg=Msg.from_bytes(raw), receipt=Receipt.from_bytes(receipt) if with_receipt else None
    )
    frame = encode(w.LABEL, 1, raw, receipt)
    assert pages.encode_item(frame, "json", with_receipt=with_receipt) == dump_json(item.to_json())


async def _submitted(hub, raw):
    return await hub.services.sequencer.submit(raw)


def test_a_large_body_is_parsed_in_few_pieces(tmp_path, monkeypatch):
    """Each piece costs microseconds on the thread that orders messages."""
    fed = record_feeds(monkeypatch)
    with LiveHub(tmp_path, settings=RARELY, workers=1) as hub:

        async def scenario():
            with connected(hub) as (transport, connection):
                data = submit(1, 1_000_000) + submit(2)
                head = data.index(b"\r\n\r\n") + 4
                connection.data_received(data[:head])
                for start in range(head, len(data), 262_144):
                    connection.data_received(data[start : start + 262_144])
                await eventually(partial(answered, transport, 2))
                assert b"".join(fed) == data
                assert max(map(len, fed)) <= 65_536
                assert len(fed) <= len(data) // 65_536 + 8

        hub.run(scenario(), timeout=20)
