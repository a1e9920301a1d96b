"""Algebraic folds as plans of SQL: last writer wins, sets, sums (NOTES-SPARK, D-07, D-120).

Each plan aggregates the columns of `veen.pipeline.folds.typed` in the engine of Spark and gives back the very summary
that the fold would have made. Order is written out, never left to arrival: (ts, stream_id, epoch, stream_seq,
leaf_hash). Sums are DECIMAL(38,0): u64 of up to 5 * 10^18 entries fit, and beyond that Spark, in ANSI mode, stops with
an error instead of a wrong sum.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from veen.core import cbor
from veen.core.event import Event, Order
from veen.core.mmr import span_nodes
from veen.overlays.crdt import Add, CounterFold, LwwFold, OrSetFold, OrSetState, Register
from veen.overlays.decode import Issue, Typed, decode
from veen.overlays.fold import AnyFold, Compact, Summary
from veen.overlays.kv import KvFold, Write
from veen.overlays.spans import Additive, Span
from veen.overlays.state import Free, from_tree
from veen.pipeline.folds.errors import PlanUnfit
from veen.pipeline.folds.onspark import collected, kept, order_of, rows_in, tabled
from veen.pipeline.folds.seen import Seen
from veen.pipeline.folds.tasks import read_noted
from veen.pipeline.folds.typed import typed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["NATIVE", "fold_native", "fold_typed", "has_native"]

AnyCompact = Compact[Any, Any]
_HALF: Final = 1 << 63


def has_native(fold: AnyFold) -> bool:
    return type(fold) in NATIVE


def fold_native(frame: "DataFrame", fold: AnyCompact) -> tuple[Summary[Any], Seen]:
    """The summary of all rows of SILVER; PlanUnfit if these rows, not the fold, stand against it."""
    with kept(typed_rows(frame, fold)) as rows:
        return fold_typed(rows, fold)


def fold_typed(rows: "DataFrame", fold: AnyCompact) -> tuple[Summary[Any], Seen]:
    """The same of rows whose bodies have been decoded, such as a table that `typed_rows` was written to."""
    what = f"fold {fold.name}"
    seen = read_noted(collected(rows.where("kind = 'seen'").select("data"), f"{what}: open and decode"))
    originals, copies = _mirrored(rows, fold) if fold.mirrors else (frozenset[bytes](), list[Event]())
    if copies and isinstance(fold, Additive):
        raise PlanUnfit("some entries are copies, which have no place in sums by position")
    state = NATIVE[type(fold)](rows.where("kind = 'event'"), seen, what)
    found = collected(rows.where("kind = 'issue'").select("label", "stream_seq", "code", "what"), f"{what}: issues")
    issues = [Issue(bytes(row["label"]), row["stream_seq"], row["code"], row["what"]) for row in found]
    by_original = {fold.mirrors.identity(event): _typed(fold, event) for event in copies}
    return Summary(state, seen.ts, {issue.place: issue for issue in issues}, originals, by_original), seen


def _mirrored(rows: "DataFrame", fold: AnyFold) -> tuple[frozenset[bytes], list[Event]]:
    """The msg_ids of originals and, of the copies of each, the first in logical order (D-85)."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    originals = collected(rows.where("kind = 'event'").select("leaf_hash"), f"fold {fold.name}: originals")
    first = F.min_by("data", F.struct(*order_of())).alias("data")
    copies = collected(rows.where("kind = 'copy'").groupBy("original").agg(first), f"fold {fold.name}: copies")
    events = [from_tree(Event, cbor.decode(bytes(row["data"]), what="copy")) for row in copies]
    return frozenset(bytes(row["leaf_hash"]) for row in originals), events


def _typed(fold: AnyFold, event: Event) -> Typed[Any]:
    typed = decode(event, fold.schemas[event.hdr.schema])
    assert isinstance(typed, Typed)  # noqa: S101 - a task has decoded it before
    return typed


