"""Folds on Spark: five plans, each with the very summary that one process makes (D-82, D-120).

summaries   every fold: a summary per part of the log, and a tree of merges
in order    ordered folds: executors open, sort and drop what does not count, the driver steps through the rest
by key      ordered folds whose records are independent: each executor steps through some of the records
native      algebraic folds as SQL over typed columns: last writer wins, sets, sums
windows     the wallet ledger: ranges of the logical order, settled one after another

Which fold takes which plan is decided in `veen.lake.folds.planning`. What tasks compute is in `partials`, `typed` and
`windows`, without Spark; here is what only Spark does: shuffle, sort, aggregate, collect.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.core.event import Event, Order
from veen.core.tree.mmr import span_nodes
from veen.lake.folds.coverage import EVENTS, PARCELS, FoldCoverage, check_columns, merge_coverages, pack, unpack
from veen.lake.folds.errors import FoldFailed, PlanUnfit
from veen.lake.folds.inputs import FoldInput, input_of
from veen.lake.folds.planning import (
    KEYED,
    KEYS,
    AnyOrdered,
    PlanName,
    merge_parts,
    plan_of,
    rows_in_order,
    summarize_part,
    unite_parts,
)
from veen.lake.folds.typed import HALF, columns_of, decode_rows, event_columns
from veen.lake.folds.windows import WALLET_EVENTS, Books, RangeSummary, WalletEvent, summarize_range, wallet_rows
from veen.lake.log.columns import arrow_schema, ddl, to_batches
from veen.lake.log.events import SORT_KEYS, LogEntry, event_of
from veen.lake.spark.runner import run_job
from veen.overlays.crdt import Add, CounterFold, LwwFold, OrSetFold, OrSetState, Register
from veen.overlays.framework.fold import AnyFold, Compact, Joined, Summary
from veen.overlays.framework.ordered import Progress
from veen.overlays.framework.schema import Issue, Typed, decode
from veen.overlays.framework.spans import Additive, SeqSpan
from veen.overlays.framework.state import Free, from_tree
from veen.overlays.framework.stream import fold_events
from veen.overlays.kv import KvFold, Write
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.rules import Record

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FANOUT: Final = 16  # summaries that one task merges, and at most as many reach the driver
_RANGE_ENTRIES: Final = 20_000  # of the ledger: what the driver fetches at once, if it must
_MAX_RANGES: Final = 1_000

AnyCompact = Compact[Any, Any]


def fold_on_spark(
    source: "DataFrame | FoldInput",
    fold: AnyFold,
    asked: PlanName,
    *,
    base: Any = None,
    parts: int | None = None,
    entries: int | None = None,
) -> tuple[Any, FoldCoverage, str]:
    """Fold all entries of `source` after `base`; return summary, coverage, and the plan that was used.

    `entries` is their number, if it is known.
    """
    if isinstance(fold, Joined):
        return _fold_joined(source, fold, asked, base, parts, entries)
    plan = plan_of(fold, asked, entries=entries, resumed=base is not None)
    if plan == "in order":
        return *fold_in_order(source, fold, base), plan  # type: ignore[arg-type]  # by its plan
    if plan == "by key":
        return *fold_by_key(source, fold, parts), plan  # type: ignore[arg-type]  # as above
    if plan == "windows":
        summary, coverage, replayed = fold_ledger(source, fold, parts)  # type: ignore[arg-type]  # as above
        return summary, coverage, f"{plan}, {replayed} replayed"
    if plan == "native":
        try:
            result, coverage = fold_native(source, fold)  # type: ignore[arg-type]  # as above
        except PlanUnfit:
            if asked == "native":
                raise
            plan = "summaries"
            result, coverage = fold_frame(source, fold)
    else:
        result, coverage = fold_frame(source, fold)
    return result if base is None else fold.merge(base, result), coverage, plan


def _fold_joined(
    source: "DataFrame | FoldInput", fold: Joined, asked: PlanName, base: Any, parts: int | None, entries: int | None
) -> tuple[tuple[Any, ...], FoldCoverage, str]:
    """Run each of the folds by its own plan over the same entries."""
    summaries, plans, coverage = [], [], FoldCoverage()
    for at, member in enumerate(fold.folds):
        summary, coverage, plan = fold_on_spark(
            source, member, asked, base=None if base is None else base[at], parts=parts, entries=entries
        )
        summaries.append(summary)
        plans.append(plan)
    return tuple(summaries), coverage, " + ".join(plans)


# --- what the plans share ------------------------------------------------------------------------------------------


def part_number() -> int:
    """Return the number of the task's partition, and freeze the garbage collector's view of imported modules."""
    from pyspark import TaskContext

    gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow each time
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def order_of() -> list["Column"]:
    """Return the logical order as columns (D-27), never the order of arrival."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    return [F.col(name) for name in SORT_KEYS]


