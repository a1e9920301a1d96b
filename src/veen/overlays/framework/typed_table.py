"""Typed tables: events of one schema, or the state of one fold, as columns, declared by the overlay (docs/tables.md).

`veen table load` fills one table for each declaration of events, and with `--fold` those of the state. A declaration
is data and one pure function, so it needs no Arrow and no Spark; the kinds of its columns say how values are written.
"""

import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from veen.core.event import Event, Order
from veen.overlays.framework.schema import AnySchema, Issue, Typed, decode

ColumnKind = Literal["text", "integer", "boolean", "bytes", "hex", "time", "json"]
COLUMN_KINDS: Final[Mapping[ColumnKind, str]] = {
    "text": "a string",
    "integer": "a whole number of 64 bits",
    "boolean": "true or false",
    "bytes": "a byte string",
    "hex": "a byte string, written as hex text",
    "time": "seconds since 1970, written as a timestamp",
    "json": "any value, written as canonical JSON text",
}
# Columns that every typed table has, and those that its directories add: no declaration may use these names.
RESERVED: Final = (
    "stream_id", "stream", "label", "epoch", "stream_seq", "leaf_hash", "ts", "hub_time", "receipt_id", "issue",
    "unfit", "sid", "day",
)  # fmt: skip
# The same for tables of states.
STATE_RESERVED: Final = ("fold", "state_hash", "unfit")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """One column: the field of the body with the same name, unless the table says otherwise."""

    name: str
    kind: ColumnKind
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTable:
    """The table of one schema. Its rows are the events of the schema, each with its position in the log."""

    schema: AnySchema
    columns: tuple[TypedColumn, ...]
    read: Callable[[Event], Typed[Any] | Issue] | None = None  # None: `decode`; another one adds rules of the overlay
    values: Callable[[Any], Mapping[str, object]] | None = None  # of a body, absent: NULL; None: its fields by name
    sort: tuple[str, ...] = ()  # columns that queries select by: rows of an hour are sorted by them

    def __post_init__(self) -> None:
        _check_columns(self.schema.name, self.columns, RESERVED)
        names = {column.name for column in self.columns}
        if not set(self.sort) <= names:
            raise ValueError(f"{self.schema.name}: sorted by a column that the table does not have")

    @classmethod
    def of(cls, schema: AnySchema, *, sort: tuple[str, ...] = ()) -> Self:
        """Declare a column for each field of the body, by its name on the wire; `body_` precedes reserved names."""
        names = {_column_name(wire_field.name): wire_field.name for wire_field in schema.body.wire_fields()}
        kinds = {wire_field.name: wire_field.type for wire_field in schema.body.wire_fields()}
        return cls(
            schema=schema,
            columns=tuple(
                TypedColumn(column, _kind_of(kinds[name].schema), kinds[name].words) for column, name in names.items()
            ),
            values=lambda body: _present(body.to_tree(), names),
            sort=sort,
        )

    @property
    def name(self) -> str:
        """The name of the table, such as typed_sdr_event_v1."""
        return f"typed_{self.schema.name.replace('.', '_')}"

    def read_event(self, event: Event) -> Mapping[str, object] | Issue:
        """Return the values of an event by the names of the columns, or the Issue for which it has no effect."""
        typed = decode(event, self.schema) if self.read is None else self.read(event)
        if isinstance(typed, Issue):
            return typed
        if self.values is not None:
            return self.values(typed.body)
        return {column.name: getattr(typed.body, column.name) for column in self.columns}


def _check_columns(owner: str, columns: Collection[TypedColumn], reserved: Collection[str]) -> None:
    names = [column.name for column in columns]
    for column in columns:
        if _NAME.fullmatch(column.name) is None or column.name in reserved or names.count(column.name) > 1:
            raise ValueError(f"{owner}: {column.name!r} cannot be the name of a column")
        if column.kind not in COLUMN_KINDS:
            raise ValueError(f"{owner}: {column.name} has the kind {column.kind!r}, which does not exist")


