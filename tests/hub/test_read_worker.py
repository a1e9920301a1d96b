"""Large work for readers does not run on the thread that orders messages, and there is only so much of it."""

import asyncio
import logging
import os
import socket
import threading
import time
from functools import partial

import pytest
from tests.hub import builders as w
from tests.hub.servers import LiveHub, post, split_answers
from tests.waiting import eventually, until

from veen.core.limits import Limits
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.hub.api.read_worker import ReadWorker
from veen.hub.api.reply import ApiError
from veen.hub.sequencer.writer_priority import WriterPriority
from veen.io.local import OsFs
from veen.storage.maintenance.retention import Erasure, prepare
from veen.storage.maintenance.scrub import compress_chunk
from veen.storage.reader import Packed, Unpacked

INTERVAL = 8


class WatchedFile:
    def __init__(self, file, path, reads):
        self._file, self._path, self._reads = file, path, reads

    def read_at(self, offset, size):
        if size > 1:  # the first byte tells whether it is compressed
            self._reads.append((self._path, threading.current_thread().name))
        return self._file.read_at(offset, size)

    def __getattr__(self, name):
        return getattr(self._file, name)


class WatchedFs(OsFs):
    """A real directory that remembers which thread read which file."""

    def __init__(self, root):
        super().__init__(root)
        self.reads: list[tuple[str, str]] = []

    def open(self, path, *, create=False):
        return WatchedFile(super().open(path, create=create), path, self.reads)


@pytest.mark.parametrize("kind", ["compressed", "erased"])
def test_a_packed_file_is_unpacked_by_another_thread(tmp_path, kind):
    fs = WatchedFs(tmp_path)
    with LiveHub(tmp_path, limits=Limits(max_checkpoint_interval=INTERVAL), open_fs=lambda _: fs) as hub:
        sequencer = hub.services.sequencer

        async def fill():
            messages = [w.msg(token=w.FREE_TOKEN, seq=seq).to_bytes() for seq in range(1, 3 * INTERVAL)]
            receipts = await asyncio.gather(*(sequencer.submit(message) for message in messages))
            await sequencer.drain()
            sequencer.retire_idle()
            await sequencer.drain()
            await sequencer._retired.wait()
            store = sequencer.store
            for seq in (1, INTERVAL + 1):
                chunk = store.chunk_at(store.files(w.LABEL), seq)
                if kind == "compressed":
                    compress_chunk(fs, w.LABEL, chunk)
                else:
                    erasure = Erasure(w.LABEL, chunk, "payloads")
                    prepare(fs, erasure)
                    await sequencer.control(lambda _, erasure=erasure: erasure.record(0))
            return receipts

        receipts = hub.run(fill(), timeout=60)
        fs.reads.clear()
        for seq in (2, INTERVAL + 2, 3, INTERVAL + 3):
            answer = hub.call("/v1/receipt", ReceiptRequest(label=w.LABEL, stream_seq=seq), ReceiptResponse)
            assert answer.receipt.to_bytes() == receipts[seq - 1]
            hub.call("/v1/checkpoint", CheckpointRequest(label=w.LABEL, upto_seq=seq), CheckpointResponse)
        if kind == "compressed":
            request = StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True)
            page = hub.call("/v1/stream", request, StreamResponse)
            assert [item.stream_seq for item in page.items] == list(range(1, 3 * INTERVAL))
        packed = "chunk-" if kind == "compressed" else "receipts-"
        reads = [(path, thread) for path, thread in fs.reads if packed in path]
        assert len(reads) == 2, reads  # each file once
        assert all(thread.startswith("veen-reads") for _, thread in reads), reads


class Slow(Packed):
    """A file that takes until somebody lets it."""

    def unpack(self):
        COUNTS.append(self.path)
        assert GATE.wait(30)
        return Unpacked(self.path.encode(), ())


COUNTS: list[str] = []
GATE = threading.Event()


def slow(path):
    return Slow(None, path, 1)  # type: ignore[arg-type]  # nothing is read


@pytest.fixture
def gate():
    COUNTS.clear()
    GATE.clear()
    yield GATE
    GATE.set()


