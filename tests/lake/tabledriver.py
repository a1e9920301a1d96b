"""Something that fills tables, as a program of its own, for tests that kill it.

Arguments: `spark` or `python`, the data directory, the tables, the key file, a directory for Spark's event log, and
`once` if it shall end when all that is there was loaded.
"""

import sys
from pathlib import Path

from veen.lake import tables
from veen.lake.log.keys import KeyFile


def streaming(path, to, keys, events, *, once):
    """A stream of Spark."""
    from veen.lake.spark.session import spark_session

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": Path(events).as_uri(),
        "spark.eventLog.compress": "false",
    }
    spark = spark_session("veen-tables", master="local[2]", settings=settings)
    query = tables.stream(
        spark, path, to, keys=keys, folds=["kv"], available_now=once, options={"maxEntriesPerTrigger": "40"}
    )
    query.awaitTermination()
    spark.stop()


def loading(path, to, keys, *, once):
    """One load after another, without Spark."""
    while True:
        tables.load(path, to, keys=keys, engine="python", max_entries=15)
        tables.refresh(to, "kv", path=path, keys=keys)
        if once:
            return


if __name__ == "__main__":
    engine, path, to, keys, events, *once = sys.argv[1:]
    if engine == "spark":
        streaming(path, to, KeyFile(keys), events, once=bool(once))
    else:
        loading(path, to, KeyFile(keys), once=bool(once))
