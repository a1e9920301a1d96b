"""The README keeps its promises: its commands run and its output is their output."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.tree import check_line, command_lines, exists
from veen.cli.app import cli

README = (Path(__file__).parent.parent / "README.md").read_text()
HEX = re.compile(r"[0-9a-f]{4}…[0-9a-f]{4}")
NUMBER = re.compile(r"\b\d{4,}\b|\d+\.\d(?= s\b)|\d+(?= cores)")  # ports, sizes of files, seconds, this machine


def shape(text: str) -> list[str]:
    """What remains when keys, hashes, ports, sizes and times, which differ from run to run, are blanked."""
    return [NUMBER.sub("N", HEX.sub("HASH", line)) for line in text.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_demo_in_the_readme_is_what_the_demo_prints():
    printed = README.partition("$ make demo\n")[2].partition("```")[0]
    assert shape(printed) == shape(CliRunner().invoke(cli, ["demo", "--spark"]).stdout)


def test_the_python_example_is_the_one_of_the_guide():
    """docs/services.md has it without comments."""
    example = README.partition("```python\n")[2].partition("```")[0]
    guide = (Path(__file__).parent.parent / "docs" / "services.md").read_text().partition("```python\n")[2]
    assert re.sub(r"  # .*", "", example) == guide.partition("```")[0]


def test_every_command_in_the_readme_parses():
    for line in command_lines(README):
        if not exists(" ".join(line)):
            check_line(line)


def test_every_file_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
