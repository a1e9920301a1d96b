"""Streaming into the tables: Spark decides when and up to where, the manifest has what is loaded.

A micro-batch is a set of positions. Its rows are made by the code of a batch load, from the heads in the manifest up to
those positions, and committed with them in one manifest. A batch that is repeated after a crash resumes from the
committed heads: nothing is lost or doubled, whatever was killed, even if the checkpoint location is lost.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from veen.io.places import absolute
from veen.io.stores import TableStore
from veen.lake.log.entries import Level
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Mark, make_prefix
from veen.lake.tables.gold import refresh
from veen.lake.tables.loading import LoadJob, check_hub, commit_prefix, complete_typed, definitions_of_typed
from veen.lake.tables.manifest import TableLog, TableState
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHECKPOINT: Final = "stream"


def stream(
    spark: "SparkSession",
    path: str,
    to: str | TableStore,
    *,
    keys: KeyFile,
    checkpoint: str | None = None,
    folds: Sequence[str] = (),
    every: str | None = None,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
    verify: Level = "hash",
    parts: int | None = None,
) -> "StreamingQuery":
    """Keep bronze, silver and the states of `folds` up to date; exactly once, also after a crash.

    `every` is an interval ("10 seconds"); `available_now` stops when all present entries are loaded. `options` are
    those of the source, such as maxEntriesPerTrigger. `checkpoint` is the place of Spark's offsets. Default: beside the
    tables, if they are in a directory.
    """
    log, path, keys = TableLog(to), absolute(path), keys.absolute()
    where = checkpoint or f"{log.store.uri}/{CHECKPOINT}"
    source = (
        spark.readStream.format("veen")
        .schema("label BINARY, stream_seq BIGINT")  # positions only: rows are made by the load
        .options(**{"verify": "none", **(options or {})})
        .load(path)
    )

    def batch(found: "DataFrame", number: int) -> None:
        ends = {bytes(row["label"]): row["last"] for row in _ends(found)}
        load_upto(path, log.store, ends, keys=keys, spark=spark, verify=verify, parts=parts, batch=(where, number))
        for fold in folds:
            refresh(log.store, fold, spark=spark, path=path, keys=keys)

    writer = source.writeStream.foreachBatch(batch).option("checkpointLocation", where).queryName("veen-tables")
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def _ends(found: "DataFrame") -> Sequence[Any]:
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    ends: Sequence[Any] = found.groupBy("label").agg(F.max("stream_seq").alias("last")).collect()
    return ends


def load_upto(
    path: str,
    to: str | TableStore,
    ends: Mapping[bytes, int],
    *,
    keys: KeyFile,
    spark: "SparkSession | None" = None,
    verify: Level = "hash",
    parts: int | None = None,
    batch: tuple[str, int] | None = None,
) -> TableState:
    """Load labels up to the given positions in one commit; skip what is loaded already."""
    log = TableLog(to)
    state = log.state()
    pinned = pin(path)
    check_hub(state, pinned.identity)
    marks, upto = state.marks, {}
    for label, end in ends.items():
        there = pinned.labels[label].size if label in pinned.labels else 0
        last = min(end, there)  # a row behind the last entry speaks of stray bytes, and is none
        if last > marks.get(label, Mark()).upto_seq:
            upto[label] = last
    prefix = make_prefix(path, since=marks, upto=upto, pinned=pinned, roots=False)
    typed = definitions_of_typed()
    if not prefix.labels:
        return complete_typed(log, log.ensure_made(state, typed), typed, spark=spark)
    job = LoadJob(
        uri=absolute(path),
        to=log.store,
        keys=keys.absolute(),
        level=verify,
        identity=pinned.identity,
        typed=typed,
        indexes=state.indexes,
    )
    return commit_prefix(log, state, prefix, job, spark=spark, parts=parts, kind="stream", batch=batch)
