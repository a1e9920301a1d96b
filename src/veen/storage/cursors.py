"""Cursors on demand: what a hub keeps in memory of labels, clients and capabilities (RES-01, D-56).

A cursor that changed since the last retirement is nowhere else in this form, so it stays until it is saved. A cursor
that equals its row of the index may go at any time: the least recently used goes first, and the index gives it back.
So memory follows what is in use, and a decision does not depend on what happens to be in memory.

`Presence` answers, without a look-up, that a key cannot be in the index: a new label or client is the common case in
which the index would be asked for nothing.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from veen.core.lru import Lru

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_BITS_PER_KEY: Final = 10  # with three bits set per key, about two false answers in a hundred
_LEAST_BITS: Final = 1 << 13
_MOST_BITS: Final = 1 << 27  # 16 MiB; beyond 13 million keys the filter answers "perhaps" more often


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many saved cursors stay in memory; those that are not saved yet come on top."""

    labels: int = 10_000
    clients: int = 100_000
    caps: int = 10_000


class CursorCache(Generic[K, V]):
    """Cursors by key. Belongs to the sequencer's thread."""

    __slots__ = ("_alive", "_load", "_saved", "unsaved")

    def __init__(self, load: Callable[[K], V | None], capacity: int, *, shared: bool = False) -> None:
        """`load` reads the saved form. `shared`: others hold cursors across turns, so there is never a second one."""
        self._load = load
        self.unsaved: dict[K, V] = {}  # changed since they were saved, or never saved
        self._saved: Lru[K, V] = Lru(capacity)  # equal to their rows
        self._alive: WeakValueDictionary[K, V] | None = WeakValueDictionary() if shared else None

    def get(self, key: K) -> V | None:
        """The cursor, from memory or from the index; None if there is none."""
        value = self.unsaved.get(key)
        if value is None:
            value = self._saved.get(key)
        if value is not None:
            return value
        value = self.peek(key) or self._load(key)
        if value is not None:
            self._keep(key, value)
        return value

    def peek(self, key: K) -> V | None:
        """The cursor if it is in memory."""
        value = self.unsaved.get(key) or self._saved.peek(key)
        return value if value is not None or self._alive is None else self._alive.get(key)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __setitem__(self, key: K, value: V) -> None:
        """A cursor that is about to differ from its row, or has none: it stays until `saved`."""
        if key not in self.unsaved:
            self._saved.pop(key)
            self.unsaved[key] = value

    def hold(self, key: K, value: V) -> None:
        """A cursor that was read by other means; it equals its row."""
        self._keep(key, value)

    def saved(self, key: K) -> None:
        """The cursor equals its row now."""
        value = self.unsaved.pop(key, None)
        if value is not None:
            self._keep(key, value)

    def _keep(self, key: K, value: V) -> None:
        self._saved.put(key, value)
        if self._alive is not None:
            self._alive[key] = value

    def clear(self) -> None:
        """Forget all of it, saved or not: for tests."""
        self.unsaved.clear()
        self._saved.clear()

    def __len__(self) -> int:
        """How many are in memory."""
        return len(self.unsaved) + len(self._saved)

    def values(self) -> Iterator[V]:
        """Those in memory."""
        yield from self.unsaved.values()
        yield from self._saved.values()


class KeyFilter:
    """A set of keys that may contain too many and never too few (Bloom)."""

    __slots__ = ("_bits", "_mask", "_shift", "capacity", "room")

    def __init__(self, keys: int) -> None:
        """For about so many keys."""
        bits = _LEAST_BITS
        while bits < min(keys * _BITS_PER_KEY, _MOST_BITS):
            bits *= 2
        self._bits, self._mask = bytearray(bits // 8), bits - 1
        self._shift = bits.bit_length() - 1
        self.capacity = self.room = bits // _BITS_PER_KEY  # how many keys, and how many more, leave the answers good

    def add(self, key: Hashable) -> None:
        # Python's hash of bytes is keyed anew in each process: nobody can choose keys that collide.
        value = hash(key)
        self.room -= 1
        bits, mask = self._bits, self._mask
        step = (value >> self._shift) | 1
        for place in (value & mask, value + step & mask, value + 2 * step & mask):
            bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, key: Hashable) -> bool:
        value = hash(key)
        bits, mask = self._bits, self._mask
        step = (value >> self._shift) | 1
        return all(
            bits[place >> 3] >> (place & 7) & 1
            for place in (value & mask, value + step & mask, value + 2 * step & mask)
        )


class Presence:
    """Which keys cannot be in the index.

    Two parts, as two threads fill it: the keys that were there at the start are read by a helper, and until it has read
    all of them nothing is excluded; those that came since are added by the sequencer's thread.
    """

    __slots__ = ("_before", "_since")

    def __init__(self, keys_before: int) -> None:
        self._before: KeyFilter | None = None if keys_before else KeyFilter(0)
        self._since = [KeyFilter(0)]  # each one larger than the one before it, which is full

    def add(self, key: Hashable) -> None:
        """A key that is new, whether the index has its row already or not."""
        newest = self._since[-1]
        if newest.room <= 0:
            newest = KeyFilter(2 * newest.capacity)
            self._since.append(newest)
        newest.add(key)

    def complete(self, before: KeyFilter) -> None:
        """All keys that were there at the start: from now on answers are good."""
        self._before = before

    @property
    def is_complete(self) -> bool:
        return self._before is not None

    def excludes(self, key: Hashable) -> bool:
        before = self._before
        return before is not None and key not in before and not any(key in part for part in self._since)
