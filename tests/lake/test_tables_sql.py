# ruff: noqa: S608 - statements are put together from the name of the table
"""`run_sql`: one SELECT over typed tables, with a digest, and no way to anything else."""

import datetime as dt
import shutil

import pytest
from tests.lake.query_builders import KEYS, Recorder

from veen.core import canonical
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.query.digest import hash_of
from veen.lake.tables.errors import NoTable, TableDamaged
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.sql import SqlDigest, SqlRefused, _to_json, run_sql

EVENTS = "typed_sdr_event_v1"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Twelve events in two versions of the tables."""
    root = tmp_path_factory.mktemp("sql")
    keys = write_keys(root / "keys", KEYS.values())
    world, to = Recorder(root / "hub"), str(root / "tables")
    for number in range(12):
        if number == 7:
            world.store.retire()
            tables.load(str(root / "hub"), to, keys=keys, engine="python")
        world.emit(subject_id=f"user-{number % 3}", payload=canonical.encode({"n": number, "ms": number * 10}))
    world.done()
    tables.load(str(root / "hub"), to, keys=keys, engine="python")
    return to


def rows(place, sql, **more):
    return [canonical.parse(row) for row in run_sql(place, sql, **more).rows]


def test_a_select_gives_rows_and_a_digest_of_them(place):
    sql = f"SELECT subject_id, count(*) AS n FROM {EVENTS} GROUP BY subject_id ORDER BY subject_id DESC"
    result = run_sql(place, sql, result_id="r-1", now=lambda: 0)
    expected = [{"n": 4, "subject_id": f"user-{number}"} for number in (2, 1, 0)]
    assert [canonical.parse(row) for row in result.rows] == expected
    state = TableLog(place).state()
    assert result.columns == ("subject_id", "n")
    assert result.digest.rows_hash == hash_of(expected)
    assert (result.digest.manifest_version, result.digest.manifest_digest) == (state.version, state.digest)
    assert result.digest.executed_at == "1970-01-01T00:00:00Z"
    assert SqlDigest.from_bytes(result.digest.to_bytes()) == result.digest


def test_an_older_version_gives_its_own_rows(place):
    state = TableLog(place).state()
    count = f"SELECT count(*) AS n FROM {EVENTS}"
    assert rows(place, count) == [{"n": 12}]
    assert rows(place, count, version=1) == [{"n": 7}]
    assert run_sql(place, count, version=1).digest.manifest_digest != state.digest
    with pytest.raises(NoTable):
        run_sql(place, count, version=99)


def test_rows_without_an_order_are_sorted_and_files_do_not_matter(place, tmp_path):
    sql = f"SELECT CAST(payload->>'$.n' AS INTEGER) AS n FROM {EVENTS}"
    before = run_sql(place, sql)
    assert list(before.rows) == sorted(before.rows)
    backwards = rows(place, f"{sql} ORDER BY n DESC LIMIT 3")
    assert [row["n"] for row in backwards] == [11, 10, 9]


def test_values_of_every_kind_have_one_form():
    assert _to_json(b"\x00\xff") == "00ff"
    assert _to_json(dt.datetime(2025, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))) == "2025-01-01T00:00:00Z"
    assert _to_json(dt.date(2025, 1, 1)) == "2025-01-01"
    assert _to_json([(1, {"a": dt.timedelta(1)})]) == [[1, {"a": "1 day, 0:00:00"}]]


def test_times_and_numbers_come_exactly(place):
    (row,) = rows(place, f"SELECT min(hub_time) AS t, 0.1 + 0.2 AS d, 10::HUGEINT ** 2 AS f FROM {EVENTS}")
    assert row["t"].endswith("Z")
    assert canonical.encode(row["d"]) == b"0.3"
    assert rows(place, "SELECT 170141183460469231731687303715884105727::HUGEINT AS h, NULL AS x") == [
        {"h": 2**127 - 1, "x": None}
    ]


SECRET = "/etc/hostname"
REFUSED = (
    "", ";", "nonsense", "SELECT 1; SELECT 2", f"SELECT 1 AS a; DROP TABLE {EVENTS}", f"DELETE FROM {EVENTS}",
    f"INSERT INTO {EVENTS} SELECT * FROM {EVENTS}", f"UPDATE {EVENTS} SET origin = 'x'", "CREATE TABLE x AS SELECT 1",
    f"COPY {EVENTS} TO '/tmp/veen-sql-test.csv'", f"COPY (SELECT 1) TO '{SECRET}'", "ATTACH '/tmp/veen-sql-test.db'",
    "INSTALL httpfs", "LOAD httpfs", "SET threads = 4", "SET enable_external_access = true", "RESET memory_limit",
    "PRAGMA database_list", "CALL pragma_version()", "EXPORT DATABASE '/tmp/veen-sql-test'", "CHECKPOINT",
    "BEGIN TRANSACTION", f"SELECT * FROM read_text('{SECRET}')", f"SELECT * FROM read_blob('{SECRET}')",
    f"SELECT * FROM read_csv('{SECRET}')", f"SELECT * FROM read_json('{SECRET}')", f"SELECT * FROM '{SECRET}'",
    "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')", "SELECT * FROM glob('/etc/*')",
    f"SELECT * FROM sniff_csv('{SECRET}')", f"SELECT * FROM query('SELECT * FROM read_text(''{SECRET}'')')",
    f"WITH x AS (SELECT * FROM read_text('{SECRET}')) SELECT * FROM x", "SELECT getenv('HOME')", "SELECT * FROM state",
    "SELECT * FROM connection", "EXPLAIN SELECT 1", "PREPARE p AS SELECT 1", "SELECT * FROM bronze",
    f"SELECT subject_id, subject_id FROM {EVENTS}", "SELECT 'nan'::DOUBLE AS x", "SELECT 1/0 AS x FROM nowhere",
    "SELECT " + "1 + " * 20_000 + "1 AS x",
)  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_select_over_the_tables_is_refused(place, sql):
    with pytest.raises(SqlRefused) as caught:
        run_sql(place, sql)
    assert "unfinished" not in str(caught.value)


def test_a_result_has_a_bound(place):
    with pytest.raises(SqlRefused, match="more than 10 rows"):
        run_sql(place, f"SELECT receipt_id FROM {EVENTS}", max_rows=10)


def test_a_file_that_is_not_what_the_manifest_says_stops_the_statement(place, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    file = copy / TableLog(str(copy)).state().of(EVENTS)[0].path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(TableDamaged):
        run_sql(str(copy), f"SELECT * FROM {EVENTS}")
    assert rows(str(copy), "SELECT 1 AS a") == [{"a": 1}]  # names no table
    with pytest.raises(NoTable):
        run_sql(str(tmp_path / "nothing"), "SELECT 1 AS a")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"result_id":1}'])
def test_what_is_no_digest_is_named(data):
    with pytest.raises(TableDamaged):
        SqlDigest.from_bytes(data)
