"""The data source, in Spark: discovered, pinned, pushed down, streamed."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.examples import spread
from tests.lake.query_builders import Recorder
from tests.storage.builders import LABELS, World, fill
from tests.storage.driver import STREAMS

from veen.core.objects.checkpoint import Checkpoint
from veen.io.local import OsFs
from veen.lake.log.columns import LEAN
from veen.lake.spark.progress import entries_behind

pytestmark = pytest.mark.xdist_group("spark")  # one JVM is enough


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    world = World(OsFs(path))
    fill(world, 40)
    world.store.close()
    return world, path


def places(rows):
    return sorted((bytes(row.label), row.stream_seq) for row in rows)


def test_spark_finds_the_source_by_itself_and_reads_every_entry(spark, log):
    world, path = log
    frame = spark.read.format("veen").load(str(path))
    assert frame.columns == [column.name for column in LEAN]
    rows = frame.select("label", "stream_seq", "msg", "receipt", "ok").collect()
    assert places(rows) == sorted((f.label, f.stream_seq) for f in world.frames)
    assert {bytes(row.msg) for row in rows} == {f.msg for f in world.frames}
    assert all(row.ok for row in rows)


@pytest.mark.parametrize("partition_bytes", spread([1, 1000, 10**9], 1))
def test_the_number_of_tasks_changes_nothing(spark, log, partition_bytes):
    _, path = log
    frame = spark.read.format("veen").option("partitionBytes", partition_bytes).load(str(path))
    count = frame.rdd.getNumPartitions()
    assert (count == 1) == (partition_bytes == 10**9)
    rows = frame.select("label", "stream_seq", "leaf_hash").collect()
    assert len({(bytes(r.label), r.stream_seq, bytes(r.leaf_hash)) for r in rows}) == len(rows) == 40


@pytest.mark.slow
def test_filters_choose_chunks_on_request(spark, log):
    _, path = log
    everything = spark.read.format("veen").option("partitionBytes", 1).load(str(path)).rdd.getNumPartitions()

    def chosen(condition):
        reader = spark.read.format("veen").option("partitionBytes", 1).option("pushFilters", "true")
        return reader.load(str(path)).where(condition)

    label_rows = chosen(f"label = X'{LABELS[0].hex()}' and stream_seq between 4 and 6")
    assert label_rows.rdd.getNumPartitions() == 1 < everything
    assert [row.stream_seq for row in label_rows.orderBy("stream_seq").collect()] == [4, 5, 6]
    frame = spark.read.format("veen").load(str(path))
    latest = frame.selectExpr("max(hub_ts)").collect()[0][0]
    late = chosen(f"hub_ts >= {latest}")
    assert late.rdd.getNumPartitions() < everything
    assert late.count() == frame.selectExpr(f"count_if(hub_ts >= {latest})").collect()[0][0] > 0


@pytest.mark.slow
def test_the_filters_of_one_query_do_not_reach_another_of_the_same_dataframe(spark, log):
    """Spark 4.3 keeps what one scan was narrowed to for every other scan of the DataFrame."""
    _, path = log
    frame = spark.read.format("veen").option("partitionBytes", 1).load(str(path))
    few, others = frame.where("stream_seq between 4 and 6"), frame.where("stream_seq < 4")
    assert few.count() == 6
    assert frame.count() == 40
    assert sorted(row.stream_seq for row in few.union(others).select("stream_seq").collect()) == [
        seq for seq in range(1, 7) for _ in range(2)
    ]


@pytest.mark.slow
def test_a_dataframe_is_one_prefix_also_of_a_directory_that_grows(spark, tmp_path):
    world = World(OsFs(tmp_path))
    fill(world, 10)
    world.store.retire()
    frame = spark.read.format("veen").load(str(tmp_path))
    narrow = spark.read.format("veen").schema("stream_seq BIGINT").load(str(tmp_path))
    assert narrow.count() == 10
    fill(world, 10)
    world.store.retire()
    assert frame.where("ok").count() == frame.where("stream_seq > 0").count() == 10
    assert narrow.where("stream_seq > 0").count() == narrow.count() == 10
    assert spark.read.format("veen").load(str(tmp_path)).count() == 20
    world.store.close()


def test_an_option_of_time_leaves_out_the_other_rows_of_a_chunk(spark, log):
    _, path = log
    everything = spark.read.format("veen").load(str(path)).select("hub_ts").collect()
    times = sorted({row.hub_ts for row in everything})
    first, last = times[len(times) // 3], times[len(times) // 2]
    frame = spark.read.format("veen").option("fromTime", first).option("toTime", last).load(str(path))
    assert frame.count() == sum(first <= row.hub_ts <= last for row in everything)


def test_entries_that_no_file_has_are_rows_that_say_so(spark, log, tmp_path):
    _, path = log
    copy = shutil.copytree(path, tmp_path / "copy")
    gone = sorted((copy / "log").glob(f"chunk-{LABELS[0].hex()}-*.log"))[1]
    first, last = (int(part) for part in gone.stem.split("-")[2:])
    gone.unlink()
    rows = spark.read.format("veen").load(str(copy)).collect()
    assert len(rows) == 40
    assert [row.stream_seq for row in rows if not row.ok] == list(range(first, last + 1))
    assert {row.reason for row in rows if not row.ok} == {"no file has this entry"}


def test_options_choose_a_stream_and_a_range(spark, log):
    _, path = log
    reader = (
        spark.read.format("veen").option("stream", f"hex:{STREAMS[1].hex()}").option("FROMSEQ", 2).option("toSeq", 3)
    )
    assert places(reader.load(str(path)).collect()) == [(LABELS[1], 2), (LABELS[1], 3)]


@pytest.mark.slow
def test_receipts_and_checkpoints_are_formats_of_their_own(spark, log):
    world, path = log
    receipts = spark.read.format("veen.receipts").load(str(path)).collect()
    assert {bytes(row.receipt) for row in receipts} == {f.receipt for f in world.frames}
    checkpoints = spark.read.format("veen.checkpoints").load(str(path)).collect()
    assert len(checkpoints) == len(list((path / "log").glob("checkpoint-*-*.cbor"))) - len(LABELS[:2])
    for row in checkpoints:
        assert row.ok
        Checkpoint.from_bytes(bytes(row.checkpoint)).verify(world.keys.identity.keys[0].hub_pk)


def test_only_the_asked_columns_are_made(spark, log):
    _, path = log
    frame = spark.read.format("veen").schema("stream_seq BIGINT, client_id BINARY").load(str(path))
    assert frame.columns == ["stream_seq", "client_id"]
    assert frame.count() == 40


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verify": "sometimes"}, "verify is 'sometimes'"),
        ({"nonsense": "1"}, "unknown option nonsense"),
        ({"label": "zz"}, "64 hex digits"),
        ({"fromTime": "yesterday"}, "not a time"),
    ],
)
def test_a_wrong_option_is_named(spark, log, options, words):
    _, path = log
    with pytest.raises(Exception, match=words):
        spark.read.format("veen").options(**options).load(str(path)).count()


def test_a_column_that_is_not_there_is_named(spark, log):
    _, path = log
    with pytest.raises(Exception, match="unknown column nonsense"):
        spark.read.format("veen").schema("nonsense INT").load(str(path)).count()


@pytest.mark.slow
def test_a_stream_reads_every_entry_once_across_restarts(spark, tmp_path):
    """Offsets are positions: a restarted query goes on where the last one ended."""
    path, out, state = tmp_path / "log", tmp_path / "out", tmp_path / "state"
    path.mkdir()
    world = World(OsFs(path))
    for _ in range(3):
        fill(world, 12)
        world.store.retire()
        stream = spark.readStream.format("veen").option("maxEntriesPerTrigger", 7).load(str(path))
        query = (
            stream.select("label", "stream_seq")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(state))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()
        lags = [entries_behind(SimpleNamespace(lastProgress=progress)) for progress in query.recentProgress]
        assert lags[:2] == [5, 0]  # of 12 entries, 7 at a time
        assert entries_behind(query) == 0
        rows = spark.read.parquet(str(out)).collect()
        assert places(rows) == sorted((f.label, f.stream_seq) for f in world.frames)
    world.store.close()


@pytest.mark.parametrize("kind", spread(["veen", "veen.receipts", "veen.checkpoints"], 1))
def test_a_hub_without_entries_and_a_choice_of_none_have_no_rows(spark, log, tmp_path, kind):
    """PySpark makes a partition of nothing, which was a TypeError."""
    empty = Recorder(tmp_path / "hub").done()
    assert spark.read.format(kind).load(empty).count() == 0
    if kind != "veen.checkpoints":
        assert spark.read.format(kind).option("label", "00" * 32).load(str(log[1])).count() == 0


def test_a_directory_that_is_no_hub_is_named(spark, tmp_path):
    """walk A11."""
    with pytest.raises(Exception, match="is not the data directory of a hub"):
        spark.read.format("veen").load(str(tmp_path)).count()


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_push_filters_gives_the_same_rows_in_a_session_with_and_without_the_setting(spark, log, enabled):
    """A plain session, whose setting is off, reads everything and filters the rows."""
    _, path = log
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, enabled)
    try:

        def rows(**options):
            frame = spark.read.format("veen").options(partitionBytes=1, **options).load(str(path))
            return frame.where("stream_seq between 4 and 6"), frame

        (chosen, whole), (plain, _) = rows(pushFilters="true"), rows()
        assert chosen.rdd.getNumPartitions() < plain.rdd.getNumPartitions() or enabled == "false"
        assert sorted(map(tuple, chosen.select("label", "stream_seq").collect())) == sorted(
            map(tuple, plain.select("label", "stream_seq").collect())
        )
        assert whole.count() == 40 or enabled == "true"  # Spark keeps the tasks of the query before
    finally:
        spark.conf.set(setting, before)


def test_the_setting_that_filters_need_is_named_in_the_table_of_options():
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `pushFilters`"))
    assert "spark.sql.python.filterPushdown.enabled=true" in row