def test_those_who_ask_for_the_same_file_share_the_work_and_others_are_bounded(gate):
    async def scenario():
        worker = ReadWorker(WriterPriority(), max_files=2)
        waiting = [asyncio.create_task(worker.unpack(slow(path))) for path in "aabab"]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await worker.unpack(slow("c"))
        assert refused.value.status == 503
        waiting[0].cancel()  # whoever goes away takes nothing from the others
        gate.set()
        answers = await asyncio.gather(*waiting[1:])
        assert [answer.frames for answer in answers] == [b"a", b"b", b"a", b"b"]
        assert COUNTS == ["a", "b"]
        assert (await worker.unpack(slow("c"))).frames == b"c"
        worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_worker_that_stops_refuses_what_waits_and_what_comes(gate):
    """Work that has begun is finished; the rest gets 503, and none of it is an error of the hub."""

    async def scenario():
        worker, begun = ReadWorker(WriterPriority()), threading.Event()

        def first():
            begun.set()
            return gate.wait(30)

        running = [asyncio.create_task(worker.run(first)), asyncio.create_task(worker.unpack(slow("first")))]
        await eventually(lambda: begun.is_set() and COUNTS == ["first"])
        waiting = [asyncio.create_task(worker.run(lambda: 1)), asyncio.create_task(worker.unpack(slow("a")))]
        await eventually(lambda: worker._thread._work_queue.qsize() == worker._unpacker._work_queue.qsize() == 1)
        worker.close()
        late = [asyncio.create_task(worker.run(lambda: 2)), asyncio.create_task(worker.unpack(slow("b")))]
        refusals = await asyncio.gather(*waiting, *late, return_exceptions=True)
        assert [each.message for each in refusals if isinstance(each, ApiError) and each.status == 503] == [
            "the hub is stopping"
        ] * 4
        gate.set()
        assert [await each for each in running] == [True, Unpacked(b"first", ())]

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="threads have no priority of their own here")
def test_only_work_that_does_not_need_the_interpreter_has_a_lower_priority():
    """The event loop's thread would wait for an interpreter that belongs to a thread which does not run."""

    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    class Asking(Packed):
        def unpack(self):
            return Unpacked(str(priority()).encode(), ())

    async def scenario():
        worker, own = ReadWorker(WriterPriority()), priority()
        assert await worker.run(priority) == own
        lower = await worker.unpack(Asking(None, "path", 1))  # type: ignore[arg-type]  # nothing is read
        assert int(lower.frames) > own or own == 19
        worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_requests_that_wait_when_the_hub_stops_get_503_and_no_line_in_the_log(tmp_path, caplog, gate):
    """They are answered, in order, before their connections are closed."""
    with LiveHub(tmp_path) as hub:

        async def fill():
            for seq in range(1, 9):
                await hub.services.sequencer.submit(w.msg(token=w.FREE_TOKEN, seq=seq).to_bytes())

        hub.run(fill())
        worker = hub.api.context.read_worker
        hub.on_loop(lambda: asyncio.ensure_future(worker.run(partial(gate.wait, 30))))
        request = StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True).to_bytes()
        asked = post("/v1/stream", request, "Accept: application/json")
        with socket.create_connection((hub.host, hub.port), timeout=30) as client:
            client.sendall(asked + asked)
            until(lambda: hub.on_loop(lambda: worker._working) == 2)
            stopping = asyncio.run_coroutine_threadsafe(hub.server.stop(30), hub.loop)
            received = b""
            while part := client.recv(65536):
                received += part
        gate.set()
        stopping.result(60)
    assert [status for status, _, _ in split_answers(received)] == [503, 503]
    assert b"the hub is stopping" in received
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


def test_other_work_is_bounded_too(gate):
    async def scenario():
        worker = ReadWorker(WriterPriority(), max_work=2)
        waiting = [asyncio.create_task(worker.run(partial(gate.wait, 30))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError):
            await worker.run(lambda: 3)
        gate.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await worker.run(lambda: 3) == 3
        worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_while_somebody_writes_work_is_done_in_slices_that_are_charged_to_readers():
    """A page of large entries is not one long turn: after each slice the ordering thread has its share."""
    charged = []

    class Recorded(WriterPriority):
        def charge(self, seconds):
            charged.append(seconds)
            super().charge(seconds)

    def work(number):
        until = time.thread_time() + 0.003  # more than a slice
        while time.thread_time() < until:
            pass
        return number * number

    async def scenario():
        priority = Recorded()
        priority.note_write()
        worker = ReadWorker(priority)
        assert await worker.each(work, range(5)) == [0, 1, 4, 9, 16]
        assert len(charged) == 5
        assert all(seconds >= 0.003 for seconds in charged)
        charged.clear()
        assert await worker.each(str, range(100)) == [str(number) for number in range(100)]
        assert len(charged) < 100  # what is short shares a slice
        assert await worker.each(str, []) == []
        worker.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
