"""Tables: loaded exactly once, restart safe, and readers see nothing but what a manifest names. No Spark here."""

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore
from pyarrow import fs as arrow_fs
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, Recorder
from tests.lake.table_builders import DAY, LABELS, copy_of, erase, grow, made, spoil

from veen.core.labels import stream_id_of
from veen.io.errors import NoConditionalPut
from veen.io.inside import FileRefused
from veen.io.local import OsFs
from veen.io.stores import ArrowStore, LocalStore, ObjectStore, open_store
from veen.lake import folds, tables
from veen.lake.log import entries
from veen.lake.log.events import make_prefix, read_events, rows_of
from veen.lake.log.keys import write_keys
from veen.lake.log.prefix import Shortened
from veen.lake.spark.runner import divide_timed
from veen.lake.tables.errors import LogMoved, NoTable, OtherHub, TableBusy, TableDamaged
from veen.lake.tables.loading import LoadJob, load_task
from veen.lake.tables.manifest import Change, Dead, TableLog, TableState, manifest_of, manifest_path, read_manifest
from veen.lake.tables.parts import write_part
from veen.lake.tables.schema import day_of, group_of
from veen.lake.tables.streaming import load_upto
from veen.overlays import kv
from veen.storage.keys import identity

NAMES = {key.stream_id: str(key.name) for key in KEYS.values()}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A directory that no test changes, over several days."""
    path = tmp_path_factory.mktemp("tables") / "hub"
    made(path, 60, step=(0, 1, 3000, 20_000)).done()
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture
def to(tmp_path):
    return str(tmp_path / "tables")


def load(path, to, keys, **more):
    return tables.load(str(path), to, keys=keys, engine="python", **more)


def both(to, version=None):
    """Every byte of data, whatever files it is in."""
    return tables.digest(to, "bronze", version=version), tables.digest(to, "silver", version=version)


def without_ts(stored):
    return [row | {"ts": None} for row in stored]


# --- loads ---------------------------------------------------------------------------------------------------------


def test_silver_is_the_events_of_the_log_in_logical_order(log, keys, to):
    loaded = load(log, to, keys)
    assert (loaded.entries, loaded.commits, loaded.version) == (60, 1, 1)
    assert list(tables.rows(to, "silver")) == list(rows_of(read_events(str(log), keys), NAMES))


def test_bronze_has_every_entry_as_it_was_signed(log, keys, to):
    load(log, to, keys)
    events = list(read_events(str(log), KEYRING))
    stored = list(tables.rows(to, "bronze"))
    assert [(row["label"], row["stream_seq"], row["leaf_hash"], row["ts"]) for row in stored] == [
        (event.label, event.stream_seq, event.leaf_hash, event.ts) for event in events
    ]
    assert all(row["ok"] and row["msg"] and row["receipt"] and row["mmr_root"] for row in stored)


@pytest.mark.parametrize("parts", spread([2, 7, 64], 2))
def test_however_it_is_cut_the_data_are_the_same_bytes(log, keys, to, tmp_path, parts):
    """D-120. Files differ; the canonical row streams do not."""
    load(log, to, keys)
    other = str(tmp_path / "other")
    load(log, other, keys, parts=parts, target_bytes=3000)
    assert both(to) == both(other)


def test_loading_again_writes_nothing(log, keys, to):
    load(log, to, keys)
    before = sorted(path for path, _ in open_store(to).walk(""))
    again = load(log, to, keys)
    assert (again.entries, again.commits, again.version) == (0, 0, 1)
    assert sorted(path for path, _ in open_store(to).walk("")) == before


def test_tables_of_an_empty_log_are_empty_tables(tmp_path, keys, to):
    world = Recorder(tmp_path)
    assert load(world.path, to, keys).entries == 0
    assert list(tables.rows(to, "silver")) == []
    assert tables.refresh(to, "kv").changed
    world.emit()
    load(world.done(), to, keys)
    assert len(list(tables.rows(to, "silver"))) == 1


@pytest.mark.slow
def test_a_log_that_grows_is_loaded_in_steps_to_the_same_data(tmp_path, keys, to):
    rng = random.Random(4)
    world = Recorder(tmp_path)
    for _ in range(6):
        grow(world, 20, rng, step=(0, 5, 4000))
        world.now -= 7  # a clock that is set back: ts* must carry over from load to load (D-27)
        world.store.retire()
        load(world.path, to, keys)
    path = world.done()
    load(path, to, keys)
    load(path, str(tmp_path / "whole"), keys)
    assert both(to) == both(str(tmp_path / "whole"))
    assert tables.show(to).heads == tables.show(str(tmp_path / "whole")).heads


def test_a_load_may_take_several_commits(log, keys, to, tmp_path):
    loaded = load(log, to, keys, max_entries=25)
    assert loaded.commits == 3
    assert loaded.entries == 60
    load(log, str(tmp_path / "once"), keys)
    assert both(to) == both(str(tmp_path / "once"))


def test_micro_batches_give_the_bytes_of_a_batch_load(log, keys, to, tmp_path):
    """Played in random steps, some of them twice, some behind the heads already."""
    load(log, str(tmp_path / "batch"), keys)
    heads = {bytes.fromhex(label): head.upto_seq for label, head in tables.show(str(tmp_path / "batch")).heads.items()}
    rng, ends = random.Random(1), dict.fromkeys(heads, 0)
    number = 0
    while ends != heads:
        ends = {label: min(heads[label], end + rng.randrange(4)) for label, end in ends.items()}
        for _ in range(rng.choice((1, 1, 2))):
            load_upto(str(log), to, ends, keys=keys, batch=("stream", number))
        if rng.random() < 0.3:
            load_upto(str(log), to, {label: end // 2 for label, end in ends.items()}, keys=keys)
        number += 1
    load_upto(str(log), to, {label: end + 1 for label, end in ends.items()}, keys=keys)  # stray bytes are no entry
    assert both(to) == both(str(tmp_path / "batch"))


def test_streams_can_be_chosen(log, keys, to):
    chosen = stream_id_of(STREAMS[1])
    load(log, to, keys, streams=[chosen])
    stored = list(tables.rows(to, "silver"))
    assert stored
    assert {row["stream_id"] for row in stored} == {chosen}


# --- bad input -----------------------------------------------------------------------------------------------------


def test_damage_and_holes_are_rows_with_place_and_reason(log, keys, to, tmp_path):
    copy = copy_of(log, tmp_path / "copy")
    spoil(copy, random.Random(2))
    assert load(copy, to, keys, parts=3).entries == 60
    for table in ("bronze", "silver"):
        stored = list(tables.rows(to, table))
        assert len({(row["label"], row["stream_seq"]) for row in stored}) == 60
        reasons = Counter(row["reason"] for row in stored)
        assert reasons["damaged"]
        assert reasons["missing"] == 3
        assert all(row["ok"] == (row["reason"] is None) for row in stored)
    assert list(tables.rows(to, "silver")) == list(rows_of(read_events(str(copy), keys), NAMES))


def test_a_key_that_does_not_fit_leaves_rows_that_are_sealed(log, to, tmp_path):
    none = write_keys(tmp_path / "none", [])
    load(log, to, none)
    assert {row["reason"] for row in tables.rows(to, "silver")} == {"sealed"}
    assert all(row["body"] is None and row["client_id"] for row in tables.rows(to, "silver"))


def test_tables_take_no_log_of_another_hub(log, keys, to, tmp_path):
    load(log, to, keys)
    other = tmp_path / "other"
    other.mkdir()
    identity.create(OsFs(other), bytes(31) + b"\x07", 0)
    (other / "log").mkdir(exist_ok=True)
    with pytest.raises(OtherHub, match="of hub"):
        load(other, to, keys)


def test_a_log_that_was_cut_is_not_loaded_over(log, keys, to, tmp_path):
    copy = copy_of(log, tmp_path / "copy")
    load(copy, to, keys)
    for file in (copy / "log").glob(f"*{LABELS[0].hex()}*.log"):
        file.unlink()
    with pytest.raises(Shortened, match=LABELS[0].hex()):
        load(copy, to, keys)
    assert tables.show(to).version == 1


def test_a_file_that_goes_while_it_is_loaded_is_no_damage(log, keys, to, tmp_path):
    """Rows stay as they were loaded: what cannot be read just now is for the next load."""
    copy = copy_of(log, tmp_path / "copy")
    prefix = make_prefix(str(copy))
    (task,) = divide_timed(None, prefix, 1)
    sealed = next(part.chunk for part in task if part.chunk.kind == "sealed")
    (copy / sealed.path).unlink()
    job = LoadJob(uri=str(copy), to=open_store(to), keys=keys)
    with pytest.raises(LogMoved, match="a moment ago"):
        list(load_task(job, task))
    assert load(copy, to, keys).version == 1  # a new look: it is missing


@pytest.mark.parametrize("level", ["none", "hash", "full"])
def test_a_load_reads_and_checks_each_entry_once(log, keys, to, monkeypatch, level):
    """Bronze, silver and typed tables come from one look at each chunk."""
    looks: Counter[tuple[str, int]] = Counter()

    def counted(data, ref, spec, _real=entries.from_frames):
        looks[ref.path, ref.start_seq] += 1
        return _real(data, ref, spec)

    (task,) = divide_timed(None, make_prefix(str(log)), 1)  # one task needs no survey of times
    monkeypatch.setattr(entries, "from_frames", counted)
    list(load_task(LoadJob(uri=str(log), to=open_store(to), keys=keys, level=level), task))
    assert looks == dict.fromkeys(((part.chunk.path, part.chunk.start_seq) for part in task), 1)


def test_bodies_that_do_not_decode_are_kept_as_they_are(log, keys, to):
    """They are for folds to judge (D-81): silver has the bytes."""
    load(log, to, keys)
    assert any(row["body"] == b"not cbor" and row["ok"] for row in tables.rows(to, "silver"))


def test_time_beyond_all_calendars_is_filed_on_the_last_day(tmp_path, keys, to):
    world = Recorder(tmp_path)
    world.emit()
    world.now = 1 << 50
    world.emit(event_time=0)
    load(world.done(), to, keys)
    assert len(list(tables.rows(to, "silver"))) == 2
    assert group_of(None, day_of(1 << 60)) == "sid=unknown/day=9999-12-31"


# --- layout --------------------------------------------------------------------------------------------------------


def test_a_selective_query_needs_few_files_and_row_groups(tmp_path, keys, to):
    world = Recorder(tmp_path)
    for number in range(150):
        world.now += DAY // 15
        world.emit(STREAMS[number % 3], client=number % 3)
    load(world.done(), to, keys)
    state = TableLog(to).state()
    everything = tables.select_files(state, "silver")
    assert len({part.group for part in everything}) == len(everything) >= 30  # a stream and a day each
    first = world.now - 3 * DAY
    few = tables.select_files(state, "silver", streams=[stream_id_of(STREAMS[0])], first_ts=first, last_ts=first + 100)
    assert len(few) == 1
    for part in everything:
        data = pq.read_table(f"{to}/{part.path}", partitioning=None)
        times = data.column("ts").to_pylist()
        hours = [ts // 3600 for ts in times]
        assert hours == sorted(hours)
        assert (min(times), max(times), data.num_rows) == (part.first_ts, part.last_ts, part.rows)
        stats = pq.ParquetFile(f"{to}/{part.path}").metadata.row_group(0)
        assert all(stats.column(at).statistics is not None for at in range(stats.num_columns) if times)


def test_many_small_files_become_few_and_the_data_stay(log, keys, to):
    load(log, to, keys, max_entries=10)
    before, version = both(to), tables.show(to).version
    count = {item.table: item.files for item in tables.show(to).tables}
    done = tables.compact(to)
    shown = {item.table: item for item in tables.show(to).tables}
    assert done.files_before > done.files_after
    assert all(shown[table].files == shown[table].groups < count[table] for table in ("bronze", "silver"))
    assert both(to) == before
    assert both(to, version=version) == before  # a reader of the version before is not disturbed
    assert tables.compact(to) == type(done)(version=done.version)
    time.sleep(0.01)
    vacuumed = tables.vacuum(to, keep_sec=0)
    assert vacuumed.replaced == done.files_before
    assert both(to) == before
    with pytest.raises(TableDamaged, match="is missing"):
        both(to, version=version)


def test_compaction_packs_up_to_a_size(log, keys, to):
    load(log, to, keys, max_entries=10)
    files = TableLog(to).state().of("silver")
    assert tables.compact(to, target_bytes=max(part.size for part in files)).files_before == 0
    before = both(to)
    tables.compact(to, target_bytes=5 * max(part.size for part in files))
    assert both(to) == before


# --- crashes -------------------------------------------------------------------------------------------------------


class Flaky(LocalStore):
    """Dies at the n-th write: before it, or after it was done."""

    def __init__(self, root, at, *, done):
        super().__init__(root)
        self._left, self._done = at, done

    def put(self, path, data):
        self._left -= 1
        if self._left < 0 and not self._done:
            raise Killed
        super().put(path, data)
        if self._left < 0:
            raise Killed

    def remove(self, path):
        self._left -= 1
        if self._left < 0:
            raise Killed
        super().remove(path)


class Killed(Exception):
    pass


def survives(to, step, settle, check):
    """`step` is killed at each of its writes in turn; then `settle` runs in peace and `check` looks."""
    for done in (False, True):
        for at in range(200):
            target = f"{to}-{at}-{done}"
            shutil.copytree(to, target)
            try:
                step(Flaky(Path(target), at, done=done))
                killed = False
            except Killed:
                killed = True
            settle(target)
            check(target)
            shutil.rmtree(target)
            if not killed:
                assert at > 2
                break
        else:
            raise AssertionError("never ran to its end")


@pytest.fixture
def little(tmp_path):
    """A log of one stream with a few entries, so that every write of a step can be tried."""
    world = Recorder(tmp_path / "little")
    for number in range(8):
        world.now += 1
        world.emit(client=number % 2)
    world.store.retire()
    return world


def test_a_load_that_is_killed_anywhere_is_finished_by_the_next(little, keys, to, tmp_path):
    path = little.done()
    load(path, str(tmp_path / "whole"), keys)
    expected = both(str(tmp_path / "whole"))
    load_upto(path, to, dict.fromkeys(LABELS[:1], 3), keys=keys)

    def check(target):
        assert both(target) == expected
        tables.vacuum(target, keep_sec=0)
        assert both(target) == expected
        listing = {path for paths in TableLog(target).state().files.values() for path in paths}
        assert {
            path for name in ("bronze", "silver", "typed_sdr_event_v1") for path, _ in open_store(target).walk(name)
        } == listing

    survives(to, lambda at: load(path, at, keys, max_entries=2), lambda at: load(path, at, keys), check)


@pytest.mark.slow
def test_a_compaction_that_is_killed_anywhere_changes_no_data(little, keys, to):
    load(little.done(), to, keys, max_entries=2)
    expected = both(to)

    def check(target):
        assert both(target) == expected
        assert all(table.files == table.groups for table in tables.show(target).tables)

    survives(to, tables.compact, tables.compact, check)


@pytest.mark.slow
def test_an_erasure_that_is_killed_anywhere_is_finished_by_the_next(little, keys, to, tmp_path):
    load(little.path, to, keys)
    erase(little)
    path = little.done()
    load(path, str(tmp_path / "fresh"), keys)
    expected = both(str(tmp_path / "fresh"))

    def check(target):
        assert both(target) == expected
        assert not TableLog(target).state().dead

    survives(to, lambda at: tables.erase(path, at), lambda at: tables.erase(path, at), check)


def test_two_writers_do_not_both_win(log, keys, to):
    load(log, to, keys, max_entries=50)
    first, other = TableLog(to), TableLog(to)
    before = other.state()
    first.commit(first.state(), Change(kind="vacuum", at=0))
    with pytest.raises(TableBusy, match="another writer"):
        other.commit(before, Change(kind="vacuum", at=0))
    assert first.state() == other.state()


def test_an_attempt_that_does_not_count_leaves_no_row(log, keys, to, tmp_path):
    """A task that Spark runs twice, or whose machine is lost after it has written."""
    for task in divide_timed(None, make_prefix(str(log)), 3):
        list(load_task(LoadJob(uri=str(log), to=open_store(to), keys=keys), task))
    load(log, to, keys)
    load(log, str(tmp_path / "once"), keys)
    assert both(to) == both(str(tmp_path / "once"))
    assert tables.vacuum(to, keep_sec=0).orphans > 0
    assert both(to) == both(str(tmp_path / "once"))


# --- what others have put there ---------------------------------------------------------------------------------


def hostile(to, **change):
    """A manifest that somebody made by hand: whole, and the next one."""
    state = TableLog(to).state()
    value = json.loads(open_store(to).get(manifest_path(state.version), 1 << 20).split(b"\n")[0])
    value |= {"version": state.version + 1, "prev": state.digest}
    value["change"] |= {"add": {}, "remove": [], "gone": [], **change}
    line = json.dumps(value).encode() + b"\n"
    (Path(to) / manifest_path(state.version + 1)).write_bytes(line + sha256(line).hexdigest().encode() + b"\n")


@pytest.mark.parametrize("kind", ["relative", "absolute", "dots", "other", "nested", "link"])
def test_vacuum_removes_nothing_outside_of_the_tables(log, keys, to, tmp_path, kind):
    """A manifest names what a vacuum removes, and a manifest may be anybody's."""
    load(log, to, keys)
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"dear")
    (Path(to) / "silver" / "out").symlink_to(tmp_path)
    paths = {
        "relative": "../victim.parquet",
        "absolute": str(victim),
        "dots": "silver/../../victim.parquet",
        "other": "manifests/latest",
        "nested": "silver/./x.parquet",
        "link": "silver/out/victim.parquet",
    }
    path = paths[kind]
    file = [path, 1, 4, sha256(b"dear").hexdigest(), path.rpartition("/")[0].removeprefix("silver/"), 0, 0, []]
    hostile(to, add={"silver": [file]})
    if kind == "link":  # a name like any other, until one looks at the disk
        hostile(to, remove=[path], at=0)
        with pytest.raises((TableDamaged, FileRefused), match="is a link"):
            tables.vacuum(to, keep_sec=0)
    else:
        with pytest.raises(TableDamaged, match=r"not a file name|not inside|data file"):
            tables.vacuum(to, keep_sec=0)
    assert victim.read_bytes() == b"dear"
    assert (Path(to) / "manifests" / "latest").exists()


