"""Rebuild of everything that follows from the log: nodes, locations, index, checkpoint index, summaries, peaks.

The result is what a hub would have had at the beginning of the oldest journal segment, where recovery then goes on
(STOR-20): all entries before the first that the journal holds of a label are durable in its chunks, all others are
taken from the journal. Without an index nothing says where a segment was retired, but older segments only go once
their entries are durable elsewhere, so this point always exists.

The log itself is only read. If it is damaged, CorruptError says where, and the directory stays as it is. Otherwise
the old index goes first and the new one comes last, in one transaction: cut off in between, the directory has none
and the hub asks for this again.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from veen.core.errors import FormatError, LimitError, VerifyError
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import LabelOpen, RetentionDrop
from veen.io.errors import CorruptError, StorageError
from veen.io.local import File, Fs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.control_state import ControlFold, Spending, control_records
from veen.storage.copies import archive
from veen.storage.frame import Frame
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
    record_row,
)
from veen.storage.journal import Journal, Placed
from veen.storage.keys import identity as identities
from veen.storage.label_files import map_head
from veen.storage.scan import LabelFold, LabelRun, ScannedEntry, Seal, chunk_items, inventory, read_file, runs_of

_BLOCK: Final = 1 << 20
_ROWS: Final = 50_000

# (label, epoch, stream_id, upto_seq, mmr_root, hub_ts of the last entry) -> the checkpoint, byte for byte as before
Reseal = Callable[[bytes, int, bytes | None, int, bytes, int], Checkpoint]


@dataclass(slots=True)
class Rebuilt:
    """Result of a rebuild: what was repaired and what could not be."""

    labels: int = 0
    entries: int = 0
    repaired: list[str] = field(default_factory=list)  # artifacts that were wrong or missing
    missing: list[str] = field(default_factory=list)  # checkpoints, which only the hub's key can make again


def rebuild_index(
    fs: Fs,
    limits: Limits | None = None,
    *,
    reseal: Reseal | None = None,
    progress: Callable[[str], None] | None = None,
) -> Rebuilt:
    """Rebuild; the caller holds the lock, so no hub runs.

    `limits` are those of a directory whose control journal sets none. Default: those of limits.json.
    """
    job = _Rebuild(fs, limits or _read_limits(fs), reseal, progress or (lambda _: None))
    try:
        return job.run()
    finally:
        job.close()


def _read_limits(fs: Fs) -> Limits:
    if not fs.exists(layout.LIMITS):
        return DEFAULT_LIMITS
    try:
        return Limits.from_json(json.loads(read_file(fs, layout.LIMITS)))
    except (ValueError, FormatError, LimitError) as exc:
        raise StorageError(f"{layout.LIMITS}: {exc}") from exc


class _Growing:
    """A new file, written in blocks beside the one it will replace."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: File = fs.open(f"{path}.tmp", create=True)
        self._file.truncate(0)
        self._pos, self._block = 0, bytearray()

    def write(self, data: bytes) -> None:
        self._block += data
        if len(self._block) >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._file.write_at(self._pos, bytes(self._block))
        self._pos += len(self._block)
        self._block.clear()

    def finish(self) -> None:
        self._flush()
        self._file.sync()
        self._file.close()

    def take_over(self) -> None:
        self._fs.rename(f"{self._path}.tmp", self._path)

    def discard(self) -> None:
        self._fs.remove(f"{self._path}.tmp")


