"""Attachments through a hub: a thousand in one message, and none but the declared ones (spec §4.6, D-15, D-16)."""

import pytest
from tests.client.hubs import GATED, RING, all_of, client_at, connected, person, pin_of, run, token_for

from veen.client.errors import Dropped, HubRefused, ProofInvalid
from veen.client.inprocess import InProcess
from veen.client.sealing import Attach, Draft
from veen.core.attached import ATTACHED_SCHEMA
from veen.core.attachments import att_root_of
from veen.core.errors import LimitError
from veen.core.limits import DEFAULT_LIMITS
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
                assert entry.event.hdr.att_root == att_root_of([one.coid for one in entry.attachments])
                assert [one.name for one in entry.attachments] == [f"{number}.txt" for number in range(count)]
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
                one.data for one in files(3)
            ]

    run(check())
