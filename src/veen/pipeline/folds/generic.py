"""The path that every overlay can take: a summary per part of the log, and a tree of merges (spec §11.3, D-82).

The laws of folds say that it does not matter how the log is cut or in which order summaries meet, so neither the number
of tasks nor their order shows in the result. A task keeps one summary, the driver the last few.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.overlays.fold import AnyFold
from veen.pipeline.columns import ddl
from veen.pipeline.events import Found
from veen.pipeline.folds.onspark import collected, part_number, slim
from veen.pipeline.folds.rows import found_in
from veen.pipeline.folds.seen import Seen
from veen.pipeline.folds.shipping import PARCELS, pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fold_frame", "merged", "summarized"]

_FANOUT: Final = 16  # summaries that one task merges, and at most as many reach the driver


def summarized(fold: AnyFold, found: Iterable[Found]) -> list[Any]:
    """What a task makes of its part, as one CBOR item."""
    seen = Seen()
    summary = fold.summarize(seen.events(found))
    return [fold.dump(summary), seen.to_tree()]


def merged(fold: AnyFold, parts: Iterable[list[Any]]) -> tuple[Any, Seen]:
    """What several parts amount to."""
    seen = Seen()

    def summaries() -> Iterator[Any]:
        for tree, noted in parts:
            seen.absorb(Seen.from_tree(noted))
            yield fold.load(tree)

    summary = fold.combine(summaries())
    return summary, seen


def fold_frame(frame: "DataFrame", fold: AnyFold) -> tuple[Any, Seen]:
    """The summary of all rows of a frame with the columns of SILVER."""

    def summarize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from pack(part_number(), summarized(fold, found_in(batches)))

    parcels = slim(frame).mapInArrow(summarize, ddl(PARCELS))
    count = parts = frame.rdd.getNumPartitions()
    while count > _FANOUT:
        count = -(-count // _FANOUT)
        parcels = _merge_round(parcels, fold, count)
    rows = collected(parcels, f"fold {fold.name}: summarize {parts} parts and merge")
    return merged(fold, (tree for _, tree in unpack((row["part"], row["slice"], row["data"]) for row in rows)))


def _merge_round(parcels: "DataFrame", fold: AnyFold, count: int) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        parts = [tree for _, tree in unpack(rows)]
        if parts:
            summary, seen = merged(fold, parts)
            yield from pack(part_number(), [fold.dump(summary), seen.to_tree()])

    return parcels.repartitionById(count, F.pmod(F.col("part"), F.lit(count)).cast("int")).mapInArrow(
        merge, ddl(PARCELS)
    )
