"""The README keeps its promises: its commands run and its output is their output."""

import re
from pathlib import Path

from click.testing import CliRunner

from veen.cli.app import cli

README = (Path(__file__).parent.parent / "README.md").read_text()
HEX = re.compile(r"[0-9a-f]{4}…[0-9a-f]{4}")
MILLISECONDS = re.compile(r"\d+ ms")


def shape(text: str) -> list[str]:
    """What remains when keys, hashes and times, which differ from run to run, are blanked."""
    return [MILLISECONDS.sub("N ms", HEX.sub("HASH", line)) for line in text.strip().splitlines()]


def test_the_demo_in_the_readme_is_what_the_demo_prints():
    printed = README.partition("$ make demo\n")[2].partition("```")[0]
    assert shape(printed) == shape(CliRunner().invoke(cli, ["demo"]).stdout)


def test_the_python_example_runs():
    example = README.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own documentation


def test_every_file_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