def _present(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    return {column: tree[name] for column, name in names.items() if name in tree}


def _column_name(field: str) -> str:
    return f"body_{field}" if field in RESERVED else field


def _kind_of(schema: Mapping[str, Any]) -> ColumnKind:
    """Return the kind of a column for the JSON Schema of a field. A byte string is a text with a pattern."""
    if schema.get("type") == "string":
        return "hex" if "pattern" in schema else "text"
    if "enum" in schema or isinstance(schema.get("const"), str):
        return "text"
    if schema.get("type") == "integer":
        return "integer"
    return "boolean" if schema.get("type") == "boolean" else "json"


# --- states ---------------------------------------------------------------------------------------------------------

_ORDER: Final[Mapping[str, ColumnKind]] = {  # the members of an Order
    "ts": "time",
    "stream_id": "hex",
    "epoch": "integer",
    "stream_seq": "integer",
    "leaf_hash": "hex",
}
_SCALARS: Final[Mapping[type, ColumnKind]] = {str: "text", int: "integer", bool: "boolean", bytes: "hex"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """The state of one fold, or a part of it: the rows that its view gives."""

    fold: str  # the state class
    part: str = ""  # which, where a fold has several tables
    about: str  # one line
    columns: tuple[TypedColumn, ...]
    key: tuple[str, ...]  # columns that name a row; rows are sorted by them
    rows: Callable[[Any], Iterable[Mapping[str, object]]]  # of the view; an absent column is NULL

    def __post_init__(self) -> None:
        _check_columns(self.name, self.columns, STATE_RESERVED)
        if not set(self.key) <= {column.name for column in self.columns}:
            raise ValueError(f"{self.name}: the key names a column that the table does not have")

    @classmethod
    def of(
        cls,
        fold: str,
        record: type,
        key: Mapping[str, ColumnKind],
        records: Callable[[Any], Mapping[Any, Any] | Iterable[tuple[Any, Any]]],
        *,
        about: str,
        part: str = "",
        times: Collection[str] = (),
    ) -> Self:
        """Declare a column for each member of the key and each field of a record, a dataclass or a named tuple.

        `records` gives records of the view by key: one value, or a tuple where the key has several members. Named
        tuples in records become columns of their own; what has no other kind is JSON. `times` are columns with seconds.
        `record_` stands before reserved names.
        """
        leaves = tuple(leaf for leaf in _leaves(record, times) if leaf.column.name not in key)
        own = (TypedColumn(name, kind, COLUMN_KINDS[kind]) for name, kind in key.items())

        def rows(view: Any) -> Iterator[dict[str, object]]:
            pairs = records(view)
            for value, entry in pairs.items() if isinstance(pairs, Mapping) else pairs:
                members = value if len(key) > 1 else (value,)
                row: dict[str, object] = dict(zip(key, members, strict=True))
                row.update((leaf.column.name, leaf.value(entry)) for leaf in leaves)
                yield row

        return cls(
            fold=fold,
            part=part,
            about=about,
            columns=(*own, *(leaf.column for leaf in leaves)),
            key=tuple(key),
            rows=rows,
        )

    @property
    def name(self) -> str:
        """The name of the table, such as state_kv or state_queue_items."""
        return "_".join(filter(None, ("state", self.fold.replace(".", "_"), self.part)))


class _Leaf(NamedTuple):
    """A column of a record, and the path to its value."""

    column: TypedColumn
    path: tuple[str | int, ...]

    def value(self, record: Any) -> Any:
        for step in self.path:
            if record is None:
                return None
            record = record[step] if isinstance(step, int) else getattr(record, step)
        return record


def kinds_of(record: type, names: Iterable[str]) -> dict[str, ColumnKind]:
    """Return the kinds of some fields of a record, for a key."""
    kinds = {name: kind for name, kind, _ in _scalars(record, "", ())}
    return {name: kinds[name] for name in names}


def _leaves(record: type, times: Collection[str]) -> Iterator[_Leaf]:
    for name, kind, path in _scalars(record, "", ()):
        kind = "time" if name in times else kind
        column = f"record_{name}" if name in STATE_RESERVED else name
        yield _Leaf(TypedColumn(column, kind, COLUMN_KINDS[kind]), path)


def _scalars(
    record: type, prefix: str, path: tuple[str | int, ...]
) -> Iterator[tuple[str, ColumnKind, tuple[str | int, ...]]]:
    hints = get_type_hints(record)
    names = record._fields if hasattr(record, "_fields") else tuple(field.name for field in fields(record))
    for name in names:
        hint, column = _without_none(hints[name]), f"{prefix}{name}"
        if hint == Order:
            for at, (member, kind) in enumerate(_ORDER.items()):
                yield f"{column}_{member}", kind, (*path, name, at)
        elif hasattr(hint, "_fields"):
            yield from _scalars(hint, f"{column}_", (*path, name))
        else:
            yield column, _SCALARS.get(hint, "json"), (*path, name)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    members = [member for member in get_args(hint) if member is not type(None)]
    return members[0] if len(members) == 1 else hint
