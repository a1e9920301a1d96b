"""Verdicts over tables: files, roots, lake tables (D-181)."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from tests.lake.query_builders import KEYS, Recorder
from tests.lake.table_builders import made

from veen.core.verdict import Because, Outcome
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.tables.errors import TableDamaged
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.publishing import publish


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "hub"
    made(path, 40).done()
    return str(path)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, log, keys):
    to = tmp_path_factory.mktemp("tables") / "tables"
    tables.load(log, str(to), keys=keys, engine="python")
    publish(str(to), ["delta"], tables=["bronze"])
    return to


@pytest.fixture
def to(loaded, tmp_path):
    return str(shutil.copytree(loaded, tmp_path / "tables"))


def because(verdict):
    return {reason.because for reason in verdict.reasons}


def test_whole_tables_are_good_up_to_the_head_of_the_log(to, log):
    check = tables.verify(to, path=log)
    assert check.verdict.is_good, check.verdict.reasons
    assert sum(row.read for row in check.verdict.compared) == 40
    assert check.lakes == ("delta:bronze",)
    assert tables.verify(to).verdict.is_good


def test_tables_of_an_empty_log_are_not_good_over_nothing(tmp_path, keys):
    """D-181."""
    log = Recorder(tmp_path / "hub").done()
    tables.load(log, str(tmp_path / "tables"), keys=keys, engine="python")
    for path in (None, log):
        assert tables.verify(str(tmp_path / "tables"), path=path).verdict.value is Outcome.INCOMPLETE


def test_tables_that_are_behind_a_log_or_ahead_of_it_are_incomplete(tmp_path, keys):
    """A log that has grown beside its running hub, and half of a log."""
    world = made(tmp_path / "hub", 20)
    to = str(tmp_path / "tables")
    tables.load(str(world.path), to, keys=keys, engine="python")
    assert tables.verify(to, path=str(world.path)).verdict.is_good
    world.emit()
    verdict = tables.verify(to, path=str(world.path)).verdict  # the new entry is in the journal alone
    assert (verdict.value, sum(row.behind for row in verdict.compared)) == (Outcome.INCOMPLETE, 1)
    world.store.close()
    (tmp_path / "half").mkdir()
    verdict = tables.verify(to, path=made(tmp_path / "half" / "hub", 5).done()).verdict
    assert verdict.value is Outcome.INCOMPLETE


def test_a_log_with_another_root_makes_the_verdict_bad(to, tmp_path):
    other = made(tmp_path / "other", 80, 5).done()
    assert tables.verify(to, path=other).verdict.value is Outcome.BAD


@pytest.mark.parametrize("table", ["bronze", "silver"])
def test_a_file_that_was_changed_is_found(to, table):
    file = TableLog(to).state().of(table)[0]
    path = Path(to) / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    verdict = tables.verify(to).verdict
    assert verdict.value is Outcome.INCOMPLETE
    assert Because.DERIVED in because(verdict)


def foreign_commit(to):
    """Add a file to the Delta table of bronze, as anybody who can write to the place can."""
    lake = deltalake.DeltaTable(f"{to}/bronze")
    ours = TableLog(to).state().of("bronze")[0]
    name = f"{ours.group}/{'f' * 32}.parquet"
    data = (Path(to) / ours.path).read_bytes()
    (Path(to) / "bronze" / name).write_bytes(data)
    values = dict(part.split("=") for part in ours.group.split("/"))
    action = AddAction(name, len(data), values, 0, True, json.dumps({"numRecords": ours.rows}))
    lake.create_write_transaction([action], "append", lake.schema(), ["sid", "day"])
    return f"bronze/{name}"


def rows_of(to):
    return deltalake.DeltaTable(f"{to}/bronze").to_pyarrow_table().num_rows


def test_a_foreign_commit_is_found_and_does_not_stay(to):
    """`table publish` said 0 commits."""
    before = rows_of(to)
    name = foreign_commit(to)
    assert rows_of(to) > before
    verdict = tables.verify(to).verdict
    assert verdict.value is Outcome.INCOMPLETE
    assert any(reason.because is Because.DERIVED and name in reason.text for reason in verdict.reasons)
    (published,) = publish(to, ["delta"], tables=["bronze"])
    assert (published.commits, published.removed, published.foreign) == (1, 1, 1)
    assert rows_of(to) == before
    assert tables.verify(to).verdict.is_good
    (published,) = publish(to, ["delta"], tables=["bronze"])
    assert (published.commits, published.foreign) == (0, 0)


def test_a_file_that_somebody_removed_from_a_lake_table_comes_back(to):
    before = rows_of(to)
    deltalake.DeltaTable(f"{to}/bronze").delete()
    assert rows_of(to) == 0
    assert tables.verify(to).verdict.value is Outcome.INCOMPLETE
    assert publish(to, ["delta"], tables=["bronze"])[0].foreign
    assert rows_of(to) == before


# --- one reader of bytes (P2-14) -------------------------------------------------------------------------------------


def forge_silver(to):
    """Change a body in a file of silver, and leave the manifest as it is."""
    file = max(TableLog(to).state().of("silver"), key=lambda file: file.rows)
    path = Path(to) / file.path
    content = pq.ParquetFile(path).read()
    bodies = [b"forged"] * content.num_rows
    at = content.schema.get_field_index("body")
    pq.write_table(content.set_column(at, "body", pa.array(bodies, content.schema.field(at).type)), path)
    assert sha256(path.read_bytes()).hexdigest() != file.sha256


@pytest.mark.xdist_group("spark")
def test_every_engine_refuses_a_file_that_is_not_what_was_written(to, spark):
    """Spark made a state of a forged body."""
    whole = tables.read(spark, to, "silver").count()
    assert whole == len(list(tables.rows(to)))
    forge_silver(to)
    with pytest.raises(TableDamaged):
        list(tables.rows(to))
    with pytest.raises(TableDamaged):
        tables.register_duckdb(duckdb.connect(), to)
    with pytest.raises(Exception, match="differs from what was written"):
        tables.read(spark, to, "silver").collect()
    with pytest.raises(Exception, match="differs from what was written"):
        tables.refresh(to, "kv", spark=spark)
