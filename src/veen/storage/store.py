"""The storage engine of a hub: stage, make durable, apply, retire, recover (DESIGN §3, §4).

    stage    the hub decides and `State` moves on, in memory
    write    the group goes to the journal, one sync; only now may its receipts leave
    apply    chunks, nodes, locations and control journal are filled, unsynced
    retire   when a journal segment is full: sync those files, save all cursors in one transaction, drop the segment

Recovery goes back to the last retirement and applies the journal from there; it trusts nothing that was not
synced by then. Cursors are read from the index when they are needed (see `cursors`), so the cost of a start follows
from the journal's tail and not from the number of labels. All methods belong to one thread, except `Journal.write`,
`persist` and the steps of `learn_keys`, which a helper thread runs while the others go on.
"""

import json
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from veen.core.errors import FormatError, VerifyError
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import (
    BODIES,
    CapAuthorize,
    CapDerive,
    ControlRecord,
    HubFence,
    HubPromote,
    LabelOpen,
    LimitsSet,
    RetentionDrop,
)
from veen.core.objects.msg import Msg
from veen.core.objects.policies import POLICY_BODIES, PolicyBody
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.io.descriptors import patiently
from veen.io.errors import CorruptError, StorageError, UnsyncedError, is_disk_full
from veen.io.local import File, Fs, WholeDisk
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.copies.unfinished import check_finished
from veen.storage.frame import Frame, pack
from veen.storage.index import (
    CapRow,
    ChunkRow,
    ClientRow,
    Index,
    IndexSnapshot,
    LabelRow,
    PolicyRow,
    RecordRow,
    WriterRow,
    policy_row,
    record_row,
)
from veen.storage.journal import Journal
from veen.storage.label_files import AppendFile, FileCache, LabelFiles, LabelHead, OpenFile, Sealer, split_hashes
from veen.storage.reader import EntryReader
from veen.storage.state import Admitted, Cap, Capacity, ClientCursor, CursorCache, KeyFilter, Label, LogState, Presence

# A journal segment retires when it has this much for each label it touches, within these bounds (decision 49). Retiring
# syncs some files of each label, so many labels need large segments; small ones keep a retirement, and the replay of a
# restart, short.
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_LEAST_BYTES: Final = 16 * 1024 * 1024
_LABEL_BYTES: Final = 256 * 1024
_MOST_LABELS: Final = 16_384  # until then their cursors stay in memory, some 5 kB each
_KEYS_AT_ONCE: Final = 256  # that a helper thread reads in one step
_SYNCED_ONE_BY_ONE: Final = 64  # files; for more, syncfs(2) syncs the whole file system (decision 291)
_MOST_LABELS_AT_STOP: Final = 1_000  # with more, a stop leaves the journal to the next start, which is quicker


