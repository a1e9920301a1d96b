"""A disk in memory that loses data as a real one may.

Writes reach a volatile copy of a file; `sync` makes them durable. Names (created, renamed, removed) are durable after
`sync_dir`. `after_crash` returns the disk as a machine might find it after a power failure: of what was not synced,
each file keeps an arbitrary prefix of its writes, the last one torn, and each name change happened or did not,
independently. Files may so be reordered against each other.

A `Fault` stops the program at one chosen operation: before it (lost), in the middle of it (torn), after it but before
the caller learned of it (done), or with an error from the disk.
"""

import contextlib
import copy
import errno
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from veen.io.errors import LockedError
from veen.storage import layout


class Crash(BaseException):
    """Power failure. Not an Exception: no code may catch it and continue."""


@dataclass(slots=True)
class Fault:
    """Failure at the operation with number `at`, counted from 1."""

    at: int
    kind: Literal["lost", "torn", "done", "error"]
    error: int = errno.EIO


@dataclass(slots=True, eq=False)
class _Inode:
    durable: bytes = b""
    now: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)  # (offset, data), or the size to cut to

    def do(self, op: tuple[int, bytes] | int) -> None:
        _perform(self.now, op)
        self.pending.append(op)

    def sync(self) -> None:
        """Make pending writes durable. What a failed sync dropped stays lost until it is written again."""
        content = bytearray(self.durable)
        for op in self.pending:
            _perform(content, op)
        self.durable = bytes(content)
        self.pending.clear()

    def sync_failed(self) -> None:
        """Drop pending writes as Linux does: readers still see them, and the disk never gets them."""
        self.pending.clear()

    def after_crash(self, rng: random.Random) -> bytes:
        content = bytearray(self.durable)
        count = rng.randint(0, len(self.pending))
        for op in self.pending[:count]:
            _perform(content, op)
        if count < len(self.pending) and not isinstance(op := self.pending[count], int):
            offset, data = op
            _perform(content, (offset, data[: rng.randint(0, len(data))]))
        return bytes(content)


