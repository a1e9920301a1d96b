"""Reading of entries: by position, by range, by time. Positioning is O(1) or O(log n), output O(k) (spec §3.4).

Readers see applied entries only, so they never see one that a crash could take back.

An entry of a compressed chunk, or a receipt whose payload was erased, can be read only after a whole file was unpacked.
That would block the thread that orders messages for too long. `EntryReader.find_packed` therefore names the file to
unpack first: another thread may do it (`Packed.unpack`) and pass the result to `EntryReader.keep`.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from veen.core import cbor
from veen.core.errors import StatedError
from veen.core.lru import Lru
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs
from veen.storage import frame, layout
from veen.storage.copies import archive
from veen.storage.frame import Frame
from veen.storage.index import ChunkRow
from veen.storage.label_files import FileCache, LabelFiles, Location
from veen.storage.scan import is_compressed, read_file

_UNPACKED_BYTES: Final = 64 * 1024 * 1024  # kept in memory; the last one also if it is larger


class PrunedError(StorageError):
    """An entry erased by the retention policy: its payload, and later its receipt; proofs still exist (D-74)."""

    hint = "Ask for the receipt or the proof instead; the payload may exist in a replica or an export."

    def __init__(self, stream_seq: int) -> None:
        super(StatedError, self).__init__(stream_seq)
        self.stream_seq = stream_seq

    def __str__(self) -> str:
        return f"entry {self.stream_seq}: erased by the retention policy"


def inflate(data: bytes, maximum: int, path: str) -> bytes:
    """Return the frames of a chunk file; any decoding error voids the whole chunk (spec §4.8.4)."""
    if not is_compressed(data):
        return data
    try:
        decoder = zlib.decompressobj()
        plain = decoder.decompress(data, maximum)
    except zlib.error as exc:
        raise CorruptError(path, 0, f"the compressed chunk cannot be decoded: {exc}") from exc
    if not decoder.eof or decoder.unused_data:
        raise CorruptError(path, 0, "the compressed chunk is cut short, too long, or followed by other bytes")
    return plain


@dataclass(frozen=True, slots=True)
class Packed:
    """A file that must be read as a whole. It is immutable, so any thread may read it."""

    fs: Fs
    path: str
    plain_bytes: int  # of a compressed chunk, unpacked; 0: an archive of receipts

    def unpack(self) -> "Unpacked":
        data = read_file(self.fs, self.path)
        if self.plain_bytes:
            return Unpacked(inflate(data, self.plain_bytes, self.path), ())
        return Unpacked(b"", tuple(cbor.sequence(data, what=self.path)))


class Unpacked(NamedTuple):
    """Contents of a packed file: the frames of a chunk, or receipts."""

    frames: bytes
    receipts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return len(self.frames) + sum(map(len, self.receipts))


class EntryReader:
    """Reader of one store. Owned by one thread. `chunk_at` finds the sealed chunk of an entry."""

    def __init__(self, fs: Fs, cache: FileCache, chunk_at: Callable[[LabelFiles, int], ChunkRow | None]) -> None:
        self._fs, self._cache, self._chunk_at = fs, cache, chunk_at
        self._unpacked: Lru[str, Unpacked] = Lru(_UNPACKED_BYTES, weigh=lambda unpacked: unpacked.size)  # by path

    def find_packed(self, files: LabelFiles, stream_seq: int) -> Packed | None:
        """Return the file to unpack before an entry, or its receipt, can be read; None if there is none."""
        chunk = self._chunk_at(files, stream_seq)
        if chunk is None or chunk.dropped > 1:
            return None
        if chunk.dropped:
            path, plain_bytes = layout.receipts_archive(files.label, chunk.start_seq, chunk.end_seq), 0
        else:
            path, plain_bytes = layout.chunk(files.label, chunk.start_seq, chunk.end_seq), chunk.total_bytes
        if path in self._unpacked or (plain_bytes and not self._is_compressed(path)):
            return None
        return Packed(self._fs, path, plain_bytes)

    def keep(self, packed: Packed, unpacked: Unpacked) -> None:
        """Keep a result of another thread; the next read is served from it."""
        if self._unpacked.get(packed.path) is None:
            self._unpacked.put(packed.path, unpacked)

    def _unpack(self, path: str, plain_bytes: int) -> Unpacked:
        unpacked = self._unpacked.get(path)
        if unpacked is None:
            packed = Packed(self._fs, path, plain_bytes)
            unpacked = packed.unpack()
            self.keep(packed, unpacked)
        return unpacked

    def _is_compressed(self, path: str) -> bool:
        return is_compressed(self._cache.get(path).read_at(0, 1))

    def chunk_end(self, files: LabelFiles, stream_seq: int) -> int:
        """Return the last entry of the chunk that contains an entry."""
        chunk = self._chunk_at(files, stream_seq)
        return files.size if chunk is None else chunk.end_seq

    def frames(self, files: LabelFiles, first_seq: int, last_seq: int, max_bytes: int) -> list[Frame]:
        """Return the entries first_seq … last_seq; fewer if they exceed `max_bytes`, but at least one."""
        places = files.locate(first_seq, min(last_seq, files.size))
        count, total = 0, 0
        for place in places:
            total += place.length
            if count and total > max_bytes:
                break
            count += 1
        entries: list[Frame] = []
        for _, run in groupby(places[:count], key=lambda place: place.start_seq):
            entries += self._run(files, first_seq + len(entries), list(run))
        return entries

    def _run(self, files: LabelFiles, first_seq: int, places: Sequence[Location]) -> list[Frame]:
        """Return adjacent entries of one chunk, with one read."""
        start = places[0].offset
        end = places[-1].offset + places[-1].length
        path, data = self._bytes(files, first_seq, start, end - start)
        frames = [entry for _, entry in frame.frames(data, path=path, base=start)]
        if [entry.stream_seq for entry in frames] != list(range(first_seq, first_seq + len(places))):
            raise CorruptError(path, start, f"entries {first_seq} and following are not where they should be")
        return frames

    def _bytes(self, files: LabelFiles, stream_seq: int, offset: int, size: int) -> tuple[str, bytes]:
        chunk = self._chunk_at(files, stream_seq)
        if chunk is None:
            return layout.active(files.label, files.active_start), files.read_active(offset, size)
        if chunk.dropped:
            raise PrunedError(stream_seq)
        path = layout.chunk(files.label, chunk.start_seq, chunk.end_seq)
        if path not in self._unpacked and not self._is_compressed(path):
            return path, self._cache.get(path).read_at(offset, size)
        return path, self._unpack(path, chunk.total_bytes).frames[offset : offset + size]

    def receipt(self, files: LabelFiles, stream_seq: int) -> bytes:
        """Return one RECEIPT, also if its payload was erased."""
        chunk = self._chunk_at(files, stream_seq)
        if chunk is None or not chunk.dropped:
            return self.frames(files, stream_seq, stream_seq, 0)[0].receipt
        if chunk.dropped > 1:
            raise PrunedError(stream_seq)
        path = layout.receipts_archive(files.label, chunk.start_seq, chunk.end_seq)
        receipts = self._unpack(path, 0).receipts
        if len(receipts) != chunk.end_seq - chunk.start_seq + 1:
            raise CorruptError(path, 0, f"holds {len(receipts)} receipts, not those that its name says")
        return receipts[stream_seq - chunk.start_seq]

    def first_at(self, files: LabelFiles, hub_ts: int, chunk: ChunkRow | None) -> int:
        """Return the first entry at or after a time, in `chunk` or, if None, the active one; size + 1 if there is none.

        hub_ts never decreases (D-28), so this is a binary search over receipts.
        """
        current = self._chunk_at(files, chunk.start_seq) if chunk else None
        if chunk is not None and current is not None and current.dropped > 1:  # only the heads know the times now
            heads = archive.items(self._fs, files.label, chunk.start_seq, chunk.end_seq, receipts=False)
            return next((item.stream_seq for item in heads if item.hub_ts >= hub_ts), chunk.end_seq + 1)
        low, high = (chunk.start_seq, chunk.end_seq) if chunk else (files.active_start, files.size)
        while low <= high:
            middle = (low + high) // 2
            if Receipt.from_bytes(self.receipt(files, middle)).hub_ts < hub_ts:
                low = middle + 1
            else:
                high = middle - 1
        return low
