"""One suite for every transport: what HTTP answers, all of them answer, byte for byte (DR0, D-113, D-148)."""

import asyncio
import socket
import time

import pytest
from tests.client.hubs import Clock, run
from tests.transports.builders import (
    ADMIN,
    ENDLESS,
    KINDS,
    LOOSE,
    MIB,
    OTHERS,
    hub_by,
    message_for,
    script,
    transport_by,
    twins,
    without_id,
    world_of,
)
from tests.waiting import DEADLINE_SEC, eventually

from veen.client.errors import HubRefused, NetworkError, TimedOut, Unreachable
from veen.client.transport.calls import Calls, Retry, place_of, refusal_of
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, Refusal
from veen.core.objects.envelopes import SUBMIT_PREFIX, SubmitResponse
from veen.core.objects.tooling import TailRequest
from veen.hub.admission.decide import Refuse
from veen.hub.api import routes
from veen.hub.api.access import Role
from veen.hub.api.reply import ApiError, Reply

ACROSS = pytest.mark.parametrize("kind", OTHERS)
EVERY = pytest.mark.parametrize("kind", KINDS)


def secret(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


async def answers_of(kind, world, data_dir, token_file):
    clock = Clock()
    async with (
        hub_by(kind, world, data_dir, clock=clock, auth__admin_token_files=token_file) as hub,
        transport_by(kind, world, hub) as transport,
    ):
        calls = script(hub, int(clock()))
        answers = [await transport.call(operation, body, headers=headers) for operation, body, headers in calls]
        return calls, answers


@ACROSS
def test_every_operation_is_answered_with_the_bytes_of_http(kind, tmp_path):
    """PRODUCTS §7: against HTTP's answers byte for byte. Two hubs of one identity and one clock are asked the same."""

    async def check():
        token_file = secret(tmp_path / "admin.token", ADMIN)
        first, second = await twins(tmp_path)
        async with world_of(kind, tmp_path) as world:
            calls, expected = await answers_of("http", world, first, token_file)
            _, answers = await answers_of(kind, world, second, token_file)
        for (operation, _, _), want, answer in zip(calls, expected, answers, strict=True):
            assert answer.status == want.status, operation
            if not operation.startswith(LOOSE) or answer.status != 200:
                assert without_id(answer.body) == without_id(want.body), operation
            for name, value in answer.headers.items():
                assert want.headers.get(name) == value, (operation, name)
            assert "content-type" in answer.headers

    run(check())


def test_the_script_calls_every_operation_that_there_is(tmp_path):
    async def operations():
        async with hub_by("http", None, tmp_path / "hub") as hub:
            return {
                routes.find_route("GET" if not body else "PUT" if "/attachment/" in name else "POST", f"/{name}")[
                    0
                ].operation
                for name, body, _ in script(hub, 0)
                if not name.startswith(("no/", "v2/", "xx", "tooling/identity?")) and (name, body) != ("v1/submit", b"")
            }

    everything = {route.operation for methods in routes._ROUTES.values() for route in methods.values()}
    assert run(operations()) >= everything - {ENDLESS}


@ACROSS
def test_every_error_is_answered_with_the_bytes_of_http(kind, tmp_path):
    """Each row of the admission table and each code of the API, from an operation that fails on demand."""

    async def check():
        async with world_of(kind, tmp_path) as world, hub_by(kind, world, tmp_path / "hub") as hub:
            failure: Refuse | Exception | None = None

            async def failing(call):
                if isinstance(failure, Refuse):
                    return hub.api.replies.of_refusal(failure, call.answer)
                assert failure is not None
                raise failure

            hub.api.add({"version": (Role.ANY, failing)})
            failures: list[Refuse | Exception] = [
                *(Refuse(refusal, {"label": "ab", "stream_seq": 7}, retry_after=3) for refusal in Refusal),
                *(ApiError(code, f"a text for {code.name}") for code in ApiCode),
                ApiError.unavailable("busy"),
                ApiError.timeout("late"),
                RuntimeError("a defect of the hub"),
            ]
            async with transport_by("http", world, hub) as http, transport_by(kind, world, hub) as other:
                for number in range(len(failures)):
                    failure = failures[number]
                    want, answer = await http.call("version"), await other.call("version")
                    assert (answer.status, without_id(answer.body)) == (want.status, without_id(want.body)), failure
                    assert answer.headers.get("retry-after") == want.headers.get("retry-after")

    run(check())


@EVERY
def test_a_message_of_the_largest_size_and_a_page_of_several_megabytes_pass(kind, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
        ):
            spare = MIB - len(message_for(hub, size=MIB - 4096).to_bytes())
            for seq in (1, 2, 3):
                raw = message_for(hub, seq=seq, ack=seq - 1, size=MIB - 4096 + spare).to_bytes()
                assert len(raw) == MIB
                answer = await transport.call("v1/submit", SUBMIT_PREFIX + raw)
                assert SubmitResponse.from_bytes(answer.body).receipt.stream_seq == seq
            label = message_for(hub).label
            page = await transport.call("tooling/tail", TailRequest(label=label, from_seq=1, wait_sec=0).to_bytes())
            assert page.status == 200
            assert len(page.body) > 3 * MIB
            too_large = await transport.call("v1/submit", SUBMIT_PREFIX + bytes(MIB + 1))
            assert too_large.status == 413

    run(check())


@EVERY
def test_a_call_that_is_cancelled_leaves_the_transport_and_the_hub_usable(kind, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
        ):
            label = message_for(hub).label
            waiting = asyncio.create_task(
                transport.call("tooling/tail", TailRequest(label=label, from_seq=1, wait_sec=30).to_bytes())
            )
            await eventually(lambda: hub.api.context.services.sequencer and tails_of(hub))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            answer = await transport.call("v1/submit", SUBMIT_PREFIX + message_for(hub).to_bytes())
            assert answer.status == 200
            assert (await transport.call("healthz")).status == 200

    run(check())


def tails_of(hub):
    """How many readers wait for an entry."""
    return sum(len(waiters) for waiters in hub.api._operations["tail"][1].__self__._waiting.values())


@EVERY
def test_a_call_that_gets_no_answer_in_time_ends_with_its_own_error(kind, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
        ):
            release = asyncio.Event()

            async def slow(call):
                await release.wait()
                return Reply(200, b"")

            hub.api.add({"version": (Role.ANY, slow)})
            with pytest.raises((TimedOut, Unreachable), match="within 1 s"):
                await transport.call("version", timeout=1.0)
            release.set()
            assert (await transport.call("healthz")).status == 200

    run(check())


@EVERY
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_calls_run_side_by_side_and_each_gets_its_own_answer(kind, count, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub, timeout=120.0) as transport,
        ):
            messages = [message_for(hub, key=key_of(number)) for number in range(count)]
            answers = await asyncio.gather(
                *(patient(transport, "v1/submit", SUBMIT_PREFIX + message.to_bytes()) for message in messages)
            )
            receipts = [SubmitResponse.from_bytes(answer.body).receipt for answer in answers]
            assert {receipt.leaf_hash for receipt in receipts} == {message.leaf_hash() for message in messages}
            assert [receipt.leaf_hash for receipt in receipts] == [message.leaf_hash() for message in messages]
            assert sorted(receipt.stream_seq for receipt in receipts) == list(range(1, count + 1))

    run(check())


