"""`veen explain`, and that people can run what texts tell them to run."""

import ast
import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cases import every
from tests.cli.tree import check_line, command_lines, exists

import veen
from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.core.catalogue import catalogue

SOURCE = Path(veen.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


@cache
def texts(path):
    """The strings of a module that are no docstrings; what an f-string puts in is X."""
    tree = ast.parse(path.read_text())
    nodes, strings = list(ast.walk(tree)), []
    others = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    others |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            strings.append("".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            strings.append(node.value)
    return strings


@every(MODULES)
def test_every_command_that_a_text_names_parses(path):
    """Hints, fixes, topics: a person copies them into a terminal."""
    for text in texts(path):
        for line in command_lines(text):
            if not exists(" ".join(line)):  # to name a command is one thing, to tell how to call it another
                check_line(line)


@every(catalogue().values(), lambda row: row.code)
def test_every_command_that_a_row_of_the_catalogue_names_parses(row):
    for text in (row.message, row.means, row.because, *row.fixes):
        for line in command_lines(text):
            if not exists(" ".join(line)):
                check_line(line)


def test_the_walk_does_find_commands():
    lines = [line for path in MODULES for text in texts(path) for line in command_lines(text)]
    assert len(lines) > 50
    lines = [line for row in catalogue().values() for fix in row.fixes for line in command_lines(fix)]
    assert len(lines) > 100
    assert ["context", "add", "NAME", "--hub", "URL", "--pin", "ed25519:HEX"] in lines
    with pytest.raises(AssertionError):
        check_line(["hub", "status", "--no-such-option"])
    with pytest.raises(AssertionError):
        check_line(["no-such-command"])


def test_explain_shows_cause_place_and_fixes():
    result = CliRunner().invoke(cli, ["explain", "e.seq"])
    assert result.exit_code == Exit.OK
    assert "veen resync STREAM" in result.output
    assert "spec §8.2" in result.output
    assert "CLIENT_SEQ" in result.output
    data = json.loads(CliRunner().invoke(cli, ["explain", "E.SEQ", "--json"]).stdout)
    assert data["details"] == ["PREV_ACK", "DUPLICATE", "CLIENT_SEQ"]


def test_explain_alone_lists_all_codes():
    data = json.loads(CliRunner().invoke(cli, ["explain", "--json"]).stdout)
    assert [entry["code"] for entry in data["codes"]] == list(catalogue())


def test_an_unknown_code_is_answered_with_near_ones():
    result = CliRunner().invoke(cli, ["explain", "E.SEK"])
    assert result.exit_code == Exit.USAGE
    assert "Did you mean E.SEQ" in result.output