def collect_rows(frame: "DataFrame", what: str) -> list[Any]:
    """Collect all rows; for few rows."""
    with run_job(frame.sparkSession, what, FoldFailed):
        return list(frame.collect())


def collect_arrow(frame: "DataFrame", what: str) -> list[dict[str, Any]]:
    """Collect all rows through Arrow; for as many rows as a state has records."""
    with run_job(frame.sparkSession, what, FoldFailed):
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return rows


def rows_in(frame: "DataFrame", what: str) -> Iterator[tuple[Any, ...]]:
    """Collect all rows through Arrow as tuples in the order of the columns, which cost less than dicts."""
    with run_job(frame.sparkSession, what, FoldFailed):
        table = frame.toArrow()
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def stream_rows(frame: "DataFrame", what: str) -> Iterator[Any]:
    """Yield row after row, one partition ahead."""
    with run_job(frame.sparkSession, what, FoldFailed):
        yield from frame.toLocalIterator(prefetchPartitions=True)


@contextmanager
def cache_frame(frame: "DataFrame") -> Iterator["DataFrame"]:
    """Persist a frame that is read more than once on executors, in memory or on their disks."""
    from pyspark import StorageLevel

    persisted = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield persisted
    finally:
        persisted.unpersist()


# --- summaries -----------------------------------------------------------------------------------------------------


