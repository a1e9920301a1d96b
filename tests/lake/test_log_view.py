"""The one view of a log: files and journal, fixed at a position that can only advance, beside a hub that is writing."""

import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.examples import spread
from tests.lake.audit_builders import Liar, dump, grow, log, run, tables
from tests.lake.query_builders import KEYRING, STREAMS, Recorder, descriptor
from tests.storage.builders import LABELS
from tests.verify.damages import erased

from veen.core.limits import Limits
from veen.core.verdict import Outcome, StatedBy, Verdict
from veen.io.local import OsFs
from veen.io.places import open_fs
from veen.lake.log.columns import ENTRIES, select_columns
from veen.lake.log.entries import DirectorySource, ReadSpec, batches
from veen.lake.log.options import Options
from veen.lake.log.prefix import make_prefix
from veen.lake.log.slices import Selection, Slice
from veen.lake.query import api
from veen.lake.spark.source import DataLoss, EntryStream
from veen.storage import frame, layout, pinned
from veen.storage.pinned import LabelPin, LogView, pin, read_chunk, without
from veen.verify.audit import Previous
from veen.verify.audit import engine as audit_engine
from veen.verify.audit import run as audit_run
from veen.verify.audit.equivocation import compare
from veen.verify.audit.report import write


class Interrupted(OsFs):
    """A directory in which something happens each time after its log was listed, or before a file is opened."""

    def __init__(self, root, on_list=None, on_open=None):
        super().__init__(root)
        self._on_list, self._on_open = on_list, on_open

    def list(self, directory):
        names = super().list(directory)
        if directory == layout.LOG and self._on_list is not None:
            self._on_list()
        return names

    def open(self, path, *, create=False):
        if self._on_open is not None:
            self._on_open()
        return super().open(path, create=create)


@pytest.fixture
def world(tmp_path):
    world = Recorder(tmp_path / "hub")
    yield world
    world.store.close()


def at_the_wrong_moment(monkeypatch, step, times=1):
    """Do `step` after the first listings of a log directory, and before any of its files is opened."""
    left = [times]

    def interrupt():
        if left[0]:
            left[0] -= 1
            step()

    monkeypatch.setattr(pinned, "open_place", lambda uri: Interrupted(Path(uri), on_list=interrupt))


def growing(world):
    """Two entries in the growing chunk; the third one seals it."""
    world.emit()
    world.emit()
    world.store.retire()


def frames_of(view):
    """The entries of a view, read from where it says they are, in order."""
    fs = open_fs(view.uri)
    return [entry for ref in view.chunks() for _, entry in frame.frames(read_chunk(fs, ref))]


# --- a rename between listing and opening -------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_chunk_that_is_sealed_between_listing_and_opening_is_listed_again(world, monkeypatch, times):
    """The label seemed to end before it."""
    growing(world)

    def seal():
        for _ in range(3):
            world.emit()
        world.store.flush_some(8)

    at_the_wrong_moment(monkeypatch, seal, times)
    view = pin(str(world.path))
    assert frames_of(view) == world.frames[: len(frames_of(view))]
    assert sum(view.heads.values()) >= 2


def test_a_stream_loses_nothing_to_a_seal_at_the_wrong_moment(world, monkeypatch):
    """DataLoss."""
    growing(world)
    stream = EntryStream(Options.of({"path": str(world.path)}), ENTRIES)
    begun = stream.latestOffset({"heads": {}}, ReadAllAvailable())
    assert list(begun["heads"].values()) == [2]
    at_the_wrong_moment(monkeypatch, world.emit)
    end = stream.latestOffset(begun, ReadAllAvailable())
    assert list(end["heads"].values()) == [3]
    slices = [part for partition in stream.partitions(begun, end) for part in partition.value[0]]
    assert [(part.first, part.last) for part in slices] == [(3, 3)]


def test_an_audit_that_goes_on_does_not_accuse_a_hub_that_seals_meanwhile(world, monkeypatch, tmp_path):
    """`audit --since` said that the log became shorter."""
    growing(world)
    write(run(world.path), tmp_path / "audit")
    at_the_wrong_moment(monkeypatch, world.emit)
    result = run(world.path, since=Previous.read(tmp_path / "audit"))
    assert [finding for finding in result.findings if finding.severity == "error"] == []
    assert result.counts["entries"] == 3


