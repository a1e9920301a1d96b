"""What people install: wheel and sdist, the same bytes each time, and texts that name nothing on a registry."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from veen.client.errors import ExtraMissing
from veen.core.catalogue import install_hint

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_FOR_USERS = {"all", "bench", "dev", "docs", "fuzz", "release"}


def built(directory, kind):
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    (file,) = directory.iterdir()
    return file


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def test_the_same_tree_gives_the_same_bytes(tmp_path, kind):
    first, second = built(tmp_path / "a", kind), built(tmp_path / "b", kind)
    assert first.name == second.name
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    if kind == "wheel":
        check_wheel(first)


def check_wheel(path):
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "veen.testing.pytest_plugin" in wheel.read(entry_points).decode()
    for file in ("py.typed", "__init__.pyi", "core/errors.toml", "client/evidence_page/veen-verify.js"):
        assert f"veen/{file}" in names
    assert not [name for name in names if name.startswith("tests")]
    assert path.stat().st_size < 5_000_000


def test_the_extra_all_names_the_extras_that_users_may_need():
    named = [name for line in EXTRAS["all"] for name in line.removeprefix("veen[").removesuffix("]").split(",")]
    assert sorted(named) == sorted(EXTRAS.keys() - NOT_FOR_USERS)


def texts():
    for folder in ("src", "docs", "deploy", "examples", "tools"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".toml", ".ipynb", ".sh", ".service") and path.is_file():
                yield path
    yield from (ROOT / name for name in ("README.md", "Makefile", "Containerfile"))


def test_no_text_installs_the_bare_name_from_a_registry():
    """No release of ours is there: anybody could own the name."""
    install = re.compile(
        r"(?:pipx?|uv pip|uv tool|uvx) +(?:install|run)? *[^\n]*['\" ]veen(?:\[[a-z,]+\])?['\"`.,; ]*$", re.MULTILINE
    )
    bad = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts()
        for match in install.finditer(path.read_text("utf-8"))
    ]
    assert bad == []
    assert install.search("run pip install 'veen[spark]'")  # the pattern does find them
    assert install.search("pip install veen")


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_a_hint_names_an_extra_that_exists(extra):
    assert f".[{extra}]" in install_hint(extra)


def test_a_feature_that_needs_an_extra_says_how_to_get_it():
    error = ExtraMissing("notebook", "to_pandas")
    assert (error.hint, "notebook" in str(error)) == (install_hint("notebook"), True)


def _locked():
    """Return the hashes of each line of constraints.lock, by the line of constraints.txt that it stands for."""
    lines = (ROOT / "constraints.lock").read_text("ascii").replace("\\\n", "").splitlines()
    split = (line.split(" --hash=") for line in lines if line and not line.startswith("#"))
    return {parts[0].strip(): [part.strip() for part in parts[1:]] for parts in split}


def test_the_lock_has_the_versions_of_the_constraints_with_hashes_and_no_place():
    versions = {
        line for line in (ROOT / "constraints.txt").read_text("ascii").splitlines() if line[:1] not in ("#", "")
    }
    locked = _locked()
    assert locked.keys() == versions, "write constraints.lock anew: its first lines say how"
    assert all(hashes for hashes in locked.values())
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", value) for hashes in locked.values() for value in hashes)
    assert "://" not in (ROOT / "constraints.lock").read_text("ascii")


def test_everything_that_sets_up_an_environment_takes_packages_by_their_hashes():
    """Nobody who installs the project needs the lock: `pip install .` has no constraints."""
    for name in ("Makefile", "Containerfile", "tools/build_native.sh", "tools/release_check.py"):
        text = (ROOT / name).read_text("utf-8")
        assert "constraints.lock" in text
        assert "constraints.txt" not in text, name


def test_a_file_of_another_hash_is_refused(tmp_path):
    """uv reads the hashes of constraints; a wheel that somebody exchanged is not installed."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed here")
    wheel = tmp_path / "evil-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("evil.py", "")
        archive.writestr("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        archive.writestr("evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("evil-1.0.dist-info/RECORD", "")
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for digest, status in ((good, 0), ("0" * 64, 1)):
        (tmp_path / "lock").write_text(f"evil==1.0 \\\n    --hash=sha256:{digest}\n")
        done = subprocess.run(
            [uv, "pip", "install", "--quiet", "--no-index", "--no-cache", "--find-links", tmp_path, "--constraints",
             tmp_path / "lock", "--target", tmp_path / f"to{status}", "--python", sys.executable, "evil"],
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert bool(done.returncode) == bool(status), done.stderr.decode()
        assert (b"ash mismatch" in done.stderr) == bool(status)


def test_the_base_image_takes_a_digest_and_names_no_registry():
    text = (ROOT / "Containerfile").read_text("utf-8")
    bases = re.findall("^FROM (\\S+)", text, re.MULTILINE)
    assert bases == ["${BASE}${BASE_DIGEST:+@${BASE_DIGEST}}"] * 2
    (base,) = re.findall("^ARG BASE=(\\S+)", text, re.MULTILINE)
    assert "/" not in base
    assert "warning" in text
