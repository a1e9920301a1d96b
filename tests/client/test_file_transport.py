"""A hub behind two directories: requests as files in one, answers as files in the other (001 spec-1 §0, D-113)."""

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest
from tests.client.hubs import bodies, client_at, hub_at, person, pin_of, run

from veen.client.transport.base import NO_HEADERS, Answer, Transport
from veen.client.transport.inprocess import InProcess
from veen.core import cbor


def put(path: Path, item: cbor.Item) -> None:
    """Whole or not at all, so that nobody reads half a file."""
    part = path.with_suffix(".part")
    part.write_bytes(cbor.encode(item))
    part.rename(path)


def take(path: Path) -> cbor.Item | None:
    if not path.exists():
        return None
    item = cbor.decode(path.read_bytes())
    path.unlink()
    return item


async def taken(path: Path) -> cbor.Item:
    while (item := take(path)) is None:  # noqa: ASYNC110 - a directory tells nobody
        await asyncio.sleep(0.001)
    return item


class Spool:
    """The client's end: a medium that somebody carries would do as well."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, itertools.count()

    async def call(self, operation, body=b"", *, timeout=None, headers=NO_HEADERS):  # noqa: ASYNC109 - the interface
        number = next(self._numbers)
        put(self._directory / f"{number}.ask", [operation, body, dict(sorted(headers.items()))])
        status, answer, heads = await taken(self._directory / f"{number}.answer")
        return Answer(status, answer, heads)

    async def aclose(self):
        return None


async def serve(directory: Path, hub: Transport) -> None:
    for number in itertools.count():
        operation, body, headers = await taken(directory / f"{number}.ask")
        answer = await hub.call(operation, body, headers=headers)
        put(directory / f"{number}.answer", [answer.status, answer.body, dict(sorted(answer.headers.items()))])


@pytest.mark.req("DR0-04")
def test_files_carry_everything_that_a_client_and_a_hub_say(tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir()

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            serving = asyncio.create_task(serve(spool, InProcess(hub.api)))
            async with client_at(Spool(spool), pin_of(hub), person("alice"), tmp_path / "home") as client:
                sent = await client.send("orders", b"by file")
                await client.send_many("orders", [b"two", b"three"])
                assert (await client.checkpoint("orders")).upto_seq == 3
                assert (await client.receipt("orders", 1)).to_bytes() == sent.receipt.to_bytes()
                assert await bodies(client) == [b"by file", b"two", b"three"]
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving

    run(check())
