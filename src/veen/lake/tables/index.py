"""Indexes of data files: a query opens only the files that can have a row for it.

A manifest has one for each file of bronze, silver and typed tables: of columns the least and the greatest value, the
number of NULLs and, if they are few, all values; of labels the number of rows of each kind. Of recorder events it has
the same for paths of the payload that a user has named (`payload.amount`), apart for each kind of value. An index
excludes files and never decides about a row. `read_part` compares the index of a file with its rows.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from veen.io.inside import FileRefused
from veen.lake.log.errors import OptionError
from veen.lake.query.fields import FieldPath
from veen.lake.tables.schema import is_typed, load_declarations
from veen.overlays.recorder.events import EVENTS_TABLE

_MAX_VALUES: Final = 16  # of a column: so many are listed one by one
_MAX_TEXT: Final = 64  # characters of a bound
_PLACES: Final = ("hub_time", "stream_seq", "issue")  # columns of every typed table that queries select by
_KINDS: Final = ("text", "integer", "boolean", "hex", "time")
_SCALARS: Final = (str, int, bool, Decimal)

_MAX_PATHS: Final = 64
_DIGITS: Final = 34  # of the bounds of numbers: more are rounded away from the values
_BELOW: Final = Context(prec=_DIGITS, rounding=ROUND_FLOOR, Emax=MAX_EMAX, Emin=MIN_EMIN)
_ABOVE: Final = Context(prec=_DIGITS, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN)

Scalar = str | int | bool | Decimal


class ColumnRange(NamedTuple):
    """Range of the values of one column. Times are whole seconds."""

    least: Scalar | None  # of a long text its beginning; None: there is no value
    greatest: Scalar | None  # None: there is no value, or it is too long a text
    nulls: int
    values: tuple[Scalar, ...] | None = None  # all of them in order; None: too many, or one is too long

    def may_be(self, op: str, value: Any) -> bool:
        """Return False if no row has a value for which `op` holds. `value` is a tuple for `in`."""
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


class PathRange(NamedTuple):
    """Range of the values at one path of payloads, apart for each kind that a condition can compare.

    Null, arrays, objects and missing values fit no condition: they are in no range.
    """

    flags: ColumnRange
    numbers: ColumnRange  # Decimal
    texts: ColumnRange

    def may_be(self, op: str, value: Any) -> bool:
        """Return False if no payload has a value there for which `op` holds. `value` is a tuple for `in`."""
        if op == "in":
            return any(self.may_be("=", scalar) for scalar in value)
        if type(value) is bool:
            return self.flags.may_be(op, value)
        return self.texts.may_be(op, value) if type(value) is str else self.numbers.may_be(op, Decimal(value))

    def to_json(self) -> list[Any]:
        least, greatest, nulls, values = self.numbers
        numbers = (
            _number_to_text(least),
            _number_to_text(greatest),
            nulls,
            None if values is None else list(map(_number_to_text, values)),
        )
        return [self.flags, numbers, self.texts]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        flags, numbers, texts = value
        least, greatest, nulls, values = numbers
        exact = None if values is None else list(map(_parse_number, values))
        ranges = cls(
            _parse_range(flags),
            _parse_range([_parse_number(least), _parse_number(greatest), nulls, exact]),
            _parse_range(texts),
        )
        for kind, column in zip((bool, Decimal, str), ranges, strict=True):
            if type(column.least) not in (kind, type(None)):
                raise ValueError("a range of another kind")
        return ranges


def _number_to_text(number: Any) -> str | None:
    return None if number is None else str(number)


def _parse_number(text: Any) -> Decimal | None:
    if text is None:
        return None
    number = Decimal(text if type(text) is str else "")
    if not number.is_finite():
        raise ValueError("no number")
    return number


class RowCount(NamedTuple):
    """Number of rows of a label of one kind, and the first of them."""

    label: str  # in hex
    kind: str  # silver: the schema in hex, or why it could not be opened; typed: the issue, or nothing
    rows: int
    first_seq: int


class FileIndex(NamedTuple):
    """Index of one file."""

    columns: Mapping[str, ColumnRange]
    counts: tuple[RowCount, ...]
    paths: Mapping[str, PathRange] = {}  # by the name of the path, as conditions have it

    def to_json(self) -> list[Any]:
        paths = {name: path_range.to_json() for name, path_range in self.paths.items()}
        return [dict(self.columns), self.counts, *((paths,) if paths else ())]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse an index. Raise FileRefused if it is invalid."""
        try:
            columns, counts, *paths = value
            return cls(
                {name: _parse_range(members) for name, members in columns.items()},
                tuple(_parse_count(members) for members in counts),
                {path_of(name).name: PathRange.from_json(ranges) for name, ranges in paths[0].items()} if paths else {},
            )
        except (TypeError, ValueError, AttributeError, InvalidOperation, OptionError) as exc:
            raise FileRefused("the index of a file is invalid") from exc


def _parse_range(members: Any) -> ColumnRange:
    least, greatest, nulls, values = members
    scalars = [scalar for scalar in (least, greatest, *(values or ())) if scalar is not None]
    if type(nulls) is not int or not all(type(scalar) in _SCALARS for scalar in scalars):
        raise ValueError("no range")
    if len({type(scalar) for scalar in scalars}) > 1:
        raise ValueError("a range of two types")
    return ColumnRange(least, greatest, nulls, None if values is None else tuple(values))