def test_a_query_has_all_rows_although_the_hub_seals_meanwhile(world, monkeypatch):
    """53 of 55 rows, and a digest over them."""
    growing(world)
    at_the_wrong_moment(monkeypatch, world.emit)
    asked = descriptor(scope=[STREAMS[0]], projection=["payload.n"])
    result = api.run(str(world.path), asked, keys=KEYRING, result_id="r-1", now=lambda: 1)
    assert [row["payload.n"] for row in result.rows()] == [0, 1, 2]


def test_a_label_that_looks_shorter_is_looked_at_again_before_it_is_called_so(world, monkeypatch):
    """A listing may miss a file that is renamed meanwhile, under both names."""
    growing(world)
    before = pin(str(world.path)).heads

    class Missing(OsFs):
        looks = 0

        def list(self, directory):
            names = super().list(directory)
            Missing.looks += directory == layout.LOG
            return [name for name in names if Missing.looks > 2 or not name.startswith("active")]

    monkeypatch.setattr(pinned, "open_place", lambda uri: Missing(Path(uri)))
    assert sum(pin(str(world.path)).heads.values()) == 0
    Missing.looks = 0
    assert pin(str(world.path), reach=before).heads == before
    Missing.looks = 0
    assert make_prefix(str(world.path), upto=before).heads == before


@pytest.mark.parametrize("seed", spread(range(12), 4))
def test_whatever_a_hub_does_between_two_steps_of_a_reader_views_advance_and_have_no_hole(tmp_path, seed, monkeypatch):
    """The law of the view: never shorter than the log was when it began, never longer than it is when it ends."""
    rng = random.Random(seed)
    world = Recorder(tmp_path, limits=Limits(max_checkpoint_interval=rng.choice((1, 3, 5))))
    reading = [False]

    def step():
        if reading[0] or rng.random() < 0.6:
            return
        reading[0] = True
        chance = rng.random()
        if chance < 0.7:
            world.emit(rng.choice(STREAMS), epoch=rng.randrange(2))
        elif chance < 0.85:
            world.store.retire()
        else:
            world.store.flush_some(rng.randrange(3))
        reading[0] = False

    monkeypatch.setattr(pinned, "open_place", lambda uri: Interrupted(Path(uri), step, step))
    heads: dict[bytes, int] = {}
    for _ in range(12):
        begun = len(world.frames)
        view = pin(str(tmp_path), reach=heads)
        entries = frames_of(view)
        by_label = {label: [entry for entry in world.frames if entry.label == label] for label in view.labels}
        for label, label_pin in view.labels.items():
            own = [entry for entry in entries if entry.label == label]
            assert own == by_label[label][: label_pin.size]
            assert label_pin.size >= sum(entry.label == label for entry in world.frames[:begun])
            assert label_pin.size >= heads.get(label, 0)
        assert {entry.label for entry in world.frames[:begun]} <= view.labels.keys()
        heads = view.heads
    world.store.close()


# --- files and journal are one log ------------------------------------------------------------


def test_every_reader_of_a_directory_sees_the_same_prefix(tmp_path):
    """Queries read the journal, everything else did not."""
    world = Liar(OsFs(tmp_path))
    grow(world, 20)
    world.store.retire()
    grow(world, 2)
    path = str(tmp_path)
    heads = {label: sum(entry.label == label for entry in world.frames) for label in LABELS[:2]}
    assert any(ref.kind == "journal" for ref in pin(path).chunks())
    assert pin(path).heads == heads
    assert make_prefix(path).heads == heads
    assert DirectorySource(path).pin(Selection()).heads == heads
    assert {label.label: label.size for label in run(path).labels} == heads
    assert compare(path, path).common == heads
    stream = EntryStream(Options.of({"path": path}), ENTRIES)
    offset = stream.latestOffset({"heads": {}}, ReadAllAvailable())
    assert offset["heads"] == {label.hex(): head for label, head in heads.items()}
    world.store.close()


