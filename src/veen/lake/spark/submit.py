"""A `veen` command as the application of spark-submit, with this package shipped to where tasks run.

What travels
- `code`: veen and pyspark_veen as a zip, by `--py-files`. Python imports no native library from a zip, so PyNaCl,
  cbor2, PyArrow and NumPy must be installed for the Python of the executors; `executor_check` says what is not.
- `all`: the package and everything it needs, by `--archives`, which Spark unpacks beside each executor. The executors
  need a Python of the same version on the same kind of machine, and nothing else.
- `nothing`: veen[spark] is installed everywhere.

Exit codes of spark-submit say little (1 is also its word for a cluster that it cannot reach), and 1 is our word for bad
evidence; so the application leaves its own where only the submitter looks.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from veen.lake.log.errors import SparkMissing, SubmitFailed
from veen.lake.spark.session import OWN, find_java

Ship = Literal["code", "all", "nothing"]
SHIPS: Final[tuple[Ship, ...]] = ("code", "all", "nothing")
_PACKAGES: Final = ("veen", "pyspark_veen")
_SITE: Final = "veen-site"  # the directory beside an executor into which the archive is unpacked
_EXIT: Final = "exit-code"
_LEVEL: Final = 1  # native libraries hardly shrink, and there are 260 MB of them
_MAIN, _CODE, _ALL = "veen_submitted.py", "veen.zip", "veen-site.zip"
_NOT_SHIPPED: Final = frozenset({"pyspark", "py4j"})  # Spark brings its own

# spark-submit wants a file. It is not one of the package: Python puts the directory of the file first on its path, and
# ours have modules named like those of the standard library.
_APPLICATION: Final = '''\
"""Runs one veen command as a Spark application."""

import os
import sys
from pathlib import Path

# Spark gives its driver one pipe for both outputs, which ends in the JVM's stdout. Ours go where the JVM's go, each to
# its own: data stays apart from words about it, and a terminal is one. Where /proc cannot tell, all is as Spark has it.
for number in (1, 2):
    try:
        own = os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except OSError:
        continue
    os.dup2(own, number)
    os.close(own)

from veen.cli import main  # noqa: E402 - once its output is in place

code = 5
try:
    main()
except SystemExit as exc:
    code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 5
finally:
    left = os.environ.get("VEEN_SUBMIT_EXIT")
    if left and Path(left).parent.is_dir():
        Path(left).write_text(str(code))
sys.exit(code)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Request to a cluster."""

    command: Sequence[str]  # words of a veen command
    master: str
    deploy_mode: Literal["client", "cluster"] = "client"
    ship: Ship = "code"
    python: str | None = None  # of the executors
    confs: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()  # further words for spark-submit, as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The command line and the environment of spark-submit."""

    words: tuple[str, ...]
    environment: Mapping[str, str]  # beside that of this process
    exit_file: Path


def spark_home() -> Path:
    """Return SPARK_HOME, or else the directory of the installed PySpark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    try:
        import pyspark
    except ImportError as exc:
        raise SparkMissing("pyspark is not installed") from exc
    return Path(pyspark.__file__).parent


def spark_version() -> str:
    """Return the version of the installed PySpark."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as exc:
        raise SparkMissing("pyspark is not installed") from exc


# --- what travels ------------------------------------------------------------------------------------------------


def pack_code(target: Path) -> Path:
    """Pack the package as a zip: the same bytes for the same code."""
    roots = [Path(_root(name)) for name in _PACKAGES]
    return _write_zip(
        target, ((file, f"{root.name}/{file.relative_to(root)}") for root in roots for file in _files(root))
    )


def pack_all(target: Path) -> Path:
    """Pack the package and every distribution that veen[spark] needs, except Spark itself."""
    archive_path = _write_zip(target, _files_to_ship())
    with zipfile.ZipFile(archive_path, "a") as archive:
        names = set(archive.namelist())
        for root in map(Path, map(_root, _PACKAGES)):  # an editable installation lists no files
            for file in _files(root):
                if (name := f"{root.name}/{file.relative_to(root)}") not in names:
                    archive.writestr(_info(name), file.read_bytes(), compresslevel=_LEVEL)
    return archive_path


def _root(package: str) -> str:
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SubmitFailed(f"the package {package} is not there to be shipped")
    return next(iter(spec.submodule_search_locations))


