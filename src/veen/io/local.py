"""The interface between the storage engine and a disk.

Everything the engine does to files goes through `Fs` and `File`, so that tests can put a disk behind it that fails,
tears, reorders and loses writes (`veen.testing.memfs`). Paths are relative to the data directory and use "/". A write
is durable after `File.sync`; a name (created, renamed, removed) after `Fs.sync_dir`.

A data directory may come from a stranger. `OsFs` therefore follows no symbolic link below the root, neither in the last
part of a path nor before it, opens regular files only, and accepts no path that leaves the root. The root itself may be
a link: the caller named it.

Access rights of files with secrets: keys, tokens, passphrases.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from veen.io.descriptors import SPARES, is_short, with_spares
from veen.io.errors import LinkError, LockedError, StorageError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def read_exposed_mode(status: os.stat_result) -> int | None:
    """Return the mode of a file of ours that other users can access; None if it is private.

    The rule is that of ssh for private keys. A file of another owner, such as a mounted Secret that belongs to root and
    is shared with us by its group, is the responsibility of that owner; a pipe has no other readers.
    """
    mode = stat.S_IMODE(status.st_mode)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return mode if is_ours and mode & _OTHERS else None


def mode_of(path: Path) -> int | None:
    """Return `read_exposed_mode` of a path; None if there is no such file."""
    try:
        return read_exposed_mode(path.stat())
    except FileNotFoundError:
        return None


class File(Protocol):
    """One open file. Writes go to explicit offsets, so a retried write changes nothing."""

    def read_at(self, offset: int, size: int) -> bytes: ...
    def write_at(self, offset: int, data: bytes) -> None: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class WholeDisk(Protocol):
    """All files of a data directory at once, for writers of thousands of files."""

    def sync(self) -> None: ...
    def close(self) -> None: ...


class Fs(Protocol):
    """A data directory."""

    def open(self, path: str, *, create: bool = False) -> File: ...
    def exists(self, path: str) -> bool: ...
    def read_exposed_mode(self, path: str) -> int | None: ...
    def list(self, directory: str) -> list[str]: ...
    def make_dir(self, directory: str) -> None: ...
    def replace(self, path: str, data: bytes, *, private: bool = False) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def sync_dir(self, directory: str) -> None: ...
    def whole(self, directories: Sequence[str]) -> WholeDisk | None: ...
    def free_bytes(self) -> int: ...
    def database(self, path: str) -> sqlite3.Connection: ...
    def on_commit(self, path: str, connection: sqlite3.Connection) -> None: ...
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


class _FileSystems:
    """The file systems of some directories, synced by syncfs(2).

    The kernel reports a failed write to each descriptor that was open when it failed, hence they stay open.
    """

    __slots__ = ("_fds",)

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds

    def sync(self) -> None:
        for fd in self._fds:
            if _libc().syncfs(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _has_syncfs() -> bool:
    """Return True if syncfs(2) exists and reports failed writes: on Linux from 5.8 on."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or version is None or (int(version[1]), int(version[2])) < (5, 8):
        return False
    return hasattr(_libc(), "syncfs")