@pytest.mark.parametrize("where", ["remove", "gone", "dead"])
def test_every_list_of_paths_in_a_manifest_is_judged(log, keys, to, where):
    load(log, to, keys)
    if where == "dead":
        state = TableLog(to).state()
        base = replace(state, version=state.version + 1, dead={"../x.parquet": Dead("compact", 0)})
        data = manifest_of(Change(kind="vacuum", at=0), version=base.version, prev=state.digest, base=base)
        (Path(to) / manifest_path(base.version)).write_bytes(data)
    else:
        hostile(to, **{where: ["../x.parquet"]})
    with pytest.raises(TableDamaged, match="not a file name"):
        TableLog(to).state()


def test_a_file_larger_than_its_manifest_says_is_not_read(log, keys, to):
    load(log, to, keys)
    part = TableLog(to).state().of("silver")[0]
    with (Path(to) / part.path).open("r+b") as file:
        file.truncate(1 << 40)  # with a hole: nobody has to write it
    with pytest.raises(TableDamaged, match="differs from what was written"):
        both(to)


def test_a_manifest_of_any_size_is_not_read(log, keys, to):
    load(log, to, keys)
    state = TableLog(to).state()
    with (Path(to) / manifest_path(state.version + 1)).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TableDamaged, match="is not valid"):
        TableLog(to).state()


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_tables_are_their_owners_alone(log, keys, to, umask):
    """Silver has the opened bodies."""
    before = os.umask(umask)
    try:
        load(log, to, keys)
    finally:
        os.umask(before)
    tables.compact(to)
    places = [Path(to), *Path(to).rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in places if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in places if path.is_dir()} == {0o700}


