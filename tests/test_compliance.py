"""docs/compliance.md and docs/requirements-open.md say what docs/conformance.md shows."""

import importlib.util
import json
import re
from itertools import takewhile
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
ROW = re.compile(r"^\| ([A-Z][A-Z0-9]*-[0-9]+[a-z]?) \| (MUST|SHOULD|MAY) \| .* \| (.*) \|$", re.MULTILINE)


def cells(page, heading):
    """The rows of the table that begins with `heading`, without it and its rule."""
    lines = (DOCS / page).read_text("utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.fixture(scope="module")
def shown():
    """id -> (level, whether a test demonstrates it)"""
    rows = ROW.findall((DOCS / "conformance.md").read_text("utf-8"))
    assert len(rows) > 600
    return {identifier: (level, tests != "open") for identifier, level, tests in rows}


@pytest.mark.req("TS0-07")
def test_every_must_of_a_claim_is_demonstrated_but_for_the_exceptions_beside_it(shown):
    claims = cells("compliance.md", "claim")
    claimed = {group for _, groups, _ in claims for group in groups.split(", ")}
    assert claimed == {identifier.rpartition("-")[0] for identifier in shown}
    for claim, groups, exceptions in claims:
        prefixes = groups.split(", ")
        ids = [identifier for identifier in shown if identifier.rpartition("-")[0] in prefixes]
        assert {identifier.rpartition("-")[0] for identifier in ids} == set(prefixes), claim
        missing = [identifier for identifier in ids if shown[identifier] == ("MUST", False)]
        assert missing == [exception for exception in exceptions.split(", ") if exception], claim


def test_what_is_open_is_explained_and_what_is_explained_is_open(shown):
    listed = [row[0] for row in cells("requirements-open.md", "id")]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {identifier for identifier, (_, done) in shown.items() if not done}


@pytest.fixture(scope="module")
def tool():
    path = DOCS.parent / "tools" / "compliance.py"
    spec = importlib.util.spec_from_file_location("compliance_tool", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_section_of_the_specifications_has_a_row(tool):
    """One row for each heading, in their order: done, done differently, or not done."""
    assert tool.PAGE.read_text("utf-8") == tool.page(), "run python tools/compliance.py"
    headings = json.loads(tool.HEADINGS.read_text("utf-8"))
    assert {heading["document"] for heading in headings} >= {"000", "002", "003", "004", "spec-1", "ID", "WAL"}
    tables = re.split(r"^### .*$", tool.PAGE.read_text("utf-8").split(tool.BEGIN)[1], flags=re.MULTILINE)[1:]
    states = re.compile(r"done(: .+)?|differently: D-.+|not done: .+|as §[0-9.]+|no demand: .+")
    for heading, table in zip(headings, tables, strict=True):
        rows = re.findall(r"^\| §(\S+) \| (.*?) \|", table, re.MULTILINE)
        assert [section for section, _ in rows] == heading["sections"], heading["document"]
        for section, state in rows:
            assert states.fullmatch(state), (heading["document"], section, state)


def test_a_section_is_done_only_if_nothing_of_it_is_open(tool, shown):
    sections = tool.read()
    missing = {identifier for identifier, (_, done) in shown.items() if not done}
    assert sections.not_done == missing
    for heading in sections.headings:
        document = heading.get("read_as", heading["document"])
        for section in heading["sections"]:
            names = [row.name for row in sections.requirements_of(document, section) if row.name in missing]
            row = sections.row(heading["document"], section)
            assert ("not done: " + ", ".join(names) in row) if names else ("not done" not in row), row


def test_every_requirement_belongs_to_a_section_that_is_listed(tool):
    """Or the row of its section would say that nothing is demanded there."""
    sections = tool.read()
    listed = {(heading["document"], section) for heading in sections.headings for section in heading["sections"]}
    for row in sections.rows:
        for document, section in row.sections:
            while (document, section) not in listed and section:
                section = tool.parent_of(section)  # a numbered paragraph of a section
            assert (document, section) in listed, row


def test_each_departure_is_a_decision_that_the_table_of_departures_explains(tool):
    decisions = (DOCS / "spec" / "decisions.md").read_text("utf-8")
    sections = tool.read()
    for heading in sections.headings:
        for names in heading.get("differently", {}).values():
            assert all(re.search(rf"\*\*{name}[ *.]", decisions) for name in names), names
    table = cells("compliance.md", "text")
    assert {row[3] for row in table} == {"D-175", "D-176", "D-177", "D-99", "D-100"}


@pytest.mark.req("META-04")
def test_profiles_are_claimed_on_the_page_and_nowhere_on_the_wire():
    """001 spec-2 §8."""
    claims = " ".join(row[0] for row in cells("compliance.md", "claim"))
    for claim in ("Core", "VEEN v0.0.1+ Federated", "VEEN v0.0.1+ Hardened", "Federated + Hardened + Meta"):
        assert claim in claims
    source = DOCS.parent / "src" / "veen"
    wire = [path.read_text("utf-8") for part in ("core", "hub") for path in (source / part).rglob("*.py")]
    assert not [text for text in wire if "v0.0.1+" in text]
