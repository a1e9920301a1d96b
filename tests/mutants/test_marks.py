"""Break a requirement in one place, and run the one test that is marked with it: that test must fail.

The files `sample-*.toml` beside this module hold the mutants. Their marks are a sample of 100, which `draw` took with
SEED from `collect_marks` of commit 02f831c. The sample is frozen there: later marks do not change it, and
`python tests/mutants/test_marks.py` draws another one from the tree as it is. A mutant has these fields:

    req, test           the mark; `test` is a node id without parameters
    drawn               the test that was drawn, if the mark has moved from it to `test`
    breaks              the behaviour of the broken program, in one sentence
    file, before, after the fault: `before` stands in the file once and becomes `after`
    detected_at_first   whether the drawn test, as it was at that commit, failed over the broken program
    env                 variables of the environment of the test, if it needs any

Each fault was written down from the requirement and the code, before the marked test was read or run. Where a
requirement has several clauses, it breaks the one that the name of the test speaks of.
"""

import json
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
DETECTED_AT_FIRST: Final = 76  # docs/contributing.md names this number
# The part of the tree that a test may read. Links take no space, and compiled modules come along.
TREE: Final = ("src", "tests", "tools", "docs", "benchmarks", "examples", "deploy", "native",
               "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "constraints.txt", "constraints.lock", "mkdocs.yml",
               "Containerfile", "LICENSE")  # fmt: skip
TESTS_FAILED: Final = 1  # the exit status of pytest
TIMEOUT_SEC: Final = 600
_COLLECT: Final = """
import json, conformance, traceability
print(json.dumps(conformance.collect_tests(traceability.read_requirements(traceability.REQUIREMENTS))))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One place of the code, written so that it breaks the requirement, and the test that must notice."""

    req: str
    test: str  # a node id without parameters
    drawn: str = ""
    breaks: str  # one sentence: the behaviour of the broken program
    file: str
    before: str
    after: str
    detected_at_first: bool | None = None  # None: not of the sample
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.test.partition("::")[0]


def collect_marks() -> Sequence[tuple[str, str]]:
    """Return all pairs of a requirement and a test of this tree, as tools/conformance.py collects them."""
    run = subprocess.run(
        [sys.executable, "-c", _COLLECT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tools", "."))},
        capture_output=True,
        text=True,
        check=True,
    )
    tests: Mapping[str, Sequence[str]] = json.loads(run.stdout)
    return [(req, test) for req, names in tests.items() for test in names]


def draw(marks: Iterable[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return SAMPLE of the pairs (requirement, test)."""
    return random.Random(SEED).sample(sorted(set(marks)), SAMPLE)


def read_mutants() -> Sequence[Mutant]:
    """Return the mutants of all files, in order."""
    rows = [row for path in sorted(HERE.glob("sample-*.toml")) for row in tomllib.loads(path.read_text())["mutant"]]
    return [Mutant(**row) for row in rows]


MUTANTS: Final = read_mutants()


def link_tree(copy: Path) -> None:
    """Fill a directory with links to the tree, so that files of it can be replaced one at a time."""
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, copy_function=os.link, ignore=shutil.ignore_patterns("target"))
        elif (ROOT / name).exists():
            os.link(ROOT / name, copy / name)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tree, made of links."""
    copy = tmp_path_factory.mktemp("tree")
    link_tree(copy)
    return copy


def run_tests(tree: Path, tests: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run tests over the tree, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-x", "-p", "no:randomly", "-p", "no:cacheprovider",
               "-n", "0", "--benchmark-disable", "--hypothesis-profile=unshrunk",
               "--override-ini=addopts=--import-mode=importlib", *tests]  # fmt: skip
    # Bytecode is found by time and size of its source: two mutants of one second could be taken for each other.
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", **env}
    env.pop("PYTEST_ADDOPTS", None)
    timeout = TIMEOUT_SEC * max(1, len(tests) // 10)
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def run_marked_test(tree: Path, mutant: Mutant) -> subprocess.CompletedProcess[str]:
    """Run the test of a mutant over the tree, in a process of its own."""
    return run_tests(tree, [mutant.test], mutant.env)


def misplaced(mutant: Mutant) -> str | None:
    """Return why a mutant cannot be written into the code; None if it can."""
    path = ROOT / mutant.file
    count = path.read_text("utf-8").count(mutant.before) if path.is_file() else 0
    if count == 1:
        return None
    return (
        f"{mutant.req}, {mutant.test}: {mutant.file} has {mutant.before!r} {count} times, expected once. "
        f"Write the same fault ({mutant.breaks}) into the code that does this now: change file, before and after in "
        f"tests/mutants/sample-*.toml, and run `pytest -m slow tests/mutants -k {mutant.req}`"
    )


@pytest.fixture
def broken(tree: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, Mutant]]:
    """Write one mutant into the tree, and take it back afterwards."""
    mutant: Mutant = request.param
    assert misplaced(mutant) is None, misplaced(mutant)
    path = tree / mutant.file
    text = path.read_text("utf-8")
    path.unlink()  # the other name of a link stays as it is
    path.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    yield tree, mutant
    path.unlink()
    os.link(ROOT / mutant.file, path)


def test_the_sample_is_whole() -> None:
    """Each mutant changes a place that exists once, for a test that exists, and the sample has its size."""
    assert len({(mutant.req, mutant.drawn or mutant.test) for mutant in MUTANTS}) == len(MUTANTS) == SAMPLE
    assert sum(mutant.detected_at_first is True for mutant in MUTANTS) == DETECTED_AT_FIRST
    faults = [fault for mutant in MUTANTS if (fault := misplaced(mutant)) is not None]
    for mutant in MUTANTS:
        name = mutant.test.rpartition("::")[2]
        if not (ROOT / mutant.path).is_file() or f"def {name}(" not in (ROOT / mutant.path).read_text("utf-8"):
            faults.append(f"{mutant.req}: {mutant.test} does not exist; name the test that shows the requirement now")
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_each_mutant_has_its_mark() -> None:
    marks = set(collect_marks())
    assert len(draw(marks)) == SAMPLE
    assert [(mutant.req, mutant.test) for mutant in MUTANTS if (mutant.req, mutant.test) not in marks] == []


@pytest.mark.slow
def test_the_marked_tests_pass_over_the_program(tree: Path) -> None:
    """Else they would fail over a broken one for another reason."""
    run = run_tests(tree, sorted({mutant.test for mutant in MUTANTS}), {})
    assert run.returncode == 0, f"{run.stdout[-5000:]}{run.stderr[-1000:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", MUTANTS, ids=[f"{m.req}-{m.test.rpartition('::')[2]}"[:90] for m in MUTANTS], indirect=True
)
def test_the_marked_test_fails_over_the_broken_program(broken: tuple[Path, Mutant]) -> None:
    tree, mutant = broken
    run = run_marked_test(tree, mutant)
    assert run.returncode == TESTS_FAILED, f"{mutant.breaks}\n{run.stdout[-3000:]}{run.stderr[-1000:]}"


if __name__ == "__main__":
    for pair in draw(collect_marks()):
        print(*pair)
