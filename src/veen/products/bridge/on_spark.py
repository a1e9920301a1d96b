"""Reconciliation on Spark: each task folds a part of the import streams, the driver merges the summaries."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Prefix
from veen.lake.log.slices import Slice, divide
from veen.lake.spark.runner import over, parts_for
from veen.products.bridge.reconciling import Arrived, Offline, fold_slices, import_prefix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUMMARY: Final = (Column("summary", "BINARY", pa.binary(), "of one task"),)


def fold_on_spark(
    spark: "SparkSession", offline: Offline, keys: KeyFile, parts: int | None = None, prefix: Prefix | None = None
) -> Arrived:
    """Return the summary of `fold_imports`, for any number of tasks. Keys travel by path, never by value (D-120)."""
    key_file = keys.absolute()
    prefix = prefix or import_prefix(offline.uri, key_file.load())
    tasks = divide(prefix.slices, parts or parts_for(spark, prefix.size))
    arrived = Arrived()
    if not tasks:
        return arrived

    def run(slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        summary = fold_slices(offline, key_file.load(), slices)
        yield pa.RecordBatch.from_pylist([{"summary": summary.to_bytes()}], schema=arrow_schema(_SUMMARY))

    for row in over(spark, tasks, run, _SUMMARY).collect():
        arrived = arrived.merge(Arrived.from_bytes(bytes(row["summary"])))
    return arrived
