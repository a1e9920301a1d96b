"""Creation of Spark sessions, in one place.

A running session is used as it is, as on a notebook server or a managed cluster: nothing static is set on it, we never
stop it, and only settings that our results depend on are set. Under spark-submit the submitter decides where to run.
Otherwise a new session is made: quiet, in UTC, finding our data source in its Python workers, and on loopback unless a
cluster is named.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veen.client.errors import ExtraMissing
from veen.lake.log.errors import ConnectUnsupported, JavaMissing, SparkFailed, SparkMissing
from veen.lake.spark.connect import is_connect, tag_of
from veen.lake.spark.startup import class_archive, start_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

# What our results and our source depend on: set on any session, also on one we did not make. None of them is static.
_REQUIRED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, never a wrong sum
    "spark.sql.python.filterPushdown.enabled": "true",  # without it Spark refuses a source that can take filters
}
# For a session of our own, wherever it runs.
OWN: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",  # bars of Spark's own among our lines
    "spark.sql.adaptive.enabled": "false",  # plans that do not depend on how the data happened to be cut
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOG4J} -XX:+UseSerialGC",
}
# And where it runs on this machine alone.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
    # A laptop that builds something else at the same time answers late, and nothing is lost by waiting.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.executor.heartbeatInterval": "60s",
    "spark.network.timeout": "600s",
    # Spark's own count of tasks leaves out what happens within 100 ms, until something else does: up to a heartbeat.
    "spark.ui.liveUpdate.period": "0ms",
}

_LOG: Final = "spark.veen.log"
_NEEDED: Final = ("pandas", "pyarrow", "pyspark.sql", "veen.lake.spark.runner")  # pandas: PySpark itself looks for it
_REGISTERED: Final = "spark.veen.registered"  # a mark of our own on the session, not a setting


def find_java() -> str:
    """Return the java that Spark will start. Raise JavaMissing if there is none, or an old one."""
    return _find_java()[0]


def java_version() -> str:
    """Return the output of `java -version`: the version, the build, and the vendor."""
    return _find_java()[1]


@cache
def _find_java() -> tuple[str, str]:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JavaMissing("there is no Java: Spark needs one" if java is None else f"{java}: JAVA_HOME has no Java")
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603 - as Spark would
    except OSError as exc:
        raise JavaMissing(f"{java}: {exc.strerror}") from exc
    match = re.search(r'version "(\d+)(?:\.(\d+))?', asked.stderr)
    version = 0 if match is None else int(match[2] or 0) if match[1] == "1" else int(match[1])  # 8 calls itself 1.8
    if version < MIN_JAVA:
        raise JavaMissing(f"{java} has version {version or 'unknown'}; Spark needs {MIN_JAVA} or newer")
    return java, asked.stderr


def spark_session(
    app: str = "veen",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log_bytes: int | None = None,
    register: bool = True,
) -> "SparkSession":
    """Return the running session, or a new one: on `master` if given, else on all cores of this machine.

    `app`, `master`, `settings` and `log_bytes` are for a new session; a running one keeps its own. `log_bytes`, the
    size of the log that it will read, chooses the compiler of its JVM. Without `register` it does not know
    `veen.receipts` and `veen.checkpoints` until `veen.lake.spark.settings.reader` is used: registering takes seconds.
    """
    session = _find_running() or _start(app, master, settings or {}, log_bytes)
    for name, value in _REQUIRED.items():
        session.conf.set(name, value)
    if register:
        register_sources(session)
    return session


def register_sources(session: "SparkSession") -> None:
    """Register the formats that Spark does not find itself: it finds one per module, and warns about duplicates."""
    if session.conf.get(_REGISTERED, None) is None:
        from veen.lake.spark.source import CheckpointSource, ReceiptSource

        for source in (ReceiptSource, CheckpointSource):
            session.dataSource.register(source)
        session.conf.set(_REGISTERED, "true")


@contextmanager
def using_session(
    given: "SparkSession | None" = None,
    app: str = "veen",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    log_bytes: int | None = None,
    register: bool = True,
) -> Iterator["SparkSession"]:
    """Provide the given or running session, or a new one that is stopped afterwards."""
    if given is not None:
        yield given
        return
    ours = _find_running() is None
    session = spark_session(app, master=master, settings=settings, log_bytes=log_bytes, register=register)
    try:
        yield session
    finally:
        if ours:
            session.stop()


def _find_running() -> "SparkSession | None":
    """Return the running session, also one of another thread; its settings remain."""
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as exc:
        raise SparkMissing("pyspark is not installed") from exc
    if {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & set(os.environ) or os.environ.get(
        "SPARK_API_MODE"
    ) == "connect":
        return _connect()
    session = SparkSession.getActiveSession()
    # Of another thread's, Spark tells only by a name that is not public.
    if session is None and getattr(SparkContext, "_active_spark_context", None) is not None:
        session = SparkSession.builder.getOrCreate()
    return session


def _connect() -> "SparkSession":
    """Return the session of the server that the environment names; it is the user's, and we never stop it."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        raise ConnectUnsupported("the environment asks for Spark Connect and names no server: SPARK_REMOTE=sc://HOST")
    try:
        return SparkSession.builder.getOrCreate()
    except ImportError as exc:  # grpcio and its companions
        raise ExtraMissing("connect", "Spark Connect") from exc
    except PySparkException as exc:
        raise SparkFailed(f"{os.environ['SPARK_REMOTE']}: {str(exc).splitlines()[0]}") from exc


