"""Reading entries: by position, by range, by time. Positioning is O(1) or O(log n), output O(k) (spec §3.4).

Readers see applied entries only, so they never see one that a crash could take back.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

from veen.core import cbor
from veen.core.receipt import Receipt
from veen.storage import archive, frame, layout
from veen.storage.appendfile import FileCache
from veen.storage.errors import CorruptError, StorageError
from veen.storage.frame import Frame
from veen.storage.fs import Fs
from veen.storage.index import ChunkRow
from veen.storage.labelfiles import LabelFiles, Location

__all__ = ["PrunedError", "Reader", "inflate"]

_ZLIB_FIRST: Final = 0x78  # a frame begins with 0x01, so a compressed chunk is told by its first byte
_INFLATED_CHUNKS: Final = 4


class PrunedError(StorageError):
    """Erased under the retention policy: the payload, and later the receipt; proofs are still there (D-74)."""

    hint = "Ask for the receipt or the proof instead; the payload may exist in a replica or an export."

    def __init__(self, stream_seq: int) -> None:
        super(StorageError, self).__init__(stream_seq)
        self.stream_seq = stream_seq

    def __str__(self) -> str:
        return f"entry {self.stream_seq}: erased by the retention policy"


def inflate(data: bytes, maximum: int, path: str) -> bytes:
    """A chunk file as the frames it stands for; any decoding error voids the whole chunk (spec §4.8.4)."""
    if not data or data[0] != _ZLIB_FIRST:
        return data
    try:
        decoder = zlib.decompressobj()
        plain = decoder.decompress(data, maximum)
    except zlib.error as exc:
        raise CorruptError(path, 0, f"the compressed chunk cannot be decoded: {exc}") from exc
    if not decoder.eof or decoder.unused_data:
        raise CorruptError(path, 0, "the compressed chunk is cut short, too long, or followed by other bytes")
    return plain


class Reader:
    """Reads for one store. `chunk_at` finds the sealed chunk of an entry."""

    def __init__(self, fs: Fs, cache: FileCache, chunk_at: Callable[[LabelFiles, int], ChunkRow | None]) -> None:
        self._fs, self._cache, self._chunk_at = fs, cache, chunk_at
        self._inflated: OrderedDict[str, bytes] = OrderedDict()

    def frames(self, files: LabelFiles, first_seq: int, last_seq: int, max_bytes: int) -> list[Frame]:
        """The entries first_seq … last_seq, fewer if they exceed `max_bytes`, but at least one."""
        places = files.locate(first_seq, min(last_seq, files.size))
        taken, total = 0, 0
        for place in places:
            total += place.length
            if taken and total > max_bytes:
                break
            taken += 1
        found: list[Frame] = []
        for _, run in groupby(places[:taken], key=lambda place: place.start_seq):
            found += self._run(files, first_seq + len(found), list(run))
        return found

    def _run(self, files: LabelFiles, first_seq: int, places: Sequence[Location]) -> list[Frame]:
        """Entries that lie side by side in one chunk, by one read."""
        start = places[0].offset
        end = places[-1].offset + places[-1].length
        path, data = self._bytes(files, first_seq, start, end - start)
        frames = [found for _, found in frame.frames(data, path=path, base=start)]
        if [found.stream_seq for found in frames] != list(range(first_seq, first_seq + len(places))):
            raise CorruptError(path, start, f"entries {first_seq} and following are not where they should be")
        return frames

    def _bytes(self, files: LabelFiles, stream_seq: int, offset: int, size: int) -> tuple[str, bytes]:
        chunk = self._chunk_at(files, stream_seq)
        if chunk is None:
            return layout.active(files.label, files.active_start), files.read_active(offset, size)
        if chunk.dropped:
            raise PrunedError(stream_seq)
        path = layout.chunk(files.label, chunk.start_seq, chunk.end_seq)
        if (plain := self._inflated.get(path)) is not None:
            self._inflated.move_to_end(path)
            return path, plain[offset : offset + size]
        file = self._cache.get(path)
        if file.read_at(0, 1) != bytes((_ZLIB_FIRST,)):
            return path, file.read_at(offset, size)
        plain = inflate(file.read_at(0, file.size()), chunk.total_bytes, path)
        self._inflated[path] = plain
        if len(self._inflated) > _INFLATED_CHUNKS:
            self._inflated.popitem(last=False)
        return path, plain[offset : offset + size]

    def receipt(self, files: LabelFiles, stream_seq: int) -> bytes:
        """One RECEIPT, also when its payload is gone."""
        chunk = self._chunk_at(files, stream_seq)
        if chunk is None or not chunk.dropped:
            return self.frames(files, stream_seq, stream_seq, 0)[0].receipt
        if chunk.dropped > 1:
            raise PrunedError(stream_seq)
        path = layout.receipts_archive(files.label, chunk.start_seq, chunk.end_seq)
        file = self._fs.open(path)
        try:
            archived = list(cbor.sequence(file.read_at(0, file.size()), what=path))
        finally:
            file.close()
        return archived[stream_seq - chunk.start_seq]

    def first_at(self, files: LabelFiles, hub_ts: int, chunk: ChunkRow | None) -> int:
        """The first entry at or after a time, inside `chunk` or, if None, the active one; size + 1 if there is none.

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
