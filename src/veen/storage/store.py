"""The storage engine of a hub: stage, make durable, apply, retire, recover (DESIGN §3, §4).

    stage    the hub decides and `State` moves on, in memory
    write    the group goes to the journal, one sync; only now may its receipts leave
    apply    chunks, nodes, locations and control journal are filled, unsynced
    retire   when a journal segment is full: sync those files, save all cursors in one transaction, drop the segment

Recovery goes back to the last retirement and applies the journal from there; it trusts nothing that was not
synced by then. All methods belong to one thread, except `Journal.write` and `persist`, which a helper thread runs
while the others go on.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from veen.core.captoken import CapToken
from veen.core.control import (
    BODIES,
    CapAuthorize,
    ControlRecord,
    LabelOpen,
    LimitsSet,
    PolicyAuthority,
    PolicyRevocation,
    RetentionDrop,
)
from veen.core.errors import FormatError, VerifyError
from veen.core.limits import Limits
from veen.core.mmr import Mmr
from veen.core.msg import Msg
from veen.core.receipt import Receipt
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.appendfile import AppendFile, FileCache
from veen.storage.errors import CorruptError, StorageError
from veen.storage.frame import Frame, pack
from veen.storage.fs import Fs
from veen.storage.index import CapRow, ChunkRow, ClientRow, Index, PolicyRow, Snapshot, WriterRow, policy_row
from veen.storage.journal import Journal
from veen.storage.labelfiles import LabelFiles, Sealer, split_hashes
from veen.storage.reader import Reader
from veen.storage.state import Admitted, Cap, Client, Label, State

__all__ = ["Group", "Retirement", "Store"]

# A journal segment retires when it holds this much for each label it touches, within these bounds. Retiring syncs some
# files of each label, so many labels want large segments; small ones keep the work of a retirement, and what a restart
# reads, short.
SEGMENT_BYTES: Final = 64 * 1024 * 1024
_LEAST_BYTES: Final = 16 * 1024 * 1024
_LABEL_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class Group:
    """What one sync makes durable: entries and control records in the order they were decided."""

    parts: list[bytes] = field(default_factory=list)
    done: list[tuple[Admitted, bytes] | ControlRecord] = field(default_factory=list)  # in step with `parts`

    def add_entry(self, admitted: Admitted, msg: bytes, receipt: bytes) -> None:
        data, entry_hash = pack(admitted.label.label, admitted.stream_seq, msg, receipt)
        self.parts.append(data)
        self.done.append((admitted, entry_hash))

    def add_control(self, record: ControlRecord) -> None:
        self.parts.append(record.to_bytes())
        self.done.append(record)

    def payload(self) -> bytes:
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Retirement:
    """What must become durable before the journal segments before `snapshot.segment` may go."""

    snapshot: Snapshot
    paths: Sequence[str]
    erased: Sequence[str] = ()  # files that the retention policy lets go; their records are in the journal until then


@dataclass(slots=True)
class _Pending:
    """What was applied since the last retirement."""

    labels: set[bytes] = field(default_factory=set)
    clients: dict[int, Admitted] = field(default_factory=dict)  # the last one of each client
    entries: dict[tuple[int, int], int] = field(default_factory=dict)  # (client_row, client_seq) -> stream_seq
    chunks: list[ChunkRow] = field(default_factory=list)
    caps: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)  # auth_ref, tokens, bucket_ts
    writers: dict[bytes, int] = field(default_factory=dict)  # clients that were new to a label, and when
    policies: list[PolicyRow] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    erased: list[str] = field(default_factory=list)


class Store:
    """One open data directory, with the exclusive right to write it."""

    def __init__(self, fs: Fs, limits: Limits, seal: Sealer, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._fs, self._seal, self._segment_bytes = fs, seal, segment_bytes
        self._cache = FileCache(fs)
        self._index = Index(fs)
        self.state = State(limits, self._load_client, self._index.first_ts)
        self._files: dict[bytes, LabelFiles] = {}
        self._pending = _Pending()
        self._retiring = _Pending()
        self._renamed: dict[str, str] = {}
        self._control = AppendFile(self._cache, layout.CONTROL, 0)
        # What was applied, where the sequencer's State may be ahead by the groups on their way to the disk.
        self._limits = limits
        self._ts = 0
        self._next_client_row = 1
        self._last_control: ControlRecord | None = None
        self._known_caps: set[bytes] = set()
        self.reader = Reader(fs, self._cache, self.chunk_at)
        self.journal: Journal

    # --- opening ---------------------------------------------------------------------------------------

    @classmethod
    def open(cls, fs: Fs, limits: Limits, seal: Sealer, *, segment_bytes: int = SEGMENT_BYTES) -> "Store":
        """Open a data directory, new or old; the caller holds its lock.

        `limits` serve a new directory; an old one continues with those its control journal set last.
        """
        for directory in layout.DIRECTORIES:
            fs.make_dir(directory)
        store = cls(fs, limits, seal, segment_bytes)
        store._recover()
        return store

    def _recover(self) -> None:
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
        """The cursors as of the beginning of `segment`."""
        self._index.check_meta()
        self.state.hub_ts = self._ts = self._index.meta("hub_ts")
        self.state.limits = self._limits = Limits.from_json(json.loads(self._index.meta("limits")))
        self.state.next_client_row = self._next_client_row = self._index.meta("next_client_row")
        if control := self._index.meta("control"):
            self.state.control = self._last_control = ControlRecord.from_bytes(control)
        self._control = AppendFile(self._cache, layout.CONTROL, self._index.meta("control_bytes"))
        for row in self._index.labels():
            mmr = Mmr(row.size, split_hashes(row.peaks))
            self.state.labels[row.label] = Label(row.row, row.label, row.epoch, row.stream_id, mmr)
            self._files[row.label] = LabelFiles(self._fs, self._cache, row, self._renamed)
        for cap in self._index.caps():
            token = CapToken.from_bytes(cap.token)
            self.state.caps[cap.auth_ref] = Cap(
                cap.auth_ref, token, cap.token, cap.issued_at, cap.tokens, cap.bucket_ts
            )
            self._known_caps.add(cap.auth_ref)
        for policy in self._index.policies(self._ts):
            self.state.policies.add(_policy_body(policy), policy.hub_ts)

    def _absorb_entry(self, frame: Frame) -> None:
        """Apply an entry that the journal holds: the same transition as when it was accepted."""
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
        for name in self._fs.list(layout.LOG):
            chunk = layout.chunk_of(name)
            if chunk and chunk.label == label.label and chunk.start_seq == files.active_start:
                self._fs.rename(f"{layout.LOG}/{name}", path)
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
        """The transition that a control record causes in memory."""
        if isinstance(record.body, RetentionDrop):
            self._droppable(record.body)  # refused before anything counts it in
        self.state.control = record
        self.state.hub_ts = max(self.state.hub_ts, record.hub_ts)
        if isinstance(record.body, LabelOpen):
            self.state.open_label(record.body.label, record.body.epoch, record.body.stream_id)
        elif isinstance(record.body, CapAuthorize):
            token = CapToken.from_bytes(record.body.token)
            # Authorising again returns the first record and never extends it (D-47).
            self.state.caps.setdefault(record.body.auth_ref, Cap.begin(token, self.state.limits, record.hub_ts))
        elif isinstance(record.body, LimitsSet):
            self.state.limits = Limits.from_json(record.body.limits)
        elif isinstance(record.body, (PolicyRevocation, PolicyAuthority)):
            self.state.policies.add(record.body, record.hub_ts)

    def _droppable(self, body: RetentionDrop) -> ChunkRow:
        """The chunk that a record erases a part of: payloads first, then receipts (D-74)."""
        files = self._files.get(body.label)
        chunk = self.chunk_at(files, body.start_seq) if files else None
        if chunk is None or (chunk.start_seq, chunk.end_seq) != (body.start_seq, body.end_seq) or chunk.dropped > 1:
            raise StorageError(f"entries {body.start_seq} to {body.end_seq} are no chunk that could be erased")
        return chunk

    # --- applying --------------------------------------------------------------------------------------

    def apply(self, group: Group) -> None:
        """Fill the files with a group that is durable in the journal; from now on readers see it."""
        for item, data in zip(group.done, group.parts, strict=True):
            if isinstance(item, tuple):  # asking for a ControlRecord would go through ABCMeta for each entry
                self._apply_entry(item[0], data, item[1])
            else:
                self._apply_control(item)

    def _apply_control(self, record: ControlRecord) -> None:
        self._control.append(record.to_bytes())
        self._pending.paths.add(layout.CONTROL)
        self._last_control = record
        self._ts = max(self._ts, record.hub_ts)
        body = record.body
        if isinstance(body, LabelOpen):
            label = self.state.labels[body.label]
            row = LabelFiles.first_row(label.row, label.label, label.epoch, label.stream_id, self._limits)
            self._files[label.label] = LabelFiles(self._fs, self._cache, row, self._renamed)
            self._pending.labels.add(label.label)
        elif isinstance(body, LimitsSet):
            self._limits = Limits.from_json(body.limits)
        elif isinstance(body, RetentionDrop):
            self._drop(body)
        elif isinstance(body, (PolicyRevocation, PolicyAuthority)):
            self._pending.policies.append(policy_row(record, body))
        elif isinstance(body, CapAuthorize) and body.auth_ref not in self._known_caps:
            self._known_caps.add(body.auth_ref)
            cap = Cap.begin(CapToken.from_bytes(body.token), self._limits, record.hub_ts)
            self._pending.caps[cap.auth_ref] = (cap.auth_ref, cap.tokens, cap.bucket_ts)

    def _drop(self, body: RetentionDrop) -> None:
        """Readers stop seeing it now; the file goes with the next retirement, before the journal forgets the record."""
        chunk = self._droppable(body)
        path = layout.chunk(body.label, chunk.start_seq, chunk.end_seq)
        self._cache.forget(path)
        archive = layout.receipts_archive(body.label, chunk.start_seq, chunk.end_seq)
        self._pending.erased.append(archive if chunk.dropped else path)
        self._pending.chunks.append(replace(chunk, dropped=chunk.dropped + 1))

    def _apply_entry(self, admitted: Admitted, data: bytes, entry_hash: bytes) -> None:
        label, pending, client_row, cap = admitted.label.label, self._pending, admitted.client_row, admitted.cap
        files = self._files[label]
        for chunk in files.append(admitted, data, entry_hash, self._limits, self._seal):
            self._note_seal(files, chunk)
        pending.labels.add(label)
        pending.clients[client_row] = admitted
        pending.entries[client_row, admitted.client_seq] = admitted.stream_seq
        if cap is not None:
            pending.caps[cap[0]] = cap
        self._ts = admitted.hub_ts
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
        wanted = max(_LEAST_BYTES, _LABEL_BYTES * len(self._pending.labels))
        return self.journal.offset >= min(wanted, self._segment_bytes)

    def capture(self) -> Retirement:
        """All that was applied before the current journal segment, which must hold nothing yet."""
        pending, self._retiring, self._pending = self._pending, self._pending, _Pending()
        self._renamed.clear()  # paths are collected by their present names
        for label in pending.labels:
            files = self._files[label]
            files.flush()
            pending.paths.update(files.paths())
        self._control.flush()
        snapshot = Snapshot(
            segment=self.journal.segment,
            hub_ts=self._ts,
            limits=json.dumps(self._limits.to_json(), sort_keys=True),
            control=self._last_control.to_bytes() if self._last_control else b"",
            control_bytes=self._control.size,
            next_client_row=self._next_client_row,
            labels=[self._files[label].to_row() for label in sorted(pending.labels)],
            clients=[
                ClientRow(row, last.label.row, last.client_id, last.client_seq, last.prev_ack)
                for row, last in pending.clients.items()
            ],
            entries=((client, seq, place) for (client, seq), place in pending.entries.items()),
            chunks=pending.chunks,
            caps=[self._cap_row(*spent) for spent in pending.caps.values()],
            writers=[WriterRow(client_id, first_ts) for client_id, first_ts in pending.writers.items()],
            policies=pending.policies,
        )
        return Retirement(snapshot, sorted(pending.paths), pending.erased)

    def _cap_row(self, auth_ref: bytes, tokens: int, bucket_ts: int) -> CapRow:
        cap = self.state.caps[auth_ref]  # token and issued_at never change
        return CapRow(auth_ref, cap.token_bytes, cap.issued_at, tokens, bucket_ts)

    def persist(self, retirement: Retirement) -> None:
        """Make a retirement durable and drop the journal before it. May run in a helper thread."""
        for path in retirement.paths:
            self._sync(path)
        for path in retirement.erased:  # before the index knows: a crash in between leaves the record in the journal
            self._fs.remove(path)
        for directory in (layout.LOG, layout.NODES, layout.OFFSETS):
            self._fs.sync_dir(directory)
        index = Index(self._fs)
        try:
            index.save(retirement.snapshot)
        finally:
            index.close()
        wal.remove_before(self._fs, retirement.snapshot.segment)

    def _sync(self, path: str) -> None:
        """Sync a file by its name; a chunk may have been sealed, hence renamed, a moment ago."""
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            file = self._fs.open(self._renamed[path])
        try:
            file.sync()
        finally:
            file.close()

    def retired(self) -> None:
        """The last captured retirement is durable: its rows need not be kept in memory any more."""
        self._retiring = _Pending()

    def retire(self) -> None:
        """Roll, capture and persist in one go: for shutdown, tests and tools."""
        self.journal.roll()
        retirement = self.capture()
        self.persist(retirement)
        self.retired()

    def close(self) -> None:
        """Leave the directory at rest: everything synced, the journal empty."""
        self.retire()
        self.abandon()

    def abandon(self) -> None:
        """Close the files and leave the rest to recovery."""
        self.journal.close()
        self._cache.close()
        self._index.close()

    # --- look-ups --------------------------------------------------------------------------------------

    def _load_client(self, label_row: int, client_id: bytes) -> Client | None:
        row = self._index.client(label_row, client_id)
        return Client(row.row, row.client_seq, row.prev_ack) if row else None

    def files(self, label: bytes) -> LabelFiles | None:
        """The readable side of a label, or None if it has no entries."""
        return self._files.get(label)

    def labels(self) -> Iterable[LabelFiles]:
        return self._files.values()

    @property
    def control_size(self) -> int:
        """How long the control journal is, as far as it was applied."""
        return self._control.size

    def read_control(self, offset: int, size: int) -> bytes:
        """A part of the control journal."""
        return self._control.read(offset, size)

    def stream_seq_of(self, client_row: int, client_seq: int) -> int | None:
        """Where a message stands, by its writer's own number (D-56)."""
        for pending in (self._pending, self._retiring):
            if (place := pending.entries.get((client_row, client_seq))) is not None:
                return place
        return self._index.stream_seq(client_row, client_seq)

    def first_at(self, files: LabelFiles, hub_ts: int) -> int:
        """The first entry at or after a time; one past the last if there is none."""
        for pending in (self._retiring, self._pending):
            for chunk in pending.chunks:
                if chunk.label_row == files.row and chunk.last_ts >= hub_ts:
                    indexed = self._index.chunk_by_time(files.row, hub_ts)
                    return self.reader.first_at(files, hub_ts, indexed or chunk)
        return self.reader.first_at(files, hub_ts, self._index.chunk_by_time(files.row, hub_ts))

    def chunk_at(self, files: LabelFiles, stream_seq: int) -> ChunkRow | None:
        """The sealed chunk that holds an entry, or None while it is in the active one."""
        if stream_seq >= files.active_start:
            return None
        for pending in (self._pending, self._retiring):
            for chunk in reversed(pending.chunks):  # the newest row of a chunk counts: it may have been erased since
                if chunk.label_row == files.row and chunk.start_seq <= stream_seq <= chunk.end_seq:
                    return chunk
        return self._index.chunk_at(files.row, stream_seq)


def _policy_body(row: PolicyRow) -> PolicyRevocation | PolicyAuthority:
    try:
        body = BODIES[row.kind].from_bytes(row.body)
    except (KeyError, FormatError) as exc:
        raise CorruptError(layout.INDEX, 0, f"policy record {row.seq} cannot be read: {exc}") from exc
    assert isinstance(body, (PolicyRevocation, PolicyAuthority))  # noqa: S101 - only these are saved, under a check value
    return body
