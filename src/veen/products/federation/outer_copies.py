"""The outer log of a primary, copied by its replica (D-172).

The published note must be signed by the key that the control journal here binds, each leaf must be a statement of this
hub about the log here, and all leaves must lead to the root of the note. Only then is the note stored. Leaves appended
without a note are provisional: a replica that is killed in between overwrites them.

A note that lists entries that are not here yet waits for them: the outer log of a replica is never ahead of its log.

Errors of a replica about its primary, which end the replica.

Copies of a primary's attachments on its replica.

The log does not list attachments: their hashes are in sealed headers. So the primary lists its records of them in the
order of change, and the replica asks for those behind the last change that it has. Bytes are hashed before they are
written; a file and its row are durable before the number of the change is. A replica that is killed in between asks for
some of them again and finds the files.

A missing attachment blocks nothing: a hub that loses one loses nothing that it signed. It is counted, and requested
again after a while.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from veen.client.errors import BadAnswer, ClientError, HubRefused, NetworkError
from veen.client.session import HubSession
from veen.client.transport.calls import ATTACHMENT, is_not_found, is_transient
from veen.client.verify.outer import OuterReader
from veen.core import cbor
from veen.core.errors import FormatError, VerifyError
from veen.core.hashing import H
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import AttachmentsRequest, AttachmentsResponse, StoredAttachment
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey
from veen.core.tlog.proof import CONTROL_LEAF, OuterLeaf
from veen.core.tlog.tree import TlogError
from veen.core.tree.mmr import peak_nodes, root_of
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.housekeeping import in_thread
from veen.hub.process.replica import ReplicaHub
from veen.io.errors import StorageError
from veen.products.federation.mirroring import equivocation_of
from veen.storage.attachments import AttachmentFiles, AttachmentRecord, EntryRef
from veen.storage.outer import OuterLogFiles
from veen.storage.store import Store


class ReplicaInconsistent(VerifyError, code="E.REPLICA.INCONSISTENT"):
    """The primary shows data that it cannot have signed, or that contradicts what it signed before."""

    def __init__(self, what: str, evidence: Equivocation | None = None) -> None:
        super().__init__(what)
        self.evidence = evidence


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
        """Copy new leaves; return True if the published note is copied and lists the fence of a fenced primary."""
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


_AGAIN_SECONDS: Final = 60.0  # after which those that could not be had are asked for again


class AttachmentFollower:
    """Copies attachments for one replica. Fields belong to the event loop; files are written in a helper thread."""

    def __init__(
        self, files: AttachmentFiles, session: HubSession, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files, self._session, self._clock = files, session, clock
        self._instance: bytes | None = None
        self._after = 0  # the last change read; ahead of the stored one while something is missing
        self._noted: tuple[bytes | None, int] = (None, 0)  # the same as stored on disk
        self._begun = False
        self._missing: dict[bytes, int] = {}  # coid -> the number of its change
        self._asked_at = 0.0  # when those that are missing were last asked for
        self.copied_bytes = 0

    @property
    def missing(self) -> int:
        """Number of attachments that the primary lists but does not deliver."""
        return len(self._missing)

    async def step(self) -> bool:
        """Copy new attachments; return True if all available ones are here."""
        if not self._begun:
            self._noted = self._instance, self._after = await in_thread(self._files.copy_position)
            self._begun = True
        if self._missing and self._clock() - self._asked_at >= _AGAIN_SECONDS:
            self._after = min(self._missing.values()) - 1
            self._missing.clear()  # attachments erased meanwhile are no longer listed
        while True:
            request = AttachmentsRequest(after=self._after, instance=self._instance)
            try:
                answer = await self._session.calls.ask("tooling/attachments", request, AttachmentsResponse)
            except HubRefused as exc:
                if is_not_found(exc):  # an older hub, or one that keeps none
                    return True
                raise
            if answer.instance != self._instance:  # the numbers of before mean nothing any more
                self._instance, self._after = answer.instance, 0
                self._missing.clear()
            _check_order(answer, self._after)
            for stored in answer.attachments:
                await self._copy(stored)
                self._after = stored.number
            if not answer.attachments:
                self._after = max(self._after, answer.last)
            await self._note()
            if not answer.attachments:
                return True

    async def _copy(self, stored: StoredAttachment) -> None:
        entries = tuple(EntryRef(entry.label, entry.client_id, entry.client_seq) for entry in stored.entries)
        record = AttachmentRecord(stored.coid, stored.size, stored.owner, stored.pinned, entries)
        data = None
        if not await in_thread(self._files.has, stored.coid):
            data = await self._fetch(stored)
            if data is None:
                self._asked_at = self._clock()
                self._missing[stored.coid] = stored.number
                return
            self.copied_bytes += len(data)
        await in_thread(self._files.keep_copy, record, data)

    async def _fetch(self, stored: StoredAttachment) -> bytes | None:
        """Return the bytes; None if the primary does not have them, or if they do not match the hash."""
        try:
            data = (await self._session.calls.send(f"{ATTACHMENT}{stored.coid.hex()}", b"")).body
        except HubRefused as exc:
            if is_transient(exc):
                raise
            return None
        return data if len(data) == stored.size and H(data) == stored.coid else None

    async def _note(self) -> None:
        """Store the change where a restarted replica continues: before the first missing attachment."""
        upto = min([self._after, *(number - 1 for number in self._missing.values())])
        if self._instance is not None and upto and (self._instance, upto) != self._noted:
            await in_thread(self._files.note_copied, self._instance, upto)
            self._noted = (self._instance, upto)


def _check_order(answer: AttachmentsResponse, after: int) -> None:
    numbers = [after, *(stored.number for stored in answer.attachments)]
    rising = all(before < number for before, number in pairwise(numbers))
    if not rising or numbers[-1] > max(after, answer.last):
        raise BadAnswer("tooling/attachments: changes that were not asked for, or not in their order")