def test_a_torn_write_to_a_growing_chunk_hides_nothing_that_the_journal_has(world):
    world.emit()
    world.store.retire()
    world.emit()
    (active,) = (world.path / "log").glob("active-*")
    whole = active.read_bytes()
    second = world.frames[1].to_bytes()
    for rest in (b"", second[:10], second[:-1], second):
        active.write_bytes(whole + rest)
        assert frames_of(pin(str(world.path))) == world.frames
    active.write_bytes(whole)


def test_the_first_entry_of_a_growing_chunk_that_was_cut_off_is_read_from_the_journal(world):
    world.emit()
    name = layout.active(world.frames[0].label, 1)
    for data in (b"", world.frames[0].to_bytes()[:50], b"noise"):
        (world.path / name).write_bytes(data)
        assert frames_of(pin(str(world.path))) == world.frames
    (world.path / name).unlink()


def test_many_frames_of_a_journal_are_several_parts(world, monkeypatch):
    monkeypatch.setattr(pinned, "_JOURNAL_REF_BYTES", 1000)
    world.limits = Limits(max_checkpoint_interval=100)
    world.emit()
    world.emit()
    monkeypatch.setattr(pinned, "_JOURNAL_REF_BYTES", 1)
    refs = list(pin(str(world.path)).chunks())
    assert [(ref.kind, ref.start_seq, ref.end_seq) for ref in refs] == [("journal", 1, 1), ("journal", 2, 2)]
    assert frames_of(pin(str(world.path))) == world.frames


# --- what is stated, and what was read (D-181) ---------------------------------------------------------------


def test_a_directory_at_rest_states_its_own_head(tmp_path):
    path = dump(log(20), tmp_path)
    view = pin(str(path))
    rows = view.coverage(None)
    assert {row.log for row in rows} == {label.hex() for label in view.labels}
    assert all(row.is_whole and row.stated_by is StatedBy.OWN_FILES for row in rows)
    assert Verdict.of(rows).is_good


def test_a_checkpoint_beyond_the_entries_states_a_head_that_was_not_read(tmp_path):
    path = dump(log(20), tmp_path)
    label = LABELS[0]
    for name in [path.name for path in (tmp_path / "log").glob(f"*-{label.hex()}-*.log")]:
        (tmp_path / "log" / name).unlink()
    (row,) = [row for row in pin(str(path)).coverage(None) if row.log == label.hex()]
    assert (row.read, row.stated_by) == (0, StatedBy.OWN_FILES)
    assert row.behind > 0


def test_a_head_that_the_hub_states_counts_more_than_an_equal_one_of_the_files(tmp_path):
    view = pin(str(dump(log(20), tmp_path)))
    same = view.coverage("ed25519:00", stated={StatedBy.HUB: view.heads})
    assert {row.stated_by for row in same} == {StatedBy.HUB}
    further = {label: head + 2 for label, head in view.heads.items()}
    assert {row.behind for row in view.coverage(None, stated={StatedBy.HUB: further})} == {2}
    less = dict.fromkeys(view.heads, 1)
    assert {row.stated_by for row in view.coverage(None, stated={StatedBy.HUB: less})} == {StatedBy.OWN_FILES}


def test_a_view_of_nothing_is_incomplete(tmp_path):
    (tmp_path / "log").mkdir()
    view = pin(str(tmp_path))
    assert view.coverage(None) == ()
    assert Verdict.of(view.coverage(None)).value is Outcome.INCOMPLETE


def test_a_gap_ends_what_was_read_unless_the_hub_had_erased_it(tmp_path):
    path = dump(log(30), tmp_path)
    chunks = sorted((path / "log").glob(f"chunk-{LABELS[0].hex()}-*.log"))
    chunks[0].unlink()
    chunks[2].unlink()
    label_pin = pin(str(path)).labels[LABELS[0]]
    assert label_pin.holes == label_pin.gaps == ((1, 3), (7, 9))
    assert (label_pin.read_upto, label_pin.first_payload) == (0, 1)
    (path / layout.ERASED).write_text(f'{{"{LABELS[0].hex()}": [[1, 3]]}}')
    label_pin = pin(str(path)).labels[LABELS[0]]
    assert (label_pin.holes, label_pin.read_upto, label_pin.first_payload) == (((7, 9),), 6, 4)


