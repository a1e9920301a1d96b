"""Heads that the server knows: a short cut that must never be noticed."""

import asyncio
import re
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub import hubworld as w
from tests.hub.apiworld import LiveHub

from veen.core.objects.envelopes import SUBMIT_PREFIX
from veen.hub.http.connection import Connection
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


class Forgetful(HttpServer):
    """A server without the short cut."""

    def known(self, head):
        return None


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
            while connection._busy() and not transport.closed:  # noqa: ASYNC110 - nobody is told when it is done
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


def test_a_head_is_known_after_its_first_request(hub):
    server = HttpServer(hub.api)
    body = SUBMIT_PREFIX + w.msg(token=w.FREE_TOKEN).to_bytes()
    head = b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert server.remembered(head) is None
    first, again = hub.run(answers(server, [[head + body], [head + body]]))
    assert server.remembered(head) is not None
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
    request = server.remembered(head_of(5))
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
    assert server.remembered(head) is None


@pytest.mark.req("GEN-26")
def test_known_heads_are_bounded(hub):
    server = HttpServer(hub.api)
    talk = [
        [b"POST /v1/submit HTTP/1.1\r\nHost: h%d\r\nContent-Length: 5\r\n\r\n\xa2\x01\x01\x02\x80" % number]
        for number in range(5_000)
    ]
    hub.run(answers(server, talk), timeout=60)
    assert len(server._remembered) <= 4_096
