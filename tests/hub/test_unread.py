"""Clients that do not read, and bodies in tiny pieces: what a hub holds for them is bounded."""

import asyncio
import contextlib
import http.client
import socket
import tracemalloc

import pytest
from tests.hub import builders as w
from tests.hub.servers import LiveHub, post, split_answers
from tests.hub.test_knownheads import FakeTransport
from tests.waiting import eventually

from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.envelopes import StreamRequest, SubmitRequest
from veen.hub.http.connection import Connection
from veen.hub.http.request_input import Reader
from veen.hub.http.server import HttpSettings

PAGE = post("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True).to_bytes())
BIG = bytes(36) + (500_000).to_bytes(4, "big") + bytes(500_000)


class SlowTransport(FakeTransport):
    """Takes what is written and tells the connection to stop, as a socket does whose client does not read."""

    def __init__(self):
        super().__init__()
        self.connection: Connection | None = None
        self.reading = True

    def write(self, data):
        super().write(data)
        if len(data) > 1 << 16 and self.connection is not None:
            self.connection.pause_writing()

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def get_extra_info(self, name, default=None):
        return ("192.0.2.1", 1) if name == "peername" else None


@contextlib.contextmanager
def hub_with_a_page(directory, **settings):
    with LiveHub(directory, settings=HttpSettings(**settings)) as hub:
        for seq in (1, 2):
            body = SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=seq, ciphertext=BIG)).to_bytes()
            assert hub.request("POST", "/v1/submit", body)[0] == 200
        yield hub


def connect(hub):
    transport = SlowTransport()
    connection = transport.connection = Connection(hub.server)
    connection.connection_made(transport)
    return transport, connection


def statuses(transport):
    return [status for status, _, _ in split_answers(transport.written)]


def test_the_next_answer_is_made_when_the_one_before_is_read(tmp_path):
    """64 pipelined reads took 64 pages of memory although nobody read the first."""
    with hub_with_a_page(tmp_path) as hub:

        async def scenario():
            transport, connection = connect(hub)
            connection.data_received(PAGE * 64)
            await eventually(lambda: len(statuses(transport)) == 1)
            for _ in range(100):
                await asyncio.sleep(0)
            assert statuses(transport) == [200]
            assert not transport.reading
            assert 1_000_000 < hub.server.answers.in_use < 1_100_000
            connection.resume_writing()
            await eventually(lambda: len(statuses(transport)) == 2)
            assert hub.server.answers.in_use < 1_100_000
            connection.connection_lost(None)
            assert hub.server.answers.in_use == 0

        hub.run(scenario())


def test_unread_answers_of_all_connections_are_bounded(tmp_path):
    """Who would exceed it gets 503 and may come again; a receipt is never withheld."""
    with hub_with_a_page(tmp_path, max_answer_bytes=2_500_000) as hub:

        async def scenario():
            slow = [connect(hub) for _ in range(3)]
            for _, connection in slow:
                connection.data_received(PAGE)
            await eventually(lambda: all(statuses(transport) for transport, _ in slow))
            answers = [split_answers(transport.written)[0] for transport, _ in slow]
            assert sorted(status for status, _, _ in answers) == [200, 200, 503]
            assert all(headers["retry-after"] == "1" for status, headers, _ in answers if status == 503)
            assert hub.server.answers.in_use <= 2_500_000
            transport, writer = connect(hub)
            body = SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=3)).to_bytes()
            writer.data_received(post("/v1/submit", body))
            await eventually(lambda: statuses(transport) == [200])
            for _, connection in slow:
                connection.connection_lost(None)
            assert hub.server.answers.in_use == 0
            transport, reader = connect(hub)
            reader.data_received(PAGE)
            await eventually(lambda: statuses(transport) == [200])
            for connection in (writer, reader):
                connection.connection_lost(None)

        hub.run(scenario(), timeout=60)


