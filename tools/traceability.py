"""From requirement to test: reads docs/requirements.md and the `req` marks, and refuses marks that point nowhere.

Shared by tests/conftest.py, which makes a wrong mark stop the run, and by tools/conformance.py, which prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = [
    "REQUIREMENTS",
    "InventoryError",
    "Requirement",
    "check_marks",
    "pytest_collection_modifyitems",
    "read_marks",
    "read_requirements",
]

REQUIREMENTS = Path("docs/requirements.md")
LEVELS = frozenset({"MUST", "SHOULD", "MAY"})
_ID = re.compile(r"[A-Z][A-Z0-9]*-[0-9]+[a-z]?")


class InventoryError(ValueError):
    """docs/requirements.md cannot be read as an inventory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One line of the inventory, `- id | text | level | source`, under the heading that groups it."""

    id: str
    text: str
    level: str
    source: str
    group: str


def read_requirements(path: Path) -> Mapping[str, Requirement]:
    """Every requirement by id, in the order of the file."""
    requirements: dict[str, Requirement] = {}
    group = ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if line.startswith("## "):
            group = line.removeprefix("## ").strip()
        if not line.startswith("- "):
            continue
        parts = [part.strip() for part in line.removeprefix("- ").split(" | ")]
        if len(parts) != 4 or not _ID.fullmatch(parts[0]) or parts[2] not in LEVELS or not group:
            raise InventoryError(f"{path}:{number}: expected `- ID | text | level | source` under a heading")
        identifier, text, level, source = parts
        if identifier in requirements:
            raise InventoryError(f"{path}:{number}: {identifier} is listed twice")
        requirements[identifier] = Requirement(id=identifier, text=text, level=level, source=source, group=group)
    return requirements


def read_marks(item: pytest.Item) -> Iterator[str]:
    """Return the ids of all `req` marks of a test, from its function, class and module."""
    for mark in item.iter_markers("req"):
        for identifier in mark.args:
            yield str(identifier)


def check_marks(items: Iterable[pytest.Item], known: Mapping[str, Requirement]) -> Sequence[str]:
    """Return the faults of the marks, one sentence each, sorted."""
    problems: set[str] = set()
    for item in items:
        name = item.nodeid.partition("[")[0]  # one sentence for all cases of a parametrised test
        if any(not mark.args or mark.kwargs for mark in item.iter_markers("req")):
            problems.add(f'{name}: req takes requirement ids, as in @pytest.mark.req("MSG-03")')
        problems.update(
            f"{name}: {identifier} is not in {REQUIREMENTS.as_posix()}"
            for identifier in read_marks(item)
            if identifier not in known
        )
    return sorted(problems)


@pytest.hookimpl(tryfirst=True)  # before -m and -k deselect: a wrong mark is wrong in every selection
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stop the run if a `req` mark is empty or names an unknown requirement."""
    try:
        requirements = read_requirements(config.rootpath / REQUIREMENTS)
    except (OSError, InventoryError) as exc:
        raise _refusal(session, [f"the requirement inventory cannot be read: {exc}"]) from exc
    problems = check_marks(items, requirements)
    if problems:
        raise _refusal(session, ["wrong req marks:", *problems])


def _refusal(session: pytest.Session, lines: Sequence[str]) -> pytest.UsageError:
    message = "\n".join(lines)
    session.shouldfail = message  # all that xdist carries from a worker to the terminal; an exception would be lost
    return pytest.UsageError(message)
