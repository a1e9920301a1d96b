"""Files that only grow, with their newest bytes still in memory.

Chunks, MMR nodes and locations are all filled from the journal (DESIGN §4): their tails need not reach the disk before
a receipt leaves, only before the journal segment with their entries is removed. Until then they wait here, and readers
see file and tail as one. Used from one thread only.
"""

from typing import Final

from veen.core.lru import Lru
from veen.io.descriptors import is_shortage, max_open_files
from veen.io.errors import CorruptError
from veen.io.local import File, Fs

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
