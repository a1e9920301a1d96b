"""tools/release_check.py: what it finds out, and what it does not let pass."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import release_check  # noqa: E402 - found by the path above


def test_builds_that_differ_are_no_release():
    first = {"veen-1.tar.gz": "a", "veen-1-py3-none-any.whl": "b"}
    release_check.compare_builds(first, dict(first))
    with pytest.raises(release_check.CheckFailed, match=r"differ: veen-1\.tar\.gz"):
        release_check.compare_builds(first, first | {"veen-1.tar.gz": "c"})
    with pytest.raises(release_check.CheckFailed, match="expected a wheel and an sdist"):
        release_check.compare_builds({"veen-1.tar.gz": "a"}, {"veen-1.tar.gz": "a"})


def test_every_python_that_is_allowed_is_found_once_and_shims_are_left_out(tmp_path):
    for name in ("python3.11", "python3.12", "python3.13"):
        path = tmp_path / name
        text = "exit 127\n" if name == "python3.12" else f'exec "{sys.executable}" "$@"\n'
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environ = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path / "none")}
    (only,) = release_check.interpreters(">=3.11", environ)
    assert only.version == sys.version_info[:3]
    assert release_check.interpreters(">=99", environ) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_this_tree_is_a_release(tmp_path):
    """Needs what `make release-check` installs; skips without."""
    if not (Path(sys.executable).parent / "cyclonedx-py").exists():
        pytest.skip("the extra release is not installed (make release-check)")
    command = [sys.executable, ROOT / "tools" / "release_check.py", "--output", tmp_path / "dist"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "dist").glob("*.cdx.json"))) == 1