def test_a_stream_starts_behind_a_pruned_beginning_and_stops_at_a_hole(world):
    """What retention erased is no data loss."""
    for _ in range(7):
        world.emit()
    world.store.retire()
    label = world.frames[0].label
    sorted((world.path / "log").glob("chunk-*.log"))[0].unlink()
    stream = EntryStream(Options.of({"path": str(world.path)}), ENTRIES)
    start: dict[str, dict[str, int]] = {"heads": {}}
    end = stream.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss):
        stream.partitions(start, end)
    (world.path / layout.ERASED).write_text(f'{{"{label.hex()}": [[1, 3]]}}')
    stream = EntryStream(Options.of({"path": str(world.path)}), ENTRIES)
    end = stream.latestOffset(start, ReadAllAvailable())
    slices = [part for partition in stream.partitions(start, end) for part in partition.value[0]]
    assert [(part.first, part.last) for part in slices if not part.is_missing] == [(4, 6), (7, 7)]


@pytest.mark.parametrize("receipts", [False, True])
def test_a_pruned_beginning_is_a_place_to_start_from(tmp_path, receipts):
    """A pruned beginning, at the level of the view."""
    path = dump(erased(receipts), tmp_path)
    begins = {label_pin.first_payload for label_pin in pin(str(path)).labels.values()}
    assert max(begins) > 1
    for label_pin in pin(str(path)).labels.values():
        assert label_pin.read_upto == label_pin.size
        kinds = [ref.kind for ref in label_pin.chunks if ref.start_seq >= label_pin.first_payload]
        assert set(kinds) <= {"sealed", "active", "journal"}


@pytest.mark.parametrize("receipts", [False, True])
def test_a_chunk_that_retention_erased_since_it_was_pinned_is_read_as_erased(tmp_path, receipts):
    path = dump(erased(receipts), tmp_path)
    archived = [ref for ref in pin(str(path)).chunks() if ref.kind in ("receipts", "heads")]
    assert archived
    for ref in archived:
        name = layout.chunk(ref.label, ref.start_seq, ref.end_seq)
        before = replace(ref, kind="sealed", path=name, size=1000)
        rows = [row for batch in batches(open_fs(str(path)), Slice.whole(before), SPEC) for row in batch.to_pylist()]
        assert {row["reason"] for row in rows} == {"erased under the retention policy"}
        assert len(rows) == ref.entries


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(3, 9)]),
        ([(1, 9)], []),
        ([(5, 6)], [(3, 4), (7, 9)]),
        ([(1, 3), (9, 12)], [(4, 8)]),
        ([(20, 30)], [(3, 9)]),
    ],
)
def test_what_is_left_of_a_span(others, left):
    assert list(without((3, 9), others)) == left


# --- names that cannot be true, and files that cannot be opened --------------------------------

SPEC = ReadSpec(columns=select_columns(["stream_seq", "ok", "reason"], ENTRIES))


@pytest.mark.parametrize("kind", ["chunk", "receipts", "heads"])
@pytest.mark.parametrize("data", [b"", b"noise", None])
def test_a_name_that_claims_millions_of_entries_costs_one_row(tmp_path, kind, data):
    """It took all memory."""
    path = dump(log(30), tmp_path)
    chunk = sorted((path / "log").glob(f"chunk-{LABELS[0].hex()}-*.log"))[-1]
    start = int(chunk.name.split("-")[2])
    suffix = "log" if kind == "chunk" else "cborseq"
    claimed = chunk.with_name(f"{kind}-{LABELS[0].hex()}-{start:020d}-{400_000_000:020d}.{suffix}")
    claimed.write_bytes(chunk.read_bytes() if data is None else data)
    chunk.unlink()
    view = pin(str(path))
    (ref,) = [ref for ref in view.chunks() if ref.end_seq == 400_000_000]
    assert not ref.is_possible
    rows = [row for batch in batches(open_fs(str(path)), Slice.whole(ref), SPEC) for row in batch.to_pylist()]
    assert len(rows) <= 8
    assert "400000000" in rows[-1]["reason"]
    assert run(path).verdict.value is Outcome.BAD


def test_a_chunk_that_holds_what_its_name_says_is_possible(tmp_path):
    assert all(ref.is_possible for ref in pin(str(dump(log(30), tmp_path))).chunks())


