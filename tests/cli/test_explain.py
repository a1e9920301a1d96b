"""`veen explain`: every code that exists is explained, and what texts tell people to run can be run."""

import ast
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.tree import check_line, command_lines, exists

import veen
from veen.cli.app import cli
from veen.cli.explaining import SOURCES, explanation_of, explanations, part_of
from veen.cli.output import Exit
from veen.core.errors import RETIRED_CODES, ApiCode, Refusal

SOURCE = Path(veen.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
CODE = re.compile(r"E\.[A-Z][A-Z_]*(\.[A-Z][A-Z_]*)*")


def texts(path):
    """The strings of a module that are no docstrings; what an f-string puts in is X."""
    tree = ast.parse(path.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | docs:
            yield node.value


def test_every_code_in_the_code_base_is_explained():
    used = {text: path.name for path in MODULES for text in texts(path) if CODE.fullmatch(text)}
    assert {"E.SEQ", "E.LOCAL.PASSPHRASE", "E.DIVERGED.REWOUND", "E.CONFIG"} <= used.keys()
    assert {code: where for code, where in used.items() if explanation_of(code) is None} == {}


def test_every_answer_of_a_hub_is_explained():
    for refusal in Refusal:
        found = explanation_of(refusal.detail_enum)
        assert found is not None
        assert found.part_of == refusal.code
        assert found in part_of(refusal.code)
        assert explanation_of(f"{refusal.code}/{refusal.detail_enum}") == found
    for code in ApiCode:
        assert explanation_of(code.code) is not None


@pytest.mark.req("ERR-09")
def test_names_of_older_documents_are_understood():
    """D-55."""
    for retired, refusal in RETIRED_CODES.items():
        assert explanation_of(retired) == explanation_of(refusal.detail_enum)


def test_no_code_is_explained_twice_and_each_has_a_fix():
    listed = [entry for source in SOURCES for entry in __import__(source, fromlist=["x"]).EXPLANATIONS]
    assert len({entry.code for entry in listed}) == len(listed)
    for entry in listed:
        assert entry.means
        assert entry.because.endswith((".", ")"))
        assert entry.spec
        assert entry.fixes
        for page in re.findall(r"docs/[a-z]+\.md", entry.spec):
            assert (SOURCE.parents[1] / page).is_file(), page
        assert entry.part_of is None or entry.part_of in explanations()


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(SOURCE)) for path in MODULES])
def test_every_command_that_a_text_names_parses(path):
    """Hints, fixes, topics: a person copies them into a terminal."""
    for text in texts(path):
        for line in command_lines(text):
            if not exists(" ".join(line)):  # to name a command is one thing, to tell how to call it another
                check_line(line)


def test_the_walk_does_find_commands():
    lines = [line for path in MODULES for text in texts(path) for line in command_lines(text)]
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
    assert [entry["code"] for entry in data["codes"]] == list(explanations())


def test_an_unknown_code_is_answered_with_near_ones():
    result = CliRunner().invoke(cli, ["explain", "E.SEK"])
    assert result.exit_code == Exit.USAGE
    assert "Did you mean E.SEQ" in result.output
