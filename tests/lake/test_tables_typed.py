"""Typed tables: recorder events as columns, and tables that other overlays declare. No Spark here."""

import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, ClassVar, cast

import duckdb
import pytest
from tests.examples import spread
from tests.lake.query_builders import CLIENTS_PUBLIC, KEYS, STREAMS, Recorder
from tests.lake.table_builders import DAY, erase, grow, made

from veen.core.labels import stream_id_of
from veen.core.wire import Uint
from veen.io.stores import open_store
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.query.fields import payload_of
from veen.lake.tables.errors import LoadFailed, NoTable, TableDamaged
from veen.lake.tables.manifest import TableLog, manifest_of, read_manifest
from veen.lake.tables.schema import load_declarations, state_entries
from veen.overlays import crdt, crud, kv
from veen.overlays.framework import registry
from veen.overlays.framework.registry import Overlay
from veen.overlays.framework.schema import Body, Schema
from veen.overlays.framework.state import Free
from veen.overlays.framework.stream import fold_events
from veen.overlays.framework.typed_table import COLUMN_KINDS, TypedColumn, TypedTable
from veen.overlays.recorder import checkpoint as recorder_checkpoint
from veen.overlays.recorder import config as recorder_config
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.checkpoint import EMPTY_ROOT, StreamHead

EVENTS = "typed_sdr_event_v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Body):
    """test.reading.v1: a body with a field of every kind."""

    KIND: ClassVar[str] = "test.reading.v1"

    sensor: str
    count: Uint
    raw: bytes
    at: Uint
    note: str | None = None


READING = Schema("test.reading.v1", Reading)
READINGS = TypedTable(
    schema=READING,
    columns=(
        TypedColumn("sensor", "text", "which"),
        TypedColumn("count", "integer", "how many"),
        TypedColumn("raw", "bytes", "as measured"),
        TypedColumn("raw_hex", "hex", "the same as text"),
        TypedColumn("at", "time", "when"),
        TypedColumn("is_noted", "boolean", "whether there is a note"),
        TypedColumn("whole", "json", "all of it"),
    ),
    values=lambda body: {
        "sensor": body.sensor,
        "count": body.count,
        "raw": body.raw,
        "raw_hex": body.raw,
        "at": body.at,
        "is_noted": body.note is not None,
        "whole": {"sensor": body.sensor, "note": body.note},
    },
    sort=("sensor",),
)


@pytest.fixture
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture
def to(tmp_path):
    return str(tmp_path / "tables")


@pytest.fixture
def with_readings(monkeypatch):
    """A package with an overlay of its own is installed; calling what is yielded removes it again."""
    module = ModuleType("veen_test_readings")
    module.OVERLAY = Overlay(  # type: ignore[attr-defined]
        name="readings", about="of sensors", schemas=(READING,), folds={}, tables=(READINGS,)
    )
    monkeypatch.setitem(sys.modules, "veen_test_readings", module)
    points = [EntryPoint("readings", "veen_test_readings:OVERLAY", "veen.overlays")]

    def install(present=True):
        monkeypatch.setattr(registry, "entry_points", lambda group: points if present else [])
        load_declarations.cache_clear()

    install()
    yield install
    monkeypatch.undo()
    load_declarations.cache_clear()


def load(path, to, keys, **more):
    if isinstance(path, Recorder):  # one that goes on afterwards
        path.store.retire()
        path = path.path
    return tables.load(str(path), to, keys=keys, engine="python", **more)


def reading(world, **fields):
    values = {"sensor": "s1", "count": 3, "raw": b"\x00\xff", "at": 1_700_000_000, **fields}
    return world.emit(schema=READING.id, body=Reading(**values).to_bytes())


# --- recorder events -------------------------------------------------------------------------------------------------


def test_recorder_events_are_columns_with_their_place_in_the_log(tmp_path, keys, to):
    world = Recorder(tmp_path)
    receipt = world.emit(payload=b'{"amount":12,"ip":"10.0.0.7"}', subject_id="alice", event_time=1_700_000_001)
    load(world.done(), to, keys)
    (row,) = tables.rows(to, EVENTS)
    assert row == {
        "subject_id": "alice",
        "principal_id": CLIENTS_PUBLIC[0].hex(),
        "event_type": "login",
        "event_time": datetime.fromtimestamp(1_700_000_001, UTC),
        "origin": "gw-1",
        "payload": '{"amount":12,"ip":"10.0.0.7"}',
        "hub_time": datetime.fromtimestamp(receipt.hub_ts, UTC),
        "receipt_id": f"rcpt-{receipt.leaf_hash.hex()}",
        "stream": STREAMS[0],
        "stream_id": stream_id_of(STREAMS[0]),
        "label": receipt.label,
        "epoch": 0,
        "stream_seq": 1,
        "leaf_hash": receipt.leaf_hash,
        "ts": receipt.hub_ts,
        "issue": None,
        "unfit": None,
    }


