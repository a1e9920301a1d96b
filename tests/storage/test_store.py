"""The store as a whole: what it writes is what the spec names, and what it reads is what it wrote."""

import random

import cbor2
import pytest
from tests.storage import driver

from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import LimitsSet
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr, MmrTree
from veen.core.tree.proof import prove_inclusion
from veen.io.errors import LockedError, StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.frame import Frame
from veen.storage.store import Group, Store
from veen.testing.memfs import MemFs


@pytest.fixture
def filled():
    fs, released = MemFs(), list[Frame]()
    store = driver.open_store(fs)
    driver.drive(store, released)
    return fs, store, released


def by_label(released):
    labels: dict[bytes, list[Frame]] = {}
    for framed in released:
        labels.setdefault(framed.label, []).append(framed)
    return labels


@pytest.mark.req(
    "STOR-07",
    "STOR-09",
    "STOR-10",
    "STOR-11",
    "STOR-12",
    "STOR-13",
    "STOR-14",
    "CKPT-04",
    "GEN-16",
    "OP0-08",
    "GEN-22",
    "STOR-06",
)
def test_each_seal_leaves_the_files_of_the_spec(filled):
    fs, store, released = filled
    store.close()
    files = fs.files()
    for label, frames in by_label(released).items():
        hexed = label.hex()
        tree = MmrTree(Receipt.from_bytes(framed.receipt).leaf_hash for framed in frames)
        listed = {}
        for start in range(1, len(frames) - 2, 4):
            end = start + 3
            name = f"log/chunk-{hexed}-{start:020d}-{end:020d}"
            part = frames[start - 1 : end]
            data = b"".join(framed.to_bytes() for framed in part)
            assert files[f"{name}.log"] == data
            hashes = Mmr()
            for framed in part:
                hashes.append(framed.entry_hash)
            assert cbor2.loads(files[f"{name}.summary"]) == [
                label,
                start,
                end,
                tree.root(end),
                4,
                len(data),
                hashes.root(),
            ]
            assert cbor2.loads(files[f"log/peaks-{hexed}-{end:020d}.cbor"]) == list(tree.peaks(end))
            checkpoint = Checkpoint.from_bytes(files[f"log/checkpoint-{hexed}-{end:020d}.cbor"])
            checkpoint.verify(driver.HUB.public)
            assert (checkpoint.upto_seq, checkpoint.mmr_root) == (end, tree.root(end))
            listed[end] = [tree.root(end), [start, end], f"peaks-{hexed}-{end:020d}.cbor"]
        assert cbor2.loads(files[f"log/checkpoint-index-{hexed}.cbor"]) == listed
        rest = len(frames) % 4
        if rest:
            active = files[f"log/active-{hexed}-{len(frames) - rest + 1:020d}.log"]
            assert active == b"".join(framed.to_bytes() for framed in frames[-rest:])


@pytest.mark.req("STOR-08", "COMP-02")
def test_a_chunk_never_exceeds_its_bytes():
    limits = Limits(max_msg_bytes=400, max_chunk_bytes=1_000)
    fs = MemFs()
    store = Store.open(fs, limits, driver.seal)
    driver.drive(store, [])
    store.close()
    sizes = [len(data) for path, data in fs.files().items() if path.startswith("log/chunk-") and path.endswith(".log")]
    assert len(sizes) > 5
    assert max(sizes) <= 1_000


@pytest.mark.req("STOR-16", "STOR-08")
def test_the_directory_does_not_depend_on_how_messages_were_grouped(filled):
    fs, store, _ = filled
    store.close()
    for sizes in ((1,), (7, 1), (40,)):
        other = MemFs()
        again = driver.open_store(other)
        driver.drive(again, [], sizes)
        again.close()
        same = {path: data for path, data in other.files().items() if not path.startswith("journal/")}
        assert same == {path: data for path, data in fs.files().items() if not path.startswith("journal/")}


class _Growing:
    """A file of entries that may only grow; recovery may write the same bytes to the same place again."""

    def __init__(self, file):
        self._file = file

    def write_at(self, offset, data):
        assert offset <= self._file.size()
        there = self._file.read_at(offset, len(data))
        assert there == data[: len(there)]
        self._file.write_at(offset, data)

    def truncate(self, size):
        assert size >= self._file.size()

    def __getattr__(self, name):
        return getattr(self._file, name)


class _AppendOnly(MemFs):
    @staticmethod
    def _has_entries(path):
        return path.startswith(("log/chunk-", "log/active-")) and path.endswith(".log")

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        return _Growing(file) if self._has_entries(path) else file

    def replace(self, path, data, *, private=False):
        assert not self._has_entries(path)
        super().replace(path, data, private=private)

    def remove(self, path):
        assert not self._has_entries(path)
        super().remove(path)


