"""Mirrors: each entry once, whatever kills them; nothing unverified; gaps named; a source that lies stops them."""

import asyncio
import contextlib
import sqlite3

import pytest
from tests.client.builders import seeded
from tests.client.hubs import ORDERS, QUICK, client_at, copy_of, hub_at, person, pin_of, run
from tests.examples import spread

from veen.client.errors import Divergence
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.sealing import Draft
from veen.client.transport.inprocess import InProcess
from veen.core.labels import schema_id
from veen.overlays.operations.mirror import MIRROR, FederationMirror, hub_identifier
from veen.products.federation import mirroring
from veen.products.federation.mirroring import (
    GAP_SCHEMA,
    CopyIndex,
    MirrorGap,
    MirrorInconsistent,
    attest_stream,
    check_mirror,
    copy_stream,
    without_keys,
)

MIRRORS = StreamKeys.create("mirrors", random=seeded("mirrors"))
RING = Keyring().with_keys(ORDERS).with_keys(MIRRORS)
BLIND = Keyring().with_keys(MIRRORS)
NOTE = schema_id("test.note.v1")


def now():
    return 1_700_000_000


@contextlib.asynccontextmanager
async def client_of(hub, home, name="mirror", ring=RING):
    async with client_at(InProcess(hub.api), pin_of(hub), person(name), home, ring=ring, retry=QUICK) as client:
        yield client


async def write(hub, home, count, first=1, name="alice"):
    async with client_of(hub, home, name) as client:
        for number in range(first, first + count):
            await client.send_many("orders", [Draft(body=b"order %d" % number, schema=NOTE)])


async def mirrored(client):
    """The records and copies in the target stream."""
    return [entry async for entry in client.read("mirrors")]


def statements(entries):
    return [FederationMirror.from_bytes(entry.body) for entry in entries if entry.event.hdr.schema == MIRROR.id]


def test_every_entry_is_attested_once_and_a_second_run_adds_nothing(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 5)
            async with client_of(a, tmp_path / "ma", ring=BLIND) as source, client_of(b, tmp_path / "mb") as target:
                report = await attest_stream(source, target, without_keys(source, "orders"), "mirrors", now=now)
                assert (report.sent, report.existed, report.gaps) == (5, 0, [])
                again = await attest_stream(source, target, without_keys(source, "orders"), "mirrors", now=now)
                assert (again.sent, again.existed) == (0, 5)
                records = statements(await mirrored(target))
                assert [record.source_stream_seq for record in records] == [1, 2, 3, 4, 5]
                assert {record.source_hub_identifier for record in records} == {hub_identifier(source.hub_id)}
                checked = await check_mirror(source, target, without_keys(source, "orders"), "mirrors")
                assert (checked.compared, checked.missing) == (5, ())
            await write(a, tmp_path / "alice", 2, first=6)
            async with client_of(a, tmp_path / "ma", ring=BLIND) as source, client_of(b, tmp_path / "mb") as target:
                assert [
                    run_of[1:]
                    for run_of in (
                        await check_mirror(source, target, without_keys(source, "orders"), "mirrors")
                    ).missing
                ] == [(6, 7)]
                assert (
                    await attest_stream(source, target, without_keys(source, "orders"), "mirrors", now=now)
                ).sent == 2

    run(scenario())


def test_attesting_holds_one_statement_of_a_label_however_many_there_are(tmp_path, monkeypatch):
    """REVIEW L1-6. What is counted are the statements that are held when all were read."""
    most = []
    add = mirroring._add_statement

    def counted(place, record):
        add(place, record)
        most.append(len(place.stated))

    monkeypatch.setattr(mirroring, "_add_statement", counted)

    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 12)
            async with client_of(a, tmp_path / "ma", ring=BLIND) as source, client_of(b, tmp_path / "mb") as target:
                name = without_keys(source, "orders")
                await attest_stream(source, target, name, "mirrors", now=now)
                again = await attest_stream(source, target, name, "mirrors", now=now)
                assert (again.sent, again.existed) == (0, 12)

    run(scenario())
    assert len(most) == 12
    assert max(most) <= 2  # the one before goes when the next one is read


@pytest.mark.req("ANC-05")
def test_a_copy_has_the_same_schema_and_body_and_names_its_origin(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 3)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                assert (await copy_stream(source, target, "orders", "mirrors", now=now)).sent == 3
                again = await copy_stream(source, target, "orders", "mirrors", now=now)
                assert (again.sent, again.existed) == (0, 3)
                origins = [entry async for entry in source.read("orders")]
                copies = await mirrored(target)
                assert [entry.body for entry in copies] == [entry.body for entry in origins]
                assert [entry.event.hdr.parent_id for entry in copies] == [entry.msg_id for entry in origins]
                assert {entry.event.hdr.schema for entry in copies} == {NOTE}
                labels = [{entry.receipt.label for entry in entries} for entries in (origins, copies)]
                assert labels[0].isdisjoint(labels[1])  # under the label of the hub that it was submitted to
                stated = [(c.event.origin.hub_id, c.event.origin.msg_id, c.event.origin.hub_ts) for c in copies]
                assert stated == [(source.hub_id, o.msg_id, o.receipt.hub_ts) for o in origins]

    run(scenario())