def _perform(content: bytearray, op: tuple[int, bytes] | int) -> None:
    if isinstance(op, int):
        del content[op:]
        content.extend(bytes(op - len(content)))
        return
    offset, data = op
    if not data:
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class _MemFile:
    __slots__ = ("_fs", "_inode")

    def __init__(self, fs: "MemFs", inode: _Inode) -> None:
        self._fs, self._inode = fs, inode

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._inode.now[offset : offset + size])

    def write_at(self, offset: int, data: bytes) -> None:
        with self._fs.operation() as torn:
            self._inode.do((offset, data[: len(data) // 2] if torn else data))

    def truncate(self, size: int) -> None:
        with self._fs.operation():
            self._inode.do(size)

    def size(self) -> int:
        return len(self._inode.now)

    def sync(self) -> None:
        try:
            with self._fs.operation():
                self._inode.sync()
        except OSError:
            self._inode.sync_failed()
            raise

    def close(self) -> None:
        pass


class _MemDisk:
    """All files of a `MemFs`: implements `veen.io.local.WholeDisk`."""

    def __init__(self, fs: "MemFs") -> None:
        self._fs = fs

    def sync(self) -> None:
        for path in self._fs.list_all():
            with contextlib.suppress(FileNotFoundError):
                self._fs.open(path).sync()

    def close(self) -> None:
        pass


class _SharedConnection(sqlite3.Connection):
    """The one connection to a database in memory, which several parts open and close."""

    def close(self) -> None:
        pass


class MemFs:
    """A data directory in memory: implements `veen.io.local.Fs`."""

    full = False  # whether every change is refused for want of room, until this is False again

    def __init__(
        self, files: dict[str, bytes] | None = None, database: bytes = b"", fault: Fault | None = None
    ) -> None:
        self._names: dict[str, _Inode] = {}
        for path, content in (files or {}).items():
            self._names[path] = _Inode(content, bytearray(content))
        self._durable_names = dict(self._names)
        self._database, self._connection = database, None if not database else self._connect(database)
        self.fault = fault
        self.operations = 0
        self.free = 1 << 40
        self._locked = False

    @contextlib.contextmanager
    def operation(self) -> Iterator[bool]:
        """Count one operation on the disk, and inject the fault; yield True if it is to be torn."""
        self.operations += 1
        if self.full:
            raise OSError(errno.ENOSPC, "the disk is full")
        fault = self.fault if self.fault and self.fault.at == self.operations else None
        if fault and fault.kind == "error":
            raise OSError(fault.error, "injected fault")
        if fault and fault.kind == "lost":
            raise Crash
        yield fault is not None and fault.kind == "torn"
        if fault:
            raise Crash

    # --- Fs ----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> _MemFile:
        if path not in self._names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            with self.operation():
                self._names[path] = _Inode()
        return _MemFile(self, self._names[path])

    def exists(self, path: str) -> bool:
        is_database = path == layout.INDEX and bool(self._database)
        return is_database or path in self._names or any(name.startswith(f"{path}/") for name in tuple(self._names))

    def read_exposed_mode(self, path: str) -> int | None:
        return None  # nobody else can reach it

    def list(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        paths = tuple(self._names)  # a copy: other threads of a hub make and remove files meanwhile
        names = (path.removeprefix(prefix) for path in paths if path.startswith(prefix))
        return sorted({name.partition("/")[0] for name in names})

    def list_all(self) -> tuple[str, ...]:
        """Return the paths of all files."""
        return tuple(self._names)

    def make_dir(self, directory: str) -> None:
        """Do nothing: a directory exists as soon as it contains a file."""

    def replace(self, path: str, data: bytes, *, private: bool = False) -> None:
        with self.operation() as torn:
            if not torn:  # a torn replacement leaves what was there before
                self._names[path] = self._durable_names[path] = _Inode(data, bytearray(data))

    def rename(self, old: str, new: str) -> None:
        with self.operation() as torn:
            if not torn:
                self._names[new] = self._names.pop(old)

    def remove(self, path: str) -> None:
        with self.operation() as torn:
            if not torn:
                self._names.pop(path, None)

    def sync_dir(self, directory: str) -> None:
        with self.operation() as torn:
            if torn:
                return
            prefix = f"{directory}/" if directory else ""
            names, durable = dict(self._names), tuple(self._durable_names)  # copies, as in `list`

            def inside(path: str) -> bool:
                return path.startswith(prefix) and "/" not in path.removeprefix(prefix)

            for path in filter(inside, durable):
                self._durable_names.pop(path, None)
            for path in filter(inside, names):
                self._durable_names[path] = names[path]

    def whole(self, directories: Sequence[str]) -> "_MemDisk":
        return _MemDisk(self)

    def free_bytes(self) -> int:
        return self.free

    def database(self, path: str) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect(self._database)
        return self._connection

    @staticmethod
    def _connect(database: bytes) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_SharedConnection
        )
        if database:
            connection.deserialize(database)
        return connection

    def on_commit(self, path: str, connection: sqlite3.Connection) -> None:
        """Make a commit durable. It is atomic: that much is left to SQLite."""
        with self.operation() as torn:
            if not torn:
                self._database = connection.serialize()

    def peek(self, path: str) -> sqlite3.Connection:
        database = self._connection.serialize() if self._connection else self._database
        if not database:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.deserialize(database)
        return connection

    def remove_database(self, path: str) -> None:
        with self.operation() as torn:
            if not torn:
                self._database, self._connection = b"", None

    def database_bytes(self) -> bytes:
        """Return the database as last saved. It is not in `files`, as SQLite itself ensures its atomicity."""
        return self._database

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        if self._locked:
            raise LockedError("memory", "another store")
        self._locked = True
        try:
            yield
        finally:
            self._locked = False

    # --- after the power came back -----------------------------------------------------------------------

    def after_crash(self, rng: random.Random) -> "MemFs":
        """Return the disk as found after a power failure; every choice of a real disk is drawn from `rng`."""
        before, now = self._durable_names, self._names
        inodes = {id(inode): inode for names in (before, now) for _, inode in sorted(names.items())}
        content = {number: inode.after_crash(rng) for number, inode in inodes.items()}
        changed = [
            number
            for number, inode in inodes.items()
            if {path for path in before if before[path] is inode} != {path for path in now if now[path] is inode}
        ]
        happened = {number: rng.random() < 0.5 for number in changed}
        files: dict[str, bytes] = {}
        for names, wanted in ((before, False), (now, True)):  # a new name hides an old one
            for path, inode in names.items():
                if happened.get(id(inode), wanted) == wanted:
                    files[path] = content[id(inode)]
        return MemFs(files, self._database)

    def after_exit(self) -> "MemFs":
        """Return the disk as the next process of the same machine finds it: what was not synced is still readable."""
        disk = MemFs(database=self._database)
        disk._names, disk._durable_names = copy.deepcopy((self._names, self._durable_names))
        return disk

    def files(self) -> dict[str, bytes]:
        """Return the files on the disk now, as a reader sees them."""
        return {path: bytes(inode.now) for path, inode in self._names.items()}
