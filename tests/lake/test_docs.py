"""docs/pipeline.md lists what the source knows, and nothing else."""

import re
from pathlib import Path

from veen.lake.log.columns import ENTRIES, ddl
from veen.lake.log.options import KNOWN

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")


def test_the_columns_are_the_documented_ones():
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert " ".join(block.split()) == ddl(ENTRIES)


def test_the_options_are_the_documented_ones():
    table = PAGE.partition("| option | what |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name.lower() for row in rows for name in re.findall(r"`(\w+)`", row)} == set(KNOWN)
