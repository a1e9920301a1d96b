"""Checks what a release promises, before anything is published.

    python tools/release_check.py            or: make release-check

1. Wheel and sdist are built twice and must have the same bytes; they go to dist/.
2. The wheel is installed, with the versions and hashes of constraints.lock, into an empty environment of every Python
   on this machine that requires-python allows. There `veen demo` must end well, and the data directories of earlier
   releases (tests/data) must verify with it.
3. What was installed is written down as an SBOM, CycloneDX in JSON: dist/veen-VERSION.cdx.json (extra `release`).

Pythons are found as python3.N in PATH and, where there is one, among the versions of pyenv. Which were used is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from packaging.specifiers import SpecifierSet

ROOT: Final = Path(__file__).resolve().parent.parent
UV: Final = Path(sys.executable).parent / "uv"
OLD: Final = ROOT / "tests" / "data"
_MINORS: Final = range(11, 30)
_EPOCH_1980: Final = "315532800"  # zip files know no earlier year


class CheckFailed(Exception):
    """A check that a release does not pass."""


class Interpreter(NamedTuple):
    """A Python of this machine."""

    version: tuple[int, int, int]
    path: Path

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in words], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise CheckFailed(f"{' '.join(map(str, words[:4]))} ended with {done.returncode}: {said}")
    return done.stdout


# --- the same bytes ----------------------------------------------------------------------------------------------


def source_time() -> str:
    """Return the time of the commit, used instead of the time of the build."""
    try:
        return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    except (CheckFailed, FileNotFoundError):
        return _EPOCH_1980


def build(directory: Path) -> dict[str, str]:
    """Wheel and sdist in a directory; SHA-256 by name."""
    # fmt: off
    run(
        UV, "build", "--quiet", "--python", sys.executable, "--build-constraints", ROOT / "constraints.lock",
        "--out-dir", directory, ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": source_time()},
    )
    # fmt: on
    files = [path for path in directory.iterdir() if path.suffix in (".whl", ".gz")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def compare_builds(first: dict[str, str], second: dict[str, str]) -> None:
    """CheckFailed unless both builds have one wheel and one sdist of the same bytes."""
    if sorted(Path(name).suffix for name in first) != [".gz", ".whl"]:
        raise CheckFailed(f"expected a wheel and an sdist, found {', '.join(first) or 'nothing'}")
    differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if differing:
        raise CheckFailed(f"two builds of the same commit differ: {', '.join(differing)}")


# --- every Python ------------------------------------------------------------------------------------------------


def candidates(environ: dict[str, str]) -> Iterator[Path]:
    """Programs that may be a Python 3."""
    for directory in filter(None, environ.get("PATH", "").split(os.pathsep)):
        for minor in _MINORS:
            yield Path(directory) / f"python3.{minor}"
    pyenv = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/*/bin/python3"))


def interpreters(required: str, environ: dict[str, str]) -> list[Interpreter]:
    """Every Python of this machine that `required` allows, each version once, the oldest first."""
    allowed = SpecifierSet(required)
    versions: dict[tuple[int, int, int], Path] = {}
    code = "import os, sys; print(*sys.version_info[:3], os.path.realpath(sys.executable))"
    for path in candidates(environ):
        if not path.is_file():
            continue
        done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
        words = done.stdout.split(maxsplit=3)
        if done.returncode or len(words) != 4:  # a shim without a version behind it
            continue
        version = (int(words[0]), int(words[1]), int(words[2]))
        if ".".join(map(str, version)) in allowed:
            versions.setdefault(version, Path(words[3].strip()))
    return [Interpreter(version, path) for version, path in sorted(versions.items())]


def try_release(wheel: Path, interpreter: Interpreter, place: Path) -> Path:
    """Install into an empty environment, run the demo, open old data directories; the Python of the environment."""
    run(UV, "venv", "--quiet", "--python", interpreter.path, place / "env")
    python = place / "env" / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, "--constraints", ROOT / "constraints.lock", wheel)
    home = place / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": f"{python.parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    veen = python.parent / "veen"
    run(veen, "demo", "--json", env=env, cwd=home)
    for archive in sorted(OLD.glob("data-directory-*.tar.gz")):
        directory = place / archive.name.removesuffix(".tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
        report = json.loads(run(veen, "hub", "verify-data", directory / "hub", "--json", env=env, cwd=home))
        if not report["ok"]:
            raise CheckFailed(f"{archive.name} does not verify")
    return python


# --- what is in it -----------------------------------------------------------------------------------------------


def write_sbom(python: Path, path: Path) -> int:
    """Write the components of an environment as CycloneDX; return their number."""
    program = Path(sys.executable).parent / "cyclonedx-py"
    if not program.exists():
        raise CheckFailed("cyclonedx-py is not installed here: install the extra release (make release-check does)")
    # fmt: off
    run(
        program, "environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library",
        "--output-reproducible", "--of", "JSON", "--output-file", path, python,
        env=os.environ | {"SOURCE_DATE_EPOCH": source_time()},
    )
    # fmt: on
    document = json.loads(path.read_text("utf-8"))
    names = {component["name"] for component in document["components"]}
    if document["metadata"]["component"]["name"] != "veen" or not {"cbor2", "PyNaCl"} & names:
        raise CheckFailed("the SBOM does not list what veen needs")
    return len(names)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check what a release promises.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where the files go; emptied first")
    options = parser.parse_args(words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        shutil.rmtree(options.output, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="veen-release-") as name:
            work = Path(name)
            files = build(options.output)
            compare_builds(files, build(work / "again"))
            for file, digest in files.items():
                print(f"{digest}  {file}")
            (wheel,) = options.output.glob("*.whl")
            pythons = interpreters(project["requires-python"], dict(os.environ))
            if not pythons:
                raise CheckFailed(f"no Python here satisfies {project['requires-python']}")
            sbom = options.output / f"{wheel.name.split('-')[0]}-{wheel.name.split('-')[1]}.cdx.json"
            for number, interpreter in enumerate(pythons):
                place = work / str(interpreter)
                place.mkdir()
                python = try_release(wheel, interpreter, place)
                print(f"Python {interpreter}: installed, the demo ran, data directories of earlier releases verify")
                if not number:
                    print(f"{sbom.name}: {write_sbom(python, sbom)} components")
                shutil.rmtree(place)
    except CheckFailed as exc:
        print(f"no release: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
