"""The write-ahead journal: one durable write per group, whatever the number of labels (DESIGN §4).

A segment is a header and then groups. A group is a header and a payload: framed entries and control records in
the order they were decided. Each group's hash covers the hash of the group before it, so no group can be
missing, reordered or altered unseen. A receipt leaves the hub only after the group that holds its entry is
synced; a segment is removed once everything in it is durable elsewhere.

    segment = "veen-journal-v1" 0x00 · segment number u64 · hash of the last group before (32) · check of these two (4)
    group   = payload length u32 · hash (32) · check of these two (4) · payload

Only the end of the newest segment may be torn: the write that a crash interrupted. Such a group was never
acknowledged. Damage anywhere else is a CorruptError.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final

from veen.core import cbor
from veen.core.errors import FormatError, StatedError
from veen.core.hashing import tag_prefix
from veen.core.objects.control import ControlRecord
from veen.io.errors import CorruptError, NoSpaceError, StorageError, is_disk_full
from veen.io.local import File, Fs
from veen.storage import frame, layout
from veen.storage.frame import Frame

Record = Frame | ControlRecord

_MAGIC: Final = b"veen-journal-v1\x00"
_SEGMENT: Final = Struct(f">{len(_MAGIC)}sQ32s4s")
_GROUP: Final = Struct(">I32s4s")
_TAG: Final = tag_prefix("veen/journal")
_GENESIS: Final = bytes(32)
_WRITTEN: Final = re.compile(rb"[^\0]")
_REWRITE_BYTES: Final = 1 << 20


def _group_hash(previous: bytes, payload: bytes) -> bytes:
    return sha256(_TAG + previous + payload).digest()


def _head_check(length: int, chain: bytes) -> bytes:
    return sha256(_TAG + length.to_bytes(4, "big") + chain).digest()[:4]


def _segment_header(number: int, chain: bytes) -> bytes:
    check = sha256(_TAG + number.to_bytes(8, "big") + chain).digest()[:4]
    return _SEGMENT.pack(_MAGIC, number, chain, check)


class GroupError(CorruptError):
    """A group whose head or bytes do not match their check: damage, or a write torn by a power failure."""

    hint = (
        "If the machine lost power, `veen hub cut-tail DIR` lists the receipts that may exist, and cuts the group if"
        " you confirm that none left the hub. Otherwise keep the directory as evidence and restore from a replica."
    )

    def __init__(self, path: str, offset: int, what: str, end: int | None = None) -> None:
        super(StatedError, self).__init__(path, offset, what, end)
        self.path, self.offset, self.what = path, offset, what
        self.end = end  # where the group ends, if its head is valid


@dataclass(frozen=True, slots=True)
class _End:
    """End of the valid part of the newest segment, and the hash that continues the chain."""

    segment: int
    offset: int
    chain: bytes  # the hash of the last group


class Journal:
    """The end of the journal, to which groups are appended."""

    def __init__(self, fs: Fs, end: _End, file: File) -> None:
        self._fs, self._file = fs, file
        self.segment, self.offset = end.segment, end.offset
        self._chain = end.chain

    @classmethod
    def create(cls, fs: Fs) -> "Journal":
        """Create the journal of a new data directory."""
        return cls._begin(fs, _End(segment=0, offset=0, chain=_GENESIS))

    @classmethod
    def resume(cls, fs: Fs, end: _End) -> "Journal":
        """Continue after `replay`: drop a torn tail, keep acknowledged groups.

        The kept groups are written again before anything is chained onto them. If the last sync of the previous process
        failed, the groups can still be read from memory but may not be on the disk, and no later sync would write them.
        The bytes are the same, so a crash in the middle changes nothing. The name of the segment may not be durable
        either, if that process ended while the segment began.
        """
        if fs.exists(unbegun := layout.journal_segment(end.segment + 1)):
            fs.remove(unbegun)  # the crash came while it began; nothing was written to it
            # Before anything else is written: if it came back after the next crash, a torn write in this segment
            # would no longer be at the end of the journal and pass for damage.
            fs.sync_dir(layout.JOURNAL)
        file = fs.open(layout.journal_segment(end.segment))
        try:
            file.truncate(end.offset)
            for offset in range(0, end.offset, _REWRITE_BYTES):
                file.write_at(offset, file.read_at(offset, min(_REWRITE_BYTES, end.offset - offset)))
            file.sync()
            fs.sync_dir(layout.JOURNAL)
        except BaseException:
            file.close()
            raise
        return cls(fs, end, file)

    @classmethod
    def _begin(cls, fs: Fs, end: _End) -> "Journal":
        number = end.segment + 1
        path = layout.journal_segment(number)
        file = fs.open(path, create=True)
        header = _segment_header(number, end.chain)
        try:
            file.write_at(0, header)
            file.sync()
            fs.sync_dir(layout.JOURNAL)
        except BaseException:
            file.close()
            raise
        return cls(fs, _End(number, len(header), end.chain), file)

    def write(self, payload: bytes) -> None:
        """Make one group durable; return only after the sync.

        NoSpaceError means that nothing counts as written, and recovery may continue from here. Any other failure is
        final: after a failed sync nobody knows what reached the disk, and the page cache may show data that did not.
        """
        chain = _group_hash(self._chain, payload)
        head = _GROUP.pack(len(payload), chain, _head_check(len(payload), chain))
        try:
            self._file.write_at(self.offset, head + payload)
        except OSError as exc:
            if is_disk_full(exc):
                raise NoSpaceError("the disk is full: the journal cannot grow") from exc
            raise
        # The offset moves only after the sync: after a full disk the next group overwrites this one, which no receipt
        # names yet.
        self._file.sync()
        self.offset += _GROUP.size + len(payload)
        self._chain = chain

    def roll(self) -> int:
        """Begin a new segment and return its number. Older ones may be removed once their contents are durable
        elsewhere.

        If it fails nothing has changed, and it may be tried again as long as no group was written meanwhile.
        """
        # The new segment is durable before the old file is closed: if this raises, groups still go to the old one.
        following = self._begin(self._fs, _End(self.segment, self.offset, self._chain))
        self._file.close()
        self._file, self.segment, self.offset = following._file, following.segment, following.offset
        return self.segment

    def close(self) -> None:
        self._file.close()


def remove_before(fs: Fs, segment: int) -> None:
    """Remove the segments before `segment`, oldest first, so that no gap can appear."""
    old = [number for number in segments(fs) if number < segment]
    for number in old:
        fs.remove(layout.journal_segment(number))
    if old:  # what has gone must not come back later: a lost index is rebuilt from the oldest segment there is
        fs.sync_dir(layout.JOURNAL)


def segments(fs: Fs) -> list[int]:
    """Return the numbers of all segments, oldest first."""
    return sorted(number for name in fs.list(layout.JOURNAL) if (number := layout.segment_number(name)) is not None)


def is_empty(fs: Fs) -> bool:
    """Return True if nothing was ever written: no segment, or a first one that a crash interrupted at its start."""
    numbers = segments(fs)
    if numbers not in ([], [1]):
        return False
    if not numbers:
        return True
    file = fs.open(layout.journal_segment(1))
    try:
        return _is_unbegun(file.read_at(0, _SEGMENT.size))
    finally:
        file.close()


def _is_unbegun(header: bytes) -> bool:
    return len(header) < _SEGMENT.size or header.count(0) == len(header)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as of its opening: neither growth nor removal disturbs its reader."""

    number: int
    path: str
    file: File
    size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A record and its position."""

    segment: int
    path: str
    offset: int
    record: Record


def newest_run(numbers: list[int]) -> list[int]:
    """Return the consecutive segments up to the newest; those before a gap were retired and came back by a crash."""
    run = numbers[-1:]
    for number in reversed(numbers[:-1]):
        if number != run[0] - 1:
            break
        run.insert(0, number)
    return run


def open_segments(fs: Fs, numbers: Iterable[int]) -> list[Segment]:
    opened: list[Segment] = []
    try:
        for number in numbers:
            path = layout.journal_segment(number)
            file = fs.open(path)
            opened.append(Segment(number, path, file, file.size()))
    except BaseException:
        close_segments(opened)
        raise
    return opened


def close_segments(opened: Iterable[Segment]) -> None:
    for segment in opened:
        segment.file.close()


def replay(fs: Fs, from_segment: int) -> Iterator[Record | _End]:
    """Yield every record from `from_segment` on, in order, and finally the end of the journal."""
    numbers = [number for number in segments(fs) if number >= from_segment]
    if not numbers or numbers[0] != from_segment or numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise StorageError(f"journal: segment {from_segment} or one after it is missing; found {numbers}")
    opened = open_segments(fs, numbers)
    try:
        for item in walk(opened):
            yield item.record if isinstance(item, Placed) else item
    finally:
        close_segments(opened)


def walk(opened: Sequence[Segment]) -> Iterator[Placed | _End]:
    """Yield the records of consecutive segments, oldest first, and finally their end. Change nothing.

    Nothing is yielded from an incomplete group.
    """
    end: _End | None = None
    for segment in opened:
        newest = segment is opened[-1]
        path, file, size = segment.path, segment.file, segment.size
        header = file.read_at(0, _SEGMENT.size)
        if _is_unbegun(header):
            if not newest or end is None:
                raise CorruptError(path, 0, "the segment has no header")
            break  # the crash came while this segment began; nothing was written to it
        _, named, chain, _ = _SEGMENT.unpack(header)
        if header != _segment_header(segment.number, chain) or (end is not None and chain != end.chain):
            raise CorruptError(path, 0, f"not the segment that belongs here (it calls itself {named})")
        end = _End(segment.number, _SEGMENT.size, chain)
        while end.offset < size:
            head = file.read_at(end.offset, _GROUP.size)
            if _is_torn(head, size - end.offset, path, end.offset):
                if newest:
                    if not any(head) and holds_group_head(file.read_at(end.offset, size - end.offset)):
                        raise GroupError(path, end.offset, "zeros lie before a group: what was there is lost")
                    break
                raise CorruptError(path, end.offset, "the segment ends inside a group")
            length, claimed, _ = _GROUP.unpack(head)
            payload = file.read_at(end.offset + _GROUP.size, length)
            # A whole group with a wrong hash may be acknowledged and damaged later, so it is not dropped like a torn
            # write: the start stops, and `veen hub cut-tail` decides with the operator (decision 19, D-191).
            if _group_hash(end.chain, payload) != claimed:
                stop = end.offset + _GROUP.size + length
                raise GroupError(path, end.offset, "the bytes of a group do not match its hash", stop)
            for offset, record in _records(payload, path, end.offset + _GROUP.size):
                yield Placed(segment.number, path, offset, record)
            end = _End(segment.number, end.offset + _GROUP.size + length, claimed)
    if end is not None:
        yield end


def _is_torn(head: bytes, available: int, path: str, offset: int) -> bool:
    """Return True for an interrupted append: cut short, or never filled.

    A complete head that contradicts itself is damage. Without that check, a flipped bit in the length of the last group
    would look like a torn write and remove acknowledged entries with it.
    """
    if len(head) < _GROUP.size or head.count(0) == len(head):
        return True
    length, claimed, check = _GROUP.unpack(head)
    if check != _head_check(length, claimed):
        raise GroupError(path, offset, "the head of a group does not match its check")
    return available < _GROUP.size + int(length)


def _records(payload: bytes, path: str, base: int) -> Iterator[tuple[int, Record]]:
    """Yield frames, which begin with their version 1, and control records, which begin with a CBOR array."""
    offset = 0
    record: Record
    while offset < len(payload):
        where = base + offset
        if payload[offset] == 1:
            record, offset = frame.read(payload, offset, path=path, base=base)
        else:
            try:
                end = cbor.item_end(payload, offset)
                record, offset = ControlRecord.from_bytes(payload[offset:end]), end
            except FormatError as exc:
                raise CorruptError(path, where, f"no record begins here: {exc}") from exc
        yield where, record


def holds_group_head(data: bytes) -> bool:
    """Return True if a group begins anywhere in these bytes, by the check of its head.

    Zeros are not a head and are skipped quickly: a file system may leave very many of them.
    """
    start, last = 0, len(data) - _GROUP.size
    while start <= last:
        if not data[start]:
            if (written := _WRITTEN.search(data, start)) is None:
                return False
            start = max(start, written.start() - _GROUP.size + 1)
            if start > last:
                return False
        length, claimed, check = _GROUP.unpack_from(data, start)
        if length <= last - start and check == _head_check(length, claimed) and any(claimed):
            return True
        start += 1
    return False


def readable_records(group: bytes) -> tuple[list[Record], int, int]:
    """Return the records of a damaged group up to the first incomplete one, and the bounds of that one.

    The head counts as the first record. If the end of the damaged one is unknown, it is the end of the group.
    """
    records: list[Record] = []
    length, claimed, check = _GROUP.unpack(group[: _GROUP.size].ljust(_GROUP.size, b"\0"))
    if check != _head_check(length, claimed):
        return [], 0, min(_GROUP.size, len(group))
    payload, start = group[_GROUP.size :], 0
    try:
        for offset, record in _records(payload, "", 0):
            records.append(record)
            start = offset + len(record.to_bytes())
    except CorruptError:
        end = start + frame.bytes_needed(payload, start) if payload[start] == 1 else len(payload)
        return records, _GROUP.size + start, _GROUP.size + min(end, len(payload))
    return records, len(group), len(group)  # each record is whole: what was changed is the head or their order


def payload_of(records: Iterable[Record]) -> bytes:
    """Encode records for `Journal.write`."""
    return b"".join(record.to_bytes() for record in records)
