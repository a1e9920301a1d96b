"""States as rows for SQL: with the columns that the overlay declares, and as JSON.

Rows of `state_…` are made by the declaration of the fold's overlay and sorted by their key, so equal states give equal
rows. A value that does not fit its column is kept in `unfit`, with the reason, as for events.

Rows of `gold_entries` need no declaration: each is an entry of a map of the state. A state is a map, or an object whose
fields are maps; maps in maps (records by entity and id) are followed to the innermost key. The value there is one JSON
value.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from veen.core.canonical import InvalidJson, Json, encode
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.query.fields import payload_of
from veen.lake.tables.typed import ARROW, FOREIGN, reason_of, to_cell
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.joined import Joined
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import ColumnKind, StateTable

STATE_PREFIX: Final = "state_"
FOLD: Final = Column("fold", "STRING", pa.string(), "the name of the fold")
STATE_HASH: Final = Column("state_hash", "BINARY", pa.binary(), "of the state, as its class defines it")
_UNFIT: Final = Column("unfit", "STRING", pa.string(), "values that fit no column, in JSON, with the reason; or NULL")


# --- with the columns of a declaration ------------------------------------------------------------------------------


@cache
def state_declarations() -> Mapping[str, StateTable]:
    """Return the declarations of all built-in or installed overlays, by the name of the table."""
    return BUILTIN.with_installed().states


def is_state(table: str) -> bool:
    return table.startswith(STATE_PREFIX)


def state_columns(table: StateTable) -> tuple[Column, ...]:
    own = (Column(column.name, *ARROW[column.kind], column.about) for column in table.columns)
    return (FOLD, STATE_HASH, *own, _UNFIT)


def state_definition(table: StateTable) -> str:
    """Return a hash of the declaration. Rows of another one are made again."""
    columns = [(column.name, column.kind) for column in table.columns]
    return sha256(repr((table.fold, table.part, columns, table.key)).encode()).hexdigest()


def definitions_of(fold: AnyFold) -> dict[str, str]:
    """Return the tables of a fold's state, or of all its parts, with the hashes of their declarations."""
    classes = set(_classes(fold))
    return {name: state_definition(table) for name, table in state_declarations().items() if table.fold in classes}


def state_tables(name: str, fold: AnyFold, view: Any, state_hash: bytes) -> dict[str, pa.Table]:
    """Return the rows of each table that an installed overlay declares for the fold, by the name of the table."""
    views = dict(_views(fold, view))
    return {
        table.name: _state_table(table, views[table.fold], {"fold": name, "state_hash": state_hash})
        for table in state_declarations().values()
        if table.fold in views
    }


def _classes(fold: AnyFold) -> Iterator[str]:
    if isinstance(fold, Joined):
        for part in fold.folds:
            yield from _classes(part)
    else:
        yield fold.name


def _views(fold: AnyFold, view: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(fold, Joined):
        for part in fold.folds:
            yield from _views(part, view[part.name])
    else:
        yield fold.name, view


def _state_table(table: StateTable, view: Any, place: Mapping[str, Any]) -> pa.Table:
    empty = dict.fromkeys(column.name for column in table.columns)
    try:
        rows = [_state_row(table, values) for values in table.rows(view)]
    except FOREIGN as exc:  # a declaration's own code must not stop the tables of everybody else
        rows = [empty | {"unfit": encode({"": reason_of(exc)}).decode()}]
    rows.sort(key=lambda row: _order(table, row))
    return pa.Table.from_pylist([{**place, **row} for row in rows], schema=arrow_schema(state_columns(table)))


def _state_row(table: StateTable, values: Mapping[str, object]) -> dict[str, Any]:
    row: dict[str, Any] = {"unfit": None}
    unfit: dict[str, Any] = {}
    for column in table.columns:
        value = values.get(column.name)
        try:
            row[column.name] = _cell(column.kind, value)
        except FOREIGN as exc:
            row[column.name] = None
            unfit[column.name] = {"why": reason_of(exc), "value": _plain(value)}
    return row | {"unfit": encode(unfit).decode()} if unfit else row


def _cell(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    return encode(_json(value)).decode() if kind == "json" else to_cell(kind, value)


def _plain(value: Any) -> Json:
    """Return a value as JSON, or the name of its type if it has no JSON form."""
    try:
        plain = _json(value)
        encode(plain)
    except (InvalidJson, TypeError, ValueError):
        return type(value).__name__
    return plain


def _order(table: StateTable, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key: the key of the row, then all its values, if a declaration repeats a key."""
    key = tuple((row[name] is not None, row[name]) for name in table.key)
    return key, repr(sorted(row.items()))


# --- as JSON --------------------------------------------------------------------------------------------------------


def state_entries(state: Any) -> list[tuple[str, str, str]]:
    """Return (part, key, value) in the order of part and key."""
    rows = []
    for path, value in _leaves(state, ()):
        *outer, key = path or ("",)
        rows.append(("/".join(map(_key, outer)), _key(key), encode(_json(value)).decode()))
    return sorted(rows)


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(member, (*path, key))
    elif not path and is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), (field.name,))
    else:
        yield path, value


def _key(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else encode(_json(value)).decode()


def _json(value: Any) -> Json:
    if isinstance(value, Free):
        return payload_of(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _json(getattr(value, name)) for name in value._fields}
    if isinstance(value, Mapping):
        return {_key(key): _json(member) for key, member in value.items()}
    if isinstance(value, Set):
        return sorted((_json(member) for member in value), key=encode)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json(member) for member in value]
    return _json(value.value) if isinstance(value, Enum) else value
