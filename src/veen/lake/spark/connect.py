"""Sessions with and without a SparkContext: the facts that the pipeline needs of either.

Spark Connect gives its clients DataFrames and settings, and no SparkContext. Results do not depend on the difference:
the number of tasks comes from settings, descriptions of jobs become tags, and progress has phases without tasks.
"""

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOCAL_MASTER: Final = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")
_TASKS: Final = 8  # where nothing says how many cores a cluster has: enough for a few, and cheap for one


def is_connect(session: "SparkSession") -> bool:
    return ".connect." in type(session).__module__


def parallelism(session: "SparkSession") -> int:
    """Return the number of tasks that the cluster runs at a time, as far as the session states it."""
    if not is_connect(session):
        return int(session.sparkContext.defaultParallelism)
    default = session.conf.get("spark.default.parallelism", None)
    if default is not None and default.isdecimal():
        return max(1, int(default))
    local = _LOCAL_MASTER.fullmatch(session.conf.get("spark.master", "") or "")
    if local is not None:
        return max(1, int(local[1]))
    instances, cores = (session.conf.get(f"spark.executor.{name}", None) or "" for name in ("instances", "cores"))
    if instances.isdecimal():
        return max(1, int(instances) * (int(cores) if cores.isdecimal() else 1))
    return _TASKS


def partition_count(frame: "DataFrame") -> int:
    """Return the number of partitions of a frame; over Connect an estimate."""
    session: Any = frame.sparkSession
    return parallelism(session) if is_connect(session) else frame.rdd.getNumPartitions()


def tag_of(what: str) -> str:
    """Return a description as a tag, which must not contain commas."""
    return what.replace(",", ";")
