"""State of a hub between messages, and the single transition that changes it.

`State.admit` is the transition of an accepted message. The hub calls it after its decision; recovery calls it for each
entry of the journal; an audit may call it for a whole log. State is therefore a function of accepted entries and
control records, and nothing else (I13, D-60). It does not matter which part of it is in memory: cursors are read from
the index when they are needed.

Cursors on demand: labels, clients and capabilities that a hub holds in memory (RES-01, D-56).

A cursor that changed since the last retirement exists nowhere else in this form, so it stays until it is saved. A
cursor that equals its row of the index may be dropped at any time: the least recently used goes first, and the index
returns it. Memory therefore follows what is in use, and no decision depends on what happens to be in memory.

`Presence` answers, without a look-up, that a key cannot be in the index: a new label or client is the common case in
which the index has no row.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from veen.core.limits import Limits
from veen.core.lru import Lru
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.policy_state import PolicyView
from veen.core.tree.mmr import Mmr

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


@dataclass(slots=True)
class ClientCursor:
    """The cursor of one writer in one label (spec §3.4.1)."""

    row: int  # its number in the index
    client_seq: int = 0  # of its last accepted message
    prev_ack: int = 0


@dataclass(slots=True)
class Label:
    """The append cursor of one label, as far as the sequencer has come, durable or not."""

    row: int
    label: bytes
    epoch: int
    stream_id: bytes | None
    mmr: Mmr

    @property
    def size(self) -> int:
        return self.mmr.size


@dataclass(slots=True)
class Cap:
    """A capability of the hub: the token, the start of its validity, and its bucket (D-47, D-50)."""

    auth_ref: bytes
    token: CapToken
    token_bytes: bytes
    issued_at: int
    tokens: int
    bucket_ts: int
    parent_ref: bytes | None = None  # of a derived token: whose subject issued it, and whose bucket pays (D-179)
    applied: bool = field(default=False, compare=False)  # whether the record that authorises it was applied
    # The bucket under the limits that were asked about last: they hardly ever change, and every message asks twice.
    _limits: Limits | None = field(default=None, repr=False, compare=False)
    _per_sec: int = field(default=0, repr=False, compare=False)
    _burst: int = field(default=0, repr=False, compare=False)

    @classmethod
    def begin(cls, token: CapToken, limits: Limits, issued_at: int, parent_ref: bytes | None = None) -> "Cap":
        """Return a capability that is valid from `issued_at` on, with a full bucket."""
        _, burst = token.allow.bucket(limits)
        return cls(token.auth_ref(), token, token.to_bytes(), issued_at, burst, issued_at, parent_ref)

    @property
    def has_bucket(self) -> bool:
        """True if its own bucket is charged: always, but for a derived token that sets no rate."""
        return self.parent_ref is None or self.token.allow.rate is not None

    def available(self, hub_ts: int, limits: Limits) -> int:
        """Return the whole tokens in the bucket at `hub_ts`, refilled each second up to the burst."""
        if limits is not self._limits:
            self._per_sec, self._burst = self.token.allow.bucket(limits)
            self._limits = limits
        refilled = self.tokens + self._per_sec * (hub_ts - self.bucket_ts)
        return refilled if refilled < self._burst else self._burst


class Admitted(NamedTuple):
    """Result of one admission: all that is needed to frame the entry, fill the files and save the cursors."""

    label: Label
    stream_seq: int
    leaf_hash: bytes
    mmr_root: bytes
    hub_ts: int
    nodes: list[bytes]
    client_id: bytes
    client_row: int
    client_seq: int
    prev_ack: int
    spent: tuple[tuple[bytes, int, int], ...]  # auth_ref, tokens, bucket_ts of each bucket that was charged


class LogState:
    """The cursors of all labels, clients and capabilities, the policy view, and the time."""

    def __init__(
        self,
        limits: Limits,
        load_client: Callable[[tuple[int, bytes]], ClientCursor | None] = lambda key: None,
        load_first_ts: Callable[[bytes], int | None] = lambda client_id: None,
        load_label: Callable[[bytes], Label | None] = lambda label: None,
        load_cap: Callable[[bytes], Cap | None] = lambda auth_ref: None,
        *,
        created: Callable[[Hashable], None] = lambda key: None,
        capacity: Capacity | None = None,
    ) -> None:
        """Read saved cursors with the given functions; call `created` with the key of each new label and client."""
        self._on_created = created
        capacity = capacity or Capacity()
        self.limits = limits
        self.labels: CursorCache[bytes, Label] = CursorCache(load_label, capacity.labels)
        self.clients: CursorCache[tuple[int, bytes], ClientCursor] = CursorCache(load_client, capacity.clients)
        self.caps: CursorCache[bytes, Cap] = CursorCache(load_cap, capacity.caps)
        self.hub_ts = 0
        self.control: ControlRecord | None = None  # the last record of the control journal
        self.label_count = 0
        self.next_client_row = 1
        self.fenced = False  # whether the control journal says that nothing more is admitted (hub.fence)
        self.policies = PolicyView()  # what policy records say, whether admission is told to look or not (D-51)
        # hub_ts at which a client was first new to a label, until the index has it.
        self.writers: dict[bytes, int] = {}
        self._first_ts: CursorCache[bytes, int] = CursorCache(load_first_ts, capacity.clients)

    def client(self, label: Label, client_id: bytes) -> ClientCursor | None:
        """Return the cursor of a writer; None if it never wrote to this label."""
        return self.clients.get((label.row, client_id))

    def first_ts(self, client_id: bytes) -> int | None:
        """Return the hub_ts of a client's first accepted message on any label (D-102); None if it never wrote.

        Only KEX1+ asks, so the index is read here and not when a client appears.
        """
        first_ts = self._first_ts.get(client_id)
        return self.writers.get(client_id) if first_ts is None else first_ts

    def open_label(self, label: bytes, epoch: int, stream_id: bytes | None) -> Label:
        """Open a label before its first entry."""
        self.label_count += 1
        opened = Label(self.label_count, label, epoch, stream_id, Mmr())
        self.labels[label] = opened
        self._on_created(label)
        return opened

    def payers(self, auth_ref: bytes) -> tuple[Cap, ...]:
        """Return the capabilities whose buckets are charged for a message with this auth_ref (D-50, D-179)."""
        cap = self.caps[auth_ref]
        if cap.parent_ref is None:
            return (cap,)
        parent = self.caps[cap.parent_ref]
        return (cap, parent) if cap.has_bucket else (parent,)

    def _charge(self, cap: Cap, hub_ts: int) -> tuple[bytes, int, int]:
        self.caps[cap.auth_ref] = cap
        cap.tokens = cap.available(hub_ts, self.limits) - 1
        cap.bucket_ts = hub_ts
        return (cap.auth_ref, cap.tokens, hub_ts)

    def admit(
        self,
        label: Label,
        *,
        client_id: bytes,
        client_seq: int,
        prev_ack: int,
        auth_ref: bytes | None,
        leaf_hash: bytes,
        hub_ts: int,
    ) -> Admitted:
        """Append one accepted message. The caller has decided that it is accepted."""
        self.labels[label.label] = label
        key = (label.row, client_id)
        cursor = self.clients.get(key)
        if cursor is None:
            cursor = ClientCursor(self.next_client_row)
            self.next_client_row += 1
            self._on_created(key)
            self.writers.setdefault(client_id, hub_ts)
        self.clients[key] = cursor
        cursor.client_seq, cursor.prev_ack = client_seq, prev_ack
        spent = () if auth_ref is None else tuple([self._charge(cap, hub_ts) for cap in self.payers(auth_ref)])
        self.hub_ts = hub_ts
        mmr = label.mmr
        nodes = mmr.append(leaf_hash)
        return Admitted(
            label, mmr.size, leaf_hash, mmr.root(), hub_ts, nodes, client_id, cursor.row, client_seq, prev_ack, spent
        )
