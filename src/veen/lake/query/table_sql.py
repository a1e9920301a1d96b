"""Queries over files of the typed table as plans of Spark SQL: no Python for each row (decision 312).

Tasks read files through Arrow, since only so are their bytes checked against the digests of the manifest; conditions,
order, rows and aggregates are then expressions that Spark compiles. They mean exactly what
`veen.lake.query.clauses`, `ordering` and `aggregate` mean, by two facts: equal values have equal canonical JSON, and
Spark writes a parsed payload as the same JSON, as long as the payload has nothing that Spark would write or compare in
another way.

A row that may have such a thing (a number of more digits than a DECIMAL has, an escape, a character beyond U+DFFF, a
very long payload) is decided by the Python evaluator in the task that reads it, and travels as a result. A whole query
without such a plan (`sql_plan` gives None) is left to Python as well.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as all of the field calls it

from veen.core import canonical
from veen.core.event import Order
from veen.lake.log.columns import Column, arrow_schema, ddl
from veen.lake.query.aggregate import Partial
from veen.lake.query.clauses import COMPARE, FieldCondition
from veen.lake.query.descriptor import Aggregate, Metric, QueryDescriptor
from veen.lake.query.fields import FieldPath
from veen.lake.query.matches import Match
from veen.lake.query.table_rows import TableTask
from veen.lake.query.tasks import GROUPS, MATCHES, ORDER_KEYS, QueryJob, limit_batches, stream_numbers
from veen.lake.spark.runner import over

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession

_TEXTS: Final = ("subject_id", "principal_id", "event_type", "origin", "event_time", "hub_commit_time")
_FREE: Final = ("subject_id", "event_type", "origin")  # of _TEXTS: what an application may write anything into
_SEQ: Final = "hub_commit_seq"
_DECIMAL: Final = "DECIMAL(38,18)"
_SUMMED: Final = "DECIMAL(27,9)"  # a sum of 10^10 of them is a DECIMAL(37,9)
_MAX_PAYLOAD: Final = 32_768  # bytes; Spark's parser has limits of its own, for names say, beyond this
_WHOLE_DIGITS: Final = 20  # of numbers that are compared as _DECIMAL
_MAX_LONG: Final = 1 << 63
_NULL, _BOOLEAN, _NUMBER, _STRING, _COMPOUND = range(5)  # ranks of values, as `veen.lake.query.clauses` has them
_FIXED: Final = (  # what each row has, besides the fields that a query needs
    *(column for column in MATCHES if column.name in ("bucket", *ORDER_KEYS, "label")),
    Column("result", "BINARY", pa.binary(), "of a row that was decided already: the row, or the key of its group"),
    Column("partial", "BINARY", pa.binary(), "of a row that was decided already: what it adds to its group"),
)


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """A query in terms of Spark SQL. A small value: it travels to tasks."""

    descriptor: QueryDescriptor
    fields: tuple[str, ...]  # columns of the table that expressions need, by the names of a query

    # --- in tasks ------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*_FIXED, *(Column(name, "STRING", pa.string(), "") for name in self.fields))

    def batches(self, job: QueryJob, task: TableTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files: those for SQL with their fields, others as results of Python."""
        schema = arrow_schema(self.columns)
        for rows in task.tables(job.descriptor):
            is_hard = self._is_hard(rows)
            yield from self._easy(job, rows.filter(pc.invert(is_hard)), schema)
            hard = self._merge_groups(task.matches_of(job.descriptor, rows.filter(is_hard)))
            if decided := [_result_row(job, match) for match in hard]:
                yield pa.RecordBatch.from_pylist(decided, schema=schema)

    def _merge_groups(self, matches: Iterable[Match]) -> Iterable[Match]:
        """Return one match for each group of an aggregate."""
        aggregate = self.descriptor.aggregate
        if aggregate is None:
            return matches
        groups: dict[bytes, Match] = {}
        for match in matches:
            group = groups.setdefault(match.row, match)
            if group is not match and group.partial is not None and match.partial is not None:
                group.partial.absorb(aggregate, match.partial)
        return groups.values()

    def _is_hard(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows that the Python evaluator decides."""
        masks = [pc.invert(pc.is_valid(rows.column("ts")))]
        for name in _FREE:
            if name in self.fields:
                masks.append(pc.match_substring_regex(rows.column(name), r'["\\\x00-\x1f]'))
        if "payload" in self.fields and self._parses:
            payload = rows.column("payload")
            masks.append(pc.greater(pc.binary_length(payload), _MAX_PAYLOAD))
            masks.append(pc.match_substring_regex(payload, self._hard_payload))
        return reduce(pc.or_, masks)

    @property
    def _parses(self) -> bool:
        """True if expressions look into payloads."""
        used = _fields_of(self.descriptor)
        return any(field.path or (field.name == "payload" and not is_copied) for field, is_copied in used)

    @property
    def _hard_payload(self) -> str:
        whole, behind = (19, 10) if self.descriptor.aggregate is not None else (_WHOLE_DIGITS + 1, 19)
        return rf"[0-9]{{{whole}}}|\.[0-9]{{{behind}}}|\\u|[\x{{E000}}-\x{{10FFFF}}]"

    def _easy(self, job: QueryJob, rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        ids = rows.column("stream_id")
        streams = sorted(job.descriptor.stream_names)
        arrays: dict[str, Any] = {
            "bucket": pa.array(_buckets(job.bounds, rows), pa.int32()),
            "stream": pc.index_in(ids, pa.array(streams, ids.type)),
            "result": pa.nulls(rows.num_rows, pa.binary()),
            "partial": pa.nulls(rows.num_rows, pa.binary()),
        }
        arrays |= {name: rows.column(name) for name in (*ORDER_KEYS, "label") if name not in arrays}
        arrays |= {name: _field(rows, name) for name in self.fields}
        table = pa.table({name: arrays[name] for name in schema.names}).cast(schema)
        yield from table.to_batches(max_chunksize=8_192)

    # --- on the driver -------------------------------------------------------------------------------------

    def matches(self, spark: "SparkSession", job: QueryJob, tasks: Sequence[TableTask]) -> "DataFrame":
        """Return rows of MATCHES, in no order; at most the limit from each task."""
        chosen = self._select(spark, job, tasks)
        limit = self.descriptor.limit
        keys = [key for order in self.descriptor.order for key in self._sort_keys(order.field, order.direction)]
        is_result = F.col("result").isNotNull()
        row = F.when(is_result, F.col("result")).otherwise(self._row().cast("binary")).alias("row")
        others = [F.lit(None).cast(column.sql).alias(column.name) for column in MATCHES]
        by_name = {column.name: other for column, other in zip(MATCHES, others, strict=True)}
        by_name |= {name: F.col(name) for name in ("bucket", *ORDER_KEYS, "label")} | {"row": row}
        columns = [by_name[column.name] for column in MATCHES]
        if limit is None:
            return chosen.select(*columns)
        # Rows that are results already may have keys that SQL cannot compare: all of them stay.
        ordered = chosen.sortWithinPartitions(is_result.desc(), *keys, *ORDER_KEYS).select(
            *columns, is_result.alias("is_result")
        )
        return ordered.mapInArrow(lambda batches: _first_batches(batches, limit), ddl(MATCHES))

    def groups(self, spark: "SparkSession", job: QueryJob, tasks: Sequence[TableTask]) -> "DataFrame":
        """Return rows of GROUPS: the contribution of the files to each group."""
        aggregate = self.descriptor.aggregate
        assert aggregate is not None  # noqa: S101 - only aggregates come here
        parts = [part for field in aggregate.group_by for part in (F.lit(","), _json(field, self.descriptor))][1:]
        key = F.concat(F.lit("["), *parts, F.lit("]")).cast("binary")
        cells = (F.collect_list("partial").alias("decided"), *_cells(aggregate, self.descriptor))
        grouped = self._select(spark, job, tasks).groupBy(F.coalesce("result", key).alias("key")).agg(*cells)
        return grouped.mapInArrow(lambda batches: _partial_batches(batches, aggregate), ddl(GROUPS))

    def _select(self, spark: "SparkSession", job: QueryJob, tasks: Sequence[TableTask]) -> "DataFrame":
        """Select rows by the conditions. Arrow has compared subject, type and hub time."""
        frame = over(spark, tasks, lambda task: self.batches(job, task), self.columns)
        conditions = [_condition(condition, self.descriptor) for condition in self.descriptor.filter.where]
        if not conditions:
            return frame
        return frame.where(frame["result"].isNotNull() | reduce(and_, conditions))

    def _row(self) -> "Expression":
        """Return the canonical JSON of a row."""
        parts: list[Expression] = []
        fields = {field.name: field for field in self.descriptor.projection}
        for at, name in enumerate(sorted(fields)):
            parts.append(F.lit(f"{'{,'[at > 0]}{canonical.encode(name).decode()}:"))
            parts.append(_json(fields[name], self.descriptor))
        return F.concat(*parts, F.lit("}"))

    def _sort_keys(self, name: str, direction: str) -> Iterator["Expression"]:
        field = next(field for field in self.descriptor.projection if field.name == name)
        for key in _sort_keys(field, self.descriptor):
            yield key.asc() if direction == "asc" else key.desc()


def sql_plan(descriptor: QueryDescriptor) -> SqlPlan | None:
    """Return the plan of a query; None if it needs evidence, or a comparison without an exact form in SQL."""
    aggregate = descriptor.aggregate
    if descriptor.evidence.mode != "none" or (aggregate is not None and descriptor.names_receipts):
        return None
    fields = [field for field, _ in _fields_of(descriptor)]
    if not all(map(_has_path, fields)) or not all(map(_has_form, descriptor.filter.where)):
        return None
    names = {field.name if not field.path else "payload" for field in fields}
    return SqlPlan(descriptor, tuple(name for name in (*_TEXTS, "payload") if name in names))


def _has_path(field: FieldPath) -> bool:
    return len(_indexes(field)) <= 2 and all(_step(step) is not None for step in field.path)


def _has_form(condition: FieldCondition) -> bool:
    """Return True if SQL has an exact form of the compared numbers."""
    if condition.op == "in" or type(condition.value) not in (int, Decimal):
        values = condition.value if condition.op == "in" else ()
        return condition.field.name != _SEQ or all(type(value) is not Decimal for value in values)
    value = Decimal(condition.value)
    exponent = value.as_tuple().exponent
    if condition.field.name == _SEQ:
        return type(condition.value) is int and abs(value) < _MAX_LONG
    return isinstance(exponent, int) and exponent >= -18 and abs(value) < 10**_WHOLE_DIGITS


def _fields_of(descriptor: QueryDescriptor) -> Iterator[tuple[FieldPath, bool]]:
    """Yield the fields of a query, each with True if it is only written, not compared."""
    aggregate = descriptor.aggregate
    yield from ((condition.field, False) for condition in descriptor.filter.where)
    if aggregate is None:
        ordered = {order.field for order in descriptor.order}
        yield from ((field, field.name not in ordered) for field in descriptor.projection)
    else:
        yield from ((field, True) for field in aggregate.group_by)
        yield from ((metric.field, False) for metric in aggregate.metrics if metric.field is not None)


# --- Arrow ----------------------------------------------------------------------------------------------------------


def _result_row(job: QueryJob, match: Match) -> dict[str, Any]:
    ts, stream_id, epoch, stream_seq, leaf_hash = match.order
    return {
        "bucket": bisect_right(job.bounds, match.order),
        "ts": ts,
        "stream": stream_numbers(job.descriptor)[stream_id],
        "epoch": epoch,
        "stream_seq": stream_seq,
        "leaf_hash": leaf_hash,
        "label": match.label,
        "result": match.row,
        "partial": None if match.partial is None else match.partial.to_bytes(),
    }


def _field(rows: pa.Table, name: str) -> Any:
    if name == "hub_commit_time":
        return _time_texts(rows.column("hub_time"))
    return _time_texts(rows.column(name)) if name == "event_time" else rows.column(name)


def _time_texts(times: pa.ChunkedArray) -> Any:
    """Convert times to text as `veen.lake.query.fields.timestamp` does."""
    seconds = times.cast(pa.timestamp("s", tz="UTC")).cast(pa.int64()).cast(pa.timestamp("s"))
    return pc.strftime(seconds, format="%Y-%m-%dT%H:%M:%SZ")


def _buckets(bounds: Sequence[Order], rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the buckets of rows as bisect_right over whole orders does; most follow from the times alone."""
    times, begins = rows.column("ts").to_numpy(), np.array([bound[0] for bound in bounds], np.int64)
    buckets: np.ndarray[Any, np.dtype[np.int64]] = np.searchsorted(begins, times, "left")
    ends = np.searchsorted(begins, times, "right")
    for at in np.flatnonzero(buckets != ends).tolist():
        row = {name: rows.column(name)[at].as_py() for name in ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")}
        buckets[at] = bisect_right(bounds, tuple(row.values()))
    return buckets


def _first_batches(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Yield all results made already, the first `limit` of the other rows, and a note with the number left out."""

    def others() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            results = int(pc.sum(batch.column("is_result")).as_py() or 0)
            rows = batch.drop_columns(["is_result"])
            if results:
                decided.append(rows.slice(0, results))
            yield rows.slice(results)

    decided: list[pa.RecordBatch] = []
    for batch in limit_batches(others(), limit):
        yield from decided
        decided.clear()
        yield batch
    yield from decided


def _partial_batches(batches: Iterable[pa.RecordBatch], aggregate: Aggregate) -> Iterator[pa.RecordBatch]:
    """Convert aggregates of SQL to partials."""
    for batch in batches:
        rows = [{"key": row["key"], "partial": _partial(row, aggregate).to_bytes()} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(GROUPS))


def _partial(row: Mapping[str, Any], aggregate: Aggregate) -> Partial:
    partial = Partial.empty(aggregate)
    partial.count = row["rows"]
    for at, (metric, cell) in enumerate(zip(aggregate.metrics, partial.cells, strict=True)):
        if metric.field is None:
            continue
        cell.count, cell.ignored = row[f"count{at}"], row[f"ignored{at}"]
        value = row[f"value{at}"]
        if value is not None and cell.count:
            cell.value = value if metric.function in ("sum", "avg") else canonical.parse(value["json"])
    for data in row["decided"]:
        partial.absorb(aggregate, Partial.from_bytes(data))
    return partial


# --- expressions ----------------------------------------------------------------------------------------------------


def _indexes(field: FieldPath) -> list[str]:
    """Return the steps of a path that may be the index of a list, or a name."""
    return [step for step in field.path if step.isdecimal() and step.isascii() and len(step) < 10]


def _step(step: str) -> str | None:
    """Return a name in the syntax of a Spark path; None if it cannot be written."""
    for quote in "'\"":
        if quote not in step and "?" not in step:
            return f"[{quote}{step}{quote}]"
    return None


def _paths(field: FieldPath) -> list[str]:
    """Return the Spark paths that a field may mean: a number is the index of a list, or a name."""
    paths = ["$"]
    for step in field.path:
        names = [f"{path}{_step(step)}" for path in paths]
        lists = [f"{path}[{int(step)}]" for path in paths] if step in _indexes(field) else []
        paths = [*names, *lists]
    return paths


def _variant(field: FieldPath, kind: str) -> "Expression":
    parsed = F.parse_json(F.col("payload"))
    return F.coalesce(*(F.try_variant_get(parsed, path, kind) for path in _paths(field)))


def _text(field: FieldPath, descriptor: QueryDescriptor) -> "Expression | None":
    """Return the value of a field that is always a text; None for others."""
    if field.path or field.name in ("payload", _SEQ):
        return None
    if field.name == "stream":
        names = [F.lit(descriptor.stream_names[stream_id]) for stream_id in sorted(descriptor.stream_names)]
        return F.element_at(F.array(*names), F.col("stream") + 1)
    if field.name == "receipt_id":
        return F.concat(F.lit("rcpt-"), F.lower(F.hex("leaf_hash")))
    return F.col(field.name)


def _json(field: FieldPath, descriptor: QueryDescriptor) -> "Expression":
    """Return the canonical JSON of a field."""
    if field.path:
        return F.coalesce(F.to_json(_variant(field, "variant")), F.lit("null"))
    if field.name == "payload":
        return F.col("payload")
    if field.name == _SEQ:
        return F.col("stream_seq").cast("string")
    if field.name == "stream":
        quoted = [canonical.encode(descriptor.stream_names[stream_id]) for stream_id in sorted(descriptor.stream_names)]
        return F.element_at(F.array(*(F.lit(text.decode()) for text in quoted)), F.col("stream") + 1)
    text = _text(field, descriptor)
    assert text is not None  # noqa: S101 - all that are left are texts
    return F.concat(F.lit('"'), text, F.lit('"'))


def _condition(condition: FieldCondition, descriptor: QueryDescriptor) -> "Expression":
    """Return a condition: true, false, or NULL for false. Other kinds, null and missing values match nothing."""
    field, op = condition.field, condition.op
    values = condition.value if op == "in" else (condition.value,)
    text = _text(field, descriptor)
    if text is not None:
        texts = [value for value in values if type(value) is str]
        return _compare(text, op, texts) if texts else F.lit(False)
    if field.name == _SEQ:
        numbers = [value for value in values if type(value) is int and abs(value) < _MAX_LONG]
        return _compare(F.col("stream_seq"), op, numbers) if numbers else F.lit(False)
    written = _json(field, descriptor)
    if op in ("=", "in"):
        return written.isin([canonical.encode(value).decode() for value in values])
    value = condition.value
    quoted = canonical.encode(value).decode()
    if op == "^=":
        return written.startswith(F.lit(quoted[:-1]))
    if type(value) is bool:
        return written.isin([str(other).lower() for other in (False, True) if COMPARE[op](other, value)])
    if type(value) is str:
        return F.coalesce(written.startswith('"') & COMPARE[op](_variant(field, "string"), F.lit(value)), F.lit(False))
    number = F.when(_rank(written) == _NUMBER, _variant(field, _DECIMAL))
    return F.coalesce(COMPARE[op](number, F.lit(quoted).cast(_DECIMAL)), F.lit(False))


def _compare(column: "Expression", op: str, values: Sequence[Any]) -> "Expression":
    if op in ("=", "in"):
        return column.isin(list(values))
    return column.startswith(F.lit(values[0])) if op == "^=" else COMPARE[op](column, F.lit(values[0]))


def _rank(written: "Expression") -> "Expression":
    """Return the kind of a value, by the first character of its JSON."""
    first = F.substring(written, 1, 1)
    other = F.when(first == "n", _NULL).when(first.isin("t", "f"), _BOOLEAN).when(first == '"', _STRING)
    return other.when(first.isin("[", "{"), _COMPOUND).otherwise(_NUMBER)


def _sort_keys(field: FieldPath, descriptor: QueryDescriptor) -> "list[Expression]":
    """Return the keys by which rows compare, the most significant first."""
    text = _text(field, descriptor)
    if text is not None:
        return [text]
    if field.name == _SEQ:
        return [F.col("stream_seq")]
    written = _json(field, descriptor)
    rank = _rank(written)
    number = F.when(rank == _NUMBER, _variant(field, _DECIMAL))
    return [rank, number, F.when(rank == _STRING, _variant(field, "string")).otherwise(written)]


def _cells(aggregate: Aggregate, descriptor: QueryDescriptor) -> "Iterator[Expression]":
    """Yield aggregates over the rows that are no results yet."""
    is_plain = F.col("result").isNull()
    yield F.count_if(is_plain).alias("rows")
    for at, metric in enumerate(aggregate.metrics):
        if metric.field is not None:
            value, is_ignored = _measure(metric, metric.field, descriptor)
            counted = F.when(is_plain, value)
            yield F.count(counted).alias(f"count{at}")
            yield F.count_if(is_plain & is_ignored).alias(f"ignored{at}")
            yield {"min": F.min, "max": F.max}.get(metric.function, F.sum)(counted).alias(f"value{at}")


def _measure(metric: Metric, field: FieldPath, descriptor: QueryDescriptor) -> "tuple[Expression, Expression]":
    """Return the value of a metric, NULL where it is ignored, and True where the metric cannot take it."""
    written = _json(field, descriptor)
    rank = _rank(written)
    if metric.function in ("sum", "avg"):
        if field.name == _SEQ:
            return F.col("stream_seq").cast(_SUMMED), F.lit(False)
        if _text(field, descriptor) is not None:
            return F.lit(None).cast(_SUMMED), F.lit(True)
        return F.when(rank == _NUMBER, _variant(field, _SUMMED)), rank.isin(_BOOLEAN, _STRING, _COMPOUND)
    keys = [key.alias(f"key{at}") for at, key in enumerate(_sort_keys(field, descriptor))]
    return F.when(~rank.isin(_NULL, _COMPOUND), F.struct(*keys, written.alias("json"))), rank == _COMPOUND
