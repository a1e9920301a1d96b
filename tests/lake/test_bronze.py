"""Entries as rows: every entry of a pinned prefix is one row, whatever happened to its bytes."""

import random

import pyarrow as pa
import pytest
from tests.storage.builders import LABELS, World, fill

from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.io.local import OsFs
from veen.lake.log.columns import ENTRIES, ddl, select_columns
from veen.lake.log.entries import LEVELS, DirectorySource, ReadSpec, batches
from veen.lake.log.errors import OptionError, SourceDamaged
from veen.lake.log.slices import Selection, Slice
from veen.storage.pinned import pin
from veen.verify.vectors import Departs


@pytest.fixture
def world(tmp_path):
    world = World(OsFs(tmp_path))
    fill(world, 25)
    world.store.close()
    return world


def rows_of(path, **options):
    pinned = pin(str(path))
    fs = OsFs(path)
    spec = ReadSpec(columns=ENTRIES, identity=pinned.identity, **options)
    chunks = map(Slice.whole, pinned.chunks())
    return [row for chunk in chunks for batch in batches(fs, chunk, spec) for row in batch.to_pylist()]


def by_place(frames):
    return {(f.label, f.stream_seq): f for f in frames}


@pytest.mark.parametrize("level", LEVELS)
def test_every_entry_is_a_row(world, tmp_path, level):
    expected = by_place(world.frames)
    rows = rows_of(tmp_path, level=level)
    assert [(row["label"], row["stream_seq"]) for row in rows] == sorted(expected)
    for row in rows:
        frame = expected[row["label"], row["stream_seq"]]
        msg, receipt = Msg.from_bytes(frame.msg), Receipt.from_bytes(frame.receipt)
        assert row["ok"], row["reason"]
        assert (row["msg"], row["receipt"], row["entry_hash"]) == (frame.msg, frame.receipt, frame.entry_hash)
        assert (row["client_id"], row["client_seq"], row["prev_ack"]) == (msg.client_id, msg.client_seq, msg.prev_ack)
        assert (row["auth_ref"], row["ct_hash"], row["ciphertext"]) == (msg.auth_ref, msg.ct_hash, msg.ciphertext)
        assert (row["hub_ts"], row["leaf_hash"], row["mmr_root"]) == (
            receipt.hub_ts,
            receipt.leaf_hash,
            receipt.mmr_root,
        )
        assert (row["msg_sig"], row["hub_sig"], row["profile_id"]) == (msg.sig, receipt.hub_sig, msg.profile_id)


def test_the_strict_reader_gives_the_same_rows(world, tmp_path, monkeypatch):
    fast = rows_of(tmp_path)

    def departs(*_, **__):
        raise Departs

    monkeypatch.setattr("veen.lake.log.entries.decode", departs)
    assert rows_of(tmp_path) == fast


def test_a_flipped_bit_is_a_row_that_says_so_and_takes_no_other_with_it(world, tmp_path):
    """Never a dropped row, never an exception: every entry is still there, and the damaged one says why."""
    expected = sorted(by_place(world.frames))
    chunks = sorted((tmp_path / "log").glob("chunk-*.log"))
    rng = random.Random(7)
    for _ in range(40):
        chunk = rng.choice(chunks)
        good = chunk.read_bytes()
        place = rng.randrange(len(good))
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        chunk.write_bytes(bad)
        rows = rows_of(tmp_path)
        assert [(row["label"], row["stream_seq"]) for row in rows if row["stream_seq"]][: len(expected)] == expected
        broken = [row for row in rows if not row["ok"]]
        assert broken
        assert all(row["path"] == f"log/{chunk.name}" and row["reason"] for row in broken)
        chunk.write_bytes(good)
    assert all(row["ok"] for row in rows_of(tmp_path))


def test_fail_fast_stops_at_the_first_damage(world, tmp_path):
    chunk = min((tmp_path / "log").glob("chunk-*.log"))
    data = bytearray(chunk.read_bytes())
    data[200] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(SourceDamaged, match="entry 1"):
        rows_of(tmp_path, fail_fast=True)


def test_a_signature_is_checked_when_asked_for(world, tmp_path):
    pinned = pin(str(tmp_path))
    rows = rows_of(tmp_path, level="full")
    assert all(row["ok"] for row in rows)
    unknown = [
        row
        for ref in pinned.chunks()
        for batch in batches(OsFs(tmp_path), Slice.whole(ref), ReadSpec(columns=ENTRIES, level="receipt"))
        for row in batch.to_pylist()
    ]
    assert not any(row["ok"] for row in unknown)


def test_ranges_and_columns_are_chosen(world, tmp_path):
    pinned = pin(str(tmp_path))
    ref = pinned.labels[LABELS[0]].chunks[0]
    columns = select_columns(["stream_seq", "HUB_TS"], ENTRIES)
    part = Slice.whole(ref)._replace(first=2, last=2)
    (batch,) = batches(OsFs(tmp_path), part, ReadSpec(columns=columns))
    assert batch.schema.names == ["stream_seq", "hub_ts"]
    assert batch.column("stream_seq").to_pylist() == [2]
    assert batch.schema.field("hub_ts").type == pa.int64()
    with pytest.raises(OptionError, match="unknown column nonsense"):
        select_columns(["nonsense"], ENTRIES)
    assert ddl(columns) == "stream_seq BIGINT, hub_ts BIGINT"


def test_a_missing_chunk_is_a_gap_and_a_copy_without_keys_is_pinned(world, tmp_path):
    label = pin(str(tmp_path)).labels[LABELS[0]]
    victim = label.chunks[1]
    (tmp_path / victim.path).unlink()
    again = pin(str(tmp_path)).labels[LABELS[0]]
    assert again.gaps == ((victim.start_seq, victim.end_seq),)
    assert again.size == label.size


def test_a_pin_is_a_prefix_of_what_a_hub_goes_on_writing(tmp_path):
    world = World(OsFs(tmp_path))
    fill(world, 10)
    world.store.retire()
    pinned = pin(str(tmp_path))
    assert sum(pinned.heads.values()) == 10
    before = rows_of(tmp_path)
    refs = list(pinned.chunks())
    fill(world, 30)
    world.store.retire()
    spec, fs = ReadSpec(columns=ENTRIES), OsFs(tmp_path)
    later = [row for ref in refs for batch in batches(fs, Slice.whole(ref), spec) for row in batch.to_pylist()]
    strip = [{k: v for k, v in row.items() if k != "path"} for row in later]
    assert strip == [{k: v for k, v in row.items() if k != "path"} for row in before]
    world.store.close()


def test_what_follows_the_last_entry_of_a_file_is_told_also_within_bounds(world, tmp_path):
    chunk = min((tmp_path / "log").glob("chunk-*.log"))
    chunk.write_bytes(chunk.read_bytes() + b"\x01 more")
    source = DirectorySource(str(tmp_path))
    pinned = source.pin(Selection())
    read = source.read(source.slices(pinned, Selection()), ReadSpec(columns=ENTRIES, identity=pinned.identity))
    (strange,) = [row for batch in read for row in batch.to_pylist() if not row["ok"]]
    assert "bytes follow the last entry" in strange["reason"]
