"""docs/tables.md says what the code does: columns, and examples that run."""

import re
import subprocess
import sys
from pathlib import Path

import duckdb

from veen.lake.log.events import REASONS
from veen.lake.tables import COLUMNS, ddl_of
from veen.lake.tables.schema import arrow_of

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")


def test_the_columns_are_the_documented_ones():
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    columns = {}
    for part in block.split("-- ")[1:]:
        name, _, text = part.partition("\n")
        columns[name.strip()] = " ".join(text.split())
    assert columns == {table: ddl_of(table) for table in (*COLUMNS, "typed_sdr_event_v1", "state_kv")}


def test_the_join_of_two_states_is_one_that_duckdb_takes():
    (statement,) = re.findall(r"```\n-- Spark SQL, DuckDB, and[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    connection = duckdb.connect()
    for table in ("state_wallet_ledger", "state_id_contexts"):
        connection.register(table, arrow_of(table).empty_table())
    assert connection.execute(statement).fetchall() == []


def test_the_reasons_are_the_documented_ones():
    table = PAGE.partition("| reason | |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == sorted(REASONS)


def test_the_page_of_typed_tables_follows_from_their_declarations():
    tool = Path(__file__).parents[2] / "tools" / "typed_tables.py"
    check = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr
