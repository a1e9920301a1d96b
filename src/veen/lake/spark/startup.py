"""Start of a Java virtual machine for Spark: a class-data archive, and a compiler that suits the work.

Loading and verifying some ten thousand classes is most of what Spark does before its first job. HotSpot can keep them
in a file (AppCDS): the first session leaves it behind when its JVM ends, or `veen doctor --prepare-spark` makes it, and
every later JVM of the same Java and the same jars maps it. A JVM ignores an archive that does not fit.

An archive is written under a temporary name and gets its final name when a later start sees that it is complete:
HotSpot writes the header last. `VEEN_SPARK_ARCHIVE` names another directory for archives; `off` means none.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from veen.client.home import Home
from veen.core.errors import VeenError
from veen.lake.log.errors import SparkFailed

ARCHIVE_VARIABLE: Final = "VEEN_SPARK_ARCHIVE"
PREPARING: Final = "preparing Spark: one start, some twenty seconds"
C1_BYTES: Final = 256 << 20  # a log below this size is read before the optimising compiler would pay
_C1: Final = "-XX:TieredStopAtLevel=1"
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"  # HotSpot warns on stdout of each class it cannot archive
_SUFFIX: Final = ".jsa"
_FREE_BYTES: Final = 1 << 30  # an archive has 160 MB; a disk that is nearly full gets none
_STALE_SECONDS: Final = 3600  # an unfinished archive is of a JVM that was killed
_MAGIC_BYTES: Final = 4
_TIMEOUT_SECONDS: Final = 600
_GRACE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Path of the archive for one Java and one set of jars; it may not exist yet."""

    path: Path

    @property
    def is_ready(self) -> bool:
        return _is_whole(self.path)

    @property
    def temporary(self) -> Path:
        """Path at which this process lets its JVM write an archive."""
        return self.path.with_name(f"{self.path.stem}.{os.getpid()}.new")

    def adopt(self) -> bool:
        """Rename a complete archive of an earlier JVM; remove those of killed ones. Return True if there is one now."""
        for candidate in sorted(self.path.parent.glob(f"{self.path.stem}.*.new")):
            with suppress(OSError):  # another process may do the same
                if not self.path.exists() and _is_whole(candidate):
                    candidate.replace(self.path)
                elif self.path.exists() or time.time() - candidate.stat().st_mtime > _STALE_SECONDS:
                    candidate.unlink()
        return self.is_ready


def _is_whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(file.read(_MAGIC_BYTES))
    except OSError:
        return False


def class_archive(java: str, spark: Path, environ: Mapping[str, str] = os.environ) -> ClassArchive | None:
    """Return the archive for this `java -version` and the jars of this Spark; None if archives are switched off."""
    place = environ.get(ARCHIVE_VARIABLE, "")
    if place == "off":
        return None
    try:
        directory = Path(place) if place else Home.default(environ).cache / "spark"
        jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (spark / "jars").glob("*.jar"))
    except (OSError, RuntimeError):  # no home directory, or no jars: Spark itself will say so
        return None
    key = sha256(repr((java, str(spark), jars)).encode()).hexdigest()[:16]
    return ClassArchive(directory / f"classes-{key}{_SUFFIX}")


def start_options(archive: ClassArchive | None, *, log_bytes: int | None) -> str:
    """Return options of a local session's JVM. A log of unknown size gets both compilers."""
    options = [_C1] if log_bytes is not None and log_bytes <= C1_BYTES else []
    if archive is not None:
        try:
            options += _archive_options(archive)
        except OSError:  # a home that is read-only: Spark starts as it always did
            return " ".join(options)
    return " ".join(options)


def _archive_options(archive: ClassArchive) -> list[str]:
    if archive.adopt():
        return [f"-XX:SharedArchiveFile={archive.path}", _QUIET]
    archive.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if " " in str(archive.path) or shutil.disk_usage(archive.path.parent).free < _FREE_BYTES:
        return []
    return [f"-XX:ArchiveClassesAtExit={archive.temporary}", _QUIET]


# --- ahead of the first run ---------------------------------------------------------------------------------------


def prepare() -> ClassArchive | None:
    """Start Spark once in another process, so that there is an archive; return None if archives are switched off.

    Raise SparkFailed if the JVM left none. Do nothing if there is one. Python's bytecode is compiled, too, where the
    packages are writable: installers leave that out, and each worker would do it again.
    """
    from veen.lake.spark.session import java_version
    from veen.lake.spark.submit import spark_home

    _compile_bytecode(spark_home())
    archive = class_archive(java_version(), spark_home())
    if archive is None or archive.adopt():
        return archive
    done = subprocess.run(
        [sys.executable, "-m", "veen.lake.spark.startup"],
        capture_output=True,  # also waits for the JVM, which has the same streams and writes the archive when it ends
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    # The JVM ends after its Python does, and writes the archive then. It has inherited the output that is captured
    # here, so it is done by now; a system on which it has not is given a moment.
    deadline = time.monotonic() + (_GRACE_SECONDS if done.returncode == 0 else 0)
    while not archive.adopt() and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    if not archive.is_ready:
        lines = done.stderr.strip().splitlines()
        raise SparkFailed(f"the JVM left no class-data archive: {lines[-1] if lines else 'it does not say why'}")
    return archive


def _compile_bytecode(spark: Path) -> None:
    import compileall

    for package in (spark, Path(__file__).parents[2]):
        if os.access(package, os.W_OK):
            compileall.compile_dir(package, quiet=2, workers=0)


def _rehearse() -> None:
    """Run what every command does with Spark: a task for each part, a shuffle, a sort, rows to the driver."""
    from veen.lake.spark.session import spark_session

    session = spark_session("preparation", log_bytes=0, register=False)
    rows = session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long")
    shuffled = rows.repartition(2, "id").sortWithinPartitions("id").toLocalIterator(prefetchPartitions=True)
    if sum(1 for _ in shuffled) != 2 or rows.orderBy("id").count() != 2:
        raise VeenError("Spark lost rows")
    session.stop()


if __name__ == "__main__":
    _rehearse()
