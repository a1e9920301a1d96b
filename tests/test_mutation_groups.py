"""tools/mutation.py: its groups name what is there, and a sample is always the same."""

import tomllib
from pathlib import Path

import pytest

import mutation


@pytest.mark.parametrize("name", mutation.GROUPS)
def test_a_group_names_modules_and_tests_that_exist(name):
    group = mutation.GROUPS[name]
    for module in group.modules:
        assert (mutation.ROOT / "src" / "veen" / f"{module}.py").is_file()
    for test in group.tests:
        assert (mutation.ROOT / "tests" / test).exists()
    for part in group.without:
        sources = [(mutation.ROOT / "tests" / test).read_text("utf-8") for test in group.tests]
        assert any(part in source for source in sources), f"no test is called {part}"


def test_a_sample_depends_on_the_names_alone():
    mutants = [f"mutant {number}" for number in range(500)]
    chosen = mutation.draw(mutants, 50)
    assert len(set(chosen)) == 50
    assert mutation.draw(mutants[::-1], 50) == chosen
    assert mutation.draw(mutants, None) == mutants
    assert mutation.draw(mutants, 500) == mutants


def test_a_group_has_a_directory_of_its_own_with_what_all_groups_share(tmp_path, monkeypatch):
    monkeypatch.setattr(mutation, "WORK", tmp_path)
    group = mutation.Group(("core/tree/mmr",), ("core/test_mmr.py", "core/test_proof.py"), without=("minimal", "bit"))
    work = mutation.configure("one", group)
    assert mutation.configure("one", group) == work  # a second run finds it
    assert {path.name: path.resolve() for path in work.iterdir() if path.is_symlink()} == {
        name: mutation.ROOT / name for name in mutation.LINKS
    }
    settings = tomllib.loads((work / "pyproject.toml").read_text("utf-8"))["tool"]
    own = tomllib.loads(Path(mutation.ROOT, "pyproject.toml").read_text("utf-8"))["tool"]
    assert settings["pytest"] == own["pytest"]
    assert settings["mutmut"] == {
        **own["mutmut"],
        "only_mutate": ["src/veen/core/tree/mmr.py"],
        "pytest_add_cli_args_test_selection": [
            "tests/core/test_mmr.py", "tests/core/test_proof.py", "-m", "not slow", "-k", "not minimal and not bit",
        ],
    }  # fmt: skip