async def bodies(hub, home):
    async with client_of(hub, home, "reader") as client:
        return [entry.body async for entry in client.read("orders")]


@pytest.mark.parametrize("hubs", spread([2, 3], 1))
@pytest.mark.parametrize("acquainted", [True, False], ids=["bridges know each other", "strangers"])
def test_bridges_in_a_circle_multiply_nothing(tmp_path, hubs, acquainted):
    """An event is not copied to a hub that it has passed, also if no bridge knows another one."""
    names = [f"bridge{number}" for number in range(hubs)]
    keys = {person(name).client_id for name in names} if acquainted else set()

    async def scenario():
        async with contextlib.AsyncExitStack() as stack:
            ring = [await stack.enter_async_context(hub_at(tmp_path / f"hub{n}")) for n in range(hubs)]
            await write(ring[0], tmp_path / "alice", 2)
            await write(ring[1], tmp_path / "alice1", 1, first=3)
            counts = []
            for turn in range(2 * hubs):
                sent = 0
                for number, name in enumerate(names):
                    home = tmp_path / f"{name}{turn}"
                    onto = ring[(number + 1) % hubs]
                    async with (
                        client_of(ring[number], home / "s", name) as source,
                        client_of(onto, home / "t", name) as target,
                    ):
                        report = await copy_stream(source, target, "orders", "orders", now=now, bridges=keys)
                        sent += report.sent
                counts.append(sent)
            assert counts[-1] == 0
            for number, hub in enumerate(ring):
                assert sorted(await bodies(hub, tmp_path / f"reader{number}")) == [b"order 1", b"order 2", b"order 3"]

    run(scenario())


def test_a_copy_that_goes_on_from_its_index_is_the_one_from_the_start_and_reads_only_what_is_new(tmp_path):
    """The law that resumed equals from the start; an index of other streams is not used."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 8)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                index = CopyIndex(sqlite3.connect(tmp_path / "index.sqlite"))
                await copy_stream(source, target, "orders", "mirrors", now=now, index=index)
                index.close()  # the mirror ends here, and begins again
                index = CopyIndex(sqlite3.connect(tmp_path / "index.sqlite"))
                await write(a, tmp_path / "alice", 2, first=9)
                read = []
                for client in (source, target):
                    plain = client.read

                    def counted(*args, _plain=plain, **options):
                        async def entries():
                            async for entry in _plain(*args, **options):
                                read.append(entry.seq)
                                yield entry

                        return entries()

                    client.read = counted
                again = await copy_stream(source, target, "orders", "mirrors", now=now, index=index)
                assert (again.sent, again.existed) == (2, 0)
                assert sorted(read) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # its own 8 copies, and the 2 that are new
                assert (await copy_stream(source, target, "orders", "mirrors", now=now)).sent == 0
                last = await copy_stream(source, target, "orders", "orders", now=now, index=index)
                assert last.sent == 10
                assert [entry.body for entry in await mirrored(target)] == [b"order %d" % n for n in range(1, 11)]

    run(scenario())


@pytest.mark.parametrize("change", ["root", "bridges"])
def test_an_index_of_another_log_or_other_rules_is_begun_anew(tmp_path, change):
    """What an index says is believed only where both logs have the roots that it was made under."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 3)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                index = CopyIndex()
                await copy_stream(source, target, "orders", "mirrors", now=now, index=index)
                label = source.label("orders")
                upto, root = index.cuts("source")[label]
                assert upto == 3
                index.add_copy(b"x" * 32, has_origin=True)  # of the log that the index was made from
                if change == "root":
                    index.advance("source", {label: (upto, bytes(32))})
                bridges = [bytes(32)] if change == "bridges" else []
                report = await copy_stream(source, target, "orders", "mirrors", now=now, index=index, bridges=bridges)
                assert (report.sent, report.existed, index.has_copy(b"x" * 32)) == (0, 3, False)
                assert index.cuts("source")[label] == (3, root)

    run(scenario())


