"""The `req` mark leads from a test to the inventory, and a mark that leads nowhere stops the run."""

from __future__ import annotations

from pathlib import Path

import pytest

import conformance
import traceability

pytest_plugins = ["pytester"]

TOOLS = Path(traceability.__file__).parent
INVENTORY = """\
# Inventory

## ONE: first things
- ONE-01 | Bytes come back as they went in | MUST | 003 §1
- ONE-02 | A set is a|b | MAY | 003 §2 [D-01]

## TWO
- TWO-1a | Nothing is lost | SHOULD | 003 §3
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with an inventory of three requirements and our conftest, but no test yet, and no plugins."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading them takes longer than the run
    pytester.makeini("[pytest]\nmarkers =\n    req(*ids): requirements")
    pytester.mkdir("docs").joinpath("requirements.md").write_text(INVENTORY, "utf-8")
    pytester.makeconftest("from traceability import pytest_collection_modifyitems")
    return pytester


def run(project: pytest.Pytester, mark: str) -> pytest.RunResult:
    project.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\ndef test_something():\n    pass\n")
    return run_apart(project)


def run_apart(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    """In a process of its own: modules that a run inside of this one loads could not be loaded again by later tests."""
    return project.runpytest_subprocess("-p", "no:cacheprovider", f"-opythonpath={TOOLS}", *options)


def test_known_ids_pass(project):
    run(project, 'req("ONE-01", "TWO-1a")').assert_outcomes(passed=1)


def test_an_unknown_id_stops_the_run(project):
    result = run(project, 'req("ONE-01", "ONE-99")')
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_something: ONE-99 is not in docs/requirements.md"])


def test_the_reason_reaches_the_terminal_through_xdist(project):
    project.makepyfile('import pytest\n\n@pytest.mark.req("NO-1")\ndef test_it():\n    pass\n')
    result = project.runpytest_subprocess("-p", "xdist", "-n", "1", f"-opythonpath={TOOLS}")
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*NO-1 is not in docs/requirements.md*"])


@pytest.mark.parametrize("mark", ["req", "req()", 'req(id="ONE-01")'])
def test_a_mark_without_ids_stops_the_run(project, mark):
    result = run(project, mark)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_something: req takes requirement ids*"])


def test_a_missing_inventory_stops_the_run(project):
    project.path.joinpath("docs/requirements.md").unlink()
    result = run(project, 'req("ONE-01")')
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the requirement inventory cannot be read*"])


def test_a_wrong_mark_counts_even_when_deselected(project):
    project.makepyfile('import pytest\n\n@pytest.mark.req("NO-1")\ndef test_it():\n    pass\n')
    result = run_apart(project, "-k", "nothing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    "line",
    [
        "- ONE-03 | no level | 003",
        "- one-03 | small id | MUST | 003",
        "- ONE-03 | level | PERHAPS | 003",
        "- ONE-01 | seen before | MUST | 003",
    ],
)
def test_a_malformed_inventory_is_refused(tmp_path, line):
    path = tmp_path / "requirements.md"
    path.write_text(INVENTORY + line + "\n", "utf-8")
    with pytest.raises(traceability.InventoryError, match=r"requirements\.md:9"):
        traceability.read_requirements(path)


def test_our_inventory_is_well_formed(request):
    requirements = traceability.read_requirements(Path(request.config.rootpath) / traceability.REQUIREMENTS)
    assert {requirement.level for requirement in requirements.values()} == traceability.LEVELS


def test_the_table_names_tests_or_says_open(tmp_path):
    path = tmp_path / "requirements.md"
    path.write_text(INVENTORY, "utf-8")
    requirements = traceability.read_requirements(path)
    text = conformance.render(requirements, {"ONE-02": [f"tests/test_a.py::test_{n}" for n in "abcdef"]})
    assert "| ONE: first things | 1 | 1 |" in text
    assert "| **all** | 1 | 2 |" in text
    assert "| TWO-1a | SHOULD | Nothing is lost | open |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| ONE-02")]
    assert r"A set is a\|b" in row
    assert row.count("test_a.py") == conformance.SHOWN_TESTS
    assert "+2 more" in row
