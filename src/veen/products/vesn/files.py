"""Sets in directories.

Reads only regular files inside the directory, never through a symbolic link, up to a size limit.
"""

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.lines import MAX_LINE_BYTES
from veen.products.vesn.portability import (
    ATTACHMENTS,
    MAX_ATTACHMENTS,
    FileSum,
    sequence_of,
)

MAX_FILE_BYTES: Final = 8 * 1024**3
MAX_SET_BYTES: Final = 64 * 1024**3
MAX_LINES_BYTES: Final = 16 * 1024**3
_MAX_NAMES: Final = 256  # beside attachments
_PIECE: Final = 1 << 20
# Without O_NONBLOCK, opening a FIFO waits for a writer; with O_NOFOLLOW a symbolic link is an error.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIR_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DirectorySource:
    """A set in a directory. Used as a context manager: it keeps the directory open, so a rename has no effect."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, _DIR_FLAGS)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> Sequence[str]:
        names: list[str] = []
        for name in self._list(self._fd, _MAX_NAMES, "the set"):
            if name == ATTACHMENTS:
                names += self._attachments()
            else:
                names.append(name)
        return sorted(names)

    def read(self, name: str, limit: int) -> bytes:
        data = b"".join(self._pieces(name, limit))
        if len(data) > limit:
            raise Violation(Problem.LIMIT, f"more than {limit} bytes")
        return data

    def items(self, name: str) -> Iterator[bytes]:
        return sequence_of(self._pieces(name, MAX_FILE_BYTES), what=name)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, a megabyte at a time."""
        return self._pieces(name, MAX_FILE_BYTES)

    def digest(self, name: str) -> FileSum:
        digest, size = sha256(), 0
        for piece in self._pieces(name, MAX_FILE_BYTES):
            digest.update(piece)
            size += len(piece)
        return FileSum(size, digest.digest())

    def size(self, name: str) -> int:
        fd = self._open(name)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _attachments(self) -> list[str]:
        fd = self._open_folder()
        try:
            return [f"{ATTACHMENTS}/{name}" for name in self._list(fd, MAX_ATTACHMENTS, ATTACHMENTS)]
        finally:
            os.close(fd)

    def _list(self, fd: int, limit: int, what: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > limit:
                        raise Violation(Problem.LIMIT, f"more than {limit} files in {what}")
        except OSError as exc:
            raise _unreadable(exc) from exc
        return names

    def _open_folder(self) -> int:
        try:
            return os.open(ATTACHMENTS, _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=self._fd)
        except OSError as exc:
            raise Violation(Problem.FILE, f"{ATTACHMENTS} is not a directory: {exc.strerror}") from exc

    def _open(self, name: str) -> int:
        """Open a regular file of the set, by a name from `names`."""
        folder, _, rest = name.rpartition("/")
        if rest in ("", ".", "..") or folder not in ("", ATTACHMENTS):
            raise Violation(Problem.FILE, "it is outside of the set")
        try:
            if not folder:
                fd = os.open(rest, _FILE_FLAGS, dir_fd=self._fd)
            else:
                folder_fd = self._open_folder()
                try:
                    fd = os.open(rest, _FILE_FLAGS, dir_fd=folder_fd)
                finally:
                    os.close(folder_fd)
        except OSError as exc:
            raise _unreadable(exc) from exc
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Violation(Problem.FILE, "it is not a regular file")
        return fd

    def _pieces(self, name: str, limit: int) -> Iterator[bytes]:
        fd = self._open(name)
        try:
            size = os.fstat(fd).st_size
            if size > limit:
                raise Violation(Problem.LIMIT, f"{size} bytes, at most {limit} are read")
            left = limit
            while left >= 0:  # a file may grow while it is read
                piece = os.read(fd, _PIECE)
                if not piece:
                    return
                left -= len(piece)
                yield piece
            raise Violation(Problem.LIMIT, f"more than {limit} bytes")
        except OSError as exc:
            raise _unreadable(exc) from exc
        finally:
            os.close(fd)


class Spool:
    """Records in a private file that nobody else can open, so that the verified bytes are read back."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def write(self, record: bytes) -> None:
        self._file.write(record)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return sequence_of(iter(lambda: self._file.read(_PIECE), b""), what="spool")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is cut, so that its reader refuses it."""
    left = MAX_LINES_BYTES
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            left -= len(line)
            if left < 0:
                raise Violation(Problem.LIMIT, f"more than {MAX_LINES_BYTES} bytes")
            yield line


def _unreadable(exc: OSError) -> Violation:
    """Return the violation of a file that cannot be read; O_NOFOLLOW reports a symbolic link as ELOOP."""
    return Violation(Problem.FILE, f"it cannot be read: {exc.strerror} (links are not followed)")
