"""The HTTP layer beside h11: the same requests, or a refusal; never another reading of the same bytes.

If a hub found other boundaries between requests than the proxy in front of it, one client could put words into the
mouth of another (request smuggling). Byte streams are made from a seed: requests of all kinds, pipelined, chunked,
damaged, and cut into pieces at random places. All of them meet one server, so that what it remembers of one stream
(heads that it knows) is there for the next.
"""

import asyncio
import random

import h11
import pytest
from tests.examples import spread
from tests.hub.servers import LiveHub
from tests.hub.test_knownheads import FakeTransport

from veen.hub.api.reply import Reply
from veen.hub.http.connection import Connection, _Answer
from veen.hub.http.server import HttpServer
from veen.hub.http.states import InputState

STREAMS = 4_000  # in `make test`
MANY_STREAMS = 200_000

LINES = (
    b"POST /v1/submit HTTP/1.1",
    b"POST /v1/submit HTTP/1.1",
    b"POST /v1/submit HTTP/1.0",
    b"POST /v1/stream HTTP/1.1",
    b"GET /healthz HTTP/1.1",
    b"GET /nowhere?x=1 HTTP/1.1",
    b"PUT /tooling/attachment/00 HTTP/1.1",
    b"HEAD /healthz HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
)
BAD_LINES = (
    b"POST /v1/submit HTTP/1.1 ",
    b"POST /v1/submit",
    b"POST /v1/submit HTTP/2.0",
    b"POST /v1/submit HTTP/1.1\r",
    b"POST /v1/sub\x00mit HTTP/1.1",
    b"post /v1/submit HTTP/1.1",
    b"POST\t/v1/submit HTTP/1.1",
    b" POST /v1/submit HTTP/1.1",
    b"",
)
HEADERS = (
    b"Accept: application/json",
    b"Content-Type: application/cbor",
    b"Connection: keep-alive",
    b"X-Long: " + b"y" * 300,
    b"X-Empty:",
    b"x-tab:\tz\t",
    b"Authorization: Bearer 0123456789abcdef",
)
BAD_HEADERS = (
    b"Connection: close",
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 0x5",
    b"Content-Length: 05",
    b"Content-Length: 5\x0b",
    b"Content-Length : 5",
    b"Content-Length: 99999999999999999999",
    b"Content-Length:",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"X: a\r\n folded",
    b"X: a\nContent-Length: 3",
    b"X: a\rContent-Length: 3",
    b"X: \x00",
    b"No colon",
    b": no name",
    b"Na me: x",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
)
BODIES = (
    b"",
    b"\xa2\x01\x01\x02\x80",
    b"x",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: 0\r\n\r\n",
    bytes(300),
)
ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r")


class Recorder(Connection):
    """Takes input as the real connection does, notes what was read, and answers at once."""

    def __init__(self, server):
        super().__init__(server)
        self.requests = []

    def _note(self, request, body):
        # The body of a request that is refused is thrown away; where it ends shows in what comes next.
        self.requests.append((request.method, request.url, body if request.error is None else None))

    def _submit(self, request, body, pow_header):
        self._note(request, body)
        super()._submit(request, body, pow_header)

    def _start_next(self):
        while self._queue and self._may_start():
            request = self._queue.popleft()
            if self._is_plain(request):
                self._submit(request, request.body, None)
                continue
            self._note(request, request.body)
            answer = _Answer(self, request)
            answer.fill(Reply(200))
            self._answers.append(answer)
            self.flush()

    def reject(self, error, request):
        """The end: whatever was understood of this request is not acted upon."""
        self._memory.release_body()
        self.close()


def make_request(rng):
    bad = rng.random() < 0.25
    line = rng.choice(BAD_LINES) if bad and rng.random() < 0.3 else rng.choice(LINES)
    body = rng.choice(BODIES)
    headers = [b"Host: hub"] if rng.random() < 0.97 else []
    headers += [rng.choice(HEADERS) for _ in range(rng.randrange(3))]
    if rng.random() < 0.6:
        headers.append(b"Content-Length: %d" % len(body))
        coded = body
    elif rng.random() < 0.9:
        headers.append(rng.choice((b"Transfer-Encoding: chunked", b"transfer-encoding: Chunked")))
        coded = make_chunks(rng, body)
    else:
        coded = b""
    if bad and rng.random() < 0.7:
        headers.append(rng.choice(BAD_HEADERS))
    rng.shuffle(headers)
    if bad and rng.random() < 0.2:
        return b"".join(part + rng.choice(ENDS) for part in (line, *headers)) + rng.choice(ENDS) + coded
    return b"\r\n".join((line, *headers)) + b"\r\n\r\n" + coded