def _open_fd(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Call `os.open`; if descriptors are short, close a spare one for it."""
    return with_spares(os.open, path, flags, mode, dir_fd=dir_fd)


def open_mounted(path: Path) -> File:
    """Open a file that the operator mounted; links are followed, because a Kubernetes Secret consists of them."""
    return _OsFile(_open_fd(path, os.O_RDONLY | os.O_CLOEXEC))


# A path that is only walked through needs no right to list the directory. O_NONBLOCK: opening a pipe must not wait.
_WALK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COPY_BYTES: Final = 1 << 20
TEMPORARY: Final = ".tmp"  # ends the name of a file that is being written; a crash may leave one, and it may be removed
_RANDOM_BYTES: Final = 8
_TEMPORARY_NAME: Final = re.compile(r"(?:\.[0-9a-f]{16})?\.tmp\Z")
_DATABASE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def target_of(name: str) -> str:
    """Return the name of the file that a temporary file was to become; any other name unchanged."""
    return _TEMPORARY_NAME.sub("", name)


class OsFs:
    """A directory of the operating system."""

    file_mode = 0o640
    directory_mode = 0o750

    def __init__(self, root: Path) -> None:
        self.root = root

    # --- the way to a file -------------------------------------------------------------------------------

    def _parts(self, path: str) -> list[str]:
        parts = [part for part in path.split("/") if part]
        if ".." in parts or "." in parts or "\0" in path or path.startswith("/"):
            raise StorageError(f"{self.root}: the path {path!r} leaves the directory")
        return parts

    def _walk(self, parts: list[str]) -> int:
        """Return an open directory; raise LinkError for a link on the way."""
        fd = _open_fd(self.root, _WALK)
        for number, part in enumerate(parts):
            try:
                inner = _open_fd(part, _WALK | os.O_NOFOLLOW, dir_fd=fd)
            except OSError as exc:
                self._refuse_link(fd, part, "/".join(parts[: number + 1]))
                raise self._with_path(exc, "/".join(parts[: number + 1])) from None
            finally:
                os.close(fd)
            fd = inner
        return fd

    @contextlib.contextmanager
    def _inside(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield the open directory of a file, and the name of the file in it."""
        parts = self._parts(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.root))
        fd = self._walk(parts[:-1])
        try:
            yield fd, parts[-1]
        finally:
            os.close(fd)

    def _refuse_link(self, fd: int, name: str, path: str) -> None:
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode):
            raise LinkError(str(self.root / path))

    def _with_path(self, exc: OSError, path: str) -> OSError:
        exc.filename = str(self.root / path)
        return exc

    def _open(self, path: str, flags: int) -> int:
        """Open a regular file, not through a link."""
        with self._inside(path) as (directory, name):
            try:
                fd = _open_fd(name, flags | _FILE, self.file_mode, dir_fd=directory)
            except OSError as exc:
                self._refuse_link(directory, name, path)
                raise self._with_path(exc, path) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StorageError(f"{self.root / path}: not a regular file")
        return fd

    # --- Fs ----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            return _OsFile(self._open(path, os.O_RDWR | (os.O_CREAT if create else 0)))
        except OSError as exc:
            if exc.errno in (errno.EACCES, errno.EROFS) and not create:  # a verifier's copy may be read-only
                return _OsFile(self._open(path, os.O_RDONLY))
            raise

    def exists(self, path: str) -> bool:
        """Return True if the name exists, even as a link, which cannot be opened."""
        if not self._parts(path):
            return self.root.exists()
        try:
            with self._inside(path) as (directory, name):
                os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_exposed_mode(self, path: str) -> int | None:
        """Return the mode of a file of ours that other users can access; None if it is private."""
        return mode_of(self.root / path)

    def list(self, directory: str) -> list[str]:
        try:
            fd = self._walk(self._parts(directory))
        except FileNotFoundError:
            return []
        try:
            listed = _open_fd(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        try:
            return sorted(with_spares(os.listdir, listed))  # names only, and there may be many
        finally:
            os.close(listed)

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the sizes of the regular files of a directory by name, at about the cost of a listing."""
        try:
            fd = self._walk(self._parts(directory))
        except FileNotFoundError:
            return {}
        sizes: dict[str, int] = {}
        try:
            listed = _open_fd(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        try:
            with with_spares(os.scandir, listed) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            sizes[entry.name] = status.st_size
        finally:
            os.close(listed)
        return sizes

    def make_dir(self, directory: str) -> None:
        """Create a directory and its parents; durable on return."""
        self.root.mkdir(mode=self.directory_mode, parents=True, exist_ok=True)
        parts = self._parts(directory)
        for number, part in enumerate(parts):
            fd = self._walk(parts[:number])
            try:
                os.mkdir(part, self.directory_mode, dir_fd=fd)
            except FileExistsError:
                continue
            finally:
                os.close(fd)
            self.sync_dir("/".join(parts[:number]))
        os.close(self._walk(parts))  # a file or a link of this name is no directory

    def replace(self, path: str, data: bytes, *, private: bool = False) -> None:
        """Write `data` atomically: after a crash the file has all of it or its previous content. Durable on return."""
        with self._inside(path) as (directory, name):
            fd, temporary = self._create_new(directory, name, path, 0o600 if private else self.file_mode)
            try:
                try:
                    _OsFile(fd).write_at(0, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        self.sync_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text

    def _create_new(self, directory: int, name: str, path: str, mode: int) -> tuple[int, str]:
        """Create a temporary file for the next content of `name`; return its descriptor and name.

        Another thread may replace the same file at the same time. If both used one temporary name, a file that is still
        being written could replace the other one.
        """
        while True:
            temporary = f"{name}.{secrets.token_hex(_RANDOM_BYTES)}{TEMPORARY}"
            try:
                fd = _open_fd(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=directory)
            except FileExistsError:
                continue
            except OSError as exc:
                raise self._with_path(exc, path) from None
            return fd, temporary

    def rename(self, old: str, new: str) -> None:
        with self._inside(old) as (source, before), self._inside(new) as (target, after):
            try:
                os.rename(before, after, src_dir_fd=source, dst_dir_fd=target)
            except OSError as exc:
                raise self._with_path(exc, old) from None

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._inside(path) as (directory, name):
            os.unlink(name, dir_fd=directory)

    def sync_dir(self, directory: str) -> None:
        walked = self._walk(self._parts(directory))
        try:
            fd = _open_fd(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walked)
        finally:
            os.close(walked)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def whole(self, directories: Sequence[str]) -> WholeDisk | None:
        """Return the file systems of these directories; None if this machine can only sync file by file."""
        if not _has_syncfs():
            return None
        disks: dict[int, int] = {}
        for directory in directories:
            fd = self._walk(self._parts(directory))
            try:
                device = os.fstat(fd).st_dev
                if device not in disks:
                    disks[device] = _open_fd(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
        return _FileSystems(list(disks.values()))

    def free_bytes(self) -> int:
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize

    def bytes_in_use(self) -> int:
        disk = os.statvfs(self.root)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def section(self, directory: str) -> "OsFs":
        """Return a subdirectory as a data directory of its own; raise LinkError if it is a link."""
        with contextlib.suppress(FileNotFoundError):
            os.close(self._walk(self._parts(directory)))
        return OsFs(self.root / directory)

    def _check_database(self, path: str) -> None:
        """Refuse links: SQLite opens by name and follows them, so the names are checked first."""
        with self._inside(path) as (directory, name):
            for suffix in _DATABASE_SUFFIXES:
                self._refuse_link(directory, name + suffix, path + suffix)

    def database(self, path: str) -> sqlite3.Connection:
        self._check_database(path)
        while True:
            try:
                return self._connect(path)
            except sqlite3.OperationalError as exc:
                # SQLite needs three descriptors and does not say that it could not get one.
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or not is_short():
                    raise
                if not SPARES.lend():
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path) from exc

    def _connect(self, path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self.root / path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError:  # not a database, or damaged
            connection.close()
            raise
        return connection

    def on_commit(self, path: str, connection: sqlite3.Connection) -> None:
        """Do nothing: SQLite has made the commit durable."""

    def peek(self, path: str) -> sqlite3.Connection:
        """Open the database as last committed, for reading; neither it nor the files beside it change."""
        self._check_database(path)
        database, log = self.root / path, f"{path}-wal"
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if not self._version(log)[1]:
            return sqlite3.connect(f"{database.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)
        # A hub is running, or crashed. SQLite would write beside the database to read it, so it gets a copy.
        with tempfile.TemporaryDirectory(prefix="veen-") as directory:
            copy = Path(directory) / database.name
            while True:
                before = (self._version(path), self._version(log))
                self._copy_out(path, copy)
                if before[1][1]:
                    self._copy_out(log, copy.with_name(f"{copy.name}-wal"))
                if before == (self._version(path), self._version(log)):
                    break
            connection = sqlite3.connect(copy, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = DELETE").fetchall()  # one open file, which outlives its name
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            except sqlite3.DatabaseError:
                pass  # damaged: reading it raises
        return connection

    def _version(self, path: str) -> tuple[int, int]:
        """Return modification time and size of a file; zeros if it does not exist."""
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            return 0, 0
        try:
            status = os.fstat(fd)
            return status.st_mtime_ns, status.st_size
        finally:
            os.close(fd)

    def _copy_out(self, path: str, target: Path) -> None:
        """Copy a file to a path outside of the directory; a missing file leaves none."""
        target.unlink(missing_ok=True)
        try:
            fd = self._open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        with os.fdopen(fd, "rb") as source, target.open("xb") as copy:
            while piece := source.read(_COPY_BYTES):
                copy.write(piece)

    def remove_database(self, path: str) -> None:
        for suffix in _DATABASE_SUFFIXES:
            self.remove(path + suffix)
        self.sync_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the exclusive right to write; a second writer of one identity would equivocate (D-76)."""
        try:
            fd = self._open("lock", os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise StorageError(f"{self.root}: the directory is not writable: {exc.strerror}") from exc
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
