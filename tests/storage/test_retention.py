"""Retention: payloads go, receipts and proofs stay (COMP0, D-74)."""

import random

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.storage.builders import LABELS, LIMITS, World, copy_of, fill
from tests.storage.driver import START
from tests.storage.oracle import assert_clean
from tests.storage.test_rebuild import rows, without_derived

from veen.core.errors import MalformedError
from veen.core.objects.control import RetentionDrop
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import prove_inclusion
from veen.io.errors import CorruptError, StorageError
from veen.storage import layout
from veen.storage.copies import archive
from veen.storage.index import Index
from veen.storage.maintenance.rebuild import rebuild_index
from veen.storage.maintenance.retention import Periods, RetentionPolicy, apply, plan, prepare, show
from veen.storage.reader import PrunedError
from veen.storage.store import Group
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

ALL = RetentionPolicy(Periods(payload_sec=1))
BOTH = RetentionPolicy(Periods(payload_sec=1, receipt_sec=1))
FAR = START + 10_000


def filled(count=20):
    world = World()
    fill(world, count)
    world.store.retire()
    return world


def erase(world, policy=ALL, now=FAR):
    index = Index(world.fs)
    done = len(apply(world.fs, plan(index, policy, now), world.control, dropped=world.store.drop_level))
    index.close()
    return done


def chunk_files(fs):
    return [path for path in fs.files() if path.startswith("log/chunk-") and path.endswith(".log")]


def prove(world, label, stream_seq):
    """A proof from the node store, checked against the root that the hub's last receipt states."""
    files = world.store.files(label)
    proof = prove_inclusion(files.node_at, stream_seq, files.size)
    leaf = next(f for f in world.frames if f.label == label and f.stream_seq == stream_seq)
    proof.verify(
        leaf_hash=Receipt.from_bytes(leaf.receipt).leaf_hash,
        stream_seq=stream_seq,
        tree_size=files.size,
        expected_root=files.root(),
    )


@pytest.mark.req("COMP-01")
def test_receipts_and_proofs_outlive_payloads():
    """D-74: only whole sealed chunks; summaries, peaks, checkpoints and nodes stay."""
    world = filled()
    before = chunk_files(world.fs)
    assert erase(world) == len(before)
    assert chunk_files(world.fs) == before  # until the next retirement
    world.store.retire()
    assert not chunk_files(world.fs)
    assert_clean(world.fs)
    for framed in world.frames:
        files = world.store.files(framed.label)
        assert world.store.reader.receipt(files, framed.stream_seq) == framed.receipt
        prove(world, framed.label, framed.stream_seq)
        if framed.stream_seq < files.active_start:
            with pytest.raises(PrunedError, match=f"entry {framed.stream_seq}"):
                world.store.reader.frames(files, framed.stream_seq, framed.stream_seq, 0)
        else:
            assert world.store.reader.frames(files, framed.stream_seq, framed.stream_seq, 0) == [framed]


@pytest.mark.req("COMP-01")
def test_receipts_go_after_their_own_period_and_proofs_still_stay():
    """COMP0.1: Rr for receipts; checkpoints are kept."""
    world = filled()
    erase(world)
    world.store.retire()
    assert erase(world, BOTH) > 0
    world.store.retire()
    assert not [path for path in world.fs.files() if "/receipts-" in path]
    assert [path for path in world.fs.files() if "/checkpoint-" in path]
    assert not assert_clean(world.fs).findings[1:]
    first = world.frames[0]
    files = world.store.files(first.label)
    with pytest.raises(PrunedError):
        world.store.reader.receipt(files, 1)
    prove(world, first.label, 1)
    chunk = world.store.chunk_at(files, 1)
    assert world.store.reader.first_at(files, Receipt.from_bytes(first.receipt).hub_ts, chunk) == 1
    assert world.store.reader.first_at(files, FAR, chunk) == chunk.end_seq + 1
    assert erase(world, BOTH) == 0


@pytest.mark.req("STOR-18")
def test_a_plan_reads_no_chunk_and_takes_what_is_old_enough():
    """spec §3.4.1: pruning without scanning live segments"""
    world = filled(30)
    index = Index(MemFs({}, world.fs.database_bytes()))  # the index and nothing else
    rows_of = {row.label: index.chunks(row.row) for row in index.labels()}
    times = sorted(chunk.last_ts for chunks in rows_of.values() for chunk in chunks)
    for now in range(times[0], times[-1] + 3):
        due = plan(index, ALL, now)
        assert len(due) == sum(time + 1 <= now for time in times)
        assert {erasure.what for erasure in due} <= {"payloads"}
    assert plan(index, RetentionPolicy(), FAR) == []
    own = RetentionPolicy(Periods(), {LABELS[1]: Periods(payload_sec=5)})
    assert {erasure.label for erasure in plan(index, own, FAR)} == {LABELS[1]}


