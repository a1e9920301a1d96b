"""`veen replica`: follows a primary, verifies everything, and writes it byte by byte into a data directory (D-78).

    feed     the changes at the primary, as of one moment, and its control journal
    read     the new entries of those labels through /v1/stream, merged by their time
    verify   author, hub, leaf, root, order, checkpoint: all before anything is written
    write    through `Sequencer.replicate`: the same journal, files and recovery as those of any hub
    beside   attachments and the outer log, in a separate task: the log does not wait for them

The merged order differs from that of the primary only within one second, where it makes no difference: control records
that entries need come before them, and limits change on a second boundary. The directory is the state: a replica that
was killed continues behind its last durable entry. No key is needed; the primary signs the checkpoints of sealed
chunks, which are a function of log and keys.

A primary that contradicts what it signed before stops the replica, with both statements as evidence.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from veen.client.errors import BadAnswer, HubRefused, NetworkError, NotPinned
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls, Retry, Transport, is_not_found, is_transient
from veen.client.transport.hubapi import label_pages
from veen.client.verify.pin import HubPin
from veen.core import cbor
from veen.core.errors import FormatError, LimitError, VerifyError
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import (
    CapAuthorize,
    CapDerive,
    ControlRecord,
    KeyRotate,
    LabelOpen,
    LimitsSet,
    RetentionDrop,
)
from veen.core.objects.envelopes import CheckpointRequest, CheckpointResponse, ReceiptRequest, ReceiptResponse
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import MAX_LISTED, FeedRequest, FeedResponse, LabelInfo
from veen.core.run_check import MAX_WARNINGS, Authors, Fault, Pair, Rule, RunCheck, check_signatures, warning_of
from veen.core.tree.mmr import Mmr
from veen.hub.api.reply import ApiError
from veen.hub.process.housekeeping import in_thread
from veen.hub.process.replica import ReplicaHub
from veen.hub.process.startup import data_fs, save_limits
from veen.hub.sequencer.sequencer import CopiedEntry, Overloaded
from veen.io.errors import NoSpaceError, StorageError
from veen.io.local import Fs, OsFs
from veen.products.federation.mirroring import equivocation_of
from veen.products.federation.outer_copies import AttachmentFollower, OuterFollower, ReplicaInconsistent
from veen.storage import frame
from veen.storage import journal as wal
from veen.storage.copies.replica import (
    ReplicaMark,
    begin_replica,
    read_mark,
    remove_seals,
    save_identity,
    save_seals,
    seal_paths,
    write_mark,
)
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys
from veen.storage.label_files import LabelFiles, SealForecast
from veen.storage.maintenance.retention import Erasure, prepare
from veen.storage.store import Store

__all__ = ["ReplicaFollower", "ReplicaGap", "ReplicaInconsistent", "open_replica", "prepare_replica"]

_WAIT_SECONDS: Final = 5  # for which the primary may hold an answer back while nothing changes
_FIRST_SECONDS: Final = 5.0  # for which a new replica tries to reach its primary
_PAUSE_SECONDS: Final = 1.0  # between attempts while the primary cannot be reached
_LATE_SECONDS: Final = 5.0  # an answer that comes later than this behind its time is one that does not come
_BATCH_ITEMS: Final = 512
_BATCH_BYTES: Final = 4 * 1024 * 1024
_HELD_ITEMS: Final = 65_536  # read ahead, over all labels
_PAGE_ITEMS: Final = 512
_AT_ONCE: Final = 16  # requests
_BESIDE_SECONDS: Final = 1.0  # between checks for attachments and the outer log
_FENCE_SECONDS: Final = 30.0  # for which a run with `once` waits until a fenced primary has listed its fence
_RECORD_BYTES: Final = 1024 * 1024  # that no record of a control journal has
# The words of each broken rule of an entry, in the order in which they are reported.
_WORDS: Final = {
    Rule.CT_HASH: "MSG: ct_hash is not the hash of the ciphertext (I1)",
    Rule.LABEL: "it belongs to another label",
    Rule.SEQ: "its RECEIPT is for another position",
    Rule.LEAF: "leaf_hash is not that of the message (I2)",
    Rule.ACK_AHEAD: "prev_ack {0.actual} names an entry that did not exist yet (I6)",
    Rule.CLIENT_SEQ: "client_seq is {0.actual}, {0.expected} follows (I8, I9)",
    Rule.ACK_BACK: "prev_ack is {0.actual}, the entry before by this writer had {0.expected} (I6)",
    Rule.ROOT: "its root does not continue the log that the primary signed before (I3)",
}


class ReplicaGap(StorageError, code="E.REPLICA.PRUNED"):
    """The primary has erased entries that the replica does not have."""

    def __init__(self, label: bytes, first_seq: int, last_seq: int) -> None:
        super().__init__(
            f"the primary has erased entries {first_seq} to {last_seq} of label {label.hex()}, and they are not here"
        )
        self.label, self.first_seq, self.last_seq = label, first_seq, last_seq


async def open_replica(
    directory: Path,
    source: str,
    pin: str | None,
    transport: Transport,
    *,
    ca_file: Path | None = None,
    token_file: Path | None = None,
) -> str:
    """Make a directory a replica, or check an existing one; return the pin of the hub that it follows.

    Only a new directory needs the source: a replica may start while its primary is unreachable. The mark stores the
    paths of certificates and token, so that a promotion can ask the primary the same way.
    """
    pin = await _open_replica(directory, source, pin, transport)
    _keep_access(data_fs(directory), ca_file, token_file)
    return pin


def _keep_access(fs: OsFs, ca_file: Path | None, token_file: Path | None) -> None:
    with fs.lock():
        mark = read_mark(fs)
        if mark is None:
            return
        ca_path, token_path = ("" if path is None else str(path.absolute()) for path in (ca_file, token_file))
        updated = replace(mark, ca_file=ca_path, token_file=token_path)
        if updated != mark:
            write_mark(fs, updated)


async def _open_replica(directory: Path, source: str, pin: str | None, transport: Transport) -> str:
    fs = data_fs(directory)
    with fs.lock():
        mark = read_mark(fs)
        if mark is not None and (mark.source, mark.pin) == (source, pin or mark.pin) and identities.exists(fs):
            return mark.pin
        pin = pin or (None if mark is None else mark.pin)
        if pin is None:
            raise NotPinned("a new replica needs the key of the hub that it follows: --hub-pk ed25519:HEX")
        session = HubSession(Calls(transport, Retry(seconds=_FIRST_SECONDS)), HubPin.parse(pin))
        await session.open()
        await prepare_replica(fs, source, pin, session)
    return pin


async def prepare_replica(fs: Fs, source: str, pin: str, session: HubSession) -> None:
    """Make the directory a replica of the hub behind `session`, which is open; the caller holds the lock."""
    answer = await session.refresh_identity()
    mark = ReplicaMark(source, pin, {})
    begin_replica(fs, mark, answer.to_identity(), answer.sig, session.pin.root_pk)
    present = read_mark(fs)
    if present is not None and (present.source, present.pin) != (source, pin):
        write_mark(fs, replace(present, source=source, pin=pin))


@dataclass(slots=True)
class _Cursor:
    """The new entries of one label, one page ahead."""

    label: bytes
    next_seq: int
    upto: int
    entries: deque[CopiedEntry] = field(default_factory=deque)
    page: "asyncio.Task[list[CopiedEntry]] | None" = None


class ReplicaFollower:
    """Follows a primary for a `ReplicaHub`. Runs on the event loop's thread, except for signatures."""

    def __init__(
        self, hub: ReplicaHub, transport: Transport, pin: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._hub, self._clock = hub, clock
        self._calls = Calls(transport, NO_RETRY)
        self._session = HubSession(self._calls, HubPin.parse(pin))
        self._opened = False  # whether the primary has shown that it is the pinned hub
        self._instance: bytes | None = None
        self._commit: int | None = None
        self._control = b""  # of the primary's control journal, behind the part stored here
        self._records: deque[ControlRecord] = deque()  # read of it, verified, and not written yet
        self._record_bytes = 0  # of `_records`
        self._last_record: ControlRecord | None = hub.sequencer.store.state.control  # that was verified
        self._suspects: list[LabelInfo] = []  # of which the primary shows less than is here, or another root
        self.announced: dict[bytes, int] = {}  # labels of which the primary has more than is here
        self._source_entries = 0
        self._seals: list[tuple[int, str]] = [
            (hub.sequencer.store.journal.segment, path) for path in seal_paths(hub.fs)
        ]  # the journal segment that may need a checkpoint, and its file
        self.synced_at = 0.0  # when this replica last had all that the primary had; 0: never
        self._asked_at = 0.0  # when the present question was sent; 0: none is under way
        self.fault: str | None = None  # why the primary was not reached last
        self.warnings: list[str] = []  # where hub_ts of the primary goes back (D-28)
        self._started = clock()
        self.attachments = AttachmentFollower(hub.attachments, self._session)
        self._outer = OuterFollower(hub, self._session)
        hub.lag, hub.ask_checkpoint = self.lag, self.checkpoint
        hub.attachments_missing = lambda: self.attachments.missing

    # --- questions of others ---------------------------------------------------------------------------

    def lag(self) -> tuple[int, float]:
        """Return the entries and seconds behind the primary. There is no lag while it answers that nothing changed."""
        entries = max(0, self._source_entries - self._store.entry_count)
        now = self._clock()
        waiting = self._asked_at and now - self._asked_at < _WAIT_SECONDS + _LATE_SECONDS
        if not entries and self.synced_at and waiting and self.fault is None:
            return 0, 0.0
        return entries, max(0.0, now - (self.synced_at or self._started))

    async def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        """Return a checkpoint for a reader: signed by the primary, and of the log here."""
        files = self._store.files(label)
        assert files is not None  # noqa: S101 - the API has found the entry
        try:
            checkpoint = await self._ask_checkpoint(label, upto_seq)
            receipt = Receipt.from_bytes(self._store.reader.receipt(files, upto_seq))
        except (NetworkError, HubRefused) as exc:
            raise ApiError.unavailable("only the primary can sign this checkpoint, and it cannot be reached") from exc
        if checkpoint is None:
            raise ApiError.unavailable("the primary cannot sign this checkpoint any more")
        self._check_checkpoint(checkpoint, receipt)
        self._hub.followed.keep(checkpoint)
        return checkpoint

    def save(self) -> None:
        """Store the last known state of the primary, for a promotion of this replica after it has stopped."""
        if (mark := read_mark(self._hub.fs)) is not None:
            write_mark(self._hub.fs, replace(mark, announced=self.announced, heard_at=int(self.synced_at)))

    # --- following -------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return self._hub.sequencer.store  # read each time: the sequencer may reopen it

    @property
    def _identity(self) -> HubIdentity:
        return self._hub.identity.held.identity

    async def run(self, *, once: bool = False) -> None:
        """Run until the primary contradicts itself; wait for a primary that is unreachable.

        With `once`, run until this replica has everything that the primary had at one moment.
        """
        beside = None if once else asyncio.create_task(self._run_beside())
        try:
            await self._run(beside)
        finally:
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)

    async def _run(self, beside: "asyncio.Task[None] | None") -> None:
        complete, listed_until = False, asyncio.get_running_loop().time() + _FENCE_SECONDS
        while True:
            try:
                complete = await self.step(_WAIT_SECONDS if complete and beside is not None else 0)
                self.fault = None
                if beside is not None and beside.done():
                    beside.result()
                if complete and beside is None:
                    if await self.step_beside() or asyncio.get_running_loop().time() > listed_until:
                        return
                    await asyncio.sleep(_BESIDE_SECONDS)
            except (NetworkError, HubRefused, Overloaded) as exc:
                if isinstance(exc, HubRefused) and not is_transient(exc):
                    raise
                self.fault = str(exc)
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                self._asked_at = 0.0

    async def _run_beside(self) -> None:
        """Run until the outer log of the primary contradicts its log."""
        while True:
            await asyncio.sleep(_BESIDE_SECONDS)
            try:
                if self._opened:
                    await self.step_beside()
            except (NetworkError, HubRefused, NoSpaceError) as exc:
                if isinstance(exc, HubRefused) and not is_transient(exc):
                    raise

    async def step_beside(self) -> bool:
        """Copy attachments and the outer log; whether all of them is here that the primary hands out."""
        attachments = await self.attachments.step()
        return await self._outer.step() and attachments

    async def step(self, wait_seconds: int = 0) -> bool:
        """Ask once and copy new entries; return True if this replica has everything that the primary had then."""
        if not self._opened:
            await self._session.open()
            await self._take_identity()
            self._opened = True
        present_bytes = self._store.control_size + self._backlog_bytes()
        request = FeedRequest(
            control_bytes=present_bytes, wait_sec=wait_seconds, instance=self._instance, after=self._commit
        )
        self._asked_at = self._clock()
        answer = await self._ask_feed(request)
        self._asked_at = 0.0
        try:
            complete = await self._take(answer)
        except BaseException:  # entries read but not written are requested again
            self._control, self._suspects = b"", []
            self._records.clear()
            self._record_bytes = 0
            self._last_record = self._store.state.control
            raise
        if complete:
            self.synced_at = self._clock()
        return complete

    async def _ask_feed(self, request: FeedRequest) -> FeedResponse:
        timeout = request.wait_sec + 30.0
        try:
            answer = await self._calls.ask("tooling/feed", request, FeedResponse, timeout=timeout)
        except HubRefused as exc:
            if exc.detail.get("field") == "control_bytes":
                raise ReplicaInconsistent(
                    "the control journal of the primary is shorter than the one that it showed before"
                ) from exc
            raise
        if answer.control_bytes < request.control_bytes + len(answer.control):
            raise BadAnswer("tooling/feed: more of the control journal than there is")
        return answer

    def _backlog_bytes(self) -> int:
        return len(self._control) + self._record_bytes

    async def _take(self, answer: FeedResponse) -> bool:
        await self._read_control(answer)
        until: int | None = None
        if answer.complete:
            self._announce(answer.labels)
        else:
            # The list below is not of one moment, but no entry of an earlier second than this can be added any more.
            until = answer.hub_ts - 1
            async for page in label_pages(self._calls):
                self._announce(page)
        self._source_entries = answer.entries
        await self._check_shrunk()
        await self._copy(until)
        self._instance, self._commit = answer.instance, answer.commit
        await self._drop_seals()
        return until is None and not self.announced and not self._records

    def _announce(self, labels: Sequence[LabelInfo]) -> None:
        for info in labels:
            files = self._store.files(info.label)
            size = 0 if files is None else files.size
            if info.last_stream_seq > size:
                self.announced[info.label] = max(info.last_stream_seq, self.announced.get(info.label, 0))
            elif info.last_stream_seq < size or (files is not None and info.last_mmr_root != files.root()):
                self._suspects.append(info)

    async def _check_shrunk(self) -> None:
        suspects, self._suspects = self._suspects, []
        for info in suspects:
            files = self._store.files(info.label)
            assert files is not None  # noqa: S101 - it was compared with
            receipt = await self._ask_receipt(info.label, info.last_stream_seq)
            self._accuse_at(files, receipt)
            raise ReplicaInconsistent(
                f"the primary says that label {info.label.hex()} ends with entry {info.last_stream_seq}; it had signed"
                f" {files.size} entries of it"
            )

    # --- the control journal ---------------------------------------------------------------------------

    async def _read_control(self, answer: FeedResponse) -> None:
        """Read the control journal up to the moment of the answer."""
        data, wanted = answer.control, answer.control_bytes
        while True:
            self._control += data
            present_bytes = self._store.control_size + self._backlog_bytes()
            for record in self._parse_control(last=present_bytes >= wanted):
                await self._check_record(record)
                self._records.append(record)
                self._record_bytes += len(record.to_bytes())
                self._last_record = record
            if present_bytes >= wanted:
                return
            part = await self._ask_feed(FeedRequest(control_bytes=present_bytes, wait_sec=0))
            data = part.control[: wanted - present_bytes]
            if not data:
                raise BadAnswer("tooling/feed: nothing of the control journal, which goes on")

    def _parse_control(self, *, last: bool) -> list[ControlRecord]:
        """Return the complete records; the last part of the journal must end with one."""
        records, start = [], 0
        while start < len(self._control):
            try:
                end = cbor.item_end(self._control, start, what="tooling/feed")
                records.append(ControlRecord.from_bytes(self._control[start:end]))
            except FormatError as exc:
                if not last and len(self._control) - start < _RECORD_BYTES:
                    break
                raise ReplicaInconsistent(f"the control journal of the primary cannot be read: {exc}") from exc
            start = end
        self._control = self._control[start:]
        return records

    async def _check_record(self, record: ControlRecord) -> None:
        try:
            record.check_follows(self._last_record)
            try:
                self._identity.verify_control(record)
            except VerifyError:
                await self._take_identity()  # a key that is new
                self._identity.verify_control(record)
            if isinstance(record.body, KeyRotate):
                self._identity.verify_rotation(record)
                await self._take_identity()
            elif isinstance(record.body, CapAuthorize):
                record.body.check()
            elif isinstance(record.body, LimitsSet):
                Limits.from_json(record.body.limits)
        except (VerifyError, FormatError, LimitError) as exc:
            raise ReplicaInconsistent(f"the control journal of the primary does not hold: {exc}") from exc

    def _check_derived(self, record: ControlRecord, caps: Mapping[bytes, CapToken | None]) -> None:
        """Refuse a record whose token is derived from one that may not be (D-179); `caps` are those before it."""
        body = record.body
        if not isinstance(body, CapDerive):
            return
        stored = self._store.state.caps.get(body.parent_ref)
        parent = stored.token if stored is not None and stored.parent_ref is None else caps.get(body.parent_ref)
        if parent is None:
            raise ReplicaInconsistent(f"control record {record.seq}: its token is derived from none that may be")
        try:
            body.check().check_derived_from(parent)
        except VerifyError as exc:
            raise ReplicaInconsistent(f"the control journal of the primary does not hold: {exc}") from exc

    async def _take_identity(self) -> None:
        """Store the identity that the primary shows now, proven by the pin."""
        answer = await self._session.refresh_identity()
        identity = answer.to_identity()
        if identity != self._identity:
            await in_thread(save_identity, self._hub.fs, identity, answer.sig, self._session.pin.root_pk)
            self._hub.identity.replace(HubKeys(identity, {}))

    # --- entries ---------------------------------------------------------------------------------------

    async def _copy(self, until: int | None) -> None:
        """Write all that was announced, merged by time; with `until`, entries and records up to that second."""
        checkpoints = await self._ask_announced_checkpoints() if until is None else {}
        batch = _Batch()
        async with aclosing(self._merge(until)) as merged:
            async for item in merged:
                if isinstance(item, ControlRecord) and isinstance(item.body, RetentionDrop):
                    await self._write(batch, checkpoints)
                    batch = _Batch()
                    await self._erase(item, item.body)
                    continue
                batch.add(item)
                if len(batch.items) >= _BATCH_ITEMS or batch.size >= _BATCH_BYTES:
                    await self._write(batch, checkpoints)
                    batch = _Batch()
        await self._write(batch, checkpoints)
        for label in [label for label, size in self.announced.items() if self._size(label) >= size]:
            del self.announced[label]

    def _size(self, label: bytes) -> int:
        files = self._store.files(label)
        return 0 if files is None else files.size

    async def _merge(self, until: int | None) -> AsyncGenerator[CopiedEntry | ControlRecord, None]:
        """Yield control records and entries by time; control records first within one second."""
        cursors = [_Cursor(label, self._size(label) + 1, upto) for label, upto in sorted(self.announced.items())]
        page_items = max(1, min(_PAGE_ITEMS, _HELD_ITEMS // max(1, len(cursors))))
        turns = asyncio.Semaphore(_AT_ONCE)
        try:
            await asyncio.gather(*(self._refill(cursor, page_items, turns) for cursor in cursors))
            heap = [(cursor.entries[0].receipt.hub_ts, cursor.label, cursor) for cursor in cursors if cursor.entries]
            heapq.heapify(heap)
            while self._records or heap:
                entry_ts = heap[0][0] if heap else None
                record = self._records[0] if self._records else None
                if record is not None and (entry_ts is None or record.hub_ts <= entry_ts):
                    if until is not None and record.hub_ts > until:
                        return
                    self._record_bytes -= len(self._records.popleft().to_bytes())
                    yield record
                    continue
                hub_ts, label, cursor = heap[0]
                if until is not None and hub_ts > until:
                    return
                entry = cursor.entries.popleft()
                if not cursor.entries:
                    await self._refill(cursor, page_items, turns)
                if cursor.entries:
                    heapq.heapreplace(heap, (max(hub_ts, cursor.entries[0].receipt.hub_ts), label, cursor))
                else:
                    heapq.heappop(heap)
                yield entry
        finally:
            pages = [cursor.page for cursor in cursors if cursor.page is not None]
            for page in pages:
                page.cancel()
            await asyncio.gather(*pages, return_exceptions=True)

    async def _refill(self, cursor: _Cursor, page_items: int, turns: asyncio.Semaphore) -> None:
        """Add the next page of a label, and request the one after it."""
        if cursor.page is not None:
            page, cursor.page = cursor.page, None
            cursor.entries.extend(await page)
        elif cursor.next_seq <= cursor.upto:
            cursor.entries.extend(await self._ask_page(cursor.label, cursor.next_seq, cursor.upto, page_items, turns))
        cursor.next_seq += len(cursor.entries)
        if cursor.next_seq <= cursor.upto:
            asking = self._ask_page(cursor.label, cursor.next_seq, cursor.upto, page_items, turns)
            cursor.page = asyncio.create_task(asking)

    async def _ask_page(
        self, label: bytes, first: int, last: int, count: int, turns: asyncio.Semaphore
    ) -> list[CopiedEntry]:
        async with turns:
            try:
                page = await self._session.page(label, first, last, count)
            except HubRefused as exc:
                if is_not_found(exc) and exc.detail.get("reason") == "pruned":
                    raise ReplicaGap(label, first, await self._find_pruned_end(label, first, last, count)) from exc
                if is_not_found(exc):
                    raise ReplicaInconsistent(
                        f"the primary announced entry {last} of label {label.hex()} and does not have entry {first}"
                    ) from exc
                raise
        entries = []
        for number, item in enumerate(page.items):
            if item.receipt is None or item.stream_seq != first + number or item.stream_seq > last:
                raise BadAnswer("v1/stream: entries that were not asked for, or without receipts")
            entries.append(CopiedEntry(item.msg.to_bytes(), item.msg, item.receipt.to_bytes(), item.receipt))
        if page.label != label or not entries:
            raise BadAnswer("v1/stream: no entry of those that were asked for")
        return entries

    async def _find_pruned_end(self, label: bytes, first: int, last: int, count: int) -> int:
        """Find the last entry of an erased run, by asking for pages behind it."""
        low, high = first, last  # low is gone; find the first that is there, as erasing begins with the oldest
        while low < high:
            middle = (low + high + 1) // 2
            try:
                await self._session.page(label, middle, middle, 1)
                high = middle - 1
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
                low = middle
        return low

    async def _ask_announced_checkpoints(self) -> dict[tuple[bytes, int], Checkpoint]:
        """Return the primary's checkpoints of the labels that grew, at their announced ends."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def ask(label: bytes, upto: int) -> Checkpoint | None:
            async with turns:
                return await self._ask_checkpoint(label, upto)

        labels = list(self.announced.items())[:MAX_LISTED]
        answers = await asyncio.gather(*(ask(label, upto) for label, upto in labels))
        return {place: answer for place, answer in zip(labels, answers, strict=True) if answer is not None}

    async def _ask_checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        """Return a checkpoint, whose signature the caller checks; None if the key of that time was retired."""
        request = CheckpointRequest(label=label, upto_seq=upto_seq)
        try:
            checkpoint = (await self._calls.ask("v1/checkpoint", request, CheckpointResponse)).checkpoint
        except HubRefused as exc:
            if is_not_found(exc) and exc.detail.get("reason") == "key_retired":
                return None
            raise
        if (checkpoint.label_curr, checkpoint.upto_seq) != (label, upto_seq):
            raise BadAnswer("v1/checkpoint: another checkpoint than the one asked for")
        return checkpoint

    async def _ask_receipt(self, label: bytes, stream_seq: int) -> Receipt:
        request = ReceiptRequest(label=label, stream_seq=stream_seq)
        return (await self._calls.ask("v1/receipt", request, ReceiptResponse)).receipt

    # --- verify and write ------------------------------------------------------------------------------

    async def _write(self, batch: "_Batch", checkpoints: Mapping[tuple[bytes, int], Checkpoint]) -> None:
        if not batch.items:
            return
        signatures = await in_thread(_signature_fault, batch.entries, self._identity)
        if signatures is not None:
            await self._accuse(batch.entries[signatures[0]].receipt, signatures[1])
        seals = await self._verify(batch, checkpoints)
        paths = await in_thread(save_seals, self._hub.fs, seals) if seals else []
        await self._hub.sequencer.replicate(batch.items)
        # The batch is in this segment or an earlier one. Before it was written, a retirement could have begun a new
        # segment in between, and the checkpoints would have gone before the chunks that recovery seals with them.
        self._seals += [(self._store.journal.segment, path) for path in paths]
        for entry in batch.entries:
            place = (entry.receipt.label, entry.receipt.stream_seq)
            if place in checkpoints:
                self._hub.followed.keep(checkpoints[place])
        for record in batch.records:
            if isinstance(record.body, LimitsSet):
                await in_thread(save_limits, self._hub.fs, Limits.from_json(record.body.limits))

    async def _verify(
        self, batch: "_Batch", checkpoints: Mapping[tuple[bytes, int], Checkpoint]
    ) -> dict[tuple[bytes, int], Checkpoint]:
        """Check everything except signatures of entries; return the checkpoints of chunks that the batch will seal."""
        store = self._store
        limits = store.state.limits
        checks: dict[bytes, RunCheck] = {}
        forecasts: dict[bytes, SealForecast] = {}
        wanted: list[tuple[bytes, int]] = []
        receipts: dict[tuple[bytes, int], Receipt] = {}
        caps: dict[bytes, CapToken | None] = {}  # by auth_ref; None: derived, so nothing may be derived from it
        for item in batch.items:
            if isinstance(item, ControlRecord):
                if isinstance(item.body, LimitsSet):
                    limits = Limits.from_json(item.body.limits)
                elif isinstance(item.body, CapAuthorize):
                    self._check_derived(item, caps)
                    derived = isinstance(item.body, CapDerive)
                    caps.setdefault(item.body.auth_ref, None if derived else CapToken.from_bytes(item.body.token))
                elif isinstance(item.body, LabelOpen):
                    if item.body.label in checks or store.files(item.body.label) is not None:
                        raise ReplicaInconsistent(f"the control journal opens label {item.body.label.hex()} twice")
                    checks[item.body.label] = RunCheck(item.body.label, Mmr())
                    forecasts[item.body.label] = SealForecast.of_new_label(limits)
                continue
            receipt = item.receipt
            label = receipt.label
            if label not in checks:
                files = store.files(label)
                if files is None:
                    raise ReplicaInconsistent(
                        f"no record of the control journal opens label {label.hex()}, which has entries"
                    )
                tree, authors = store.state.labels[label].mmr.copy(), Authors(lookup=partial(self._cursor, label))
                checks[label] = RunCheck(label, tree, authors, last_ts=files.last_ts)
                forecasts[label] = files.seal_forecast()
            faults = {fault.rule: fault for fault in checks[label].append(item.msg, receipt)}
            if (late := faults.pop(Rule.TIME, None)) is not None:
                self._warn(receipt, late)
            for rule in _WORDS:
                if rule in faults:
                    await self._accuse(receipt, _WORDS[rule].format(faults[rule]))
            auth_ref = item.msg.auth_ref
            if auth_ref is not None and auth_ref not in caps and auth_ref not in store.state.caps:
                await self._accuse(receipt, "no record of the control journal authorises its token")
            place = (label, receipt.stream_seq)
            receipts[place] = receipt
            if (checkpoint := checkpoints.get(place)) is not None:
                self._check_checkpoint(checkpoint, receipt)
            length = frame.HEADER_BYTES + len(item.raw) + len(item.receipt_raw)
            wanted += [(label, upto_seq) for upto_seq in forecasts[label].add(length, limits)]
        return {place: await self._seal(place, receipts, checkpoints) for place in wanted}

    def _cursor(self, label: bytes, client_id: bytes) -> tuple[int, int] | None:
        """Return client_seq and prev_ack of the last entry here by an author."""
        state = self._store.state
        cursor = state.client(state.labels[label], client_id)
        return None if cursor is None else (cursor.client_seq, cursor.prev_ack)

    def _warn(self, receipt: Receipt, fault: Fault) -> None:
        """Add a warning that the clock of the primary went back, which does not refuse an entry (D-28)."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"entry {fault.seq} of label {receipt.label.hex()}: {warning_of(fault)}")

    async def _seal(
        self,
        place: tuple[bytes, int],
        receipts: Mapping[tuple[bytes, int], Receipt],
        checkpoints: Mapping[tuple[bytes, int], Checkpoint],
    ) -> Checkpoint:
        receipt = receipts.get(place)
        if receipt is None:  # the entry before this batch
            files = self._store.files(place[0])
            assert files is not None  # noqa: S101 - it has entries
            receipt = Receipt.from_bytes(self._store.reader.receipt(files, place[1]))
        checkpoint = checkpoints.get(place) or await self._ask_checkpoint(*place)
        if checkpoint is None:
            raise StorageError(
                f"the primary cannot sign the checkpoint of entry {place[1]} of label {place[0].hex()} any more, as the"
                " key of that time was taken away; begin with a clone of its directory"
            )
        self._check_checkpoint(checkpoint, receipt)
        return checkpoint

    def _check_checkpoint(self, checkpoint: Checkpoint, receipt: Receipt) -> None:
        """Check that a checkpoint is of the same log as a receipt, and signed as the primary seals."""
        if checkpoint.mmr_root != receipt.mmr_root:
            raise ReplicaInconsistent(
                f"the primary signs another root in a checkpoint than in the receipt of entry {receipt.stream_seq} of"
                f" label {receipt.label.hex()}",
                equivocation_of(receipt, checkpoint, [key.hub_pk for key in self._identity.keys]),
            )
        try:
            self._identity.verify_seal(checkpoint, receipt.hub_ts)
        except VerifyError as exc:
            raise ReplicaInconsistent(f"a checkpoint of the primary does not hold: {exc}") from exc

    async def _accuse(self, receipt: Receipt, fault: str) -> None:
        """Raise the error of an entry that cannot be written; first compare the primary's statements now and before."""
        label, size = receipt.label, self._size(receipt.label)
        files = self._store.files(label)
        if files is not None and size:
            self._accuse_at(files, await self._ask_receipt(label, size))
        raise ReplicaInconsistent(f"entry {receipt.stream_seq} of label {label.hex()}: {fault}")

    def _accuse_at(self, files: LabelFiles, statement: Receipt) -> None:
        """Raise ReplicaInconsistent with both receipts if the primary signed another entry or root than the one
        here.
        """
        if statement.label != files.label or not 0 < statement.stream_seq <= files.size:
            return
        own = Receipt.from_bytes(self._store.reader.receipt(files, statement.stream_seq))
        if (own.leaf_hash, own.mmr_root) == (statement.leaf_hash, statement.mmr_root):
            return
        hub_pks = [key.hub_pk for key in self._identity.keys]
        raise ReplicaInconsistent(
            f"the primary signed two histories: entry {statement.stream_seq} of label {files.label.hex()} is another"
            " one than it showed before",
            equivocation_of(own, statement, hub_pks),
        )

    async def _erase(self, record: ControlRecord, body: RetentionDrop) -> None:
        """Erase what the retention policy of the primary erased."""
        files = self._store.files(body.label)
        chunk = None if files is None else self._store.chunk_at(files, body.start_seq)
        if chunk is None or (chunk.start_seq, chunk.end_seq) != (body.start_seq, body.end_seq):
            raise ReplicaGap(body.label, body.start_seq, body.end_seq)
        erasure = Erasure(body.label, chunk, "receipts" if chunk.dropped else "payloads")
        await in_thread(prepare, self._hub.fs, erasure)
        await self._hub.sequencer.replicate([record])

    async def _drop_seals(self) -> None:
        """Remove checkpoints that recovery no longer needs."""
        if not self._seals:
            return
        first = min(wal.segments(self._hub.fs), default=0)
        done = [path for segment, path in self._seals if segment < first]
        if done:
            await in_thread(remove_seals, self._hub.fs, done)
            self._seals = [(segment, path) for segment, path in self._seals if segment >= first]


@dataclass(slots=True)
class _Batch:
    """Items that are verified and written together."""

    items: list[CopiedEntry | ControlRecord] = field(default_factory=list)
    entries: list[CopiedEntry] = field(default_factory=list)
    records: list[ControlRecord] = field(default_factory=list)
    size: int = 0

    def add(self, item: CopiedEntry | ControlRecord) -> None:
        self.items.append(item)
        if isinstance(item, ControlRecord):
            self.records.append(item)
        else:
            self.entries.append(item)
            self.size += len(item.raw)


def _signature_fault(entries: Sequence[CopiedEntry], identity: HubIdentity) -> tuple[int, str] | None:
    """Return the first entry whose author or hub did not sign it, and which of the two; in a helper thread."""
    unsigned, _ = check_signatures([Pair(entry.msg, entry.receipt) for entry in entries], identity)
    for number, faults in enumerate(unsigned):
        for fault in faults:
            if fault.rule is Rule.AUTHOR_SIG:
                return number, "its author did not sign it"
            hub_ts = entries[number].receipt.hub_ts
            return number, f"RECEIPT: hub_sig is by no key of this hub that is valid at {hub_ts}"
    return None
