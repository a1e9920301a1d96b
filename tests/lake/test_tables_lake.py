"""Tables as Delta and Iceberg: no file is copied, one manifest is one commit, and other readers see the rows."""

import json
import shutil
import sys
from pathlib import Path

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from tests.lake.query_builders import KEYS, filled
from tests.lake.table_builders import erase, made

from veen.client.errors import ExtraMissing
from veen.io.inside import FileRefused
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.tables import publishing
from veen.lake.tables.errors import NoTable, TableDamaged
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.publishing import PublishRefused, iceberg_catalog, publish

TYPED = "typed_sdr_event_v1"
NAMES = ("bronze", "silver", TYPED)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, keys):
    path = tmp_path_factory.mktemp("lake")
    filled(path / "hub", 90, 2).done()
    tables.load(str(path / "hub"), str(path / "tables"), keys=keys, engine="python", max_entries=30)
    return path / "tables"


@pytest.fixture
def to(loaded, tmp_path):
    return str(shutil.copytree(loaded, tmp_path / "tables"))


def rows_of(table: pa.Table, columns):
    return sorted(map(repr, table.select(columns).to_pylist()))


def expected(to, name, version=None):
    table = tables.to_arrow(to, name, version=version)
    return rows_of(table, table.column_names), table.column_names


def delta(to, name, version=None):
    return deltalake.DeltaTable(f"{to}/{name}", version=version)


def iceberg(to, name):
    return iceberg_catalog(to).load_table(f"veen.{name}")


def agree(to, name):
    """Both formats have the rows of the tables, whoever reads them."""
    rows, columns = expected(to, name)
    assert rows_of(delta(to, name).to_pyarrow_table(), columns) == rows
    schema = tables.to_arrow(to, name).schema
    polars_rows = pl.scan_delta(f"{to}/{name}").select(columns).collect().to_arrow()
    assert rows_of(polars_rows.cast(schema), columns) == rows
    assert rows_of(iceberg(to, name).scan().to_arrow().select(columns).cast(schema), columns) == rows
    connection = duckdb.connect()
    for dataset in (delta(to, name).to_pyarrow_dataset(), iceberg(to, name).scan().to_arrow()):
        connection.register("lake", dataset)
        assert connection.execute("SELECT count(*) FROM lake").fetchall() == [(len(rows),)]


def data_files(to):
    return {str(path.relative_to(to)): path.stat().st_ino for path in Path(to).glob("*/sid=*/day=*/*.parquet")}


def test_every_manifest_is_a_commit_and_no_file_is_copied(to):
    before = data_files(to)
    done = publish(to)
    assert {(table.format, table.table) for table in done} == {
        (kind, name) for kind in ("delta", "iceberg") for name in NAMES
    }
    assert data_files(to) == before
    versions = TableLog(to).state().version
    for name in NAMES:
        agree(to, name)
        assert delta(to, name).version() == versions - 1
        history = {commit["version"]: commit["veen.manifest"] for commit in delta(to, name).history()}
        for version in range(1, versions + 1):  # each version of the tables is there to travel to
            assert history[version - 1] == str(version)
            rows, columns = expected(to, name, version)
            assert rows_of(delta(to, name, version - 1).to_pyarrow_table(), columns) == rows
            snapshot = iceberg(to, name).metadata.snapshots[version - 1]
            assert snapshot.summary["veen.manifest"] == str(version)
            assert snapshot.summary["veen.manifest-sha256"] == TableLog(to).state(version).digest
            assert iceberg(to, name).scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == len(rows)


def test_with_nothing_new_nothing_is_written(to):
    publish(to)
    before = {path: path.stat().st_mtime_ns for path in Path(to).rglob("*") if path.is_file()}
    assert all(table.commits == table.added == table.removed == 0 for table in publish(to))
    assert {path: path.stat().st_mtime_ns for path in Path(to).rglob("*") if path.is_file()} == before


