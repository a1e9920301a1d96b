"""`veen selftest overlays`: every overlay of everyday use, end to end, between several identities on real hubs."""

import asyncio
import contextlib
from typing import Any, Final

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.core.event import Event
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.link import send
from veen.overlays.framework.runner import MemorySource, Runner
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.framework.state import state_hash
from veen.overlays.rpc import messages as rpc
from veen.overlays.rpc.ends import CallContext, Caller, NoAnswer, RpcFailed, Server
from veen.products.selftest.identities import IDENTITY_CHECKS
from veen.products.selftest.suite import Suite, World, events_of, expect, fold_over, same_state
from veen.products.selftest.wallets import WALLET_CHECKS


async def _pair(world: World, stream: str) -> tuple[Client, Client, StreamKeys]:
    keys = world.keys(stream)
    return await world.client("alice", keys), await world.client("bob", keys), keys


async def _kv(world: World) -> None:
    alice, bob, keys = await _pair(world, "kv")
    for n in range(6):
        await send((alice, bob)[n % 2], keys.stream_id, kv.put(f"key {n % 3}", n))
    await send(alice, keys.stream_id, kv.delete("key 1"))
    state = await same_state(kv.KvFold(), keys, alice, bob)
    values = {key: entry.value.value for key, entry in state.items()}
    expect(values == {"key 0": 3, "key 2": 5}, f"the last writer wins, but the state is {values}")


async def _crud(world: World) -> None:
    alice, bob, keys = await _pair(world, "crud")
    await send(alice, keys.stream_id, crud.create("user", "1", {"name": "Ann"}))
    await send(alice, keys.stream_id, crud.update("user", "1", {"name": "Anna"}, if_rev=1))
    late = await send(bob, keys.stream_id, crud.update("user", "1", {"name": "Bert"}, if_rev=1))
    state = await same_state(crud.CrudFold(), keys, alice, bob)
    record = state["user"]["1"]
    expect(record.rev == 2 and record.fields.value == {"name": "Anna"}, f"the record is {record}")
    issues = (await fold_over(bob, crud.CrudFold(), keys)).issues
    expect([(issue.stream_seq, issue.code) for issue in issues] == [(late.seq, "CRUD.REV")], f"reported: {issues}")


async def _queue(world: World) -> None:
    alice, bob, keys = await _pair(world, "queue")
    first, second = [(await send(alice, keys.stream_id, queue.enqueue(item))).msg_id for item in ("one", "two")]
    await send(bob, keys.stream_id, queue.nack(first, group="g"))
    state = await same_state(queue.QueueFold(), keys, alice, bob)
    expect([p.msg_id for p in state.pending("g")] == [first, second], "items stand in the order of the log")
    expect(state.pending("g")[0].attempt == 2, "a redelivery can be seen")
    await send(bob, keys.stream_id, queue.ack(first, group="g"))
    state = await same_state(queue.QueueFold(), keys, alice, bob)
    expect([p.msg_id for p in state.pending("g")] == [second], "what a group acknowledged is done for it")
    expect(len(state.pending("other")) == 2, "and for no other group")


async def _crdt(world: World) -> None:
    alice, bob, keys = await _pair(world, "crdt")
    stream = keys.stream_id
    await send(alice, stream, crdt.lww_set(b"k", b"new", ts=2))
    await send(bob, stream, crdt.lww_set(b"k", b"old", ts=1))
    await send(alice, stream, crdt.orset_add(b"milk", add_id=b"\x01" * 32))
    await send(bob, stream, crdt.orset_add(b"milk", add_id=b"\x02" * 32))
    await send(alice, stream, crdt.orset_remove([b"\x01" * 32]))
    await asyncio.gather(
        send(alice, stream, crdt.counter_add(alice.client_id, 2)), send(bob, stream, crdt.counter_add(bob.client_id, 3))
    )
    registers = await same_state(crdt.LwwFold(), keys, alice, bob)
    expect(registers[b"k"].value == b"new", "the write with the greatest time wins")
    members = await same_state(crdt.OrSetFold(), keys, alice, bob)
    expect(members[b"milk"].ids == (b"\x02" * 32,), "an add survives a remove that did not see it")
    shards = await same_state(crdt.CounterFold(), keys, alice, bob)
    expect(crdt.counter_value(shards) == 5, "counters add up")


async def _rpc(world: World) -> None:
    alice, bob, keys = await _pair(world, "rpc")
    done = []

    async def double(args: Any, context: CallContext) -> Any:
        done.append(context.msg_id)
        return 2 * args

    async def refuse(args: Any, context: CallContext) -> Any:
        raise RpcFailed("APP.NO", "not today")

    server = asyncio.create_task(
        Server(bob, keys.stream_id, {"double": double, "refuse": refuse}, servers=[bob.client_id]).run()
    )
    try:
        async with Caller(alice, keys.stream_id, servers=[bob.client_id]) as caller:
            answers = await asyncio.gather(*(caller.call("double", n) for n in range(4)))
            expect(answers == [0, 2, 4, 6], f"each call has its own answer: {answers}")
            twice = [await caller.call("double", 21, idem=1) for _ in range(2)]
            expect(twice == [42, 42] and len(done) == 5, "one idempotency key is one call")
            try:
                await caller.call("refuse")
            except RpcFailed as exc:
                expect(exc.code == "APP.NO", f"the server's own code: {exc.code}")
            else:
                expect(False, "a refusal reaches the caller")
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            try:
                await caller.call("double", 1, timeout=0.2)
            except NoAnswer as exc:
                expect(exc.code == "RPC.NO_ANSWER", "silence has a code")
            else:
                expect(False, "a call that nobody serves fails")
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server
    view = await same_state(rpc.RpcFold(servers=[bob.client_id]), keys, alice, bob)
    statuses = [call.status for call in view.calls.values()]
    expect(statuses.count("failed") == 1 and statuses[-1] == "open", f"the log tells how calls ended: {statuses}")


