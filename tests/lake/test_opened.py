"""Opened rows: from the data source, from UDFs, and without Spark. Keys are read where rows are made."""

import json

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, filled

from veen.core import canonical, cbor
from veen.core.event import Event
from veen.lake import tables
from veen.lake.log.columns import ENTRIES, LEAN
from veen.lake.log.errors import OptionError, SourceDamaged
from veen.lake.log.events import Unread, read_events
from veen.lake.log.frames import arrow_batches, register_duckdb, to_arrow, to_polars
from veen.lake.log.keys import write_keys
from veen.lake.log.opened import OPENED, OPENED_LEAN, json_of, schema_name
from veen.lake.query.fields import payload_of
from veen.lake.spark.functions import register_functions

ENTRIES_COUNT = 120


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    path = tmp_path_factory.mktemp("opened")
    filled(path / "hub", ENTRIES_COUNT, 5).done()
    return path / "hub"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


def place(row):
    return row["label"], row["stream_seq"]


@pytest.fixture(scope="module")
def expected(hub):
    """By place: what the reader of events says, which is other code."""
    return {(entry.label, entry.stream_seq): entry for entry in read_events(str(hub), KEYRING)}


# --- without Spark -------------------------------------------------------------------------------------------------


def test_every_entry_is_a_row_with_what_was_sealed_in_it(hub, keys, expected):
    rows = to_arrow(str(hub), keys=keys, columns="all").to_pylist()
    assert {place(row) for row in rows} == set(expected)
    assert len(rows) == ENTRIES_COUNT
    for row in rows:
        entry = expected[place(row)]
        assert (row["stream_id"], row["leaf_hash"], row["hub_ts"]) == (entry.stream_id, entry.leaf_hash, entry.hub_ts)
        if isinstance(entry, Unread):
            assert (row["ok"], row["reason"], row["body"], row["payload"]) == (False, entry.reason, None, None)
        else:
            assert isinstance(entry, Event)
            assert (row["ok"], row["reason"], row["body"]) == (True, None, entry.body)
            assert row["schema"] == schema_name(entry.hdr.schema)
            assert row["stream"] in STREAMS
    assert {row["reason"] for row in rows} == {None, "sealed"}


def test_a_reader_without_a_key_gets_the_place_and_the_reason(hub, tmp_path):
    some = write_keys(tmp_path, [KEYS[STREAMS[0]]])
    rows = to_arrow(str(hub), keys=some).to_pylist()
    assert len(rows) == ENTRIES_COUNT
    assert {row["stream"] for row in rows if row["ok"]} == {STREAMS[0]}
    assert all(row["reason"] == "sealed" and row["payload"] is None for row in rows if not row["ok"])


