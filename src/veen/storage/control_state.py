"""State of the control journal: opened labels, tokens, limits, rotations, drops, policies, anchors (D-46).

Together with the label logs it is the whole state of a hub (STOR-22); `Spending` computes from both the tokens left in
each capability's bucket.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from veen.core import cbor
from veen.core.errors import FormatError, VerifyError
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import (
    AnchorPublish,
    CapAuthorize,
    CapDerive,
    ControlRecord,
    HubFence,
    HubPromote,
    KeyRotate,
    LabelOpen,
    LimitsSet,
    OuterKey,
    RetentionDrop,
    root_of_heads,
)
from veen.core.objects.policies import POLICY_BODIES
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.index import CapRow, PolicyRow, policy_row
from veen.storage.state import Cap

_WINDOW: Final = 1 << 20
_FLUSH: Final = 50_000


@dataclass(frozen=True, slots=True)
class OpenedLabel:
    """A label by its label.open record; `row` is its number in the index."""

    seq: int  # of the record
    row: int
    epoch: int
    stream_id: bytes | None
    limits: Limits | None  # in force when it was opened, hence for its first chunk; None if no record says


@dataclass(frozen=True, slots=True)
class Authorised:
    seq: int
    token: CapToken
    token_bytes: bytes
    issued_at: int
    limits: Limits | None
    parent: "Authorised | None" = None  # of a derived token (D-179)

    @property
    def ends_at(self) -> int:
        """The last second in which the token is valid (D-48); a derived one ends with its parent."""
        own = self.issued_at + self.token.allow.ttl
        return own if self.parent is None else min(own, self.parent.ends_at)


@dataclass(frozen=True, slots=True)
class Drop:
    """One retention.drop record; the second for a chunk erases its receipts as well."""

    seq: int
    end_seq: int
    entry_hashes_root: bytes


@dataclass(slots=True)
class ControlFold:
    """The journal up to some record."""

    limits: Limits | None = None  # before the first limits.set
    last: ControlRecord | None = None
    hub_ts: int = 0
    labels: dict[bytes, OpenedLabel] = field(default_factory=dict)
    caps: dict[bytes, Authorised] = field(default_factory=dict)
    derived: dict[bytes, list[bytes]] = field(default_factory=dict)  # auth_ref of a parent -> those of its tokens
    limits_log: list[tuple[int, int, Limits]] = field(default_factory=list)  # seq, hub_ts, limits
    rotations: list[KeyRotate] = field(default_factory=list)
    rotation_records: list[ControlRecord] = field(default_factory=list)  # the records of `rotations`
    drops: dict[tuple[bytes, int], list[Drop]] = field(default_factory=dict)  # by label and start_seq
    policies: list[PolicyRow] = field(default_factory=list)
    anchors: dict[tuple[bytes, int], list[AnchorPublish]] = field(default_factory=dict)  # by label and upto_seq
    outer_key: OuterKey | None = None  # of the newest record that binds one
    base_limits: Limits | None = None

    def __post_init__(self) -> None:
        self.base_limits = self.limits

    @property
    def seq(self) -> int:
        return self.last.seq if self.last else 0

    def add(self, record: ControlRecord) -> None:
        """Apply the next record; raise VerifyError or FormatError if it does not follow or is invalid."""
        record.check_follows(self.last)
        self.apply(record)

    def apply(self, record: ControlRecord) -> None:
        """Apply a record without checking the chain, for an audit that continues after a reported break."""
        body = record.body
        if self.last is not None and isinstance(self.last.body, HubFence) and not isinstance(body, HubPromote):
            raise VerifyError(
                f"control record {record.seq}: the hub was fenced, and no promotion came before it (D-78)"
            )
        if isinstance(body, LabelOpen):
            if body.label in self.labels:
                raise VerifyError(f"control record {record.seq}: this label was opened before")
            row = len(self.labels) + 1
            self.labels[body.label] = OpenedLabel(record.seq, row, body.epoch, body.stream_id, self.limits)
        elif isinstance(body, CapAuthorize):
            self._authorise(record, body)
        elif isinstance(body, LimitsSet):
            self.limits = Limits.from_json(body.limits)
            self.limits_log.append((record.seq, record.hub_ts, self.limits))
        elif isinstance(body, KeyRotate):
            self.rotations.append(body)
            self.rotation_records.append(record)
        elif isinstance(body, RetentionDrop):
            drops = self.drops.setdefault((body.label, body.start_seq), [])
            if len(drops) >= 2 or any(drop.end_seq != body.end_seq for drop in drops):
                raise VerifyError(f"control record {record.seq}: this chunk was dropped before")
            drops.append(Drop(record.seq, body.end_seq, body.entry_hashes_root))
        elif isinstance(body, POLICY_BODIES):
            self.policies.append(policy_row(record, body))
        elif isinstance(body, OuterKey):
            self.outer_key = body
        elif isinstance(body, AnchorPublish):
            self.anchors.setdefault((body.label, body.upto_seq), []).append(body)
        self.last = record
        self.hub_ts = max(self.hub_ts, record.hub_ts)

    def _authorise(self, record: ControlRecord, body: CapAuthorize) -> None:
        token, parent = body.check(), None
        if isinstance(body, CapDerive):
            parent = self.caps.get(body.parent_ref)
            if parent is None or parent.parent is not None:
                raise VerifyError(
                    f"control record {record.seq}: its token is derived from an unknown or derived token (D-179)"
                )
            token.check_derived_from(parent.token)
        if body.auth_ref in self.caps:  # authorising again never extends (D-47)
            return
        self.caps[body.auth_ref] = Authorised(record.seq, token, body.token, record.hub_ts, self.limits, parent)
        if isinstance(body, CapDerive):
            self.derived.setdefault(body.parent_ref, []).append(body.auth_ref)

    def limits_at(self, hub_ts: int) -> Limits | None:
        """Return the limits for an entry of this second: a change takes effect in its own second."""
        in_force = self.base_limits
        for _, changed, limits in self.limits_log:
            if changed > hub_ts:
                break
            in_force = limits
        return in_force

    def limits_between(self, first_ts: int, last_ts: int) -> list[Limits | None]:
        """Return all limits that were in force at some moment of these seconds, both included."""
        in_force: list[Limits | None] = [self.limits_at(first_ts - 1)]
        in_force += [limits for _, changed, limits in self.limits_log if first_ts <= changed <= last_ts]
        return in_force

    def drop_ends(self) -> dict[tuple[bytes, int], int]:
        """Return the last entry of each erased chunk, by label and first entry."""
        return {place: drops[0].end_seq for place, drops in self.drops.items()}

    def drop_level(self, label: bytes, start_seq: int, upto_record: int | None = None) -> int:
        """Return the erased part of a chunk: 0 nothing, 1 payloads, 2 also receipts; optionally as of a record."""
        drops = self.drops.get((label, start_seq), ())
        return sum(upto_record is None or drop.seq <= upto_record for drop in drops)


def fence_fault(last: ControlRecord | None, heads: Iterable[tuple[bytes, int, bytes | None]]) -> str | None:
    """Return what contradicts a final hub.fence record: later entries, or others than it counts; None if nothing does.

    `heads` are label, size and root of all labels; a root of None could not be computed. Fewer entries than the record
    counts are no fault here: a copy may be in progress.
    """
    if last is None or not isinstance(last.body, HubFence):
        return None
    present = [head for head in heads if head[1]]
    entries = sum(size for _, size, _ in present)
    if entries > last.body.upto:
        return f"the hub was fenced with {last.body.upto} entries, and {entries} are here (D-78)"
    roots = [(label, size, root) for label, size, root in present if root is not None]
    if entries == last.body.upto and len(roots) == len(present) and root_of_heads(roots) != last.body.root:
        return "the hub was fenced with other entries than those that are here (D-78)"
    return None


def control_records(
    fs: Fs, upto_bytes: int | None = None, before_seq: int | None = None
) -> Iterator[tuple[int, ControlRecord]]:
    """Yield the records of the control journal with their offsets; raise CorruptError at the first invalid byte.

    Bytes behind `upto_bytes`, or behind the record before `before_seq`, may never have been synced and are not read.
    """
    if upto_bytes == 0 or before_seq == 1 or not fs.exists(layout.CONTROL):
        return
    file = fs.open(layout.CONTROL)
    try:
        size = file.size() if upto_bytes is None else min(upto_bytes, file.size())
        window, base, pos = b"", 0, 0
        while base + pos < size:
            try:
                end = cbor.item_end(window, pos) if pos < len(window) else 0
                record = ControlRecord.from_bytes(window[pos:end]) if end else None
            except FormatError as exc:
                have = base + len(window)
                if have >= size or len(window) - pos > cbor.MAX_ITEM_BYTES:
                    raise CorruptError(layout.CONTROL, base + pos, f"no record begins here: {exc}") from exc
                record, end = None, 0
            if record is None:  # the window ends inside a record
                have = base + len(window)
                window, base, pos = window[pos:] + file.read_at(have, min(_WINDOW, size - have)), base + pos, 0
                continue
            yield base + pos, record
            if before_seq is not None and record.seq >= before_seq - 1:
                return
            pos = end
    finally:
        file.close()


class Spending:
    """Number of uses of each token in each second, over all labels: all that its bucket depends on.

    Labels are read one after the other, but time runs through all of them, so the counts wait in a temporary table.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # a private file that SQLite removes by itself
        self._db.execute(
            "CREATE TABLE uses (auth_ref BLOB, hub_ts INTEGER, n INTEGER, PRIMARY KEY (auth_ref, hub_ts)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE charged (auth_ref BLOB PRIMARY KEY) WITHOUT ROWID")
        self._fresh: dict[tuple[bytes, int], int] = {}

    def add(self, auth_ref: bytes, hub_ts: int, count: int = 1) -> None:
        key = (auth_ref, hub_ts)
        self._fresh[key] = self._fresh.get(key, 0) + count
        if len(self._fresh) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO uses VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n",
            [(auth_ref, hub_ts, count) for (auth_ref, hub_ts), count in self._fresh.items()],
        )
        self._db.execute("COMMIT")
        self._fresh.clear()

    def cap_row(self, auth_ref: bytes, grant: Authorised, control: ControlFold, default: Limits) -> CapRow:
        """Return the bucket after all uses, by the same steps as at admission (`State.admit`)."""
        self._flush()
        parent_ref = grant.parent.token.auth_ref() if grant.parent is not None else None
        cap = Cap.begin(grant.token, grant.limits or default, grant.issued_at, parent_ref)
        charged = [auth_ref] if cap.has_bucket else []
        self._db.execute("DELETE FROM charged")
        self._db.executemany(
            "INSERT INTO charged VALUES (?)", [(ref,) for ref in (*charged, *control.derived.get(auth_ref, ()))]
        )
        uses = self._db.execute(
            "SELECT hub_ts, SUM(n) FROM uses JOIN charged USING (auth_ref) GROUP BY hub_ts ORDER BY hub_ts"
        )
        for hub_ts, count in uses:
            cap.tokens = cap.available(hub_ts, control.limits_at(hub_ts) or default) - count
            cap.bucket_ts = hub_ts
        return CapRow(auth_ref, grant.token_bytes, grant.issued_at, cap.tokens, cap.bucket_ts)

    def close(self) -> None:
        self._db.close()
