"""Tables on Spark: the bytes of one process, few files for a selective query, streams that are exactly once."""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.lake.query_builders import KEYS, STREAMS, Recorder
from tests.lake.table_builders import DAY, erase, grow, made

from veen.core.labels import stream_id_of
from veen.lake import folds, tables
from veen.lake.log.columns import ENTRIES
from veen.lake.log.events import SILVER, EventJob, event_batches, make_prefix, read_events, rows_of
from veen.lake.log.keys import KeyFile, write_keys
from veen.lake.log.options import Options
from veen.lake.spark.runner import divide_timed, events_frame, over
from veen.lake.spark.source import EntryStream
from veen.lake.tables.errors import LoadFailed
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.schema import columns_of, load_declarations
from veen.overlays import kv

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "hub"
    made(path, 60, step=(0, 1, 9000)).done()
    return str(path)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture(scope="module")
def loaded(spark, log, keys, tmp_path_factory):
    to = str(tmp_path_factory.mktemp("tables") / "tables")
    tables.load(log, to, keys=keys, spark=spark, parts=5)
    return to


def here(path, to, keys):
    tables.load(str(path), str(to), keys=keys, engine="python")
    return both(str(to))


def both(to):
    return tables.digest(to, "bronze"), tables.digest(to, "silver")


def told(world, number):
    """One write of a key-value store."""
    draft = kv.put("abc"[number % 3], number)
    world.now += 1
    world.emit(STREAMS[number % 2], client=number % 3, schema=draft.schema, body=draft.body)


