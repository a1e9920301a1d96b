"""The outer log of a primary, copied by its replica (D-172).

The published note must be signed by the key that the control journal here binds, each leaf must be a statement of this
hub about the log here, and all leaves must lead to the root of the note. Only then is the note stored. Leaves appended
without a note are provisional: a replica that is killed in between overwrites them.

A note that lists entries that are not here yet waits for them: the outer log of a replica is never ahead of its log.
"""

from typing import Final

from veen.client.errors import ClientError, HubRefused, NetworkError
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found
from veen.client.verify.outer import OuterReader
from veen.core import cbor
from veen.core.errors import FormatError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.tlog.errors import TlogError
from veen.core.tlog.leaf import CONTROL_LEAF, OuterLeaf
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey
from veen.core.tree.mmr import peak_nodes, root_of
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.housekeeping import in_thread
from veen.hub.process.replica import ReplicaHub
from veen.io.errors import StorageError
from veen.products.federation.errors import ReplicaInconsistent
from veen.products.federation.mirroring import equivocation_of
from veen.storage.outer import OuterLogFiles
from veen.storage.store import Store

_BATCH: Final = 256  # leaves that are verified and written together
_READ_BYTES: Final = 1024 * 1024  # of the control journal; no record is larger


class OuterFollower:
    """Copies the outer log for one replica. Fields belong to the event loop; files are written in a helper thread."""

    def __init__(self, hub: ReplicaHub, session: HubSession) -> None:
        self._hub, self._session = hub, session
        self._reader = OuterReader(session)
        self._control_offset = 0  # up to which the control journal here was compared with leaves
        self._control: ControlRecord | None = None  # the last record before it

    @property
    def _store(self) -> Store:
        return self._hub.sequencer.store

    async def step(self) -> bool:
        """Copy new leaves; return True if the published note is here and lists the fence of a fenced primary."""
        record = ControlIndex(self._store).outer_key()
        if record is None:  # the primary has none, or its record comes with the control journal
            return True
        try:
            note, head = await self._reader.note()
            vkey = await self._reader.vkey()
        except HubRefused as exc:
            if is_not_found(exc):  # it serves none any more, or has published nothing yet
                return not self._store.state.fenced
            raise
        if not isinstance(record.body, OuterKey) or record.body.vkey != str(vkey):
            raise ReplicaInconsistent("the primary binds another key to its outer log than its control journal does")
        files = self._hub.follow_outer(vkey).files
        await self._check_head(files, note, head)
        if not await self._append(files, head):
            return False
        if files.root(head.size) != head.root:
            raise ReplicaInconsistent(f"the leaves of the outer log do not have the root that was signed ({head.size})")
        await in_thread(files.take_over, note)
        return not self._store.state.fenced or await in_thread(lists_fence, files, self._store.state.control)

    async def _check_head(self, files: OuterLogFiles, note: Note, head: LogCheckpoint) -> None:
        """Refuse a smaller size, and a second root for one size."""
        before = files.head
        if (before is None or head.size > before.size or head == before) and head.size >= files.size:
            return
        earlier = files.signed
        both = (b"" if earlier is None else earlier.to_bytes() + b"\n") + note.to_bytes()
        path = await in_thread(files.keep_refusal, both)
        raise ReplicaInconsistent(
            f"the outer log of the primary has {head.size} leaves and does not continue the {files.size} that it had;"
            f" both notes are in {path}"
        )

    async def _append(self, files: OuterLogFiles, head: LogCheckpoint) -> bool:
        """Append the leaves of the note; return True if all are here. One of them may be ahead of the log here."""
        batch: list[bytes] = []
        pos, is_present = files.size, True
        async for data in self._reader.leaves(files.size, head.size):
            is_present = self._check_leaf(pos, data)
            if not is_present:
                break
            batch.append(data)
            pos += 1
            if len(batch) >= _BATCH:
                await in_thread(files.append, batch)
                batch = []
        if batch:
            await in_thread(files.append, batch)
        return is_present

    def _check_leaf(self, pos: int, data: bytes) -> bool:
        """Return True if the entry of a leaf is here. Raise ReplicaInconsistent if it differs."""
        try:
            leaf = OuterLeaf.from_bytes(data)
            if (checkpoint := leaf.checkpoint()) is not None:
                return self._check_checkpoint(checkpoint)
            if leaf.kind == CONTROL_LEAF:
                return self._check_control(ControlRecord.from_bytes(leaf.data))
            if pos or HubIdentity.from_bytes(leaf.data).hub_id != self._hub.identity.held.identity.hub_id:
                raise ReplicaInconsistent(f"leaf {pos} of the outer log is not the identity of this hub")
        except (NetworkError, ReplicaInconsistent):
            raise
        except (TlogError, FormatError, VerifyError, ClientError) as exc:
            raise ReplicaInconsistent(f"leaf {pos} of the outer log is not a statement of the primary: {exc}") from exc
        return True

    def _check_checkpoint(self, checkpoint: Checkpoint) -> bool:
        label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
        files = self._store.files(label)
        if files is None or files.size < upto_seq:
            return False
        self._session.pin.check_checkpoint(checkpoint, self._session.epoch_sec)
        if upto_seq and root_of([files.node_at(*node) for node in peak_nodes(upto_seq)]) == checkpoint.mmr_root:
            return True
        try:
            receipt = Receipt.from_bytes(self._store.reader.receipt(files, upto_seq))
        except (StorageError, VerifyError, FormatError, LookupError):  # erased: only the checkpoint is left
            receipt = None
        raise ReplicaInconsistent(
            f"the outer log of the primary lists another root after entry {upto_seq} of label {label.hex()} than its"
            " log has",
            equivocation_of(receipt, checkpoint, [key.hub_pk for key in self._hub.identity.held.identity.keys]),
        )

    def _check_control(self, record: ControlRecord) -> bool:
        """Check a listed control record. They are listed in order: the journal here is read once, up to the listed
        one.
        """
        last = self._store.state.control
        if last is None or last.seq < record.seq:
            return False
        if self._control is not None and record.seq < self._control.seq:
            self._control_offset, self._control = 0, None
        while self._control is None or self._control.seq < record.seq:
            length = min(_READ_BYTES, self._store.control_size - self._control_offset)
            part = self._store.read_control(self._control_offset, length)
            start = 0
            while start < len(part) and (self._control is None or self._control.seq < record.seq):
                try:
                    end = cbor.item_end(part, start, what="control journal")
                except FormatError:  # continues in the next part
                    break
                self._control = ControlRecord.from_bytes(part[start:end])
                start = end
            if not start:
                return False
            self._control_offset += start
        if self._control != record:
            raise ReplicaInconsistent(f"the outer log of the primary lists another control record {record.seq}")
        return True


def lists_fence(files: OuterLogFiles, last: ControlRecord | None) -> bool:
    """Return True if the newest control record is listed and signed: a fenced hub signs nothing behind it."""
    return last is not None and files.size == files.signed_size > 0 and files.last_control() == last


def bound_key(store: Store) -> VerifierKey | None:
    """Return the key of the outer log that the control journal binds."""
    record = ControlIndex(store).outer_key()
    return VerifierKey.parse(record.body.vkey) if record is not None and isinstance(record.body, OuterKey) else None
