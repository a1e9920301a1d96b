"""The sequencer: ordered, durable before answered, and honest when the disk is not."""

import asyncio
import errno
import sys
import threading
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from tests.examples import spread
from tests.hub import builders as w
from tests.waiting import DEADLINE_SEC, eventually

from veen import native
from veen.core.errors import Refusal
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.control import LimitsSet, StreamRegister
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.hub.admission.decide import Refuse
from veen.hub.api.calls import ApiContext
from veen.hub.api.reply import ApiError
from veen.hub.process.observe import NullObserver
from veen.hub.sequencer.clock import HubClock
from veen.hub.sequencer.sequencer import NotDurable, Overloaded, Sequencer, Stopped
from veen.io.errors import NoSpaceError, StorageError
from veen.io.local import OsFs
from veen.storage import journal as wal
from veen.storage.store import Store
from veen.testing.memfs import Fault, MemFs

POLICY = w.policy(preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
RECORDS = 2  # with the first message of a label: its token is authorised, the label opens


def open_store(fs, limits=DEFAULT_LIMITS, segment_bytes=64_000_000):
    return Store.open(fs, limits, w.seal, segment_bytes=segment_bytes)


class Mode(NamedTuple):
    """What checks and seals in a test: Python on the event loop's thread, or the threads of the native module."""

    module: native.Module | None = None
    workers: int = 0  # unless the test says how many


PYTHON = Mode()
mode = PYTHON


@pytest.fixture(params=["python", "native"], autouse=True)
def each_mode(request, monkeypatch):
    if request.param == "native":
        if native.LOADED.module is None:
            pytest.skip(native.LOADED.what)
        monkeypatch.setattr(sys.modules[__name__], "mode", Mode(native.LOADED.module, 2))


class Checked(Sequencer):
    """A sequencer whose fields are checked after every step that changes them; `FAULTS` has what was wrong."""

    def _commit(self):
        super()._commit()
        self.check("_commit")

    def _on_written(self, *args):
        super()._on_written(*args)
        self.check("_on_written")

    def _on_persisted(self, *args):
        super()._on_persisted(*args)
        self.check("_on_persisted")

    def resume(self, **options):
        super().resume(**options)
        self.check("resume")

    def _on_recovered(self, *args):
        super()._on_recovered(*args)
        self.check("_on_recovered")

    def check(self, step):
        """What the docstring of Sequencer rules out."""
        groups = [group for group in (self._open, self._writing) if group is not None]
        jobs = len(self._verifying) + sum(len(group.answers) + len(group.refusals) for group in groups)
        waits = self._unretired is not None
        is_wrong = {
            "depth": self.depth != jobs,
            "a retirement that waits and is none": waits and self._retired.is_set(),
            "a retirement that waits and the disk is not full": waits and not self._full,
            "a retirement that waits and the end": waits and self._closing,
            "a retirement that waits and a store to be opened anew": waits and self._reopening,
            "reopening and settled": self._reopening and self._settled.is_set(),
            "neither reopening nor settled": not self._reopening and not self._settled.is_set(),
            "reopening and an open group": self._reopening and len(self._open) > 0,
            "stopped and reopening": self._stopped is not None and self._reopening,
            "recovering and not reopening": self.is_recovering and not self._reopening and self._stopped is None,
            "stopped and not idle": self._stopped is not None and not self._idle.is_set(),
        }
        FAULTS.extend(f"{step}: {fault}" for fault, holds in is_wrong.items() if holds)


FAULTS: list[str] = []


@pytest.fixture(autouse=True)
def legal_states():
    """Every test of this file checks the states that its sequencers went through."""
    FAULTS.clear()
    yield
    assert FAULTS == []


def sequencer(store, *, workers=None, clock=lambda: w.NOW, policy=POLICY, **options):
    options = {"module": mode.module, **options}
    workers = mode.workers if workers is None else workers
    return Checked(store, w.Signer(), policy, w.resolver(), workers=workers, clock=clock, **options)


def message(seq, **kwargs):
    return w.msg(token=w.FREE_TOKEN, seq=seq, **kwargs).to_bytes()


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_SEC))