def _files(root: Path) -> Iterator[Path]:
    yield from (path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _files_to_ship() -> Iterator[tuple[Path, str]]:
    for name in _distributions_to_ship():
        for file in importlib.metadata.files(name) or ():
            path, parts = Path(str(file.locate())), file.parts
            # Scripts lie outside of the packages; tests of others are a third of all the bytes.
            if ".." not in parts and not {"__pycache__", "tests"} & set(parts) and path.is_file():
                yield path, file.as_posix()


def _distributions_to_ship() -> list[str]:
    """Return the distributions that veen[spark] needs on this machine, recursively."""
    needed: dict[str, None] = {}
    waiting = [("veen", frozenset({"spark"}))]
    while waiting:
        name, extras = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in needed or key in _NOT_SHIPPED:
            continue
        try:
            required = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or version
        needed[key] = None
        waiting += [requirement for text in required if (requirement := _requirement(text, extras)) is not None]
    return sorted(needed)


def _requirement(text: str, extras: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", text)
    if wanted is not None and wanted[1] not in extras:
        return None
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?", text)
    if match is None:
        return None
    return match[1], frozenset(part.strip() for part in (match[2] or "").split(",") if part.strip())


def _write_zip(target: Path, files: Iterable[tuple[Path, str]]) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path, name in files:
            archive.writestr(_info(name), path.read_bytes(), compresslevel=_LEVEL)
    return target


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # its date is that of the first day: the bytes depend on the files alone
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    return info


# --- spark-submit ------------------------------------------------------------------------------------------------


def stage(asked: Submission, staging: Path) -> None:
    """Write all files that travel into `staging`."""
    (staging / _MAIN).write_text(_APPLICATION)
    if asked.ship == "code":
        pack_code(staging / _CODE)
    elif asked.ship == "all":
        pack_all(staging / _ALL)


def plan(asked: Submission, staging: Path) -> Plan:
    """Return the command line of spark-submit after `stage`."""
    # Those of a session of our own. Options of the driver's JVM name a file of this machine.
    own = {name: value for name, value in OWN.items() if asked.deploy_mode == "client" or "driver" not in name}
    confs = {**own, **_paths(asked), **asked.confs}
    words = [str(spark_home() / "bin" / "spark-submit"), "--master", asked.master, "--deploy-mode", asked.deploy_mode]
    words += ["--name", f"veen {' '.join(asked.command[:2])}"]
    if asked.ship == "code":
        words += ["--py-files", str(staging / _CODE)]
    elif asked.ship == "all":
        words += ["--archives", f"{staging / _ALL}#{_SITE}"]
    for name, value in sorted(confs.items()):
        words += ["--conf", f"{name}={value}"]
    words += [*asked.options, str(staging / _MAIN), *asked.command]
    environment = {"VEEN_SUBMIT_EXIT": str(staging / _EXIT)}
    if asked.deploy_mode == "client":
        environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
        environment["PYSPARK_PYTHON"] = asked.python or os.environ.get("PYSPARK_PYTHON") or sys.executable
        # The driver's own Python workers look for data sources, with the Python of the executors.
        imported = [str(Path(_root(name)).parent) for name in _PACKAGES]
        inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*imported, *inherited]))
    return Plan(words=tuple(words), environment=environment, exit_file=staging / _EXIT)


def _paths(asked: Submission) -> dict[str, str]:
    confs = {}
    if asked.ship == "all":
        confs["spark.executorEnv.PYTHONPATH"] = _SITE
    if asked.deploy_mode == "cluster":  # the driver runs beside the executors: what holds for them holds for it
        if asked.python:
            confs["spark.pyspark.python"] = asked.python
        if asked.ship == "all":
            confs["spark.yarn.appMasterEnv.PYTHONPATH"] = _SITE
            confs["spark.kubernetes.driverEnv.PYTHONPATH"] = _SITE
    return confs


def submit(asked: Submission, staging: Path) -> int:
    """Run the command to its end and return its exit code. Raise SubmitFailed if it did not start."""
    find_java()
    stage(asked, staging)
    command = plan(asked, staging)
    command.exit_file.unlink(missing_ok=True)
    try:
        ended = subprocess.run(command.words, env={**os.environ, **command.environment}, check=False)  # noqa: S603 - no shell
    except OSError as exc:
        raise SubmitFailed(f"{command.words[0]}: {exc.strerror}") from exc
    try:
        return int(command.exit_file.read_text())
    except (OSError, ValueError):
        if asked.deploy_mode == "cluster" and ended.returncode == 0:
            return 0  # the application ran elsewhere, and left its code there
        raise SubmitFailed(f"spark-submit ended with {ended.returncode} before the command did") from None
