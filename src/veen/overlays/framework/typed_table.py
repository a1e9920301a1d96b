"""Typed tables: the events of one schema as columns, declared by the overlay that owns the schema (docs/tables.md).

`veen table load` fills one table for each declaration. A declaration is data and one pure function, so it needs no
Arrow and no Spark; the kinds of its columns say how values are written.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from veen.core.event import Event
from veen.overlays.framework.decode import Issue, Typed, decode
from veen.overlays.framework.schema import AnySchema

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
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """One column: the field of the body with the same name, unless the table says otherwise."""

    name: str
    kind: ColumnKind
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTable:
    """The table of one schema. Its rows are the events of the schema, each at its place in the log."""

    schema: AnySchema
    columns: tuple[TypedColumn, ...]
    read: Callable[[Event], Typed[Any] | Issue] | None = None  # None: `decode`; another one adds rules of the overlay
    values: Callable[[Any], Mapping[str, object]] | None = None  # of a body, absent: NULL; None: its fields by name
    sort: tuple[str, ...] = ()  # columns that queries select by: rows of an hour are sorted by them

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for column in self.columns:
            if _NAME.fullmatch(column.name) is None or column.name in RESERVED or names.count(column.name) > 1:
                raise ValueError(f"{self.schema.name}: {column.name!r} cannot be the name of a column")
            if column.kind not in COLUMN_KINDS:
                raise ValueError(
                    f"{self.schema.name}: {column.name} has the kind {column.kind!r}, which does not exist"
                )
        if not set(self.sort) <= set(names):
            raise ValueError(f"{self.schema.name}: sorted by a column that the table does not have")

    @classmethod
    def of(cls, schema: AnySchema, *, sort: tuple[str, ...] = ()) -> Self:
        """A column for each declared field of the body, by its name on the wire; `body_` before reserved names."""
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
        """As tables call it: typed_sdr_event_v1."""
        return f"typed_{self.schema.name.replace('.', '_')}"

    def read_event(self, event: Event) -> Mapping[str, object] | Issue:
        """The values of an event of the schema by the names of the columns, or why it has no effect."""
        typed = decode(event, self.schema) if self.read is None else self.read(event)
        if isinstance(typed, Issue):
            return typed
        if self.values is not None:
            return self.values(typed.body)
        return {column.name: getattr(typed.body, column.name) for column in self.columns}


def _present(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, object]:
    return {column: tree[name] for column, name in names.items() if name in tree}


def _column_name(field: str) -> str:
    return f"body_{field}" if field in RESERVED else field


def _kind_of(schema: Mapping[str, Any]) -> ColumnKind:
    """The kind of a column for what a field may hold, as JSON Schema says it: byte strings are texts of a pattern."""
    if schema.get("type") == "string":
        return "hex" if "pattern" in schema else "text"
    if "enum" in schema or isinstance(schema.get("const"), str):
        return "text"
    if schema.get("type") == "integer":
        return "integer"
    return "boolean" if schema.get("type") == "boolean" else "json"
