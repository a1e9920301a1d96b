"""Tables in a bucket, behind a real S3 API on loopback: no rename and no link, and the same rows."""

import pickle

import pytest
from tests.pipeline.query_builders import KEYS, Recorder
from tests.pipeline.table_builders import copy_of, erase
from tests.pipeline.test_objectstore import store as store

from veen import tables
from veen.fs.stores import open_store
from veen.log.keys import write_keys
from veen.tables.log import TableLog, manifest_path
from veen.tables.manifest import Change

pytestmark = pytest.mark.xdist_group("spark")


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
    with pytest.raises(tables.TableBusy, match="somebody else"):
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