def key_of(number):
    return SigningKey(number.to_bytes(4, "big") + b"\x01" * 28)


async def patient(transport, operation, body):
    """A call that is repeated while the hub has no room, as `Calls` does."""
    return await Calls(transport, Retry(seconds=100.0, first_pause=0.05)).send(operation, body)


@EVERY
def test_a_client_that_goes_on_after_the_hub_was_restarted_reads_what_it_wrote(kind, tmp_path):
    """Restart of the hub: the same transport object works again; a message that was sent before is a duplicate."""

    async def check():
        port = free_port_for(kind)
        async with world_of(kind, tmp_path) as world:
            async with hub_by(kind, world, tmp_path / "hub", **port) as hub:
                transport_of_client = transport_by(kind, world, hub)
                transport = await transport_of_client.__aenter__()
                body = SUBMIT_PREFIX + message_for(hub).to_bytes()
                assert (await transport.call("v1/submit", body)).status == 200
            try:
                assert not await is_answered(transport, body)
                async with hub_by(kind, world, tmp_path / "hub", **port):
                    answer = await patient_answer(transport, body)
                    assert answer.status == 409
            finally:
                await transport_of_client.__aexit__(None, None, None)

    run(check())


async def is_answered(transport, body):
    """Whether a hub answers. A broker says by itself that nobody listens."""
    try:
        return (await transport.call("v1/submit", body, timeout=1.0)).status != 503
    except NetworkError:
        return False


def free_port_for(kind):
    def free(family):
        with socket.socket(socket.AF_INET, family) as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    if kind == "quic":
        return {"quic__port": free(socket.SOCK_DGRAM)}
    return {"listen__port": free(socket.SOCK_STREAM)} if kind == "http" else {}


async def patient_answer(transport, body):
    """The first answer that is not "not now", whatever it says."""
    deadline = time.monotonic() + DEADLINE_SEC
    while time.monotonic() < deadline:
        try:
            answer = await transport.call("v1/submit", body, timeout=5.0)
        except NetworkError:
            await asyncio.sleep(0.05)
            continue
        if answer.status != 503:
            return answer
        await asyncio.sleep(0.05)
    raise AssertionError("no answer")


@EVERY
def test_the_same_bytes_are_sent_again_after_an_unknown_outcome_and_the_hub_names_their_place(kind, tmp_path):
    """D-56, D-161: a retry is no new MSG, and what it gets proves that the first one counts."""

    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
        ):
            body = SUBMIT_PREFIX + message_for(hub).to_bytes()
            lost = Losing(transport)
            with pytest.raises(HubRefused) as refusal:
                await Calls(lost, Retry(seconds=60.0, first_pause=0.01)).send("v1/submit", body)
            assert refusal_of(refusal.value) is Refusal.DUPLICATE
            assert place_of(refusal.value) == 1
            assert lost.bodies == [body, body]

    run(check())


class Losing:
    """Loses the first answer: the hub has acted, and its client does not know."""

    def __init__(self, transport):
        self._transport, self.bodies = transport, []

    async def call(self, operation, body=b"", *, timeout=None, headers=None, again=True):  # noqa: ASYNC109 - the interface
        self.bodies.append(body)
        answer = await self._transport.call(operation, body, timeout=timeout, headers=headers or {})
        if len(self.bodies) == 1:
            raise TimedOut("the answer was lost")
        return answer

    async def aclose(self):
        await self._transport.aclose()
