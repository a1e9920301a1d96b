"""A torn end of the journal is told from damage, cut with a record of it, and nothing acknowledged goes with it."""

import json
import random
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.storage.builders import World, copy_of, fill
from tests.storage.oracle import assert_clean

from veen.core.objects.receipt import Receipt
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.journal import GroupError
from veen.storage.maintenance.cut_tail import (
    DamagedTailError,
    TailUnconfirmedError,
    cut_tail,
    find_tail,
    read_statement,
)
from veen.storage.store import Group
from veen.testing.memfs import Crash, Fault, MemFs

NOW = 1_700_000_500
BLOCK = 512


def torn(*, retired=True, count=9, size=700):
    """A directory whose newest journal segment ends with a group that was never acknowledged; where that begins."""
    world = World()
    fill(world, 5)
    if retired:
        world.store.retire()
    fill(world, 4)
    path, acknowledged = layout.journal_segment(world.store.journal.segment), list(world.frames)
    offset = world.store.journal.offset
    group = Group()
    for number in range(count):
        world.send(label=number % 2, client=number % 3, size=size, group=group)
    world.store.journal.write(group.payload())  # it is never applied: the power went before the sync returned
    return world.fs, path, offset, acknowledged


def damaged(fs, path, start, end):
    """The blocks from `start` to `end` of a file were never written."""
    data = fs.files()[path]
    return copy_of(fs, **{path: data[:start] + bytes(end - start) + data[end:]})


def torn_end(fs):
    tail = find_tail(fs)
    assert tail is not None
    return tail


def released(world, frames):
    for framed in frames:
        files = world.store.files(framed.label)
        assert world.store.reader.frames(files, framed.stream_seq, framed.stream_seq, 0) == [framed]


