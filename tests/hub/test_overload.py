"""More than the hub can take: who is turned away costs little, and who was let in is served (D-58)."""

import pytest
from tests.hub import builders as w
from tests.hub.servers import LiveHub, post, split_answers
from tests.hub.test_knownheads import FakeTransport
from tests.waiting import eventually

from veen.core.objects.envelopes import ErrorEnvelope, SubmitRequest
from veen.hub.http.connection import Connection
from veen.hub.http.server import HttpSettings

QUEUE = 8
TICKING = HttpSettings(header_sec=0.4)  # a tick each tenth of a second
RARELY = HttpSettings(header_sec=600.0)


class Transport(FakeTransport):
    """Remembers whether it is read."""

    reading = True

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True


def submit(seq, *headers):
    return post("/v1/submit", SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=seq)).to_bytes(), *headers)


def statuses(transport):
    return [status for status, _, _ in split_answers(transport.written)]


def flood(hub, count, *headers):
    """`count` submits that arrive at once on a connection of their own."""
    transport = Transport()
    connection = Connection(hub.server)
    connection.connection_made(transport)
    for seq in range(1, count + 1):
        connection.data_received(submit(seq, *headers))
    return transport, connection


def test_who_was_turned_away_waits_in_the_socket_until_there_is_room(tmp_path):
    """Without a tick: the group that made room lets them in again."""
    with LiveHub(tmp_path, max_queue=QUEUE, settings=RARELY, workers=1) as hub:

        async def scenario():
            transport, connection = flood(hub, QUEUE)
            assert transport.reading
            connection.data_received(submit(QUEUE + 1))
            assert not transport.reading
            assert not transport.written  # its own answers come first
            await eventually(lambda: transport.reading)
            assert statuses(transport) == [200] * QUEUE + [503]
            connection.data_received(submit(QUEUE + 1))
            await eventually(lambda: len(statuses(transport)) == QUEUE + 2)
            assert statuses(transport)[-1] == 200
            connection.connection_lost(None)

        hub.run(scenario())


def full(hub, depth):
    """As if so many messages were on their way."""
    hub.services.sequencer.depth = depth


def test_nobody_waits_longer_than_a_tick(tmp_path):
    """Room may come without a group: what was on its way may have failed."""
    with LiveHub(tmp_path, max_queue=QUEUE, settings=TICKING) as hub:

        async def scenario():
            full(hub, QUEUE)
            transport, connection = flood(hub, 1)
            assert (statuses(transport), transport.reading) == ([503], False)
            full(hub, 0)
            await eventually(lambda: transport.reading)
            connection.data_received(submit(1))
            await eventually(lambda: len(statuses(transport)) == 2)
            assert (statuses(transport), transport.reading) == ([503, 200], True)
            connection.connection_lost(None)

        hub.run(scenario())


def test_others_are_heard_meanwhile(tmp_path):
    with LiveHub(tmp_path, max_queue=QUEUE, settings=RARELY, workers=1) as hub:

        async def scenario():
            _, connection = flood(hub, QUEUE + 1)
            other = Transport()
            second = Connection(hub.server)
            second.connection_made(other)
            second.data_received(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            await eventually(lambda: statuses(other) == [200])
            assert other.reading
            for client in (connection, second):
                client.connection_lost(None)
            assert not hub.server._on_hold
            await eventually(lambda: hub.services.sequencer.depth == 0)

        hub.run(scenario())


def test_a_hub_that_admits_nothing_goes_on_listening(tmp_path):
    """A full disk is no want of room: whoever was refused may want to read."""
    with LiveHub(tmp_path, settings=RARELY) as hub:

        async def scenario():
            hub.services.not_admitting = "the disk is full"
            transport, connection = flood(hub, 1)
            assert (statuses(transport), transport.reading) == ([503], True)
            connection.connection_lost(None)

        hub.run(scenario())


@pytest.mark.parametrize("headers", [("Connection: close",), ()])
def test_a_client_that_leaves_is_not_held(tmp_path, headers):
    with LiveHub(tmp_path, max_queue=QUEUE, settings=RARELY) as hub:

        async def scenario():
            full(hub, QUEUE)
            transport, connection = flood(hub, 1, *headers)
            full(hub, 0)
            assert statuses(transport) == [503]
            assert (connection in hub.server._on_hold) == (not headers)
            connection.connection_lost(None)
            assert not hub.server._on_hold

        hub.run(scenario())


def test_the_answer_is_made_once_for_each_reason(tmp_path):
    with LiveHub(tmp_path, max_queue=0) as hub:
        ((status, headers, first),) = split_answers(hub.raw(submit(1), expect=1))
        assert (status, headers["retry-after"]) == (503, "1")
        assert split_answers(hub.raw(submit(2), expect=1))[0][2] == first
        assert ErrorEnvelope.from_bytes(first).request_id is None
        hub.services.not_admitting = "the disk is full"
        ((_, _, other),) = split_answers(hub.raw(submit(3), expect=1))
        assert ErrorEnvelope.from_bytes(other).message == "the disk is full"
        hub.services.not_admitting = None
        assert split_answers(hub.raw(submit(4), expect=1))[0][2] == first
