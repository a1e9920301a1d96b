"""Tests of one file run in one process, and those that take longest begin first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduling import LONGEST_FIRST, FileScheduling

ROOT = Path(__file__).parent.parent
SPLIT_SCOPE = FileScheduling._split_scope  # it uses nothing of its object, which belongs to a running controller


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/hub/test_api.py::test_a", "tests/hub/test_api.py"),
        ("tests/hub/test_model.py::TestHub::runTest", "tests/hub/test_model.py"),
        ("tests/hub/test_api.py::test_a[x::y@z]", "tests/hub/test_api.py"),
        ("tests/lake/test_source.py::test_b@spark", "spark"),
        ("tests/lake/test_source.py::test_b[a@b]@spark", "spark"),
    ],
)
def test_a_file_or_a_group_is_a_unit_of_work(nodeid, scope):
    scheduling = object.__new__(FileScheduling)
    assert SPLIT_SCOPE(scheduling, nodeid) == scope


def test_what_begins_first_exists():
    """A name that is left behind by a rename would begin anywhere."""
    files = [scope for scope in LONGEST_FIRST if "/" in scope]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    groups = set(re.findall(r'xdist_group\("(\w+)"\)', sources))
    assert set(LONGEST_FIRST) - set(files) <= groups
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)


CONFTEST = """
import pytest
from tests.scheduling import FileScheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
"""
CRASH = """
import os, pathlib, signal

def test_that_crashes_once():
    marker = pathlib.Path(__file__).with_name("crashed")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_process_that_crashes_late_fails_its_test_and_the_others_are_run(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(40):
        (tmp_path / f"test_{number:02}.py").write_text("def test(): pass")
    (tmp_path / "test_35.py").write_text(CRASH)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "--override-ini=addopts="]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = str(ROOT)
    run = subprocess.run(
        [*command, *options, str(tmp_path)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"^1 failed, 40 passed", run.stdout, re.MULTILINE), run.stdout  # it is run again, and passes
    assert "crashed while running 'test_35.py::test_that_crashes_once'" in run.stdout, run.stdout


def test_the_order_of_named_files_takes_no_fixture_away():
    files = ["journeys/test_tasks.py", "test_words.py", "journeys/test_together.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--setup-plan"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [*command, *(f"tests/{file}" for file in files)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "SETUP    F people" in run.stdout
