"""Repair of two key.rotate records that retire one key: find them, and choose the one that the identity keeps.

Releases before request ids could write such a pair when an administrator's request was sent twice. Both records are in
the signed chain and stay there. Clients follow the first one; the identity files name the one that was published last;
a start finds a private key that the identity does not list. One of the two must be void, and its key must have signed
nothing, or what it signed would be lost:

    the first key may be chosen    if no later one signed anything; clients then follow by themselves
    a later key may be chosen      if the first one signed nothing; clients that pinned an older key must pin it
    none                           if both signed something: the log verifies under no single identity
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import SignatureError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity, HubKey, key_id_of
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.copies import archive
from veen.storage.keys import identity as identities
from veen.storage.keys import rotation as keyrotation
from veen.storage.scan import chunk_frames, inventory, read_file


class RotationConflictError(StorageError, code="E.STORAGE.ROTATIONS"):
    """Two simultaneous rotations whose keys both signed entries."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several rotations that retire the same key."""

    record: ControlRecord
    body: KeyRotate
    signatures: int  # receipts, checkpoints and control records that its key signed

    @property
    def key_id(self) -> str:
        return key_id_of(self.body.hub_pk)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Rotations of which only one can be valid, in the order of the control journal."""

    retired_pk: bytes
    candidates: tuple[Candidate, ...]

    @property
    def choice(self) -> Candidate | None:
        """The rotation to keep; None if more than one key signed something."""
        used = [candidate for candidate in self.candidates if candidate.signatures]
        if len(used) > 1:
            return None
        return used[0] if used else self.candidates[0]

    @property
    def is_followed(self) -> bool:
        """True if clients that pinned an older key follow the choice automatically."""
        return self.choice is self.candidates[0]


def find_conflicts(fs: Fs) -> list[Conflict]:
    """Return the keys that more than one rotation retires; reads the log only if there is one."""
    records = list(all_control_records(fs))
    by_key: dict[bytes, list[tuple[ControlRecord, KeyRotate]]] = {}
    for record in records:
        if isinstance(record.body, KeyRotate) and record.body.retired_pk is not None:
            by_key.setdefault(record.body.retired_pk, []).append((record, record.body))
    pairs = {retired_pk: pair for retired_pk, pair in by_key.items() if len(pair) > 1}
    if not pairs:
        return []
    counts = _count_signatures(fs, records, [body for pair in pairs.values() for _, body in pair])
    return [
        Conflict(retired_pk, tuple(Candidate(record, body, counts[body.hub_pk]) for record, body in pair))
        for retired_pk, pair in pairs.items()
    ]


def open_conflicts(fs: Fs) -> list[Conflict]:
    """Return the conflicts that keep a hub from starting: the key of a void rotation still exists."""
    identity = identities.read_identity(fs, key_map=False)
    listed = {key.hub_pk for key in identity.keys}
    return [
        conflict
        for conflict in find_conflicts(fs)
        if conflict.choice is None
        or conflict.choice.body.hub_pk not in listed
        or any(
            candidate is not conflict.choice and fs.exists(layout.key(candidate.key_id))
            for candidate in conflict.candidates
        )
    ]


def all_control_records(fs: Fs) -> Iterator[ControlRecord]:
    """Yield the records of the control log, then those that only the journal has; also of a running hub.

    The segments are opened first: what a retirement removes from them is in the control log when that is read.
    """
    opened = wal.open_segments(fs, wal.segments(fs))
    try:
        last_seq = 0
        for _, record in control_records(fs):
            last_seq = record.seq
            yield record
        for item in wal.walk(opened):
            if isinstance(item, wal.Placed) and isinstance(item.record, ControlRecord) and item.record.seq > last_seq:
                yield item.record
    finally:
        wal.close_segments(opened)


def _count_signatures(fs: Fs, records: Iterable[ControlRecord], bodies: list[KeyRotate]) -> dict[bytes, int]:
    """Count the statements that each of the new keys signed, from the time when the first of them was valid."""
    first = min(body.valid_from for body in bodies)
    counts = {body.hub_pk: 0 for body in bodies}
    signed: Iterator[Receipt | Checkpoint | ControlRecord] = _read_statements(fs, first)
    for statement in (*(record for record in records if record.hub_ts >= first), *signed):
        for hub_pk in counts:
            try:
                statement.verify(hub_pk)
            except SignatureError:
                continue
            counts[hub_pk] += 1
    return counts


def _read_statements(fs: Fs, first_ts: int) -> Iterator[Receipt | Checkpoint]:
    """Yield the receipts from a time on, of chunks, archives and the journal, and all checkpoints."""
    for label, files in inventory(fs).items():
        for file in files:
            if file.kind in ("chunk", "active"):
                for _, frame in chunk_frames(fs, file.path):
                    yield from _late(Receipt.from_bytes(frame.receipt), first_ts)
            elif file.kind == "receipts":
                for item in archive.items(fs, label, file.start_seq, file.end_seq, receipts=True):
                    if item.receipt is not None:
                        yield from _late(item.receipt, first_ts)
            elif file.kind == "checkpoint":
                yield Checkpoint.from_bytes(read_file(fs, file.path))
    opened = wal.open_segments(fs, wal.segments(fs))
    try:
        for placed in wal.walk(opened):
            if isinstance(placed, wal.Placed) and not isinstance(placed.record, ControlRecord):
                yield from _late(Receipt.from_bytes(placed.record.receipt), first_ts)
    finally:
        wal.close_segments(opened)


def _late(receipt: Receipt, first_ts: int) -> Iterator[Receipt]:
    if receipt.hub_ts >= first_ts:
        yield receipt


def repair_rotations(fs: Fs, conflicts: Iterable[Conflict], root: SigningKey | None = None) -> HubIdentity:
    """Write the identity of the chosen rotations, and remove the keys of the others; the caller holds the lock.

    A crash in between leaves a directory that this repairs again. RotationConflictError is raised if there is no
    choice.
    """
    identity = identities.read_identity(fs, key_map=False)
    void: set[bytes] = set()
    for conflict in conflicts:
        choice = conflict.choice
        if choice is None:
            raise RotationConflictError(
                f"keys {' and '.join(candidate.key_id for candidate in conflict.candidates)} were both introduced by"
                f" {key_id_of(conflict.retired_pk)}, and more than one of them signed entries"
            )
        void |= {candidate.body.hub_pk for candidate in conflict.candidates if candidate is not choice}
    repaired = _identity_of(fs, identity, void)
    signer = root or identities.read_key(fs, repaired.current.key_id)
    if repaired != identity:
        keyrotation.publish(fs, repaired, signer)
    for hub_pk in void:
        fs.remove(layout.key(key_id_of(hub_pk)))
    fs.sync_dir(layout.KEYS)
    return repaired


def _identity_of(fs: Fs, identity: HubIdentity, void: set[bytes]) -> HubIdentity:
    """Return the identity that the control journal gives without the void rotations."""
    first = identity.keys[0]
    repaired = HubIdentity((HubKey(hub_pk=first.hub_pk, valid_from=first.valid_from),), identity.anchoring)
    for record in all_control_records(fs):
        body = record.body
        if not isinstance(body, KeyRotate) or body.hub_pk in void:
            continue
        if body.retired_pk != repaired.current.hub_pk:
            raise CorruptError(layout.CONTROL, 0, f"record {record.seq} retires a key that was not the newest one")
        until = body.valid_from if body.retired_until is None else body.retired_until
        repaired = repaired.with_rotation(body.hub_pk, valid_from=body.valid_from, overlap_until=until)
    return repaired