def test_a_load_and_a_compaction_follow_as_commits(to, loaded, keys):
    publish(to, ["delta"])
    tables.compact(to)
    done = {table.table: table for table in publish(to)}
    assert all(table.removed > table.added > 0 for table in done.values() if table.format == "delta")
    log = sorted(Path(to, "silver", "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    assert {action["add"]["dataChange"] for action in actions if "add" in action} == {False}
    assert {action["remove"]["dataChange"] for action in actions if "remove" in action} == {False}
    for name in NAMES:
        agree(to, name)


def test_what_is_erased_is_removed_and_metadata_keep_no_plaintext(tmp_path, keys):
    world = made(tmp_path / "hub", 60)
    world.store.retire()
    to = str(tmp_path / "tables")
    tables.load(str(world.path), to, keys=keys, engine="python", max_entries=20)
    publish(to)
    erase(world)
    tables.erase(str(world.path), to)
    world.done()
    done = publish(to)
    assert all(table.removed for table in done)
    for name in NAMES:
        agree(to, name)
    metadata = [*Path(to).rglob("_delta_log/*"), *Path(to, "iceberg").rglob("*.json")]
    assert metadata
    assert not [path for path in metadata if b"user:" in path.read_bytes()]
    table = iceberg(to, TYPED)
    field = table.schema().find_field("ts").field_id
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                assert set(entry.data_file.lower_bounds or {}) <= {field}
                assert set(entry.data_file.upper_bounds or {}) <= {field}


@pytest.mark.slow
def test_versions_whose_files_are_gone_become_one_commit(tmp_path, keys):
    world = made(tmp_path / "hub", 40)
    world.store.retire()
    to = str(tmp_path / "tables")
    tables.load(str(world.path), to, keys=keys, engine="python", max_entries=10)
    erase(world)
    tables.erase(str(world.path), to)
    world.done()
    publish(to)
    for name in NAMES:
        agree(to, name)


@pytest.mark.slow
def test_a_vacuum_leaves_the_delta_log_alone(to):
    publish(to)
    tables.compact(to)
    publish(to)
    tables.vacuum(to, keep_sec=0)
    for name in NAMES:
        agree(to, name)
    assert all(table.commits == 0 for table in publish(to))


def test_filters_on_partitions_and_times_choose_files(to):
    publish(to, ["delta"])
    table = delta(to, "silver")
    sid = table.partitions()[0]["sid"]
    assert len(table.file_uris(file_pruning_predicate=[("sid", "=", sid)])) < len(table.file_uris())
    rows = pl.scan_delta(f"{to}/silver").filter(pl.col("sid") == sid).collect()
    assert 0 < rows.height < tables.to_arrow(to, "silver").num_rows


# --- refused -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_published_is_refused_by_name(to, tmp_path, monkeypatch):
    with pytest.raises(NoTable, match="nothing"):
        publish(to, tables=["nothing"])
    with pytest.raises(NoTable):
        publish(str(tmp_path / "empty"))
    publish(to, tables=["silver"])
    monkeypatch.setattr(publishing, "arrow_of", lambda table: pa.schema([("other", pa.int64())]))
    for kind in publishing.LAKE_FORMATS:
        with pytest.raises(PublishRefused, match="other columns"):
            publish(to, [kind], tables=["silver"])


def test_lake_tables_that_are_ahead_are_refused(to, loaded):
    publish(to, ["delta"], tables=["silver"])
    state = TableLog(to).state()
    (Path(to) / "manifests" / f"{state.version:020d}.json").unlink()
    (Path(to) / "manifests" / "latest").unlink()
    with pytest.raises(PublishRefused, match="shows version"):
        publish(to, ["delta"], tables=["silver"])


def test_a_file_that_is_gone_stops_before_the_commit(to):
    file = TableLog(to).state().of("silver")[0]
    (Path(to) / file.path).unlink()
    with pytest.raises(TableDamaged, match="is missing"):
        publish(to, ["delta"], tables=["silver"])


def test_a_link_in_place_of_the_metadata_is_not_followed(to, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (Path(to) / "silver" / "_delta_log").symlink_to(tmp_path / "elsewhere")
    (Path(to) / "iceberg").symlink_to(tmp_path / "elsewhere")
    for kind in publishing.LAKE_FORMATS:
        with pytest.raises(FileRefused):
            publish(to, [kind], tables=["silver"])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(("kind", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog.sql")])
def test_without_the_extra_it_is_named(to, monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraMissing, match="lake"):
        publish(to, [kind])
