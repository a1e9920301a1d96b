"""Bend each clause of the rule of who speaks for whom in one place: its test must fail (D-179)."""

import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.mutants.test_marks import HERE, ROOT, TESTS_FAILED, Mutant, run_marked_test, tree

__all__ = ["tree"]  # a fixture

MUTANTS: Final = [Mutant(**row) for row in tomllib.loads((HERE / "speaking.toml").read_text("utf-8"))["mutant"]]


def test_each_mutant_changes_a_place_that_exists_once() -> None:
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text("utf-8").count(mutant.before) == 1, mutant.breaks
        path, _, name = mutant.test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text("utf-8"), mutant.test
    assert {mutant.breaks[:8] for mutant in MUTANTS} >= {f"Clause {number}" for number in range(1, 6)}


@pytest.fixture
def broken(tree: Path, request: pytest.FixtureRequest) -> Iterator[Mutant]:
    """Write one mutant into the tree, and take it back afterwards."""
    mutant: Mutant = request.param
    path = tree / mutant.file
    text = path.read_text("utf-8").replace(mutant.before, mutant.after)
    path.unlink()  # the other name of a link stays as it is
    path.write_text(text, "utf-8")
    yield mutant
    path.unlink()
    os.link(ROOT / mutant.file, path)


@pytest.mark.slow
@pytest.mark.parametrize("broken", MUTANTS, ids=[mutant.breaks for mutant in MUTANTS], indirect=True)
def test_the_test_of_a_clause_fails_over_the_broken_program(tree: Path, broken: Mutant) -> None:
    run: subprocess.CompletedProcess[str] = run_marked_test(tree, broken)
    assert run.returncode == TESTS_FAILED, f"{broken.breaks}\n{run.stdout[-3000:]}{run.stderr[-1000:]}"
