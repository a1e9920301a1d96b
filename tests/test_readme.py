"""README.md and the tutorial of the demo: their commands run, and the output shown is theirs."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.tree import check_line, command_lines, exists
from veen.cli.app import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
DEMO = (ROOT / "docs" / "tutorials" / "demo.md").read_text("utf-8").partition("$ make demo\n")[2].partition("```")[0]
HEX = re.compile(r"[0-9a-f]{4}…[0-9a-f]{4}")
COST = re.compile(r"\d+ MiB, \d+ passes")  # of argon2id: tests pay less than users (tests/conftest.py)
NUMBER = re.compile(r"\b\d{4,}\b|\d+\.\d(?= s\b)|\d+(?= cores)")  # ports, sizes of files, seconds, this machine


def shape(text: str) -> list[str]:
    """What remains when keys, hashes, ports, sizes and times, which differ from run to run, are blanked."""
    return [NUMBER.sub("N", HEX.sub("HASH", COST.sub("COST", line))) for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_demo_of_the_tutorial_is_what_the_demo_prints():
    assert shape(DEMO) == shape(CliRunner().invoke(cli, ["demo", "--spark"]).stdout)


def test_the_lines_of_the_demo_in_the_readme_are_some_of_the_tutorial_in_their_order():
    lines = iter(DEMO.splitlines())
    shown = README.partition("$ make demo\n")[2].partition("```")[0].splitlines()
    assert len(shown) > 8
    assert [line for line in shown if line != "…" and line not in lines] == []  # `in` goes on where it stopped


def test_the_python_example_is_the_one_of_the_guide():
    """docs/services.md has it without comments."""
    example = README.partition("```python\n")[2].partition("```")[0]
    guide = (ROOT / "docs" / "services.md").read_text().partition("```python\n")[2]
    assert re.sub(r"  # .*", "", example) == guide.partition("```")[0]


def test_every_command_in_the_readme_parses():
    for line in command_lines(README):
        if not exists(" ".join(line)):
            check_line(line)


def test_every_file_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
