"""Tables in a bucket, behind a real S3 API on loopback: no rename and no link, and the same rows."""

import pickle

import deltalake
import polars
import pytest
from tests.lake.query_builders import KEYS, Recorder
from tests.lake.table_builders import copy_of, erase
from tests.lake.test_objectstore import store as store

from veen.io.stores import ArrowStore, open_store
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.tables import publishing
from veen.lake.tables.manifest import Change, TableLog, manifest_path

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]  # a process of their own: make test


def both(to):
    return tables.digest(to, "bronze"), tables.digest(to, "silver")


def test_a_bucket_holds_the_tables_of_a_directory(store, tmp_path):
    world = Recorder(tmp_path / "hub")
    for number in range(9):
        world.now += 1
        world.emit(client=number % 2)
    world.store.retire()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    store.put(copy_of(world.path, tmp_path / "copy"), "bucket/hub")
    here, there = str(tmp_path / "tables"), "s3://bucket/tables"
    for source, to in ((str(world.path), here), ("s3://bucket/hub", there)):
        tables.load(source, to, keys=keys, engine="python", max_entries=4)
        tables.compact(to)
        tables.vacuum(to, keep_sec=0)
    assert both(there) == both(here)
    erase(world)
    world.done()
    for to in (here, there):
        assert tables.erase(str(world.path), to).rows
    assert both(there) == both(here)


def test_a_manifest_that_was_cut_off_is_none_and_a_second_writer_is_noticed(store, tmp_path):
    store.put(tmp_path, "second/empty")
    log = TableLog("s3://second/tables")
    state = log.commit(log.state(), Change(kind="load", at=0))
    log.store.put(manifest_path(2), b'{"format":1')
    assert log.state() == state
    after = log.commit(state, Change(kind="load", at=1))
    with pytest.raises(tables.TableBusy, match="another writer"):
        log.commit(state, Change(kind="load", at=2))
    assert log.state() == after


def test_a_place_travels_by_its_address(store, tmp_path):
    """No credentials in a task: where it runs, it finds its own."""
    store.put(tmp_path, "third/empty")
    place = open_store("s3://third/tables")
    travelling = pickle.dumps(place)
    assert b"s3://third/tables" in travelling
    assert len(travelling) < 200
    assert pickle.loads(travelling).uri == place.uri  # noqa: S301 - our own


def test_tables_in_a_bucket_are_published_as_delta_where_they_lie(store, tmp_path):
    world = Recorder(tmp_path / "hub")
    keys = write_keys(tmp_path / "keys", KEYS.values())
    store.put(tmp_path / "keys", "lake/empty")  # makes the bucket

    def load(count):
        for number in range(count):
            world.now += 1
            world.emit(client=number % 2)
        world.store.retire()
        tables.load(str(world.path), to, keys=keys, engine="python")

    to = "s3://lake/tables"
    load(6)
    first = {done.table: done for done in tables.publish(to, ["delta"])}
    assert first["silver"].location == "s3://lake/tables/silver"
    assert first["silver"].added == len(TableLog(to).state().of("silver"))
    assert all(done.commits == 0 for done in tables.publish(to, ["delta"]))  # nothing new
    load(5)
    tables.compact(to)
    endpoint = store.environment["AWS_ENDPOINT_URL"].removeprefix("http://")
    by_query = tables.publish(f"{to}?endpoint_override={endpoint}&scheme=http&region=us-east-1", ["delta"])
    assert [done.commits for done in by_query if done.table == "silver"] == [2]
    options = {**store.environment, "AWS_ALLOW_HTTP": "true"}
    lake = deltalake.DeltaTable("s3://lake/tables/silver", storage_options=options)
    paths = {f"silver/{path}" for path in lake.get_add_actions(flatten=True).column("path").to_pylist()}
    assert paths == {file.path for file in TableLog(to).state().of("silver")}
    rows = polars.read_delta("s3://lake/tables/silver", storage_options=options)
    assert sorted(rows["leaf_hash"]) == sorted(row["leaf_hash"] for row in tables.rows(to, "silver"))
    assert rows.height == 11
    tables.vacuum(to, keep_sec=0)
    assert polars.read_delta("s3://lake/tables/silver", storage_options=options).height == 11


def test_what_cannot_be_published_behind_a_url_is_refused_by_name(store, tmp_path):
    store.put(tmp_path, "refused/empty")
    with pytest.raises(tables.PublishRefused, match="SQLite file"):
        tables.publish("s3://refused/tables")
    with pytest.raises(tables.PublishRefused, match="holds credentials"):
        tables.publish("s3://key:secret@refused/tables", ["delta"])
    with pytest.raises(tables.PublishRefused, match="mock: tables are published"):
        publishing.place_of(ArrowStore("mock://x/tables", object(), "x/tables"))


def test_tables_behind_a_file_url_are_published_as_those_of_their_directory(tmp_path):
    world = Recorder(tmp_path / "hub")
    world.emit()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    to = f"file://{tmp_path}/tables"
    tables.load(world.done(), to, keys=keys, engine="python")
    published = tables.publish(to, tables=["silver"])
    assert [done.format for done in published] == ["delta", "iceberg"]
    assert tables.iceberg_catalog(to).load_table("veen.silver").scan().to_arrow().num_rows == 1
    assert polars.read_delta(str(tmp_path / "tables" / "silver")).height == 1
