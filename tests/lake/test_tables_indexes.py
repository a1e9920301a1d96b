"""Indexes of paths of payloads: files are left out, rows never. No Spark here."""

import json
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.lake.query_builders import KEYS, Recorder, descriptor
from tests.lake.table_builders import DAY, erase
from tests.lake.test_query_tables import both, load, rewritten

from veen.core import canonical
from veen.lake import tables
from veen.lake.log.errors import OptionError
from veen.lake.log.keys import write_keys
from veen.lake.query.clauses import FieldCondition
from veen.lake.query.fields import RecordedEvent
from veen.lake.query.table_rows import EVENTS, may_have
from veen.lake.tables.errors import TableDamaged
from veen.lake.tables.index import FileIndex, PathRange, path_ranges
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.streaming import load_upto

TEXTS = ["", "a", "ab", "b" * 64, "b" * 65, "b" * 64 + "c", "ключ", "\U0001f511", "\ue000", "10", 'q"\\', "\n"]
NUMBERS = [
    0, 1, -1, 100, 101, (1 << 63) - 1, 1 << 64, 10**38, 10**38 + 1, -(10**60) - 1, 10**99 + 7,
    Decimal("0.1"), Decimal("100.5"), Decimal("1." + "0" * 40 + "1"), Decimal("-0." + "0" * 90 + "3"),
    Decimal("1" + "0" * 40 + ".5"),
]  # fmt: skip
SCALARS = [*TEXTS, *NUMBERS, True, False]
AMOUNTS = st.one_of(
    st.sampled_from(SCALARS),
    st.integers(-(10**50), 10**50),
    st.decimals(-(10**20), 10**20, places=8),
    st.text(max_size=70),
)
PAYLOADS = st.one_of(
    st.builds(lambda value: {"amount": value}, AMOUNTS),
    st.builds(lambda value: {"amount": {"net": value}, "other": 1}, AMOUNTS),
    st.builds(lambda value: {"amount": [value, {"net": value}]}, AMOUNTS),
    st.builds(lambda value: [{"amount": value}], AMOUNTS),
    st.sampled_from([{}, {"amount": None}, {"amount": {}}, {"amount": []}, None, "amount", 7, {"a": {"amount": 1}}]),
)
PATHS = ("payload.amount", "payload.amount.net", "payload.amount.0", "payload.0.amount", "payload.amount.1.net")


def rows_of(payloads):
    return pa.table({"payload": pa.array([canonical.encode(payload).decode() for payload in payloads], pa.string())})


class Record(RecordedEvent):
    """An event of which only the payload matters."""

    payload = None

    def __init__(self, payload):
        object.__setattr__(self, "payload", payload)


CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), AMOUNTS),
    st.tuples(st.just("in"), st.lists(AMOUNTS, min_size=1, max_size=3)),
    st.tuples(st.just("^="), st.one_of(st.sampled_from(TEXTS), st.text(max_size=3))),
)


@examples(400)
@given(payloads=st.lists(PAYLOADS, max_size=20), asked=CONDITIONS, path=st.sampled_from(PATHS))
def test_an_index_never_leaves_out_a_row_that_the_evaluator_takes(payloads, asked, path):
    op, value = asked
    condition = FieldCondition.of({"field": path, "op": op, "value": value}, "where")
    values = [canonical.parse(canonical.encode(payload)) for payload in payloads]
    ranges = path_ranges(rows_of(values), PATHS)[path]
    assert PathRange.from_json(json.loads(json.dumps(ranges.to_json()))) == ranges
    if any(condition.fits(Record(payload)) for payload in values):
        assert ranges.may_be(condition.op, condition.value)


