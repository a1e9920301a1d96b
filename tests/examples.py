"""How many examples of a law `make test` tries, and how many are left to `make test-slow`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

QUICK = 15  # what the profile of `make check` draws
_USUAL = 100  # what the profile of `make explore` draws; that of `make test` draws a quarter
_LEAST = 10


def examples(count: int, **others: Any) -> settings:
    """`count` where the profile draws 100, and in proportion where it draws more or fewer; `others` as for settings."""
    return settings(max_examples=max(count * settings().max_examples // _USUAL, min(count, _LEAST)), **others)


def spread(rows: Iterable[Any], count: int) -> list[Any]:
    """All `rows` of a parametrised test, of which `make test` runs `count` from the first to the last, in equal steps.

    The others run with `make test-slow`. A row that is a tuple has a value for each name.
    """
    every = list(rows)
    fast = [place for place, row in enumerate(every) if not is_slow(row)]
    chosen = {fast[round(step * (len(fast) - 1) / max(count - 1, 1))] for step in range(min(count, len(fast)))}
    return [slow(row) if place in fast and place not in chosen else row for place, row in enumerate(every)]


def first_of_each(names: Iterable[str], kind: Callable[[str], str] = lambda name: name.partition(":")[0]) -> list[Any]:
    """All `names` of a parametrised test, of which `make test` runs the first one of each kind."""
    kinds: set[str] = set()
    rows: list[Any] = []
    for name in names:
        rows.append(slow(name) if kind(name) in kinds else name)
        kinds.add(kind(name))
    return rows


def is_slow(row: Any) -> bool:
    return isinstance(row, ParameterSet) and any(getattr(mark, "name", "") == "slow" for mark in row.marks)


def slow(row: Any) -> Any:
    """A row of a parametrised test that runs with `make test-slow`."""
    if isinstance(row, ParameterSet):
        return pytest.param(*row.values, id=row.id, marks=[*row.marks, pytest.mark.slow])
    return pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow)
