"""The small door between the storage engine and a disk.

Everything the engine does to files goes through `Fs` and `File`, so that tests can put a disk behind it that
fails, tears, reorders and loses writes (`veen.testing.memfs`). Paths are relative to the data directory and
use "/". A write is durable after `File.sync`; a name (created, renamed, removed) after `Fs.sync_dir`.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from veen.storage.errors import LockedError, StorageError

__all__ = ["File", "Fs", "OsFs"]


class File(Protocol):
    """One open file. Writes go to explicit offsets, so a retried write changes nothing."""

    def read_at(self, offset: int, size: int) -> bytes: ...
    def write_at(self, offset: int, data: bytes) -> None: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Fs(Protocol):
    """A data directory."""

    def open(self, path: str, *, create: bool = False) -> File: ...
    def exists(self, path: str) -> bool: ...
    def list(self, directory: str) -> list[str]: ...
    def make_dir(self, directory: str) -> None: ...
    def replace(self, path: str, data: bytes, *, private: bool = False) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def sync_dir(self, directory: str) -> None: ...
    def free_bytes(self) -> int: ...
    def database(self, path: str) -> sqlite3.Connection: ...
    def saved(self, path: str, connection: sqlite3.Connection) -> None: ...
    def peek(self, path: str) -> sqlite3.Connection: ...
    def remove_database(self, path: str) -> None: ...
    def lock(self) -> contextlib.AbstractContextManager[None]: ...


class _OsFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # pread may return less than asked for, most often at the end of the file
        while size > (have := sum(map(len, parts))) and (more := os.pread(self._fd, size - have, offset + have)):
            parts.append(more)
        return b"".join(parts)

    def write_at(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            offset += written
            view = view[written:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsFs:
    """A directory of the operating system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return _OsFile(os.open(self.root / path, flags, 0o640))
        except OSError as exc:
            if exc.errno in (errno.EACCES, errno.EROFS) and not create:  # a verifier's copy may be read-only
                return _OsFile(os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC))
            raise

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / directory))  # noqa: PTH208 - names only, and there may be many
        except FileNotFoundError:
            return []

    def make_dir(self, directory: str) -> None:
        (self.root / directory).mkdir(mode=0o750, parents=True, exist_ok=True)

    def replace(self, path: str, data: bytes, *, private: bool = False) -> None:
        """All of `data` or what was there before, also after a crash; durable when it returns."""
        temporary = self.root / f"{path}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600 if private else 0o640)
        try:
            file = _OsFile(fd)
            file.write_at(0, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(self.root / path)
        self.sync_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text

    def rename(self, old: str, new: str) -> None:
        (self.root / old).rename(self.root / new)

    def remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def sync_dir(self, directory: str) -> None:
        fd = os.open(self.root / directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def database(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self.root / path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError:  # not a database, or damaged
            connection.close()
            raise
        return connection

    def saved(self, path: str, connection: sqlite3.Connection) -> None:
        """SQLite has made the commit durable by itself."""

    def peek(self, path: str) -> sqlite3.Connection:
        """The database as last committed, for reading; neither it nor anything beside it changes."""
        database = self.root / path
        log = database.with_name(f"{database.name}-wal")
        if not database.exists():
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if not log.exists() or not log.stat().st_size:
            return sqlite3.connect(f"{database.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
        # A hub is running, or crashed. SQLite would write beside the database to read it, so it gets a copy.
        with tempfile.TemporaryDirectory(prefix="veen-") as directory:
            copy = Path(directory) / database.name
            while True:
                before = [(file.stat().st_mtime_ns, file.stat().st_size) for file in (database, log) if file.exists()]
                shutil.copyfile(database, copy)
                if log.exists():
                    shutil.copyfile(log, copy.with_name(log.name))
                after = [(file.stat().st_mtime_ns, file.stat().st_size) for file in (database, log) if file.exists()]
                if before == after:
                    break
            connection = sqlite3.connect(copy, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = DELETE").fetchall()  # one open file, which outlives its name
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            except sqlite3.DatabaseError:
                pass  # damaged: whoever reads it will be told
        return connection

    def remove_database(self, path: str) -> None:
        for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            self.remove(name)
        self.sync_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the exclusive right to write; a second writer of one identity would equivocate (D-76)."""
        try:
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as exc:
            raise StorageError(f"{self.root}: cannot be written: {exc.strerror}") from exc
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
                raise LockedError(str(self.root), holder) from exc
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)