def test_an_index_leaves_out_what_no_value_can_be():
    ranges = path_ranges(
        rows_of([{"amount": value} for value in (5, "x", None, [7], Decimal("9.5"))]), ["payload.amount"]
    )
    amount = ranges["payload.amount"]
    assert not amount.may_be("=", 7)
    assert not amount.may_be(">", Decimal("9.5"))
    assert not amount.may_be("=", True)
    assert not amount.may_be("in", ("5", 6))
    assert not amount.may_be("^=", "y")
    assert amount.may_be("in", ("x", 6))
    none = path_ranges(rows_of([{"amount": None}, {}]), ["payload.amount"])["payload.amount"]
    assert not any(none.may_be(op, value) for op in ("=", "<", ">=") for value in (0, "", False))


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path):
    return write_keys(tmp_path / "keys", KEYS.values())


def hub_with(tmp_path, payloads):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = Recorder(hub)
    for payload in payloads:
        world.now += 60
        world.emit(payload=canonical.encode(payload))
    world.store.retire()
    return world


def where(field, op, value):
    return descriptor(filter={"where": [{"field": field, "op": op, "value": value}]})


@pytest.mark.slow
def test_random_conditions_on_awkward_values_have_the_answer_of_the_log_and_open_fewer_files(tmp_path, keys):
    rng = random.Random(3)
    shapes = [
        lambda v: {"amount": v},
        lambda v: {"amount": {"net": v}},
        lambda v: {"amount": [v]},
        lambda v: {"other": v},
    ]
    world = hub_with(tmp_path, [])
    to = str(tmp_path / "tables")
    for number in range(12):  # a file for each load
        for _ in range(3):
            world.now += 60
            value = number * 50 + rng.randrange(50) if rng.random() < 0.5 else rng.choice(SCALARS)
            world.emit(payload=canonical.encode(rng.choice(shapes)(value)))
        world.store.retire()
        load(world.path, to, keys, indexes=["payload.amount", "payload.amount.net"] if number == 0 else ())
    path = world.done()
    opened = []
    for _ in range(20):
        field = rng.choice(["payload.amount", "payload.amount.net", "payload.amount.0"])
        op = rng.choice(["=", "<", "<=", ">", ">=", "in", "^="])
        value = rng.choice(TEXTS) if op == "^=" else rng.choice([*SCALARS, rng.randrange(600)])
        plan = both(path, to, where(field, op, [value, 7] if op == "in" else value)).plan
        assert plan.source == "tables"
        opened.append(plan.files if field != "payload.amount.0" else plan.files_total)
    assert sum(opened) < 20 * 12 // 2
    assert both(path, to, where("payload.amount", ">", 10**100)).plan.files == 0


def names(to):
    state = TableLog(to).state()
    return {file.path: file.sha256 for file in state.of(EVENTS)}


def test_an_index_reaches_files_that_are_there_stays_over_loads_and_compaction_and_can_be_dropped(tmp_path, keys):
    world = hub_with(tmp_path, [{"amount": number} for number in range(4)])
    to = load(world.path, tmp_path / "tables", keys)
    before = names(to)
    assert both(world.path, to, where("payload.amount", "=", 77)).plan.files == len(before)
    load(world.path, to, keys, indexes=["payload.amount"])
    assert names(to) == before  # described anew, not written anew
    assert both(world.path, to, where("payload.amount", "=", 77)).plan.files == 0
    version = tables.show(to).version
    load(world.path, to, keys, indexes=["payload.amount"])
    assert tables.show(to).version == version  # nothing new
    for number in range(70, 74):
        world.now += 60
        world.emit(payload=canonical.encode({"amount": number}))
    world.store.retire()
    ends = {bytes.fromhex(label): 100 for label in TableLog(to).state().heads}
    load_upto(str(world.path), to, ends, keys=keys)  # as a stream does
    assert tables.show(to).indexes == ("payload.amount",)
    assert both(world.path, to, where("payload.amount", ">=", 71)).plan.files == 1
    tables.compact(to)
    assert len(names(to)) == 1
    assert both(world.path, to, where("payload.amount", ">", 74)).plan.files == 0
    assert both(world.path, to, where("payload.amount", "<=", 71)).plan.files == 1
    load(world.path, to, keys, drop_indexes=["payload.amount"])
    assert tables.show(to).indexes == ()
    assert all(file.file_index and not file.file_index.paths for file in TableLog(to).state().of(EVENTS))
    assert both(world.path, to, where("payload.amount", ">", 74)).plan.files == 1


