"""The wallet ledger in parallel: windows of the logical order, settled one after another (WAL §6, D-100).

Executors decode, judge by policy, and say of each range of the order what it would do if nothing were refused
(`veen.overlays.wallet.flows`). The driver adds that up, range by range; only where something may be refused does it
fetch the events of that range and replay those of the wallets concerned, by the same rules. So the cost on the driver
is one addition per wallet and range, and the replays; in the worst case, when every range has a doubt that reaches
every wallet, it is that of folding one event after another.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.overlays.decode import Issue
from veen.overlays.ordered import Progress
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.rules import Record
from veen.pipeline.columns import Column, arrow_schema, ddl
from veen.pipeline.events import SILVER, SORT_KEYS, Found
from veen.pipeline.folds.onspark import collected, kept, order_of, part_number, slim
from veen.pipeline.folds.rows import found_in
from veen.pipeline.folds.seen import Seen
from veen.pipeline.folds.shipping import PARCELS, pack, unpack
from veen.pipeline.folds.tasks import batched, noted, read_noted
from veen.pipeline.folds.windows import Books, Entry, RangeSummary, entries_of, summarize_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["fold_ledger"]

_RANGE_ENTRIES: Final = 20_000  # what the driver fetches at once, if it must
_MAX_RANGES: Final = 1_000


def _binary(name: str, about: str) -> Column:
    return Column(name, "BINARY", pa.binary(), about)


ENTRIES: Final = (
    *(column for column in SILVER if column.name in (*SORT_KEYS, "label", "schema", "body")),
    _binary("identity", "what copies of one event share"),
    Column("copied", "BOOLEAN", pa.bool_(), "whether it says that it is a copy"),
    Column("counts", "BOOLEAN", pa.bool_(), "whether it may change a balance"),
    Column("code", "STRING", pa.string(), "why not, if that is to be reported"),
    Column("what", "STRING", pa.string(), "the same in words"),
    _binary("data", "what the task has seen; such a row is no entry"),
)


def fold_ledger(
    frame: "DataFrame", fold: LedgerFold, parts: int | None = None
) -> tuple[Progress[bytes, Record], Seen, int]:
    """The summary of all rows, what they were, and how many entries had to be replayed."""

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from batched(_rows(fold, found_in(batches)), arrow_schema(ENTRIES))

    books = Books()
    with kept(slim(frame).mapInArrow(judge, ddl(ENTRIES))) as rows:
        seen = read_noted(collected(rows.where("data IS NOT NULL").select("data"), "ledger: open and judge"))
        bad = rows.where("data IS NULL AND identity IS NULL").select("label", "stream_seq", "code", "what")
        issues = [Issue(bytes(row["label"]), row["stream_seq"], row["code"], row["what"]) for row in bad.collect()]
        count = parts or min(_MAX_RANGES, 1 + seen.rows // _RANGE_ENTRIES)
        with kept(_ranges(_firsts(rows.where("identity IS NOT NULL")), count)) as ranged:
            for number, found in _summaries(ranged):
                books.add(found, lambda number=number: _fetched(ranged, number))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    return books.progress(seen.ts, issues), seen, books.replayed


def _rows(fold: LedgerFold, found: Iterable[Found]) -> Iterator[dict[str, Any]]:
    seen = Seen()
    for entry in entries_of(fold, seen.events(found)):
        ts, stream_id, epoch, stream_seq, leaf_hash = entry.order
        row: dict[str, Any] = {
            "ts": ts,
            "stream_id": stream_id,
            "epoch": epoch,
            "stream_seq": stream_seq,
            "leaf_hash": leaf_hash,
            "label": entry.label,
            "schema": entry.schema,
            "body": entry.body,
            "identity": entry.identity,
            "copied": entry.copied,
            "counts": entry.counts,
        }
        if entry.issue is not None:
            row |= {"code": entry.issue.code, "what": entry.issue.what}
        yield row
    yield noted(seen)


def _firsts(rows: "DataFrame") -> "DataFrame":
    """With the column `first`. Whoever is not first has the identity of one that says it is a copy, or is one."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    copied = rows.where("copied").select("identity").distinct()
    if copied.isEmpty():
        return rows.withColumn("first", F.lit(True))
    order = F.struct(*order_of())
    earliest = rows.join(copied, "identity", "left_semi").groupBy("identity").agg(F.min(order).alias("earliest"))
    marked = rows.join(earliest, "identity", "left")
    return marked.withColumn("first", F.col("earliest").isNull() | (F.col("earliest") == order)).drop("earliest")


def _ranges(rows: "DataFrame", count: int) -> "DataFrame":
    """Ranges of the logical order, each sorted, and its number on each row."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    cut = rows.repartitionByRange(count, *order_of()).withColumn("range", F.spark_partition_id())
    return cut.sortWithinPartitions(*order_of())


def _summaries(ranged: "DataFrame") -> Iterator[tuple[int, RangeSummary]]:
    """By range."""

    def summarize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        first = next(rows, None)
        if first is not None:
            found = summarize_range(map(_read, chain((first,), rows)))
            yield from pack(first["range"], found.to_tree())

    rows = collected(ranged.mapInArrow(summarize, ddl(PARCELS)), "ledger: windows")
    for number, tree in unpack((row["part"], row["slice"], row["data"]) for row in rows):
        yield number, RangeSummary.from_tree(tree)


def _fetched(ranged: "DataFrame", number: int) -> list[Entry]:
    """The entries of one range that may change balances, in order."""
    wanted = ranged.where((ranged["range"] == number) & ranged["counts"] & ranged["first"])
    return sorted(map(_read, collected(wanted, f"ledger: replay in range {number}")), key=lambda entry: entry.order)


def _read(row: Any) -> Entry:
    label, stream_seq = bytes(row["label"]), row["stream_seq"]
    issue = None if row["code"] is None else Issue(label, stream_seq, row["code"], row["what"])
    order = (row["ts"], bytes(row["stream_id"]), row["epoch"], stream_seq, bytes(row["leaf_hash"]))
    return Entry(
        order,
        label,
        stream_seq,
        bytes(row["identity"]),
        row["copied"],
        row["counts"],
        issue,
        bytes(row["schema"]),
        bytes(row["body"]),
        row["first"],
    )
