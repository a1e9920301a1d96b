"""The pipeline: ordered, durable before answered, and honest when the disk is not."""

import asyncio
import errno

import pytest
from tests.hub import hubworld as w

from veen.core.control import LimitsSet, StreamRegister
from veen.core.errors import Refusal
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.receipt import Receipt
from veen.hub.admission import Refuse
from veen.hub.observe import NullObserver
from veen.hub.pipeline import Overloaded, Pipeline, Stopped
from veen.storage.errors import NoSpaceError
from veen.storage.fs import OsFs
from veen.storage.store import Store
from veen.testing.memfs import Fault, MemFs

POLICY = w.policy(preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
RECORDS = 2  # with the first message of a label: its token is authorised, the label opens


def open_store(fs, limits=DEFAULT_LIMITS, segment_bytes=64_000_000):
    return Store.open(fs, limits, w.seal, segment_bytes=segment_bytes)


def pipeline(store, *, workers=0, clock=lambda: w.NOW, policy=POLICY, **options):
    return Pipeline(store, w.Signer(), policy, w.resolver(), workers=workers, clock=clock, **options)


def message(seq, **kwargs):
    return w.msg(token=w.FREE_TOKEN, seq=seq, **kwargs).to_bytes()


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 30))


@pytest.mark.req("GEN-02", "ADM-05", "RCPT-03", "RCPT-04", "RCPT-05", "RCPT-06", "OP0-05")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_messages_get_receipts_in_the_order_of_arrival(tmp_path, workers):
    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)), workers=workers)
        answers = await asyncio.gather(*(line.submit(message(seq)) for seq in range(1, 41)))
        await line.close()
        return [Receipt.from_bytes(answer) for answer in answers]

    receipts = run(scenario())
    assert [receipt.stream_seq for receipt in receipts] == list(range(1, 41))
    for receipt in receipts:
        receipt.verify(w.HUB.public)
        assert receipt.hub_ts == w.NOW

    async def again():
        line = pipeline(open_store(OsFs(tmp_path)))
        files = line.store.files(w.LABEL)
        frames = line.store.reader.frames(files, 1, 40, 1 << 20)
        await line.close()
        return [Receipt.from_bytes(frame.receipt) for frame in frames]

    assert run(again()) == receipts


def test_refusals_are_answered_without_a_trace_in_the_log(tmp_path):
    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)))
        forged = bytearray(message(1))
        forged[-1] ^= 1
        answers = [await line.submit(raw) for raw in (b"\x00", bytes(forged), message(2), message(1), message(1))]
        big = await line.submit(bytes(2_000_000))
        size = line.store.files(w.LABEL).size
        await line.close()
        return answers, big, size

    (garbage, forged, gap, good, twice), big, size = run(scenario())
    assert garbage.refusal is Refusal.CBOR_INVALID
    assert forged.refusal is Refusal.SIG_INVALID
    assert gap.refusal is Refusal.CLIENT_SEQ
    assert isinstance(good, bytes)
    assert twice.refusal is Refusal.DUPLICATE
    assert twice.detail["stream_seq"] == 1
    assert big.refusal is Refusal.SIZE_PREFILTER
    assert size == 1


@pytest.mark.req("RCPT-06")
def test_time_never_runs_backwards_even_across_a_restart(tmp_path):
    """D-28"""

    async def at(clock, seq):
        line = pipeline(open_store(OsFs(tmp_path)), clock=lambda: clock)
        receipt = Receipt.from_bytes(await line.submit(message(seq)))
        await line.close()
        return receipt.hub_ts

    assert run(at(w.NOW + 100, 1)) == w.NOW + 100
    assert run(at(w.NOW, 2)) == w.NOW + 100
    assert run(at(w.NOW + 101, 3)) == w.NOW + 101


