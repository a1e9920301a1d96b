"""Tests of one file run in one process, and those that take longest begin first."""

import re
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
        ("tests/pipeline/test_source.py::test_b@spark", "spark"),
        ("tests/pipeline/test_source.py::test_b[a@b]@spark", "spark"),
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
