"""Heads that the server knows: a short cut that must never be noticed."""

import asyncio
import re
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.servers import LiveHub

from veen.core.objects.envelopes import SUBMIT_PREFIX
from veen.hub.http.connection import Connection
from veen.hub.http.request_input import Reader, split_head
from veen.hub.http.server import HttpServer

PATHS = (
    b"POST /v1/submit HTTP/1.1",
    b"POST /v1/submit HTTP/1.0",
    b"POST /v1/receipt HTTP/1.1",
    b"GET /healthz HTTP/1.1",
)
EXTRA = (
    b"",
    b"Accept: application/json\r\n",
    b"Accept: application/cbor\r\n",
    b"Connection: close\r\n",
    b"Content-Type: application/json\r\n",
    b"Expect: 100-continue\r\n",
    b"VEEN-PoW: a0\r\n",
    b"VEEN-PoW: a1\r\n",
    b"veen-pow: zz\r\n",
    b"VEEN-PoW: a0\r\nVEEN-PoW: a0\r\n",
    b"X-Request-ID: 1\r\n",
    b"X-Request-ID: 2\r\nVEEN-PoW: a2\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\n",
    b"X-Request-ID: 3\r\n folded\r\n",
    b"X-Request-ID : 4\r\n",
    b"X-Request-ID: 5\r\nConnection: close\r\n",
    b"X-Request-ID: 6\r\nContent-Length: 0\r\n",
    b"X-Request-ID: 7\nContent-Length: 1\r\n",
    b"Origin: https://elsewhere.example\r\nX-Request-ID: 8\r\n",
)
BODIES = (
    b"",
    b"\xa2\x01\x01\x02\x80",
    b"\xa2\x01\x01\x02\x81",
    b"\xa2\x01\x01\x02",
    b"{}",
    b"\r\n\r\n",
    b"POST /v1/submit\r\n\r\n",
)


class FakeTransport(asyncio.Transport):
    """What a connection may do with its transport, kept in memory."""

    def __init__(self):
        super().__init__()
        self.written, self.closed = bytearray(), False

    def write(self, data):
        self.written += data

    def write_eof(self):
        self.closed = True

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def can_write_eof(self):
        return False

    def get_extra_info(self, name, default=None):
        return None

    def pause_reading(self): ...
    def resume_reading(self): ...


def record_feeds(monkeypatch):
    """What the parser is fed from now on, piece by piece."""
    fed: list[bytes] = []
    feed = Reader.feed

    def recorded(reader, data):
        fed.append(data)
        feed(reader, data)

    monkeypatch.setattr(Reader, "feed", recorded)
    return fed


class Forgetful(HttpServer):
    """A server without the short cut."""

    def remembered(self, head):
        return None

    def recognised(self, head):
        return None, None


@st.composite
def requests(draw):
    line, extra = draw(st.sampled_from(PATHS)), draw(st.sampled_from(EXTRA))
    body = draw(st.sampled_from(BODIES))
    if draw(st.booleans()):
        return line + b"\r\nHost: hub\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return line + b"\r\nHost: hub\r\n" + extra + b"Transfer-Encoding: chunked\r\n\r\n" + chunked


def pieces(data, cuts):
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def is_settled(connection):
    """Return True if the connection waits for its client: nothing is due, nothing unparsed, and it is not on hold."""
    return not connection._busy() and not connection._unparsed and connection._reading


async def answers(server, conversations):
    """What each conversation is answered, as status lines, forms and codes: bodies carry request ids."""
    results = []
    for chunks in conversations:
        transport = FakeTransport()
        connection = Connection(server)
        connection.connection_made(transport)
        for chunk in chunks:
            if not transport.closed:
                connection.data_received(chunk)
            while not (is_settled(connection) or transport.closed):  # noqa: ASYNC110 - nobody is told when it is done
                await asyncio.sleep(0.0005)
        results.append(re.findall(rb"HTTP/1\.\d \d+|content-type: \S+|E\.[A-Z_]+", transport.written))
        connection.connection_lost(None)
    return results


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.mark.req("GEN-26")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 500), max_size=3)), max_size=8
    )
)
def test_known_heads_change_no_answer(hub, conversations):
    """Whatever was seen before, and however the bytes are cut, the answers are those of the parser alone."""
    cut = [pieces(b"".join(asked), cuts) for asked, cuts in conversations]
    plain = hub.run(answers(Forgetful(hub.api), cut))
    assert hub.run(answers(HttpServer(hub.api), cut)) == plain


