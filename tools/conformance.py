"""Writes docs/conformance.md: for every requirement, the tests that demonstrate it, or "open".

    python tools/conformance.py           write the table
    python tools/conformance.py --check   exit 1 if the table on disk is not current

The table depends on the tests and the inventory only, never on the machine: a test module that is skipped as a whole
would silently drop out of it, so that is an error here. Such a module should skip from a fixture instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from traceability import REQUIREMENTS, InventoryError, Requirement, check_marks, read_marks, read_requirements

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path("docs/conformance.md")
SHOWN_TESTS = 4  # a row should fit on a screen


class ConformanceError(Exception):
    """The table cannot be made; the message says why."""


class Collector:
    """A pytest plugin that keeps the collected items and notes modules that skipped themselves."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []
        self.skipped: list[str] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.items.append(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(report.nodeid)


def collect_tests(known: Mapping[str, Requirement]) -> Mapping[str, Sequence[str]]:
    """For each requirement id, the names of its tests; the cases of a parametrised test count as one."""
    collector = Collector()
    output = io.StringIO()
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "tests"]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[collector])
    problems = check_marks(collector.items, known)
    if problems:
        raise ConformanceError("\n".join(["wrong req marks:", *problems]))
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise ConformanceError(f"the tests cannot be collected:\n{output.getvalue()}")
    if collector.skipped:
        modules = ", ".join(sorted(collector.skipped))
        raise ConformanceError(f"skipped as a whole, so the table would depend on this machine: {modules}")
    tests: dict[str, set[str]] = {}
    for item in collector.items:
        for identifier in read_marks(item):
            tests.setdefault(identifier, set()).add(item.nodeid.partition("[")[0])
    return {identifier: sorted(names) for identifier, names in tests.items()}


def _tests_cell(names: Sequence[str]) -> str:
    if not names:
        return "open"
    shown = [f"`{name}`" for name in names[:SHOWN_TESTS]]
    if len(names) > SHOWN_TESTS:
        shown.append(f"+{len(names) - SHOWN_TESTS} more")
    return "<br>".join(shown)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _summary_row(name: str, requirements: Iterable[Requirement], tests: Mapping[str, Sequence[str]]) -> str:
    count = Counter(requirement.id in tests for requirement in requirements)
    return f"| {name} | {count[True]} | {count[False]} |"


def render(known: Mapping[str, Requirement], tests: Mapping[str, Sequence[str]]) -> str:
    """Return the whole document. Equal arguments give equal bytes."""
    groups: dict[str, list[Requirement]] = {}
    for requirement in known.values():
        groups.setdefault(requirement.group, []).append(requirement)
    lines = [
        "# Conformance",
        "",
        f"Which tests demonstrate which requirement of [{REQUIREMENTS.name}]({REQUIREMENTS.name}). Written by",
        "`make conformance` from the `req` marks of the tests; do not edit.",
        "",
        "## Summary",
        "",
        "| group | covered | open |",
        "|---|---:|---:|",
        *(_summary_row(_cell(group), requirements, tests) for group, requirements in groups.items()),
        _summary_row("**all**", known.values(), tests),
    ]
    for group, requirements in groups.items():
        lines += ["", f"## {group}", "", "| id | level | requirement | tests |", "|---|---|---|---|"]
        lines += (
            f"| {requirement.id} | {requirement.level} | {_cell(requirement.text)} "
            f"| {_tests_cell(tests.get(requirement.id, ()))} |"
            for requirement in requirements
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="write docs/conformance.md from the req marks of the tests")
    parser.add_argument("--check", action="store_true", help="only check that the file is current")
    check: bool = parser.parse_args(argv).check
    os.chdir(ROOT)  # pytest names tests relative to where it runs
    try:
        requirements = read_requirements(REQUIREMENTS)
        tests = collect_tests(requirements)
    except (ConformanceError, InventoryError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 1
    text = render(requirements, tests)
    if not check:
        OUTPUT.write_text(text, "utf-8")
        print(f"{OUTPUT}: {len(tests)} of {len(requirements)} requirements covered")
        return 0
    if not OUTPUT.exists() or OUTPUT.read_text("utf-8") != text:
        print(f"{OUTPUT} is not current: run make conformance", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
