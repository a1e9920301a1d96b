"""A request that must not be repeated is sent once, whatever breaks."""

import asyncio
import contextlib

import pytest
from tests.waiting import DEADLINE_SEC

from veen.client.errors import Unreachable
from veen.client.transport.calls import NO_RETRY, Answer, Calls
from veen.client.transport.http import Http1, HttpTransport
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.tooling import OkResponse, RotateKeyRequest, VersionRequest

OK = OkResponse(ok=True).to_bytes()


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_SEC))


@contextlib.asynccontextmanager
async def server(requests, *, lost):
    """Answers every request but those whose number is in `lost`: it acts on them, and the connection breaks."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
                )
                requests.append((head.split()[1].decode(), await reader.readexactly(length)))
                if len(requests) in lost:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(OK) + OK)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("again", [True, False])
def test_a_kept_connection_that_breaks_resends_only_what_may_be_repeated(again):
    """One call of rotate_key was two requests."""

    async def scenario():
        requests: list[tuple[str, bytes]] = []
        async with server(requests, lost={2}) as url:
            transport = HttpTransport(url)
            calls = Calls(transport, NO_RETRY)
            await calls.ask("tooling/first", VersionRequest(), OkResponse)  # a connection is kept from here on
            if again:
                await calls.ask("tooling/second", VersionRequest(), OkResponse)
            else:
                with pytest.raises(Unreachable):
                    await calls.ask("tooling/second", VersionRequest(), OkResponse, again=False)
            await transport.aclose()
        return [path for path, _ in requests]

    assert run(scenario()) == ["/tooling/first", *["/tooling/second"] * (2 if again else 1)]


def test_a_request_that_is_sent_once_uses_no_kept_connection():
    """It may be broken already, and then the request would fail although nothing is wrong."""

    async def scenario():
        requests: list[tuple[str, bytes]] = []
        async with server(requests, lost=()) as url:
            transport = HttpTransport(url)
            calls = Calls(transport, NO_RETRY)
            for _ in range(3):
                await calls.ask("tooling/once", VersionRequest(), OkResponse, again=False)
            assert isinstance(transport._carrier, Http1)
            idle = len(transport._carrier._idle)
            await transport.aclose()
        return idle

    assert run(scenario()) == 3


class OldHub:
    """A hub of a release before request ids."""

    def __init__(self):
        self.requests = []

    async def call(self, operation, body=b"", *, timeout=None, headers=None, again=True):  # noqa: ASYNC109 - the interface
        self.requests.append((RotateKeyRequest.from_bytes(body).request_id, again))
        if self.requests[-1][0] is not None:
            refused = ErrorEnvelope(code="E.BAD_REQUEST", request_id="r", message="unexpected field 3", detail={})
            return Answer(400, refused.to_bytes())
        return Answer(200, OK)

    async def aclose(self):
        pass


def test_a_hub_that_knows_no_request_ids_is_asked_without_one_and_once():
    async def scenario():
        hub = OldHub()
        await Calls(hub, NO_RETRY).ask_once("tooling/rotate_key", RotateKeyRequest(overlap_sec=1), OkResponse)
        return hub.requests

    (first, again), (second, once) = run(scenario())
    assert (first is None, again) == (False, True)
    assert (second, once) == (None, False)


def test_a_request_keeps_its_id_when_it_is_sent_again():
    async def scenario():
        requests: list[tuple[str, bytes]] = []
        async with server(requests, lost={2}) as url:
            transport = HttpTransport(url)
            calls = Calls(transport, NO_RETRY)
            await calls.ask("tooling/first", VersionRequest(), OkResponse)
            await calls.ask_once("tooling/rotate_key", RotateKeyRequest(overlap_sec=1), OkResponse)
            await transport.aclose()
        return [body for _, body in requests[1:]]

    first, second = run(scenario())
    assert first == second
    assert RotateKeyRequest.from_bytes(first).request_id is not None
