"""Overlays over real streams: sealed by a client, ordered by a hub, read by another client, folded."""

import asyncio
import contextlib

import pytest
from tests.client.hubs import client_at, hub_at, person, pin_of, run

from veen.client.transport.inprocess import InProcess
from veen.overlays import kv
from veen.overlays.framework.link import send
from veen.overlays.framework.runner import MemorySource, Runner
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.framework.state import state_bytes
from veen.overlays.rpc import messages as rpc
from veen.overlays.rpc.ends import CallContext, Caller, NoAnswer, Server


@contextlib.asynccontextmanager
async def two_clients(tmp_path):
    async with (
        hub_at(tmp_path / "hub") as hub,
        client_at(InProcess(hub.api), pin_of(hub), person("alice"), tmp_path / "alice") as alice,
        client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as bob,
    ):
        yield alice, bob


@pytest.mark.req("OVL-01", "OVL-03", "OVL-07", "OVL-11", "CKQ-02", "CKQ-04")
def test_two_readers_of_one_stream_hold_the_same_state_and_a_snapshot_knows_its_log(tmp_path):
    async def check():
        async with two_clients(tmp_path) as (alice, bob):
            for n in range(7):
                await send((alice, bob)[n % 2], "orders", kv.put(f"key {n % 3}", n))
            entries = [[entry async for entry in client.read("orders")] for client in (alice, bob)]
            fold = kv.KvFold()
            states = [
                fold.view(Runner(fold, MemorySource(e.event for e in part), interval=2).summary()) for part in entries
            ]
            assert {key: entry.value.value for key, entry in states[0].items()} == {"key 0": 6, "key 1": 4, "key 2": 5}
            assert state_bytes(states[0]) == state_bytes(states[1])
            last = entries[0][-1].receipt
            cut = Cut(label=last.label, upto_seq=last.stream_seq, mmr_root=last.mmr_root)
            snapshot = Snapshot.take(fold, fold.summarize(e.event for e in entries[0]), [cut])
            roots = {(e.receipt.label, e.seq): e.receipt.mmr_root for e in entries[1]}
            assert fold.view(snapshot.restore(fold, lambda label, seq: roots[label, seq])) == states[1]
            with pytest.raises(SnapshotRefused):
                snapshot.restore(fold, lambda label, seq: roots[label, seq - 1])

    run(check())


@pytest.mark.req("RPC-02", "RPC-05", "RPC-06")
def test_calls_are_answered_over_a_hub_once_and_a_silent_server_is_told_by_a_code(tmp_path):
    done = []

    async def double(args: int, context: CallContext) -> int:
        done.append(context.client_id)
        return 2 * args

    async def check():
        async with two_clients(tmp_path) as (alice, bob):
            server = asyncio.create_task(Server(bob, "orders", {"double": double}, servers=[bob.client_id]).run())
            async with Caller(alice, "orders", servers=[bob.client_id]) as caller:
                results = await asyncio.gather(*(caller.call("double", n) for n in range(5)))
                assert results == [0, 2, 4, 6, 8]
                assert [await caller.call("double", 21, idem=1) for _ in range(2)] == [42, 42]
                assert done == [alice.client_id] * 6
                server.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await server
                with pytest.raises(NoAnswer):
                    await caller.call("double", 1, timeout=0.05)
            events = [entry.event async for entry in alice.read("orders")]
            fold = rpc.RpcFold(servers=[bob.client_id])
            statuses = [call.status for call in fold.view(fold.summarize(events)).calls.values()]
            assert statuses == ["answered"] * 7 + ["open"]

    run(check())
