"""Retention and compression beside a hub that writes: decided by the store, not by an index of before."""

import asyncio
import json

import pytest
from tests.hub import builders as w
from tests.hub.test_runtime import assert_whole, fs_of, run, running, submit

from veen.core.objects.control import RetentionDrop
from veen.core.objects.receipt import Receipt
from veen.hub.process import housekeeping
from veen.io.errors import CorruptError
from veen.storage.control_state import control_records
from veen.storage.maintenance.scrub import pack_chunk

YEAR = 365 * 86_400
FLAGS = {"limits__max_checkpoint_interval": "2", "retention__payloads": "30d", "engine__max_clock_step": "0"}
PACKED = {"limits__compression": "zlib"}


async def retire(hub):
    await hub.sequencer.drain()
    assert hub.sequencer.retire_idle()
    await hub.sequencer.drain()
    await hub.sequencer._retired.wait()


async def receipt_of(hub, stream_seq):
    body = json.dumps({"ver": 1, "label": w.LABEL.hex(), "stream_seq": stream_seq}).encode()
    reply = await hub.api.call("receipt", body, form="json")
    return reply.status, json.loads(reply.body).get("receipt")


def chunks(hub):
    return sorted((hub.fs.root / "log").glob("chunk-*.log"))


@pytest.mark.parametrize("receipts", ["0", "3650d"])
def test_three_looks_of_retention_without_a_retirement_erase_payloads_once_and_no_receipt(tmp_path, receipts):
    """The second look erased the receipts that the policy keeps, the third one ended housekeeping."""
    now = [w.NOW]

    async def scenario():
        flags = {**FLAGS, "retention__receipts": receipts, "engine__retire_seconds": "0"}
        async with running(tmp_path, clock=lambda: now[0], **flags) as hub:
            sent = await submit(hub, 5)
            await retire(hub)
            now[0] += YEAR
            assert [await hub.house.erase(hub.config.retention) for _ in range(3)] == [2, 0, 0]
            for _ in range(2):
                for number in (1, 4):
                    status, receipt = await receipt_of(hub, number)
                    assert (status, Receipt.from_json(receipt).to_bytes()) == (200, sent[number - 1])
                await retire(hub)
            assert not chunks(hub)

    run(scenario())
    records = [record for _, record in control_records(fs_of(tmp_path))]
    assert sum(isinstance(record.body, RetentionDrop) for record in records) == 2
    assert_whole(tmp_path)


def test_two_looks_of_retention_at_the_same_time_erase_once(tmp_path):
    """The record of the other look may be on its way to the disk."""
    now = [w.NOW]

    async def scenario():
        async with running(tmp_path, clock=lambda: now[0], **FLAGS, engine__retire_seconds="0") as hub:
            await submit(hub, 9)
            await retire(hub)
            now[0] += YEAR
            counts = await asyncio.gather(*(hub.house.erase(hub.config.retention) for _ in range(4)))
            assert sum(counts) == 4
            assert (await receipt_of(hub, 1))[0] == 200

    run(scenario())
    assert_whole(tmp_path)


def test_a_chunk_that_retention_erases_while_it_is_compressed_does_not_come_back(tmp_path, monkeypatch):
    """Compression wrote it again, for good, and the next chunk ended housekeeping."""
    now = [w.NOW]

    async def scenario():
        flags = {**FLAGS, **PACKED, "engine__retire_seconds": "0"}
        async with running(tmp_path, clock=lambda: now[0], **flags) as hub:
            await submit(hub, 5)
            await retire(hub)
            now[0] += YEAR
            loop, pack = asyncio.get_running_loop(), pack_chunk

            def slow_pack(*args):
                packed = pack(*args)
                if chunks(hub):  # the other task runs while the first chunk is compressed
                    asyncio.run_coroutine_threadsafe(erase(hub), loop).result()
                return packed

            monkeypatch.setattr(housekeeping, "pack_chunk", slow_pack)
            assert await hub.house.compress() == 0
            assert not chunks(hub)
            monkeypatch.undo()
            assert await hub.house.compress() == 0

    async def erase(hub):
        await hub.house.erase(hub.config.retention)
        await retire(hub)

    run(scenario())
    assert_whole(tmp_path)


def test_a_chunk_that_is_erased_but_not_yet_removed_is_not_compressed(tmp_path):
    now = [w.NOW]

    async def scenario():
        flags = {**FLAGS, **PACKED, "engine__retire_seconds": "0"}
        async with running(tmp_path, clock=lambda: now[0], **flags) as hub:
            await submit(hub, 5)
            await retire(hub)
            now[0] += YEAR
            assert await hub.house.erase(hub.config.retention) == 2
            assert await hub.house.compress() == 0

    run(scenario())
    assert_whole(tmp_path)


def test_a_chunk_that_is_lost_is_damage_and_not_the_end_of_housekeeping(tmp_path):
    """Nothing erased it, so it is named."""

    async def scenario():
        async with running(tmp_path, **FLAGS, **PACKED, engine__retire_seconds="0") as hub:
            await submit(hub, 5)
            await retire(hub)
            chunks(hub)[0].unlink()
            with pytest.raises(CorruptError, match="the file is missing"):
                await hub.house.compress()

    run(scenario())