class _Rebuild:
    def __init__(self, fs: Fs, limits: Limits, reseal: Reseal | None, progress: Callable[[str], None]) -> None:
        self.fs, self.limits, self.reseal, self.progress = fs, limits, reseal, progress
        self.done = Rebuilt()
        self.control = ControlFold(limits)
        self.control_bytes = 0
        self.hub_ts = 0
        self.next_client = 1
        self.segment = 1
        self.first: dict[bytes, int] = {}  # the first entry of each label that the journal holds
        self.journal_opens: set[bytes] = set()
        self.drops: dict[tuple[bytes, int], int] = {}
        self.spending = Spending()
        self.writers: dict[bytes, int] = {}  # when each client was first accepted, on whatever label (D-102)
        self.files: list[_Growing] = []
        self.labels: list[LabelRow] = []
        self.clients: list[ClientRow] = []
        self.records: list[RecordRow] = []
        self.newest = (0, 0, b"")  # hub_ts of the newest entry, row and name of its label
        self.chunks: list[ChunkRow] = []
        # One row for each entry of the log: too many for memory, and not wanted in the index before all is good.
        self.entries = sqlite3.connect("", isolation_level=None)
        self.entries.execute("CREATE TABLE entries (client_row INTEGER, client_seq INTEGER, stream_seq INTEGER)")
        self.entries.execute("BEGIN")  # one transaction that never ends: a commit for each row would cost more than it

    def close(self) -> None:
        self.spending.close()
        self.entries.close()

    def run(self) -> Rebuilt:
        for directory in layout.DIRECTORIES:
            self.fs.make_dir(directory)
        self._read_control(self._read_journal())
        try:
            self._read_labels()
        except BaseException:
            for file in self.files:
                file.discard()
            raise
        self.fs.remove_database(layout.INDEX)
        for file in self.files:
            file.take_over()
        for directory in (layout.LOG, layout.NODES, layout.OFFSETS):
            self.fs.sync_dir(directory)
        if wal.is_empty(self.fs):
            Journal.create(self.fs).close()
        index = Index(self.fs)
        try:
            index.save_all(self._parts())
            self._repair_identity(index)
        finally:
            index.close()
        return self.done

    # --- what the journal will bring -------------------------------------------------------------------

    def _read_journal(self) -> int | None:
        """Read the first entry of each label in the journal; return the seq of its first control record."""
        numbers = wal.segments(self.fs)
        if wal.is_empty(self.fs):
            return None
        run = wal.newest_run(numbers)
        self.segment = run[0]
        opened = wal.open_segments(self.fs, run)
        first_control: int | None = None
        try:
            for placed in wal.walk(opened):
                if not isinstance(placed, Placed):
                    continue
                if isinstance(placed.record, Frame):
                    self.first.setdefault(placed.record.label, placed.record.stream_seq)
                    continue
                body = placed.record.body
                if isinstance(body, LabelOpen):
                    self.journal_opens.add(body.label)
                if isinstance(body, RetentionDrop):
                    self.drops[body.label, body.start_seq] = body.end_seq
                if first_control is None:
                    first_control = placed.record.seq
        finally:
            wal.close_segments(opened)
        return first_control

    def _read_control(self, first_journaled: int | None) -> None:
        for offset, record in control_records(self.fs, before_seq=first_journaled):
            try:
                self.control.add(record)
            except (VerifyError, FormatError, LimitError) as exc:
                raise CorruptError(layout.CONTROL, offset, str(exc)) from exc
            length = len(record.to_bytes())
            self.control_bytes = offset + length
            if (row := record_row(record, offset, length)) is not None:
                self.records.append(row)
        if first_journaled is not None and first_journaled != self.control.seq + 1:
            what = f"control records {self.control.seq + 1} to {first_journaled - 1} are missing"
            raise CorruptError(layout.CONTROL, self.control_bytes, what)
        self.hub_ts = self.control.hub_ts
        self.drops |= self.control.drop_ends()

    # --- labels ----------------------------------------------------------------------------------------

    def _read_labels(self) -> None:
        files = inventory(self.fs)
        for label in (files.keys() | self.first.keys()) - self.control.labels.keys() - self.journal_opens:
            raise CorruptError(layout.CONTROL, self.control_bytes, f"no record opens label {label.hex()}")
        for label in self.control.labels:
            self.progress(f"label {label.hex()}")
            self._label(label, files.get(label, []))
            self.done.labels += 1

    def _parts(self) -> Iterator[IndexSnapshot]:
        """Yield the snapshot in parts that fit into memory."""
        rows = self.entries.execute("SELECT * FROM entries")
        while entries := rows.fetchmany(_ROWS):
            yield self._snapshot(entries=entries)
        default = self.control.limits or self.limits
        yield self._snapshot(
            labels=self.labels,
            clients=self.clients,
            chunks=self.chunks,
            caps=[
                self.spending.cap_row(auth_ref, grant, self.control, default)
                for auth_ref, grant in self.control.caps.items()
            ],
            writers=[WriterRow(client_id, first_ts) for client_id, first_ts in self.writers.items()],
            policies=self.control.policies,
            records=self.records,
        )

    def _snapshot(
        self,
        *,
        labels: Sequence[LabelRow] = (),
        clients: Sequence[ClientRow] = (),
        entries: Sequence[tuple[int, int, int]] = (),
        chunks: Sequence[ChunkRow] = (),
        caps: Sequence[CapRow] = (),
        writers: Sequence[WriterRow] = (),
        policies: Sequence[PolicyRow] = (),
        records: Sequence[RecordRow] = (),
    ) -> IndexSnapshot:
        limits = self.control.limits or self.limits
        return IndexSnapshot(
            segment=self.segment,
            hub_ts=self.hub_ts,
            limits=json.dumps(limits.to_json(), sort_keys=True),
            control=self.control.last.to_bytes() if self.control.last else b"",
            control_bytes=self.control_bytes,
            next_client_row=self.next_client,
            label_count=self.done.labels,
            entry_count=self.done.entries,
            cap_count=len(self.control.caps),
            newest=self.newest[2],
            labels=labels,
            clients=clients,
            entries=entries,
            chunks=chunks,
            caps=caps,
            writers=writers,
            policies=policies,
            records=records,
        )

    def _label(self, label: bytes, files: list[layout.LogFile]) -> None:
        opened = self.control.labels[label]
        fold = LabelFold(label, opened.row, opened.epoch, opened.stream_id)
        upto = self.first[label] - 1 if label in self.first else None
        nodes, places = _Growing(self.fs, layout.nodes(label)), _Growing(self.fs, layout.locations(label))
        self.files += [nodes, places]
        numbers: dict[bytes, int] = {}
        limits, last, index = opened.limits or self.limits, None, bytearray()
        for run in runs_of(label, files, self.drops)[0]:
            if upto is not None and fold.size >= upto:
                break
            for item in self._items(label, run):
                if last is not None and item.stream_seq == fold.active_start:
                    limits = self._limits_after(last, limits, item.hub_ts)
                places.write(fold.location(item))
                nodes.write(b"".join(fold.add(item)))
                self._count(item, numbers)
                if fold.size in (upto, run.end_seq):
                    break
            if run.end_seq is None or fold.size != run.end_seq:
                continue
            if fold.size == upto and fold.size - fold.active_start + 1 < limits.max_checkpoint_interval:
                break  # sealed by an entry that only the journal holds: recovery does that again
            seal = fold.seal(self.control.drop_level(label, run.start_seq))
            self._artifacts(seal, fold)
            last = seal.row
            self.chunks.append(last)
            index += seal.entry
        if upto is not None and fold.size != upto:
            path = layout.active(label, fold.active_start)
            raise CorruptError(path, fold.active_bytes, f"entries {fold.size + 1} to {upto} are missing")
        nodes.finish()
        places.finish()
        if fold.checkpoints:
            self._repair(layout.checkpoint_index(label), map_head(fold.checkpoints) + bytes(index))
        if last is not None and fold.size < fold.active_start:  # the active chunk is empty
            limits = self._limits_at(last.last_ts)
        self.hub_ts = max(self.hub_ts, fold.last_ts)
        self.done.entries += fold.size
        if fold.size:
            self.newest = max(self.newest, (fold.last_ts, opened.row, label))
        self.labels.append(fold.to_row(limits.max_chunk_bytes, limits.max_checkpoint_interval))
        self.clients += fold.client_rows(numbers)

    def _count(self, item: ScannedEntry, numbers: dict[bytes, int]) -> None:
        """Add the index rows of an entry."""
        number = numbers.setdefault(item.client_id, self.next_client)
        if number == self.next_client:
            self.next_client += 1
            first_ts = self.writers.get(item.client_id, item.hub_ts)
            self.writers[item.client_id] = min(first_ts, item.hub_ts)  # labels are read one after the other
        self.entries.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, item.client_seq, item.stream_seq))
        if item.auth_ref is not None:
            self.spending.add(item.auth_ref, item.hub_ts)

    def _limits_after(self, chunk: ChunkRow, limits: Limits, hub_ts: int) -> Limits:
        """Return the limits of the chunk after `chunk`: those of the moment it was sealed (D-75).

        A full chunk is sealed by its last entry, any other by the first entry that does not fit, of `hub_ts`.
        """
        full = chunk.end_seq - chunk.start_seq + 1 >= limits.max_checkpoint_interval
        return self._limits_at(chunk.last_ts if full else hub_ts)

    def _limits_at(self, hub_ts: int) -> Limits:
        return self.control.limits_at(hub_ts) or self.limits

    def _items(self, label: bytes, run: LabelRun) -> Iterator[ScannedEntry]:
        if run.end_seq is None:
            return chunk_items(self.fs, layout.active(label, run.start_seq), label)
        path = layout.chunk(label, run.start_seq, run.end_seq)
        if run.kind == "missing":
            raise CorruptError(path, 0, "the file is missing")
        if run.kind == "dropped":
            receipts = self.fs.exists(layout.receipts_archive(label, run.start_seq, run.end_seq))
            return archive.items(self.fs, label, run.start_seq, run.end_seq, receipts=receipts)
        return chunk_items(self.fs, path, label)

    # --- artifacts -------------------------------------------------------------------------------------

    def _artifacts(self, seal: Seal, fold: LabelFold) -> None:
        row = seal.row
        self._repair(layout.summary(fold.label, row.start_seq, row.end_seq), seal.summary)
        self._repair(layout.peaks(fold.label, row.end_seq), seal.peaks)
        path = layout.checkpoint(fold.label, row.end_seq)
        if self.reseal is not None:
            checkpoint = self.reseal(fold.label, fold.epoch, fold.stream_id, row.end_seq, row.mmr_root, row.last_ts)
            self._repair(path, checkpoint.to_bytes())
        elif not self.fs.exists(path):
            self.done.missing.append(path)

    def _repair(self, path: str, wanted: bytes) -> None:
        if not self.fs.exists(path) or read_file(self.fs, path) != wanted:
            self.fs.replace(path, wanted)
            self.done.repaired.append(path)

    def _repair_identity(self, index: Index) -> None:
        """Repair the files derived from the identity. A damaged identity is left to verification."""
        try:
            if not identities.exists(self.fs):
                return
            if identities.repair(self.fs):
                self.done.repaired.append(layout.KEY_MAP)
            path = layout.CHECKPOINT_BINDING
            before = read_file(self.fs, path) if self.fs.exists(path) else b""
            identities.write_binding(self.fs, identities.read_identity(self.fs), index)
        except CorruptError:
            return
        if read_file(self.fs, layout.CHECKPOINT_BINDING) != before:
            self.done.repaired.append(layout.CHECKPOINT_BINDING)