@pytest.mark.parametrize("has_index", [True, False])
def test_a_copy_goes_on_where_the_target_has_erased_the_first_copies(tmp_path, has_index):
    """The target's own copies are the state, and their payloads may be erased there."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b", limits__max_checkpoint_interval=2) as b:
            await write(a, tmp_path / "alice", 5)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                index = CopyIndex()
                await copy_stream(source, target, "orders", "mirrors", now=now, index=index)
                await erase(b)
                await write(a, tmp_path / "alice", 1, first=6)
                report = await copy_stream(
                    source, target, "orders", "mirrors", now=now, index=index if has_index else None
                )
                assert (report.sent, report.gaps) == (1, [])
                assert (await attest_stream(source, target, "orders", "mirrors", now=now)).sent == 6

    run(scenario())


@pytest.mark.parametrize("verb", spread([attest_stream, copy_stream], 2))
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_run_that_is_cut_off_anywhere_is_resumed_without_loss_or_double(tmp_path, monkeypatch, verb, after):
    """It ends between two batches, or after the hub took a batch and before the mirror heard of it."""
    monkeypatch.setattr(mirroring, "_BATCH", 2)

    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 7)
            for lost in (False, True):
                async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                    send_many, calls = target.send_many, 0

                    async def dying(*args, send_many=send_many, lost=lost, **options):
                        nonlocal calls
                        calls += 1
                        if calls > after:
                            if lost:
                                await send_many(*args, **options)
                            raise asyncio.CancelledError
                        return await send_many(*args, **options)

                    target.send_many = dying
                    with contextlib.suppress(asyncio.CancelledError):
                        await verb(source, target, "orders", "mirrors", now=now)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                await verb(source, target, "orders", "mirrors", now=now)
                origins = [entry.msg_id async for entry in source.read("orders")]
                assert [entry.event.hdr.parent_id for entry in await mirrored(target)] == origins

    run(scenario())


def test_records_of_others_block_nothing(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 2)
            async with client_of(a, tmp_path / "ma") as source:
                async with client_of(b, tmp_path / "mallory", name="mallory") as mallory:
                    await attest_stream(source, mallory, "orders", "mirrors", now=now)
                async with client_of(b, tmp_path / "mb") as target:
                    assert (await attest_stream(source, target, "orders", "mirrors", now=now)).sent == 2

    run(scenario())


def test_a_source_with_another_history_stops_the_mirror_with_both_receipts(tmp_path):
    """A mirror of a lying hub: the same key, another log."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 1)
        copy_of(tmp_path / "a", tmp_path / "fork")
        async with hub_at(tmp_path / "b") as b:
            async with hub_at(tmp_path / "a") as a:
                await write(a, tmp_path / "alice", 2, first=2)
                async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                    await attest_stream(source, target, "orders", "mirrors", now=now)
            async with hub_at(tmp_path / "fork") as fork:
                await write(fork, tmp_path / "bob", 3, first=7, name="bob")
                # A mirror that has only the target to remember by, and one that remembers the source as well.
                async with client_of(fork, tmp_path / "fresh") as source, client_of(b, tmp_path / "mb") as target:
                    with pytest.raises(MirrorInconsistent) as caught:
                        await attest_stream(source, target, "orders", "mirrors", now=now)
                    assert caught.value.code == "E.MIRROR.INCONSISTENT"
                    evidence = caught.value.evidence
                    assert evidence is not None
                    evidence.verify()
                    assert len(evidence.to_bytes()) <= 512
                    with pytest.raises(MirrorInconsistent):
                        await check_mirror(source, target, "orders", "mirrors")
                    assert len(await mirrored(target)) == 3
                async with client_of(fork, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                    with pytest.raises((Divergence, MirrorInconsistent)):
                        await copy_stream(source, target, "orders", "mirrors", now=now)

    run(scenario())


def test_what_is_erased_is_attested_by_its_receipt_or_named_as_a_gap(tmp_path):
    """PRODUCTS §8: a pruned range is forwarded as an explicit gap record, never skipped."""
    limits = {"limits__max_checkpoint_interval": 2}

    async def scenario():
        async with hub_at(tmp_path / "a", **limits) as a, hub_at(tmp_path / "b") as b:
            await write(a, tmp_path / "alice", 5)
            await erase(a)
            async with client_of(a, tmp_path / "ma") as source, client_of(b, tmp_path / "mb") as target:
                report = await attest_stream(source, target, "orders", "mirrors", now=now)
                assert (report.sent, report.gaps) == (5, [])
                copied = await copy_stream(source, target, "orders", "mirrors", now=now)
                assert [gap[1:] for gap in copied.gaps] == [(1, 4, "pruned")]
                gaps = [
                    MirrorGap.from_bytes(entry.body)
                    for entry in await mirrored(target)
                    if entry.event.hdr.schema == GAP_SCHEMA
                ]
                assert [(gap.first_seq, gap.last_seq, gap.reason) for gap in gaps] == [(1, 4, "pruned")]
                assert (await copy_stream(source, target, "orders", "mirrors", now=now)).gaps == []

    run(scenario())


async def erase(hub):
    """Have the payloads of all sealed chunks erased, as retention does with old ones."""
    from veen.hub.process.config import Retention

    hub.sequencer.retire_idle()
    await hub.sequencer.drain()
    await asyncio.sleep(1.1)  # entries must be older than a second: time itself is the subject
    while not await hub.house.erase(Retention(payloads=1)):
        hub.sequencer.retire_idle()
        await asyncio.sleep(0.05)