# --- manifests -----------------------------------------------------------------------------------------------------


def test_files_that_no_manifest_names_are_not_there(log, keys, to):
    load(log, to, keys)
    before = both(to)
    state = TableLog(to).state()
    part = state.of("silver")[0]
    stray = f"{to}/{part.path.replace('.parquet', 'f.parquet')}"
    shutil.copy(f"{to}/{part.path}", stray)
    assert both(to) == before
    assert tables.vacuum(to, keep_sec=3600).orphans == 0  # it may be of a load that runs now
    assert tables.vacuum(to, keep_sec=0).orphans == 1
    assert both(to) == before


def test_half_a_manifest_is_none_and_the_next_writer_takes_its_place(log, keys, to):
    load(log, to, keys, max_entries=50)
    state = TableLog(to).state()
    data = manifest_of(Change(kind="vacuum", at=0), version=state.version + 1, prev=state.digest)
    store = open_store(to)
    for cut in (0, 1, len(data) // 2, len(data) - 2):
        store.put(manifest_path(state.version + 1), data[:cut])
        assert TableLog(to).state() == state
    after = TableLog(to).commit(state, Change(kind="vacuum", at=0))
    assert after.version == state.version + 1
    assert TableLog(to).state() == after


def test_a_manifest_that_was_changed_is_named(log, keys, to):
    load(log, to, keys, max_entries=20)
    store = open_store(to)
    earlier = read_manifest(store.get(manifest_path(2), 1 << 20), "")
    assert earlier is not None
    store.put(manifest_path(2), manifest_of(earlier.change, version=2, prev="0" * 64))
    with pytest.raises(TableDamaged, match="manifest 2"):
        TableLog(to).state()
    store.put(manifest_path(2), manifest_of(earlier.change, version=7, prev=earlier.prev))
    with pytest.raises(TableDamaged, match="says that it is version 7"):
        TableLog(to).state()


def test_a_file_that_was_changed_is_named(log, keys, to):
    load(log, to, keys)
    part = TableLog(to).state().of("silver")[0]
    store = open_store(to)
    data = bytearray(store.get(part.path, part.size))
    data[len(data) // 2] ^= 1
    store.put(part.path, bytes(data))
    with pytest.raises(TableDamaged, match="differs from what was written"):
        both(to)
    with pytest.raises(NoTable, match="no table 'copper'"):
        tables.digest(to, "copper")


def test_reading_stays_short_and_old_manifests_can_go(log, keys, to):
    load(log, to, keys)
    state = TableLog(to).state()
    for _ in range(70):
        state = TableLog(to).commit(state, Change(kind="vacuum", at=0))

    class Counting(LocalStore):
        reads = 0

        def get(self, path, at_most):
            type(self).reads += 1
            return super().get(path, at_most)

    assert TableLog(Counting(Path(to))).state() == state
    assert Counting.reads < 40
    open_store(to).remove("manifests/latest")
    assert TableLog(to).state() == state  # without the hint the names tell
    assert tables.vacuum(to, keep_sec=0).manifests == 63
    assert TableLog(to).state() == state
    with pytest.raises(NoTable, match="no version 3"):
        TableLog(to).state(3)
    with pytest.raises(NoTable, match="no tables"):
        tables.show(f"{to}-nowhere")


# --- erasure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", spread([False, True], 1))
def test_what_the_hub_erases_leaves_the_tables_and_the_disk(tmp_path, keys, to, compacted):
    """The same rows as a load would make now; and not a byte of an old payload in any file."""
    world = made(tmp_path / "hub", 60)
    world.store.retire()
    load(world.path, to, keys, max_entries=20)
    if compacted:
        tables.compact(to)
    assert tables.erase(str(world.path), to).rows == 0
    for receipts in (False, True):
        erase(world, receipts=receipts)
        before = {row["leaf_hash"]: row["body"] for row in tables.rows(to, "silver") if row["body"]}
        done = tables.erase(str(world.path), to)
        fresh = str(tmp_path / f"fresh-{receipts}")
        load(world.path, fresh, keys)
        assert both(to) == both(fresh)
        gone = [body for leaf, body in before.items() if leaf not in {
            row["leaf_hash"] for row in tables.rows(to, "silver") if row["body"]}]  # fmt: skip
        if not receipts:
            assert done.rows == Counter(row["reason"] for row in tables.rows(to, "silver"))["erased"] > 0
            assert gone
        named = {path for paths in TableLog(to).state().files.values() for path in paths}
        assert {
            path for name in ("bronze", "silver", "typed_sdr_event_v1") for path, _ in open_store(to).walk(name)
        } == named
        assert tables.erase(str(world.path), to).version == done.version  # nothing more to do
    world.done()


# --- elsewhere -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_object_store_holds_the_same_tables(log, keys, to):
    """No rename, no link: a conditional put is enough."""
    load(log, to, keys, max_entries=50)
    store = ObjectStore("memory:///tables", MemoryStore())
    load(log, store, keys, max_entries=50)
    assert both(store) == both(to)
    tables.compact(store)
    tables.vacuum(store, keep_sec=0)
    assert both(store) == both(to)
    assert not store.put_new(manifest_path(TableLog(store).state().version), b"")


def test_a_place_that_cannot_tell_two_writers_apart_is_read_and_not_written(log, keys, to):
    """Arrow knows no "only if absent"."""
    load(log, to, keys)
    store = ArrowStore("arrow:///tables", arrow_fs.LocalFileSystem(), str(to))
    assert both(store) == both(to)
    state = TableLog(store).state()
    with pytest.raises(NoConditionalPut):
        TableLog(store).commit(state, Change(kind="load", at=0))
    assert TableLog(to).state() == state


class Racing(ObjectStore):
    """Another writer makes the same version between the plan of a commit and its put, as often as there are rivals."""

    rivals: ClassVar[list[Any]] = []

    def put_new(self, path, data):
        if self.rivals:
            self.rivals.pop()()
        return super().put_new(path, data)


class Deaf(ObjectStore):
    """Loses the answer to a put that the store has made, and makes the request again."""

    def put_new(self, path, data):
        super().put_new(path, data)
        return super().put_new(path, data)


def places(tmp_path):
    """A bucket that decides, and a directory."""
    return ObjectStore("memory:///tables", MemoryStore()), LocalStore(tmp_path / "race")


def test_of_many_writers_of_a_version_exactly_one_makes_it(tmp_path):
    """The losers lose before they go on, and the tables are those of the winner."""
    for store in places(tmp_path):
        state = TableLog(store).commit(TableLog(store).state(), Change(kind="load", at=0))
        ready = threading.Barrier(8)

        def write(number, store=store, state=state, ready=ready):
            ready.wait()
            try:
                return TableLog(store).commit(state, Change(kind="load", at=number, hub=f"{number:064x}"))
            except TableBusy:
                return None

        with ThreadPoolExecutor(8) as pool:
            winners = [after for after in pool.map(write, range(8)) if after is not None]
        assert len(winners) == 1
        assert TableLog(store).state() == winners[0]


def test_a_writer_that_another_one_overtakes_has_changed_nothing():
    """Forced: the rival commits between the look and the put."""
    memory = MemoryStore()
    rival, store = TableLog(ObjectStore("memory:///t", memory)), Racing("memory:///t", memory)
    state = rival.commit(rival.state(), Change(kind="load", at=0))
    Racing.rivals.append(lambda: rival.commit(state, Change(kind="load", at=1, hub="aa")))
    with pytest.raises(TableBusy):
        TableLog(store).commit(state, Change(kind="load", at=2, hub="bb"))
    assert rival.state().hub == "aa"
    assert rival.state().version == 2


def test_a_writer_whose_answer_was_lost_knows_its_own_manifest():
    store = Deaf("memory:///t", MemoryStore())
    state = TableLog(store).commit(TableLog(store).state(), Change(kind="load", at=0))
    assert TableLog(store).state() == state


def test_two_writers_that_find_an_unfinished_manifest_do_not_replace_each_other(tmp_path):
    """What was never finished is replaced once."""
    for store in places(tmp_path):
        torn = b'{"format":1'
        store.put(manifest_path(1), torn)
        assert TableLog(store).commit(TableState(), Change(kind="load", at=0)).version == 1
        whole = store.get(manifest_path(1), 1 << 20)
        assert not store.put_over(manifest_path(1), torn, b"another")  # it was torn when the second writer looked
        assert store.get(manifest_path(1), 1 << 20) == whole


def test_gold_is_replaced_in_one_commit(log, keys, to):
    import pyarrow as pa

    load(log, to, keys)
    at = TableLog(to)
    row = {"fold": "kv", "state_hash": b"h", "snapshot": b"s"}
    for version in range(2):
        table = pa.Table.from_pylist([row | {"snapshot": bytes([version])}])
        tables.replace_gold(at, at.state(), "kv", {"gold_state": table}, {"state_hash": "00"})
        assert [row["snapshot"] for row in tables.rows(to, "gold_state")] == [bytes([version])]
    assert len(at.state().of("gold_state")) == 1
    assert tables.show(to).states == {"kv": "00"}


def test_a_state_of_many_rows_is_several_files_in_the_order_of_its_keys(log, keys, to, monkeypatch):
    import duckdb
    import pyarrow as pa

    monkeypatch.setattr("veen.lake.tables.gold._FILE_ROWS", 10)
    load(log, to, keys)
    at = TableLog(to)
    row = {"fold": "kv", "state_hash": b"h", "part": "", "key": "", "value": "1"}
    for count in (45, 20, 1):
        names = [f"key {number:03}" for number in range(count)]
        table = pa.Table.from_pylist([row | {"key": name} for name in names])
        tables.replace_gold(at, at.state(), "kv", {"gold_entries": table}, {"state_hash": "00"})
        files = at.state().of("gold_entries")
        assert [file.rows for file in files] == [10] * (count // 10) + [count % 10] * (count % 10 > 0)
        assert [row["key"] for row in tables.rows(to, "gold_entries")] == names
        paths = [str(Path(to) / file.path) for file in files]
        keys_of = [pq.ParquetFile(path).metadata.row_group(0).column(3).statistics for path in paths]
        assert sum(bounds.min <= names[-1] <= bounds.max for bounds in keys_of) == 1  # a reader opens one of them
        rows = duckdb.read_parquet(paths).filter(f"key = '{names[-1]}'")
        assert len(rows.fetchall()) == 1


@pytest.mark.req("OVL-11")
def test_a_state_goes_on_from_its_snapshot_and_is_bound_to_the_roots(tmp_path, keys, to):
    world = Recorder(tmp_path)

    def step(numbers):
        for number in numbers:
            draft = kv.put(f"key-{number % 3}", number)
            world.now += 1
            world.emit(STREAMS[number % 2], schema=draft.schema, body=draft.body)
        world.store.retire()
        load(world.path, to, keys)
        return tables.refresh(to, "kv", path=str(world.path), keys=keys)

    assert not step(range(9)).resumed
    second = step(range(9, 20))
    assert second.resumed
    expected = folds.run(str(world.path), "kv", keys=keys, engine="python")
    assert second.state_hash == expected.state_hash.hex()
    assert {
        (row["schema"], row["label"], row["upto_seq"], row["mmr_root"], row["state_hash"])
        for row in tables.rows(to, "gold")
    } == {
        (schema, cut.label, cut.upto_seq, cut.mmr_root, expected.state_hash)
        for schema in expected.fold.schemas
        for cut in expected.cuts
    }
    world.done()


def test_write_part_never_uses_a_name_twice(log, keys, to):
    load(log, to, keys)
    state = TableLog(to).state()
    data = pq.read_table(f"{to}/{state.of('silver')[0].path}", partitioning=None)
    store = open_store(to)
    names = {write_part(store, "silver", "sid=unknown/day=1970-01-01", data).path for _ in range(5)}
    assert len(names) == 5
