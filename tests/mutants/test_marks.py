"""Break a requirement in one place, and run the one test that is marked with it: that test must fail.

The files `sample-*.toml` beside this module hold the mutants. Their marks are a sample of 100, which `draw` takes from
all pairs of a requirement and a test with SEED. A mark that no longer exists stays in the sample under the test that
replaced it.
"""

import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
SEED: Final = 28
SAMPLE: Final = 100
# The part of the tree that a test may read. Links take no space, and compiled modules come along.
TREE: Final = ("src", "tests", "tools", "docs", "benchmarks", "examples", "deploy", "native",
               "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt", "constraints.lock", "mkdocs.yml",
               "Containerfile", "LICENSE")  # fmt: skip
TESTS_FAILED: Final = 1  # the exit status of pytest
TIMEOUT_SEC: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One place of the code, written so that it breaks the requirement, and the test that must notice."""

    req: str
    test: str  # a node id without parameters
    breaks: str  # one sentence: the behaviour of the broken program
    file: str
    before: str
    after: str
    env: Mapping[str, str] = field(default_factory=dict)


def draw(marks: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return SAMPLE of the pairs (requirement, test)."""
    return random.Random(SEED).sample(sorted(set(marks)), SAMPLE)


def read_mutants() -> Sequence[Mutant]:
    """Return the mutants of all files, in order."""
    rows = [row for path in sorted(HERE.glob("sample-*.toml")) for row in tomllib.loads(path.read_text())["mutant"]]
    return [Mutant(**row) for row in rows]


MUTANTS: Final = read_mutants()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree, made of links, whose files can be replaced one at a time."""
    copy = tmp_path_factory.mktemp("tree")
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, copy_function=os.link, ignore=shutil.ignore_patterns("target"))
        elif (ROOT / name).exists():
            os.link(ROOT / name, copy / name)
    return copy


def run_marked_test(tree: Path, mutant: Mutant) -> subprocess.CompletedProcess[str]:
    """Run the test of a mutant over the tree, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "-n", "0",
               "--benchmark-disable", "--hypothesis-profile=unshrunk",
               "--override-ini=addopts=--import-mode=importlib", mutant.test]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), **mutant.env}
    env.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_SEC, check=False)


@pytest.fixture
def broken(tree: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Mutant]]:
    """Write one mutant into the tree, and take it back afterwards."""
    mutant: Mutant = request.param
    path = tree / mutant.file
    text = path.read_text("utf-8")
    assert text.count(mutant.before) == 1, f"{mutant.file} has the text to replace {text.count(mutant.before)} times"
    path.unlink()  # the other name of a link stays as it is
    path.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    yield tree, mutant
    path.unlink()
    os.link(ROOT / mutant.file, path)


def test_the_sample_is_whole() -> None:
    """Each mutant changes a place that exists once, and the sample has its size."""
    assert len(MUTANTS) == SAMPLE
    assert len({(mutant.req, mutant.test) for mutant in MUTANTS}) == SAMPLE
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text("utf-8").count(mutant.before) == 1, (mutant.req, mutant.file)
        path, _, name = mutant.test.partition("::")
        assert f"def {name.rpartition('::')[2]}(" in (ROOT / path).read_text("utf-8"), mutant.test


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", MUTANTS, ids=[f"{m.req}-{m.test.rpartition('::')[2]}"[:90] for m in MUTANTS], indirect=True
)
def test_the_marked_test_fails_over_the_broken_program(broken: tuple[Path, Mutant]) -> None:
    tree, mutant = broken
    run = run_marked_test(tree, mutant)
    assert run.returncode == TESTS_FAILED, f"{mutant.breaks}\n{run.stdout[-3000:]}{run.stderr[-1000:]}"
