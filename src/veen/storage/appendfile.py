"""Files that only grow, with their newest bytes still in memory.

Chunks, MMR nodes and locations are all filled from the journal (DESIGN §4): their tails need not reach the
disk before a receipt leaves, only before the journal lets go of the entries. Until then they wait here, and
readers see file and tail as one. Used from one thread only.
"""

from collections import OrderedDict
from typing import Final

from veen.storage.errors import CorruptError
from veen.storage.fs import File, Fs

__all__ = ["AppendFile", "FileCache", "Kept"]

_FLUSH_BYTES: Final = 64 * 1024
_OPEN_FILES: Final = 256
_KEPT: Final = 32_768


class FileCache:
    """A bounded set of open files; the least recently used is closed first."""

    def __init__(self, fs: Fs, capacity: int = _OPEN_FILES) -> None:
        self._fs, self._capacity = fs, capacity
        self._open: OrderedDict[str, File] = OrderedDict()
        self.kept = Kept()

    def get(self, path: str, *, create: bool = False) -> File:
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._fs.open(path, create=create)
        self._open[path] = file
        if len(self._open) > self._capacity:
            self._open.popitem(last=False)[1].close()
        return file

    def forget(self, path: str) -> None:
        """Close a file whose name is about to change or to go."""
        if file := self._open.pop(path, None):
            file.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


class Kept:
    """Small pieces of files that never change, read often. Bounded for all files: when it is full, it starts over."""

    def __init__(self, capacity: int = _KEPT) -> None:
        self._capacity, self._count = capacity, 0
        self._files: dict[str, dict[int, bytes]] = {}

    def of(self, path: str) -> dict[int, bytes]:
        """The pieces of one file, to be read; they stay the same dict for good."""
        return self._files.setdefault(path, {})

    def put(self, path: str, key: int, data: bytes) -> None:
        if self._count >= self._capacity:
            for pieces in self._files.values():
                pieces.clear()
            self._count = 0
        self._files[path][key] = data
        self._count += 1


class AppendFile:
    """One growing file."""

    __slots__ = ("_cache", "_flushed", "_tail", "path", "size")

    def __init__(self, cache: FileCache, path: str, size: int) -> None:
        """`size` is how much of the file counts; what lies behind it is overwritten."""
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
        """Up to `size` bytes from `offset`, across file and tail."""
        if offset >= self._flushed:
            start = offset - self._flushed
            return bytes(self._tail[start : start + size])
        data = self._file().read_at(offset, min(size, self._flushed - offset))
        missing = offset + size - self._flushed
        return data + bytes(self._tail[:missing]) if missing > 0 else data

    def flush(self) -> None:
        """Give the tail to the operating system; `Fs` decides when it is durable."""
        if self._tail:
            self._file().write_at(self._flushed, bytes(self._tail))
            self._flushed += len(self._tail)
            self._tail.clear()

    def _file(self) -> File:
        """The file; a new one only for the first byte, or a lost one would come back as a hole."""
        try:
            return self._cache.get(self.path, create=self._flushed == 0)
        except FileNotFoundError as exc:
            raise CorruptError(self.path, 0, "the file is missing") from exc