async def _check_malformed(world: World) -> None:
    alice, bob, keys = await _pair(world, "malformed")
    await send(alice, keys.stream_id, kv.put("a", 1))
    for body in (b"\xff", b"\xa1\x61a\x01", b"\xa2\x62op\x63put\x63key\x61b"):
        await alice.send(keys.stream_id, body, schema=kv.KV.id)
    await send(alice, keys.stream_id, kv.put("b", 2))
    state = await fold_over(bob, kv.KvFold(), keys)
    codes = [(issue.stream_seq, issue.code) for issue in state.issues]
    expect(codes == [(2, "OVL.CBOR"), (3, "OVL.BODY"), (4, "KV.VALUE")], f"each has a code at its position: {codes}")
    expect(sorted(state.state) == ["a", "b"], "and harms nothing")


async def _snapshots(world: World) -> None:
    alice, bob, keys = await _pair(world, "snapshots")
    for n in range(12):
        await send(alice, keys.stream_id, kv.put(f"k{n % 4}", n))
    fold = kv.KvFold()
    entries = [entry async for entry in bob.read(keys.stream_id)]
    events = [entry.event for entry in entries if entry.event is not None]
    cut = entries[7].receipt
    snapshot = Snapshot.take(
        fold,
        fold.summarize(events[:8]),
        [Cut(label=cut.label, upto_seq=cut.stream_seq, mmr_root=cut.mmr_root)],
    )
    roots = {(entry.receipt.label, entry.seq): entry.receipt.mmr_root for entry in entries}
    restored = Snapshot.from_bytes(snapshot.to_bytes()).restore(fold, lambda label, seq: roots[label, seq])
    whole = fold.view(fold.summarize(events))
    expect(
        fold.view(fold.merge(restored, fold.summarize(events[8:]))) == whole, "a snapshot and the rest are the whole"
    )
    try:
        snapshot.restore(fold, lambda label, seq: roots[label, seq - 1])
    except SnapshotRefused:
        pass
    else:
        expect(False, "a snapshot with another root is refused")
    runner = Runner(fold, MemorySource(events), interval=3)
    for upto in range(1, len(events) + 1):
        direct = fold.view(fold.summarize(events[:upto]))
        expect(runner.view({cut.label: upto}) == direct, f"a view as of {upto} is that of the shorter log")


async def _crash(world: World) -> None:
    if not world.owns_hubs:
        return  # a hub of somebody else is not ours to crash
    keys, bob = world.keys("crash"), world.person("bob")
    alice = await world.client("alice", keys)
    for n in range(5):
        await send(alice, keys.stream_id, kv.put(f"k{n}", n))
    before = await fold_over(await world.client(bob, keys), kv.KvFold(), keys)
    await world.crash()
    after = await fold_over(await world.client("carol", keys), kv.KvFold(), keys)
    expect(len(after.state) == 5, "what had a receipt survives a crash of the hub")
    expect(state_hash("kv", before.state) == state_hash("kv", after.state), "and gives the same state")


async def _concurrent(world: World) -> None:
    keys = world.keys("many")
    people = [await world.client(f"writer-{n}", keys) for n in range(4)]

    async def write(client: Client, name: str) -> None:
        for n in range(8):
            await send(client, keys.stream_id, crdt.counter_add(client.client_id, 1))
            await send(client, keys.stream_id, kv.put(name, n))

    await asyncio.gather(*(write(client, f"w{n}") for n, client in enumerate(people)))
    shards = await same_state(crdt.CounterFold(), keys, *people)
    expect(set(shards.values()) == {8}, f"every write counts once: {list(shards.values())}")
    state = await same_state(kv.KvFold(), keys, *people)
    expect({entry.value.value for entry in state.values()} == {7}, "each writer's last write stands")
    events = await events_of(people[0], keys)
    _any_cut(crdt.CounterFold(), events)


def _any_cut(fold: AnyFold, events: list[Event]) -> None:
    whole = state_hash(fold.name, fold.view(fold.summarize(events)))
    for at in range(0, len(events), 7):
        halves = fold.merge(fold.summarize(events[at:]), fold.summarize(events[:at]))
        expect(state_hash(fold.name, fold.view(halves)) == whole, f"a cut at {at} gives the same state")


SUITE: Final = Suite(
    name="overlays",
    about="every overlay of everyday use, between several identities",
    checks={
        "kv: the last writer wins, all readers agree": _kv,
        "crud: a change of an older revision counts for nothing": _crud,
        "queue: at least once, redelivery can be seen": _queue,
        "crdt: registers, sets and counters agree": _crdt,
        "rpc: answered, refused, repeated, unanswered": _rpc,
        "folds: many writers at once, any cut of the log": _concurrent,
        "folds: malformed bodies are reported and harm nothing": _check_malformed,
        "folds: snapshots are bound to their log, views to their moment": _snapshots,
        **IDENTITY_CHECKS,
        **WALLET_CHECKS,
        "hub: killed and started again, the state is the same": _crash,
    },
)
