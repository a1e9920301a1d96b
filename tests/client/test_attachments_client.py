"""Attachments through a hub: a thousand in one message, and none but the declared ones (spec §4.6, D-15, D-16)."""

import pytest
from tests.client.hubs import GATED, OPEN, RING, Clock, all_of, client_at, connected, person, pin_of, run, token_for

from veen.client.errors import Dropped, HubRefused, ProofInvalid
from veen.client.send.sealing import Attach, Draft
from veen.client.transport.inprocess import InProcess
from veen.core.errors import LimitError
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, att_root_of
from veen.io.local import OsFs
from veen.storage.attachments import AttachmentFiles
from veen.storage.copies.copying import clone
from veen.testing.hostile import Replaces


def files(count):
    return [
        Attach(data=b"file %d " % number * 3, name=f"{number}.txt", media_type="text/plain") for number in range(count)
    ]


@pytest.mark.req("ATT-04", "ATT-07", "ATT-08", "ATT-10")
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_one_file_or_a_thousand_travel_with_one_message(tmp_path, count):
    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send("orders", b"see attachments", attachments=files(count))
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", ring=RING) as other:
                (entry,) = await all_of(other.read("orders"))
                assert entry.body == b"see attachments"
                assert entry.event is not None
                assert entry.event.hdr.schema == ATTACHED_SCHEMA
                assert entry.event.hdr.att_root == att_root_of([attachment.coid for attachment in entry.attachments])
                assert [attachment.name for attachment in entry.attachments] == [
                    f"{number}.txt" for number in range(count)
                ]
                for number, sent in enumerate(files(count)):
                    assert await other.attachments.get(entry, number) == sent.data

    run(check())


@pytest.mark.req("ATT-09", "LIM-04")
def test_one_attachment_too_many_or_too_large_is_refused_before_anything_is_sent(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            wire.calls.clear()
            with pytest.raises(LimitError):
                await client.send("orders", b"", attachments=[b"x"] * (DEFAULT_LIMITS.max_attachments_per_msg + 1))
            with pytest.raises(LimitError):
                await client.send("orders", b"", attachments=[bytes(DEFAULT_LIMITS.max_attachment_bytes + 1)])
            assert wire.calls == []
            largest = bytes(DEFAULT_LIMITS.max_attachment_bytes)
            await client.send("orders", b"", attachments=[largest])
            (entry,) = await all_of(client.read("orders"))
            assert await client.attachments.get(entry, 0) == largest

    run(check())


@pytest.mark.req("ATT-08")
def test_another_attachment_than_the_declared_one_is_caught(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, wire, client):
            await client.send("orders", b"", attachments=[b"one", b"two"])
            (entry,) = await all_of(client.read("orders"))
            second = await client.attachments.fetch(entry.attachments[1].coid)
            wire.lies.append(Replaces("tooling/attachment/", second))
            with pytest.raises(ProofInvalid):
                await client.attachments.get(entry, 0)
            wire.lies.clear()
            assert await client.attachments.get(entry, 1) == b"two"

    run(check())


@pytest.mark.req("ATT-08")
def test_the_bytes_of_an_attachment_are_compared_with_its_coid(tmp_path):
    """`fetch` opens nothing, so the hash alone tells that the hub serves something else."""

    async def check():
        async with connected(tmp_path) as (_, wire, client):
            coid = await client.attachments.put(b"\x01" * 20)
            assert await client.attachments.fetch(coid) == b"\x01" * 20
            wire.lies.append(Replaces("tooling/attachment/", b"\x02" * 20))
            with pytest.raises(ProofInvalid) as caught:
                await client.attachments.fetch(coid)
            assert (caught.value.expected, caught.value.found) == (coid, H(b"\x02" * 20))

    run(check())


def test_an_attachment_that_the_hub_lost_is_named(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            with pytest.raises(Dropped):
                await client.attachments.fetch(b"c" * 32)

    run(check())


@pytest.mark.req("GEN-12")
def test_attachments_need_the_grant_of_a_writer(tmp_path):
    async def check():
        async with connected(tmp_path, settings=GATED) as (_, _, client):
            with pytest.raises(HubRefused) as refused:
                await client.attachments.put(b"\x00" * 20)
            assert refused.value.detail_enum == "CAP_MISSING"
            with pytest.raises(HubRefused):
                await client.send("orders", b"", attachments=[b"no grant", b"at all"])
            await client.send("orders", b"", attachments=[b"granted"], capability=token_for(client.client_id))
            (entry,) = await all_of(client.read("orders"))
            assert await client.attachments.get(entry, 0) == b"granted"

    run(check())


def test_prepared_messages_bring_their_attachments(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            prepared = await client.prepare("orders", [Draft(body=b"x", attachments=files(3))])
            await client.submit_prepared("orders", prepared)
            (entry,) = await all_of(client.read("orders"))
            assert [await client.attachments.get(entry, number) for number in range(3)] == [
                file.data for file in files(3)
            ]

    run(check())


@pytest.mark.parametrize("gated", [False, True])
def test_attachments_are_erased_with_the_entries_they_belong_to(tmp_path, gated):
    """Retention lets the first chunk go: its attachments go too, those of live entries and of no entry stay."""
    clock = Clock()
    settings = {**(GATED if gated else OPEN), "limits.max_checkpoint_interval": "2", "retention.payloads": "30d"}

    async def retire(hub):
        hub.sequencer.retire_idle()
        await hub.sequencer.drain()
        await hub.sequencer._retired.wait()

    async def check():
        async with connected(tmp_path, clock=clock, settings=settings) as (hub, _, client):
            token = token_for(client.client_id, ttl=10**9) if gated else None
            for number in range(3):
                await client.send("orders", b"", attachments=[b"%d" % number, b"also"], capability=token)
            auth_ref = token.auth_ref() if token else None
            alone = await client.attachments.put(b"\x00" * 20, auth_ref)
            coids = [
                [attachment.coid for attachment in entry.attachments] for entry in await all_of(client.read("orders"))
            ]
            await retire(hub)
            clock.now += 31 * 86_400
            assert await hub.house.erase(hub.config.retention) == 1
            assert await hub.house.erase_attachments() == 0  # the chunk is still there
            await retire(hub)
            assert await hub.house.erase_attachments() == 4
            for coid in (*coids[0], *coids[1]):
                with pytest.raises(Dropped):
                    await client.attachments.fetch(coid)
            for coid in (*coids[2], alone):
                await client.attachments.fetch(coid)
            owner = client.client_id if gated else b""
            assert hub.attachments.bytes_of(owner) == 20 + (1 + 16) + (4 + 16)
            assert await hub.house.erase_attachments() == 0

    run(check())


def test_a_clone_knows_whose_attachments_it_has(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            await client.send("orders", b"", attachments=[b"one"])

    run(check())
    clone(OsFs(tmp_path / "hub"), OsFs(tmp_path / "clone"), with_keys=False)
    files = AttachmentFiles(OsFs(tmp_path / "clone"))
    assert files.bytes_of(b"") == 3 + 16
    assert files.sweep(lambda ref: ref.client_seq == 1) == 1
    files.close()
