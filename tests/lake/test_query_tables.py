"""Plans over typed tables: proven, the same rows and digest as from the log; indexes leave files out. No Spark here."""

import json
import random
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, SUBJECTS, TYPES, Recorder, descriptor, filled
from tests.lake.table_builders import DAY, erase, grow, spoil
from tests.lake.test_query_cuts import Collected, Cut, random_query
from tests.storage.driver import START

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.io.stores import LocalStore
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import execute, plan_query
from veen.lake.query.fields import timestamp
from veen.lake.query.table_plan import PlannedSource, TablePlan, plan_tables
from veen.lake.tables.errors import NoTable, OtherHub, TableDamaged
from veen.lake.tables.manifest import TableLog, manifest_path

EVENTS = "typed_sdr_event_v1"


def load(path, to, keys, **options):
    tables.load(str(path), str(to), keys=keys, engine="python", **options)
    return str(to)


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path / "keys", KEYS.values())


def asked_of(asked):
    return normalise({"query_id": "q-1", **asked}).descriptor.to_bytes()


def both(path, to, asked, **options):
    """The answers of log and tables, which must be equal in all that is hashed; the plan of the second."""
    question = asked_of(asked) if isinstance(asked, dict) else asked.to_bytes()
    settings = {"keys": KEYRING, "result_id": "r-1", "now": lambda: START, **options}
    plain, planned = api.run(str(path), question, **settings), api.run(str(path), question, tables=to, **settings)
    assert planned.digest == plain.digest
    assert planned.coverage == plain.coverage
    assert list(planned.rows()) == list(plain.rows())
    assert planned.skipped == plain.skipped
    assert plain.plan.source == "log"
    return planned


# --- the same answer ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])  # many more: test_determinism.py
def test_random_queries_have_one_answer_from_the_log_from_tables_and_from_both(tmp_path, keys, seed):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = filled(hub, 60, seed)
    first = load(hub, tmp_path / "first", keys, target_bytes=1)
    rng = random.Random(seed)
    grow(world, 15, rng)
    path = world.done()
    second = load(path, shutil.copytree(first, tmp_path / "second"), keys)
    plans = set()
    for number in range(12):
        asked = random_query(rng, number)
        for to in (first, second):
            plans.add(both(path, to, asked).plan.source)
    assert {"tables", "tables and log", "log by tables"} <= plans


class CutTables(Cut):
    """As `Cut`, with tasks of files among those of slices."""

    def __init__(self, plan, asked, keys, parts, rng, table):
        super().__init__(plan, asked, keys, parts, rng)
        self.table = table

    def prepared(self):
        job, tasks = super().prepared()
        return job, [*tasks, *(self.table.divide(self.parts) if self.table is not None else ())]


