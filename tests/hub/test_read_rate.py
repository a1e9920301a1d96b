"""How fast one reader is served (001 COMP0.3)."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.servers import READER, LiveHub, detail_of

from veen.client.transport.calls import Calls, Retry
from veen.client.transport.http import HttpTransport
from veen.core import cbor
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest, StreamResponse, SubmitRequest, SubmitResponse
from veen.core.objects.tooling import LegacyItem
from veen.hub.api.access import Access, Principal
from veen.hub.api.operations import ReadRateLimiter
from veen.hub.api.reply import ApiError, Reply
from veen.io.addresses import network_of

RATE = 10_000
PAGE = StreamRequest(label=w.LABEL, from_seq=1).to_bytes()
CBOR = {"Content-Type": "application/cbor"}
LEGACY = f"/tooling/stream?label={w.LABEL.hex()}&from=1&with_proof=1"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def serve(limiter, size, reader="alice"):
    """The seconds to wait, or None if it was served."""

    async def answer():
        return Reply(200, bytes(size))

    try:
        limiter.serve(reader, RATE, answer).send(None)  # nothing here waits, so it needs no event loop
    except ApiError as exc:
        return exc.retry_after
    except StopIteration:
        return None
    raise AssertionError("it waits")


def test_whoever_is_a_second_ahead_is_told_when_to_come_back():
    clock = Clock()
    limiter = ReadRateLimiter(clock)
    assert serve(limiter, 2 * RATE) is None  # an answer is never cut short, whatever its size
    assert serve(limiter, 1) == 1
    clock.now += 0.5
    assert serve(limiter, 1) == 1
    assert serve(limiter, 1, "bob") is None
    clock.now += 0.5
    assert serve(limiter, 5 * RATE) is None
    assert serve(limiter, 1) == 5


def test_a_small_answer_is_work_too():
    limiter = ReadRateLimiter(Clock())
    served = 0
    while serve(limiter, 0) is None:
        served += 1
    assert served == 10  # 1 KiB each


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5 * RATE)), max_size=60))
def test_over_any_time_nobody_gets_more_than_rate_second_and_one_answer(steps):
    clock = Clock()
    limiter, given_bytes, largest, began = ReadRateLimiter(clock), 0, 0, clock.now
    for pause, size in steps:
        clock.now += pause
        if serve(limiter, size) is None:
            given_bytes, largest = given_bytes + size, max(largest, size)
            assert given_bytes <= RATE * (clock.now - began + 1) + largest + 1


@given(st.lists(st.integers(0, 5 * RATE), max_size=60))
def test_who_waits_as_long_as_told_is_served(sizes):
    clock = Clock()
    limiter = ReadRateLimiter(clock)
    for size in sizes:
        if (wait := serve(limiter, size)) is not None:
            clock.now += wait
            assert serve(limiter, size) is None


def test_readers_who_owe_nothing_are_forgotten():
    clock = Clock()
    limiter = ReadRateLimiter(clock)
    for number in range(5000):
        serve(limiter, RATE, f"reader {number}")
        clock.now += 0.01
    assert len(limiter._even_at) < 2048


def test_an_endless_answer_waits_and_goes_on():
    """As server-sent events do: nothing is lost, it only takes its time."""
    closed = []

    async def source():
        try:
            for number in range(4):
                yield bytes([number]) * RATE
        finally:
            closed.append(True)

    async def scenario():
        limiter = ReadRateLimiter()

        async def answer():
            return Reply(200, stream=source())

        reply = await limiter.serve("alice", 10 * RATE, answer)
        assert reply.stream is not None
        return [part[:1] async for part in reply.stream]

    assert asyncio.run(scenario()) == [b"\x00", b"\x01", b"\x02", b"\x03"]
    assert closed == [True]


def test_readers_are_told_apart_by_what_was_checked():
    secret, other = Principal(bearer=b"one", address="192.0.2.1"), Principal(bearer=b"two", address="192.0.2.1")
    named = Access.of(read_tokens=[b"one", b"two"])
    assert named.reader(secret) != named.reader(other)
    assert "one" not in named.reader(secret)
    # Where reading is open nobody checks a token, so inventing one must not give a fresh start.
    assert Access().reader(secret) == Access().reader(other) == "192.0.2.1"
    assert Access().reader(Principal(names=("auditor",), address="192.0.2.1")) == "names ('auditor',)"
    assert Access().reader(Principal()) == ""


def test_one_host_is_one_address():
    assert network_of(("192.0.2.7", 4711)) == network_of(("::ffff:192.0.2.7", 1, 0, 0)) == "192.0.2.7"
    assert network_of(("2001:db8::1", 1, 0, 0)) == network_of(("2001:db8::ffff:2", 1, 0, 0)) == "2001:db8::/64"
    assert network_of(("fe80::1%eth0", 1, 0, 2)) == "fe80::/64"
    assert network_of("/run/veen.sock") == network_of(None) == ""


# --- in a hub ---------------------------------------------------------------------------------------------


def fill(hub, count):
    for seq in range(1, count + 1):
        hub.call("/v1/submit", SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=seq)), SubmitResponse)


@pytest.mark.req("COMP-04")
def test_an_auditor_exports_a_stream_with_proofs_at_its_rate(tmp_path):
    access = Access.of(read_tokens=[READER, b"another-reader-0000"], read_bytes_per_second=1024)
    auditor = {"Authorization": f"Bearer {READER.decode()}"}
    with LiveHub(tmp_path, access=access) as hub:
        fill(hub, 8)  # writing is not reading
        assert hub.request("GET", LEGACY)[0] == 401
        status, _, first = hub.request("GET", LEGACY, headers=auditor)
        assert status == 200
        items = [LegacyItem.from_bytes(item) for item in cbor.sequence(first)]
        assert len(items) == 8
        for seq, item in enumerate(items, start=1):
            assert item.mmr_proof is not None
            item.mmr_proof.verify(leaf_hash=item.msg.leaf_hash(), stream_seq=seq, expected_root=item.receipt.mmr_root)
        status, headers, body = hub.request("GET", LEGACY, headers=auditor)
        assert status == 429
        assert ErrorEnvelope.from_bytes(body).code == "E.RATE"
        assert int(headers["Retry-After"]) == ErrorEnvelope.from_bytes(body).retry_after
        assert int(headers["Retry-After"]) > 1
        assert detail_of(body) == {"bytes_per_second": 1024}
        assert hub.request("GET", LEGACY, headers={"Authorization": "Bearer another-reader-0000"})[2] == first
        fill_more = SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=9))
        hub.call("/v1/submit", fill_more, SubmitResponse, headers=auditor)
        assert hub.request("GET", "/healthz", headers=auditor)[0] == 200


def test_without_credentials_an_address_is_a_reader_and_a_made_up_token_changes_nothing(tmp_path):
    with LiveHub(tmp_path, access=Access.of(read_bytes_per_second=1024)) as hub:
        fill(hub, 8)
        assert hub.request("POST", "/v1/stream", PAGE, CBOR)[0] == 200
        for headers in (CBOR, {**CBOR, "Authorization": "Bearer made-up"}):
            assert hub.request("POST", "/v1/stream", PAGE, headers)[0] == 429
        hub.services.access = Access()  # as after a reload
        assert hub.request("POST", "/v1/stream", PAGE, CBOR)[0] == 200


def test_a_client_waits_for_its_turn_and_reads_everything(tmp_path):
    """No error for somebody who can wait: the same pages, at the pace of the hub."""
    waited = []

    async def sleep(seconds):
        waited.append(seconds)
        await asyncio.sleep(seconds)

    with LiveHub(tmp_path, access=Access.of(read_bytes_per_second=1536)) as hub:
        fill(hub, 8)

        async def read():
            transport = HttpTransport(f"http://{hub.host}:{hub.port}")
            try:
                calls = Calls(transport, Retry(sleep=sleep))
                return [
                    await calls.ask("v1/stream", StreamRequest(label=w.LABEL, from_seq=1), StreamResponse) for _ in "ab"
                ]
            finally:
                await transport.aclose()

        first, two = asyncio.run(read())
    assert len(first.items) == 8
    assert first == two
    assert max(waited) >= 1.0  # what the hub said, not the client's own first pause
