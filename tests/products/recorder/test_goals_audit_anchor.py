"""goals_audit_anchor of the product specification: the root over all streams is anchored and can be checked there."""

import asyncio

import pytest
from tests.client.hubs import run
from tests.products.recorder.agents import lines_source, numbered, run_agent
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.test_evidence import checkpointed, judged

from veen.core.objects.control import AnchorPublish
from veen.core.objects.tooling import AnchorsResponse
from veen.products.recorder.events import CHECKPOINTS_STREAM
from veen.products.recorder.setup import read_chain


def covers(body, upto_seq):
    return isinstance(body, AnchorPublish) and body.upto_seq >= upto_seq


async def anchor_of(hub, label, upto_seq):
    """The hub anchors labels that grew: wait for the anchor that covers the entry `upto_seq`."""
    while True:
        reply = await hub.api.call("anchor_list", query={"label": label.hex()})
        listed = AnchorsResponse.from_bytes(reply.body)
        records = [item.record for item in listed.anchors if covers(item.record.body, upto_seq)]
        if records:
            return records[0]
        await asyncio.sleep(0.05)


@pytest.mark.req("SDR-06", "AGB-18")
def test_goals_audit_anchor(tmp_path):
    """An anchor of the stream of checkpoints holds every log_root, and so every entry of every stream."""

    async def story():
        async with recorder_at(tmp_path, settings={"anchor.every": "1s"}) as world:
            await run_agent(world, [lines_source(numbered(25))])
            await checkpointed(world)
            await run_agent(world, [lines_source(numbered(30))])
            last = await checkpointed(world)
            async with world.client(ADMIN) as client:
                label = client.label(CHECKPOINTS_STREAM)
                record = await anchor_of(world.hub, label, last.seq)
                body = record.body
                assert isinstance(body, AnchorPublish)
                client.pin.check_control(record)
                # Outside: the backend knows the root. Inside: the last checkpoint stands under it.
                anchors = world.hub.anchors
                assert anchors.verify(body.mmr_root, body.anchor_ref)
                assert not anchors.verify(bytes(32), body.anchor_ref)
                proven = await client.proof(CHECKPOINTS_STREAM, last.seq, tree_size=body.upto_seq)
                assert proven.root == body.mmr_root
                assert proven.receipt.leaf_hash == last.msg_id
                chain = await read_chain(client, [client.client_id])
                assert chain.last is not None
                assert chain.last.body.log_root == last.body.log_root
            assert (await judged(world)).ok

    run(story())
