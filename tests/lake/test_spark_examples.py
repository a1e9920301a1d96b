"""examples/spark and the commands of docs/spark-cluster.md work as they stand there."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from tests.cli.tree import check_line
from tests.lake.audit_builders import chunks, dump, log

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "spark"
PAGE = (ROOT / "docs" / "spark-cluster.md").read_text("utf-8")

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def path(tmp_path):
    (tmp_path / "hub").mkdir()
    return dump(log(25), tmp_path / "hub")


def main_of(name):
    return runpy.run_path(str(EXAMPLES / name))["main"]


def test_the_audit_judges_and_says_what_it_does(spark, path, capsys):
    audit = main_of("audit_bucket.py")
    assert audit(str(path)) == 0
    assert "the evidence is good: 2 labels, 25 entries" in capsys.readouterr().out
    data = bytearray(chunks(path)[0].read_bytes())
    data[400] ^= 1
    chunks(path)[0].write_bytes(data)
    assert audit(str(path)) == 1
    assert "pass 2" in capsys.readouterr().err


@pytest.mark.slow
def test_the_writers_are_counted(spark, path, capsys):
    main_of("writers.py")(str(path))
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert sum(int(row[2]) for row in rows) == 25
    assert len({row[1] for row in rows}) == 3


def test_following_goes_on_where_it_was(spark, path, tmp_path, capsys):
    follow = main_of("follow.py")
    follow(str(path), str(tmp_path / "checkpoint"))
    assert sum(int(line.split("\t")[2]) for line in capsys.readouterr().out.splitlines()) == 25
    follow(str(path), str(tmp_path / "checkpoint"))
    assert capsys.readouterr().out == ""


def test_every_example_is_run_here():
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(re.findall(r'"(\w+\.py)"', Path(__file__).read_text()))


def test_every_command_of_the_page_parses():
    lines = [line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith("veen ")]
    assert len(lines) > 6
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        check_line(words)
        if words[:2] == ["spark", "submit"]:  # and so does the command that is submitted
            check_line(_submitted(words[2:]))


def _submitted(words):
    """What follows the options of submit, each of which has a value here."""
    at = 0
    while words[at].startswith("--"):
        at += 2
    return words[at:]
