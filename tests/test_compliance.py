"""docs/compliance.md and docs/requirements-open.md say what docs/conformance.md shows."""

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


@pytest.mark.req("META-04")
def test_profiles_are_claimed_on_the_page_and_nowhere_on_the_wire():
    """001 spec-2 §8."""
    claims = " ".join(row[0] for row in cells("compliance.md", "claim"))
    for claim in ("Core", "VEEN v0.0.1+ Federated", "VEEN v0.0.1+ Hardened", "Federated + Hardened + Meta"):
        assert claim in claims
    source = DOCS.parent / "src" / "veen"
    wire = [path.read_text("utf-8") for part in ("core", "hub") for path in (source / part).rglob("*.py")]
    assert not [text for text in wire if "v0.0.1+" in text]