def test_no_event_of_the_schema_is_left_out_and_one_that_counts_for_nothing_says_why(tmp_path, keys, to):
    world = grow(Recorder(tmp_path), 80, random.Random(3))
    world.emit(client=0, principal_id=CLIENTS_PUBLIC[1])  # in another's name
    load(world.done(), to, keys)
    silver = [row for row in tables.rows(to, "silver") if row["schema"] == sdr.EVENT.id]
    rows = list(tables.rows(to, EVENTS))
    assert [row["leaf_hash"] for row in rows] == [row["leaf_hash"] for row in silver]
    issues = Counter(row["issue"] for row in rows)
    assert set(issues) == {None, "OVL.CBOR", "SDR.PRINCIPAL"}
    assert issues["SDR.PRINCIPAL"] == 1
    assert all((row["subject_id"] is None) == (row["issue"] is not None) for row in rows)


def test_payloads_are_the_json_of_queries(tmp_path, keys, to):
    world = grow(Recorder(tmp_path), 10, random.Random(1))
    values = [None, True, -5, "é\x1b[31m", [1, {"k": b"\x00"}], b'{"price":0.1}', b"\xff\xfe", {"a": {"b": [None]}}]
    for value in values:
        world.emit(payload=value, subject_id="payload")
    load(world.done(), to, keys)
    texts = [row["payload"] for row in tables.rows(to, EVENTS) if row["subject_id"] == "payload"]
    assert texts[5] == '{"price":0.1}'
    assert [json.loads(text) for text in texts[:5]] == [payload_of(value) for value in values[:5]]


def test_times_behind_the_calendar_are_null_and_stop_nothing(tmp_path, keys, to):
    world = Recorder(tmp_path)
    world.emit(event_time=sdr.MAX_TIME)
    world.now = 1 << 50
    world.emit(event_time=0)
    load(world.done(), to, keys)
    first, second = tables.rows(to, EVENTS)
    assert (first["event_time"].year, second["event_time"].year, second["hub_time"]) == (9999, 1970, None)


@pytest.mark.parametrize("parts", spread([1, 5], 1))
def test_typed_tables_are_the_same_bytes_however_they_are_cut(tmp_path, keys, to, parts):
    path = made(tmp_path / "hub", 60, step=(0, 1, 3000, 20_000)).done()
    load(path, to, keys)
    other = str(tmp_path / "other")
    load(path, other, keys, parts=parts, max_entries=17, target_bytes=2000)
    assert tables.digest(to, EVENTS) == tables.digest(other, EVENTS)
    assert {shown.table for shown in tables.show(to, digests=True).tables} >= {"bronze", "silver", EVENTS}


def test_compaction_keeps_the_rows_and_vacuum_the_files(tmp_path, keys, to):
    (tmp_path / "hub").mkdir()
    world = Recorder(tmp_path / "hub")
    for _ in range(4):
        grow(world, 12, random.Random(2))
        load(world, to, keys)
    before = tables.digest(to, EVENTS)
    assert tables.compact(to).files_before > 0
    tables.vacuum(to, keep_sec=0)
    assert tables.digest(to, EVENTS) == before
    files = [file.path for file in TableLog(to).state().of(EVENTS)]
    assert sorted(files) == sorted(path for path, *_ in open_store(to).walk(EVENTS))


def test_erased_events_leave_the_typed_table_and_its_files(tmp_path, keys, to):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    for number in range(6):
        world.emit(subject_id="erase-me" if number < 3 else "later", payload={"secret": "word-of-the-day"})
        world.now += DAY if number == 2 else 0
    load(world, to, keys)
    erase(world, after=10 * DAY)
    world.emit(subject_id="new")
    load(world.done(), to, keys)
    tables.erase(str(path), to)
    left = list(tables.rows(to, EVENTS))
    erased = sum(row["reason"] == "erased" for row in tables.rows(to, "silver"))
    assert erased > 0
    assert len(left) == 7 - erased
    fresh = str(tmp_path / "fresh")
    load(path, fresh, keys)
    assert tables.digest(fresh, EVENTS) == tables.digest(to, EVENTS)
    paths = {file.path for file in TableLog(to).state().of(EVENTS)}
    assert {path for path, *_ in open_store(to).walk(EVENTS)} == paths  # what was replaced is gone at once


