"""Entries as Arrow batches: a vectorised decoder for intact chunks, a strict one for the others.

Each entry of a pinned chunk is one row. The row of a damaged, erased or missing entry says so (`ok`, `reason`) and has
the fields that can be trusted. No entry is left out and none stops the others.

Sources of entries: a directory or bucket here, a hub in `veen.lake.log.remote`. A source is a small value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veen.core.entry import FRAME_HASH_AT, HASH_BYTES, HEAD_BYTES, MSG_CLIENT_AT, MSG_PROFILE_AT, SIG_BYTES
from veen.core.errors import VeenError, VerifyError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Fault, Rule
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.lake.log.columns import ENTRIES, Column, arrow_schema
from veen.lake.log.errors import SourceDamaged
from veen.lake.log.slices import MAX_HOLE, Selection, Slice, label_slices
from veen.storage import frame
from veen.storage.copies import archive
from veen.storage.pinned import ChunkRef, LogView, find_archive, pin, read_chunk
from veen.storage.scan import entry_fault, item_of
from veen.verify.vectors import Departs, Vector, decode, hashes_hold

Level = Literal["none", "hash", "receipt", "full"]
LEVELS: Final[tuple[Level, ...]] = ("none", "hash", "receipt", "full")

_MAX_ROWS: Final = 16_384  # of a batch
_MAX_OFFSET: Final = (1 << 31) - 1  # of a binary column

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """Specification of a read: columns, level of checking, bounds of time (inclusive).

    Levels: none checks shape only; hash also entry_hash, I1 and I2; receipt also the hub's signature; full also the
    writer's.
    """

    columns: tuple[Column, ...]
    level: Level = "hash"
    identity: HubIdentity | None = None  # whose signatures the levels receipt and full check
    first_ts: int | None = None
    last_ts: int | None = None
    fail_fast: bool = False  # SourceDamaged at the first damaged entry

    @property
    def wanted(self) -> set[str]:
        """Names of the columns to decode: those of the result, and those that select and describe rows."""
        return {column.name for column in self.columns} | {"stream_seq", "hub_ts", "ok", "reason", "path"}

    def batches(self, table: pa.Table, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `table` from position `first` to `last`, in the columns of this spec."""
        schema = arrow_schema(self.columns)
        rows = self._within(table, first, last)
        if self.fail_fast:
            _stop_at_damage(rows)
        for batch in rows.select(schema.names).to_batches(max_chunksize=_MAX_ROWS):
            yield batch.cast(schema) if batch.schema != schema else batch

    def _within(self, table: pa.Table, first: int, last: int | None) -> pa.Table:
        """Select rows by position and time. Keep rows of unknown time: they may belong to any."""
        seqs, times = table.column("stream_seq"), table.column("hub_ts")
        inside = pc.greater_equal(seqs, first)
        if last is not None:
            inside = pc.and_(inside, pc.less_equal(seqs, last))
        if self.first_ts is not None:
            inside = pc.and_(inside, pc.fill_null(pc.greater_equal(times, self.first_ts), True))
        if self.last_ts is not None:
            inside = pc.and_(inside, pc.fill_null(pc.less_equal(times, self.last_ts), True))
        return table if pc.all(inside).as_py() else table.filter(inside)


def _stop_at_damage(table: pa.Table) -> None:
    bad = table.filter(pc.invert(table.column("ok")))
    if bad.num_rows:
        row = bad.slice(0, 1).to_pylist()[0]
        raise SourceDamaged(f"{row['path']}: entry {row['stream_seq']}: {row['reason']}")


