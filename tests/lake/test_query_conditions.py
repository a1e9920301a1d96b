"""Conditions, order and limit mean what DuckDB's SQL means over the raw events, and compare exactly."""

import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.lake.query_builders import KEYRING, STREAMS, SUBJECTS, TYPES, Recorder, descriptor
from tests.storage.driver import START

from veen.core import canonical
from veen.core.labels import stream_id_of
from veen.lake.query import api
from veen.lake.query.fields import timestamp

EVENTS = 150
PAYLOADS = ("level", "ms", "user")
VALUES = (
    "error", "info", "", "é", "gw", 0, 1, -3, 100, 250, Decimal("0.1"), Decimal("99.999999999"), Decimal("-2.5"), True,
    False, None,
)  # fmt: skip
KINDS = {bool: "bool", int: "num", Decimal: "num", str: "text"}


def raw_events(rng):
    """Plain values, as a program has them before it records them."""
    now = START
    for number in range(EVENTS):
        now += rng.choice((0, 0, 1, 7))
        yield {
            "n": number,
            "stream": rng.choice(STREAMS[:2]),
            "now": now,
            "subject_id": rng.choice(SUBJECTS),
            "event_type": rng.choice(TYPES),
            "origin": rng.choice(("gw-1", "gw-2", "edge")),
            "event_time": now - rng.randrange(50),
            **{name: rng.choice(VALUES) for name in PAYLOADS if rng.random() < 0.8},
        }


class Raw:
    """A log, and the same events in DuckDB: one column for each kind of value."""

    def __init__(self, path, seed=1):
        self.answered: dict[str, Any] = {}  # how queries are answered: by one process from the log
        world, rows = Recorder(path), []
        for event in raw_events(random.Random(seed)):
            world.now = event["now"]
            payload = {name: event[name] for name in ("n", *PAYLOADS) if name in event}
            fields = {name: event[name] for name in ("subject_id", "event_type", "origin", "event_time")}
            receipt = world.emit(event["stream"], payload=canonical.encode(payload), **fields)
            row = fields | {"n": event["n"], "stream": event["stream"], "hub_commit_time": timestamp(event["now"])}
            row |= {"event_time": timestamp(event["event_time"]), "ts": event["now"], "seq": receipt.stream_seq}
            row["stream_id"] = stream_id_of(event["stream"])
            for name in PAYLOADS:
                value = event.get(name)
                for kind in ("bool", "num", "text"):
                    fits = KINDS.get(type(value)) == kind
                    row[f"{name}_{kind}"] = (Decimal(value) if kind == "num" else value) if fits else None
            rows.append(row)
        self.path = world.done()
        schema = pa.schema([(name, self.arrow(name)) for name in rows[0]])
        self.table = pa.Table.from_pylist(rows, schema)
        self.sql = duckdb.connect()
        self.sql.register("events", self.table)

    @staticmethod
    def arrow(name):
        if name in ("n", "ts", "seq"):
            return pa.int64()
        if name == "stream_id":
            return pa.binary()
        return {"num": pa.decimal128(38, 9), "bool": pa.bool_()}.get(name.rpartition("_")[2], pa.string())

    def rows(self, text, values):
        return self.sql.execute(text, values).fetchall()


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return Raw(tmp_path_factory.mktemp("raw"))


def column(field, value):
    base, _, name = field.partition(".")
    return f"{name}_{KINDS[type(value)]}" if base == "payload" else base


def sql_of(condition):
    """The condition as SQL, with its values as parameters; a value of another kind than the column fits nothing."""
    field, op, value = condition["field"], condition["op"], condition["value"]
    if op == "in":
        parts = [sql_of({"field": field, "op": "=", "value": element}) for element in value]
        return f"({' OR '.join(text for text, _ in parts)})", [parameter for _, values in parts for parameter in values]
    if "." not in field and type(value) is not str:
        return "FALSE", []
    if op == "^=":
        return f"coalesce(starts_with({column(field, value)}, ?), FALSE)", [value]
    cast = "DECIMAL(38, 9)" if KINDS[type(value)] == "num" else "BOOLEAN" if type(value) is bool else "VARCHAR"
    return f"coalesce({column(field, value)} {op} CAST(? AS {cast}), FALSE)", [value]