def test_duckdb_finds_the_events_of_a_subject_without_our_code(tmp_path, keys, to):
    world = Recorder(tmp_path)
    for number in range(12):
        world.emit(subject_id=f"user-{number % 3}", payload={"n": number, "amount": number * 10})
    load(world.done(), to, keys)
    tables.compact(to)
    tables.vacuum(to, keep_sec=0)
    query = """
        SELECT CAST(json_extract(payload, '$.amount') AS INTEGER), event_time, receipt_id
        FROM read_parquet(?, hive_partitioning = true)
        WHERE subject_id = 'user-1' AND hub_time >= TIMESTAMPTZ '2020-01-01 00:00:00+00' ORDER BY stream_seq
    """
    rows = (
        duckdb.connect(config={"autoinstall_known_extensions": False})
        .execute(query, [f"{to}/{EVENTS}/*/*/*.parquet"])
        .fetchall()
    )
    assert [row[0] for row in rows] == [10, 40, 70, 100]
    assert all(row[1].year == 2023 and row[2].startswith("rcpt-") for row in rows)


def test_polars_finds_the_events_of_a_subject_without_our_code(tmp_path, keys, to):
    polars = pytest.importorskip("polars")
    world = Recorder(tmp_path)
    for number in range(12):
        world.emit(subject_id=f"user-{number % 3}", payload={"amount": number * 10})
    load(world.done(), to, keys)
    events = polars.scan_parquet(f"{to}/{EVENTS}/*/*/*.parquet", hive_partitioning=True)
    rows = (
        events.filter(polars.col("subject_id") == "user-1")
        .sort("stream_seq")
        .select("event_time", "sid", polars.col("payload").str.json_path_match("$.amount").alias("amount"))
        .collect()
    )
    assert rows["amount"].to_list() == ["10", "40", "70", "100"]
    assert set(rows["sid"]) == {stream_id_of(STREAMS[0]).hex()}
    assert rows["event_time"].dtype == polars.Datetime("us", "UTC")


# --- tables of other overlays -----------------------------------------------------------------------------------------


def test_an_installed_overlay_brings_its_table(tmp_path, keys, to, with_readings):
    world = Recorder(tmp_path)
    reading(world, note="ok")
    world.emit()
    reading(world, sensor="s2", count=5)
    world.emit(schema=READING.id, body=b"nonsense")
    load(world.done(), to, keys)
    rows = list(tables.rows(to, READINGS.name))
    assert READINGS.name == "typed_test_reading_v1"
    assert [(row["sensor"], row["count"], row["raw"], row["raw_hex"], row["is_noted"]) for row in rows[:1]] == [
        ("s1", 3, b"\x00\xff", "00ff", True)
    ]
    assert json.loads(rows[0]["whole"]) == {"note": "ok", "sensor": "s1"}
    assert [row["issue"] for row in rows] == [None, None, "OVL.CBOR"]
    assert len(list(tables.rows(to, EVENTS))) == 1


def test_a_value_that_a_column_cannot_have_is_an_issue_and_stops_nothing(tmp_path, keys, to, with_readings):
    world = Recorder(tmp_path)
    reading(world, at=1 << 62, count=1 << 63)  # no calendar has it, and no column
    reading(world)
    load(world.done(), to, keys)
    first, second = tables.rows(to, READINGS.name)
    assert (first["issue"], second["issue"], second["unfit"]) == ("TABLE.VALUE", None, None)
    assert (first["sensor"], first["at"], first["count"]) == ("s1", None, None)
    unfit = json.loads(first["unfit"])
    assert {name: misfit["value"] for name, misfit in unfit.items()} == {"at": 1 << 62, "count": 1 << 63}
    assert "64 bits" in unfit["count"]["why"]