def test_a_directory_in_the_place_of_any_file_is_a_finding_and_ends_no_audit(tmp_path):
    """What cannot be opened is a finding."""
    path = dump(log(20), tmp_path / "hub")
    names = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    silent = []
    for name in sorted(names, key=str):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        (copy / name).unlink()
        (copy / name).mkdir()
        result = run(copy)
        if result.ok:
            silent.append(str(name))
        shutil.rmtree(copy)
    assert [name for name in silent if not name.startswith(("nodes/", "index.db", "lock", "clock"))] == []


# --- twice the files, about twice the work (class 7) ---------------------------------------------------------


@pytest.mark.parametrize("what", ["labels", "files"])
def test_twice_the_labels_or_files_are_at_most_about_twice_the_operations_of_a_pin(tmp_path, monkeypatch, what):
    counts = []
    for number in (16, 32, 64):
        path = tmp_path / str(number)
        world = Recorder(path, limits=Limits(max_checkpoint_interval=1))
        for entry in range(number):
            world.emit(epoch=entry if what == "labels" else 0)
        world.done()
        counted = [0]

        def count(names=(), counted=counted):
            counted[0] += 1 + len(names)

        fs = Interrupted(path, on_open=count)

        def counted_list(directory, plain=fs.list, count=count):
            names = list(plain(directory))
            for name in names:
                count([name])
            return names

        monkeypatch.setattr(fs, "list", counted_list)
        monkeypatch.setattr(pinned, "open_place", lambda _, fs=fs: fs)
        assert sum(pin(str(path)).heads.values()) == number
        counts.append(counted[0])
    assert all(more < 2.5 * less for less, more in pairwise(counts))


@pytest.mark.parametrize("what", ["labels", "files"])
def test_twice_the_labels_or_files_are_at_most_about_twice_the_operations_of_an_audit(tmp_path, monkeypatch, what):
    counts = []
    for number in (8, 16, 32):
        path = tmp_path / str(number)
        world = Recorder(path, limits=Limits(max_checkpoint_interval=1))
        for entry in range(number):
            world.emit(epoch=entry if what == "labels" else 0)
        world.done()
        counted = [0]

        class Counting(OsFs):
            def open(self, path, *, create=False, counted=counted):
                counted[0] += 1
                return super().open(path, create=create)

            def list(self, directory, counted=counted):
                names = super().list(directory)
                counted[0] += len(names)
                return names

        for module in (pinned, audit_run, audit_engine):
            name = "open_place" if module is pinned else "open_fs"
            monkeypatch.setattr(module, name, lambda uri, fs=Counting: fs(Path(uri)))
        assert run(path).counts["entries"] == number
        counts.append(counted[0])
    assert all(more < 2.5 * less for less, more in pairwise(counts))


# --- resumed equals from the start (class 5) -----------------------------------------------------------------

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"level": "structure"},
    {"level": "sampled"},
    {"level": "sampled", "seed": "x"},
    {"level": "sampled", "sample_per_million": 7},
    {"chunks_only": True},
)


@pytest.mark.parametrize("seed", spread(range(4), 1))
def test_an_audit_beside_a_hub_that_goes_on_equals_one_from_the_start(tmp_path, seed):
    """Class 5: whatever is in files or in the journal by then, an audit that goes on gives what a whole one gives."""
    rng = random.Random(seed)
    world = Liar(OsFs(tmp_path / "hub"))
    options = rng.choice(OPTIONS)
    earlier = None
    for number in range(4):
        grow(world, rng.randrange(1, 12), rng)
        if rng.random() < 0.5:
            world.store.retire()
        whole = run(tmp_path / "hub", **options)
        resumed = run(tmp_path / "hub", since=earlier, **options)
        assert tables(resumed) == tables(whole)
        assert resumed.verdict == whole.verdict
        write(resumed, tmp_path / f"audit-{number}")
        earlier = Previous.read(tmp_path / f"audit-{number}")
    world.store.close()


def test_a_view_pickles_with_its_statements(world):
    import pickle

    world.emit()
    view = pin(str(world.path))
    again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own
    assert isinstance(again, LogView)
    assert again == view
    assert isinstance(again.labels[world.frames[0].label], LabelPin)