def test_tasks_of_files_give_the_same_however_they_are_divided(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = filled(hub, 60, 5)
    to = load(hub, tmp_path / "tables", keys, target_bytes=1)
    rng = random.Random(5)
    grow(world, 10, rng)
    path = world.done()
    for number in range(4):
        asked = replace(random_query(rng, number), evidence=normalise(descriptor()).descriptor.evidence)
        prefix = plan_query(path, asked)
        plan = plan_tables(to, prefix, asked, KEYRING)
        assert isinstance(plan, TablePlan)
        expected = api.run(path, asked.to_bytes(), keys=KEYRING, result_id="r-1", now=lambda: 0)
        for parts in (1, 2, 7, 64):
            sink = Collected()
            source = PlannedSource(plan, [CutTables(plan.rest, asked, keys, parts, rng, plan.task)])
            outcome = execute(prefix, asked, "r-1", source, sink, now=lambda: 0)
            assert (outcome.digest, outcome.coverage.value) == (expected.digest, expected.coverage)


def test_what_is_newer_than_the_tables_is_read_from_the_log_and_nothing_else(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for _ in range(30):
        world.now += 5
        world.emit()
    to = load(hub, tmp_path / "tables", keys)
    loaded = sum(head.upto_seq for head in TableLog(to).state().heads.values())
    for _ in range(4):
        world.now -= 3  # ts* goes on from the tables
        world.emit()
    plan = both(world.done(), to, descriptor(scope=[STREAMS[0]])).plan
    assert (plan.source, plan.entries_tables, plan.entries_log) == ("tables and log", loaded, 34 - loaded)


def test_a_damaged_log_has_the_same_answer_from_tables_that_were_loaded_from_it(tmp_path, keys):
    for seed in range(1):
        hub = tmp_path / f"hub{seed}"
        hub.mkdir()
        rng = random.Random(seed)
        world = grow(Recorder(hub), 120, rng)
        world.done()
        spoil(hub, rng)
        to = load(hub, tmp_path / f"tables{seed}", keys)
        for asked in (
            descriptor(),
            descriptor(filter={"time": {"from": timestamp(START + 20), "to": timestamp(START + 60)}}),
            descriptor(filter={"subject_id": SUBJECTS[0]}, aggregate={"group_by": ["origin"], "metrics": ["count"]}),
        ):
            both(hub, to, asked)


def test_a_clock_that_runs_backwards_changes_no_answer(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for step in (0, 9, -5, 1, 1, -3, 8, -2, 0, 1) * 3:
        world.now += step
        world.emit(STREAMS[0])
    path = world.done()
    to = load(path, tmp_path / "tables", keys, target_bytes=1)
    for first in range(0, 30, 4):
        both(path, to, descriptor(filter={"time": {"from": timestamp(START + first), "to": timestamp(START + 30)}}))


# --- what is not proven ---------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    path = filled(hub, 40).done()
    return path, load(path, tmp_path / "tables", keys)


def test_other_keys_than_those_of_the_load_are_answered_from_the_log(tmp_path, place, keys):
    path, _ = place
    narrow = load(path, tmp_path / "narrow", write_keys(tmp_path / "k", [KEYS[STREAMS[0]]]))
    result = both(path, narrow, descriptor())
    assert result.plan.source == "tables and log"
    assert any("other keys" in reason for reason in result.plan.reasons)
    more = Keyring.of([*KEYS.values(), StreamKeys.create(STREAMS[0], random=random.Random(1).randbytes)])
    assert both(path, narrow, descriptor(scope=[STREAMS[0]]), keys=more).plan.source == "log"
    strict = load(path, tmp_path / "strict", keys, verify="full")
    assert both(path, strict, descriptor()).plan.source == "log"


def test_entries_that_the_hub_has_erased_since_are_not_answered_from_tables_that_have_them(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for number in range(9):
        world.emit(payload={"n": number})
        world.now += DAY if number == 4 else 0
    to = load(hub, tmp_path / "tables", keys)
    erase(world, after=10 * DAY)
    world.emit()
    path = world.done()
    result = both(path, to, descriptor())
    assert result.skipped["erased"] > 0
    assert any("veen table erase" in reason for reason in result.plan.reasons)
    tables.erase(path, to)
    assert both(path, to, descriptor()).plan.source == "tables and log"
    fresh = load(path, tmp_path / "fresh", keys)
    assert both(path, fresh, descriptor()).plan.source == "tables"


def test_a_file_that_the_log_has_lost_since_is_missing_in_the_answer(tmp_path, place):
    path, to = place
    chunk = sorted((tmp_path / "hub" / "log").glob("chunk-*.log"))[1]
    chunk.unlink()
    result = both(path, to, descriptor())
    assert result.skipped["missing"] > 0
    assert any("missing" in reason for reason in result.plan.reasons)


def test_a_log_that_is_shorter_than_the_tables_answers_itself(tmp_path, keys):
    hub, copy = tmp_path / "hub", tmp_path / "copy"
    hub.mkdir()
    world = Recorder(hub)
    for _ in range(6):
        world.emit()
    world.store.retire()
    shutil.copytree(hub, copy)
    for _ in range(6):
        world.emit()
    to = load(world.done(), tmp_path / "tables", keys)
    plan = both(copy, to, descriptor(scope=[STREAMS[0]])).plan
    assert plan.source == "log"
    assert "the tables have 12 entries" in plan.reasons[0]


def test_no_tables_are_an_error_and_not_an_answer_from_the_log(tmp_path, place):
    with pytest.raises(NoTable):
        api.run(place[0], descriptor(), keys=KEYRING, tables=str(tmp_path / "nothing"))


# --- lies -----------------------------------------------------------------------------------------------------------


def rewritten(to, change):
    """The last manifest, changed and with a hash that fits: what somebody who can write to the tables can do."""
    log = TableLog(to)
    path = Path(to) / manifest_path(log.state().version)
    value = json.loads(path.read_bytes().splitlines()[0])
    change(value["change"])
    line = json.dumps(value).encode() + b"\n"
    path.write_bytes(line + sha256(line).hexdigest().encode() + b"\n")


def _heads(change, seq=0, root=None):
    label = min(change["heads"])
    upto, ts, root_seq, mmr_root = change["heads"][label]
    change["heads"][label] = [upto - seq, ts, root_seq - seq, root or mmr_root]


def _no_file(table):
    def lie(change):
        del change["add"][table][0]

    return lie


def _index(table, column, value):
    def lie(change):
        for file in change["add"][table]:
            file[-1][0][column] = value

    return lie


def _counts(change):
    for file in change["add"][EVENTS]:
        file[-1][1] = [[label, kind, count + 1, seq] for label, kind, count, seq in file[-1][1]]


LIES = {
    "a root that the log does not have": lambda change: _heads(change, root="00" * 32),
    "a head before the last entry": lambda change: _heads(change, seq=1),
    "a file of silver left out": _no_file("silver"),
    "a file of the typed table left out": _no_file(EVENTS),
    "counts of rows that are not there": _counts,
    "bounds that no row has": _index(EVENTS, "subject_id", ["a", "zz", 0, None]),
    "no hub of this log": lambda change: change.update(hub="00" * 32),
}


@pytest.mark.parametrize("name", LIES)
def test_tables_whose_manifest_lies_are_refused_by_name(place, name):
    path, to = place
    both(path, to, descriptor())
    rewritten(to, LIES[name])
    with pytest.raises((TableDamaged, OtherHub)) as caught:
        api.run(path, descriptor(), keys=KEYRING, tables=to)
    assert any(word in str(caught.value) for word in (f"{to}: manifest 1 says", ".parquet: the manifest", "of hub 00"))


@pytest.mark.parametrize(
    "index",
    [[{}], {}, [{"subject_id": ["a", 1, 0, None]}, []], [{"x": [[], None, 0, None]}, []], [{}, [["l", "k", "n", 1]]]],
)
def test_an_index_that_is_none_makes_no_manifest(place, index):
    path, to = place

    def lie(change):
        change["add"][EVENTS][0][-1] = index

    rewritten(to, lie)
    with pytest.raises(TableDamaged):
        api.run(path, descriptor(), keys=KEYRING, tables=to)


def test_a_changed_file_is_refused(place):
    path, to = place
    file = TableLog(to).state().of(EVENTS)[0]
    target = Path(to) / file.path
    target.write_bytes(flipped(target.read_bytes(), file.size // 2))
    with pytest.raises(TableDamaged, match="differs from what was written"):
        api.run(path, descriptor(), keys=KEYRING, tables=to)


def test_tables_of_an_earlier_release_are_no_hindrance(place):
    path, to = place

    def earlier(change):
        change.pop("readers")
        for files in change["add"].values():
            for file in files:
                del file[8:]

    rewritten(to, earlier)
    plan = both(path, to, descriptor()).plan
    assert plan.source == "log"
    assert "earlier release" in plan.reasons[0]


# --- indexes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """A hundred days in a hundred files, each with a subject, an origin and a few other events of its own."""
    root = tmp_path_factory.mktemp("hundred")
    hub = root / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for day in range(100):
        for number in range(3):
            world.emit(subject_id=f"subject-{day:03d}", origin=f"host-{day}", event_type=TYPES[number % 2])
            world.now += 60
        if day % 10 == 0:
            world.emit(body=b"not cbor")
        world.now += DAY - 180
    path = world.done()
    to = load(path, root / "tables", write_keys(root / "keys", KEYS.values()))
    return path, to


class Opened(LocalStore):
    """Counts what is read."""

    def __init__(self, path):
        super().__init__(Path(path))
        self.sizes = {}

    def get(self, path, most):
        data = super().get(path, most)
        self.sizes[path] = len(data)
        return data


ONE_PERCENT = {
    "a day": {"time": {"from": timestamp(START + 50 * DAY), "to": timestamp(START + 51 * DAY - 1)}},
    "a subject": {"subject_id": "subject-050"},
    "a condition": {"where": [{"field": "origin", "op": "=", "value": "host-50"}]},
    "a prefix": {"where": [{"field": "subject_id", "op": "^=", "value": "subject-05"}], "subject_id": "subject-050"},
    "a range": {
        "where": [
            {"field": "event_time", "op": ">=", "value": timestamp(START + 50 * DAY - 3)},
            {"field": "event_time", "op": "<", "value": timestamp(START + 51 * DAY - 3)},
        ]
    },
    "positions": {"where": [{"field": "hub_commit_seq", "op": "in", "value": [156, 157]}]},
}


@pytest.mark.req("QRY-30")
@pytest.mark.parametrize("name", spread(ONE_PERCENT, 4))
def test_a_query_that_matches_one_percent_opens_about_one_percent_of_the_files(hundred, name):
    path, to = hundred
    asked = descriptor(scope=[STREAMS[0]], filter=ONE_PERCENT[name])
    expected = both(path, to, asked)
    assert 1 <= expected.digest.row_count <= 3
    store = Opened(to)
    api.run(path, asked, keys=KEYRING, tables=store)
    files = [file for table in ("bronze", "silver", EVENTS) for file in store.walk(table)]
    opened = [path for path in store.sizes if path.endswith(".parquet")]
    assert len(files) == 300
    assert 1 <= len(opened) <= 3  # the file of the typed table; of silver, if a day is asked for in which it has issues
    size = sum((Path(to) / file.path).stat().st_size for file in files)
    assert sum(store.sizes[path] for path in opened) * 30 < size


@pytest.mark.req("QRY-30")
def test_evidence_is_read_from_the_chunks_that_the_tables_name(hundred):
    path, to = hundred
    asked = descriptor(scope=[STREAMS[0]], filter={"subject_id": "subject-050"}, evidence={"mode": "full"})
    plan = both(path, to, asked).plan
    assert (plan.source, plan.files, plan.entries_log) == ("log by tables", 1, 3)


def test_a_query_that_nothing_matches_opens_no_file_and_covers_everything(hundred):
    path, to = hundred
    result = both(path, to, descriptor(scope=[STREAMS[0]], filter={"subject_id": "nobody"}))
    assert (result.plan.files, result.digest.row_count, result.skipped) == (0, 0, {"malformed": 10})


# --- erasure --------------------------------------------------------------------------------------------------------


def test_no_manifest_keeps_a_value_of_an_erased_event(tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for number in range(12):
        world.emit(subject_id="erase-me-please" if number < 6 else "later")
        world.now += DAY if number == 5 else 0
    to = load(hub, tmp_path / "tables", keys)
    texts = lambda: b"".join(path.read_bytes() for path in (tmp_path / "tables" / "manifests").iterdir())  # noqa: E731
    assert b"erase-me-please" in texts()
    erase(world, after=10 * DAY)
    path = world.done()
    tables.erase(path, to)
    assert b"erase-me-please" not in texts()
    both(path, to, descriptor())
