"""Plans of Spark SQL over files of the typed table mean what the Python evaluator means, for any row and any query."""

import random
from bisect import bisect_right
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.damage import flipped
from tests.examples import slow
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, SUBJECTS, Recorder, descriptor
from tests.lake.test_query_conditions import Raw, check_queries

from veen.core import canonical
from veen.core.errors import VeenError
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.query import api
from veen.lake.query.clauses import FieldCondition
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import plan_query
from veen.lake.query.fields import ALL, FieldPath, timestamp
from veen.lake.query.table_plan import TablePlan, plan_tables
from veen.lake.query.table_rows import _record
from veen.lake.query.table_sql import SqlPlan, _buckets, _condition, _has_form, _has_path, _json, sql_plan
from veen.lake.query.tasks import QueryJob

pytestmark = pytest.mark.xdist_group("spark")

TEXTS = (
    "", "a", "b", "gw", "é", "z", "\uff5a", "😀", "\U0001f600a", "\ue000", "a\"b", "back\\slash", "line\nend", "\x01",
    "\x7f", "\u2028", "true", "null", "1", "10", "-1", "0.5", "$", "[0]", "' OR 1=1 --", "a.b", "%", "_", "\\u0041",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 10, 100, -3, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**20 - 1, 10**20, 10**30,
    10**90,
    Decimal("0.1"), Decimal("-0.1"), Decimal("0.10000000000000000001"), Decimal("0.000000001"), Decimal("1.5"),
    Decimal("99999999999999999999.5"), Decimal("123456789012345678.123456789"), Decimal("1e-18"), Decimal("1e-19"),
)  # fmt: skip
SCALARS = (*TEXTS, *NUMBERS, True, False)
NAMES = ("v", "w", "0", "1", "00", "é", "a b", "it's", 'say "x"', "😀", "\ue000", "[", "]", "$", "why?", "\n", "\\")
PATHS = ("v", "w", "v.w", "v.0", "v.1", "v.0.1", "v.w.v", "0", "1.v", "00", "é", "a b", "it's", 'say "x"', "😀", "[",
         "$", "why?", "\n", "\\", "it's \"x\"")  # fmt: skip


def is_tame(value):
    """Whether SQL decides a row with it."""
    if type(value) is str:
        return all(" " <= character < "\ue000" for character in value)
    return type(value) is bool or (abs(value) < 10**18 and Decimal(value) == round(Decimal(value), 9))


TAME = tuple(filter(is_tame, SCALARS))
TAME_NAMES = tuple(filter(is_tame, NAMES))


