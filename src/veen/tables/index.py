"""Indexes: what is in a data file, so that a query opens only the files that can have a row for it.

A manifest has one for each file of bronze, silver and typed tables: of columns the least and the greatest value, how
many are NULL and, if they are few, all values; of labels how many rows there are of each kind. An index leaves files
out and never decides about a row. Whoever opens a file compares its index with what is in it (`read_part`).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from veen.fs.inside import FileRefused
from veen.tables.typed import installed, is_typed

_MAX_VALUES: Final = 16  # of a column: so many are listed one by one
_MAX_TEXT: Final = 64  # characters of a bound
_PLACES: Final = ("hub_time", "stream_seq", "issue")  # columns of every typed table that queries select by
_KINDS: Final = ("text", "integer", "boolean", "hex", "time")
_SCALARS: Final = (str, int, bool)

Scalar = str | int | bool


class ColumnRange(NamedTuple):
    """The values of one column. Times are whole seconds."""

    least: Scalar | None  # of a long text its beginning; None: there is no value
    greatest: Scalar | None  # None: there is no value, or it is too long a text
    nulls: int
    values: tuple[Scalar, ...] | None = None  # all of them in order; None: too many, or one is too long

    def may_be(self, op: str, value: Any) -> bool:
        """Whether a row may have a value for which `op` holds; `value` is a tuple for `in`."""
        if op == "in":
            return any(self.may_be("=", scalar) for scalar in value)
        least: Any = self.least
        greatest: Any = self.greatest
        if type(least) is not type(value):
            return False  # nothing but NULL, or values of another kind
        if op == "^=":
            return self._may_begin_with(value)
        if op == "=" and self.values is not None:
            return value in self.values
        not_below = greatest is None or (greatest > value if op == ">" else greatest >= value)
        not_above = least < value if op == "<" else least <= value
        return bool((not_below or op in ("<", "<=")) and (not_above or op in (">", ">=")))

    def _may_begin_with(self, prefix: str) -> bool:
        if self.values is not None:
            return any(str(value).startswith(prefix) for value in self.values)
        size = len(prefix)
        least, greatest = str(self.least)[:size], None if self.greatest is None else str(self.greatest)[:size]
        return least <= prefix and (greatest is None or prefix <= greatest)


class RowCount(NamedTuple):
    """How many rows of a label are of a kind, and the first of them."""

    label: str  # in hex
    kind: str  # silver: the schema in hex, or why it could not be opened; typed: the issue, or nothing
    rows: int
    first_seq: int


class FileIndex(NamedTuple):
    """What is in one file."""

    columns: Mapping[str, ColumnRange]
    counts: tuple[RowCount, ...]

    def to_json(self) -> list[Any]:
        return [dict(self.columns), self.counts]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """FileRefused for what is no index."""
        try:
            columns, counts = value
            return cls(
                {name: _range_of(members) for name, members in columns.items()},
                tuple(_count_of(members) for members in counts),
            )
        except (TypeError, ValueError, AttributeError) as exc:
            raise FileRefused("the index of a file is none") from exc


def _range_of(members: Any) -> ColumnRange:
    least, greatest, nulls, values = members
    scalars = [scalar for scalar in (least, greatest, *(values or ())) if scalar is not None]
    if type(nulls) is not int or not all(type(scalar) in _SCALARS for scalar in scalars):
        raise ValueError("no range")
    if len({type(scalar) for scalar in scalars}) > 1:
        raise ValueError("a range of two types")
    return ColumnRange(least, greatest, nulls, None if values is None else tuple(values))


def _count_of(members: Any) -> RowCount:
    label, kind, count, first_seq = members
    if not (type(label) is type(kind) is str and type(count) is type(first_seq) is int and count > 0):
        raise ValueError("no count")
    return RowCount(label, kind, count, first_seq)


# --- from rows ------------------------------------------------------------------------------------------------------


def index_of(table: str, rows: pa.Table) -> FileIndex:
    """The index of a file with these rows."""
    columns = {name: _column_range(rows.column(name)) for name in _indexed(table, rows.column_names)}
    return FileIndex(columns, _counts(table, rows))


def _indexed(table: str, names: Iterable[str]) -> list[str]:
    if not is_typed(table):
        return ["hub_ts"]
    declared = installed().get(table)
    own = {column.name for column in declared.columns if column.kind in _KINDS} if declared is not None else set()
    return [name for name in names if name in own or name in _PLACES]


def _column_range(column: pa.ChunkedArray) -> ColumnRange:
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return ColumnRange(None, None, column.null_count, ())
    least, greatest = _plain(bounds["min"]), _plain(bounds["max"])
    values: tuple[Scalar, ...] | None = None
    distinct = pc.unique(column).drop_null()
    if len(distinct) <= _MAX_VALUES:
        listed = sorted(map(_plain, distinct.to_pylist()))
        if not any(isinstance(value, str) and len(value) > _MAX_TEXT for value in listed):
            values = tuple(listed)
    if isinstance(least, str):
        least = least[:_MAX_TEXT]
        greatest = greatest if len(str(greatest)) <= _MAX_TEXT else None
    return ColumnRange(least, greatest, column.null_count, values)


def _plain(value: Any) -> Any:
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _counts(table: str, rows: pa.Table) -> tuple[RowCount, ...]:
    if is_typed(table):
        kinds = rows.column("issue").fill_null("")
    elif table == "silver":
        schemas = [None if schema is None else schema.hex() for schema in rows.column("schema").to_pylist()]
        kinds = pc.coalesce(rows.column("reason"), pa.chunked_array([pa.array(schemas, pa.string())]))
    else:
        kinds = rows.column("reason").fill_null("")
    keyed = pa.table({"label": rows.column("label"), "kind": kinds, "stream_seq": rows.column("stream_seq")})
    groups = keyed.group_by(["label", "kind"]).aggregate([("stream_seq", "count"), ("stream_seq", "min")]).to_pylist()
    return tuple(
        sorted(
            RowCount(group["label"].hex(), group["kind"], group["stream_seq_count"], group["stream_seq_min"])
            for group in groups
        )
    )
