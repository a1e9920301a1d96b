"""Cutting off the last group of the journal after a power failure that recovery cannot handle.

Recovery cuts a group that ends before its length says. A disk may also keep the length and lose blocks in the middle:
the head is there, the bytes do not match its hash. That looks like damage to a group that was acknowledged, so a hub
does not start. A receipt leaves only after the sync of the whole group returned. Nothing is cut unless all this holds:

    it is the last thing in the journal      the next group is written only after the sync of this one
    blocks of it were never written          they read as zeros, from one border of a block to the next, and the first
                                             unreadable record is in them: a flipped bit does not look like this
    no file of the log holds what it brings  files are filled only after the sync

All of it also holds for a group that was acknowledged and whose blocks a bad disk, or whoever writes to it, turned to
zeros later: the two cannot be told apart from the directory (D-191). So somebody has to say that no receipt left: the
operator, or a replica, a witness or a client that shows how far it saw the log. What is cut is kept beside the journal
with a record of it and of who said so, before anything is cut.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from veen.core.errors import FormatError, VeenError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import canonical_json
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs, OsFs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.frame import Frame
from veen.storage.index import Index
from veen.storage.journal import GroupError, Placed
from veen.storage.scan import chunk_frames, inventory

_BLOCK: Final = 512  # no disk writes less at once
_LEAST_ZEROS: Final = 4  # where a group begins or ends inside a block


class TailUnconfirmedError(StorageError, code="E.STORAGE.TAIL"):
    """Missing confirmation that no receipt of the torn group left the hub."""


class DamagedTailError(StorageError, code="E.STORAGE.DAMAGED_TAIL"):
    """A damaged journal whose damage may be in entries whose receipts left the hub."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Positions of the log that another party saw: a replica or clone, or a stored receipt, checkpoint or note."""

    source: str
    heads: Mapping[bytes, int]  # label -> the newest entry that it names