@pytest.mark.req("STOR-05")
def test_entries_are_appended_and_never_written_over():
    """Sealing renames, recovery writes what is missing: no byte of an entry ever changes."""
    fs, released = _AppendOnly(), list[Frame]()
    for part in range(1, 5):
        store = driver.open_store(fs)
        rest = driver.remaining(store)
        for step in rest[: len(rest) * part // 4]:
            group = Group()
            released.append(driver.stage(store, group, step))
            store.journal.write(group.payload())
            store.apply(group)
            if store.journal_is_full:
                store.retire()
        store.abandon()  # without a farewell
    store = driver.open_store(fs)
    assert len(released) == len(driver.SCRIPT)
    driver.check_released(store, released)
    assert any(path.startswith("log/chunk-") for path in fs.files())


@pytest.mark.req("COMP-02")
def test_ranges_read_back_what_was_written(filled):
    _, store, released = filled
    rng = random.Random(1)
    for label, frames in by_label(released).items():
        files = store.files(label)
        for _ in range(60):
            first = rng.randint(1, len(frames))
            last = rng.randint(first, len(frames) + 3)
            entries = store.reader.frames(files, first, last, rng.choice([0, 500, 10**6]))
            assert entries == frames[first - 1 : first - 1 + len(entries)]
            assert entries
        assert store.reader.frames(files, 1, len(frames), 10**9) == frames


@pytest.mark.req("PROOF-12")
def test_proofs_come_from_the_node_store(filled):
    _, store, released = filled
    for label, frames in by_label(released).items():
        files = store.files(label)
        receipts = [Receipt.from_bytes(framed.receipt) for framed in frames]
        for receipt in receipts:
            for size in range(receipt.stream_seq, len(frames) + 1):
                proof = prove_inclusion(files.node_at, receipt.stream_seq, size)
                proof.verify(
                    leaf_hash=receipt.leaf_hash,
                    stream_seq=receipt.stream_seq,
                    tree_size=size,
                    expected_root=receipts[size - 1].mmr_root,
                )


@pytest.mark.req("GEN-17")
def test_each_message_is_found_by_its_writers_own_number(filled):
    fs, store, released = filled
    last = {
        (framed.label, msg.client_id): msg.client_seq for framed in released for msg in [Msg.from_bytes(framed.msg)]
    }
    for reopened in (False, True):
        if reopened:
            store.close()
            store = driver.open_store(fs)
        for framed in released:
            msg = Msg.from_bytes(framed.msg)
            cursor = store.state.client(store.state.labels[framed.label], msg.client_id)
            assert cursor is not None
            assert cursor.client_seq == last[framed.label, msg.client_id]
            assert store.stream_seq_of(cursor.row, msg.client_seq) == framed.stream_seq
        assert store.stream_seq_of(1, 10_000) is None


@pytest.mark.req("GEN-25")
def test_entries_are_found_by_time(filled):
    fs, store, released = filled
    store.close()
    store = driver.open_store(fs)
    for label, frames in by_label(released).items():
        files = store.files(label)
        assert files is not None
        times = [Receipt.from_bytes(framed.receipt).hub_ts for framed in frames]
        for hub_ts in range(driver.START - 1, driver.START + 16):
            expected = next((seq for seq, ts in enumerate(times, start=1) if ts >= hub_ts), len(times) + 1)
            assert store.first_at(files, hub_ts) == expected


@pytest.mark.req("STOR-22", "GEN-19", "GEN-16", "GEN-17")
def test_a_restart_restores_every_cursor(filled):
    fs, store, _ = filled

    def cursors(opened):
        state = opened.state
        return (
            {label: (state.labels[label].row, state.labels[label].mmr.peaks()) for label in driver.LABELS},
            [(cap.issued_at, cap.tokens, cap.bucket_ts) for cap in (state.caps[t.auth_ref()] for t in driver.TOKENS)],
            state.hub_ts,
            state.next_client_row,
            state.control,
        )

    before = cursors(store)
    store.abandon()  # no farewell: recovery has to replay
    store = driver.open_store(fs)
    assert cursors(store) == before
    store.close()
    assert cursors(driver.open_store(fs)) == before


def test_changed_limits_hold_from_the_next_chunk_on(filled):
    """D-75"""
    fs, store, _ = filled
    group = Group()
    limits = Limits(max_checkpoint_interval=2)
    driver.control(store, group, LimitsSet(limits=limits.to_json()), driver.START + 100)
    store.journal.write(group.payload())
    store.apply(group)
    store.close()
    store = driver.open_store(fs)
    assert store.state.limits == limits


def test_a_second_writer_is_refused_by_name(tmp_path):
    """D-76"""
    fs = OsFs(tmp_path)
    with fs.lock(), pytest.raises(LockedError, match="pid"), OsFs(tmp_path).lock():
        pass
    with fs.lock():
        pass


def test_a_directory_without_index_and_journal_is_not_taken_for_a_new_one(filled):
    fs, store, _ = filled
    store.close()
    files = {path: data for path, data in fs.files().items() if path.startswith("log/")}
    with pytest.raises(StorageError, match="rebuild-index"):
        driver.open_store(MemFs(files))


def test_on_a_real_disk_it_is_the_same(tmp_path, filled):
    fs, store, released = filled
    store.close()
    real = driver.open_store(OsFs(tmp_path))
    driver.drive(real, [])
    driver.check_released(real, released)
    real.close()
    for path, data in fs.files().items():
        if not path.startswith("journal/"):
            assert (tmp_path / path).read_bytes() == data
    assert layout.chunk_of("other.log") is None
