"""Events of a pinned prefix as a DataFrame: the rows of `veen.lake.log.events`, by tasks (D-79, D-120).

frame = events_frame(spark, make_prefix("./hub"), KeyFile("reader.keys"))
"""

from typing import TYPE_CHECKING, Any

from veen.lake.log.columns import ddl
from veen.lake.log.entries import Level
from veen.lake.log.events import SILVER, EventJob, event_batches, prefix_of
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Prefix
from veen.lake.spark.runner import divide_timed, over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def events_frame(
    spark: "SparkSession",
    source: str | Prefix,
    keys: KeyFile,
    *,
    parts: int | None = None,
    verify: Level = "hash",
    **selected: Any,
) -> "DataFrame":
    """Return the entries as a DataFrame with the columns of SILVER, unsorted: sort by SORT_KEYS where it matters.

    The frame is of one prefix: call `make_prefix` first to have its cuts. `parts` is the number of tasks.
    """
    prefix = prefix_of(source, selected)
    job = EventJob(prefix.uri, keys.absolute(), verify, prefix.identity)
    tasks = divide_timed(spark, prefix, parts)
    if not tasks:
        return spark.createDataFrame([], ddl(SILVER))
    return over(spark, tasks, lambda slices: event_batches(job, slices), SILVER)