def test_a_connection_that_is_on_hold_is_waited_for(hub):
    """A client that asks while others write is held between two requests, with nothing due."""
    conversation = [[b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n" * 3]]

    async def while_others_write():
        priority = hub.api.context.priority
        priority.note_write()
        priority.charge(0.05)
        assert priority.delay() > 0
        return await answers(HttpServer(hub.api), conversation)

    assert hub.run(while_others_write()) == [[b"HTTP/1.1 200", b"content-type: application/json"] * 3]


def test_a_head_is_known_after_its_first_request(hub):
    server = HttpServer(hub.api)
    body = SUBMIT_PREFIX + w.msg(token=w.FREE_TOKEN).to_bytes()
    head = b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert server.find_remembered(head) is None
    first, again = hub.run(answers(server, [[head + body], [head + body]]))
    assert server.find_remembered(head) is not None
    assert (first[0], again[0]) == (b"HTTP/1.1 200", b"HTTP/1.1 409")


def head_of(length, extra=b""):
    return b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\n%bContent-Length: %d\r\n\r\n" % (extra, length)


def test_a_head_is_never_known_with_the_length_of_another_request(hub):
    """A first request ends and a second one begins in the same bytes; the second one's body is as long as what lay
    behind the first head. Its length must not be remembered for that head: the next who sends it would have a
    pipelined request swallowed as a body."""
    first = head_of(5) + b"\xa2\x01\x01\x02\x80"
    second = head_of(5 + len(head_of(1000)), b"")
    second = head_of(5 + len(second), b"")
    behind = 5 + len(second)  # bytes behind the first head in the first piece
    assert second == head_of(behind)
    server = HttpServer(hub.api)
    hub.run(answers(server, [[first + second, bytes(behind)]]))
    request = server.find_remembered(head_of(5))
    assert request is None or request.size == 5
    pipelined = b"GET /healthz HTTP/1.1\r\nHost: hub\r\n"
    pipelined += b"X: " + b"x" * (behind - 5 - len(pipelined) - 7) + b"\r\n\r\n"
    (answer,) = hub.run(answers(server, [[first + pipelined]]))
    assert [line for line in answer if line.startswith(b"HTTP")] == [b"HTTP/1.1 400", b"HTTP/1.1 200"]


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/submit HTTP/1.1\nHost: hub\nContent-Length: 4\n\nxxxx\r\n\r\n",
        b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: 4\r\n\rxxxx\r\n\r\n",
        b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nX: a\r\n b\r\nContent-Length: 4\r\n\r\n",
        b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n",
        b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: 04\r\n\r\n",
        b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n",
    ],
    ids=["line feeds", "carriage return", "folded", "chunked", "leading zero", "twice"],
)
def test_only_a_head_that_can_be_read_in_one_way_is_remembered(hub, head):
    server = HttpServer(hub.api)
    hub.run(answers(server, [[head + b"\r\n\r\n"], [head + b"abcd"]]))
    assert server.find_remembered(head) is None


CHANGING = (b"X-Request-ID: %d\r\n", b"traceparent: 00-%032x-01\r\n", b"Date: day %d\r\nUser-Agent: a b/%d\r\n")


@pytest.mark.parametrize("line", CHANGING)
def test_a_head_with_a_changing_line_that_nobody_looks_at_is_parsed_once(hub, monkeypatch, line):
    """Clients that number or date their requests; the parser costs five times as much."""
    parsed = record_feeds(monkeypatch)
    server, body = HttpServer(hub.api), b"\xa2\x01\x01\x02\x80"
    talk = [[head_of(len(body), line % ((number,) * line.count(b"%"))) + body] for number in range(10)]
    first, *others = hub.run(answers(server, talk))
    assert others == [first] * 9
    assert len(parsed) == 1
    assert len(server._remembered) == len(server._rests) == 1


def test_each_proof_of_work_reaches_the_hub_though_its_head_is_parsed_once(hub, monkeypatch):
    parsed, begin = record_feeds(monkeypatch), hub.api.submits.begin
    proofs: list[str | None] = []

    def recorded(*args, pow_header, **named):
        proofs.append(pow_header)
        return begin(*args, pow_header=pow_header, **named)

    monkeypatch.setattr(hub.api.submits, "begin", recorded)
    body = b"\xa2\x01\x01\x02\x80"
    lines = [b"VEEN-PoW: %02x\r\n" % number for number in range(5)]
    talk = [
        [head_of(len(body), line) + body] for line in (*lines, b"", lines[0], b"VEEN-PoW: zz\r\n", lines[1] + lines[2])
    ]
    results = hub.run(answers(HttpServer(hub.api), talk))
    assert proofs == ["00", "01", "02", "03", "04", None, "00", "zz"]
    assert len(parsed) == 3  # the first, the one that is no proof, and the repeated header, which is refused
    assert results[-1][0] == b"HTTP/1.1 400"


LINES = (
    *(b"Host: hub", b"X: 1", b"X: 2", b"VEEN-PoW: a0", b"VEEN-PoW: zz", b" folded", b"Connection: close", b"Te: x"),
    *(b"Content-Length: 5", b"Content-Length : 6", b"content-length: 7", b"X_Y: 1", b"X:1", b"X: \xff", b""),
)


@given(st.lists(st.sampled_from(LINES), max_size=7))
def test_a_head_is_its_rest_and_lines_that_nobody_looks_at(lines):
    head = b"\r\n".join((b"POST /v1/submit HTTP/1.1", *lines, b"", b""))
    rest, proof = split_head(head)
    left = list(head.split(b"\r\n"))
    for line in rest.split(b"\r\n"):
        while left[0] != line:
            assert left.pop(0) in (b"X: 1", b"X: 2", b"VEEN-PoW: a0")
        left.pop(0)
    assert not left
    assert (proof == "a0") == (b"VEEN-PoW: a0" in lines)


@pytest.mark.req("GEN-26")
def test_known_heads_are_bounded(hub):
    server = HttpServer(hub.api)
    talk = [
        [b"POST /v1/submit HTTP/1.1\r\nHost: h%d\r\nContent-Length: 5\r\n\r\n\xa2\x01\x01\x02\x80" % number]
        for number in range(5_000)
    ]
    hub.run(answers(server, talk), timeout=60)
    assert len(server._remembered) <= 4_096