@pytest.mark.slow
def test_the_program_of_the_documentation_runs(spark, log, keys, tmp_path, monkeypatch):
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    (tmp_path / "hub").symlink_to(log)
    (tmp_path / "reader.keys").symlink_to(keys.path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    exec(block[1], names)  # noqa: S102 - our own page
    names["query"].processAllAvailable()
    names["query"].stop()
    assert tables.show("tables").version >= 2
    assert list(tables.show("tables").states) == ["kv"]


def test_a_log_with_nothing_in_it_is_an_empty_frame(spark, log, keys):
    assert events_frame(spark, log, keys, labels=[]).collect() == []


def test_a_frame_of_events_has_the_rows_of_one_process(spark, log, keys):
    prefix = make_prefix(log)
    frame = events_frame(spark, prefix, keys, parts=7)
    rows = [row.asDict() for row in frame.orderBy("ts", "stream_id", "epoch", "stream_seq", "leaf_hash").collect()]
    for row in rows:
        row |= {name: bytes(value) for name, value in row.items() if isinstance(value, bytearray)}
    names = {stream_keys.stream_id: str(stream_keys.name) for stream_keys in KEYS.values()}
    assert rows == list(rows_of(read_events(prefix, keys), names))


def test_spark_writes_and_reads_the_bytes_of_one_process(spark, log, keys, loaded, tmp_path):
    assert both(loaded) == here(log, tmp_path / "here", keys)
    frame = tables.read(spark, loaded, "silver")
    assert frame.columns == [*(column.name for column in SILVER), "sid", "day"]
    assert frame.count() == 60
    counts = frame.where("ok").groupBy("stream").count().collect()
    assert sum(row["count"] for row in counts) == sum(1 for row in tables.rows(loaded) if row["ok"])
    assert tables.load(log, loaded, keys=keys, spark=spark).commits == 0


def test_recorder_events_are_asked_by_subject_in_spark_sql(spark, log, keys, loaded, tmp_path):
    tables.read(spark, loaded, "typed_sdr_event_v1").createOrReplaceTempView("recorded")
    question = """
        SELECT stream_seq, event_time, get_json_object(payload, '$.n') AS n, receipt_id FROM recorded
        WHERE subject_id = 'user:1' AND hub_time >= TIMESTAMP '2020-01-01 00:00:00' ORDER BY ts, label, stream_seq
    """
    asked = [(row["stream_seq"], row["n"], row["receipt_id"]) for row in spark.sql(question).collect()]
    here(log, tmp_path / "here", keys)
    expected = [
        row for row in tables.rows(str(tmp_path / "here"), "typed_sdr_event_v1") if row["subject_id"] == "user:1"
    ]
    assert len(asked) > 3
    assert sorted(asked) == sorted(
        (row["stream_seq"], str(json.loads(row["payload"])["n"]), row["receipt_id"]) for row in expected
    )
    assert tables.digest(loaded, "typed_sdr_event_v1") == tables.digest(str(tmp_path / "here"), "typed_sdr_event_v1")


@pytest.mark.slow
def test_spark_reads_the_typed_table_of_every_schema(spark, log, keys, loaded):
    """Also where a column has a name that SQL reserves."""
    for name in load_declarations():
        frame = tables.read(spark, loaded, name)
        assert frame.columns == [*(column.name for column in columns_of(name)), "sid", "day"]
    queue = tables.read(spark, loaded, "typed_veen_queue_v1")
    assert queue.where("`group` = 'workers'").count() == 0


@pytest.mark.slow
def test_states_are_columns_in_spark_sql_and_have_the_bytes_of_one_process(spark, keys, tmp_path):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    for number in range(40):
        told(world, number)
    world.done()
    digests, to = [], ""
    for used, parts in ((None, None), (spark, 1), (spark, 7)):
        to = str(tmp_path / f"tables-{parts}")
        engine = "python" if used is None else "spark"
        tables.load(str(path), to, keys=keys, engine=cast("Any", engine), spark=used, parts=parts)
        tables.refresh(to, "kv", spark=used, parts=parts)
        digests.append(TableLog(to).state().of("state_kv")[0].sha256)
    assert len(set(digests)) == 1
    tables.read(spark, to, "state_kv").createOrReplaceTempView("kv_now")
    rows = spark.sql("SELECT key, value, ts, state_hash FROM kv_now ORDER BY key").collect()
    expected = tables.to_arrow(to, "state_kv").select(["key", "value", "ts", "state_hash"]).to_pylist()
    assert [row.asDict() for row in rows] == expected
    assert expected


@pytest.mark.slow
def test_spark_gives_files_the_indexes_of_paths_that_one_process_gives(spark, log, keys, tmp_path):
    indexes = []
    runs: tuple[tuple[Any, int], ...] = (("python", 1), ("spark", 1), ("spark", 2))
    for engine, steps in runs:
        to = str(tmp_path / f"{engine}-{steps}")
        for step in range(steps):  # the last one names the path: in two steps, for files that are there already
            paths = ("payload.n",) if step == steps - 1 else ()
            used = spark if engine == "spark" else None
            tables.load(log, to, keys=keys, engine=engine, spark=used, parts=1, indexes=paths)
        files = TableLog(to).state().of("typed_sdr_event_v1")
        indexes.append(sorted(str((file.labels, file.file_index)) for file in files))
    assert indexes[0] == indexes[1] == indexes[2]
    assert all("payload.n" in index for index in indexes[0])


def test_a_selective_query_reads_few_files(spark, loaded):
    """A task for each file that the bounds leave: no other one is opened."""
    state = TableLog(loaded).state()
    everything = len(state.of("silver"))
    last = max(head.ts for head in state.heads.values())
    chosen = tables.read(spark, loaded, streams=[stream_id_of(STREAMS[0])], first_ts=last - last % DAY)
    assert chosen.rdd.getNumPartitions() <= 3 < 10 < everything
    assert chosen.where("ok").select("body").collect()


def test_no_key_is_in_a_plan_a_table_or_a_manifest(spark, log, keys, loaded):
    tasks = divide_timed(None, make_prefix(log), 3)
    job = EventJob(log, keys)
    plans = [
        over(spark, tasks, lambda slices: event_batches(job, slices), SILVER),
        tables.read(spark, loaded),
    ]
    shown = "".join(plan._jdf.queryExecution().toString() for plan in plans).encode()
    stored = b"".join(store_bytes(loaded))
    for stream_keys in KEYS.values():
        for secret in (stream_keys.secret(), stream_keys.secret().hex().encode(), stream_keys.to_text().encode()):
            assert secret not in shown + stored


def test_a_task_that_fails_says_so_in_one_line(spark, log, tmp_path):
    nowhere = KeyFile(str(tmp_path / "nowhere"))
    with pytest.raises(LoadFailed, match=r"key file .*nowhere") as caught:
        tables.load(log, str(tmp_path / "tables"), keys=nowhere, spark=spark)
    assert "\n" not in str(caught.value)
    assert TableLog(str(tmp_path / "tables")).state().version == 0


def store_bytes(to):
    store = TableLog(to).store
    return [store.get(file.path, 1 << 30) for file in store.walk("")]


@pytest.mark.slow
def test_compaction_and_erasure_on_spark(spark, keys, tmp_path):
    world = made(tmp_path / "hub", 30)
    world.store.retire()
    to = str(tmp_path / "tables")
    for _ in range(2):
        tables.load(str(world.path), to, keys=keys, spark=spark, parts=4)
        grow(world, 10, random.Random(1))
        world.store.retire()
    before = both(to)
    assert tables.compact(to, spark=spark).files_after
    assert both(to) == before
    tables.vacuum(to, keep_sec=0)
    plain = spark.read.parquet(f"{to}/silver")  # as somebody without our code does
    assert sorted(plain.columns) == sorted(tables.read(spark, to).columns)
    assert plain.count() == tables.read(spark, to).count() == 40
    erase(world)
    tables.load(str(world.path), to, keys=keys, spark=spark)
    assert tables.erase(str(world.path), to, spark=spark).rows
    assert both(to) == here(world.done(), tmp_path / "here", keys)


def test_what_is_there_now_is_read_in_batches_and_nothing_that_comes_later(tmp_path):
    """Trigger.AvailableNow, also of a stream that was killed in the middle of a batch."""
    world = Recorder(tmp_path)
    for number in range(12):
        told(world, number)
    world.store.retire()
    reader = EntryStream(Options.of({"path": str(tmp_path)}), ENTRIES)
    reader.prepareForTriggerAvailableNow()
    there = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    told(world, 12)
    world.done()
    at, steps = reader.initialOffset(), 0
    while (following := reader.latestOffset(at, ReadMaxRows(5))) != at:
        at, steps = following, steps + 1
    assert at == there
    assert (steps, sum(at["heads"].values())) == (3, 12)


@pytest.mark.slow
@pytest.mark.req("OVL-11")
def test_a_stream_fills_silver_and_gold_exactly_once_across_restarts(spark, keys, tmp_path):
    """Also if Spark's own checkpoint is lost: the manifest knows what is there."""
    world = Recorder(tmp_path)
    path, to = str(tmp_path), str(tmp_path / "tables")

    def run():
        world.store.retire()
        query = tables.stream(
            spark, path, to, keys=keys, folds=["kv"], available_now=True, options={"maxEntriesPerTrigger": "9"}
        )
        query.awaitTermination()
        assert query.exception() is None

    for number in range(15):
        told(world, number)
    run()
    for number in range(15, 24):
        told(world, number)
    run()
    shutil.rmtree(tmp_path / "tables" / "stream")
    told(world, 24)
    run()
    world.done()
    assert both(to) == here(path, tmp_path / "here", keys)
    expected = folds.run(path, "kv", keys=keys, engine="python")
    assert tables.show(to).states == {"kv": expected.state_hash.hex()}
    bindings = list(tables.rows(to, "gold"))
    assert {(row["label"], row["upto_seq"], row["mmr_root"]) for row in bindings} == {
        (cut.label, cut.upto_seq, cut.mmr_root) for cut in expected.cuts
    }
    assert {row["state_hash"] for row in bindings} == {expected.state_hash}
    assert tables.show(to).version > 4


def test_gold_from_silver_needs_no_keys_and_is_the_same_state(spark, keys, tmp_path):
    world = Recorder(tmp_path)
    for number in range(12):
        told(world, number)
    world.emit(STREAMS[0], schema=kv.put("a", 1).schema, body=b"not cbor")
    path, to = world.done(), str(tmp_path / "tables")
    here(path, to, keys)
    expected = folds.run(path, "kv", keys=keys, engine="python")
    made_here = tables.refresh(to, "kv")
    assert made_here.state_hash == expected.state_hash.hex()
    assert not tables.refresh(to, "kv").changed
    (issue,) = tables.rows(to, "gold_issues")
    assert issue["stream_seq"] == 7
    other = str(tmp_path / "other")
    here(path, other, keys)
    assert tables.refresh(other, "kv", spark=spark).state_hash == made_here.state_hash
    assert list(tables.rows(to, "gold_state")) == list(tables.rows(other, "gold_state"))
