"""The examples of docs/overlays-operations.md run as they stand there, and its table of codes is complete."""

import re
from pathlib import Path

import pytest
from tests.cli.tree import check_line, command_lines

from veen.core.catalogue import catalogue
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.operations.schemas import ALL

# The first words of the codes of operations, label classes, schemas and state checkpoints.
FAMILIES = "AGREE DELEG GRANT LCLASS META MIRR PAID PUB QAUD RECOV REVOKE SNAP SPEAKS".split()  # noqa: SIM905 - shorter
PAGE = (Path(__file__).parents[2] / "docs" / "overlays-operations.md").read_text("utf-8")


@pytest.mark.req("OPC-05", "QAUD-03")
def test_the_examples_run():
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 5
    exec(compile("\n".join(examples), "docs/overlays-operations.md", "exec"), {"__name__": "docs"})  # noqa: S102 - our own documentation


def test_every_code_schema_and_state_class_is_listed():
    codes = {code for code in catalogue() if code.partition(".")[0] in FAMILIES}
    listed = set(re.findall(r"`([A-Z]+\.[A-Z_]+)`", PAGE.partition("## Codes")[2]))
    assert listed == codes
    words = set(re.findall(r"`([a-z.0-9]+)`", PAGE))
    assert {schema.name for schema in ALL.values()} <= words
    assert set(BUILTIN["operation"].folds) <= words


def test_every_command_line_parses():
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for text in block.splitlines() for line in command_lines(f"`{text}`")]
    assert len(lines) == len(block.splitlines())
    for line in lines:
        check_line(line)