def test_names_that_can_have_no_index_are_refused_and_change_nothing(tmp_path, keys):
    world = hub_with(tmp_path, [{"amount": 1}])
    to = load(world.path, tmp_path / "tables", keys)
    version = tables.show(to).version
    for name in ("amount", "payload", "payload.*", "payload..a", "subject_id", "", "payload." + "a." * 40 + "b"):
        with pytest.raises(OptionError):
            load(world.path, to, keys, indexes=[name])
    with pytest.raises(OptionError, match=r"there is no index of payload\.other"):
        load(world.path, to, keys, drop_indexes=["payload.other"])
    with pytest.raises(OptionError, match="more than the"):
        load(world.path, to, keys, indexes=[f"payload.p{number}" for number in range(65)])
    assert tables.show(to).version == version


@pytest.mark.parametrize(
    "ranges",
    [
        [], [[], [], []], "x", [[None, None, 1, []]] * 2, [[1, 2, 0, None], [None, None, 1, []], [None, None, 1, []]],
        [[None, None, 1, []], ["NaN", "1", 0, None], [None, None, 1, []]],
        [[None, None, 1, []], [1, 2, 0, None], [None, None, 1, []]],
        [[None, None, 1, []], ["one", "2", 0, None], [None, None, 1, []]],
        [[None, None, 1, []], [None, None, 1, []], [True, True, 1, [True]]],
    ],
)  # fmt: skip
def test_ranges_that_are_none_make_no_manifest(tmp_path, keys, ranges):
    world = hub_with(tmp_path, [{"amount": 1}])
    to = load(world.path, tmp_path / "tables", keys, indexes=["payload.amount"])

    def change(value):
        value["add"][EVENTS][0][8][2] = {"payload.amount": ranges}

    rewritten(to, change)
    with pytest.raises(TableDamaged):
        TableLog(to).state()


def test_an_index_that_lies_about_an_opened_file_is_told_where_every_row_is_read(tmp_path, keys):
    world = hub_with(tmp_path, [{"amount": 1}])
    to = load(world.path, tmp_path / "tables", keys, indexes=["payload.amount"])

    def change(value):
        value["add"][EVENTS][0][8][2]["payload.amount"][1] = ["5", "6", 0, None]

    rewritten(to, change)
    with pytest.raises(TableDamaged, match="says something else"):
        tables.digest(to, EVENTS)


def test_manifests_of_earlier_releases_have_no_indexes_of_paths(tmp_path, keys):
    world = hub_with(tmp_path, [{"amount": 1}])
    to = load(world.path, tmp_path / "tables", keys)
    rewritten(to, lambda value: value.pop("indexes"))
    assert TableLog(to).state().indexes == ()
    assert may_have(FileIndex({}, ()), descriptor_filter("payload.amount", "=", 1))


def descriptor_filter(field, op, value):
    from veen.lake.query.descriptor import normalise

    return normalise({"query_id": "q-1", **where(field, op, value)}).descriptor.filter


def test_no_manifest_keeps_a_value_of_an_erased_payload(tmp_path, keys):
    world = hub_with(tmp_path, [])
    for number in range(12):
        world.emit(payload=canonical.encode({"word": f"secret-{number}"}))
        world.now += DAY if number == 5 else 60
    world.store.retire()
    to = load(world.path, tmp_path / "tables", keys, indexes=["payload.word"])
    before = "".join(path.read_text() for path in (tmp_path / "tables" / "manifests").glob("*.json"))
    assert "secret-0" in before
    erase(world, after=10 * DAY)
    world.done()
    tables.erase(str(world.path), to)
    payloads = [row["payload"] for row in tables.rows(to, EVENTS)]
    after = "".join(path.read_text() for path in (tmp_path / "tables" / "manifests").glob("*.json"))
    gone = [number for number in range(12) if not any(f'secret-{number}"' in payload for payload in payloads)]
    assert gone
    assert not any(f'"secret-{number}"' in after for number in gone)
