"""States as rows: what a fold gives, an entry of its maps in each row, so that SQL can ask for a key.

A state is a map, or an object whose fields are maps; maps in maps (records by entity and id) are followed to the
innermost key. What stands there is one JSON value.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from veen.overlays.framework.state import Free
from veen.query.canonical import Json, encode
from veen.query.fields import payload_of


def state_entries(state: Any) -> list[tuple[str, str, str]]:
    """(part, key, value) in the order of part and key."""
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