def test_damage_is_a_row_or_the_end_as_asked(tmp_path, keys):
    filled(tmp_path, 20, noise=False).done()
    for chunk in (tmp_path / "log").iterdir():
        data = bytearray(chunk.read_bytes())
        data[len(data) // 2] ^= 1
        chunk.write_bytes(data)
    rows = to_arrow(str(tmp_path), keys=keys).to_pylist()
    assert len(rows) == 20
    assert any(not row["ok"] for row in rows)
    with pytest.raises(SourceDamaged):
        to_arrow(str(tmp_path), keys=keys, onDamage="fail")


def test_columns_are_lean_all_or_named(hub, keys):
    def names(**options):
        return to_arrow(str(hub), **options).column_names

    assert names() == [column.name for column in LEAN]
    assert names(columns="all") == [column.name for column in ENTRIES]
    assert names(columns="ok, msg") == ["ok", "msg"]
    assert names(keys=keys) == [column.name for column in OPENED_LEAN]
    assert names(keys=keys, columns="payload") == ["payload"]
    for wrong in ("", "payload,", "ok,OK", "nothing", "payload"):
        with pytest.raises(OptionError):
            names(columns=wrong)
    with pytest.raises(OptionError):
        names(keys=keys, columns="ciphertext")


def test_bounds_mean_what_they_mean_to_the_source(hub, keys):
    rows = to_arrow(str(hub), keys=keys, fromSeq=3, toSeq=5).to_pylist()
    assert {row["stream_seq"] for row in rows} == {3, 4, 5}
    times = sorted(to_arrow(str(hub), columns="hub_ts").column(0).to_pylist())
    middle = times[len(times) // 2]
    late = to_arrow(str(hub), keys=keys, fromTime=middle)
    assert late.num_rows == sum(time >= middle for time in times)
    assert sum(batch.num_rows for batch in arrow_batches(str(hub), toTime=middle)) == sum(t <= middle for t in times)


def test_a_key_file_that_is_gone_or_none_is_named_without_its_content(hub, tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        to_arrow(str(hub), keys=str(tmp_path / "gone"))
    (tmp_path / "keys").write_text("veen-stream1nonsense")
    with pytest.raises(OptionError, match="word 1 is not a stream key") as caught:
        to_arrow(str(hub), keys=str(tmp_path / "keys"))
    assert "nonsense" not in str(caught.value)
    with pytest.raises(OptionError, match="unknown option nonsense"):
        to_arrow(str(hub), nonsense=1)


def test_polars_and_duckdb_see_the_same_rows(hub, keys):
    frame = to_polars(str(hub), keys=keys)
    assert frame.height == ENTRIES_COUNT
    connection = duckdb.connect()
    register_duckdb(connection, "entries", str(hub), keys=keys)
    ((count,),) = connection.execute(
        "SELECT count(*) FROM entries WHERE ok AND payload ->> '$.subject_id' = 'user:1'"
    ).fetchall()
    subjects = [json.loads(text).get("subject_id") for text in frame["payload"] if text is not None]
    assert count == subjects.count("user:1") > 0


def test_tables_are_arrow_polars_and_duckdb_views(hub, keys, tmp_path):
    tables.load(str(hub), str(tmp_path), keys=keys, engine="python")
    silver = tables.to_arrow(str(tmp_path), "silver")
    assert silver.num_rows == tables.to_polars(str(tmp_path)).height == ENTRIES_COUNT
    connection = duckdb.connect()
    names = tables.register_duckdb(connection, str(tmp_path))
    assert {"bronze", "silver", "typed_sdr_event_v1"} <= set(names)
    query = "SELECT subject_id, count(*) FROM typed_sdr_event_v1 WHERE issue IS NULL GROUP BY 1"
    counts = dict(connection.execute(query).fetchall())
    opened = to_arrow(str(hub), keys=keys, columns="schema,payload,ok").to_pylist()
    bodies = [json.loads(row["payload"]) for row in opened if row["schema"] == "sdr.event.v1" and row["payload"]]
    assert sum(counts.values()) == len(bodies)
    assert counts["user:1"] == sum(body["subject_id"] == "user:1" for body in bodies)


# --- bodies --------------------------------------------------------------------------------------------------------


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_body_in_json_is_what_queries_make_of_it(value):
    text = json_of(cbor.encode_sorted(value))
    assert text is not None
    assert canonical.encode(canonical.parse(text)) == canonical.encode(payload_of(value))


def test_numbers_keep_their_digits_and_what_is_no_json_is_hex():
    price = b'{"price":99999999999999999999.5}'
    assert json_of(cbor.encode({"p": price})) == '{"p":{"price":99999999999999999999.5}}'
    for strange in (b"{1e999999999}", b"[1e999999999]", b"[NaN]", b"[" * 5000, b"{not json"):
        assert json_of(cbor.encode([strange])) in (f'["{strange.hex()}"]', None)
    assert json_of(b"not cbor") is None
    assert json_of(b"") is None


# --- on Spark ------------------------------------------------------------------------------------------------------


def read(spark, hub, **options):
    return spark.read.format("veen").options(**options).load(str(hub))


@pytest.mark.xdist_group("spark")
def test_spark_has_the_same_rows_and_no_plan_has_a_key(spark, hub, keys):
    frame = read(spark, hub, keys=keys.path, columns="all", partitionBytes="3000")
    assert frame.columns == [column.name for column in OPENED]
    rows = sorted((place(row.asDict()), *row) for row in frame.collect())
    alone = to_arrow(str(hub), keys=keys, columns="all").to_pylist()
    assert rows == sorted((place(row), *row.values()) for row in alone)
    frame.createOrReplaceTempView("opened")
    ((count,),) = spark.sql(
        "SELECT count(*) FROM opened WHERE get_json_object(payload, '$.event_type') = 'login'"
    ).collect()
    assert count > 0
    plan = frame._jdf.queryExecution().toString()
    for stream_keys in KEYS.values():
        assert stream_keys.to_text() not in plan
        assert stream_keys.secret().hex() not in plan


@pytest.mark.xdist_group("spark")
def test_the_option_columns_is_the_schema(spark, hub, keys):
    assert read(spark, hub).columns == [column.name for column in LEAN]
    assert read(spark, hub, columns="all").columns == [column.name for column in ENTRIES]
    assert read(spark, hub, keys=keys.path).columns == [column.name for column in OPENED_LEAN]
    assert read(spark, hub, columns="stream_seq,ok").where("ok").count() == ENTRIES_COUNT
    own = spark.read.format("veen").schema("payload STRING").option("keys", keys.path).load(str(hub))
    assert own.where("payload IS NOT NULL").count() > 0


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": "nothing"}, "unknown column nothing"),
        ({"keys": "reader.keys"}, "give an absolute path"),
        ({"keys": "/there/is/no/file"}, "No such file"),
    ],
)
def test_wrong_options_are_named(spark, hub, options, words):
    with pytest.raises(Exception, match=words):
        read(spark, hub, **options).collect()


@pytest.mark.xdist_group("spark")
def test_a_table_in_the_catalog_is_refused_with_the_reason_and_a_view_works(spark, hub, keys):
    spark.sql("DROP TABLE IF EXISTS entries_of_a_log")
    spark.sql(f"CREATE TABLE entries_of_a_log USING veen OPTIONS (path '{hub}')")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT count(*) FROM entries_of_a_log").collect()
    finally:
        spark.sql("DROP TABLE entries_of_a_log")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING veen OPTIONS (path '{hub}', keys '{keys.path}')")
    assert spark.sql("SELECT count(*) FROM seen").collect()[0][0] == ENTRIES_COUNT


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_functions_verify_open_and_read_bodies(spark, hub, keys):
    names = register_functions(spark, keys=keys.path, identity=str(hub / "hub-identity.json"))
    assert set(names) == {"veen_body", "veen_verify", "veen_open"}
    read(spark, hub).createOrReplaceTempView("entries")
    assert spark.sql("SELECT count_if(veen_verify(msg, receipt)) FROM entries").collect()[0][0] == ENTRIES_COUNT
    swapped = spark.sql(
        "SELECT count_if(veen_verify(a.msg, b.receipt)) FROM entries a JOIN entries b "
        "ON a.label = b.label AND a.stream_seq = b.stream_seq + 1"
    )
    assert swapped.collect()[0][0] == 0
    assert spark.sql("SELECT veen_verify(X'00', X'01'), veen_verify(NULL, X'01')").collect()[0][:] == (False, None)
    rows = spark.sql("SELECT label, stream_seq, veen_open(msg) AS opened FROM entries").collect()
    alone = {place(row): row for row in to_arrow(str(hub), keys=keys, columns="all").to_pylist()}
    for row in rows:
        expected_row = alone[bytes(row.label), row.stream_seq]
        for name in ("schema", "payload", "body", "ok", "reason"):
            assert row.opened[name] == expected_row[name]
    body = cbor.encode({"a": 1}).hex()
    assert spark.sql(f"SELECT veen_body('x', X'{body}'), veen_body('x', X'FF'), veen_open(X'00').reason").collect()[0][
        :
    ] == ('{"a":1}', None, "damaged")


def test_functions_take_absolute_paths_only(hub):
    with pytest.raises(OptionError, match="absolute"):
        register_functions(None, keys="reader.keys")  # refused before Spark is asked
