"""A failed test gets a second look, alone, and a process that crashed leaves its last words."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reruns import plain_nodeid

ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.scheduling import FileScheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
"""
ONCE = """
import pathlib

def is_first_time(name):
    marker = pathlib.Path(__file__).with_name(name)
    if marker.exists():
        return False
    marker.touch()
    return True

"""
FAILS_ONCE = f"""{ONCE}
def test_that_fails_once():
    print("words of the first time")
    assert not is_first_time("failed"), "only the first time"
"""
FAILS = "def test_that_fails():\n    assert 1 == 2\n"
PASSES = "def test_that_passes():\n    pass\n"
CRASHES = f"""{ONCE}
import os, signal, threading

def test_that_crashes_once():
    if is_first_time("crashed"):
        os.write(2, b"last words of a library\\n")
        os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest over files with the plugins, in a process of its own; returns its exit status and output."""

    def run_files(processes, **files):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        env |= {"PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "xdist.plugin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.reruns", "-p", "tests.workers", "-n", str(processes),
             "--dist", "loadgroup", "--no-loadscope-reorder", "-p", "no:cacheprovider"],
            cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run_files


@pytest.mark.parametrize("processes", [0, 1])
def test_a_test_that_passes_alone_is_flaky_and_the_run_passes(run, processes):
    code, output = run(processes, test_flaky=FAILS_ONCE, test_good=PASSES)
    assert code == 0, output
    assert "flaky: test_flaky.py::test_that_fails_once" in output.splitlines()
    assert "only the first time" in output  # the first output,
    assert "words of the first time" in output
    assert len(re.findall(r"^1 passed in", output, re.MULTILINE)) == 1  # and the second
    assert re.search(r"^1 passed, 1 flaky in", output, re.MULTILINE), output


@pytest.mark.slow
def test_a_test_that_fails_alone_too_fails_the_run(run):
    code, output = run(1, test_bad=FAILS, test_flaky=FAILS_ONCE)
    assert code == 1, output
    assert "fails alone, too: test_bad.py::test_that_fails" in output.splitlines()
    assert "flaky: test_flaky.py::test_that_fails_once" in output.splitlines()
    assert re.search(r"^1 failed, 1 flaky in", output, re.MULTILINE), output


def test_a_file_that_cannot_be_collected_fails_the_run_and_nothing_is_run_again(run):
    code, output = run(1, test_broken="import nothing_of_this_name", test_flaky=FAILS_ONCE)
    assert code != 0, output
    assert "ModuleNotFoundError" in output
    assert "flaky:" not in output


@pytest.mark.slow
def test_a_process_that_crashes_leaves_its_stderr_and_stacks_and_its_test_is_run_alone(run, tmp_path):
    code, output = run(1, test_crash=CRASHES, test_good=PASSES)
    assert code == 0, output
    assert "flaky: test_crash.py::test_that_crashes_once" in output.splitlines()
    assert "last words of a library" in output
    assert "Fatal Python error: Segmentation fault" in output
    assert "in test_that_crashes_once" in output
    assert "core files: " in output
    (directory,) = (tmp_path / "build" / "crashes").iterdir()
    assert {path.name for path in directory.iterdir()} >= {"gw0.stderr", "gw0.stacks"}


def test_a_run_without_a_crash_leaves_no_files(run, tmp_path):
    code, output = run(1, test_good=PASSES)
    assert (code, "crashed" in output) == (0, False), output
    assert not any((tmp_path / "build" / "crashes").iterdir())


@pytest.mark.parametrize(
    ("nodeid", "plain"),
    [
        ("tests/a/test_x.py::test_a", "tests/a/test_x.py::test_a"),
        ("tests/a/test_x.py::test_a@spark", "tests/a/test_x.py::test_a"),
        ("tests/a/test_x.py::test_a[x@y]", "tests/a/test_x.py::test_a[x@y]"),
        ("tests/a/test_x.py::test_a[x@y]@jvm", "tests/a/test_x.py::test_a[x@y]"),
    ],
)
def test_the_name_of_a_test_is_without_its_group(nodeid, plain):
    assert plain_nodeid(nodeid) == plain
