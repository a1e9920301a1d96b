"""The Makefile names files that exist, and a commit has one verdict everywhere."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent


def test_the_tests_that_run_without_the_native_module_exist():
    """A name that is left behind by a rename would end the whole check."""
    done = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    match = re.search(r"^PYTHON_TESTS :?= (.*)$", done.stdout, re.MULTILINE)
    assert match is not None
    assert len(files := match[1].split()) > 5
    assert [file for file in files if not (ROOT / file).is_file()] == []


def commands_of(*words, **variables):
    """Return the lines that `make WORDS` would run and that start pytest."""
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "SEED", "TESTS", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "-n", *words], cwd=ROOT, env=env | variables, capture_output=True, text=True, check=True
    )
    return [line.replace("\\\n", " ") for line in re.split(r"(?<!\\)\n", done.stdout) if "-m pytest" in line]


@pytest.mark.parametrize("target", ["test", "test-python", "test-system", "check-tests"])
def test_the_same_seeds_are_used_with_and_without_a_build_server(target):
    (command,) = commands_of(target)
    assert commands_of(target, CI="true") == [command]
    runs = command.split("-m pytest")[1:]
    assert all("--randomly-seed=1 " in run and "-p tests.reruns" in run for run in runs)
    assert command.count("PYTHONHASHSEED=1 ") == len(runs)
    assert "hypothesis-seed" not in command


def test_the_examples_of_a_test_are_always_the_same_unless_one_explores():
    profiles = {name: settings.get_profile(name) for name in ("default", "quick", "explore")}
    assert {name: profile.derandomize for name, profile in profiles.items()} == {
        "default": True,
        "quick": True,
        "explore": False,
    }
    assert profiles["explore"].max_examples > profiles["default"].max_examples


def test_an_exploration_uses_one_seed_for_everything_and_prints_it():
    (command,) = commands_of("explore", "SEED=77")
    assert command.startswith("seed=77; export PYTHONHASHSEED=$seed;")
    assert command.count('echo "seed $seed; to repeat it: make explore SEED=$seed"') == 2
    runs = command.split("-m pytest")[1:]
    seeds = ("--hypothesis-profile=explore", "--hypothesis-seed=$seed", "--randomly-seed=$seed")
    assert all(option in run for run in runs for option in seeds)
    (command,) = commands_of("explore")
    assert "/dev/urandom" in command.partition(";")[0]


def test_tests_that_use_s3_run_in_a_process_of_their_own():
    """REVIEW, the segmentation fault: the S3 client has threads that end when they like."""
    (command,) = commands_of("test")
    alone, others = command.split("-m pytest")[1:]
    assert "-n 0 " in alone
    assert '-m "s3 and not' in alone
    assert "and not s3" in others
    uses = re.compile(r"moto\.server|test_objectstore import|S3FileSystem")
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__) and uses.search(text := path.read_text("utf-8")):
            assert "pytest.mark.s3" in text, path
            assert str(path.relative_to(ROOT)) in alone, path


def test_tests_write_where_the_user_says_and_to_the_disk_where_memory_takes_no_files(tmp_path):
    script = ROOT / "tools" / "find_scratch.sh"
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"}

    def place_by(place, **more):
        return subprocess.run(
            [script, place], env=env | more, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert place_by("/dev/shm", TMPDIR=str(tmp_path)) == str(tmp_path)  # noqa: S108 - it is not written to
    assert place_by(tmp_path / "absent") == place_by("/proc") == "/tmp"  # noqa: S108
    assert list(tmp_path.iterdir()) == []
