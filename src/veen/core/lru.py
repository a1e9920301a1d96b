"""A bounded cache that drops the least recently used value first."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values by key; None is not a value. Owned by one thread, or protected by the owner's lock.

    `capacity` bounds the number of values, or the sum of their weights by `weigh`. The value that was put last stays,
    whatever its weight. `leave` is called with each value that is dropped or replaced, for instance to close a file;
    not with those that `pop` returns.
    """

    __slots__ = ("_capacity", "_leave", "_values", "_weigh", "_weight")

    def __init__(
        self, capacity: int, *, weigh: Callable[[V], int] | None = None, leave: Callable[[V], None] | None = None
    ) -> None:
        self._capacity, self._weigh, self._leave = capacity, weigh, leave
        self._values: OrderedDict[K, V] = OrderedDict()  # the least recently used first
        self._weight = 0  # of all values; their number without `weigh`

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def peek(self, key: K) -> V | None:
        """Return the value without marking it as used."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Add a value, or replace one."""
        before = self.pop(key)
        if before is not None and before is not value and self._leave is not None:
            self._leave(before)
        self._values[key] = value
        self._weight += 1 if self._weigh is None else self._weigh(value)
        while self._weight > self._capacity and len(self._values) > 1:
            self.shed()

    def pop(self, key: K) -> V | None:
        """Remove a value and return it; `leave` is not called."""
        value = self._values.pop(key, None)
        if value is not None:
            self._weight -= 1 if self._weigh is None else self._weigh(value)
        return value

    def shed(self) -> None:
        """Drop the least recently used value."""
        value = self.pop(next(iter(self._values)))
        if value is not None and self._leave is not None:
            self._leave(value)

    def clear(self) -> None:
        while self._values:
            self.shed()

    def values(self) -> Iterator[V]:
        return iter(self._values.values())

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
