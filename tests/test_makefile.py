"""The Makefile names files that exist."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tests_that_run_without_the_native_module_exist():
    """A name that is left behind by a rename would end the whole check."""
    done = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    match = re.search(r"^PYTHON_TESTS :?= (.*)$", done.stdout, re.MULTILINE)
    assert match is not None
    assert len(files := match[1].split()) > 5
    assert [file for file in files if not (ROOT / file).is_file()] == []
