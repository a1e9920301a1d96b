"""rebuild_index: what follows from the log can be made again, and equals what the hub had."""

import random

import pytest
from tests.examples import spread
from tests.storage import driver
from tests.storage.builders import LABELS, LIMITS, World, copy_of, fill, small
from tests.storage.crashes import reference, truth
from tests.storage.driver import STREAMS
from tests.storage.oracle import assert_clean

from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import LimitsSet
from veen.io.errors import CorruptError, StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.frame import Frame
from veen.storage.index import TABLES
from veen.storage.maintenance.rebuild import rebuild_index
from veen.storage.store import Store
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

CUTS = 60

# Clients are numbered in the order of their first message through all labels, which no file tells: compare by name.
QUERIES = {
    "meta": "SELECT key, value FROM meta WHERE key != 'check'",
    "labels": "SELECT * FROM labels",
    "clients": "SELECT label_row, client_id, client_seq, prev_ack FROM clients",
    "entries": (
        "SELECT label_row, client_id, entries.client_seq, stream_seq FROM entries JOIN clients ON row = client_row"
    ),
    "chunks": "SELECT * FROM chunks",
    "caps": "SELECT * FROM caps",
    "writers": "SELECT * FROM writers",
    "policies": "SELECT * FROM policies",
    "records": "SELECT * FROM records",
}


def rows(fs, *, but=()):
    db = fs.database(layout.INDEX)
    assert sorted(QUERIES) == sorted(TABLES)
    contents = {table: set(db.execute(query).fetchall()) for table, query in QUERIES.items()}
    contents["meta"] = {(key, value) for key, value in contents["meta"] if key not in but}
    return contents


def without_derived(fs, *, index=True):
    """The directory with nothing in it that can be made again."""
    derived = ("nodes/", "offsets/", "log/checkpoint-index", "log/peaks-", layout.KEY_MAP, layout.CHECKPOINT_BINDING)
    files = {
        path: data
        for path, data in fs.files().items()
        if not path.startswith(derived) and not path.endswith(".summary")
    }
    return MemFs(files, b"" if index else fs.database_bytes())


@pytest.mark.req("STOR-20", "STOR-15", "STOR-22", "OPS-04")
def test_everything_derived_is_made_again_exactly():
    """spec §12: corrupted indices MUST be rebuildable from logs/checkpoints only."""
    world = small(20)
    lost = without_derived(world.fs)
    assert not verify_data(lost).ok
    done = rebuild_index(lost)
    assert (done.labels, done.entries, done.missing) == (2, 20, [])
    assert lost.files() == world.fs.files()
    assert rows(lost) == rows(world.fs)
    assert_clean(lost)


@pytest.mark.req("STOR-20", "OPS-04")
def test_a_hub_goes_on_with_a_rebuilt_index_as_if_nothing_had_happened():
    world, twin = small(13), small(13)
    lost = without_derived(world.fs)
    rebuild_index(lost)
    healed, twin = World(lost), twin.reopen()
    for hub in (healed, twin):
        fill(hub, 9)
        hub.store.close()
        hub.bind()
    assert {path: data for path, data in lost.files().items() if "journal" not in path} == {
        path: data for path, data in twin.fs.files().items() if "journal" not in path
    }
    assert rows(lost) == rows(twin.fs)


@pytest.mark.parametrize("entries", [0, 1, 4, 5, 6, 11])
def test_what_the_journal_still_holds_is_left_to_recovery(entries):
    """The index is that of the beginning of the oldest segment."""
    world = World()
    fill(world, 7)
    world.store.retire()
    fill(world, entries)
    expected = {files.label: files.root() for files in world.store.labels()}
    lost = without_derived(world.fs)
    rebuild_index(lost, LIMITS)
    assert_clean(lost)
    healed = World(lost)
    assert {
        files.label: healed.store.state.labels[files.label].mmr.root() for files in healed.store.labels()
    } == expected
    healed.store.close()
    world.store.close()
    assert rows(lost) == rows(world.fs)
    assert_clean(lost)


@pytest.mark.long
@pytest.mark.req("STOR-20", "STOR-21")
@pytest.mark.parametrize("part", spread(range(4), 1))
def test_a_lost_index_after_any_crash_is_rebuilt_and_nothing_acknowledged_is_missing(part):
    for seed in range(CUTS)[part::4]:
        rng = random.Random(seed)
        fs, released = MemFs(), list[Frame]()
        for _ in range(rng.randint(1, 3)):
            fs.fault = Fault(rng.randint(1, reference().operations), rng.choice(["lost", "torn", "done"]))
            fs.operations = 0
            try:
                store = driver.open_store(fs)
                driver.drive(store, released, sizes=(rng.randint(1, 6),))
                store.close()
            except Crash:
                fs = fs.after_crash(rng)
                files = {path: data for path, data in fs.files().items() if not path.startswith(("nodes/", "offsets/"))}
                fs = MemFs(files)
                rebuild_index(fs, driver.LIMITS)
                assert_clean(fs)
        fs.fault = None
        store = driver.open_store(fs)
        driver.check_released(store, released)
        driver.drive(store, released)
        store.close()
        assert truth(fs) == truth(reference()), seed


