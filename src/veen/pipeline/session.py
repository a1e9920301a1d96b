"""The one place that makes a SparkSession (NOTES-SPARK, UX §7).

A session that already runs is used as it is, as on a notebook server or a managed cluster; only what must hold for our
results is set on it. A new one is quiet, on loopback, in UTC, and finds our data source in its Python workers.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veen.pipeline.errors import JavaMissing, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MIN_JAVA", "described", "find_java", "spark_session"]

MIN_JAVA: Final = 17
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

# What our results depend on: set on any session, also on one we did not make.
_REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, never a wrong sum
}
_HELPFUL: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# Only for a session of our own.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "false",  # plans that do not depend on how the data happened to be cut
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOG4J} -XX:+UseSerialGC",
}


@cache
def find_java() -> str:
    """The java that Spark will start; JavaMissing names what was found instead."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise JavaMissing("there is no Java: Spark needs one" if found is None else f"{found}: JAVA_HOME has no Java")
    asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - as Spark would
    match = re.search(r'version "(\d+)', asked.stderr)
    if match is None or int(match[1]) < MIN_JAVA:
        version = match[1] if match else "unknown"
        raise JavaMissing(f"{found} has version {version}; Spark needs {MIN_JAVA} or newer")
    return found


def spark_session(
    app: str = "veen", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """The active session, or a new one: on `master` if given, else on all cores of this machine."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as exc:
        raise SparkMissing("pyspark is not installed") from exc
    session = SparkSession.getActiveSession()
    if session is None:
        find_java()
        _prepare_workers()
        builder = SparkSession.builder.appName(app)
        own = {**_HELPFUL, **_REQUIRED, **(settings or {})}
        if "SPARK_REMOTE" not in os.environ and "MASTER" not in os.environ:
            own = {**_LOCAL, **own}
            builder = builder.master(master or "local[*]")
        elif master:
            builder = builder.master(master)
        for name, value in own.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    for name, value in _REQUIRED.items():
        session.conf.set(name, value)
    from veen.pipeline.source import CheckpointSource, ReceiptSource

    for source in (ReceiptSource, CheckpointSource):  # Spark finds `veen` by itself, but only one format per module
        session.dataSource.register(source)
    return session


def _prepare_workers() -> None:
    """Before the JVM starts, since it hands its environment on to the Python workers.

    Spark looks for data sources in its workers' Python; the setting `spark.pyspark.python` alone comes too late.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@contextmanager
def described(session: "SparkSession", what: str) -> Iterator[None]:
    """Name the jobs inside for the Spark UI and for whoever shows progress."""
    context: Any = session.sparkContext
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setJobDescription(None)