def read_statement(path: Path) -> Statement:
    """Read a data directory, or a file with a RECEIPT or a CHECKPOINT; raise StorageError for anything else.

    Signatures are not checked: a false statement can only keep the group from being cut.
    """
    if path.is_dir():
        fs = OsFs(path)
        durable = _read_indexed_sizes(fs)
        opened = wal.open_segments(fs, wal.segments(fs))
        try:
            with contextlib.suppress(CorruptError):
                for placed in wal.walk(opened):
                    if isinstance(placed, Placed):
                        durable.add(placed.record)
        finally:
            wal.close_segments(opened)
        if not durable.sizes:
            raise StorageError(f"{path}: the directory has no entries")
        return Statement(str(path), durable.sizes)
    try:
        data = path.read_bytes()
        try:
            receipt = Receipt.from_bytes(data)
            return Statement(str(path), {receipt.label: receipt.stream_seq})
        except FormatError:
            checkpoint = Checkpoint.from_bytes(data)
            return Statement(str(path), {checkpoint.label_curr: checkpoint.upto_seq})
    except (OSError, FormatError) as exc:
        raise StorageError(f"{path}: neither a data directory nor a RECEIPT nor a CHECKPOINT: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Tail:
    """The torn end of the journal."""

    segment: int
    offset: int
    data: bytes
    unwritten: int  # bytes of blocks that were never written
    entries: tuple[tuple[bytes, int], ...]  # label and stream_seq of those that can still be read
    control_seqs: tuple[int, ...]
    sizes: Mapping[bytes, int]  # label -> entries that are durable without the group
    control_seq: int  # the last control record that is durable without it

    def contradiction(self, statement: Statement) -> str | None:
        """Return the reason why a statement proves that the group was acknowledged; None if it does not."""
        for label, seq in statement.heads.items():
            if seq > (size := self.sizes.get(label, 0)):
                return (
                    f"{statement.source} states entry {seq} of label {label.hex()}, and {size} entries are durable"
                    " without the group: it was acknowledged"
                )
        return None

    def name(self, suffix: str) -> str:
        return f"{layout.CUT}/{self.segment:020d}-{self.offset:020d}.{suffix}"

    def to_json(self) -> dict[str, Any]:
        return {
            "segment": self.segment,
            "offset": self.offset,
            "bytes": len(self.data),
            "sha256": sha256(self.data).hexdigest(),
            "unwritten_bytes": self.unwritten,
            "readable_entries": [{"label": label.hex(), "stream_seq": seq} for label, seq in self.entries],
            "readable_control_seqs": list(self.control_seqs),
            "may_have_receipts": [
                {"label": label.hex(), "first_seq": self.sizes.get(label, 0) + 1}
                for label in sorted({label for label, _ in self.entries})
            ],
            "unreadable_entries_possible": True,  # of any label: the group ends with bytes that cannot be read
            "kept_in": self.name("bin"),
        }


@dataclass(slots=True)
class _Durable:
    """Durable entries without the last group: the positions that receipts may name."""

    sizes: dict[bytes, int]
    control_seq: int = 0

    def add(self, record: Frame | ControlRecord) -> None:
        if isinstance(record, Frame):
            self.sizes[record.label] = max(record.stream_seq, self.sizes.get(record.label, 0))
        else:
            self.control_seq = max(record.seq, self.control_seq)


def find_tail(fs: Fs) -> Tail | None:
    """Return the torn end of the journal, None if a hub could start; raise DamagedTailError if it was acknowledged."""
    if wal.is_empty(fs):
        return None
    durable = _read_indexed_sizes(fs)
    opened = wal.open_segments(fs, wal.newest_run(wal.segments(fs)))
    try:
        try:
            for placed in wal.walk(opened):
                if isinstance(placed, Placed):
                    durable.add(placed.record)
        except GroupError as exc:
            newest = opened[-1]
            if exc.path != newest.path:
                raise DamagedTailError(f"{exc}; this is not the last segment of the journal") from exc
            data = newest.file.read_at(exc.offset, newest.size - exc.offset)
            tail = _torn(newest.number, exc, data, durable)
        except CorruptError as exc:
            raise DamagedTailError(f"{exc}; this is no group that was cut off while it was written") from exc
        else:
            return None
    finally:
        wal.close_segments(opened)
    if applied := next(_find_applied(fs, durable), None):
        raise DamagedTailError(f"{applied}: it was acknowledged, and the journal lost it later")
    return tail


def _read_indexed_sizes(fs: Fs) -> _Durable:
    """Return the sizes that the index knows; nothing before the first retirement."""
    try:
        index = Index(fs, read_only=True)
    except FileNotFoundError:
        return _Durable({})
    try:
        durable = _Durable({row.label: row.size for row in index.labels()})
        if control := index.meta("control"):
            durable.add(ControlRecord.from_bytes(control))
        return durable
    finally:
        index.close()


def _torn(segment: int, fault: GroupError, data: bytes, durable: _Durable) -> Tail:
    if fault.end is not None and fault.offset + len(data) > fault.end:
        raise DamagedTailError(f"{fault}; more was written behind it, so it was durable and its receipts may have left")
    if fault.end is None and wal.holds_group_head(data[1:]):
        raise DamagedTailError(f"{fault}; another group follows it, so it was durable and its receipts may have left")
    zeros = list(_zero_blocks(data, fault.offset))
    records, bad_from, bad_to = wal.readable_records(data)
    if not any(start < bad_to and end > bad_from for start, end in zeros):
        raise DamagedTailError(f"{fault}; all of it was written and then changed, so its receipts may have left")
    return Tail(
        segment=segment,
        offset=fault.offset,
        data=data,
        unwritten=sum(end - start for start, end in zeros),
        entries=tuple((record.label, record.stream_seq) for record in records if isinstance(record, Frame)),
        control_seqs=tuple(record.seq for record in records if isinstance(record, ControlRecord)),
        sizes=durable.sizes,
        control_seq=durable.control_seq,
    )


def _zero_blocks(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of `data`, at `offset` of its file, that fill or end a block and contain only zeros."""
    start = 0
    while start < len(data):
        end = min(len(data), start + _BLOCK - (offset + start) % _BLOCK)
        if end - start >= _LEAST_ZEROS and not any(data[start:end]):
            yield start, end
        start = end


def _find_applied(fs: Fs, durable: _Durable) -> Iterator[str]:
    """Yield traces in the log of entries or records that only the last group can have brought."""
    for label, files in inventory(fs).items():
        size = durable.sizes.get(label, 0)
        for file in files:
            if file.kind == "chunk" and file.end_seq > size:
                yield f"{file.path}: holds entry {file.end_seq}"
            if file.kind != "active":
                continue
            with contextlib.suppress(CorruptError):  # what was not synced may be anything
                for _, entry in chunk_frames(fs, file.path):
                    if entry.label == label and entry.stream_seq > size:
                        yield f"{file.path}: holds entry {entry.stream_seq}"
    with contextlib.suppress(VeenError):
        for _, record in control_records(fs):
            if record.seq > durable.control_seq:
                yield f"{layout.CONTROL}: holds record {record.seq}"


def cut_tail(
    fs: Fs, tail: Tail, now: int, *, no_receipt_left: bool = False, statements: Sequence[Statement] = ()
) -> str:
    """Cut the journal and return the path of the record. The caller holds the lock. An interrupted call can be
    repeated.

    TailUnconfirmedError is raised without the operator's confirmation or another party's statement; DamagedTailError if
    a statement is beyond the durable entries.
    """
    for statement in statements:
        if (fault := tail.contradiction(statement)) is not None:
            raise DamagedTailError(fault)
    if not no_receipt_left and not statements:
        raise TailUnconfirmedError(
            "a torn group cannot be distinguished from one that was acknowledged and damaged later:"
            " confirm that no receipt of it left the hub"
        )
    word = {"no_receipt_left": no_receipt_left, "compared": [statement.source for statement in statements]}
    fs.make_dir(layout.CUT)
    fs.replace(tail.name("bin"), tail.data)
    fs.replace(tail.name("json"), canonical_json({"ver": 1, "cut_at": now, "word": word, **tail.to_json()}) + b"\n")
    file = fs.open(layout.journal_segment(tail.segment))
    try:
        file.truncate(tail.offset)
        file.sync()
    finally:
        file.close()
    return tail.name("json")