def test_a_clock_before_the_hubs_first_key_waits_for_it(tmp_path):
    """D-41: no key signs before it is valid."""

    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)), clock=lambda: w.NOW - 50, not_before=w.NOW)
        receipt = Receipt.from_bytes(await line.submit(message(1)))
        await line.close()
        return receipt.hub_ts

    assert run(scenario()) == w.NOW


@pytest.mark.req("OP0-06", "SH1-03")
def test_a_full_queue_refuses_before_anything_is_decided(tmp_path):
    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)), workers=1, max_queue=3)
        answers = [line.submit(message(seq)) for seq in (1, 2, 3)]
        with pytest.raises(Overloaded):
            line.submit(message(4))
        await asyncio.gather(*answers)
        assert isinstance(await line.submit(message(4)), bytes)
        await line.close()

    run(scenario())


def test_a_group_waits_for_what_is_being_verified_but_not_for_long(tmp_path):
    """A sync for each verdict would cost more than it gains; waiting for all of them would let the disk idle."""

    class Groups(NullObserver):
        def __init__(self):
            self.sizes = []

        def group(self, size, sync_s):
            self.sizes.append(size)

    class Held:
        """A verifier whose verdicts come when the test says so."""

        def submit(self, job):
            pass

        def close(self):
            pass

    async def scenario():
        groups = Groups()
        line = pipeline(open_store(OsFs(tmp_path)), observer=groups)
        line._verifier = Held()
        answers = [line.submit(message(seq)) for seq in range(1, 11)]
        for _ in range(3):
            line._verified(b"\1")
        await asyncio.sleep(0.05)
        assert not groups.sizes  # seven are still to come
        line._verified(b"\1")  # with the records as many as are still to come: these need not wait any longer
        await asyncio.gather(*answers[:4])
        line._verified(b"\1" * 4)
        await asyncio.gather(*answers[:8])
        line._verified(b"\1" * 2)  # the last ones wait for nobody
        await asyncio.gather(*answers)
        await line.close()
        return groups.sizes

    assert run(scenario()) == [4 + RECORDS, 4, 2]


@pytest.mark.req("OP0-08")
def test_no_receipt_leaves_when_the_sync_fails_and_the_hub_stops():
    """DESIGN §9.1: after a failed sync the page cache may lie."""
    fs = MemFs()
    failures: list[BaseException] = []

    async def scenario():
        line = pipeline(open_store(fs), failed=failures.append)
        assert isinstance(await line.submit(message(1)), bytes)
        fs.fault = Fault(fs.operations + 2, "error")  # the next group: a write, then its sync
        answer = line.submit(message(2))
        with pytest.raises(asyncio.CancelledError):
            await answer
        with pytest.raises(Stopped):
            line.submit(message(3))
        await line.close()

    run(scenario())
    assert isinstance(failures[0], OSError)


def test_a_full_disk_answers_nothing_and_goes_on_when_there_is_room():
    fs = MemFs()

    async def scenario():
        line = pipeline(open_store(fs), reopen=lambda: open_store(fs))
        assert isinstance(await line.submit(message(1)), bytes)
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        with pytest.raises(asyncio.CancelledError):
            await line.submit(message(2))
        receipt = Receipt.from_bytes(await line.submit(message(2)))
        assert receipt.stream_seq == 2
        await line.close()

    run(scenario())


def test_a_full_disk_without_a_way_back_stops_the_hub():
    fs = MemFs()
    failures: list[BaseException] = []

    async def scenario():
        line = pipeline(open_store(fs), failed=failures.append)
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        with pytest.raises(asyncio.CancelledError):
            await line.submit(message(1))
        await line.close()

    run(scenario())
    assert isinstance(failures[0], NoSpaceError)


