"""The Spark engine gives the bytes of the reference, for any number of tasks."""

import random

import pyarrow as pa
import pytest
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, descriptor, filled
from tests.lake.table_builders import grow
from tests.lake.test_query_cuts import answer, random_query

from veen.lake import tables
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.keys import KeyFile, write_keys
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import LocalSource, plan_query
from veen.lake.query.errors import EvidenceFailed, ExecutionFailed
from veen.lake.query.matches import MatchTally
from veen.lake.query.on_spark import SparkSource
from veen.lake.query.tasks import MATCHES, match_batches
from veen.lake.spark.runner import over

pytestmark = pytest.mark.xdist_group("spark")

PAIRS = [Column(name, "BIGINT", pa.int64(), "") for name in ("number", "size")]
GROUPED = {"group_by": ["payload.where.rack"], "metrics": ["count", "avg(payload.price)"]}
COUNTED = {"metrics": ["count"]}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("log"), 80).done()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.mark.parametrize("parts", spread([1, 2, 7, 16, pytest.param(64, marks=pytest.mark.slow)], 2))
def test_any_number_of_tasks_gives_the_bytes_of_one_process(spark, log, keys, parts):
    rng = random.Random(parts)
    for number in range(2):
        asked = random_query(rng, number)
        plan = plan_query(log, asked)
        expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
        assert answer(plan, asked, SparkSource(spark, plan, asked, keys, parts=parts)) == expected


@pytest.mark.parametrize(
    "asked",
    spread([
        descriptor(query_id="q-1", evidence={"mode": "full"}),
        descriptor(query_id="q-1", evidence={"mode": "spot", "sample_rate": 0.3}),
        descriptor(query_id="q-1", projection=["origin"], aggregate=GROUPED),
        descriptor(query_id="q-1", filter={"subject_id": "nobody"}, projection=["origin"], aggregate=COUNTED),
    ], 2),
    ids=["full", "spot", "groups", "nothing"],
)  # fmt: skip
def test_both_engines_give_one_digest_through_the_api(spark, log, asked):
    local = api.run(log, asked, keys=KEYRING, result_id="r-1", now=lambda: 7)
    other = api.run(log, asked, keys=KEYRING, result_id="r-1", now=lambda: 7, engine="spark", spark=spark)
    assert (local.digest, local.coverage, list(local.rows())) == (other.digest, other.coverage, list(other.rows()))
    assert api.verify(log, local, keys=KEYRING, engine="spark", spark=spark).ok


@pytest.mark.slow
def test_adaptive_plans_change_nothing(spark, log, keys):
    asked = normalise(descriptor(query_id="q-1")).descriptor
    plan = plan_query(log, asked)
    expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        assert answer(plan, asked, SparkSource(spark, plan, asked, keys, parts=7)) == expected
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def test_no_key_is_in_a_plan(spark, log, keys):
    asked = normalise(descriptor()).descriptor
    source = SparkSource(spark, plan_query(log, asked), asked, keys, parts=2)
    job, tasks = source._prepare()
    frame = over(spark, tasks, lambda slices: match_batches(job, slices), MATCHES)
    shown = frame._jdf.queryExecution().toString() + repr((job, tasks))
    for stream_keys in KEYS.values():
        assert stream_keys.to_text() not in shown
        assert stream_keys.secret().hex() not in shown


def test_a_task_that_cannot_read_its_keys_ends_the_query_by_name(spark, log, tmp_path):
    asked = normalise(descriptor()).descriptor
    source = SparkSource(spark, plan_query(log, asked), asked, KeyFile(str(tmp_path / "gone")), parts=2)
    with pytest.raises(ExecutionFailed, match=r"key file .*gone: No such file"):
        list(source.matches(MatchTally()))


def test_evidence_fails_on_spark_as_it_does_in_one_process(spark, tmp_path, keys):
    path = filled(tmp_path, 20).done()
    (tmp_path / "hub-identity.json").unlink()
    asked = normalise(descriptor(evidence={"mode": "full"})).descriptor
    plan = plan_query(path, asked)
    words = []
    for source in (LocalSource(plan, asked, KEYRING), SparkSource(spark, plan, asked, keys)):
        with pytest.raises(EvidenceFailed) as caught:
            answer(plan, asked, source)
        words.append(str(caught.value))
    assert words[0] == words[1]


@pytest.mark.slow
def test_tables_the_log_and_both_give_one_answer_by_either_engine(spark, tmp_path, keys):
    hub = tmp_path / "hub"
    hub.mkdir()
    world = filled(hub, 60, 3)
    to = str(tmp_path / "tables")
    tables.load(str(hub), to, keys=keys, engine="spark", spark=spark, parts=3)
    rng = random.Random(3)
    grow(world, 12, rng)
    path = world.done()
    sources = set()
    for number in range(5):
        asked = random_query(rng, number).to_bytes()
        answers = [
            api.run(path, asked, keys=KEYRING, result_id="r-1", now=lambda: 7, engine=engine, spark=spark, tables=place)
            for engine in ("python", "spark")
            for place in (None, to)
        ]
        assert len({answer.digest for answer in answers}) == 1
        assert all(list(answer.rows()) == list(answers[0].rows()) for answer in answers)
        sources |= {answer.plan.source for answer in answers}
    assert {"log", "tables and log", "log by tables"} <= sources


@pytest.mark.parametrize("size", spread([1, 40_000], 1), ids=["in the function", "as rows"])
def test_every_task_runs_once_however_many_bytes_their_values_have(spark, size):
    """Many large values travel as rows: a task is given its own and no other."""
    values = [(number, bytes(size)) for number in range(30)]
    schema = arrow_schema(PAIRS)

    def run(value):
        yield pa.RecordBatch.from_pylist([{"number": value[0], "size": len(value[1])}], schema=schema)

    frame = over(spark, values, run, PAIRS)
    assert frame.rdd.getNumPartitions() == len(values)
    assert sorted((row.number, row.size) for row in frame.collect()) == [(number, size) for number in range(30)]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert ("Exchange" in plan) == (size > 1)
