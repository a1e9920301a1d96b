"""Engine `auto`: one process for a small log, Spark for a large one. The bytes of results are the same.

Starting Spark takes about as long as one process needs for 32 MiB of log with all signatures (some 50,000 entries), on
any number of cores: below that Spark is never the faster one.
"""

import os
from importlib.util import find_spec
from typing import Final, Literal, NamedTuple

from veen.lake.log.errors import JavaMissing
from veen.storage.pinned import pin

Engine = Literal["python", "spark"]
AUTO_BYTES: Final = 32 << 20
_MIB: Final = 1024 * 1024


class EngineChoice(NamedTuple):
    """The engine, and a sentence with the reason."""

    engine: Engine
    reason: str


def log_bytes(uri: str) -> int:
    """Return the approximate size of a directory's log in bytes. Read names and sizes only."""
    return sum(chunk.size for chunk in pin(uri).chunks())


def choose_engine(size: int, *, for_spark: str | None = None, for_python: str | None = None) -> EngineChoice:
    """Choose an engine for `size` bytes of log.

    `for_spark` and `for_python` name an option that only this engine obeys: it decides whatever the size, since an
    option must not be ignored. A running spark-submit also decides.
    """
    about = f"{size / _MIB:.1f} MiB of log"
    if for_spark is not None:
        return EngineChoice("spark", f"engine: Spark, as {for_spark} was given")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return EngineChoice("spark", "engine: Spark, as spark-submit runs this")
    if for_python is not None:
        return EngineChoice("python", f"engine: python, as {for_python} was given")
    if size < AUTO_BYTES:
        return EngineChoice("python", f"engine: one process, {about}; Spark from {AUTO_BYTES // _MIB} MiB on")
    if find_spec("pyspark") is None:
        return EngineChoice("python", f"engine: one process, {about}; Spark would be faster and is not installed")
    from veen.lake.spark.session import find_java

    try:
        find_java()
    except JavaMissing as exc:
        return EngineChoice("python", f"engine: one process, {about}; Spark would be faster, but {exc}")
    return EngineChoice("spark", f"engine: Spark, {about}; one process below {AUTO_BYTES // _MIB} MiB")