def _start(app: str, master: str | None, settings: Mapping[str, str], log_bytes: int | None) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {"spark.app.name": app}
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # its JVM runs, and has been told everything
    if not submitted:
        master = master or os.environ.get("MASTER") or "local[*]"
        chosen |= {"spark.master": master, **OWN}
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Spark asks for it before it reads its settings
            chosen |= _LOCAL
    chosen |= {**_REQUIRED, **settings}
    if not submitted and getattr(SparkContext, "_gateway", None) is None:  # a JVM outlives the session it was for
        if "spark.driver.extraJavaOptions" not in settings and chosen["spark.master"].startswith("local"):
            chosen["spark.driver.extraJavaOptions"] += " " + _start_options(log_bytes)
        conf = SparkConf().setAll(list(chosen.items()))
        SparkContext(conf=conf, gateway=_launch_and_import(conf, chosen.get(_LOG)))
    builder = SparkSession.builder
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start_options(log_bytes: int | None) -> str:
    from veen.lake.spark.submit import spark_home

    # The launcher of spark-submit is a JVM of its own, which ends after a moment.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    return start_options(class_archive(java_version(), spark_home()), log_bytes=log_bytes)


def _launch_and_import(conf: Any, log: str | None) -> Any:
    """Launch a JVM, which takes a second or two, and meanwhile import the modules of every job."""
    with ThreadPoolExecutor(1, thread_name_prefix="spark-start") as pool:
        launch = pool.submit(_launch, conf, log)
        for module in _NEEDED:
            with suppress(ImportError):  # whoever needs it will say so
                import_module(module)
        return launch.result()


def _launch(conf: Any, log: str | None) -> Any:
    """Launch a JVM. Its stderr, and that of its Python workers, goes to `log`, or nowhere."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    with Path(log).open("a+b") if log else tempfile.TemporaryFile() as said:
        try:
            return launch_gateway(conf, {"stderr": said})
        except PySparkRuntimeError as exc:
            said.seek(0)
            lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
            raise SparkFailed(f"Spark did not start: {lines[-1] if lines else exc}") from exc


# --- what is being done -------------------------------------------------------------------------------------------

_doing: list[str] = []
_lock: Final = threading.Lock()


@contextmanager
def describe(session: "SparkSession", what: str) -> Iterator[None]:
    """Name the jobs inside for the Spark UI and for progress."""
    undo = _name_jobs(session, what)
    with _lock:
        _doing.append(what)
    try:
        yield
    finally:
        with _lock:
            _doing.remove(what)
        with suppress(Exception):  # a generator that nobody finished may end after the JVM did
            undo()


def _name_jobs(session: "SparkSession", what: str) -> Callable[[], None]:
    if is_connect(session):
        session.addTag(tag := tag_of(what))
        return lambda: session.removeTag(tag)
    context: Any = session.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    return lambda: context.setJobDescription(before)


def current_work() -> str:
    """Return the latest description in effect, or "". Spark's own tracker does not know descriptions."""
    with _lock:
        return _doing[-1] if _doing else ""
