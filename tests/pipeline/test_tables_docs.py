"""docs/tables.md says what the code does: columns, and examples that run."""

import re
import subprocess
import sys
from pathlib import Path

from veen.log.events import REASONS
from veen.tables import COLUMNS, ddl_of

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text("utf-8")


def test_the_columns_are_the_documented_ones():
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    columns = {}
    for part in block.split("-- ")[1:]:
        name, _, text = part.partition("\n")
        columns[name.strip()] = " ".join(text.split())
    assert columns == {table: ddl_of(table) for table in (*COLUMNS, "typed_sdr_event_v1")}


def test_the_reasons_are_the_documented_ones():
    table = PAGE.partition("| reason | |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == sorted(REASONS)


def test_the_page_of_typed_tables_follows_from_their_declarations():
    tool = Path(__file__).parents[2] / "tools" / "typed_tables.py"
    check = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr
