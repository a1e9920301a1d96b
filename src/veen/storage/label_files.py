"""The files of one label: its chunks, its MMR nodes, its locations, and what a seal leaves behind (spec §4.8).

All of it is filled from durable journal entries and synced later, together; nothing here is written before the
entry is safe in the journal. Chunk boundaries, names and contents depend on the log and the limits alone.

Files that only grow, with their newest bytes still in memory.

Chunks, MMR nodes and locations are all filled from the journal (DESIGN §4): their tails need not reach the disk before
a receipt leaves, only before the journal segment with their entries is removed. Until then they wait here, and readers
see file and tail as one. Used from one thread only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from veen.core import cbor
from veen.core.limits import Limits
from veen.core.lru import Lru
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tree.mmr import Mmr, node_count, node_position, root_of
from veen.io.descriptors import is_shortage, max_open_files
from veen.io.errors import CorruptError
from veen.io.local import File, Fs
from veen.storage import layout
from veen.storage.index import ChunkRow, LabelRow
from veen.storage.state import Admitted

_FLUSH_BYTES: Final = 64 * 1024
_KEPT: Final = 32_768
MOST_HELD: Final = 64  # descriptors of dirty files that nothing else needs; for more the whole disk is synced


class OpenFile:
    """One descriptor of a file.

    `users` counts its owners: the set of open files, and the retirement that will sync it.
    """

    __slots__ = ("file", "is_dirty", "path", "users")

    def __init__(self, path: str, file: File) -> None:
        self.path, self.file = path, file
        self.is_dirty = False  # written to since it was last given to a retirement
        self.users = 1

    def release(self) -> None:
        """Drop one owner; close the file after the last one."""
        self.users -= 1
        if not self.users:
            self.file.close()


class FileCache:
    """A bounded set of open files; the least recently used is closed first.

    Linux reports an error of background writeback to the descriptors that were open at that time, and to nobody if
    there were none and the inode has left memory. A file that was written to therefore keeps its descriptor until it is
    synced through that one. If there are too many, the retirement syncs the whole disk, whose descriptor is always
    open; without syncfs, a file is synced before it is closed.
    """

    def __init__(
        self, fs: Fs, capacity: int | None = None, *, most_held: int | None = None, has_whole_disk: bool = False
    ) -> None:
        """Open as many files as the process can afford, unless `capacity` and `most_held` are given."""
        self._fs = fs
        if most_held is None:  # as many again may be on their way to the disk
            most_held = min(MOST_HELD, max(max_open_files() // 4, 12))
        capacity = max_open_files() if capacity is None else capacity
        self._open: Lru[str, OpenFile] = Lru(capacity, leave=self._leave)
        self._most_held, self._has_whole_disk = most_held, has_whole_disk
        self._held: list[OpenFile] = []  # dirty, and not in the set any more
        self._is_whole = False  # a dirty file was closed: the whole disk must be synced
        self.kept = PieceCache()

    def get(self, path: str, *, create: bool = False) -> File:
        entry = self._open.get(path)
        if entry is None:
            entry = OpenFile(path, self._open_file(path, create))
            self._open.put(path, entry)
        return entry.file

    def write(self, path: str, offset: int, data: bytes, *, create: bool = False) -> None:
        """Write to a file, and keep its descriptor until it is synced."""
        file = self.get(path, create=create)
        if (entry := self._open.peek(path)) is not None:
            entry.is_dirty = True
        file.write_at(offset, data)

    def hold(self, path: str, file: File) -> None:
        """Take over a descriptor that was written to, and keep it until it is synced."""
        entry = OpenFile(path, file)
        entry.is_dirty = True
        self._leave(entry)

    def _open_file(self, path: str, create: bool) -> File:
        """Open a file; if the process has no descriptor left, close others of the set for it."""
        while True:
            try:
                return self._fs.open(path, create=create)
            except OSError as exc:
                if not is_shortage(exc) or not (self._open or self._held):
                    raise
            if self._held:
                self._give_up(self._held.pop())
            else:
                self._open.shed()

    def _leave(self, entry: OpenFile) -> None:
        if not entry.is_dirty:
            entry.release()
        elif len(self._held) < self._most_held:
            self._held.append(entry)
        else:
            self._give_up(entry)

    def _give_up(self, entry: OpenFile) -> None:
        """Close a dirty file; sync it first unless the whole disk will be synced."""
        try:
            if self._has_whole_disk:
                self._is_whole = True
            else:
                entry.file.sync()
        finally:
            entry.release()

    def take_dirty(self) -> tuple[list[OpenFile], bool]:
        """Return the descriptors to sync, to be released afterwards, and True if the whole disk must be synced."""
        dirty = [entry for entry in self._open.values() if entry.is_dirty]
        if self._has_whole_disk and len(dirty) + len(self._held) > self._most_held:
            self._is_whole = True
        entries, whole = self._held, self._is_whole
        self._held, self._is_whole = [], False
        for entry in dirty:
            entry.is_dirty = False
            entry.users += 1
            entries.append(entry)
        if whole:
            for entry in entries:
                entry.release()
            entries = []
        return entries, whole

    def forget(self, path: str) -> None:
        """Drop a file before its name changes or is removed."""
        if entry := self._open.pop(path):
            self._leave(entry)

    def close(self) -> None:
        for entry in self._held:
            entry.release()
        self._held = []
        for entry in self._open.values():
            entry.is_dirty = False
        self._open.clear()


class PieceCache:
    """A cache of small pieces of immutable files. One bound covers all files; a full cache is cleared."""

    def __init__(self, capacity: int = _KEPT) -> None:
        self._capacity = capacity
        self._pieces: dict[tuple[str, int], bytes] = {}
        self.get = self._pieces.get  # by path and key

    def put(self, path: str, key: int, data: bytes) -> None:
        if len(self._pieces) >= self._capacity:
            self._pieces.clear()
        self._pieces[path, key] = data


class AppendFile:
    """One growing file."""

    __slots__ = ("_cache", "_flushed", "_tail", "path", "size")

    def __init__(self, cache: FileCache, path: str, size: int) -> None:
        """Open at `size`, the valid length of the file; bytes after it are overwritten."""
        self.path = path
        self._cache = cache
        self.size = self._flushed = size
        self._tail = bytearray()

    def append(self, data: bytes) -> None:
        tail = self._tail
        tail += data
        self.size += len(data)
        if len(tail) >= _FLUSH_BYTES:
            self.flush()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, across file and tail."""
        if offset >= self._flushed:
            start = offset - self._flushed
            return bytes(self._tail[start : start + size])
        data = self._file().read_at(offset, min(size, self._flushed - offset))
        missing = offset + size - self._flushed
        return data + bytes(self._tail[:missing]) if missing > 0 else data

    def flush(self) -> None:
        """Write the tail to the operating system; the retirement makes it durable."""
        if self._tail:
            self._file()
            self._cache.write(self.path, self._flushed, bytes(self._tail), create=self._flushed == 0)
            self._flushed += len(self._tail)
            self._tail.clear()

    def _file(self) -> File:
        """Return the file. It is created only for the first byte, because a lost file would come back as a hole."""
        try:
            return self._cache.get(self.path, create=self._flushed == 0)
        except FileNotFoundError as exc:
            raise CorruptError(self.path, 0, "the file is missing") from exc


_LOCATION: Final = Struct(">QII")  # start_seq of the chunk, offset in it, length of the frame
LOCATION_BYTES: Final = _LOCATION.size
HASH_BYTES: Final = 32
_KEPT_HEIGHT: Final = 10  # of all nodes, one in a thousand

# (row of the label, upto_seq, mmr_root, hub_ts of the last entry) -> signed checkpoint
Sealer = Callable[["LabelFiles", int, bytes, int], Checkpoint]


class Location(NamedTuple):
    """Position of an entry."""

    start_seq: int
    offset: int
    length: int

    def to_bytes(self) -> bytes:
        return _LOCATION.pack(self.start_seq, self.offset, self.length)


class LabelHead(NamedTuple):
    """Head of a label, for lists of labels, without its files."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    size: int
    last_ts: int
    peaks: tuple[bytes, ...]

    @classmethod
    def of_row(cls, row: LabelRow) -> "LabelHead":
        """Return the head of a label from its row in the index."""
        return cls(row.label, row.epoch, row.stream_id, row.size, row.last_ts, split_hashes(row.peaks))

    def root(self) -> bytes:
        return root_of(self.peaks)


def split_hashes(data: bytes) -> tuple[bytes, ...]:
    return tuple(data[pos : pos + HASH_BYTES] for pos in range(0, len(data), HASH_BYTES))


def summary_bytes(label: bytes, start: int, end: int, root: bytes, total: int, hashes_root: bytes) -> bytes:
    """Return a chunk summary (spec §4.8.3, D-71)."""
    return cbor.encode([label, start, end, root, end - start + 1, total, hashes_root])


def index_entry(label: bytes, start: int, end: int, root: bytes) -> bytes:
    """Return one entry of the checkpoint index: key and value, without the head of the map (D-71)."""
    peaks_ref = layout.peaks(label, end).removeprefix(f"{layout.LOG}/")
    return cbor.uint(end) + cbor.encode([root, [start, end], peaks_ref])


class LabelFiles:
    """The durable files of one label, as far as its entries have been applied."""

    def __init__(self, fs: Fs, cache: FileCache, row: LabelRow, renamed: dict[str, str]) -> None:
        self._fs, self._cache, self._renamed = fs, cache, renamed
        self.row, self.label, self.epoch, self.stream_id = row.row, row.label, row.epoch, row.stream_id
        self.size, self.last_ts = row.size, row.last_ts
        # Not an Mmr: the sequencer's tree is ahead by the groups on their way to the disk. These are the peaks of the
        # applied entries, updated from the nodes that each admission created.
        self._peaks = list(reversed(split_hashes(row.peaks)))  # the smallest tree last, as in Mmr
        self.active_start, self.active_first_ts = row.active_start, row.active_first_ts
        self._max_bytes, self._max_entries = row.active_max_bytes, row.active_max_entries
        in_active = row.size - row.active_start + 1
        self._entry_hashes = Mmr(in_active, split_hashes(row.active_hash_peaks))
        self._active = AppendFile(cache, layout.active(row.label, row.active_start), row.active_bytes)
        self._nodes = AppendFile(cache, layout.nodes(row.label), node_count(row.size) * HASH_BYTES)
        self._locations = AppendFile(cache, layout.locations(row.label), row.size * LOCATION_BYTES)
        self._checkpoints, self._checkpoints_bytes = row.checkpoints, row.checkpoints_bytes

    @classmethod
    def first_row(cls, row: int, label: bytes, epoch: int, stream_id: bytes | None, limits: Limits) -> LabelRow:
        """Return the row of a label that has no entries yet."""
        return LabelRow(
            row=row,
            label=label,
            epoch=epoch,
            stream_id=stream_id,
            size=0,
            peaks=b"",
            last_ts=0,
            active_start=1,
            active_bytes=0,
            active_first_ts=0,
            active_hash_peaks=b"",
            active_max_bytes=limits.max_chunk_bytes,
            active_max_entries=limits.max_checkpoint_interval,
            checkpoints=0,
            checkpoints_bytes=0,
        )

    def to_row(self) -> LabelRow:
        return LabelRow(
            row=self.row,
            label=self.label,
            epoch=self.epoch,
            stream_id=self.stream_id,
            size=self.size,
            peaks=b"".join(self.peaks()),
            last_ts=self.last_ts,
            active_start=self.active_start,
            active_bytes=self._active.size,
            active_first_ts=self.active_first_ts,
            active_hash_peaks=b"".join(self._entry_hashes.peaks()),
            active_max_bytes=self._max_bytes,
            active_max_entries=self._max_entries,
            checkpoints=self._checkpoints,
            checkpoints_bytes=self._checkpoints_bytes,
        )

    def peaks(self) -> tuple[bytes, ...]:
        return tuple(reversed(self._peaks))

    def root(self) -> bytes:
        return root_of(self.peaks())

    def head(self) -> LabelHead:
        return LabelHead(self.label, self.epoch, self.stream_id, self.size, self.last_ts, self.peaks())

    # --- writing ---------------------------------------------------------------------------------------

    def append(
        self, admitted: Admitted, data: bytes, entry_hash: bytes, limits: Limits, seal: Sealer
    ) -> Sequence[ChunkRow]:
        """Add one framed entry; return the chunks that this sealed (D-70)."""
        sealed: Sequence[ChunkRow] = ()
        nodes, length = admitted.nodes, len(data)
        # Boundaries depend on the log and on the limits of the moment when the chunk began (D-70, D-75), never on time
        # or load: recovery, rebuild and every replica must seal the same chunks.
        if self._active.size + length > self._max_bytes:
            sealed = [self._seal(limits, seal)]
        if self.size < self.active_start:
            self.active_first_ts = admitted.hub_ts
        self._locations.append(_LOCATION.pack(self.active_start, self._active.size, length))
        self._active.append(data)
        self._entry_hashes.append(entry_hash)
        if len(nodes) == 1:
            self._nodes.append(nodes[0])
        else:
            self._nodes.append(b"".join(nodes))
            del self._peaks[1 - len(nodes) :]  # as many peaks as the new leaf joined are gone
        self._peaks.append(nodes[-1])
        self.size, self.last_ts = admitted.stream_seq, admitted.hub_ts
        if self.size - self.active_start + 1 >= self._max_entries:
            sealed = [*sealed, self._seal(limits, seal)]
        return sealed

    def _seal(self, limits: Limits, seal: Sealer) -> ChunkRow:
        """Close the active chunk and write summary, peaks, checkpoint and their index entry."""
        start, end, root = self.active_start, self.size, self.root()
        hashes_root = self._entry_hashes.root()
        total = self._active.size
        self._active.flush()
        self._cache.forget(self._active.path)
        sealed = layout.chunk(self.label, start, end)
        self._renamed[self._active.path] = sealed  # first: a helper thread may be looking for the old name
        self._fs.rename(self._active.path, sealed)
        # None of these files is synced here: the journal still has the entries, and the next retirement syncs them all.
        summary = summary_bytes(self.label, start, end, root, total, hashes_root)
        self._write(layout.summary(self.label, start, end), summary)
        self._write(layout.peaks(self.label, end), cbor.encode(list(self.peaks())))
        checkpoint = seal(self, end, root, self.last_ts)
        self._write(layout.checkpoint(self.label, end), checkpoint.to_bytes())
        self._index_checkpoint(start, end, root)
        first_ts = self.active_first_ts
        self.active_start = end + 1
        self._active = AppendFile(self._cache, layout.active(self.label, end + 1), 0)
        self._entry_hashes = Mmr()
        self._max_bytes, self._max_entries = limits.max_chunk_bytes, limits.max_checkpoint_interval
        return ChunkRow(self.row, start, end, self.epoch, total, first_ts, self.last_ts, root, hashes_root)

    def _write(self, path: str, data: bytes) -> None:
        """Write a whole small file; a retirement syncs it with all others, and recovery writes it again until then."""
        file = self._fs.open(path, create=True)
        try:
            file.write_at(0, data)
            file.truncate(len(data))
        finally:
            self._cache.hold(path, file)

    def _index_checkpoint(self, start: int, end: int, root: bytes) -> None:
        """Extend the checkpoint index, a CBOR map that grows at its end (D-71).

        Rewriting all of it at each seal would make seals more expensive as the log grows. Otherwise only the count in
        its head changes. When the head gets longer, which happens only a few times, the whole file is replaced. The
        head is read from the file, as recovery may start from a point before such a replacement.
        """
        path = layout.checkpoint_index(self.label)
        entry = index_entry(self.label, start, end, root)
        head = map_head(self._checkpoints + 1)
        file = self._fs.open(path, create=True)
        try:
            width = map_head_bytes(file.read_at(0, 1)) if self._checkpoints else len(head)
            if width == len(head):
                file.write_at(width + self._checkpoints_bytes, entry)
                file.write_at(0, head)
            else:
                self._fs.replace(path, head + file.read_at(width, self._checkpoints_bytes) + entry)
        finally:
            self._cache.hold(path, file)
        self._checkpoints += 1
        self._checkpoints_bytes += len(entry)

    def flush(self) -> None:
        self._active.flush()
        self._nodes.flush()
        self._locations.flush()

    def paths(self) -> list[str]:
        """Return the growing files, which must be synced before the journal segment is removed."""
        names = [self._nodes.path, self._locations.path]
        if self._active.size:
            names.append(self._active.path)
        if self._checkpoints:
            names.append(layout.checkpoint_index(self.label))
        return names

    def seal_forecast(self) -> "SealForecast":
        """Return a forecast of the entries that will seal chunks."""
        return SealForecast(self.active_start, self.size, self._active.size, self._max_bytes, self._max_entries)

    # --- reading ---------------------------------------------------------------------------------------

    def locate(self, first_seq: int, last_seq: int) -> list[Location]:
        """Return the locations of a run of entries, by arithmetic."""
        data = self._locations.read((first_seq - 1) * LOCATION_BYTES, (last_seq - first_seq + 1) * LOCATION_BYTES)
        return [Location(*fields) for fields in _LOCATION.iter_unpack(data)]

    def node_at(self, height: int, index: int) -> bytes:
        """Return a node of the tree. High nodes are few and every proof needs some of them, so they stay in memory."""
        key = index << 6 | height
        node = self._cache.kept.get((self._nodes.path, key)) if height >= _KEPT_HEIGHT else None
        if node is None:
            node = self._nodes.read(node_position(height, index) * HASH_BYTES, HASH_BYTES)
            if height >= _KEPT_HEIGHT:
                self._cache.kept.put(self._nodes.path, key, node)
        return node

    def possible_ends(self) -> range:
        """Return the possible last entries of the active chunk, given the durable ones."""
        return range(max(self.size, self.active_start), self.active_start + self._max_entries)

    def read_active(self, offset: int, size: int) -> bytes:
        return self._active.read(offset, size)


@dataclass(slots=True)
class SealForecast:
    """Forecast of the seals by `LabelFiles.append`: a replica, which has no key, fetches the checkpoints before."""

    active_start: int
    size: int
    active_bytes: int
    max_bytes: int
    max_entries: int

    @classmethod
    def of_new_label(cls, limits: Limits) -> "SealForecast":
        return cls(1, 0, 0, limits.max_chunk_bytes, limits.max_checkpoint_interval)

    def add(self, frame_bytes: int, limits: Limits) -> list[int]:
        """Add one more entry; return the ends of the chunks that it seals."""
        ends = []
        if self.active_bytes + frame_bytes > self.max_bytes:
            ends.append(self._seal(limits))
        self.size += 1
        self.active_bytes += frame_bytes
        if self.size - self.active_start + 1 >= self.max_entries:
            ends.append(self._seal(limits))
        return ends

    def _seal(self, limits: Limits) -> int:
        self.active_start, self.active_bytes = self.size + 1, 0
        self.max_bytes, self.max_entries = limits.max_chunk_bytes, limits.max_checkpoint_interval
        return self.size


def map_head(count: int) -> bytes:
    head = cbor.uint(count)
    return bytes((head[0] | 0xA0,)) + head[1:]


def map_head_bytes(first: bytes) -> int:
    """Return the length of the head of a map, by its first byte."""
    info = first[0] & 0x1F
    return 1 if info < 24 else 1 + (1 << (info - 24))