def test_events_of_every_built_in_overlay_have_a_table(tmp_path, keys, to):
    """Columns are the declared fields; bodies that are read by code of their own say what theirs are."""
    schemas = {schema.name for overlay in registry.BUILTIN.values() for schema in overlay.schemas}
    declared = {table.schema.name for table in load_declarations().values()}
    assert schemas - {"veen.card.v1"} == declared  # a card is a message about keys, which only clients read
    world = Recorder(tmp_path)
    drafts = [
        kv.put("colour", {"name": "red"}, ts=7),
        kv.delete("colour"),
        crdt.counter_add(b"\x01" * 32, (1 << 64) - 1),
        crud.CRUD.draft(crud.Crud(op="create", entity="user", id="1", fields={"a": [1, b"\x02"]})),
    ]
    for draft in drafts:
        world.emit(schema=draft.schema, body=draft.body)
    load(world.done(), to, keys)
    puts = list(tables.rows(to, "typed_veen_kv_v1"))
    assert [(row["op"], row["key"], row["value"], row["body_ts"]) for row in puts] == [
        ("put", "colour", '{"name":"red"}', 7),
        ("del", "colour", None, None),
    ]
    (counter,) = tables.rows(to, "typed_crdt_gcnt_v1")
    assert (counter["shard"], counter["delta"], counter["issue"]) == ("01" * 32, None, "TABLE.VALUE")
    assert json.loads(counter["unfit"])["delta"]["value"] == (1 << 64) - 1
    (record,) = tables.rows(to, "typed_veen_crud_v1")
    assert (record["entity"], json.loads(record["fields"]), record["if_rev"]) == ("user", {"a": [1, "02"]}, None)


def test_configuration_and_checkpoints_of_a_recorder_are_columns(tmp_path, keys, to):
    world = Recorder(tmp_path)
    move = recorder_config.change(
        "split", ts=9, stream_id=b"\x0a" * 32, stream="a", to=(b"\x0b" * 32, b"\x0c" * 32), to_names=("b", "c")
    )
    empty = StreamHead(
        stream_id=bytes(32), label=b"\x01" * 32, epoch=2, last_seq=0, mmr_root=EMPTY_ROOT, checkpoint=b""
    )
    ids = {name: bytes(32) for name in ("hub_id", "hub_pk", "profile_id", "sdr_profile_id")}
    for draft in (move, recorder_checkpoint.checkpoint([empty], ts=5, **ids)):
        world.emit(schema=draft.schema, body=draft.body)
    world.emit(schema=recorder_config.CONFIG.id, body=b"\xa0")
    load(world.done(), to, keys)
    change, refused = tables.rows(to, "typed_sdr_config_v1")
    assert (change["change"], change["body_stream_id"], change["body_stream"]) == ("split", "0a" * 32, "a")
    assert (json.loads(change["to"]), json.loads(change["to_names"])) == (["0b" * 32, "0c" * 32], ["b", "c"])
    assert change["body_ts"] == datetime.fromtimestamp(9, UTC)
    assert (change["reason"], change["issue"], change["unfit"]) == (None, None, None)
    assert (refused["change"], refused["issue"] is None) == (None, False)
    (covering,) = tables.rows(to, "typed_sdr_checkpoint_v1")
    assert (covering["hub_id"], covering["prev"], covering["events"]) == ("00" * 32, None, 0)
    (head,) = json.loads(covering["streams"])
    assert (head["label"], head["epoch"], head["last_seq"]) == ("01" * 32, 2, 0)
    assert covering["issue"] is None


def test_a_declaration_whose_own_code_fails_keeps_the_reason(tmp_path, keys, to, monkeypatch, with_readings):
    monkeypatch.setattr(
        "veen.lake.tables.schema.event_of", lambda row: (_ for _ in ()).throw(ValueError("no event \ud800"))
    )
    world = Recorder(tmp_path)
    reading(world)
    load(world.done(), to, keys)
    (row,) = tables.rows(to, READINGS.name)
    assert (row["issue"], json.loads(row["unfit"])[""]) == ("TABLE.VALUE", "ValueError: no event ?")


