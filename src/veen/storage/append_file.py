"""Files that only grow, with their newest bytes still in memory.

Chunks, MMR nodes and locations are all filled from the journal (DESIGN §4): their tails need not reach the
disk before a receipt leaves, only before the journal lets go of the entries. Until then they wait here, and
readers see file and tail as one. Used from one thread only.
"""

from typing import Final

from veen.core.lru import Lru
from veen.fs.descriptors import is_shortage, max_open_files
from veen.fs.errors import CorruptError
from veen.fs.local import File, Fs

_FLUSH_BYTES: Final = 64 * 1024
_KEPT: Final = 32_768


class FileCache:
    """A bounded set of open files; the least recently used is closed first."""

    def __init__(self, fs: Fs, capacity: int | None = None) -> None:
        """Without a `capacity`, as many as the process can afford."""
        self._fs = fs
        capacity = max_open_files() if capacity is None else capacity
        self._open: Lru[str, File] = Lru(capacity, leave=lambda file: file.close())
        self.kept = PieceCache()

    def get(self, path: str, *, create: bool = False) -> File:
        file = self._open.get(path)
        if file is None:
            file = self._opened(path, create)
            self._open.put(path, file)
        return file

    def _opened(self, path: str, create: bool) -> File:
        """The file; if the process has no descriptor left, others of the set are closed for it."""
        while True:
            try:
                return self._fs.open(path, create=create)
            except OSError as exc:
                if not is_shortage(exc) or not self._open:
                    raise
            self._open.shed()

    def forget(self, path: str) -> None:
        """Close a file whose name is about to change or to go."""
        if file := self._open.pop(path):
            file.close()

    def close(self) -> None:
        self._open.clear()


class PieceCache:
    """A cache of small pieces of files that never change. One bound holds for all files; a full cache starts over."""

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