def fold_frame(source: "DataFrame | FoldInput", fold: AnyFold) -> tuple[Any, FoldCoverage]:
    """Fold all entries by partial summaries and a tree of merges."""

    def summarize(entries: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
        yield from pack(part_number(), summarize_part(fold, entries))

    entries = input_of(source)
    parcels = entries.map_entries(summarize, PARCELS)
    count = parts = entries.parts
    while count > _FANOUT:
        count = -(-count // _FANOUT)
        parcels = _merge_round(parcels, fold, count)
    rows = collect_rows(parcels, f"fold {fold.name}: summarize {parts} parts and merge")
    return merge_parts(fold, (tree for _, tree in unpack((row["part"], row["slice"], row["data"]) for row in rows)))


def _merge_round(parcels: "DataFrame", fold: AnyFold, count: int) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        parts = [tree for _, tree in unpack(rows)]
        if parts:
            summary, coverage = merge_parts(fold, parts)
            yield from pack(part_number(), [fold.dump(summary), coverage.to_tree()])

    return parcels.repartitionById(count, F.pmod(F.col("part"), F.lit(count)).cast("int")).mapInArrow(
        merge, ddl(PARCELS)
    )


# --- in order, and by key ------------------------------------------------------------------------------------------


def fold_in_order(
    source: "DataFrame | FoldInput", fold: AnyOrdered, base: Any = None
) -> tuple[Progress[Any, Any], FoldCoverage]:
    """Fold all entries after `base` on the driver, in order. Raise LateEvent if one belongs before its end."""

    def cut(entries: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from to_batches(rows_in_order(fold, entries), arrow_schema(EVENTS))

    with cache_frame(input_of(source).map_entries(cut, EVENTS)) as rows:
        coverage = merge_coverages(
            collect_rows(rows.where("data IS NOT NULL").select("data"), f"fold {fold.name}: open")
        )
        ordered = rows.where("data IS NULL").drop("data").orderBy(*order_of())
        events = map(event_of, stream_rows(ordered, f"fold {fold.name}: sort, and step on the driver"))
        summary = fold_events(fold, events, base)
    return replace(summary, ts=max(summary.ts, coverage.ts)), coverage


def fold_by_key(
    source: "DataFrame | FoldInput", fold: AnyOrdered, parts: int | None = None
) -> tuple[Progress[Any, Any], FoldCoverage]:
    """Fold all entries of a fold with independent records, each record on one executor."""
    key_of = KEYS[type(fold)]

    def cut(entries: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from to_batches(rows_in_order(fold, entries, key_of), arrow_schema(KEYED))

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, coverage = part_number(), FoldCoverage()
        summary = fold_events(fold, _events_by_key(batches, coverage))
        yield from pack(number, [fold.dump(summary), coverage.to_tree()])

    entries = input_of(source)
    rows = entries.map_entries(cut, KEYED)
    count = parts or entries.parts
    stepped = rows.repartition(count, "key").sortWithinPartitions(*order_of()).mapInArrow(step, ddl(PARCELS))
    parcels = collect_rows(stepped, f"fold {fold.name}: step through {count} groups of records")
    coverage, summaries = FoldCoverage(), []
    for _, (tree, tail) in unpack((row["part"], row["slice"], row["data"]) for row in parcels):
        summaries.append(fold.load(tree))
        coverage.absorb(FoldCoverage.from_tree(tail))
    summary = unite_parts(summaries)
    return replace(summary, ts=max(summary.ts, coverage.ts)), coverage


def _events_by_key(batches: Iterator[pa.RecordBatch], coverage: FoldCoverage) -> Iterator[Event]:
    for batch in batches:
        for row in batch.to_pylist():
            if row["data"] is not None:
                coverage.absorb(merge_coverages([row]))
            else:
                yield event_of(row)


# --- typed columns, and SQL over them --------------------------------------------------------------------------------


def typed_rows(frame: "DataFrame | FoldInput", fold: AnyFold) -> "DataFrame":
    """Return all rows of typed silver, of every kind."""
    columns = columns_of(fold)

    def decode_entries(entries: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from to_batches(decode_rows(fold, entries), arrow_schema(columns))

    return input_of(frame).map_entries(decode_entries, columns)


def typed_frame(frame: "DataFrame", fold: AnyFold) -> "DataFrame":
    """Return the events of a fold with a column for each field of their bodies, for your own SQL."""
    check_columns(frame.columns)
    names = [column.name for column in event_columns(fold)]
    return typed_rows(frame, fold).where("kind = 'event'").select(*names)


def fold_native(source: "DataFrame | FoldInput", fold: AnyCompact) -> tuple[Summary[Any], FoldCoverage]:
    """Fold all entries by SQL. Raise PlanUnfit if the entries, not the fold, prevent it."""
    with cache_frame(typed_rows(source, fold)) as rows:
        return fold_typed(rows, fold)


def fold_typed(rows: "DataFrame", fold: AnyCompact) -> tuple[Summary[Any], FoldCoverage]:
    """Fold decoded rows by SQL, such as a table that `typed_rows` was written to."""
    what = f"fold {fold.name}"
    coverage = merge_coverages(collect_rows(rows.where("kind = 'seen'").select("data"), f"{what}: open and decode"))
    originals, copies = _find_copies(rows, fold) if fold.mirrors else (frozenset[bytes](), list[Event]())
    if copies and isinstance(fold, Additive):
        raise PlanUnfit("some entries are copies, which have no place in sums by position")
    state = NATIVE[type(fold)](rows.where("kind = 'event'"), coverage, what)
    bad = collect_rows(rows.where("kind = 'issue'").select("label", "stream_seq", "code", "what"), f"{what}: issues")
    issues = [Issue(bytes(row["label"]), row["stream_seq"], row["code"], row["what"]) for row in bad]
    by_original = {fold.mirrors.identity(event): _decode_copy(fold, event) for event in copies}
    return Summary(state, coverage.ts, {issue.place: issue for issue in issues}, originals, by_original), coverage


def _find_copies(rows: "DataFrame", fold: AnyFold) -> tuple[frozenset[bytes], list[Event]]:
    """Return the msg_ids of originals and, of the copies of each, the first in logical order (D-85)."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    originals = collect_rows(rows.where("kind = 'event'").select("leaf_hash"), f"fold {fold.name}: originals")
    first = F.min_by("data", F.struct(*order_of())).alias("data")
    copies = collect_rows(rows.where("kind = 'copy'").groupBy("original").agg(first), f"fold {fold.name}: copies")
    events = [from_tree(Event, cbor.decode(bytes(row["data"]), what="copy")) for row in copies]
    return frozenset(bytes(row["leaf_hash"]) for row in originals), events


def _decode_copy(fold: AnyFold, event: Event) -> Typed[Any]:
    typed = decode(event, fold.schemas[event.hdr.schema])
    assert isinstance(typed, Typed)  # noqa: S101 - a task has decoded it before
    return typed


def _latest(rows: "DataFrame", what: str, *payload: str) -> Iterator[tuple[Any, int, Order, int | None, list[Any]]]:
    """Yield by key the greatest row by (at, logical order), as (key, at, order, expires_at, payload).

    No two rows tie, so the payload never decides. u64 are compared as BIGINT; tables of earlier releases lack these
    columns, and they are computed here.
    """
    names = rows.schema.names

    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    def sortable(name: str) -> str:
        key = f"{name}_key"
        return f"{key if key in names else f'CAST({name} - {HALF} AS BIGINT)'} AS {name}"

    # As text, which is one call to the JVM: each name, alias and function of a column would be another.
    row = ", ".join((sortable("at"), *SORT_KEYS, sortable("expires_at"), *payload))
    table = rows.groupBy("key").agg(F.expr(f"max(struct({row})) AS last")).select("key", "last.*")
    for key, at, ts, stream_id, epoch, stream_seq, leaf_hash, expires_at, *rest in rows_in(
        table, f"{what}: the last write to each key"
    ):
        order = ts, stream_id, epoch, stream_seq, leaf_hash
        yield key, at + HALF, order, None if expires_at is None else expires_at + HALF, rest


def _order(row: Mapping[str, Any]) -> Order:
    return row["ts"], row["stream_id"], row["epoch"], row["stream_seq"], row["leaf_hash"]


def _kv(rows: "DataFrame", _coverage: FoldCoverage, what: str) -> dict[str, Write]:
    return {
        key: Write(at, order, order[4], client_id, None if value is None else Free.canonical(value), expires_at)
        for key, at, order, expires_at, (value, client_id) in _latest(rows, what, "value", "client_id")
    }


def _lww(rows: "DataFrame", _coverage: FoldCoverage, what: str) -> dict[bytes, Register]:
    return {
        key: Register(at, order, order[4], value, att_root, expires_at)
        for key, at, order, expires_at, (value, att_root) in _latest(rows, what, "value", "att_root")
    }


def _orset(rows: "DataFrame", _coverage: FoldCoverage, what: str) -> OrSetState:
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    tombs = rows.select(F.explode("tomb").alias("id")).distinct()
    live = rows.where("id IS NOT NULL").join(tombs, "id", "left_anti").dropDuplicates(["id", "leaf_hash"])
    columns = [*order_of(), F.col("id"), F.col("elem"), F.col("att_root"), F.col("expires_at")]
    adds: dict[bytes, list[Add]] = {}
    for row in collect_arrow(live.select(*columns), f"{what}: adds that are in no tomb"):
        expires_at = None if row["expires_at"] is None else int(row["expires_at"])
        add = Add(_order(row), row["leaf_hash"], row["elem"], row["att_root"], expires_at)
        adds.setdefault(row["id"], []).append(add)
    gone = {row["id"] for row in collect_arrow(tombs, f"{what}: tombs")}
    return OrSetState({add_id: tuple(sorted(group, key=lambda add: add[:3])) for add_id, group in adds.items()}, gone)


def _counter(rows: "DataFrame", coverage: FoldCoverage, what: str) -> dict[bytes, list[SeqSpan[dict[bytes, int]]]]:
    """Sum by aligned span, as `veen.overlays.framework.spans` keeps them, so that more can be added later."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    bounds: dict[bytes, list[tuple[int, int]]] = {}
    for label, head in coverage.heads.items():
        first = coverage.first_of(label)
        if first is None:
            raise PlanUnfit(f"the rows of label {label.hex()} are not complete, or repeated: sums need each row once")
        bounds[label] = [(index << height, (index + 1) << height) for height, index in span_nodes(first - 1, head)]
    spans = rows.sparkSession.createDataFrame(
        [(bytearray(label), [start for start, _ in spans_of]) for label, spans_of in bounds.items()],
        "label BINARY, starts ARRAY<BIGINT>",
    )
    number = F.size(F.filter("starts", lambda start: start < F.col("stream_seq"))) - 1
    summed = (
        rows.join(F.broadcast(spans), "label")
        .groupBy("label", number.alias("number"), "shard")
        .agg(F.sum(F.col("delta").cast("DECIMAL(38,0)")).alias("delta"))
    )
    sums: dict[bytes, list[dict[bytes, int]]] = {label: [{} for _ in spans_of] for label, spans_of in bounds.items()}
    for row in collect_arrow(summed, f"{what}: sums by shard"):
        sums[row["label"]][row["number"]][row["shard"]] = int(row["delta"])
    return {
        label: [SeqSpan(start, end, value) for (start, end), value in zip(spans_of, sums[label], strict=True)]
        for label, spans_of in bounds.items()
    }


NATIVE: Final[Mapping[type[Any], Callable[["DataFrame", FoldCoverage, str], Any]]] = MappingProxyType(
    {KvFold: _kv, LwwFold: _lww, OrSetFold: _orset, CounterFold: _counter}
)


# --- windows of the ledger -----------------------------------------------------------------------------------------


def fold_ledger(
    source: "DataFrame | FoldInput", fold: LedgerFold, parts: int | None = None
) -> tuple[Progress[bytes, Record], FoldCoverage, int]:
    """Fold the wallet ledger by windows; return summary, coverage, and the number of replayed entries."""

    def screen(entries: Iterator[LogEntry]) -> Iterator[pa.RecordBatch]:
        part_number()
        yield from to_batches(wallet_rows(fold, entries), arrow_schema(WALLET_EVENTS))

    books = Books(fold)
    with cache_frame(input_of(source).map_entries(screen, WALLET_EVENTS)) as rows:
        coverage = merge_coverages(
            collect_rows(rows.where("data IS NOT NULL").select("data"), "ledger: open and screen")
        )
        bad = rows.where("data IS NULL AND identity IS NULL").select("label", "stream_seq", "code", "what")
        issues = [Issue(bytes(row["label"]), row["stream_seq"], row["code"], row["what"]) for row in bad.collect()]
        count = parts or min(_MAX_RANGES, 1 + coverage.rows // _RANGE_ENTRIES)
        with cache_frame(_divide_ranges(_mark_firsts(rows.where("identity IS NOT NULL")), count)) as ranged:
            for number, window in _summarize_ranges(ranged):
                books.add(window, lambda number=number: _fetch_range(ranged, number))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    return books.progress(coverage.ts, issues), coverage, books.replayed


def _mark_firsts(rows: "DataFrame") -> "DataFrame":
    """Add the column `first`: False for a copy, and for an entry whose identity an earlier copy has."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    copied = rows.where("copied").select("identity").distinct()
    if copied.isEmpty():
        return rows.withColumn("first", F.lit(True))
    order = F.struct(*order_of())
    earliest = rows.join(copied, "identity", "left_semi").groupBy("identity").agg(F.min(order).alias("earliest"))
    marked = rows.join(earliest, "identity", "left")
    return marked.withColumn("first", F.col("earliest").isNull() | (F.col("earliest") == order)).drop("earliest")


def _divide_ranges(rows: "DataFrame", count: int) -> "DataFrame":
    """Divide rows into ranges of the logical order, each sorted, and number them."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    cut = rows.repartitionByRange(count, *order_of()).withColumn("range", F.spark_partition_id())
    return cut.sortWithinPartitions(*order_of())


def _summarize_ranges(ranged: "DataFrame") -> Iterator[tuple[int, RangeSummary]]:
    """Yield number and summary of each range."""

    def summarize(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        first = next(rows, None)
        if first is not None:
            summary = summarize_range(map(WalletEvent.of_row, chain((first,), rows)))
            yield from pack(first["range"], summary.to_tree())

    rows = collect_rows(ranged.mapInArrow(summarize, ddl(PARCELS)), "ledger: windows")
    for number, tree in unpack((row["part"], row["slice"], row["data"]) for row in rows):
        yield number, RangeSummary.from_tree(tree)


def _fetch_range(ranged: "DataFrame", number: int) -> list[WalletEvent]:
    """Return the entries of one range that may change balances, in order."""
    wanted = ranged.where((ranged["range"] == number) & ranged["counts"] & ranged["first"])
    rows = collect_rows(wanted, f"ledger: replay in range {number}")
    return sorted(map(WalletEvent.of_row, rows), key=lambda event: event.order)
