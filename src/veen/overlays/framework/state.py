"""The canonical form of a state: equal states, equal bytes, equal hashes (D-93).

States are frozen dataclasses, named tuples, mappings, sets, tuples and the values that CBOR knows. `to_tree` turns them
into a CBOR item: a dataclass is a map by field name, absent fields (None) omitted; keys are sorted bytewise by their
encoding. `from_tree` reads it again, guided by the type. Numbers may be larger than CBOR's 64 bits, since sums have no
bound: such a number is the byte string of its two's complement. Free-form values stand encoded in it (`Free`).
"""

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Self, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import cbor2

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.hashing import Ht
from veen.core.wire import Wire

T = TypeVar("T")

_LEAVES: Final = frozenset((bytes, str, bool, type(None)))
DERIVED: Final = {"derived": True}  # metadata of a field that a view adds and the canonical form does not have
_KEYS: Final = (int, str, bytes)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def state_record(cls: type[T]) -> type[T]:
    """Make a class a dataclass for records of a state. A fold makes one or more records for every event.

    The type checker takes it for a frozen one. At run time nothing guards its fields, since a constructor that has to
    go past the guard takes five times as long (decision 350).
    """
    return dataclasses.dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


class _Unread:
    """Mark of a value that is not decoded yet. A class, so that it keeps its identity when pickled."""


class Free:
    """A free-form value inside a state, equal by its one encoding (D-03). Most are overwritten before anyone asks for
    it, so it is made on demand; and so is the value, where only the encoding is known."""

    __slots__ = ("_data", "_value")

    def __init__(self, value: cbor.Item, data: bytes | None = None) -> None:
        self._value, self._data = value, data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        value = cbor.decode(data)
        return cls(value, cbor.encode_sorted(value))

    @classmethod
    def canonical(cls, data: bytes) -> Self:
        """Wrap bytes that `data` of another value returned. They are not checked again."""
        return cls(_Unread, data)

    @property
    def value(self) -> cbor.Item:
        if self._value is _Unread:
            self._value = cbor.decode(self.data)
        return self._value

    @property
    def data(self) -> bytes:
        if self._data is None:
            self._data = cbor.encode_sorted(self._value)
        return self._data

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, Free) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Free({self.value!r})"


def state_bytes(state: Any) -> bytes:
    """Return the deterministic CBOR of the state, keys sorted."""
    return cbor2.dumps(to_tree(state))


def state_hash(state_class: str, state: Any) -> bytes:
    """Return the hash that names a state in a checkpoint message (D-93)."""
    return Ht("veen/state-" + state_class, state_bytes(state))


def to_tree(value: Any, *, pairs: bool = False) -> cbor.Item:
    """Return `value` as one CBOR item.

    A mapping whose keys are not all integers, texts or bytes is a list of [key, value]; with `pairs` every mapping is,
    because readers of untrusted bytes bound the size of maps.
    """
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is int:
        return value if -cbor.U64_MAX - 1 <= value <= cbor.U64_MAX else _big(value)
    if kind is Free:
        return value.data
    if isinstance(value, Wire):
        return value.to_bytes()
    if dataclasses.is_dataclass(kind):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if not f.metadata}
        return _map({name: to_tree(v, pairs=pairs) for name, v in fields.items() if v is not None})
    if isinstance(value, Mapping):
        if not pairs and all(type(key) in _KEYS for key in value):
            return _map({to_tree(key): to_tree(v, pairs=pairs) for key, v in value.items()})
        rows = [[to_tree(key, pairs=pairs), to_tree(v, pairs=pairs)] for key, v in value.items()]
        return sorted(rows, key=lambda row: cbor2.dumps(row[0]))
    if isinstance(value, (set, frozenset)):
        return sorted((to_tree(element, pairs=pairs) for element in value), key=cbor2.dumps)
    if isinstance(value, (tuple, list)):
        return [to_tree(element, pairs=pairs) for element in value]
    raise TypeError(f"{kind.__name__} has no canonical form")


def _map(members: dict[Any, Any]) -> dict[Any, Any]:
    return dict(sorted(members.items(), key=lambda member: cbor2.dumps(member[0])))


def _big(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)


def from_tree(kind: Any, tree: cbor.Item) -> Any:
    """Read a value of type `kind` that `to_tree(…, pairs=True)` wrote. Raise MalformedError if it has another shape."""
    try:
        return _read(kind, tree)
    except (TypeError, ValueError, LookupError, AttributeError) as exc:
        raise MalformedError("a state of another shape", getattr(kind, "__name__", str(kind))) from exc


def _read(kind: Any, tree: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Free:
        return Free.from_bytes(_exact(bytes, tree))
    if kind is int:
        return int.from_bytes(tree, "big", signed=True) if type(tree) is bytes else _exact(int, tree)
    if kind in _LEAVES:
        return _exact(kind, tree)
    if kind is None:
        return _exact(type(None), tree)
    if origin in (Union, types.UnionType):
        return _read_union(args, tree)
    if origin is tuple:
        rows = _exact(list, tree)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(args[0], row) for row in rows)
        return tuple(_read(arg, row) for arg, row in zip(args, rows, strict=True))
    if origin in (set, frozenset):
        return origin(_read(args[0], row) for row in _exact(list, tree))
    if origin is list:
        return [_read(args[0], row) for row in _exact(list, tree)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_read(args[0], key): _read(args[1], value) for key, value in _exact(list, tree)}
    if isinstance(kind, type) and issubclass(kind, Wire):
        return kind.from_bytes(_exact(bytes, tree))
    base = origin or kind
    if isinstance(base, type) and dataclasses.is_dataclass(base):
        hints, members = _hints(base, args), _exact(dict, tree)
        if not members.keys() <= hints.keys():
            raise ValueError
        return base(**{name: _read(hint, members.get(name)) for name, hint in hints.items()})
    if isinstance(base, type) and issubclass(base, tuple):  # a named tuple
        rows = zip(_hints(base, args).values(), _exact(list, tree), strict=True)
        return base(*(_read(hint, row) for hint, row in rows))
    raise TypeError


def _exact(kind: Any, tree: Any) -> Any:
    if type(tree) is not kind:
        raise TypeError
    return tree


def _read_union(kinds: tuple[Any, ...], tree: Any) -> Any:
    for kind in kinds:
        try:
            return _read(kind, tree)
        except (TypeError, ValueError, LookupError, AttributeError):
            continue
    raise TypeError


@cache
def _hints(base: type, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the types of the fields, with the arguments of a generic type filled in."""
    arguments = dict(zip(getattr(base, "__parameters__", ()), args, strict=True))
    return {name: arguments.get(hint, hint) for name, hint in get_type_hints(base).items()}