VOCABULARY = {"subject_id": SUBJECTS, "event_type": TYPES, "origin": ("gw-1", "gw-2", "edge")}


def random_condition(rng):
    field = rng.choice(
        (
            "subject_id",
            "event_type",
            "origin",
            "event_time",
            "hub_commit_time",
            *(f"payload.{name}" for name in PAYLOADS),
        )
    )
    op = rng.choice(("=", "in", "<", "<=", ">", ">=", "^="))
    if op == "^=":
        return {"field": field, "op": op, "value": rng.choice(("", "g", "gw-", "e", "user:", "2023-11-14T22:1", "é"))}

    def value():
        if field.endswith("_time"):
            return timestamp(START + rng.randrange(-40, 200))
        if rng.random() < 0.8:
            payload = tuple(scalar for scalar in VALUES if scalar is not None)
            return rng.choice(VOCABULARY.get(field, payload))
        return rng.choice((*SUBJECTS, *TYPES, "gw-1", "edge", *(scalar for scalar in VALUES if scalar is not None)))

    return {"field": field, "op": op, "value": [value() for _ in range(rng.randint(1, 4))] if op == "in" else value()}


def check_query(raw, rng, number):
    conditions = [random_condition(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    parts = [sql_of(condition) for condition in conditions]
    where, values = " AND ".join(text for text, _ in parts), [parameter for _, some in parts for parameter in some]
    scope = rng.choice((list(STREAMS[:2]), [STREAMS[0]]))
    if len(scope) == 1:
        where, values = f"({where}) AND stream = ?", [*values, scope[0]]
    asked = descriptor(query_id=f"q-{number}", scope=scope, filter={"where": conditions}, projection=["payload.n"])
    if number % 4 == 3:
        asked["aggregate"] = {
            "group_by": ["origin"],
            "metrics": ["count", "sum(payload.ms)", "max(event_time)", "min(payload.n)"],
        }
        got = [
            (row["origin"], row["count"], row["sum(payload.ms)"], row["max(event_time)"], row["min(payload.n)"])
            for row in api.run(raw.path, asked, keys=KEYRING, **raw.answered).rows()
        ]
        columns = "origin, count(*), sum(ms_num), max(event_time), min(n)"
        expected = raw.rows(f"SELECT {columns} FROM events WHERE {where} GROUP BY origin ORDER BY origin", values)  # noqa: S608
        assert got == expected, asked
        return len(got)
    logical, limit, order = "ts, stream_id, seq", "", logical_order(rng)
    if order is not None:
        field, direction = order
        asked |= {
            "projection": ["payload.n", field],
            "order": [{"field": field, "direction": direction}],
            "limit": rng.choice((1, 5, 1000)),
        }
        nulls = "NULLS FIRST" if direction == "asc" else "NULLS LAST"
        logical, limit = f"{field} {direction} {nulls}, {logical}", f"LIMIT {asked['limit']}"
    result = api.run(raw.path, asked, keys=KEYRING, **raw.answered)
    assert result.plan.source == ("tables" if raw.answered else "log")
    got = [row["payload.n"] for row in result.rows()]
    text = f"SELECT n FROM events WHERE {where} ORDER BY {logical} {limit}"  # noqa: S608 - the test's own words
    assert got == [row[0] for row in raw.rows(text, values)], asked
    if order is not None:
        (total,) = raw.rows(f"SELECT count(*) FROM events WHERE {where}", values)[0]  # noqa: S608 - as above
        assert result.coverage["rows_matched"] == total
    return len(got)


def logical_order(rng):
    return (rng.choice(("subject_id", "event_time")), rng.choice(("asc", "desc"))) if rng.random() < 0.5 else None


def check_queries(raw, numbers):
    sizes = [check_query(raw, random.Random(number), number) for number in numbers]
    assert sum(size > 0 for size in sizes) > len(sizes) // 3  # most must not be about nothing


def test_random_queries_equal_duckdb_over_the_raw_events(raw):
    check_queries(raw, range(20))


@pytest.mark.slow
def test_three_hundred_random_queries_equal_duckdb_over_the_raw_events(raw):
    check_queries(raw, range(1000, 1300))


# --- by name --------------------------------------------------------------------------------------------------------

PLACES: tuple[dict[str, Any], ...] = (
    {"v": 1}, {"v": True}, {"v": "1"}, {"v": None}, {}, {"v": [1]}, {"v": {"a": 1}}, {"v": Decimal("0.1")},
    {"v": 10**30}, {"v": Decimal("1.000000000000000000001")}, {"v": "é"}, {"v": "z"},
)  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    world = Recorder(tmp_path_factory.mktemp("places"))
    for number, payload in enumerate(PLACES):
        world.emit(STREAMS[0], payload=canonical.encode(payload | {"n": number}), event_time=100 + number)
    return world.done()


def numbers_of(path, *conditions, **changed):
    asked = descriptor(
        scope=[STREAMS[0]],
        filter={"where": [dict(zip(("field", "op", "value"), condition, strict=True)) for condition in conditions]},
        **({"projection": ["payload.n", "payload.v"]} | changed),
    )
    return [row["payload.n"] for row in api.run(path, asked, keys=KEYRING).rows()]


@pytest.mark.parametrize(
    ("condition", "fitting"),
    [
        (("payload.v", "=", 1), [0]),
        (("payload.v", "=", True), [1]),
        (("payload.v", "=", "1"), [2]),
        (("payload.v", "in", [1, True, "1"]), [0, 1, 2]),
        (("payload.v", "=", Decimal("0.1")), [7]),
        (("payload.v", "=", Decimal("1.000000000000000000001")), [9]),
        (("payload.v", ">", 1), [8, 9]),
        (("payload.v", ">=", 10**30), [8]),
        (("payload.v", ">", "1"), [10, 11]),
        (("payload.v", ">", "z"), [10]),
        (("payload.v", "<=", False), []),
        (("payload.v", "^=", ""), [2, 10, 11]),
        (("payload.v.a", "=", 1), [6]),
        (("payload.v.0", "=", 1), [5]),
        (("payload.nothing", "=", 1), []),
        (("payload", "=", "x"), []),
        (("event_time", "<", timestamp(102)), [0, 1]),
        (("hub_commit_seq", "in", [2, 4]), [1, 3]),
        (("stream", "=", STREAMS[0]), list(range(len(PLACES)))),
        (("stream", "=", STREAMS[1]), []),
        (("origin", "=", 1), []),
        (("origin", "=", "' OR 1=1 --"), []),
    ],
    ids=repr,
)
def test_values_of_one_kind_compare_exactly_and_others_fit_nothing(places, condition, fitting):
    assert numbers_of(places, condition) == fitting


def test_rows_of_mixed_kinds_have_an_order(places):
    ascending = numbers_of(places, projection=["payload.n", "payload.v"], order=[{"field": "payload.v"}], limit=50)
    assert ascending == [3, 4, 1, 7, 0, 9, 8, 2, 11, 10, 5, 6]
    descending = numbers_of(places, order=[{"field": "payload.v", "direction": "desc"}], limit=50)
    assert descending == [6, 5, 10, 11, 2, 8, 9, 0, 7, 1, 3, 4]  # ties stay as the log has them
    assert numbers_of(places, order=[{"field": "payload.v"}], limit=3) == ascending[:3]
    assert numbers_of(places, limit=3) == [0, 1, 2]


@pytest.mark.parametrize("mode", ["spot", "full"])
def test_evidence_is_about_the_rows_of_the_result_and_verifies(places, mode):
    asked = descriptor(
        scope=[STREAMS[0]],
        filter={"where": [{"field": "payload.n", "op": ">", "value": 2}]},
        projection=["payload.n", "receipt_id"],
        order=[{"field": "payload.n", "direction": "desc"}],
        limit=4,
        evidence={"mode": mode, "sample_rate": 1} if mode == "spot" else {"mode": mode},
    )
    result = api.run(places, asked, keys=KEYRING)
    assert [row["payload.n"] for row in result.rows()] == [11, 10, 9, 8]
    assert result.coverage["rows_matched"] == 9
    assert api.verify(places, result, keys=KEYRING).ok
    assert api.replay(places, result, keys=KEYRING).ok
    other = api.run(places, asked | {"limit": 5}, keys=KEYRING)
    assert other.digest.rows_hash != result.digest.rows_hash