@dataclass(slots=True)
class Group:
    """Entries and control records that one sync makes durable, in the order of their decision."""

    parts: list[bytes] = field(default_factory=list)
    done: list[tuple[Admitted, bytes] | ControlRecord] = field(default_factory=list)  # in step with `parts`

    def add_entry(self, admitted: Admitted, msg: bytes, receipt: bytes) -> None:
        data, entry_hash = pack(admitted.label.label, admitted.stream_seq, msg, receipt)
        self.parts.append(data)
        self.done.append((admitted, entry_hash))

    def add_control(self, record: ControlRecord) -> None:
        self.parts.append(record.to_bytes())
        self.done.append(record)

    def fill(self, decided: Sequence[Admitted | ControlRecord], sealed: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Add all at once, if others framed them: each with its bytes, and an entry with its entry_hash."""
        for item, (data, entry_hash) in zip(decided, sealed, strict=True):
            self.parts.append(data)
            if isinstance(item, Admitted):
                assert entry_hash is not None  # noqa: S101 - what was decided and what was framed are in step
                self.done.append((item, entry_hash))
            else:
                self.done.append(item)

    def payload(self) -> bytes:
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Retirement:
    """Data that must become durable before the journal segments before `snapshot.segment` may be removed."""

    snapshot: IndexSnapshot
    paths: Sequence[str]
    dirty: Sequence[OpenFile] = ()  # descriptors through which files were written; they are synced through these
    is_whole: bool = False  # some were closed since: the whole disk must be synced
    erased: Sequence[str] = ()  # files that the retention policy lets go; their records are in the journal until then


@dataclass(slots=True)
class _Pending:
    """Changes that were applied since the last retirement."""

    labels: set[bytes] = field(default_factory=set)
    unflushed: list[bytes] = field(default_factory=list)  # those whose files were not written since they came here
    opened: list[tuple[int, bytes]] = field(default_factory=list)  # (epoch, label) of new labels, in order
    clients: dict[int, Admitted] = field(default_factory=dict)  # the last one of each client
    entries: dict[tuple[int, int], int] = field(default_factory=dict)  # (client_row, client_seq) -> stream_seq
    chunks: list[ChunkRow] = field(default_factory=list)
    caps: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)  # auth_ref, tokens, bucket_ts
    writers: dict[bytes, int] = field(default_factory=dict)  # clients that were new to a label, and when
    policies: list[PolicyRow] = field(default_factory=list)
    records: dict[tuple[str, bytes], list[RecordRow]] = field(default_factory=dict)  # by kind and key
    paths: set[str] = field(default_factory=set)
    erased: list[str] = field(default_factory=list)

    def touch(self, label: bytes) -> None:
        if label not in self.labels:
            self.labels.add(label)
            self.unflushed.append(label)


@dataclass(frozen=True, slots=True)
class _EntryRows:
    """The rows of `entries`, made while they are read; may be read again when a retirement is repeated."""

    places: Mapping[tuple[int, int], int]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        for (client_row, client_seq), stream_seq in self.places.items():
            yield client_row, client_seq, stream_seq


class Store:
    """One open data directory, with the exclusive right to write it."""

    def __init__(
        self, fs: Fs, limits: Limits, seal: Sealer, segment_bytes: int = SEGMENT_BYTES, capacity: Capacity | None = None
    ) -> None:
        capacity = capacity or Capacity()
        self._fs, self._seal, self._segment_bytes = fs, seal, segment_bytes
        self._disk = fs.whole(("", layout.LOG, layout.NODES, layout.OFFSETS))
        self._cache = FileCache(fs, has_whole_disk=self._disk is not None)
        self._dirty: Sequence[OpenFile] = ()  # what the retirement on its way syncs
        self._index = Index(fs)
        self._presence, self._keys_before = Presence(0), (0, 0)  # labels, clients
        self.state = LogState(
            limits,
            self._load_client,
            self._index.first_ts,
            self._load_label,
            self._load_cap,
            created=self._on_created,
            capacity=capacity,
        )
        self._files: CursorCache[bytes, LabelFiles] = CursorCache(self._load_files, capacity.labels, shared=True)
        # Two sets: while a helper thread writes `_retiring` to the index, the sequencer fills `_pending`. Look-ups ask
        # both before the index, because neither is in it yet.
        self._pending = _Pending()
        self._retiring = _Pending()
        self._renamed: dict[str, str] = {}  # paths of chunks that were sealed since their paths were collected
        self._staged_drops: Counter[tuple[bytes, int]] = Counter()  # by label and start_seq, until they are applied
        self._control = AppendFile(self._cache, layout.CONTROL, 0)
        # What was applied, where the sequencer's State may be ahead by the groups on their way to the disk.
        self._limits = limits
        self._ts = 0
        self._next_client_row = 1
        self._last_control: ControlRecord | None = None
        self.label_count = 0
        self.entry_count = 0
        self.cap_count = 0
        self._newest_at = (0, 0)  # hub_ts of the newest entry, and the row of its label
        # That label; always in memory, as looking whether a hub is alive must not wait for a disk.
        self.newest: LabelFiles | None = None
        self.reader = EntryReader(fs, self._cache, self.chunk_at)
        self.journal: Journal  # set by `_recover`

    # --- opening ---------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        fs: Fs,
        limits: Limits,
        seal: Sealer,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        capacity: Capacity | None = None,
    ) -> "Store":
        """Open a data directory, new or old; the caller holds its lock.

        `limits` are for a new directory; an old one continues with those that its control journal set last.
        """
        check_finished(fs)
        for directory in layout.DIRECTORIES:
            fs.make_dir(directory)
        store = cls(fs, limits, seal, segment_bytes, capacity)
        try:
            store._recover()
        except BaseException:
            store.abandon()
            raise
        return store

    def _recover(self) -> None:
        # The index is the snapshot of the last retirement (decisions 16, 17). Files may be ahead of it, by entries that
        # were never synced, so they are not read: the journal from that segment on fills them again.
        segment = self._index.meta("segment")
        if segment is not None:
            self._load(segment)
        elif wal.is_empty(self._fs):
            if any(layout.chunk_of(name) for name in self._fs.list(layout.LOG)):
                raise StorageError("index and journal are missing: run `veen hub rebuild-index` on this directory")
            self.journal = Journal.create(self._fs)
            return
        else:
            segment = 1  # the first retirement has not happened yet, or the index is lost
            if wal.segments(self._fs)[0] > segment:
                raise StorageError("the index is missing: run `veen hub rebuild-index` on this directory")
        for record in wal.replay(self._fs, segment):
            if isinstance(record, Frame):
                self._absorb_entry(record)
            elif isinstance(record, ControlRecord):
                self._absorb_control(record)
            else:
                self.journal = Journal.resume(self._fs, record)

    def _load(self, segment: int) -> None:
        """Load the cursors as of the beginning of `segment`."""
        self._index.check_meta()
        self.state.hub_ts = self._ts = self._index.meta("hub_ts")
        self.state.limits = self._limits = Limits.from_json(json.loads(self._index.meta("limits")))
        self.state.next_client_row = self._next_client_row = self._index.meta("next_client_row")
        if control := self._index.meta("control"):
            self.state.control = self._last_control = ControlRecord.from_bytes(control)
        self._control = AppendFile(self._cache, layout.CONTROL, self._index.meta("control_bytes"))
        self.label_count = self.state.label_count = self._index.meta("label_count")
        self.entry_count = self._index.meta("entry_count")
        self.cap_count = self._index.meta("cap_count")
        if (newest := self._index.label(self._index.meta("newest"))) is not None:
            self.newest, self._newest_at = self._files_of(newest), (newest.last_ts, newest.row)
            self._files.hold(newest.label, self.newest)
        self._keys_before = (self.label_count, self._next_client_row - 1)
        self._presence = Presence(sum(self._keys_before))
        self.state.fenced = self._last_seq(HubFence.KIND) > self._last_seq(HubPromote.KIND)
        for policy in self._index.policies(self._ts):
            self.state.policies.add(_policy_body(policy), policy.hub_ts)

    def _last_seq(self, kind: str) -> int:
        """Return the number of the newest control record of a kind in the index, 0 if there is none."""
        rows = self._index.records(kind, b"", limit=1, last=True)
        return rows[0].seq if rows else 0

    def _absorb_entry(self, frame: Frame) -> None:
        """Apply an entry of the journal by the same transition as when it was accepted."""
        where = f"journal entry {frame.stream_seq} of label {frame.label.hex()}"
        try:
            msg, receipt = Msg.from_bytes(frame.msg), Receipt.from_bytes(frame.receipt)
        except FormatError as exc:
            raise CorruptError(layout.JOURNAL, 0, f"{where}: {exc}") from exc
        label = self.state.labels.get(frame.label)
        if label is None:
            raise CorruptError(layout.JOURNAL, 0, f"{where}: no record opens this label")
        if msg.auth_ref is not None and msg.auth_ref not in self.state.caps:
            raise CorruptError(layout.JOURNAL, 0, f"{where}: no record authorises its token")
        self._restore_active(label)
        # The journal has the outcome, but the transition is repeated and its result compared: a wrong cursor in the
        # index must not be extended by entries that do not continue it (I3).
        admitted = self.state.admit(
            label,
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            leaf_hash=msg.leaf_hash(),
            hub_ts=receipt.hub_ts,
        )
        if admitted.stream_seq != frame.stream_seq or admitted.mmr_root != receipt.mmr_root:
            raise CorruptError(layout.JOURNAL, 0, f"{where}: it does not continue the label's tree (I3)")
        self._apply_entry(admitted, frame.to_bytes(), frame.entry_hash)

    def _restore_active(self, label: Label) -> None:
        """Undo a seal that was not durable yet: its chunk grows again from the last retirement on."""
        files = self._files[label.label]
        path = layout.active(label.label, files.active_start)
        if label.label in self._pending.labels or files.size < files.active_start or self._fs.exists(path):
            return
        for end_seq in files.possible_ends():  # listing the directory would take longer the more labels there are
            sealed = layout.chunk(label.label, files.active_start, end_seq)
            if self._fs.exists(sealed):
                self._fs.rename(sealed, path)
                return
        raise CorruptError(path, 0, "the file is missing")

    def _absorb_control(self, record: ControlRecord) -> None:
        try:
            record.check_follows(self.state.control)
        except VerifyError as exc:
            raise CorruptError(layout.JOURNAL, 0, str(exc)) from exc
        self.stage_control(record)
        self._apply_control(record)

    # --- staging ---------------------------------------------------------------------------------------

    def stage_control(self, record: ControlRecord) -> None:
        """Apply a control record to the state in memory."""
        if isinstance(record.body, RetentionDrop):
            self._droppable(record.body, staged=True)  # refused before anything counts it in
            self._staged_drops[record.body.label, record.body.start_seq] += 1
        self.state.control = record
        self.state.hub_ts = max(self.state.hub_ts, record.hub_ts)
        if isinstance(record.body, LabelOpen):
            self.state.open_label(record.body.label, record.body.epoch, record.body.stream_id)
        elif isinstance(record.body, CapAuthorize):
            token = CapToken.from_bytes(record.body.token)
            if record.body.auth_ref not in self.state.caps:  # authorising again never extends the first record (D-47)
                parent_ref = record.body.parent_ref if isinstance(record.body, CapDerive) else None
                if parent_ref is not None and parent_ref not in self.state.caps:
                    raise StorageError(f"control record {record.seq}: no record authorises the parent of its token")
                cap = Cap.begin(token, self.state.limits, record.hub_ts, parent_ref)
                self.state.caps[record.body.auth_ref] = cap
        elif isinstance(record.body, LimitsSet):
            self.state.limits = Limits.from_json(record.body.limits)
        elif isinstance(record.body, POLICY_BODIES):
            self.state.policies.add(record.body, record.hub_ts)
        elif isinstance(record.body, (HubFence, HubPromote)):
            self.state.fenced = isinstance(record.body, HubFence)

    def _droppable(self, body: RetentionDrop, *, staged: bool = False) -> ChunkRow:
        """Return the chunk of which a record erases a part: payloads first, then receipts (D-74)."""
        files = self._files.get(body.label)
        chunk = self.chunk_at(files, body.start_seq) if files else None
        ahead = self._staged_drops[body.label, body.start_seq] if staged else 0
        if chunk is None or (chunk.start_seq, chunk.end_seq) != (body.start_seq, body.end_seq):
            raise StorageError(f"entries {body.start_seq} to {body.end_seq} are not a sealed chunk")
        if chunk.dropped + ahead > 1:
            raise StorageError(f"entries {body.start_seq} to {body.end_seq} were already erased, receipts included")
        return chunk

    def drop_level(self, label: bytes, start_seq: int) -> int | None:
        """Return the part of a sealed chunk that was erased, with records that are being written.

        0: nothing, 1: its payloads, 2: its receipts too. None if no sealed chunk begins there. A plan made from the
        index is older than that, so its user asks here again when the record is due.
        """
        files = self._files.get(label)
        chunk = self.chunk_at(files, start_seq) if files else None
        if chunk is None or chunk.start_seq != start_seq:
            return None
        return chunk.dropped + self._staged_drops[label, start_seq]

    # --- applying --------------------------------------------------------------------------------------

    def apply(self, group: Group) -> None:
        """Fill the files with a group that is durable in the journal; from now on readers see it."""
        for item, data in zip(group.done, group.parts, strict=True):
            if isinstance(item, tuple):  # asking for a ControlRecord would go through ABCMeta for each entry
                self._apply_entry(item[0], data, item[1])
            else:
                self._apply_control(item)

    def _apply_control(self, record: ControlRecord) -> None:
        data, offset = record.to_bytes(), self._control.size
        self._control.append(data)
        self._pending.paths.add(layout.CONTROL)
        if (noted := record_row(record, offset, len(data))) is not None:
            self._pending.records.setdefault((noted.kind, noted.key), []).append(noted)
        self._last_control = record
        self._ts = max(self._ts, record.hub_ts)
        body = record.body
        if isinstance(body, LabelOpen):
            label = self.state.labels[body.label]
            row = LabelFiles.first_row(label.row, label.label, label.epoch, label.stream_id, self._limits)
            self._files[label.label] = LabelFiles(self._fs, self._cache, row, self._renamed)
            self._pending.touch(label.label)
            insort(self._pending.opened, (label.epoch, label.label))
            self.label_count += 1
        elif isinstance(body, LimitsSet):
            self._limits = Limits.from_json(body.limits)
        elif isinstance(body, RetentionDrop):
            self._drop(body)
        elif isinstance(body, POLICY_BODIES):
            self._pending.policies.append(policy_row(record, body))
        elif isinstance(body, CapAuthorize) and not (cap := self.state.caps[body.auth_ref]).applied:
            cap.applied = True
            self.cap_count += 1
            begun = Cap.begin(cap.token, self._limits, record.hub_ts)
            self._pending.caps[begun.auth_ref] = (begun.auth_ref, begun.tokens, begun.bucket_ts)

    def _drop(self, body: RetentionDrop) -> None:
        """Hide a chunk from readers now; the next retirement removes the file, before the journal drops the record."""
        chunk = self._droppable(body)
        place = (body.label, body.start_seq)
        self._staged_drops[place] -= 1
        if self._staged_drops[place] <= 0:
            del self._staged_drops[place]
        path = layout.chunk(body.label, chunk.start_seq, chunk.end_seq)
        self._cache.forget(path)
        archive = layout.receipts_archive(body.label, chunk.start_seq, chunk.end_seq)
        self._pending.erased.append(archive if chunk.dropped else path)
        self._pending.chunks.append(replace(chunk, dropped=chunk.dropped + 1))

    def _apply_entry(self, admitted: Admitted, data: bytes, entry_hash: bytes) -> None:
        label, pending, client_row = admitted.label.label, self._pending, admitted.client_row
        files = self._files.unsaved.get(label)
        if files is None:
            files = self._files[label]
            self._files[label] = files
        for chunk in files.append(admitted, data, entry_hash, self._limits, self._seal):
            self._note_seal(files, chunk)
        pending.touch(label)
        pending.clients[client_row] = admitted
        pending.entries[client_row, admitted.client_seq] = admitted.stream_seq
        for spent in admitted.spent:
            pending.caps[spent[0]] = spent
        self._ts = admitted.hub_ts
        self.entry_count += 1
        if (newest_at := (admitted.hub_ts, files.row)) >= self._newest_at:
            self.newest, self._newest_at = files, newest_at
        if client_row >= self._next_client_row:  # rows are given out in order, so it is new to this label
            self._next_client_row = client_row + 1
            pending.writers.setdefault(admitted.client_id, admitted.hub_ts)

    def _note_seal(self, files: LabelFiles, chunk: ChunkRow) -> None:
        label, start, end = files.label, chunk.start_seq, chunk.end_seq
        self._pending.chunks.append(chunk)
        self._pending.paths |= {
            layout.chunk(label, start, end),
            layout.summary(label, start, end),
            layout.peaks(label, end),
            layout.checkpoint(label, end),
        }

    # --- retiring --------------------------------------------------------------------------------------

    @property
    def journal_is_full(self) -> bool:
        labels = len(self._pending.labels)
        wanted = min(max(_LEAST_BYTES, _LABEL_BYTES * labels), self._segment_bytes)
        return labels >= _MOST_LABELS or self.journal.offset >= wanted

    @property
    def can_retire(self) -> bool:
        """True if the journal is full, and a retirement will not block its caller for thousands of files."""
        return self.journal_is_full and (
            len(self._pending.unflushed) <= _SYNCED_ONE_BY_ONE or self.journal.offset >= 2 * self._segment_bytes
        )

    def flush_some(self, count: int) -> bool:
        """Write the tails of the files of up to `count` labels before a retirement; return True if there are more."""
        unflushed = self._pending.unflushed
        for _ in range(min(count, len(unflushed))):
            self._files.unsaved[unflushed[-1]].flush()
            unflushed.pop()
        return bool(unflushed)

    def capture(self) -> Retirement:
        """Return everything that was applied before the current journal segment, which must still be empty."""
        # The new segment is empty, so everything that was applied belongs to older ones: one transaction of the index
        # can name this segment as the place where recovery begins (decision 17).
        pending, self._retiring, self._pending = self._pending, self._pending, _Pending()
        self._renamed.clear()  # paths are collected by their present names
        for label in pending.labels:
            files = self._files.unsaved[label]
            files.flush()
            pending.paths.update(files.paths())
        self._control.flush()
        snapshot = IndexSnapshot(
            segment=self.journal.segment,
            hub_ts=self._ts,
            limits=json.dumps(self._limits.to_json(), sort_keys=True),
            control=self._last_control.to_bytes() if self._last_control else b"",
            control_bytes=self._control.size,
            next_client_row=self._next_client_row,
            label_count=self.label_count,
            entry_count=self.entry_count,
            cap_count=self.cap_count,
            newest=self.newest.label if self.newest is not None else b"",
            labels=[self._files.unsaved[label].to_row() for label in sorted(pending.labels)],
            clients=[
                ClientRow(row, last.label.row, last.client_id, last.client_seq, last.prev_ack)
                for row, last in pending.clients.items()
            ],
            entries=_EntryRows(pending.entries),
            chunks=pending.chunks,
            caps=[self._cap_row(*spent) for spent in pending.caps.values()],
            writers=[WriterRow(client_id, first_ts) for client_id, first_ts in pending.writers.items()],
            policies=pending.policies,
            records=[row for rows in pending.records.values() for row in rows],
        )
        self._dirty, is_whole = self._cache.take_dirty()
        return Retirement(snapshot, sorted(pending.paths), self._dirty, is_whole, pending.erased)

    def _cap_row(self, auth_ref: bytes, tokens: int, bucket_ts: int) -> CapRow:
        cap = self.state.caps[auth_ref]  # token and issued_at never change
        return CapRow(auth_ref, cap.token_bytes, cap.issued_at, tokens, bucket_ts)

    def persist(self, retirement: Retirement) -> None:
        """Make a retirement durable and remove the journal before it. May run in a helper thread.

        If the disk is full it may be repeated with the same retirement, but not after an UnsyncedError: then the files
        must be filled again from the journal, by reopening the store.
        """
        if self._disk is not None and (retirement.is_whole or len(retirement.paths) > _SYNCED_ONE_BY_ONE):
            self._sync_file("the data directory", self._disk)
        else:
            for entry in retirement.dirty:
                self._sync_file(entry.path, entry.file)
            done = {entry.path for entry in retirement.dirty}
            for path in retirement.paths:
                if path not in done:  # nothing was written to it since it was opened, or its name has changed
                    patiently(partial(self._sync, path))
        for path in retirement.erased:  # before the index knows: a crash in between leaves the record in the journal
            self._fs.remove(path)
        for directory in (layout.LOG, layout.NODES, layout.OFFSETS):
            patiently(partial(self._fs.sync_dir, directory))
        # Only now: once the index names the new segment, recovery no longer reads the older ones, so every file must be
        # durable before. The segments go last, as without the index they are the only copy.
        index = patiently(partial(Index, self._fs))
        try:
            index.save(retirement.snapshot)
        finally:
            index.close()
        patiently(partial(wal.remove_before, self._fs, retirement.snapshot.segment))

    def _sync(self, path: str) -> None:
        """Sync a file by its name; a chunk may have been sealed, hence renamed, a moment ago."""
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            file = self._fs.open(self._renamed[path])
        try:
            self._sync_file(path, file)
        finally:
            file.close()

    @staticmethod
    def _sync_file(path: str, file: File | WholeDisk) -> None:
        try:
            file.sync()
        except OSError as exc:
            if is_disk_full(exc):
                raise UnsyncedError(f"{path}: the disk is full, what was written to it may be lost") from exc
            raise

    def finish_retirement(self) -> None:
        """Release the rows of the last captured retirement, which is durable.

        A cursor that moved on since, staged or applied, is not the one that was saved and stays.
        """
        self._release_dirty()
        # The sequencer went on while the retirement was written. A cursor is dropped from memory only if it still has
        # the saved value; otherwise the index would answer with an old one (decision 69).
        saved, self._retiring = self._retiring, _Pending()
        state, pending = self.state, self._pending
        for label in saved.labels - pending.labels:
            size = self._files.unsaved[label].size
            self._files.mark_saved(label)
            if state.labels.unsaved[label].size == size:
                state.labels.mark_saved(label)
        for row, admitted in saved.clients.items():
            key = (admitted.label.row, admitted.client_id)
            if row not in pending.clients and state.clients.unsaved[key].client_seq == admitted.client_seq:
                state.clients.mark_saved(key)
        for auth_ref, spent in saved.caps.items():
            cap = state.caps.unsaved[auth_ref]
            if auth_ref not in pending.caps and (auth_ref, cap.tokens, cap.bucket_ts) == spent:
                state.caps.mark_saved(auth_ref)
        for client_id in saved.writers.keys() - pending.writers.keys():
            state.writers.pop(client_id, None)  # the index has it, since now or since an earlier retirement

    def _release_dirty(self) -> None:
        for entry in self._dirty:
            entry.release()
        self._dirty = ()

    def retire(self) -> None:
        """Roll, capture and persist in one call: for shutdown, tests and tools."""
        self.journal.roll()
        retirement = self.capture()
        self.persist(retirement)
        self.finish_retirement()

    def close(self) -> None:
        """Leave the directory at rest: everything synced, the journal empty, unless it affects very many labels."""
        if len(self._pending.labels) <= _MOST_LABELS_AT_STOP:
            self.retire()
        self.abandon()

    def abandon(self) -> None:
        """Close the files; recovery does the rest."""
        if hasattr(self, "journal"):
            self.journal.close()
        self._release_dirty()
        self._cache.close()
        self._index.close()
        if self._disk is not None:
            self._disk.close()

    # --- look-ups --------------------------------------------------------------------------------------

    def _load_label(self, label: bytes) -> Label | None:
        row = self._label_row(label)
        return Label(row.row, label, row.epoch, row.stream_id, Mmr(row.size, split_hashes(row.peaks))) if row else None

    def _load_files(self, label: bytes) -> LabelFiles | None:
        row = self._label_row(label)
        return self._files_of(row) if row else None

    def _files_of(self, row: LabelRow) -> LabelFiles:
        return LabelFiles(self._fs, self._cache, row, self._renamed)

    def _label_row(self, label: bytes) -> LabelRow | None:
        return None if self._presence.excludes(label) else self._index.label(label)

    def _load_client(self, key: tuple[int, bytes]) -> ClientCursor | None:
        row = None if self._presence.excludes(key) else self._index.client(*key)
        return ClientCursor(row.row, row.client_seq, row.prev_ack) if row else None

    def _load_cap(self, auth_ref: bytes) -> Cap | None:
        row = self._index.cap(auth_ref)
        if row is None:
            return None
        token, parent_ref = CapToken.from_bytes(row.token), self._parent_of(auth_ref)
        return Cap(auth_ref, token, row.token, row.issued_at, row.tokens, row.bucket_ts, parent_ref, applied=True)

    def _parent_of(self, auth_ref: bytes) -> bytes | None:
        """Return the auth_ref that a token was derived from, by its first record; None if it was not derived."""
        derived = self.control_rows(CapDerive.KIND, auth_ref, limit=1)
        if not derived:
            return None
        authorised = self.control_rows(CapAuthorize.KIND, auth_ref, limit=1)
        if authorised and authorised[0].seq < derived[0].seq:
            return None
        body = ControlRecord.from_bytes(self.read_control(derived[0].offset, derived[0].length)).body
        assert isinstance(body, CapDerive)  # noqa: S101 - the kind of its row
        return body.parent_ref

    def _on_created(self, key: Hashable) -> None:
        """Note a new label or client."""
        self._presence.add(key)

    def learn_keys(self) -> Iterator[None]:
        """Read the labels and clients that existed at the start, so that a new one needs no look-up (RES-01).

        For a helper thread, in short steps. Nothing depends on its progress. Rows of the index never change their
        number, so those up to the numbers of the start are those of the start.
        """
        if self._presence.is_complete:
            return
        labels, clients = self._keys_before
        before = KeyFilter(labels + clients)
        index = Index(self._fs)
        try:
            for first in range(1, labels + 1, _KEYS_AT_ONCE):
                for label in index.label_keys(first, _KEYS_AT_ONCE):
                    before.add(label)
                yield
            for first in range(1, clients + 1, _KEYS_AT_ONCE):
                for key in index.client_keys(first, _KEYS_AT_ONCE):
                    before.add(key)
                yield
        finally:
            index.close()
        self._presence.complete(before)

    def files(self, label: bytes) -> LabelFiles | None:
        """Return the readable side of a label, or None if it has no entries."""
        return self._files.get(label)

    @property
    def applied_ts(self) -> int:
        """hub_ts of the newest entry or control record that was applied; later ones are not older."""
        return self._ts

    @property
    def last_control(self) -> ControlRecord | None:
        """The newest control record that was applied, hence durable."""
        return self._last_control

    def heads(self, epoch: int, after: bytes | None, limit: int) -> list[LabelHead]:
        """Return labels by (epoch, label), from `epoch` on, or behind label `after` of it; at most `limit`."""
        heads = {(row.epoch, row.label): row for row in self._index.labels_from(epoch, after, limit)}
        places = set(heads)
        for pending in (self._retiring, self._pending):  # the index may not have these yet
            opened = pending.opened
            first = bisect_left(opened, (epoch, b"")) if after is None else bisect_right(opened, (epoch, after))
            places.update(opened[first : first + limit])
        answer = []
        for place in sorted(places)[:limit]:
            files = self._files.peek(place[1])
            answer.append(LabelHead.of_row(heads[place]) if files is None else files.head())
        return answer

    def labels(self) -> Iterator[LabelFiles]:
        """Yield all labels by (epoch, label). One that is opened meanwhile may be missing."""
        page = self.heads(0, None, _KEYS_AT_ONCE)
        while page:
            for head in page:
                yield self._files[head.label]
            page = self.heads(page[-1].epoch, page[-1].label, _KEYS_AT_ONCE)

    def control_rows(
        self,
        kind: str,
        key: bytes | None = None,
        *,
        number: int = 0,
        after_seq: int = 0,
        limit: int = -1,
        last: bool = False,
    ) -> list[RecordRow]:
        """Return the records of a kind as `Index.records` does, with those that the index does not have yet."""
        saved = self._index.records(kind, key, number=number, after_seq=after_seq, limit=limit, last=last)
        rows = {row.seq: row for row in saved}
        for pending in (self._retiring, self._pending):
            if key is None:
                noted = [row for place, every in pending.records.items() if place[0] == kind for row in every]
            else:
                noted = pending.records.get((kind, key), [])
            rows |= {row.seq: row for row in noted if row.number >= number and row.seq > after_seq}
        ordered = sorted(rows.values(), key=lambda row: (row.key, row.number, row.seq), reverse=last)
        return ordered if limit < 0 else ordered[:limit]

    @property
    def control_size(self) -> int:
        """Length of the control journal, as far as it was applied."""
        return self._control.size

    def read_control(self, offset: int, size: int) -> bytes:
        """Read a part of the control journal."""
        return self._control.read(offset, size)

    def stream_seq_of(self, client_row: int, client_seq: int) -> int | None:
        """Return the position of a message, by its writer's own number (D-56)."""
        for pending in (self._pending, self._retiring):
            if (place := pending.entries.get((client_row, client_seq))) is not None:
                return place
        return self._index.stream_seq(client_row, client_seq)

    def find_applied_entry(self, label: bytes, client_row: int, client_seq: int) -> tuple[int, bytes] | None:
        """Return (stream_seq, leaf_hash) of a message by its writer's own number, if it is durable."""
        stream_seq, files = self.stream_seq_of(client_row, client_seq), self._files.get(label)
        if stream_seq is None or files is None or stream_seq > files.size:
            return None
        return stream_seq, files.node_at(0, stream_seq - 1)

    def find_applied_client(self, label: bytes, client_id: bytes) -> ClientCursor | None:
        """Return the durable cursor of a writer, which `state` may be ahead of; None if it has none."""
        cursor = self.state.labels.get(label)
        staged = self.state.client(cursor, client_id) if cursor else None
        if cursor is None or staged is None:
            return None
        for pending in (self._pending, self._retiring):
            if (last := pending.clients.get(staged.row)) is not None:
                return ClientCursor(staged.row, last.client_seq, last.prev_ack)
        return self._load_client((cursor.row, client_id))

    def first_at(self, files: LabelFiles, hub_ts: int) -> int:
        """Return the first entry at or after a time; one past the last if there is none."""
        for pending in (self._retiring, self._pending):
            for chunk in pending.chunks:
                if chunk.label_row == files.row and chunk.last_ts >= hub_ts:
                    indexed = self._index.chunk_by_time(files.row, hub_ts)
                    return self.reader.first_at(files, hub_ts, indexed or chunk)
        return self.reader.first_at(files, hub_ts, self._index.chunk_by_time(files.row, hub_ts))

    def chunk_at(self, files: LabelFiles, stream_seq: int) -> ChunkRow | None:
        """Return the sealed chunk of an entry, or None while it is in the active one."""
        if stream_seq >= files.active_start:
            return None
        for pending in (self._pending, self._retiring):
            for chunk in reversed(pending.chunks):  # the newest row of a chunk counts: it may have been erased since
                if chunk.label_row == files.row and chunk.start_seq <= stream_seq <= chunk.end_seq:
                    return chunk
        return self._index.chunk_at(files.row, stream_seq)


def _policy_body(row: PolicyRow) -> PolicyBody:
    try:
        body = BODIES[row.kind].from_bytes(row.body)
    except (KeyError, FormatError) as exc:
        raise CorruptError(layout.INDEX, 0, f"policy record {row.seq} cannot be read: {exc}") from exc
    assert isinstance(body, POLICY_BODIES)  # noqa: S101 - only these are saved, under a check value
    return body