@pytest.mark.req("OP0-05")
def test_a_dead_verifier_stops_the_hub(tmp_path):
    failures: list[BaseException] = []

    async def scenario():
        died = asyncio.Event()

        def stopped(error):
            failures.append(error)
            died.set()

        line = pipeline(open_store(OsFs(tmp_path)), workers=1, failed=stopped)
        assert isinstance(await line.submit(message(1)), bytes)
        line._verifier._workers[0].process.kill()
        await died.wait()
        with pytest.raises(Stopped):
            line.submit(message(2))
        await line.close()

    run(scenario())
    assert "verifier" in str(failures[0])


@pytest.mark.req("STOR-07", "GEN-19")
def test_segments_retire_under_load_and_nothing_is_lost(tmp_path):
    limits = Limits(max_checkpoint_interval=16)

    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path), limits, segment_bytes=20_000), workers=1)
        receipts = []
        for start in range(1, 400, 40):
            receipts += await asyncio.gather(*(line.submit(message(seq)) for seq in range(start, start + 40)))
        segment = line.store.journal.segment
        await line.abort()  # as a crash would: no retirement, no farewell
        return receipts, segment

    receipts, segment = run(scenario())
    assert segment >= 2
    assert not any(isinstance(receipt, Refuse) for receipt in receipts)
    store = open_store(OsFs(tmp_path), limits, segment_bytes=20_000)
    files = store.files(w.LABEL)
    assert files is not None
    stored = [store.reader.receipt(files, seq) for seq in range(1, files.size + 1)]
    assert stored == receipts
    store.close()


def test_control_records_wait_for_the_disk_too(tmp_path):
    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)))
        record = await line.control(lambda hub_ts: StreamRegister(stream_id=w.OTHER_STREAM))
        assert record is not None
        record.verify(w.HUB.public)
        assert await line.control(lambda hub_ts: None) is None
        await line.submit(message(1))
        await line.close()
        return record

    record = run(scenario())
    store = open_store(OsFs(tmp_path))
    assert store.state.control is not None
    assert store.state.control.seq == 3  # register, authorize, open
    assert record.seq == 1
    store.close()


def test_a_change_of_limits_gets_a_second_of_its_own(tmp_path):
    """D-75: rebuilding from the logs must know which entries it applied to."""

    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)))
        before = Receipt.from_bytes(await line.submit(message(1)))
        record = await line.control(lambda hub_ts: LimitsSet(limits=Limits().to_json()), new_second=True)
        after = Receipt.from_bytes(await line.submit(message(2)))
        await line.close()
        return before.hub_ts, record, after.hub_ts

    before, record, after = run(scenario())
    assert record is not None
    assert before < record.hub_ts <= after


@pytest.mark.req("LIM-01")
def test_a_message_of_exactly_a_mebibyte_is_admitted_and_one_byte_more_is_not(tmp_path):
    """spec §14, with the limits as they are by default; padding counts (LIM-10)."""
    around = len(message(1, ciphertext=w.CIPHERTEXT + bytes(1 << 19))) - (1 << 19)

    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)))
        exact = message(1, ciphertext=w.CIPHERTEXT + bytes(1_048_576 - around))
        assert len(exact) == 1_048_576
        assert isinstance(await line.submit(exact), bytes)
        above = message(2, ciphertext=w.CIPHERTEXT + bytes(1_048_577 - around))
        assert (await line.submit(above)).refusal is Refusal.SIZE_PREFILTER
        await line.close()

    run(scenario())


@pytest.mark.req("GEN-27")
def test_no_old_message_is_taken_for_new_and_no_new_one_for_old(tmp_path):
    """Whatever may be guessed on the way: what decides are cursors and the index, which do not guess (D-56)."""

    async def scenario():
        line = pipeline(open_store(OsFs(tmp_path)))
        messages = [message(seq) for seq in range(1, 401)]
        for raw in messages:
            assert isinstance(await line.submit(raw), bytes)
        for seq, raw in enumerate(messages, start=1):
            again = await line.submit(raw)
            assert (again.refusal, again.detail["stream_seq"]) == (Refusal.DUPLICATE, seq)
        await line.close()

    run(scenario())