@pytest.mark.req("GEN-02", "ADM-05", "RCPT-03", "RCPT-04", "RCPT-05", "RCPT-06")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_messages_get_receipts_in_the_order_of_arrival(tmp_path, workers):
    async def scenario():
        line = sequencer(open_store(OsFs(tmp_path)), workers=workers)
        answers = await asyncio.gather(*(line.submit(message(seq)) for seq in range(1, 41)))
        await line.close()
        return [Receipt.from_bytes(answer) for answer in answers]

    receipts = run(scenario())
    assert [receipt.stream_seq for receipt in receipts] == list(range(1, 41))
    mmr = Mmr()
    for seq, receipt in enumerate(receipts, start=1):
        receipt.verify(w.HUB.public)
        assert receipt.hub_ts == w.NOW
        mmr.append(w.msg(token=w.FREE_TOKEN, seq=seq).leaf_hash())
        assert receipt.mmr_root == mmr.root()  # with this leaf: signed after the append

    async def again():
        line = sequencer(open_store(OsFs(tmp_path)))
        files = line.store.files(w.LABEL)
        frames = line.store.reader.frames(files, 1, 40, 1 << 20)
        await line.close()
        return [Receipt.from_bytes(frame.receipt) for frame in frames]

    assert run(again()) == receipts


def test_refusals_are_answered_without_a_trace_in_the_log(tmp_path):
    async def scenario():
        line = sequencer(open_store(OsFs(tmp_path)))
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
        line = sequencer(open_store(OsFs(tmp_path)), clock=HubClock(lambda: clock, ticks=lambda: 0.0))
        receipt = Receipt.from_bytes(await line.submit(message(seq)))
        await line.close()
        return receipt.hub_ts

    assert run(at(w.NOW + 100, 1)) == w.NOW + 100
    assert run(at(w.NOW, 2)) == w.NOW + 100
    assert run(at(w.NOW + 101, 3)) == w.NOW + 101


def test_a_clock_before_the_hubs_first_key_waits_for_it(tmp_path):
    """D-41: no key signs before it is valid."""

    async def scenario():
        line = sequencer(open_store(OsFs(tmp_path)), clock=lambda: w.NOW - 50, not_before=w.NOW)
        receipt = Receipt.from_bytes(await line.submit(message(1)))
        await line.close()
        return receipt.hub_ts

    assert run(scenario()) == w.NOW


@pytest.mark.req("OP0-06", "SH1-03")
def test_a_full_queue_refuses_before_anything_is_decided(tmp_path):
    async def scenario():
        line = sequencer(open_store(OsFs(tmp_path)), workers=1, max_queue=3)
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

        def on_group(self, size, sync_s):
            self.sizes.append(size)

    class Held:
        """A verifier whose verdicts come when the test says so."""

        def submit(self, job):
            pass

        def close(self):
            pass

    async def scenario():
        groups = Groups()
        line = sequencer(open_store(OsFs(tmp_path)), observer=groups, workers=0)
        line._verifier = Held()
        answers = [line.submit(message(seq)) for seq in range(1, 11)]
        for _ in range(3):
            line._on_signatures(b"\1")
        await asyncio.sleep(0.05)
        assert not groups.sizes  # seven are still to come
        line._on_signatures(b"\1")  # with the records as many as are still to come: these need not wait any longer
        await asyncio.gather(*answers[:4])
        line._on_signatures(b"\1" * 4)
        await asyncio.gather(*answers[:8])
        line._on_signatures(b"\1" * 2)  # the last ones wait for nobody
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
        line = sequencer(open_store(fs), failed=failures.append)
        assert isinstance(await line.submit(message(1)), bytes)
        fs.fault = Fault(fs.operations + 2, "error")  # the next group: a write, then its sync
        answer = line.submit(message(2))
        with pytest.raises(NotDurable):
            await answer
        with pytest.raises(Stopped):
            line.submit(message(3))
        await line.close()

    run(scenario())
    assert isinstance(failures[0], OSError)