def test_a_table_that_comes_later_is_made_from_silver_without_keys(tmp_path, keys, to, with_readings):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    with_readings(False)
    reading(world)
    load(world, to, keys)
    with pytest.raises(NoTable):
        list(tables.rows(to, READINGS.name))
    with_readings()
    with pytest.raises(NoTable, match="not complete"):
        list(tables.rows(to, READINGS.name))
    nobody = write_keys(tmp_path, [])
    assert load(path, to, nobody).entries == 0
    assert [row["sensor"] for row in tables.rows(to, READINGS.name)] == ["s1"]
    version = tables.show(to).version
    assert load(path, to, nobody).version == version  # nothing new, nothing written
    with_readings(False)
    reading(world, sensor="s2")
    load(world, to, keys)  # without the overlay: its table is behind from here on
    with_readings()
    with pytest.raises(NoTable, match="not complete"):
        list(tables.rows(to, READINGS.name))
    reading(world, sensor="s3")
    load(world.done(), to, keys)
    assert [row["sensor"] for row in tables.rows(to, READINGS.name)] == ["s1", "s2", "s3"]
    fresh = str(tmp_path / "fresh")
    load(path, fresh, keys)
    assert tables.digest(fresh, READINGS.name) == tables.digest(to, READINGS.name)


def test_erasure_reaches_a_table_whose_overlay_is_gone(tmp_path, keys, to, with_readings):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    for _ in range(12):
        reading(world)
    load(world, to, keys)
    before = {file.path for file in TableLog(to).state().of(READINGS.name)}
    with_readings(False)
    erase(world, after=10 * DAY)
    world.done()
    tables.erase(str(path), to)
    left = TableLog(to).state().of(READINGS.name)
    opened = sum(row["ok"] for row in tables.rows(to, "silver"))
    assert sum(file.rows for file in left) == opened < 12
    assert {path for path, *_ in open_store(to).walk(READINGS.name)} == {file.path for file in left}
    assert before.isdisjoint(file.path for file in left)


def test_a_task_without_the_overlay_fails_instead_of_leaving_rows_out(tmp_path, keys, to, with_readings, monkeypatch):
    world = Recorder(tmp_path)
    reading(world)
    path = world.done()
    monkeypatch.setattr("veen.lake.tables.loading.definitions_of_typed", lambda: {"typed_of_nobody_v1": "0" * 64})
    with pytest.raises(LoadFailed, match="typed_of_nobody_v1"):
        load(path, to, keys)
    assert TableLog(to).state().version == 0


@pytest.mark.parametrize(
    "change",
    [
        {"columns": (TypedColumn("label", "text", ""),)},
        {"columns": (TypedColumn("Sensor", "text", ""),)},
        {"columns": (TypedColumn("a", "text", ""), TypedColumn("a", "text", ""))},
        {"columns": (TypedColumn("a", cast(Any, "float"), ""),)},
        {"columns": (TypedColumn("a", "text", ""),), "sort": ("b",)},
    ],
)
def test_a_declaration_that_cannot_be_a_table_is_refused(change):
    with pytest.raises(ValueError, match=r"test\.reading\.v1"):
        TypedTable(**{"schema": READING, **change})


def test_an_overlay_declares_tables_of_its_own_schemas_only():
    with pytest.raises(ValueError, match="kv"):
        Overlay(name="kv", about="", schemas=(kv.KV,), folds={}, tables=(READINGS,))
    assert set(COLUMN_KINDS) == {"text", "integer", "boolean", "bytes", "hex", "time", "json"}


# --- manifests ------------------------------------------------------------------------------------------------------


def test_manifests_of_earlier_releases_have_no_typed_tables(tmp_path, keys, to):
    world = Recorder(tmp_path)
    world.emit()
    load(world.done(), to, keys)
    state = TableLog(to).state()
    data = manifest_of(_change(to), version=1, prev=None, base=state)
    assert b'"typed"' in data
    value = json.loads(data.splitlines()[0])
    for part in (value["change"], value["base"]):
        del part["typed"]
        for files in (part.get("add"), part.get("files")):
            if files is not None:
                files.pop(EVENTS, None)
    manifest = read_manifest(_signed(value), "m")
    assert manifest is not None
    assert manifest.base is not None
    assert (manifest.change.typed, manifest.base.typed) == (None, {})


@pytest.mark.parametrize("typed", [{"silver": "x"}, {"typed_../x": "x"}, {"typed_a": 5}, ["typed_a"]])
def test_a_manifest_with_typed_tables_that_are_none_is_refused(tmp_path, keys, to, typed):
    world = Recorder(tmp_path)
    world.emit()
    load(world.done(), to, keys)
    value = json.loads(manifest_of(_change(to), version=1, prev=None).splitlines()[0])
    value["change"]["typed"] = typed
    with pytest.raises(TableDamaged):
        read_manifest(_signed(value), "m")