def batches(fs: Fs, part: Slice, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a slice. At the end of a chunk include a row for bytes behind its last entry."""
    last = None if part.last >= part.chunk.end_seq else part.last
    yield from spec.batches(_table(fs, part.chunk, spec), part.first, last)


def _table(fs: Fs, ref: ChunkRef, spec: ReadSpec) -> pa.Table:
    if ref.kind in ("receipts", "heads"):
        return from_rows(_read_archived(fs, ref), ref, spec)
    if ref.kind == "missing":
        return from_rows(_rows_of_hole(ref), ref, spec)
    try:
        data = read_chunk(fs, ref)
    except FileNotFoundError as exc:
        if (archived := find_archive(fs, ref)) is None:
            return from_rows(_lost_rows(ref, ref.start_seq, 0, str(exc)), ref, spec)
        return from_rows(_read_archived(fs, archived), archived, spec)
    except (VeenError, OSError) as exc:
        return from_rows(_lost_rows(ref, ref.start_seq, 0, str(exc)), ref, spec)
    return from_frames(data, ref, spec)


def from_frames(data: bytes, ref: ChunkRef, spec: ReadSpec) -> pa.Table:
    """Decode the frames of `ref`, one row each; damage becomes rows with `ok` false."""
    try:
        vector = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
        if vector.end != len(data) or not vector.counts(ref.start_seq, ref.end_seq):
            raise Departs
        if _has_fault(data, vector, ref.label, spec):
            raise Departs
    except Departs:
        return from_rows(_one_by_one(data, ref, spec), ref, spec)
    return _from_vector(data, vector, ref, spec.wanted)


# --- fast ----------------------------------------------------------------------------------------------------


def _has_fault(data: bytes, v: Vector, label: bytes, spec: ReadSpec) -> bool:
    """Return True if any entry fails a check of the level. The strict decoder then finds out which."""
    if spec.level == "none":
        return False
    if not hashes_hold(data, v, label):
        return True
    if spec.level == "hash":
        return False
    rows = zip(v.msg_at.tolist(), v.receipt_at.tolist(), (v.frame_at + v.frame_length).tolist(), strict=True)
    return any(
        _signature_fault(data[msg_at:receipt_at], data[receipt_at:end], spec) for msg_at, receipt_at, end in rows
    )


def _signature_fault(raw: bytes, receipt_raw: bytes, spec: ReadSpec) -> str | None:
    receipt = Receipt.from_bytes(receipt_raw)
    if spec.identity is None:
        return "there is no identity to hold its RECEIPT to"
    try:
        key = spec.identity.signing_key_at(receipt.hub_ts)
        receipt.verify(key.hub_pk)
    except VerifyError as exc:
        return str(exc)
    if spec.level == "full" and not Msg.from_bytes(raw).is_signed(Msg.digest_of(raw)):
        return entry_fault(Fault(Rule.AUTHOR_SIG, receipt.stream_seq)).message
    return None


def _from_vector(data: bytes, v: Vector, ref: ChunkRef, wanted: set[str]) -> pa.Table:
    count = len(v)

    def hashes(at: Any, size: int = HASH_BYTES) -> pa.Array:
        flat = np.ascontiguousarray(v.rows(at, size)).reshape(-1)
        offsets = np.arange(0, (len(at) + 1) * size, size, dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), len(at), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])

    def slices(start: Any, end: Any) -> pa.Array:
        if len(data) > _MAX_OFFSET:
            return pa.array([data[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)], pa.binary())
        bounds = np.empty(2 * count + 1, dtype=np.int32)  # a field, what lies before the next one, and so on
        bounds[0:-1:2], bounds[1::2], bounds[-1] = start, end, len(data)
        runs = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
        return runs.take(pa.array(np.arange(0, 2 * count, 2)))

    def auth_refs() -> pa.Array:
        null = v.auth_ref_at < 0
        if not null.any():
            return hashes(v.auth_ref_at)
        return hashes(v.auth_ref_at[~null]).take(pa.array(np.cumsum(~null) - 1, mask=null))

    def constant(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    end = v.frame_at + v.frame_length
    make: dict[str, Callable[[], pa.Array]] = {
        "label": lambda: constant(ref.label, pa.binary()),
        "epoch": lambda: constant(ref.epoch, pa.int64()),
        "stream_id": lambda: constant(ref.stream_id, pa.binary()),
        "stream_seq": lambda: pa.array(v.stream_seq),
        "hub_ts": lambda: pa.array(v.hub_ts),
        "leaf_hash": lambda: hashes(v.leaf_at),
        "mmr_root": lambda: hashes(v.root_at),
        "hub_sig": lambda: hashes(v.hub_sig_at, SIG_BYTES),
        "entry_hash": lambda: hashes(v.frame_at + FRAME_HASH_AT),
        "profile_id": lambda: hashes(v.msg_at + MSG_PROFILE_AT),
        "client_id": lambda: hashes(v.msg_at + MSG_CLIENT_AT),
        "client_seq": lambda: pa.array(v.client_seq),
        "prev_ack": lambda: pa.array(v.prev_ack),
        "auth_ref": auth_refs,
        "ct_hash": lambda: hashes(v.ct_hash_at),
        "ciphertext": lambda: slices(v.ciphertext_at, v.msg_sig_at - HEAD_BYTES),
        "msg_sig": lambda: hashes(v.msg_sig_at, SIG_BYTES),
        "msg": lambda: slices(v.msg_at, v.receipt_at),
        "receipt": lambda: slices(v.receipt_at, end),
        "path": lambda: constant(ref.path, pa.string()),
        "frame_offset": lambda: pa.array(v.frame_at),
        "frame_length": lambda: pa.array(v.frame_length),
        "ok": lambda: constant(True, pa.bool_()),
        "reason": lambda: constant(None, pa.string()),
    }
    return pa.table({name: make[name]() for name in make if name in wanted})


# --- one by one ----------------------------------------------------------------------------------------------


def _one_by_one(data: bytes, ref: ChunkRef, spec: ReadSpec) -> Iterator[Row]:
    """Decode strictly, frame by frame. After a frame with invalid lengths the next one cannot be located."""
    pos = 0
    for seq in range(ref.start_seq, ref.end_seq + 1):
        wanted = frame.bytes_needed(data, pos)
        if pos + wanted > len(data) or wanted == frame.HEADER_BYTES:
            yield from _lost_rows(ref, seq, pos, _frame_fault(data, pos, ref))
            return
        yield _check_frame(data[pos : pos + wanted], ref, seq, pos, spec)
        pos += wanted
    if pos != len(data):
        reason = "bytes follow the last entry that the name of the file speaks of"
        yield {"stream_seq": ref.end_seq + 1, "frame_offset": pos, "ok": False, "reason": reason}


def _frame_fault(data: bytes, pos: int, ref: ChunkRef) -> str:
    try:
        frame.read(data, pos, path=ref.path)
    except CorruptError as exc:
        return str(exc)
    return "the file ends before this entry"


def _check_frame(data: bytes, ref: ChunkRef, seq: int, pos: int, spec: ReadSpec) -> Row:
    row: Row = {"stream_seq": seq, "frame_offset": pos, "frame_length": len(data), "ok": False}
    try:
        framed, _ = frame.read(data, 0, path=ref.path, base=pos)
        if framed.stream_seq != seq:
            return row | {"reason": f"entry {framed.stream_seq} is where entry {seq} belongs"}
        item = item_of(framed, ref.label, ref.path, pos)
    except CorruptError as exc:
        return row | {"reason": str(exc)}
    msg, receipt = item.msg, item.receipt
    assert msg is not None  # noqa: S101 - item_of has read both
    assert receipt is not None  # noqa: S101 - as above
    reason = None
    if spec.level in ("receipt", "full"):
        reason = _signature_fault(framed.msg, framed.receipt, spec)  # item_of has read the same bytes
    return row | {
        "hub_ts": receipt.hub_ts,
        "leaf_hash": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "hub_sig": receipt.hub_sig,
        "entry_hash": framed.entry_hash,
        "profile_id": msg.profile_id,
        "client_id": msg.client_id,
        "client_seq": msg.client_seq,
        "prev_ack": msg.prev_ack,
        "auth_ref": msg.auth_ref,
        "ct_hash": msg.ct_hash,
        "ciphertext": msg.ciphertext,
        "msg_sig": msg.sig,
        "msg": framed.msg,
        "receipt": framed.receipt,
        "ok": reason is None,
        "reason": reason,
    }


def _read_archived(fs: Fs, ref: ChunkRef) -> Iterator[Row]:
    """Yield rows of the metadata that remains of a chunk whose payloads were erased (D-74)."""
    seq = ref.start_seq
    try:
        for item in archive.items(fs, ref.label, ref.start_seq, ref.end_seq, receipts=ref.kind == "receipts"):
            receipt = item.receipt
            yield {
                "stream_seq": item.stream_seq,
                "hub_ts": item.hub_ts,
                "leaf_hash": item.leaf_hash,
                "mmr_root": receipt.mmr_root if receipt else None,
                "hub_sig": receipt.hub_sig if receipt else None,
                "entry_hash": item.entry_hash,
                "client_id": item.client_id,
                "client_seq": item.client_seq,
                "prev_ack": item.prev_ack,
                "auth_ref": item.auth_ref,
                "receipt": receipt.to_bytes() if receipt else None,
                "frame_offset": item.offset,
                "frame_length": item.length,
                "ok": False,
                "reason": "erased under the retention policy",
            }
            seq = item.stream_seq + 1
    except (VeenError, OSError) as exc:
        yield from _lost_rows(ref, seq, 0, str(exc))


def _rows_of_hole(ref: ChunkRef) -> Iterator[Row]:
    """Yield a row for each entry that no file has; one row for a hole that only a file name can claim."""
    if ref.entries > MAX_HOLE:
        reason = f"no file has this entry, nor those after it up to {ref.end_seq}"
        yield {"stream_seq": ref.start_seq, "ok": False, "reason": reason}
        return
    for seq in range(ref.start_seq, ref.end_seq + 1):
        yield {"stream_seq": seq, "ok": False, "reason": "no file has this entry"}


def _lost_rows(ref: ChunkRef, first: int, offset: int, reason: str) -> Iterator[Row]:
    """Yield a row for each unreadable entry from `first` on; one row if only a file name claims that there are many."""
    if ref.end_seq - first > MAX_HOLE:
        reason = f"{reason}; nor can those after it be found, up to entry {ref.end_seq}"
        yield {"stream_seq": first, "frame_offset": offset, "ok": False, "reason": reason}
        return
    yield {"stream_seq": first, "frame_offset": offset, "ok": False, "reason": reason}
    behind = f"cannot be found behind the damage at entry {first}"
    for seq in range(first + 1, ref.end_seq + 1):
        yield {"stream_seq": seq, "ok": False, "reason": behind}


def from_rows(rows: Iterable[Row], ref: ChunkRef, spec: ReadSpec) -> pa.Table:
    """Build a table of rows that have some of the columns each."""
    fixed = {"label": ref.label, "epoch": ref.epoch, "stream_id": ref.stream_id, "path": ref.path or None}
    filled = [fixed | row for row in rows]
    columns = [column for column in ENTRIES if column.name in spec.wanted]
    return pa.table(
        {column.name: pa.array([row.get(column.name) for row in filled], column.arrow) for column in columns}
    )


class LogSource(Protocol):
    """A source of entries: pinned and planned on the driver, read on executors."""

    def pin(self, selection: Selection, after: Mapping[bytes, int] | None = None) -> LogView:
        """Return the current heads of all labels, or at least of those that `selection` takes.

        `after`: positions up to which labels were read; what lies before may be left out.
        """

    def slices(self, pinned: LogView, selection: Selection) -> Iterator[Slice]:
        """Yield the ranges of entries that can hold selected ones, by label and position."""

    def read(self, slices: Iterable[Slice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices."""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A data directory, on this machine or in any store that Arrow can read."""

    uri: str

    def pin(self, selection: Selection, after: Mapping[bytes, int] | None = None) -> LogView:
        return pin(self.uri, selection.labels, after=after)

    def slices(self, pinned: LogView, selection: Selection) -> Iterator[Slice]:
        fs = open_fs(self.uri)
        for label in sorted(pinned.labels):
            yield from label_slices(fs, pinned.labels[label], selection)

    def read(self, slices: Iterable[Slice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        fs = open_fs(self.uri)
        for part in slices:
            yield from batches(fs, part, spec)