def _latest(rows: "DataFrame", what: str, *payload: str) -> Iterator[tuple[Any, int, Order, int | None, list[Any]]]:
    """By key: (key, at, order, expires_at, payload) of the row that is greatest by (at, logical order).

    No two rows tie, so the payload never decides. u64 are shifted into BIGINT, which keeps their order: Spark compares
    a DECIMAL of 20 digits through objects.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    def shifted(name: str) -> Any:
        return F.expr(f"CAST({name} - {_HALF} AS BIGINT)").alias(name)

    row = F.struct(shifted("at"), *order_of(), shifted("expires_at"), *map(F.col, payload))
    table = rows.groupBy("key").agg(F.max(row).alias("last")).select("key", "last.*")
    for key, at, ts, stream_id, epoch, stream_seq, leaf_hash, expires_at, *rest in rows_in(
        table, f"{what}: the last write to each key"
    ):
        order = ts, stream_id, epoch, stream_seq, leaf_hash
        yield key, at + _HALF, order, None if expires_at is None else expires_at + _HALF, rest


def _order(row: Mapping[str, Any]) -> Order:
    return row["ts"], row["stream_id"], row["epoch"], row["stream_seq"], row["leaf_hash"]


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _kv(rows: "DataFrame", _seen: Seen, what: str) -> dict[str, Write]:
    return {
        key: Write(at, order, order[4], client_id, None if value is None else Free.canonical(value), expires_at)
        for key, at, order, expires_at, (value, client_id) in _latest(rows, what, "value", "client_id")
    }


def _lww(rows: "DataFrame", _seen: Seen, what: str) -> dict[bytes, Register]:
    return {
        key: Register(at, order, order[4], value, att_root, expires_at)
        for key, at, order, expires_at, (value, att_root) in _latest(rows, what, "value", "att_root")
    }


def _orset(rows: "DataFrame", _seen: Seen, what: str) -> OrSetState:
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    tombs = rows.select(F.explode("tomb").alias("id")).distinct()
    live = rows.where("id IS NOT NULL").join(tombs, "id", "left_anti").dropDuplicates(["id", "leaf_hash"])
    columns = [*order_of(), F.col("id"), F.col("elem"), F.col("att_root"), F.col("expires_at")]
    adds: dict[bytes, list[Add]] = {}
    for row in tabled(live.select(*columns), f"{what}: adds that are in no tomb"):
        add = Add(_order(row), row["leaf_hash"], row["elem"], row["att_root"], _int(row["expires_at"]))
        adds.setdefault(row["id"], []).append(add)
    gone = {row["id"] for row in tabled(tombs, f"{what}: tombs")}
    return OrSetState({add_id: tuple(sorted(found, key=lambda add: add[:3])) for add_id, found in adds.items()}, gone)


def _counter(rows: "DataFrame", seen: Seen, what: str) -> dict[bytes, list[Span[dict[bytes, int]]]]:
    """The sums by aligned span, as `veen.overlays.spans` keeps them, so that more can be added later."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    bounds: dict[bytes, list[tuple[int, int]]] = {}
    for label, head in seen.heads.items():
        first = seen.first_of(label)
        if first is None:
            raise PlanUnfit(f"the rows of label {label.hex()} have holes or stand twice: sums need each once")
        bounds[label] = [(index << height, (index + 1) << height) for height, index in span_nodes(first - 1, head)]
    spans = rows.sparkSession.createDataFrame(
        [(bytearray(label), [start for start, _ in found]) for label, found in bounds.items()],
        "label BINARY, starts ARRAY<BIGINT>",
    )
    number = F.size(F.filter("starts", lambda start: start < F.col("stream_seq"))) - 1
    summed = (
        rows.join(F.broadcast(spans), "label")
        .groupBy("label", number.alias("number"), "shard")
        .agg(F.sum(F.col("delta").cast("DECIMAL(38,0)")).alias("delta"))
    )
    sums: dict[bytes, list[dict[bytes, int]]] = {label: [{} for _ in found] for label, found in bounds.items()}
    for row in tabled(summed, f"{what}: sums by shard"):
        sums[row["label"]][row["number"]][row["shard"]] = int(row["delta"])
    return {
        label: [Span(start, end, value) for (start, end), value in zip(found, sums[label], strict=True)]
        for label, found in bounds.items()
    }


NATIVE: Final[Mapping[type[Any], Callable[["DataFrame", Seen, str], Any]]] = MappingProxyType(
    {KvFold: _kv, LwwFold: _lww, OrSetFold: _orset, CounterFold: _counter}
)