def blocks(path, fs, offset):
    size = len(fs.files()[path])
    borders = [offset, *range((offset // BLOCK + 1) * BLOCK, size, BLOCK), size]
    return list(pairwise(borders))


@pytest.mark.parametrize("retired", spread([False, True], 1))
def test_whichever_blocks_of_the_last_group_are_missing_it_is_cut_and_nothing_else(retired):
    fs, path, offset, acknowledged = torn(retired=retired)
    parts = [part for part in blocks(path, fs, offset) if part[1] - part[0] >= 50]
    rng = random.Random(1)
    choices = [[part] for part in parts] + [rng.sample(parts, 3) for _ in range(10)]
    cuts = 0
    for missing in choices:
        torn_fs = fs
        for start, end in missing:
            torn_fs = damaged(torn_fs, path, start, end)
        if not any(torn_fs.files()[path][offset : offset + 40]):
            continue  # the head of the group is among them: recovery cuts such a group by itself
        with pytest.raises(GroupError) as caught:
            World(copy_of(torn_fs))
        assert "veen hub cut-tail" in caught.value.hint
        cuts += 1
        tail = torn_end(torn_fs)
        assert (tail.offset, tail.data) == (offset, torn_fs.files()[path][offset:])
        record = json.loads(_cut(torn_fs, tail))
        assert (record["offset"], record["bytes"], record["cut_at"]) == (offset, len(tail.data), NOW)
        tail_bytes = torn_fs.files()[record["kept_in"]]
        assert (tail_bytes, record["sha256"]) == (tail.data, sha256(tail_bytes).hexdigest())
        assert record["unwritten_bytes"] >= sum(end - start for start, end in missing) - BLOCK
        assert len(record["readable_entries"]) == len(tail.entries) < 9
        assert find_tail(torn_fs) is None
        assert_clean(torn_fs)
        world = World(torn_fs)
        released(world, acknowledged)
        world.send()
        world.store.close()
        assert_clean(torn_fs)
    assert cuts > 10


def _cut(fs, tail):
    path = cut_tail(fs, tail, NOW, no_receipt_left=True)
    return fs.files()[path]


def test_a_cut_may_be_cut_off_at_any_write():
    fs, path, offset, acknowledged = torn()
    torn_fs = damaged(fs, path, offset + BLOCK, offset + 3 * BLOCK)
    whole = copy_of(torn_fs)
    tail = torn_end(whole)
    before = whole.operations
    cut_tail(whole, tail, NOW, no_receipt_left=True)
    for at in range(1, whole.operations - before + 1):
        for kind in ("lost", "torn", "done"):
            left = copy_of(torn_fs)
            left.fault = Fault(at, kind)
            with pytest.raises(Crash):
                cut_tail(left, torn_end(left), NOW, no_receipt_left=True)
            left = left.after_crash(random.Random(at))
            if (again := find_tail(left)) is not None:
                cut_tail(left, again, NOW, no_receipt_left=True)
            assert left.files()[tail.name("bin")] == tail.data
            assert json.loads(left.files()[tail.name("json")])["sha256"] == sha256(tail.data).hexdigest()
            world = World(left)
            released(world, acknowledged)
            world.store.abandon()


def test_a_group_that_was_written_and_changed_later_is_not_cut():
    """A flipped bit could be in acknowledged entries: then the directory is evidence."""
    fs, path, offset, _ = torn(count=3)
    data = fs.files()[path]
    for place in (*range(offset, offset + 40, 3), *range(offset + 40, len(data), 97)):
        changed = copy_of(fs, **{path: flipped(data, place)})
        with pytest.raises(DamagedTailError) as caught:
            find_tail(changed)
        assert caught.value.code == "E.STORAGE.DAMAGED_TAIL"
        assert changed.files()[path] == flipped(data, place)


def test_what_something_was_written_behind_is_not_cut():
    """The next group is written only after the sync of this one."""
    fs, path, offset, _ = torn()
    world = World(copy_of(fs))
    world.send()
    world.store.abandon()
    for start in (offset, offset + 2, offset + BLOCK):
        torn_fs = damaged(world.fs, path, start, start + 2 * BLOCK)
        with pytest.raises(DamagedTailError, match=r"written behind it|follows it"):
            find_tail(torn_fs)
        with pytest.raises(GroupError):  # and no start takes it for the end of the journal
            World(copy_of(torn_fs))


def test_what_the_log_holds_already_is_not_cut():
    """Files are filled only after the sync: the disk lost the group after it was acknowledged."""
    fs, path, offset, _ = torn()
    world = World(copy_of(fs))  # a start applies the group
    for files in world.store.labels():
        files.flush()
    world.store.abandon()
    with pytest.raises(DamagedTailError, match="holds entry"):
        find_tail(damaged(world.fs, path, offset + BLOCK, offset + 3 * BLOCK))


def test_damage_before_the_last_segment_is_not_cut():
    fs, path, offset, _ = torn()
    world = World(copy_of(fs))
    world.store.journal.roll()
    world.store.abandon()
    with pytest.raises(DamagedTailError, match="not the last segment"):
        find_tail(damaged(world.fs, path, offset + BLOCK, offset + 3 * BLOCK))


def test_a_journal_that_recovery_can_read_is_left_alone():
    fs, path, _, _ = torn()
    assert find_tail(fs) is None
    assert find_tail(copy_of(fs, **{path: fs.files()[path][:-5]})) is None
    assert find_tail(MemFs()) is None


def torn_tail():
    fs, path, offset, acknowledged = torn()
    data = fs.files()[path]
    start = offset + BLOCK - offset % BLOCK
    fs = damaged(fs, path, start, start + BLOCK)
    return fs, data, path, acknowledged


def test_a_torn_group_is_cut_on_somebodys_word_only():
    """From the directory it cannot be told from an acknowledged group that was damaged later."""
    fs = torn_tail()[0]
    tail, before = find_tail(fs), fs.files()
    assert tail is not None
    with pytest.raises(TailUnconfirmedError, match="cannot be distinguished"):
        cut_tail(fs, tail, NOW)
    assert fs.files() == before
    shown = tail.to_json()
    assert {row["label"]: row["first_seq"] for row in shown["may_have_receipts"]} == {
        label.hex(): tail.sizes.get(label, 0) + 1 for label, _ in tail.entries
    }
    path = cut_tail(fs, tail, NOW, no_receipt_left=True)
    record = json.loads(fs.files()[path])
    assert record["word"] == {"no_receipt_left": True, "compared": []}
    assert find_tail(fs) is None


@pytest.mark.parametrize("newer", [False, True])
def test_the_word_of_a_replica_or_client_decides(tmp_path, newer):
    """Acknowledged entries whose blocks were zeroed are not cut if somebody else has seen them."""
    fs, _, _, acknowledged = torn_tail()
    tail = find_tail(fs)
    assert tail is not None
    last = acknowledged[-1]
    seq = tail.sizes[last.label] + newer
    receipt = replace(Receipt.from_bytes(last.receipt), stream_seq=seq)
    (tmp_path / "receipt.cbor").write_bytes(receipt.to_bytes())
    replica = World(OsFs(tmp_path / "replica"))
    fill(replica, 5)
    fill(replica, 4 + 40 * newer)
    replica.store.abandon()  # what is in its journal counts
    for path in (tmp_path / "receipt.cbor", tmp_path / "replica"):
        statement, before = read_statement(path), fs.files()
        if newer:
            with pytest.raises(DamagedTailError, match="it was acknowledged"):
                cut_tail(fs, tail, NOW, no_receipt_left=True, statements=[statement])  # whatever the operator says
            assert fs.files() == before
        else:
            assert tail.contradiction(statement) is None
    if not newer:
        record_path = cut_tail(fs, tail, NOW, statements=[read_statement(tmp_path / "replica")])
        record = json.loads(fs.files()[record_path])
        assert record["word"]["compared"] == [str(tmp_path / "replica")]


def test_what_says_nothing_about_a_log_is_refused(tmp_path):
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    (tmp_path / "empty").mkdir()
    for name in ("nonsense", "empty"):
        with pytest.raises(StorageError):
            read_statement(tmp_path / name)