def test_a_full_disk_answers_nothing_and_goes_on_when_there_is_room():
    fs = MemFs()

    async def scenario():
        line = sequencer(open_store(fs), reopen=lambda: open_store(fs))
        assert isinstance(await line.submit(message(1)), bytes)
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        with pytest.raises(NotDurable):
            await line.submit(message(2))
        await line.wait_settled()
        receipt = Receipt.from_bytes(await line.submit(message(2)))
        assert receipt.stream_seq == 2
        await line.close()

    run(scenario())


@pytest.mark.parametrize("end", ["close", "abort", "damage", None])
def test_the_event_loop_goes_on_while_the_store_is_opened_anew(end):
    """Reading the journal takes seconds. What stops the hub meanwhile leaves the rest to recovery."""
    fs = MemFs()
    go, loop_thread = threading.Event(), threading.get_ident()
    failures: list[BaseException] = []
    opened: list[Store] = []

    def reopen():
        assert threading.get_ident() != loop_thread
        assert go.wait(20)
        if end == "damage":
            raise StorageError("damaged")
        opened.append(open_store(fs))
        return opened[-1]

    async def scenario():
        line = sequencer(open_store(fs), failed=failures.append, reopen=reopen)
        context = ApiContext(SimpleNamespace(sequencer=line))
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        with pytest.raises(NotDurable):
            await line.submit(message(1))
        assert line.is_recovering
        line.resume()  # housekeeping tries again; one attempt runs already
        with pytest.raises(Overloaded, match="disk is full"):
            line.submit(message(1))
        with pytest.raises(ApiError, match="reading its journal again") as refused:
            _ = context.store
        assert refused.value.status == 503
        assert context.limits.max_msg_bytes
        if end in ("close", "abort"):
            ending = asyncio.create_task(getattr(line, end)())
            await asyncio.sleep(0)
            go.set()
            await ending
        elif end == "damage":
            go.set()
            await eventually(lambda: failures)
            assert str(failures[0]) == "damaged"
            await line.close()
        else:
            go.set()
            await line.wait_settled()
            assert context.store is line.store is opened[0]
            assert Receipt.from_bytes(await line.submit(message(1))).stream_seq == 1
            await line.close()

    run(scenario())
    assert len(opened) == (end != "damage")
    open_store(fs).close()  # whichever store is open at the end lets go of the directory


def test_a_full_disk_without_a_way_back_stops_the_hub():
    fs = MemFs()
    failures: list[BaseException] = []

    async def scenario():
        line = sequencer(open_store(fs), failed=failures.append)
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        with pytest.raises(NotDurable):
            await line.submit(message(1))
        await line.close()

    run(scenario())
    assert isinstance(failures[0], NoSpaceError)


def test_messages_to_ever_new_labels_do_not_keep_the_journal_from_being_emptied(tmp_path, monkeypatch):
    """Files are written ahead, by each group more than it brings, so a retirement comes whatever the labels are."""
    monkeypatch.setattr("veen.storage.store._MOST_LABELS", 100)
    monkeypatch.setattr("veen.storage.store._SYNCED_ONE_BY_ONE", 4)
    fs, labels = OsFs(tmp_path), [H(b"label %d" % number) for number in range(600)]
    policy = w.policy(stream_scope="open", capability_gating=False)

    async def scenario():
        line = sequencer(open_store(fs), policy=policy)
        for label in labels:
            await line.submit(w.msg(token=None, label=label).to_bytes())
        await eventually(lambda: wal.segments(fs)[0] > 1)
        await line.flush_idle()
        assert not line.store.flush_some(0)
        await line.close()

    run(scenario())
    store = open_store(fs)
    assert store.label_count == store.entry_count == 600
    store.close()


class CrampedFs(OsFs):
    """A real directory whose SQLite database cannot grow while `full`."""

    full = False

    def database(self, path):
        connection = super().database(path)
        if self.full:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        return connection


