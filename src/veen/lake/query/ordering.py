"""`order` and `limit`: the first rows of a result by the values of its own fields; rows that tie stay in logical order.

Values of one field order as null, false, true, numbers, texts (by code point), then lists and objects by canonical
JSON; `desc` turns this around. An order needs a limit: no more rows than that are held, however long the log is.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import total_ordering
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, Self, TypeVar

from veen.core import canonical
from veen.core.canonical import Json
from veen.lake.query.errors import InvalidDescriptor

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
