"""What a hub must remember between messages, and the one way it changes.

`State.admit` is the transition that an accepted message causes. The hub calls it after it has decided; recovery
calls it for each entry of the journal; an audit may call it for a whole log. So state is a function of accepted
entries and control records, and nothing else (I13, D-60).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from veen.core.captoken import CapToken
from veen.core.control import ControlRecord
from veen.core.limits import Limits
from veen.core.mmr import Mmr
from veen.core.policyview import PolicyView

__all__ = ["Admitted", "Cap", "Client", "Label", "State"]


@dataclass(slots=True)
class Client:
    """The cursor of one writer in one label (spec §3.4.1)."""

    row: int  # its number in the index
    client_seq: int = 0  # of its last accepted message
    prev_ack: int = 0


@dataclass(slots=True)
class Label:
    """The append cursor of one label: as far as the sequencer has come, durable or not."""

    row: int
    label: bytes
    epoch: int
    stream_id: bytes | None
    mmr: Mmr
    clients: dict[bytes, Client] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.mmr.size


@dataclass(slots=True)
class Cap:
    """A capability as the hub holds it: the token, when it began to count, and its bucket (D-47, D-50)."""

    auth_ref: bytes
    token: CapToken
    token_bytes: bytes
    issued_at: int
    tokens: int
    bucket_ts: int
    # The bucket under the limits that were asked about last: they hardly ever change, and every message asks twice.
    _limits: Limits | None = field(default=None, repr=False, compare=False)
    _per_sec: int = field(default=0, repr=False, compare=False)
    _burst: int = field(default=0, repr=False, compare=False)

    @classmethod
    def begin(cls, token: CapToken, limits: Limits, issued_at: int) -> "Cap":
        """A capability that counts from `issued_at` on, with a full bucket."""
        _, burst = token.allow.bucket(limits)
        return cls(token.auth_ref(), token, token.to_bytes(), issued_at, burst, issued_at)

    def available(self, hub_ts: int, limits: Limits) -> int:
        """Whole tokens in the bucket at `hub_ts`, refilled each second up to the burst."""
        if limits is not self._limits:
            self._per_sec, self._burst = self.token.allow.bucket(limits)
            self._limits = limits
        refilled = self.tokens + self._per_sec * (hub_ts - self.bucket_ts)
        return refilled if refilled < self._burst else self._burst


class Admitted(NamedTuple):
    """What one admission did: enough to frame the entry, fill the files and save the cursors."""

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
    cap: tuple[bytes, int, int] | None  # auth_ref, tokens, bucket_ts


class State:
    """The cursors of all labels, clients and capabilities, the policy view, and the time."""

    def __init__(
        self,
        limits: Limits,
        load_client: Callable[[int, bytes], Client | None],
        load_first_ts: Callable[[bytes], int | None] = lambda client_id: None,
    ) -> None:
        self.limits = limits
        self.labels: dict[bytes, Label] = {}
        self.caps: dict[bytes, Cap] = {}
        self.hub_ts = 0
        self.control: ControlRecord | None = None  # the last record of the control journal
        self.next_client_row = 1
        self.policies = PolicyView()  # what policy records say, whether admission is told to look or not (D-51)
        self.writers: dict[bytes, int] = {}  # hub_ts at which a client was first new to a label, since the start
        self._first_ts: dict[bytes, int] = {}  # what `first_ts` has found out
        self._load_client, self._load_first_ts = load_client, load_first_ts

    def client(self, label: Label, client_id: bytes) -> Client | None:
        """The cursor of a writer, from memory or from the index; None if it never wrote to this label."""
        cursor = label.clients.get(client_id)
        if cursor is None and (cursor := self._load_client(label.row, client_id)) is not None:
            label.clients[client_id] = cursor
        return cursor

    def first_ts(self, client_id: bytes) -> int | None:
        """The hub_ts of a client's first accepted message on any label (D-102); None if it never wrote.

        Only KEX1+ asks, so the index is looked at here and not when a client appears.
        """
        found = self._first_ts.get(client_id)
        if found is None:
            found = self._load_first_ts(client_id)
            if found is None:
                found = self.writers.get(client_id)
            if found is not None:
                self._first_ts[client_id] = found
        return found

    def open_label(self, label: bytes, epoch: int, stream_id: bytes | None) -> Label:
        """A label gets its first entry next."""
        opened = Label(len(self.labels) + 1, label, epoch, stream_id, Mmr())
        self.labels[label] = opened
        return opened

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
        """Append one accepted message. Whether it may be accepted was decided before."""
        cursor = self.client(label, client_id)
        if cursor is None:
            cursor = label.clients[client_id] = Client(self.next_client_row)
            self.next_client_row += 1
            self.writers.setdefault(client_id, hub_ts)
        cursor.client_seq, cursor.prev_ack = client_seq, prev_ack
        spent = None
        if auth_ref is not None:
            cap = self.caps[auth_ref]
            cap.tokens = cap.available(hub_ts, self.limits) - 1
            cap.bucket_ts = hub_ts
            spent = (auth_ref, cap.tokens, hub_ts)
        self.hub_ts = hub_ts
        mmr = label.mmr
        nodes = mmr.append(leaf_hash)
        return Admitted(
            label, mmr.size, leaf_hash, mmr.root(), hub_ts, nodes, client_id, cursor.row, client_seq, prev_ack, spent
        )
