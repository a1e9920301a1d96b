"""Attachments on disk: whole or replaced, counted for who brought them, erased with the entries they belong to."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.io.errors import CorruptError, NoSpaceError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.attachments import AttachmentFiles, EntryRef, QuotaError, copy_records

LABEL, OTHER, ALICE, BOB = (bytes([n]) * 32 for n in (1, 2, 3, 4))


@pytest.fixture
def files(tmp_path):
    attachments = AttachmentFiles(OsFs(tmp_path), 0)
    yield attachments
    attachments.close()


def put(files, data, *, owner=ALICE, seq=None, label=LABEL, client=ALICE, **options):
    entry = None if seq is None else EntryRef(label, client, seq)
    return files.put(H(data), data, owner=owner, entry=entry, **options)


def upto(seq, label=LABEL):
    """The entries up to a number were erased, of every client of a label."""
    return lambda ref: ref.label == label and ref.client_seq <= seq


@pytest.mark.parametrize("damage", [b"", b"hole!", b"whole" * 100, b"whol"])
def test_a_damaged_copy_is_replaced_by_a_good_one(files, tmp_path, damage):
    assert put(files, b"whole")
    path = tmp_path / layout.attachment(H(b"whole"))
    path.write_bytes(damage)
    with pytest.raises(CorruptError):
        files.get(H(b"whole"))
    with pytest.raises(VerifyError):
        files.put(H(b"whole"), damage)
    assert put(files, b"whole")
    assert files.get(H(b"whole")) == b"whole"
    assert not put(files, b"whole")
    assert files.bytes_of(ALICE) == 5  # counted once, however often it came


def test_a_copy_that_cannot_be_read_is_replaced(tmp_path):
    class BadSector:
        def __init__(self, file):
            self.size, self.close = file.size, file.close

        def read_at(self, offset, size):
            raise OSError(errno.EIO, "a bad sector")

    class Failing(OsFs):
        bad = False

        def open(self, path, *, create=False):
            file = super().open(path, create=create)
            return BadSector(file) if self.bad else file

    fs = Failing(tmp_path)
    files = AttachmentFiles(fs, 0)
    assert put(files, b"whole")
    fs.bad = True
    assert put(files, b"whole")
    fs.bad = False
    assert files.get(H(b"whole")) == b"whole"
    files.close()


def test_a_quota_bounds_what_is_kept_for_one_owner(files):
    put(files, b"a" * 60, max_bytes=100)
    with pytest.raises(QuotaError) as refused:
        put(files, b"b" * 41, max_bytes=100)
    assert (refused.value.used, refused.value.size, refused.value.maximum) == (60, 41, 100)
    assert files.get(H(b"b" * 41)) is None
    put(files, b"b" * 40, max_bytes=100)
    assert not put(files, b"a" * 60, max_bytes=100)  # it takes no further space
    put(files, b"c" * 100, owner=BOB, max_bytes=100)
    put(files, b"d" * 1000, max_bytes=0)
    assert (files.bytes_of(ALICE), files.bytes_of(BOB)) == (1100, 100)


def test_uploads_at_once_do_not_pass_a_quota_together(tmp_path):
    """Space is reserved before the bytes are written, not after."""
    barrier = threading.Barrier(4)

    class Slow(OsFs):
        def free_bytes(self):
            barrier.wait(30)  # all of them are past the check of the quota
            return super().free_bytes()

    files = AttachmentFiles(Slow(tmp_path), 0)
    outcomes = []

    def upload(number):
        try:
            outcomes.append(put(files, bytes([number]) * 30, max_bytes=100))
        except QuotaError:
            outcomes.append("refused")
            barrier.wait(30)

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes, key=str) == [True, True, True, "refused"]
    assert files.bytes_of(ALICE) == 90
    files.close()


def test_what_is_refused_takes_no_quota(tmp_path):
    files = AttachmentFiles(OsFs(tmp_path), 1 << 62)
    for _ in range(3):
        with pytest.raises(NoSpaceError):
            put(files, b"a" * 60, max_bytes=100)
    assert (files.bytes_of(ALICE), dict(files._arriving)) == (0, {})
    files.close()


def test_attachments_go_with_the_entries_they_belong_to(files, tmp_path):
    for seq in (1, 2, 3):
        put(files, b"%d" % seq, seq=seq)
    put(files, b"shared", seq=1)
    put(files, b"shared", seq=3)
    put(files, b"other", seq=1, label=OTHER)
    put(files, b"pinned")  # for no entry in particular: nobody knows when it may go
    put(files, b"pinned", seq=1)
    assert files.sweep(upto(2)) == 2
    here = [data for data in (b"1", b"2", b"3", b"shared", b"other", b"pinned") if files.get(H(data)) == data]
    assert here == [b"3", b"shared", b"other", b"pinned"]
    assert files.bytes_of(ALICE) == sum(map(len, here))
    assert files.sweep(upto(2)) == 0
    assert files.sweep(upto(3)) == 2
    assert files.get(H(b"shared")) is None
    assert files.get(H(b"pinned")) == b"pinned"


@pytest.mark.long
def test_a_sweep_takes_thousands(files):
    for seq in range(1, 601):
        put(files, b"%d" % seq, seq=seq)
    assert files.sweep(upto(599)) == 599
    assert files.get(H(b"600")) == b"600"
    assert files.bytes_of(ALICE) == 3


def test_a_sweep_of_a_directory_without_attachments_writes_nothing(files, tmp_path):
    assert files.sweep(upto(1)) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_erased_attachment_may_come_back_for_a_later_entry(files):
    put(files, b"again", seq=1)
    assert files.sweep(upto(1)) == 1
    assert put(files, b"again", seq=2)
    assert files.sweep(upto(1)) == 0
    assert files.get(H(b"again")) == b"again"


def test_an_attachment_that_is_erased_while_it_is_put_again_is_written_again(tmp_path):
    """The second upload found it whole; the sweep removes it before the upload is noted."""

    class Raced(OsFs):
        sweeping = None

        def exists(self, path):
            exists = super().exists(path)
            if exists and self.sweeping is not None and path.startswith(layout.ATTACHMENTS + "/"):
                sweeping, self.sweeping = self.sweeping, None
                done = threading.Thread(target=sweeping)
                done.start()
                done.join(30)
                return True
            return exists

    fs = Raced(tmp_path)
    files = AttachmentFiles(fs, 0)
    put(files, b"data", seq=1)
    fs.sweeping = lambda: files.sweep(upto(1))
    assert put(files, b"data", seq=2)
    assert files.get(H(b"data")) == b"data"
    files.close()


def test_too_many_entries_of_one_attachment_keep_it_for_good(files):
    for seq in range(1, 40):
        put(files, b"popular", seq=seq)
    assert files._row("SELECT count(*) FROM refs")[0] == 16
    assert files.sweep(upto(40)) == 0
    assert files.get(H(b"popular")) == b"popular"


def test_records_survive_a_restart_and_a_copy(files, tmp_path):
    put(files, b"1", seq=1)
    put(files, b"2", seq=2)
    copy = OsFs(tmp_path / "copy")
    copy.make_dir("")
    copy_records(OsFs(tmp_path), copy)  # while they are open
    files.close()
    for fs in (OsFs(tmp_path), copy):
        again = AttachmentFiles(fs, 0)
        assert again.bytes_of(ALICE) == 2
        copy.make_dir(f"{layout.ATTACHMENTS}/{H(b'1').hex()[:2]}")
        assert again.sweep(upto(1)) == 1
        assert again.bytes_of(ALICE) == 1
        again.close()


def test_damaged_records_are_named_and_attachments_are_served_all_the_same(files, tmp_path):
    put(files, b"data")
    files.close()
    (tmp_path / layout.ATTACHMENT_RECORDS).write_bytes(b"no database" * 100)
    again = AttachmentFiles(OsFs(tmp_path), 0)
    assert again.get(H(b"data")) == b"data"
    with pytest.raises(CorruptError, match="move it away"):
        put(again, b"more")
    (tmp_path / layout.ATTACHMENT_RECORDS).unlink()
    assert not put(again, b"data")  # known again, and counted again
    assert again.bytes_of(ALICE) == 4
    again.close()


def test_uploads_of_one_attachment_by_several_clients_at_once_all_succeed(files, tmp_path):
    """294 of 450 failed."""
    data = b"attachment" * 20_000
    start = threading.Barrier(6)

    def upload(number):
        start.wait()
        return [put(files, data, owner=bytes([number]) * 32) for _ in range(5)]

    with ThreadPoolExecutor(6) as threads:
        outcomes = [done.result() for done in [threads.submit(upload, number) for number in range(6)]]
    assert any(any(new) for new in outcomes)
    assert files.get(H(data)) == data
    assert [path.name for path in (tmp_path / layout.attachment(H(data))).parent.iterdir()] == [H(data).hex()]
