"""The door to `veen_native`: where it is absent, turned off or does not fit, everything goes on in Python."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from veen import native

ROOT = Path(__file__).parents[1]


def module(version=native.VERSION, features=()):
    return lambda name: SimpleNamespace(__version__=version, cpu_features=lambda: list(features))


def raising(error):
    def import_module(name):
        raise error

    return import_module


def test_a_module_that_fits_is_used():
    loaded = native.load({}, module(features=[("avx2", True)]))
    assert loaded.module is not None
    assert (loaded.status, loaded.cpu_features) == ("native", ("avx2",))
    assert "built for this kind of CPU: avx2" in loaded.what
    assert "any CPU" in native.load({"VEEN_NATIVE": "1"}, module()).what


@pytest.mark.parametrize(
    ("environment", "import_module", "status", "word"),
    [
        ({"VEEN_NATIVE": "0"}, module(), "off", "VEEN_NATIVE=0"),
        ({}, raising(ModuleNotFoundError("no module", name="veen_native")), "absent", "make native"),
        ({}, raising(ModuleNotFoundError("no module", name="other")), "unfit", "cannot be imported"),
        ({}, raising(ImportError("invalid ELF header")), "unfit", "invalid ELF header"),
        ({}, raising(SystemError("init failed")), "unfit", "init failed"),
        ({}, module(version="0.0.1"), "unfit", "its version is 0.0.1"),
        ({}, lambda name: SimpleNamespace(), "unfit", "its version is None"),
        ({}, module(features=[("avx2", True), ("avx512ifma", False)]), "unfit", "with avx512ifma, which"),
    ],
)
def test_anything_else_leaves_python_and_says_why(environment, import_module, status, word):
    loaded = native.load(environment, import_module)
    assert loaded.module is None
    assert loaded.status == status
    assert loaded.what.startswith("Python; ")
    assert word in loaded.what


def test_all_places_name_the_same_version():
    cargo = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text("utf-8"))["package"]["version"]
    project = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    lock = re.search(r'name = "veen-native"\nversion = "([^"]*)"', (ROOT / "native" / "Cargo.lock").read_text("utf-8"))
    assert lock is not None
    assert cargo == project == lock[1] == native.VERSION


def test_the_variable_turns_it_off_for_a_whole_process():
    script = (
        "from veen import native; from veen.core import ed25519 as e; print(native.LOADED.status, e._verify.__name__)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], env={"VEEN_NATIVE": "0"}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["off", "libsodium_verify"]


def test_without_cargo_the_build_says_so_and_goes_on(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "grep", "uname"):
        (tools / name).symlink_to(shutil.which(name) or "")
    answer = subprocess.run(
        [ROOT / "tools" / "build_native.sh"],
        env={"PATH": str(tools), "VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == "native: not built, as there is no cargo; everything runs in Python\n"