def test_a_full_disk_during_a_retirement_refuses_submits_and_goes_on(tmp_path):
    """SQLite says "database or disk is full"; the journal has all of it, so nothing is lost and nothing ends."""
    fs = CrampedFs(tmp_path)
    failures: list[BaseException] = []
    count = 600

    async def scenario():
        line = sequencer(open_store(fs), failed=failures.append, reopen=lambda: open_store(fs))
        receipts = await asyncio.gather(*(line.submit(message(seq)) for seq in range(1, count + 1)))
        fs.full = True
        assert line.retire_idle()
        await eventually(lambda: line.no_space)
        with pytest.raises(Overloaded, match="disk is full"):
            line.submit(message(count + 1))
        with pytest.raises(Overloaded, match="disk is full"):
            await line.control(lambda hub_ts: StreamRegister(stream_id=w.OTHER_STREAM))
        line.resume()  # still no room
        await asyncio.sleep(0.1)
        assert line.no_space
        files = line.store.files(w.LABEL)
        assert line.store.reader.receipt(files, count) == receipts[-1]  # reading goes on
        fs.full = False
        line.resume()
        await eventually(lambda: line.no_space is None)
        assert wal.segments(fs) == [2]  # the journal was emptied
        receipts.append(await line.submit(message(count + 1)))
        await line.close()
        return receipts

    receipts = run(scenario())
    assert failures == []
    store = open_store(fs)
    files = store.files(w.LABEL)
    assert [store.reader.receipt(files, seq) for seq in range(1, count + 2)] == receipts
    assert store.stream_seq_of(1, 1) == 1  # each row was saved by the second attempt
    store.close()


def test_a_hub_that_stops_on_a_full_disk_leaves_the_rest_to_the_next_start(tmp_path):
    fs = CrampedFs(tmp_path)

    async def scenario():
        line = sequencer(open_store(fs), reopen=lambda: open_store(fs))
        receipts = await asyncio.gather(*(line.submit(message(seq)) for seq in range(1, 601)))
        fs.full = True
        await asyncio.wait_for(line.close(), 20)
        return receipts

    receipts = run(scenario())
    fs.full = False
    store = open_store(fs)
    assert [store.reader.receipt(store.files(w.LABEL), seq) for seq in range(1, 601)] == receipts
    store.close()


@pytest.mark.parametrize("block", spread(range(4), 1))
def test_a_disk_that_is_full_from_any_operation_on_loses_nothing_and_ends_nothing(block):
    """Rolling, writing, applying, sealing, syncing, saving: wherever the room ends, the hub goes on later."""
    limits = Limits(max_checkpoint_interval=3)
    for at in range(1 + block, 80, 4):
        fs = MemFs()
        failures: list[BaseException] = []

        def opened(fs=fs):
            return open_store(fs, limits, segment_bytes=1_500)

        async def scenario(fs=fs, opened=opened, failures=failures, at=at):
            line = sequencer(opened(), failed=failures.append, reopen=opened)
            start = fs.operations
            receipts, seq, refused = {}, 1, 0
            while seq <= 20:
                fs.full = start + at <= fs.operations and refused < 3
                try:
                    answer = await line.submit(message(seq))
                except (Overloaded, NotDurable):
                    refused += 1
                    line.resume()
                    await asyncio.sleep(0)
                    await eventually(lambda: not line.is_recovering)
                    continue
                if isinstance(answer, bytes):
                    receipts[seq] = answer
                seq += 1  # or it is in the log already: it became durable before the room ended
            fs.full = False
            await line.close()
            return receipts

        receipts = run(scenario())
        assert failures == [], at
        store = opened()
        files = store.files(w.LABEL)
        assert files.size == 20, at
        for seq, receipt in receipts.items():
            assert store.reader.receipt(files, Receipt.from_bytes(receipt).stream_seq) == receipt, (at, seq)
        store.close()


@pytest.mark.req("OP0-05")
def test_a_dead_verifier_stops_the_hub(tmp_path):
    failures: list[BaseException] = []

    async def scenario():
        died = asyncio.Event()

        def stopped(error):
            failures.append(error)
            died.set()

        line = sequencer(open_store(OsFs(tmp_path)), workers=1, module=None, failed=stopped)
        assert isinstance(await line.submit(message(1)), bytes)
        line._verifier._workers[0].process.kill()
        await died.wait()
        with pytest.raises(Stopped):
            line.submit(message(2))
        await line.close()

    run(scenario())
    assert "verifier" in str(failures[0])


