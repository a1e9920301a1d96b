"""Conditions on any field: `filter.where` of a descriptor, a list of {field, op, value} that must all hold.

A condition compares values of one kind: false and true, exact numbers, texts by code point. A value of another kind,
null and a missing value match no condition. `^=` is the prefix of a text. Times are texts of one form, so their order
is that of the texts.

Conditions that the older members of a filter can express (`subject_id`, `event_type`, `time`) become these members: the
same question has the same bytes, however it was spelled, and a time of the hub selects chunks.

`order` and `limit`: the first rows of a result by the values of its own fields; rows that tie stay in logical order.

Values of one field order as null, false, true, numbers, texts (by code point), then lists and objects by canonical
JSON; `desc` turns this around. An order needs a limit: no more rows than that are held, however long the log is.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import total_ordering
from heapq import nsmallest
from itertools import islice
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NamedTuple, Self, TypeVar

from veen.core import canonical
from veen.core.canonical import Json
from veen.lake.query.errors import InvalidDescriptor
from veen.lake.query.fields import FieldPath, RecordedEvent, seconds_of, timestamp

MAX_CONDITIONS: Final = 64
_MAX_VALUES: Final = 1024
_MAX_TEXT: Final = 4096
TIME_FIELDS: Final = ("event_time", "hub_commit_time")
COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, "=": eq, ">": gt, ">=": ge}
OPERATORS: Final = ("=", "in", "<", "<=", ">", ">=", "^=")
_KINDS: Final[Mapping[type, int]] = {bool: 0, int: 1, Decimal: 1, str: 2}  # as min and max know them


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """One condition; `value` is a tuple of sorted scalars for `in`, else a scalar."""

    field: FieldPath
    op: str
    value: Any

    def fits(self, record: RecordedEvent) -> bool:
        actual = self.field.value(record)
        kind = _KINDS.get(type(actual))
        if kind is None:
            return False
        if self.op == "in":
            return any(_KINDS[type(value)] == kind and value == actual for value in self.value)
        if _KINDS[type(self.value)] != kind:
            return False
        return actual.startswith(self.value) if self.op == "^=" else COMPARE[self.op](actual, self.value)

    def to_json(self) -> Json:
        value = list(self.value) if self.op == "in" else self.value
        return {"field": self.field.name, "op": self.op, "value": value}

    def to_bytes(self) -> bytes:
        return canonical.encode(self.to_json())

    @classmethod
    def of(cls, given: Json, where: str) -> Self:
        """Parse a condition. Raise InvalidDescriptor if it is invalid."""
        if type(given) is not dict:
            raise InvalidDescriptor(where, "expected an object of field, op and value")
        for name in ("field", "op", "value"):
            if name not in given:
                raise InvalidDescriptor(f"{where}.{name}", "is missing")
        if extra := sorted(given.keys() - {"field", "op", "value"}):
            raise InvalidDescriptor(f"{where}.{extra[0]}", "there is no such member")
        name, op, value = given["field"], given["op"], given["value"]
        if type(op) is not str or op not in OPERATORS:
            raise InvalidDescriptor(f"{where}.op", f"there is no such operator; there are {' '.join(OPERATORS)}")
        try:
            field = FieldPath.of(name if type(name) is str else "")
        except ValueError as exc:
            raise InvalidDescriptor(f"{where}.field", str(exc)) from exc
        if op != "in":
            return cls(field, op, _check_value(value, field, op, f"{where}.value"))
        if type(value) is not list or not value or len(value) > _MAX_VALUES:
            raise InvalidDescriptor(f"{where}.value", f"expected an array of 1 to {_MAX_VALUES} values")
        values = {canonical.encode(scalar): _check_value(scalar, field, op, f"{where}.value") for scalar in value}
        ordered = tuple(values[key] for key in sorted(values))
        return cls(field, "=", ordered[0]) if len(ordered) == 1 else cls(field, op, ordered)


def _check_value(value: Json, field: FieldPath, op: str, where: str) -> Json:
    if type(value) not in _KINDS:
        raise InvalidDescriptor(where, "expected a text, a number, true or false")
    if type(value) is str and len(value) > _MAX_TEXT:
        raise InvalidDescriptor(where, f"a text has more than {_MAX_TEXT} characters")
    if op == "^=":
        if type(value) is not str:
            raise InvalidDescriptor(where, "a prefix is a text")
    elif field.name in TIME_FIELDS:
        try:
            seconds_of(value if type(value) is str else "")
        except ValueError as exc:
            raise InvalidDescriptor(where, str(exc)) from exc
    return value


def conditions_of(given: Json, where: str) -> tuple[FieldCondition, ...]:
    """Parse conditions; return each once, sorted by canonical bytes."""
    if type(given) is not list or len(given) > MAX_CONDITIONS:
        raise InvalidDescriptor(where, f"expected an array of at most {MAX_CONDITIONS} conditions")
    conditions = [FieldCondition.of(value, f"{where}.{at}") for at, value in enumerate(given)]
    return _sort_unique(conditions)


def _sort_unique(conditions: Sequence[FieldCondition]) -> tuple[FieldCondition, ...]:
    by_bytes = {condition.to_bytes(): condition for condition in conditions}
    return tuple(by_bytes[key] for key in sorted(by_bytes))


class Chosen(NamedTuple):
    """The older members of a filter."""

    subject_id: str | None
    event_type: tuple[str, ...] | None
    first_ts: int | None
    last_ts: int | None


def absorb_conditions(
    chosen: Chosen, conditions: Sequence[FieldCondition]
) -> tuple[Chosen, tuple[FieldCondition, ...]]:
    """Move conditions that the older members can express into them; keep contradicting ones as conditions."""
    remaining = []
    for condition in conditions:
        narrowed = _narrow(chosen, condition)
        if narrowed is None:
            remaining.append(condition)
        else:
            chosen = narrowed
    return chosen, _sort_unique(remaining)


def _narrow(chosen: Chosen, condition: FieldCondition) -> Chosen | None:
    """Return the members with the condition added; None if they cannot express it."""
    name, op, value = condition.field.name, condition.op, condition.value
    if name == "subject_id" and op == "=" and type(value) is str and value and chosen.subject_id in (None, value):
        return chosen._replace(subject_id=value)
    if name == "event_type" and op in ("=", "in"):
        values = value if op == "in" else (value,)
        if not all(type(text) is str and text for text in values):
            return None
        common = sorted(set(values) if chosen.event_type is None else set(values) & set(chosen.event_type))
        return chosen._replace(event_type=tuple(common)) if common else None
    if name == "hub_commit_time" and op in COMPARE:
        return _within(chosen, op, seconds_of(value))
    return None


def _within(chosen: Chosen, op: str, seconds: int) -> Chosen | None:
    first, last = chosen.first_ts, chosen.last_ts
    if op in ("=", ">=", ">"):
        begin = seconds + (op == ">")
        first = begin if first is None else max(first, begin)
    if op in ("=", "<=", "<"):
        end = seconds - (op == "<")
        last = end if last is None else min(last, end)
    if first is not None and last is not None and first > last:
        return None
    try:
        for bound in (first, last):
            if bound is not None:
                timestamp(bound)
    except ValueError:
        return None  # before the year 1 or behind 9999: no text has this bound
    return chosen._replace(first_ts=first, last_ts=last)


MAX_ORDERED: Final = 100_000  # rows that are held to be ordered
MAX_LIMIT: Final = 10**15
_MAX_ORDERS: Final = 16
_DIRECTIONS: Final = ("asc", "desc")
_RANKS: Final = {type(None): 0, bool: 1, int: 2, Decimal: 2, str: 3}
_COMPOUND: Final = 4

T = TypeVar("T")


@total_ordering
class _Reversed:
    __slots__ = ("key",)

    def __init__(self, key: tuple[int, Any]) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.key == other.key

    def __lt__(self, other: "_Reversed") -> bool:
        return other.key < self.key

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class RowOrder:
    """One field of the rows, and its direction."""

    field: str
    direction: str = "asc"

    def to_json(self) -> Json:
        return {"field": self.field, "direction": self.direction}

    def key(self, row: dict[str, Json]) -> Any:
        value = row[self.field]
        rank = _RANKS.get(type(value), _COMPOUND)
        if value is None or rank == _COMPOUND:
            value = canonical.encode(value)
        return (rank, value) if self.direction == "asc" else _Reversed((rank, value))

    @classmethod
    def of(cls, given: Json, where: str) -> Self:
        if type(given) is not dict or given.keys() - {"field", "direction"} or type(given.get("field")) is not str:
            raise InvalidDescriptor(where, "expected an object of field and direction")
        direction = given.get("direction", "asc")
        if direction not in _DIRECTIONS:
            raise InvalidDescriptor(f"{where}.direction", f"expected {' or '.join(_DIRECTIONS)}")
        return cls("payload" if given["field"] == "payload.*" else given["field"], direction)


def orders_of(given: Json) -> tuple[RowOrder, ...]:
    """Parse the order; keep the sequence of fields, and ignore a repeated one."""
    if given is None:
        return ()
    if type(given) is not list or len(given) > _MAX_ORDERS:
        raise InvalidDescriptor("order", f"expected an array of at most {_MAX_ORDERS} fields")
    orders: dict[str, RowOrder] = {}
    for at, value in enumerate(given):
        order = RowOrder.of(value, f"order.{at}")
        orders.setdefault(order.field, order)
    return tuple(orders.values())


def limit_of(given: Json) -> int | None:
    if given is not None and (type(given) is not int or not 1 <= given <= MAX_LIMIT):
        raise InvalidDescriptor("limit", f"expected a whole number from 1 to {MAX_LIMIT}")
    limit: int | None = given
    return limit


def check_order(orders: Sequence[RowOrder], limit: int | None, columns: Collection[str]) -> None:
    """Raise InvalidDescriptor unless the rows have the fields, and the limit is low enough."""
    for at, order in enumerate(orders):
        if order.field not in columns:
            raise InvalidDescriptor(f"order.{at}.field", "is not a field of the rows; add it to projection or metrics")
    if orders and (limit is None or limit > MAX_ORDERED):
        raise InvalidDescriptor("limit", f"an order needs a limit of at most {MAX_ORDERED} rows")


def first_rows(
    items: Iterable[T], row_of: Callable[[T], bytes], orders: Sequence[RowOrder], limit: int | None
) -> tuple[Iterator[T], Callable[[], int]]:
    """Return the items of the result, and a function that gives the number of all items once they are consumed.

    Every item of `items` is read, also beyond the limit, which does not affect what a query covers and skips.
    """
    count = 0

    def count_items() -> Iterator[T]:
        nonlocal count
        for item in items:
            count += 1
            yield item

    def key(item: T) -> list[Any]:
        row = canonical.parse(row_of(item))
        return [order.key(row) for order in orders]

    def select_items() -> Iterator[T]:
        source = count_items()
        if orders:
            yield from nsmallest(limit or 0, source, key=key)
        else:
            yield from islice(source, limit)
        for _ in source:
            pass

    return select_items(), lambda: count