class WatchedFs(MemFs):
    """Remembers which files were opened."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.opened: set[str] = set()

    def open(self, path, *, create=False):
        self.opened.add(path)
        return super().open(path, create=create)


@pytest.mark.req("STOR-18")
def test_erasing_opens_no_file_of_a_chunk_that_stays():
    """spec §3.4.1: from the plan to the removal, live segments are not read."""
    world = filled(30)
    world.store.close()
    fs = WatchedFs(world.fs.files(), world.fs.database_bytes())
    world = World(fs)
    index = Index(fs)
    chunks = {(row.label, chunk.start_seq): chunk for row in index.labels() for chunk in index.chunks(row.row)}
    oldest = min(chunk.last_ts for chunk in chunks.values())
    world.now = max(world.now, oldest) + 1
    due = plan(index, ALL, oldest + 1)
    gone = {(step.label, step.chunk.start_seq) for step in due}
    assert 0 < len(gone) < len(chunks)
    fs.opened.clear()
    assert len(apply(fs, plan(index, ALL, oldest + 1), world.control, dropped=world.store.drop_level)) == len(gone)
    world.store.retire()
    assert {name for name in map(_chunk_of, fs.opened) if name} == gone
    assert {name for name in map(_chunk_of, chunk_files(fs)) if name} == chunks.keys() - gone
    assert_clean(fs)


def _chunk_of(path):
    """The sealed chunk that a file is of."""
    file = layout.log_file(path.removeprefix("log/"))
    return (file.label, file.start_seq) if file and file.kind in ("chunk", "summary", "receipts", "heads") else None


def test_what_is_kept_is_shown():
    world = filled()
    index = Index(world.fs)
    before = {retained.label: retained for retained in show(index)}
    assert all(retained.payloads_erased == 0 for retained in before.values())
    erase(world)
    world.store.retire()
    for retained in show(index):
        assert retained.payloads_erased == retained.chunks == before[retained.label].chunks > 0
        assert (retained.receipts_erased, retained.oldest_payload_ts) == (0, None)


@pytest.mark.parametrize(("payload_sec", "receipt_sec"), [(-1, 0), (0, -1), (0, 5), (9, 5)])
def test_periods_that_make_no_sense_are_refused(payload_sec, receipt_sec):
    with pytest.raises(MalformedError):
        Periods(payload_sec=payload_sec, receipt_sec=receipt_sec)


def test_what_was_never_sealed_cannot_be_erased():
    world = filled()
    with pytest.raises(StorageError, match="not a sealed chunk"):
        world.control(RetentionDrop(label=LABELS[0], start_seq=2, end_seq=3, entry_hashes_root=bytes(32)))
    with pytest.raises(StorageError, match="not a sealed chunk"):
        world.control(RetentionDrop(label=bytes(32), start_seq=1, end_seq=3, entry_hashes_root=bytes(32)))
    fill(world, 3)  # and the control journal goes on as if nobody had asked
    erase(world)
    assert_clean(world.fs)


def test_a_damaged_chunk_is_not_erased():
    world = filled()
    index = Index(world.fs)
    (erasure, *_) = plan(index, ALL, FAR)
    path = layout.chunk(erasure.label, erasure.chunk.start_seq, erasure.chunk.end_seq)
    data = world.fs.files()[path]
    for bad in (data[:-1], flipped(data, len(data) // 2), b"", None):
        with pytest.raises(CorruptError) as caught:
            prepare(copy_of(world.fs, **{path: bad}), erasure)
        assert caught.value.path == path
    others = [p for p in chunk_files(world.fs) if p != path and erasure.label.hex() in p]
    with pytest.raises(CorruptError):
        prepare(copy_of(world.fs, **{path: world.fs.files()[others[0]]}), erasure)


@pytest.mark.req("STOR-20", "STOR-22")
@pytest.mark.parametrize("policy", [ALL, BOTH])
def test_an_index_over_erased_chunks_is_rebuilt_exactly(policy):
    """Cursors, locations and the tree follow from heads where the messages are gone."""
    world = filled()
    for _ in range(2):
        erase(world, policy)
        world.store.retire()
    world.store.close()
    world.bind()
    assert not assert_clean(world.fs).findings
    lost = without_derived(world.fs)
    rebuild_index(lost, LIMITS)
    assert rows(lost) == rows(world.fs)
    assert lost.files() == world.fs.files()


@pytest.mark.parametrize("seed", spread(range(40), 8))
def test_an_erasure_that_is_cut_off_is_finished_or_has_not_begun(seed):
    """Cut at any operation, at any step; no receipt is ever lost and the directory is clean at each moment."""
    rng = random.Random(seed)
    world = filled()
    receipts = [(framed.label, framed.stream_seq, framed.receipt) for framed in world.frames]
    world.fs.fault, world.fs.operations = Fault(rng.randint(1, 45), rng.choice(["lost", "torn", "done"])), 0
    try:
        erase(world)
        world.store.retire()
        world.store.close()
    except Crash:
        assert_clean(world.fs)
        world.fs.fault = None
        fs = world.fs.after_crash(rng)
    else:
        fs = world.fs
        fs.fault = None
    assert_clean(fs)
    if rng.random() < 0.5:
        fs = MemFs(fs.files())  # the index is lost as well
        rebuild_index(fs, LIMITS)
        assert_clean(fs)
    again = World(fs)
    assert_clean(fs)
    again.store.retire()
    for label, stream_seq, receipt in receipts:
        files = again.store.files(label)
        assert files is not None
        assert again.store.reader.receipt(files, stream_seq) == receipt
    erase(again)
    again.store.close()
    assert not chunk_files(fs)
    assert_clean(fs)


def test_readers_do_not_see_payloads_from_the_moment_the_record_is_applied():
    world = filled()
    files = world.store.files(LABELS[0])
    assert world.store.reader.frames(files, 1, 1, 0)
    erase(world)
    with pytest.raises(PrunedError):
        world.store.reader.frames(files, 1, 1, 0)
    assert world.store.reader.receipt(files, 1)


def erased():
    world = filled(12)
    erase(world)
    world.store.close()
    return world


@pytest.mark.long
@pytest.mark.parametrize("part", spread(range(6), 1))
def test_damage_in_an_archive_is_found(part):
    world = erased()
    for path, data in world.fs.files().items():
        if "/receipts-" in path or "/heads-" in path:
            for place in range(part * 17, len(data), 6 * 17):
                damaged = bytearray(data)
                damaged[place] ^= 4
                report = verify_data(copy_of(world.fs, **{path: bytes(damaged)}))
                assert path in {finding.path for finding in report.errors}, (path, place)
            for bad in (data[:-1], data + data, b"", None):
                report = verify_data(copy_of(world.fs, **{path: bad}))
                assert path in {finding.path for finding in report.errors}


def test_a_chunk_that_vanished_without_a_record_is_an_error():
    world = filled(12)
    world.store.close()
    path = chunk_files(world.fs)[0]
    assert {finding.code for finding in verify_data(copy_of(world.fs, **{path: None})).errors} == {"missing"}


def test_a_chunk_that_should_be_gone_is_mentioned():
    world = filled(12)
    files = world.fs.files()
    erase(world)
    world.store.close()
    path = chunk_files(MemFs(files))[0]
    report = verify_data(copy_of(world.fs, **{path: files[path]}))
    assert report.ok
    assert path in {finding.path for finding in report.findings if finding.code == "leftover"}


def test_heads_hold_what_they_are_for():
    """Whoever kept a payload can show that it is the erased one."""
    world = erased()
    for framed in world.frames[:3]:
        items = {item.stream_seq: item for item in archive.items(world.fs, framed.label, 1, 3, receipts=True)}
        if framed.stream_seq in items:
            item = items[framed.stream_seq]
            assert item.entry_hash == framed.entry_hash
            assert item.length == framed.size
            assert item.receipt == Receipt.from_bytes(framed.receipt)
            assert item.msg is None


@pytest.mark.parametrize("policy", spread([ALL, RetentionPolicy(Periods(payload_sec=1, receipt_sec=100_000)), BOTH], 3))
@pytest.mark.parametrize("looks", [2, 3, 5])
def test_any_number_of_looks_between_two_retirements_erases_what_one_look_erases(policy, looks):
    """A plan reads the index of the last retirement, so the second record erased the receipts."""
    once, often = filled(), filled()
    count = erase(once, policy)
    index = Index(often.fs)
    plans = [plan(index, policy, FAR) for _ in range(looks)]
    index.close()
    done = [len(apply(often.fs, steps, often.control, dropped=often.store.drop_level)) for steps in plans]
    assert done == [count] + [0] * (looks - 1)
    for world in (once, often):
        world.store.close()
        assert_clean(world.fs)
    assert once.fs.files() == often.fs.files()


def test_a_record_that_is_on_its_way_to_the_disk_counts_as_an_erasure():
    """Nobody decides the same again between the decision and its effect."""
    world = filled()
    index = Index(world.fs)
    step = plan(index, ALL, FAR)[0]
    index.close()
    place = (step.label, step.chunk.start_seq)
    assert world.store.drop_level(*place) == 0
    prepare(world.fs, step)
    group = Group()
    world.control(step.record(0), group)
    assert world.store.drop_level(*place) == 1
    assert step.record(world.store.drop_level(*place)) is None
    world.commit(group)
    assert world.store.drop_level(*place) == 1
    assert world.store.drop_level(step.label, step.chunk.start_seq + 1) is None  # no chunk begins there