@pytest.mark.req("GEN-19")
def test_segments_retire_under_load_and_nothing_is_lost(tmp_path):
    limits = Limits(max_checkpoint_interval=16)

    async def scenario():
        line = sequencer(open_store(OsFs(tmp_path), limits, segment_bytes=20_000), workers=1)
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
        line = sequencer(open_store(OsFs(tmp_path)))
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
        line = sequencer(open_store(OsFs(tmp_path)))
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
        line = sequencer(open_store(OsFs(tmp_path)))
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
        line = sequencer(open_store(OsFs(tmp_path)))
        messages = [message(seq) for seq in range(1, 401)]
        for raw in messages:
            assert isinstance(await line.submit(raw), bytes)
        for seq, raw in enumerate(messages, start=1):
            again = await line.submit(raw)
            assert (again.refusal, again.detail["stream_seq"]) == (Refusal.DUPLICATE, seq)
        await line.close()

    run(scenario())


class SlowFile:
    """A file whose writes and syncs wait for `go`."""

    def __init__(self, file, go):
        self._file, self._go = file, go

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write_at(self, offset, data):
        assert self._go.wait(30)
        self._file.write_at(offset, data)

    def sync(self):
        assert self._go.wait(30)
        self._file.sync()


class SlowDisk(MemFs):
    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def open(self, path, *, create=False):
        return SlowFile(super().open(path, create=create), self.go)


@pytest.mark.parametrize("also", [False, True], ids=["in the group that is written", "in the group that collects"])
def test_a_copy_of_a_message_in_flight_is_refused_with_its_place_once_that_is_durable(also):
    """D-165: the refusal names the entry, and does not leave before the entry is on the disk."""
    fs = SlowDisk()

    async def scenario():
        line = sequencer(open_store(fs))
        assert isinstance(await line.submit(message(1)), bytes)
        fs.go.clear()
        first = line.submit(message(2))
        second = line.submit(message(3)) if also else None
        seq = 3 if also else 2
        copy = line.submit(message(seq))
        forged = bytearray(message(seq))
        forged[-1] ^= 1
        unsigned = line.submit(bytes(forged))
        other = line.submit(message(seq, ciphertext=w.CIPHERTEXT[:-1] + b"c"))
        refused = await other  # another message with the same number names no entry, so it need not wait
        assert (refused.refusal, "stream_seq" in refused.detail) == (Refusal.DUPLICATE, False)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(answer.done() for answer in (first, copy, unsigned))
        fs.go.set()
        accepted = Receipt.from_bytes(await (second or first))
        again = await copy
        assert (again.refusal, again.detail["label"], again.detail["stream_seq"]) == (
            Refusal.DUPLICATE,
            w.LABEL.hex(),
            accepted.stream_seq,
        )
        bad = await unsigned
        assert (bad.refusal, bad.detail["stream_seq"]) == (Refusal.SIG_INVALID, accepted.stream_seq)
        await line.close()

    run(scenario())


def test_a_copy_of_a_message_that_never_became_durable_is_not_called_a_duplicate():
    """D-165: the entry that the refusal would name does not exist."""
    fs = SlowDisk()

    async def scenario():
        line = sequencer(open_store(fs), reopen=lambda: open_store(fs))
        assert isinstance(await line.submit(message(1)), bytes)
        fs.go.clear()
        fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
        first, copy = line.submit(message(2)), line.submit(message(2))
        other = await line.submit(message(2, ciphertext=w.CIPHERTEXT[:-1] + b"c"))
        assert other.refusal is Refusal.DUPLICATE  # decided after the copy, which therefore waits for the first
        fs.go.set()
        for answer in (first, copy):
            with pytest.raises(NotDurable):
                await answer
        await line.wait_settled()
        assert Receipt.from_bytes(await line.submit(message(2))).stream_seq == 2
        assert line.depth == 0
        await line.close()

    run(scenario())