def test_of_a_run_of_requests_no_more_are_parsed_than_may_be_due(tmp_path):
    """A request of 28 bytes is an object of a kilobyte; a quarter of a megabyte of them waits as bytes."""
    with hub_with_a_page(tmp_path) as hub:

        async def scenario():
            transport, connection = connect(hub)
            connection.data_received(PAGE + b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" * 8000)
            assert connection._due() < 300
            assert len(connection._unparsed) > 200_000
            assert hub.server.bodies.in_use == len(connection._unparsed)
            assert not transport.reading
            await eventually(lambda: statuses(transport)[:1] == [200])
            connection.resume_writing()
            await eventually(lambda: transport.written.count(b"HTTP/1.1 ") == 8001)
            assert statuses(transport) == [200] + [404] * 8000
            assert (hub.server.bodies.in_use, transport.reading) == (0, True)
            connection.connection_lost(None)

        hub.run(scenario())


class Sink:
    """Who gets the requests, in a test of the reader alone."""

    def __init__(self, limits):
        self.requests, self._limits = [], limits

    def take(self, request):
        self.requests.append(request)

    def reject(self, error, request):
        raise AssertionError(error)

    def begin_body(self, *, wants_continue): ...
    def begin_message(self): ...
    def screen(self, request): ...
    def reserve(self, size):
        return True

    def limits(self):
        return self._limits


def test_a_body_in_tiny_chunks_takes_about_its_own_size():
    """A list of two-byte objects took 28 bytes for each byte."""
    sink = Sink(DEFAULT_LIMITS)
    reader = Reader(sink)
    size = 400_000
    reader.feed(b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece = b"2\r\nxy\r\n" * 1000
    tracemalloc.start()
    try:
        for _ in range(size // 2000):
            reader.feed(piece)
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory < 2 * size
    reader.feed(b"0\r\n\r\n")
    assert sink.requests[0].body == b"xy" * (size // 2)


def test_one_address_does_not_get_all_connections(tmp_path):
    with LiveHub(tmp_path, settings=HttpSettings(max_connections=8, address_percent=50)) as hub:
        with contextlib.ExitStack() as stack:

            def connect_from(source):
                connection = stack.enter_context(socket.socket())
                connection.settimeout(20)
                connection.bind((source, 0))
                connection.connect((hub.host, hub.port))
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                return connection.recv(1 << 16).split(b"\r\n")[0]

            many = [connect_from("127.0.0.2") for _ in range(6)]
            assert [line[9:12] for line in many] == [b"200"] * 4 + [b"503"] * 2
            assert connect_from("127.0.0.3")[9:12] == b"200"
        assert http_status(hub) == 200


def http_status(hub):
    connection = http.client.HTTPConnection(hub.host, hub.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        return connection.getresponse().status


def test_empty_lines_buy_no_time(tmp_path):
    """They begin no request, so they do not count as one that arrives, nor as a sign of life."""
    quick = HttpSettings(header_sec=0.4, keep_alive_sec=0.8)
    with (
        LiveHub(tmp_path, settings=quick) as hub,
        socket.create_connection((hub.host, hub.port), timeout=0.05) as client,
    ):
        for _ in range(1000):
            try:
                client.sendall(b"\r\n")
                if client.recv(1) == b"":
                    return
            except TimeoutError:
                pass
            except ConnectionError:
                return
        pytest.fail("still there")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nAuthorization: Bearer y\r\n", 400),
        (b"POST /v1/submit HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"GET /healthz\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: a\r\n", 400),
    ],
)
def test_what_two_parsers_may_read_differently_ends_the_connection(tmp_path, head, status):
    with LiveHub(tmp_path) as hub:
        answers = split_answers(hub.raw(head + b"\r\n" + b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"))
        assert len(answers) == 1
        assert answers[0][0] in (status, 505)
        assert answers[0][1]["connection"] == "close"


def test_an_event_stream_ends_at_its_age_and_goes_on_where_it_was(tmp_path):
    with LiveHub(tmp_path) as hub:
        body = SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=1)).to_bytes()
        assert hub.request("POST", "/v1/submit", body)[0] == 200
        tails = next(handler.__self__ for name, (_, handler) in hub.api._operations.items() if name == "events")
        tails._max_age_sec = 0.3
        path = f"/tooling/events?label={w.LABEL.hex()}&from=1"
        status, headers, data = hub.request("GET", path)  # returns: the stream has an end
        assert (status, headers["Connection"]) == (200, "close")
        assert data.count(b"event: entry") == 1
        body = SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=2)).to_bytes()
        assert hub.request("POST", "/v1/submit", body)[0] == 200
        _, _, data = hub.request("GET", path, headers={"Last-Event-ID": "1"})
        assert [line for line in data.split(b"\n") if line.startswith(b"id:")] == [b"id: 2"]