def test_a_rebuild_that_is_cut_off_can_be_repeated():
    """Cut at every operation: the hub refuses to start, or starts well; a second attempt heals."""
    world = small(10)
    count = without_derived(world.fs)
    count.operations = 0
    rebuild_index(count)
    for at in range(1, count.operations + 1):
        fs = without_derived(world.fs)
        fs.fault = Fault(at, "torn" if at % 2 else "done")
        with pytest.raises(Crash):
            rebuild_index(fs)
        fs = fs.after_crash(random.Random(at))
        rebuild_index(fs)
        assert not verify_data(fs).findings, at
        assert rows(fs) == rows(world.fs)


def test_limits_that_changed_are_those_of_each_chunk():
    """D-75"""
    world = World(limits=Limits(max_checkpoint_interval=3))
    world.control(LimitsSet(limits=Limits(max_checkpoint_interval=3).to_json()))
    fill(world, 8)
    world.now += 1
    world.control(LimitsSet(limits=Limits(max_checkpoint_interval=5, max_cap_rate_burst=50).to_json()))
    fill(world, 11)
    world.store.close()
    lost = without_derived(world.fs)
    rebuild_index(lost)
    assert rows(lost) == rows(world.fs)


def test_chunks_that_end_by_size_keep_their_limits():
    limits = Limits(max_msg_bytes=700, max_chunk_bytes=1_300, max_checkpoint_interval=50)
    world = World(limits=limits)
    world.control(LimitsSet(limits=limits.to_json()))
    fill(world, 14, retire_every=5)
    expected = rows(world.fs, but=("segment",))
    assert len(expected["chunks"]) == 3
    lost = without_derived(world.fs)
    rebuild_index(lost)
    assert_clean(lost)
    World(lost, limits=limits).store.close()
    world.store.close()
    assert rows(lost, but=("segment",)) == rows(world.fs, but=("segment",))


def test_a_damaged_log_is_refused_and_nothing_is_touched():
    world = small()
    path = layout.chunk(LABELS[0], 1, 3)
    data = bytearray(world.fs.files()[path])
    data[100] ^= 1
    bad = copy_of(world.fs, **{path: bytes(data)})
    before = bad.files()
    with pytest.raises(CorruptError) as caught:
        rebuild_index(bad)
    assert (caught.value.path, caught.value.offset) == (path, 0)
    assert bad.files() == before
    assert rows(bad) == rows(world.fs)


@pytest.mark.parametrize("kind", ["chunk", "active", "control"])
def test_a_hole_in_the_log_is_refused(kind):
    world = small()
    world.store = Store.open(world.fs, LIMITS, world.seal)
    fill(world, 4)
    paths = {
        "chunk": layout.chunk(LABELS[0], 1, 3),
        "active": next(path for path in world.fs.files() if "/active-" in path),
        "control": layout.CONTROL,
    }
    with pytest.raises(CorruptError):
        rebuild_index(copy_of(world.fs, **{paths[kind]: None}))


@pytest.mark.req("CKPT-06")
def test_a_lost_checkpoint_needs_the_key():
    """Signatures are deterministic, so the hub itself makes the very same bytes."""
    world = small()
    path = layout.checkpoint(LABELS[0], 3)
    lost = copy_of(world.fs, **{path: None})
    assert rebuild_index(lost).missing == [path]

    def reseal(label, epoch, stream_id, upto_seq, mmr_root, hub_ts):
        assert stream_id == STREAMS[LABELS.index(label)]
        return Checkpoint.issue(
            world.keys.signing_key_at(hub_ts),
            label_prev=label,
            label_curr=label,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=epoch,
        )

    assert path in rebuild_index(lost, reseal=reseal).repaired
    assert lost.files() == world.fs.files()


def test_a_prefix_without_a_journal_gets_a_new_one():
    world = small()
    files = {path: data for path, data in world.fs.files().items() if not path.startswith("journal/")}
    fs = MemFs(files)
    with pytest.raises(StorageError, match="rebuild-index"):
        Store.open(fs, LIMITS, world.seal)
    rebuild_index(fs)
    assert_clean(fs)
    fill(World(fs), 3)
    assert_clean(fs)


def test_a_hub_without_its_index_says_what_to_do():
    world = small()
    with pytest.raises(StorageError, match="rebuild-index"):
        World(MemFs(world.fs.files()))


def test_a_lost_node_store_is_noticed_and_healed(tmp_path):
    """A new file must not hide that the old one is gone."""
    world = World(OsFs(tmp_path))
    fill(world, 8)
    world.store.close()
    for path in (*(tmp_path / "nodes").iterdir(), *(tmp_path / "offsets").iterdir()):
        path.unlink()
    world = World(OsFs(tmp_path))
    with pytest.raises(CorruptError, match="missing"):
        world.store.reader.frames(next(iter(world.store.labels())), 1, 1, 0)
    fill(world, 2)
    with pytest.raises(CorruptError, match="missing"):
        world.store.close()
    world.store.abandon()
    rebuild_index(OsFs(tmp_path), LIMITS)
    healed = World(OsFs(tmp_path))
    assert sum(files.size for files in healed.store.labels()) == 10
    healed.store.close()
    assert_clean(OsFs(tmp_path))


def test_limits_that_cannot_be_read_are_named():
    world = small()
    world.fs.replace(layout.LIMITS, b"{")
    with pytest.raises(StorageError, match=r"limits\.json"):
        rebuild_index(world.fs)
