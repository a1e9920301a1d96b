"""State of a hub between messages, and the single transition that changes it.

`State.admit` is the transition of an accepted message. The hub calls it after its decision; recovery calls it for each
entry of the journal; an audit may call it for a whole log. State is therefore a function of accepted entries and
control records, and nothing else (I13, D-60). It does not matter which part of it is in memory: cursors are read from
the index when they are needed.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.policy_state import PolicyView
from veen.core.tree.mmr import Mmr
from veen.storage.cursors import Capacity, CursorCache


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