def value(rng, scalars, names, depth=0):
    kind = rng.random()
    if kind < 0.75 or depth > 2:
        return rng.choice((None, *scalars)) if kind < 0.6 else rng.choice((None, True, 1, "a"))
    if kind < 0.85:
        return [value(rng, scalars, names, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(names): value(rng, scalars, names, depth + 1) for _ in range(rng.randrange(4))}


def record_events(path, count, rng):
    """A log whose payloads, subjects and times are of every awkward kind; two of three rows are for SQL to decide."""
    world = Recorder(path)
    for number in range(count):
        world.now += rng.choice((0, 0, 1, 5))
        is_hard = rng.random() < 0.33
        scalars, names = (SCALARS, NAMES) if is_hard else (TAME, TAME_NAMES)
        members = {name: value(rng, scalars, names) for name in rng.sample(names, 6)}
        payload = members | {"v": value(rng, scalars, names), "n": number}
        world.emit(
            rng.choice(STREAMS[:2]),
            subject_id=rng.choice((*SUBJECTS, *filter(None, TEXTS)) if is_hard else SUBJECTS),
            origin=rng.choice(("gw-1", "gw-2", 'g"w', "g\\w", "g\x01") if is_hard else ("gw-1", "gw-2", "é")),
            event_time=rng.choice((0, 1, world.now, 253_402_300_799)),
            payload=canonical.encode(rng.choice((payload, payload, payload, [payload, 1], members.get("w")))),
        )
    return world.done()


def condition(rng):
    path = rng.choice(PATHS)
    field = rng.choice((f"payload.{path}", f"payload.{path}", "payload.v", "payload", "origin", "subject_id",
                        "event_time", "principal_id", "stream", "receipt_id", "hub_commit_seq", "hub_commit_time",
    ))  # fmt: skip
    op = rng.choice(("=", "in", "<", "<=", ">", ">=", "^="))
    if op == "^=":
        return {"field": field, "op": op, "value": rng.choice((*TEXTS, "rcpt-", "record/", "19", "user:"))}

    def scalar():
        if field.endswith("_time"):
            return timestamp(rng.choice((0, 1, 2, 1_700_000_000, 253_402_300_799)))
        return (
            rng.choice((*SUBJECTS, *STREAMS, "gw-1"))
            if "." not in field and rng.random() < 0.6
            else rng.choice(SCALARS)
        )

    return {"field": field, "op": op, "value": [scalar() for _ in range(rng.randint(1, 5))] if op == "in" else scalar()}


def query(rng, number):
    fields = [
        "receipt_id",
        "origin",
        "stream",
        "payload",
        "payload.n",
        "hub_commit_seq",
        *(f"payload.{path}" for path in PATHS),
    ]
    asked = descriptor(
        query_id=f"q-{number}", scope=list(STREAMS[:2]), projection=rng.sample(fields, rng.randint(1, 4))
    )
    if rng.random() < 0.7:
        asked["filter"]["where"] = [condition(rng) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.3:
        metrics = [
            "count",
            *(
                f"{function}({field})"
                for function in ("min", "max", "sum", "avg")
                for field in ("payload.v", "payload.n", "payload", "origin", "hub_commit_seq", "payload.v.0")
            ),
        ]
        asked["projection"] = ["origin"]
        asked["aggregate"] = {
            "group_by": rng.sample(["origin", "stream", "payload.v", "payload.w", "subject_id"], rng.randint(0, 2)),
            "metrics": rng.sample(metrics, rng.randint(1, 4)),
        }  # fmt: skip
    elif rng.random() < 0.5:
        asked["limit"] = rng.choice((1, 3, 20, 1000))
        columns = [path.name for path in normalise(asked).descriptor.projection]
        asked["order"] = [
            {"field": name, "direction": rng.choice(("asc", "desc"))}
            for name in rng.sample(columns, rng.randint(0, min(2, len(columns))))
        ]
    return normalise(asked).descriptor


class Place:
    """A log, and tables of all of it."""

    def __init__(self, root, keys, seed, count=120):
        (root / "hub").mkdir()
        self.path = record_events(root / "hub", count, random.Random(seed))
        self.tables = str(root / "tables")
        tables.load(self.path, self.tables, keys=keys, engine="python", target_bytes=1 << 14)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture(scope="module")
def place(tmp_path_factory, keys):
    return Place(tmp_path_factory.mktemp("place"), keys, 1)


def answers(spark, place, asked):
    """The result of one process from the log, and that of Spark from the tables."""
    settings: dict[str, Any] = {"keys": KEYRING, "result_id": "r-1", "now": lambda: 7}
    plain = api.run(place.path, asked.to_bytes(), **settings)
    planned = api.run(place.path, asked.to_bytes(), engine="spark", spark=spark, tables=place.tables, **settings)
    return plain, planned


def check(spark, place, asked):
    plain, planned = answers(spark, place, asked)
    assert planned.plan.source == "tables"
    assert list(planned.rows()) == list(plain.rows()), asked
    assert (planned.digest, planned.coverage) == (plain.digest, plain.coverage), asked
    return sql_plan(asked) is not None


@pytest.mark.slow
def test_random_queries_over_awkward_values_equal_the_python_evaluator(spark, place):
    planned = [check(spark, place, query(random.Random(number), number)) for number in range(6)]
    assert sum(planned) > 3  # few are left to Python


@pytest.mark.slow
def test_a_thousand_random_queries_over_awkward_values_equal_the_python_evaluator(spark, tmp_path, keys):
    planned = []
    for seed in range(5):
        root = tmp_path / str(seed)
        root.mkdir()
        awkward = Place(root, keys, seed)
        planned += [check(spark, awkward, query(random.Random(f"{seed} {at}"), at)) for at in range(200)]
    assert sum(planned) > 800


# --- expressions ----------------------------------------------------------------------------------------------------


def task_of(place, prefix, asked):
    """What the tables have for a query over the log."""
    plan = plan_tables(place.tables, prefix, asked, KEYRING)
    assert isinstance(plan, TablePlan)
    return plan.task


def check_expressions(spark, place, rng, count):
    """Many conditions and all fields over the rows that SQL decides, in one job: each as the evaluator has it."""
    asked = asked_for(projection=["payload.v"], filter={"where": [{"field": "payload.v", "op": "=", "value": 1}]})
    task = task_of(place, plan_query(place.path, asked), asked)
    fields = ("subject_id", "principal_id", "event_type", "origin", "event_time", "hub_commit_time", "payload")
    plan = SqlPlan(asked, fields)
    job = QueryJob(uri=place.path, descriptor=asked, identity=None, keys=cast("Any", None))
    table = pa.Table.from_batches(plan.batches(job, task))
    easy = table.filter(pc.is_null(table.column("result")))
    records = {
        row["leaf_hash"]: _record(row, asked.stream_names[row["stream_id"]])
        for rows in task.tables(asked)
        for row in rows.to_pylist()
    }
    conditions = [FieldCondition.of(condition(rng), "where") for _ in range(count)]
    conditions = [each for each in conditions if _has_form(each) and _has_path(each.field)]
    names = [*ALL, "payload.n", *(f"payload.{path}" for path in PATHS)]
    paths = [path for path in map(FieldPath.of, names) if _has_path(path)]
    frame = spark.createDataFrame(easy).select(
        "leaf_hash",
        *(_condition(each, asked).alias(f"c{at}") for at, each in enumerate(conditions)),
        *(_json(path, asked).alias(f"f{at}") for at, path in enumerate(paths)),
    )
    fitting = 0
    for row in frame.collect():
        record = records[bytes(row["leaf_hash"])]
        for at, each in enumerate(conditions):
            assert row[f"c{at}"] is each.fits(record), (each, record.payload)
            fitting += row[f"c{at}"]
        for at, path in enumerate(paths):
            assert row[f"f{at}"].encode() == canonical.encode(path.value(record)), (path, record.payload)
    assert fitting > len(conditions)


def test_conditions_and_fields_over_every_kind_of_value_are_those_of_the_evaluator(spark, place):
    check_expressions(spark, place, random.Random(7), 60)


@pytest.mark.slow
def test_a_thousand_conditions_over_every_kind_of_value_are_those_of_the_evaluator(spark, tmp_path, keys):
    for seed in range(10):
        root = tmp_path / str(seed)
        root.mkdir()
        check_expressions(spark, Place(root, keys, f"expressions {seed}", count=300), random.Random(seed), 100)


# --- against something that we did not write ------------------------------------------------------------------------


class RawTables(Raw):
    """As `Raw`; queries are answered from tables of the log, by Spark."""

    def __init__(self, root, keys, spark):
        (root / "hub").mkdir()
        super().__init__(root / "hub")
        self.answered = {"engine": "spark", "spark": spark, "tables": str(root / "tables")}
        tables.load(self.path, self.answered["tables"], keys=keys, engine="python")


@pytest.fixture(scope="module")
def raw(spark, tmp_path_factory, keys):
    return RawTables(tmp_path_factory.mktemp("raw"), keys, spark)


@pytest.mark.slow
def test_random_queries_by_sql_plans_equal_duckdb_over_the_raw_events(raw):
    check_queries(raw, range(5))


@pytest.mark.slow
def test_three_hundred_random_queries_by_sql_plans_equal_duckdb_over_the_raw_events(raw):
    check_queries(raw, range(1000, 1300))


# --- by name --------------------------------------------------------------------------------------------------------


def asked_for(**changed):
    return normalise(descriptor(query_id="q-1", scope=list(STREAMS[:2]), **changed)).descriptor


def where(field, op, value):
    return {"filter": {"where": [{"field": field, "op": op, "value": value}]}, "projection": ["payload.v", "payload.n"]}


@pytest.mark.parametrize(
    "asked",
    [
        where("payload.v", "in", [scalar for scalar in SCALARS if type(scalar) is not Decimal]),
        where("payload.v", "in", [f"text {number}" for number in range(1023)] + ["a"]),  # no expression of that depth
        slow(where("payload.v", "<", "\ue000")),
        where("payload.v", ">=", Decimal("0.1")),
        {"projection": ["payload.v", "payload.n"], "order": [{"field": "payload.v", "direction": "desc"}], "limit": 40},
        slow({"projection": ["*"], "limit": 7}),
        slow({"projection": ["payload"], "order": [{"field": "payload"}], "limit": 60}),
    ],
    ids=["any kind", "many values", "texts", "numbers", "mixed order", "limit", "order of payloads"],
)
def test_awkward_queries_have_a_plan_and_the_answer_of_one_process(spark, place, asked):
    assert check(spark, place, asked_for(**asked))


@pytest.mark.parametrize(
    "asked",
    [
        {"projection": ["*"], "evidence": {"mode": "full"}},
        where("payload.v", ">", 10**30),
        where("payload.v", ">", Decimal("1e-19")),
        where("hub_commit_seq", ">", 2**63),
        where("hub_commit_seq", "in", [1, Decimal("1.5")]),
        where("payload.why?", "=", 1),
        {"projection": ['payload.it\'s "x"']},
        {"projection": ["payload.0.1.2"]},
        {"projection": ["origin", "receipt_id"], "aggregate": {"group_by": ["origin"], "metrics": ["count"]}},
    ],
    ids=str,
)
def test_what_sql_cannot_say_exactly_has_no_plan(asked):
    assert sql_plan(asked_for(**asked)) is None


def test_easy_rows_are_decided_without_python_and_hard_ones_with_it(place):
    asked = asked_for(**where("payload.v", "=", 1))
    plan = sql_plan(asked)
    assert plan is not None
    prefix = plan_query(place.path, asked)
    task = task_of(place, prefix, asked)
    job = QueryJob(uri=place.path, descriptor=asked, identity=None, keys=cast("Any", None))
    rows = [row for batch in plan.batches(job, task) for row in batch.to_pylist()]
    easy = {row["leaf_hash"]: row["payload"] for row in rows if row["result"] is None}
    hard = {row["leaf_hash"] for row in rows if row["result"] is not None}
    assert len(easy) > 60  # of 120
    expected = {match.leaf_hash for match in task.matches(asked)}
    assert hard <= expected  # what Python decides it decides wholly
    assert hard < expected  # and SQL decides the others
    assert not any("\\u" in payload or "😀" in payload for payload in easy.values())


def test_rows_of_one_time_go_to_the_buckets_of_their_orders():
    order = [(5, b"a", 0, 3, b""), (5, b"b", 0, 1, b""), (7, b"", 0, 0, b"")]
    rows = [(4, b"b", 0, 9), (5, b"a", 0, 2), (5, b"a", 0, 3), (5, b"a", 1, 1), (5, b"b", 0, 1), (6, b"a", 0, 4),
            (7, b"a", 0, 5), (8, b"a", 0, 6)]  # fmt: skip
    names = ("ts", "stream_id", "epoch", "stream_seq")
    table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) | {"leaf_hash": b"l"} for row in rows])
    assert _buckets(order, table).tolist() == [bisect_right(order, (*row, b"l")) for row in rows]
    assert _buckets([], table).tolist() == [0] * len(rows)


def test_a_file_that_was_changed_ends_the_query_by_name(spark, tmp_path, keys):
    changed = Place(tmp_path, keys, 2, count=20)
    file = next(Path(changed.tables).glob("typed_sdr_event_v1/*/*/*.parquet"))
    file.write_bytes(flipped(file.read_bytes(), 100))
    with pytest.raises(VeenError, match="differs from what was written"):
        answers(spark, changed, asked_for(projection=["*"]))
