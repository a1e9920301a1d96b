"""Cursors on demand: labels, clients and capabilities that a hub holds in memory (RES-01, D-56).

A cursor that changed since the last retirement exists nowhere else in this form, so it stays until it is saved. A
cursor that equals its row of the index may be dropped at any time: the least recently used goes first, and the index
returns it. Memory therefore follows what is in use, and no decision depends on what happens to be in memory.

`Presence` answers, without a look-up, that a key cannot be in the index: a new label or client is the common case in
which the index has no row.
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
    """Number of saved cursors that stay in memory; unsaved ones are added to it."""

    labels: int = 10_000
    clients: int = 100_000
    caps: int = 10_000


class CursorCache(Generic[K, V]):
    """Cursors by key. Owned by the sequencer's thread."""

    __slots__ = ("_alive", "_load", "_saved", "unsaved")

    def __init__(self, load: Callable[[K], V | None], capacity: int, *, shared: bool = False) -> None:
        """Read saved cursors with `load`.

        `shared`: others hold cursors across turns, so there is never a second one.
        """
        self._load = load
        self.unsaved: dict[K, V] = {}  # changed since they were saved, or never saved
        self._saved: Lru[K, V] = Lru(capacity)  # equal to their rows
        self._alive: WeakValueDictionary[K, V] | None = WeakValueDictionary() if shared else None

    def get(self, key: K) -> V | None:
        """Return the cursor, from memory or from the index; None if there is none."""
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
        """Return the cursor if it is in memory."""
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
        """Mark a cursor as unsaved, before it changes: it stays in memory until `mark_saved`."""
        if key not in self.unsaved:
            self._saved.pop(key)
            self.unsaved[key] = value

    def hold(self, key: K, value: V) -> None:
        """Add a cursor that was read by other means; it equals its row."""
        self._keep(key, value)

    # The caller compares the values before: a cursor that has moved on since the snapshot stays unsaved (decision 69).
    def mark_saved(self, key: K) -> None:
        """Mark the cursor as equal to its row."""
        value = self.unsaved.pop(key, None)
        if value is not None:
            self._keep(key, value)

    def _keep(self, key: K, value: V) -> None:
        self._saved.put(key, value)
        if self._alive is not None:
            self._alive[key] = value

    def clear(self) -> None:
        """Drop all cursors, saved or not: for tests."""
        self.unsaved.clear()
        self._saved.clear()

    def __len__(self) -> int:
        """Return the number of cursors in memory."""
        return len(self.unsaved) + len(self._saved)

    def values(self) -> Iterator[V]:
        """Yield the cursors in memory."""
        yield from self.unsaved.values()
        yield from self._saved.values()


class KeyFilter:
    """A set of keys with false positives and no false negatives (Bloom filter)."""

    __slots__ = ("_bits", "_mask", "_shift", "capacity", "room")

    def __init__(self, keys: int) -> None:
        """Reserve room for about `keys` keys."""
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
    """A filter of the keys that cannot be in the index.

    It has two parts, because two threads fill it: a helper reads the keys that existed at the start, and until it has
    read all of them nothing is excluded; the sequencer's thread adds the keys that came since.
    """

    __slots__ = ("_before", "_since")

    def __init__(self, keys_before: int) -> None:
        self._before: KeyFilter | None = None if keys_before else KeyFilter(0)
        self._since = [KeyFilter(0)]  # each one larger than the one before it, which is full

    def add(self, key: Hashable) -> None:
        """Add a new key, whether the index has its row already or not."""
        newest = self._since[-1]
        if newest.room <= 0:
            newest = KeyFilter(2 * newest.capacity)
            self._since.append(newest)
        newest.add(key)

    def complete(self, before: KeyFilter) -> None:
        """Set the filter of all keys that existed at the start: from now on answers are valid."""
        self._before = before

    @property
    def is_complete(self) -> bool:
        return self._before is not None

    def excludes(self, key: Hashable) -> bool:
        before = self._before
        return before is not None and key not in before and not any(key in part for part in self._since)
