"""The journal: groups are whole or not there, and no damage passes for a torn tail."""

import errno
import random

import pytest
from tests.examples import spread
from tests.storage import driver

from veen.io.errors import CorruptError, NoSpaceError, StorageError
from veen.storage import frame, journal, layout
from veen.storage.journal import Journal
from veen.testing.memfs import Fault, MemFs

FRAMES = [frame.encode(driver.LABELS[0], seq, b"m" * seq, b"r") for seq in range(1, 7)]
HEADER = journal._SEGMENT.size
GROUPS = [FRAMES[:1], FRAMES[1:4], FRAMES[4:]]


def written(fs, roll_after=()):
    wal = Journal.create(fs)
    for number, group in enumerate(GROUPS):
        wal.write(journal.payload_of(group))
        if number in roll_after:
            wal.roll()
    return wal


def replayed(fs, segment=1):
    *records, end = journal.replay(fs, segment)
    return records, end


def path(segment=1):
    return layout.journal_segment(segment)


def damaged(fs, name, data):
    return MemFs({**fs.files(), name: bytes(data)})


def test_what_was_written_is_replayed_in_order():
    for roll_after in ((), (0,), (0, 1), (2,)):
        fs = MemFs()
        wal = written(fs, roll_after)
        records, end = replayed(fs)
        assert records == FRAMES
        assert (end.segment, end.offset) == (wal.segment, wal.offset)


def test_writing_goes_on_after_a_replay():
    fs = MemFs()
    written(fs)
    _, end = replayed(fs)
    wal = Journal.resume(fs, end)
    more = frame.encode(driver.LABELS[0], 7, b"more", b"r")
    wal.write(journal.payload_of([more]))
    assert replayed(fs)[0] == [*FRAMES, more]


def test_a_torn_tail_of_the_newest_segment_is_dropped_and_only_whole_groups_remain():
    fs = MemFs()
    written(fs)
    data = fs.files()[path()]
    for size in range(len(data)):
        if size < HEADER:
            continue  # inside the header of the segment: tested below
        records, end = replayed(damaged(fs, path(), data[:size]))
        assert records in ([], FRAMES[:1], FRAMES[:4])
        assert end.offset <= size
    records, _ = replayed(damaged(fs, path(), data + bytes(50)))  # space given by the file system, never filled
    assert records == FRAMES


def test_every_flipped_bit_is_found_and_never_taken_for_a_torn_write():
    """DESIGN §9.3: also in the last group, whose receipts may have left."""
    fs = MemFs()
    written(fs)
    data = fs.files()[path()]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            replayed(damaged(fs, path(), flipped))


def test_an_older_segment_may_not_be_torn_or_missing():
    fs = MemFs()
    written(fs, roll_after=(0, 1))
    data = fs.files()[path(1)]
    with pytest.raises(CorruptError):
        replayed(damaged(fs, path(1), data[:-1]))
    files = fs.files()
    del files[path(2)]
    with pytest.raises(StorageError, match="missing"):
        replayed(MemFs(files))
    with pytest.raises(StorageError, match="missing"):
        replayed(MemFs(), 1)


def test_segments_do_not_change_places():
    fs = MemFs()
    written(fs, roll_after=(0, 1))
    files = fs.files()
    files[path(2)], files[path(3)] = files[path(3)], files[path(2)]
    with pytest.raises(CorruptError, match="belongs here"):
        replayed(MemFs(files))


def test_a_segment_that_a_crash_cut_while_it_began_is_begun_again():
    fs = MemFs()
    written(fs, roll_after=(2,))
    for size in range(HEADER):
        shortened = damaged(fs, path(2), fs.files()[path(2)][:size])
        records, end = replayed(shortened)
        assert records == FRAMES
        assert end.segment == 1
    assert journal.is_empty(MemFs({path(1): b"veen-jour"}))
    assert journal.is_empty(MemFs())
    assert not journal.is_empty(fs)


def test_old_segments_go_and_the_rest_stays_readable():
    fs = MemFs()
    written(fs, roll_after=(0, 1))
    journal.remove_before(fs, 3)
    assert replayed(fs, 3)[0] == FRAMES[4:]


def test_a_full_disk_is_told_apart_from_a_failing_one():
    fs = MemFs()
    wal = written(fs)
    fs.fault = Fault(fs.operations + 1, "error", errno.ENOSPC)
    with pytest.raises(NoSpaceError):
        wal.write(b"\x01")
    fs.fault = Fault(fs.operations + 1, "error", errno.EIO)
    with pytest.raises(OSError, match="injected"):
        wal.write(b"\x01")


def test_what_is_neither_frame_nor_control_record_is_damage():
    fs = MemFs()
    wal = Journal.create(fs)
    wal.write(b"\x80")
    with pytest.raises(CorruptError, match="no record begins here"):
        replayed(fs)


def plain_search(data):
    """Every position, without skipping anything."""
    size = journal._GROUP.size
    for start in range(len(data) - size + 1):
        length, claimed, check = journal._GROUP.unpack_from(data, start)
        if length <= len(data) - start - size and check == journal._head_check(length, claimed) and any(claimed):
            return True
    return False


@pytest.mark.parametrize("seed", spread(range(30), 8))
def test_heads_of_groups_are_found_among_zeros_as_by_a_search_of_every_position(seed):
    rng = random.Random(seed)
    head = journal._GROUP.pack(10, bytes([0, *rng.randbytes(31)]), b"....")
    chain = rng.randbytes(32)
    good = journal._GROUP.pack(10, chain, journal._head_check(10, chain))
    pieces = [bytes(rng.randint(0, 90)), rng.randbytes(rng.randint(0, 9)), head, good[: rng.randint(0, 44)], good]
    data = b"".join(rng.choice(pieces) for _ in range(rng.randint(0, 6)))
    assert journal.holds_group_head(data) == plain_search(data)


def test_zeros_at_the_end_of_a_journal_are_not_hashed_one_by_one(monkeypatch):
    """1.6 s for each MiB at a start."""
    checks = []

    def counted(*head):
        checks.append(head)
        return b"none"

    monkeypatch.setattr(journal, "_head_check", counted)
    assert not journal.holds_group_head(bytes(8 << 20))
    assert not checks
    assert not journal.holds_group_head(bytes(1 << 20) + b"\1" + bytes(1 << 20))
    assert len(checks) <= journal._GROUP.size