def _change(to):
    manifest = TableLog(to)._read(1)
    assert manifest is not None
    return manifest.change


def _signed(value):
    from hashlib import sha256

    line = json.dumps(value).encode() + b"\n"
    return line + sha256(line).hexdigest().encode() + b"\n"


def test_the_reader_of_the_table_is_the_reader_of_queries():
    """Both judge SDR0 I3; a second reader could differ."""
    assert sdr.EVENTS_TABLE.read is sdr.read


# --- states ---------------------------------------------------------------------------------------------------------


def test_states_are_rows_that_sql_can_ask_for(tmp_path, keys, to):
    world = Recorder(tmp_path)
    drafts = [
        kv.put("colour", {"name": "red"}),
        kv.put("size", 7),
        kv.put("colour", {"name": "blue", "raw": b"\x01"}),
        crud.CRUD.draft(crud.Crud(op="create", entity="user", id="1", fields={"a": [1]})),
        crud.CRUD.draft(crud.Crud(op="create", entity="order", id="1", fields={"a": 2})),
        crdt.counter_add(b"\x01" * 32, 5),
    ]
    for draft in drafts:
        world.emit(schema=draft.schema, body=draft.body)
    load(world.done(), to, keys)
    for fold in ("kv", "crud", "queue", "crdt"):
        tables.refresh(to, fold)
    rows = {(row["fold"], row["part"], row["key"]): json.loads(row["value"]) for row in tables.rows(to, "gold_entries")}
    assert rows["kv", "", "colour"]["value"] == {"name": "blue", "raw": "01"}
    assert rows["kv", "", "size"]["value"] == 7
    assert {place[1:] for place in rows if place[0] == "crud"} == {("user", "1"), ("order", "1")}
    assert rows["crud", "user", "1"]["fields"] == {"a": [1]}
    assert rows["crdt", "crdt.gcnt", "01" * 32] == 5
    assert not [place for place in rows if place[0] == "queue"]
    query = (
        "SELECT json_extract_string(value, '$.value.name') FROM read_parquet(?) WHERE fold = 'kv' AND key = 'colour'"
    )
    files = [f"{to}/{file.path}" for file in TableLog(to).state().of("gold_entries")]
    answer = duckdb.connect(config={"autoinstall_known_extensions": False}).execute(query, [files]).fetchall()
    assert answer == [("blue",)]
    kv_hashes = {row["state_hash"] for row in tables.rows(to, "gold_entries") if row["fold"] == "kv"}
    assert kv_hashes == {row["state_hash"] for row in tables.rows(to, "gold_state") if row["fold"] == "kv"}


def test_an_erased_value_leaves_the_rows_of_the_state(tmp_path, keys, to):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    for number in range(12):
        draft = kv.put(f"key-{number}", "word-of-the-day")
        world.emit(schema=draft.schema, body=draft.body)
        world.now += DAY if number == 5 else 0
    load(world, to, keys)
    tables.refresh(to, "kv")
    assert len(list(tables.rows(to, "gold_entries"))) == 12
    erase(world, after=10 * DAY)
    world.done()
    tables.erase(str(path), to)
    erased = sum(row["reason"] == "erased" for row in tables.rows(to, "silver"))
    assert 0 < erased == 12 - len(list(tables.rows(to, "gold_entries")))
    files = [file.path for file in TableLog(to).state().of("gold_entries")]
    assert files == [name for name, *_ in open_store(to).walk("gold_entries")]


@dataclass(frozen=True)
class Shape:
    """A state with everything that states are made of."""

    by_pair: dict[Any, Any]
    members: frozenset[bytes]
    note: Free


def test_any_state_has_rows():
    state = Shape({("a", 1): {b"\x00": (1, [None, True])}}, frozenset({b"\x02", b"\x01"}), Free({"x": [b"\x03"]}))
    assert state_entries(state) == [
        ("", "members", '["01","02"]'),
        ("", "note", '{"x":["03"]}'),
        ('by_pair/["a",1]', "00", "[1,[null,true]]"),
    ]
    assert state_entries({}) == []
    for name in registry.BUILTIN.folds:
        fold = registry.BUILTIN.make_fold(name)
        assert fold is not None
        assert isinstance(state_entries(fold.view(fold.seal(fold_events(fold, [])), 0)), list), name
