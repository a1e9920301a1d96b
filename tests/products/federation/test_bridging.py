"""A bridge between two hubs: each event once, in order, whatever is lost; and what it refuses."""

import contextlib
from dataclasses import replace

import pytest
from tests.client.builders import seeded
from tests.client.hubs import ORDERS, QUICK, client_at, hub_at, person, pin_of, run

from veen.client.errors import Divergence, Unreachable
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.sealing import Draft
from veen.client.transport.inprocess import InProcess
from veen.core.labels import schema_id
from veen.products.federation.mirroring import HubBridge, NothingToBridge, select_streams

OTHER = StreamKeys.create("ordinary", random=seeded("ordinary"))
WRITE_ONLY = replace(StreamKeys.create("write", random=seeded("write")), reader_sk=None)
RING = Keyring().with_keys(ORDERS).with_keys(OTHER)
NOTE = schema_id("test.note.v1")


@contextlib.asynccontextmanager
async def client_of(hub, home, name="bridge"):
    async with client_at(InProcess(hub.api), pin_of(hub), person(name), home, ring=RING, retry=QUICK) as client:
        yield client


async def write(hub, home, stream, *bodies):
    async with client_of(hub, home, "alice") as client:
        await client.send_many(stream, [Draft(body=body, schema=NOTE) for body in bodies])


async def bodies(client, stream):
    return [(entry.event.body, entry.event.hdr.parent_id) async for entry in client.read(stream)]


async def messages(client, stream):
    return [(entry.event.body, entry.msg_id) async for entry in client.read(stream)]


def bridge_of(source, target, *selectors):
    return HubBridge(source, target, select_streams(RING, selectors), now=lambda: 1_700_000_000)


@pytest.mark.req("K8S-12")
def test_every_event_is_copied_once_also_when_all_that_was_remembered_is_lost(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", "orders", b"1", b"2")
            await write(a, tmp_path / "alice", "ordinary", b"x")
            for number in range(3):  # each time a bridge that remembers nothing
                home = tmp_path / f"home{number}"
                async with client_of(a, home / "source") as source, client_of(b, home / "target") as target:
                    bridge = bridge_of(source, target, "ord*")
                    first = await bridge.run_once()
                    assert [(done.stream, done.error) for done in first] == [("orders", None), ("ordinary", None)]
                    assert await bodies(target, "orders") == await messages(source, "orders")
                    assert [done.sent for done in await bridge.run_once()] == [0, 0]
                    await write(a, tmp_path / "alice", "orders", b"more %d" % number)
                    assert [done.sent for done in await bridge.run_once()] == [1, 0]
                    assert await bodies(target, "orders") == await messages(source, "orders")
                    assert len(await bodies(target, "ordinary")) == 1

    run(scenario())


def test_a_hub_that_does_not_answer_is_an_error_of_the_pass_and_not_the_end(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", "orders", b"1")
            async with client_of(a, tmp_path / "s") as source, client_of(b, tmp_path / "t") as target:
                bridge = bridge_of(source, target, "orders")
                answer = target.status

                async def broken():
                    raise Unreachable("nobody there")

                target.status = broken
                (failed,) = await bridge.run_once()
                assert isinstance(failed.error, Unreachable)
                target.status = answer
                (done,) = await bridge.run_once()
                assert (done.sent, done.error) == (1, None)

    run(scenario())


def test_selectors_name_streams_of_the_keyring_with_read_keys():
    assert [keys.name for keys in select_streams(RING, ["ordinary", "ord*"])] == ["orders", "ordinary"]
    with pytest.raises(NothingToBridge, match=r"core/\*"):
        select_streams(RING, ["orders", "core/*"])
    with pytest.raises(NothingToBridge, match="no read key of write"):
        select_streams(RING.with_keys(WRITE_ONLY), ["write"])


def test_a_source_that_tells_another_history_ends_the_bridge(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", "orders", b"1", b"2")
            async with client_of(a, tmp_path / "s") as source, client_of(b, tmp_path / "t") as target:
                await bridge_of(source, target, "orders").run_once()
        async with hub_at(tmp_path / "c") as other, hub_at(tmp_path / "b") as b:
            await write(other, tmp_path / "bob", "orders", b"another", b"history")
            transport = InProcess(other.api)
            with pytest.raises(Divergence):  # another key answers for the pinned hub
                async with (
                    client_at(transport, pin_of(a), person("bridge"), tmp_path / "s", ring=RING, retry=QUICK) as source,
                    client_of(b, tmp_path / "t") as target,
                ):
                    await bridge_of(source, target, "orders").run_once()

    run(scenario())