def _parse_count(members: Any) -> RowCount:
    label, kind, count, first_seq = members
    if not (type(label) is type(kind) is str and type(count) is type(first_seq) is int and count > 0):
        raise ValueError("no count")
    return RowCount(label, kind, count, first_seq)


# --- from rows ------------------------------------------------------------------------------------------------------


def path_of(name: Any) -> FieldPath:
    """Parse a path of payloads that can have an index. Raise OptionError for anything else."""
    try:
        path = FieldPath.of(name if type(name) is str else "")
    except ValueError as exc:
        raise OptionError(f"no index: {exc}") from exc
    if not path.path:
        raise OptionError(f"{name} cannot be indexed: give a path of the payload, such as payload.amount")
    return path


def paths_after(before: Collection[str], add: Collection[str], drop: Collection[str]) -> tuple[str, ...]:
    """Return the indexed paths after a change. Raise OptionError for an invalid or unknown name."""
    names = {path_of(name).name for name in add}
    for name in drop:
        if name not in before:
            raise OptionError(f"there is no index of {name}; there are {', '.join(sorted(before)) or 'none'}")
    after = tuple(sorted({*before, *names} - {*drop}))
    if len(after) > _MAX_PATHS:
        raise OptionError(f"{len(after)} indexes of paths are more than the {_MAX_PATHS} that manifests keep")
    return after


def index_of(table: str, rows: pa.Table, paths: Collection[str] = ()) -> FileIndex:
    """Build the index of a file with these rows."""
    columns = {name: _column_range(rows.column(name)) for name in _index_columns(table, rows.column_names)}
    ranges = path_ranges(rows, paths) if table == EVENTS_TABLE.name and paths else {}
    return FileIndex(columns, _count_rows(table, rows), ranges)


def path_ranges(rows: pa.Table, names: Collection[str]) -> dict[str, PathRange]:
    """Return the ranges of the values at some paths of the payloads."""
    paths = [path_of(name) for name in sorted(names)]
    # A payload that has the first name of no path need not be parsed. A step that is a number may mean a place.
    markers = [json.dumps(path.path[0], ensure_ascii=False) for path in paths if not path.path[0].isdecimal()]
    is_sure = len(markers) == len(paths)
    values: dict[str, dict[type, list[Any]]] = {path.name: {bool: [], Decimal: [], str: []} for path in paths}
    for text in rows.column("payload").to_pylist():
        if text is None or (is_sure and not any(marker in text for marker in markers)):
            continue
        payload = json.loads(text, parse_float=Decimal)  # canonical, since we wrote it: `parse` gives the same
        for path in paths:
            value = path.part_of(payload)
            if type(value) in (int, Decimal):
                values[path.name][Decimal].append(Decimal(value))
            elif type(value) in (bool, str):
                values[path.name][type(value)].append(value)
    return {
        name: PathRange(*(_range_of_values(by_kind[kind], rows.num_rows) for kind in (bool, Decimal, str)))
        for name, by_kind in values.items()
    }


def _range_of_values(values: list[Any], rows: int) -> ColumnRange:
    if not values:
        return ColumnRange(None, None, rows, ())
    least, greatest, distinct = min(values), max(values), set(values)
    bounds: tuple[Scalar, Scalar | None]
    if isinstance(least, Decimal):
        is_short = all(_BELOW.plus(value) == value for value in distinct)
        bounds = _BELOW.plus(least), _ABOVE.plus(greatest)
    elif isinstance(least, str):
        is_short = all(len(value) <= _MAX_TEXT for value in distinct)
        bounds = least[:_MAX_TEXT], greatest if len(greatest) <= _MAX_TEXT else None
    else:
        is_short, bounds = True, (least, greatest)
    listed = tuple(sorted(distinct)) if is_short and len(distinct) <= _MAX_VALUES else None
    return ColumnRange(*bounds, rows - len(values), listed)


def _index_columns(table: str, names: Iterable[str]) -> list[str]:
    if not is_typed(table):
        return ["hub_ts"]
    declared = load_declarations().get(table)
    own = {column.name for column in declared.columns if column.kind in _KINDS} if declared is not None else set()
    return [name for name in names if name in own or name in _PLACES]


def _column_range(column: pa.ChunkedArray) -> ColumnRange:
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return ColumnRange(None, None, column.null_count, ())
    least, greatest = _to_scalar(bounds["min"]), _to_scalar(bounds["max"])
    values: tuple[Scalar, ...] | None = None
    distinct = pc.unique(column).drop_null()
    if len(distinct) <= _MAX_VALUES:
        listed = sorted(map(_to_scalar, distinct.to_pylist()))
        if not any(isinstance(value, str) and len(value) > _MAX_TEXT for value in listed):
            values = tuple(listed)
    if isinstance(least, str):
        least = least[:_MAX_TEXT]
        greatest = greatest if len(str(greatest)) <= _MAX_TEXT else None
    return ColumnRange(least, greatest, column.null_count, values)


def _to_scalar(value: Any) -> Any:
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _count_rows(table: str, rows: pa.Table) -> tuple[RowCount, ...]:
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