def make_chunks(rng, body):
    out, start = b"", 0
    while start < len(body):
        size = rng.choice((1, 2, 5, 300))
        part = body[start : start + size]
        extension = rng.choice((b"", b"", b"", b";x=y", b';x="a"', b" ;x"))
        out += b"%x%b\r\n%b\r\n" % (len(part), extension, part)
        start += size
    last = rng.choice(
        (b"0\r\n\r\n",) * 6 + (b"0\r\nT: x\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"0\n\n", b"-1\r\n\r\n")
    )
    return out + last


def plain_head(length):
    return b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n" % length


def make_coincidence(rng):
    """Two requests, where the body of the second is as long as all that was received behind the first head."""
    first = plain_head(5) + b"\xa2\x01\x01\x02\x80"
    behind = 5 + len(plain_head(10))
    if rng.random() < 0.5:
        return [first + plain_head(behind), bytes(behind)]
    room = behind - 5 - len(b"GET /healthz HTTP/1.0\r\nX:\r\n\r\n")
    return [first + b"GET /healthz HTTP/1.0\r\nX:" + b"y" * room + b"\r\n\r\n"]


def make_stream(rng):
    """One client's bytes, and the pieces they arrive in."""
    if rng.random() < 0.02:
        return make_coincidence(rng)
    data = b"".join(make_request(rng) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.15:  # damage
        place = rng.randrange(len(data))
        data = data[:place] + bytes((rng.randrange(256),)) + data[place + 1 :]
    if rng.random() < 0.3:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]


def read_by_h11(pieces):
    """What h11 makes of it: the complete requests, and whether it stopped where the hub may go on: behind a request
    of HTTP/1.0, after which it always closes, and before several empty lines, which RFC 9112 §2.2 lets us skip."""
    connection = h11.Connection(h11.SERVER)
    requests: list[tuple[bytes, ...]] = []
    current: list[bytes] = []
    for piece in pieces:
        connection.receive_data(piece)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                return requests, connection.trailing_data[0][:1] in (b"\r", b"\n")
            if event is h11.NEED_DATA:
                break
            if event is h11.PAUSED:
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return requests, False
                connection.start_next_cycle()
            elif type(event) is h11.Request:
                current = [event.method, event.target, b""]
            elif type(event) is h11.Data:
                current[2] += bytes(event.data)
            elif type(event) is h11.EndOfMessage:
                requests.append(tuple(current))
                if connection.their_http_version == b"1.0":
                    return requests, True
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
            elif type(event) is h11.ConnectionClosed:
                return requests, False
    return requests, False


async def read_by_hub(server, pieces):
    transport = FakeTransport()
    connection = Recorder(server)
    connection.connection_made(transport)
    for piece in pieces:
        if transport.closed or connection._reader.state is InputState.ENDED:
            break
        connection.data_received(piece)
    refused = connection._reader.state is InputState.ENDED
    requests = connection.requests
    while connection._busy() and not transport.closed:  # noqa: ASYNC110 - submits that are on their way
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return requests, refused


def same(ours, theirs):
    return ours[:2] == theirs[:2] and (ours[2] is None or ours[2] == theirs[2])


async def compare(server, seed, count):
    rng = random.Random(seed)
    alike = refused_here = 0
    for number in range(count):
        pieces = make_stream(rng)
        (ours, refused), (theirs, stopped) = await read_by_hub(server, pieces), read_by_h11(pieces)
        if stopped:
            ours = ours[: len(theirs)]
        where = (seed, number, pieces, ours, theirs)
        assert len(ours) <= len(theirs), where  # what we act upon, h11 must have read, too
        assert all(map(same, ours, theirs[: len(ours)])), where
        assert refused or len(ours) == len(theirs), where  # and what we do not act upon must be refused
        alike += len(ours) == len(theirs)
        refused_here += refused
    return alike, refused_here


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


def run(hub, seed, count):
    server = HttpServer(hub.api)
    alike, refused = hub.run(compare(server, seed, count), timeout=3600)
    assert alike > count // 2  # the streams are not all bad
    assert refused > count // 20
    assert server._remembered  # the short cut was open


@pytest.mark.parametrize("seed", spread([1, 2, 3, 4], 1))
def test_the_hub_reads_what_h11_reads_or_refuses(hub, seed):
    run(hub, seed, STREAMS // 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_the_hub_reads_what_h11_reads_or_refuses_at_length(hub, seed):
    run(hub, seed, MANY_STREAMS // 8)
