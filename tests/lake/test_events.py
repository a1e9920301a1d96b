"""Events of a pinned prefix: every entry is an event or says why not, however the log is cut (D-79, D-120)."""

import pickle
import random
import shutil
from collections import Counter

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, Recorder
from tests.lake.table_builders import LABELS, copy_of, erase, made, spoil

from veen.client.identity.keyring import Keyring
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.core.objects.receipt import Receipt
from veen.io.local import OsFs
from veen.lake import tables
from veen.lake.log.columns import ddl
from veen.lake.log.errors import SourceDamaged
from veen.lake.log.events import (
    REASONS,
    SILVER,
    EventJob,
    Mark,
    NotAnEvent,
    Unread,
    entry_of,
    event_batches,
    event_of,
    make_prefix,
    read_events,
    rows_of,
)
from veen.lake.log.keys import write_keys
from veen.lake.log.prefix import Shortened
from veen.lake.spark.runner import divide_timed
from veen.overlays.framework.snapshot import Cut
from veen.storage.frame import frames
from veen.storage.keys import identity
from veen.storage.pinned import pin

CUTS = (1, 2, 7, 64)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A directory that no test changes: streams, epochs, and entries that cannot be opened."""
    path = tmp_path_factory.mktemp("events") / "hub"
    made(path, 120).done()
    return path


@pytest.fixture
def copy(log, tmp_path):
    return copy_of(log, tmp_path / "copy")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


def reason_of(found):
    return found.reason if isinstance(found, Unread) else None


def by_place(found):
    return {(entry.label, entry.stream_seq): entry for entry in found}


def test_every_entry_is_there_once_in_logical_order(log, keys):
    """OVL-15, D-27: one order over all streams and labels."""
    entries = list(read_events(str(log), keys))
    assert len(by_place(entries)) == len(entries) == 120
    assert [entry.order for entry in entries] == sorted(entry.order for entry in entries)
    reasons = Counter(entry.reason for entry in entries if isinstance(entry, Unread))
    assert set(reasons) == {"sealed", "malformed"}
    event = next(entry for entry in entries if isinstance(entry, Event))
    assert event.stream_id in {keys.stream_id for keys in KEYS.values()}
    assert list(read_events(str(log), KEYRING)) == entries


@pytest.mark.parametrize("spoiled", spread([False, True], 1))
def test_however_the_log_is_cut_tasks_give_the_rows_of_one_process(log, copy, keys, spoiled):
    if spoiled:
        spoil(copy, random.Random(3))
    prefix = make_prefix(str(copy))
    names = {stream_keys.stream_id: str(stream_keys.name) for stream_keys in KEYS.values()}
    expected = list(rows_of(read_events(prefix, keys), names))
    assert {row["reason"] for row in expected} >= ({"damaged", "missing"} if spoiled else {None})
    for parts in CUTS:
        job, tasks = pickle.loads(pickle.dumps((EventJob(str(copy), keys), divide_timed(None, prefix, parts))))  # noqa: S301 - ours
        rows = [row for task in tasks for batch in event_batches(job, task) for row in batch.to_pylist()]
        rows.sort(key=lambda row: entry_of(row).order)
        assert rows == expected


def test_time_that_runs_backwards_is_carried_over_every_cut(tmp_path, keys):
    world = Recorder(tmp_path)
    for step in (0, 9, -5, 1, 1, -3, 8, -2, 0, 1):
        world.now += step
        world.emit(STREAMS[0])
    prefix = make_prefix(world.done())
    expected = list(rows_of(read_events(prefix, keys)))
    assert any(row["ts"] > row["hub_ts"] for row in expected)
    for parts in (*CUTS, 10):
        job = EventJob(prefix.uri, keys)
        entries = [
            row
            for task in divide_timed(None, prefix, parts)
            for entry in event_batches(job, task)
            for row in entry.to_pylist()
        ]
        assert [row["ts"] for row in entries] == [row["ts"] for row in expected]


def test_rows_and_events_are_each_other(log, keys):
    entries = list(read_events(str(log), keys))
    rows = list(rows_of(entries))
    assert [entry_of(row) for row in rows] == entries
    assert all(set(row) == {column.name for column in SILVER} for row in rows)
    row = next(row for row in rows if row["ok"])
    for bad in ({"hdr": b"\xff"}, {"hdr": None}, {"body": None}, {"leaf_hash": 5}):
        with pytest.raises(NotAnEvent, match="entry"):
            event_of(row | bad)


def test_damage_and_holes_are_rows_with_place_and_reason(log, copy, keys):
    labels = spoil(copy, random.Random(1))
    before, after = by_place(read_events(str(log), keys)), by_place(read_events(str(copy), keys))
    assert set(before) == set(after)
    changed = [place for place in before if before[place] != after[place]]
    assert {label.hex() for label, _ in changed} <= labels
    hurt = [
        place for place, entry in after.items() if isinstance(entry, Unread) and entry.reason in ("damaged", "missing")
    ]
    assert {after[place].reason for place in hurt} == {"damaged", "missing"}
    for place in set(before) - set(hurt):  # an entry that is well stays what it was, up to ts* behind a hole
        assert rows_without_ts(after[place]) == rows_without_ts(before[place])


def rows_without_ts(one):
    (row,) = rows_of([one])
    return row | {"ts": None}


@pytest.mark.parametrize("receipts", [False, True])
def test_erased_entries_keep_their_place_and_identity(tmp_path, keys, receipts):
    world = made(tmp_path / "hub", 60)
    world.store.retire()
    before = by_place(read_events(str(world.path), keys))
    erase(world, receipts=receipts)
    after = by_place(read_events(world.done(), keys))
    assert set(after) == set(before)
    gone = [place for place, entry in after.items() if isinstance(entry, Unread) and entry.reason == "erased"]
    assert gone
    for place in gone:
        assert (after[place].leaf_hash, after[place].ts) == (before[place].leaf_hash, before[place].ts)
        assert after[place].client_id == before[place].client_id


def test_without_keys_everything_is_sealed_and_nothing_stops(log):
    entries = list(read_events(str(log), Keyring()))
    assert {entry.reason for entry in entries if isinstance(entry, Unread)} == {"sealed"}
    assert all(entry.leaf_hash and entry.client_id and entry.stream_id for entry in entries)


def test_a_file_name_that_claims_a_huge_hole_is_named_and_not_walked_through(copy, keys, tmp_path):
    """Nothing from a foreign directory is trusted: a name costs its author nothing, a row for each entry costs us."""
    active = next((copy / "log").glob("active-*"))
    stem, _, _ = active.name.rpartition("-")
    active.rename(active.with_name(f"{stem}-{10**15:020d}.log"))
    with pytest.raises(SourceDamaged, match="more than the 1048576 that may be missing"):
        list(read_events(str(copy), keys))
    with pytest.raises(SourceDamaged, match="more than the 1048576 that may be missing"):
        tables.load(str(copy), str(tmp_path / "tables"), keys=keys, engine="python")


def test_labels_that_the_journal_does_not_name_prove_their_stream(log, copy, keys):
    (copy / "log" / "control.cborseq").unlink()
    shutil.rmtree(copy / "journal")
    assert list(read_events(str(copy), keys)) == list(read_events(str(log), keys))
    (copy / "hub-identity.json").unlink()
    entries = list(read_events(str(copy), keys))
    assert {(entry.stream_id, reason_of(entry)) for entry in entries} == {(None, "sealed")}


def test_a_directory_under_the_name_of_another_hub_is_no_source_of_events(log, copy, keys, tmp_path):
    """The labels contradict the identity: what the journal says of them is not believed."""
    strange = tmp_path / "strange"
    strange.mkdir()
    identity.create(OsFs(strange), bytes(31) + b"\x07", 0)
    for name in ("hub-identity.json", "hub-identity.sig"):
        shutil.copy(strange / name, copy / name)
    entries = list(read_events(str(copy), keys))
    assert len(entries) == 120
    assert {(entry.stream_id, reason_of(entry)) for entry in entries} == {(None, "damaged")}


def test_a_prefix_is_chosen_by_stream_label_and_position(log, keys):
    everything = list(read_events(str(log), keys))
    stream = stream_id_of(STREAMS[0])
    assert list(read_events(str(log), keys, streams=[stream])) == [e for e in everything if e.stream_id == stream]
    assert list(read_events(str(log), keys, labels=[LABELS[1]])) == [e for e in everything if e.label == LABELS[1]]
    half = {label: head // 2 for label, head in pin(str(log)).heads.items() if head > 1}
    first = make_prefix(str(log), upto=half)
    assert first.heads == half
    begun = list(read_events(first, keys))
    assert begun == [e for e in everything if e.stream_seq <= half.get(e.label, 0)]
    marks = {e.label: Mark(e.stream_seq, e.ts) for e in begun}
    rest = list(read_events(str(log), keys, since=marks))
    assert sorted(begun + rest, key=lambda e: e.order) == everything
    heads = pin(str(log)).heads
    assert not make_prefix(str(log), since={label: Mark(head, 0) for label, head in heads.items()}).labels
    with pytest.raises(TypeError, match="streams"):
        list(read_events(first, keys, streams=[stream]))


@pytest.mark.req("OVL-11")
def test_a_prefix_names_the_root_at_every_head(log, copy):
    upto = {LABELS[0]: 2, LABELS[1]: 4}
    prefix = make_prefix(str(log), upto=upto)
    roots = {}
    for file in (log / "log").glob("*.log"):
        for _, frame in frames(file.read_bytes()):
            roots[frame.label, frame.stream_seq] = Receipt.from_bytes(frame.receipt).mmr_root
    assert prefix.cuts == tuple(
        Cut(label=label, upto_seq=seq, mmr_root=roots[label, seq]) for label, seq in sorted(upto.items())
    )
    assert prefix.rootless == ()
    assert prefix.entries == 6
    assert prefix.size > 0
    heads = make_prefix(str(copy)).heads
    last = max((copy / "log").glob(f"*-{LABELS[0].hex()}-*.log"), key=lambda path: path.name.split("-")[2])
    last.write_bytes(flipped(last.read_bytes()))
    spoiled = make_prefix(str(copy), upto=heads)
    assert LABELS[0] in spoiled.rootless


def test_a_log_that_was_cut_is_named(log, copy):
    heads = make_prefix(str(log)).heads
    for file in (copy / "log").glob(f"*{LABELS[2].hex()}*.log"):
        file.unlink()
    with pytest.raises(Shortened, match=LABELS[2].hex()):
        make_prefix(str(copy), upto=heads)


def test_the_columns_are_those_of_the_contract():
    assert REASONS == ("damaged", "erased", "missing", "sealed", "malformed", "ambiguous")
    assert ddl(SILVER) == (
        "stream_id BINARY, stream STRING, label BINARY, epoch BIGINT, stream_seq BIGINT, leaf_hash BINARY, "
        "client_id BINARY, auth_ref BINARY, hub_ts BIGINT, ts BIGINT, schema BINARY, hdr BINARY, body BINARY, "
        "ok BOOLEAN, reason STRING"
    )


def test_no_key_travels_with_a_task(log, keys):
    prefix = make_prefix(str(log))
    travelling = pickle.dumps((EventJob(str(log), keys), divide_timed(None, prefix, 3))) + repr(prefix).encode()
    for stream_keys in KEYS.values():
        for secret in (stream_keys.secret(), stream_keys.secret().hex().encode(), stream_keys.to_text().encode()):
            assert secret not in travelling
