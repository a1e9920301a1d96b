"""Read access to data directories, on this machine or wherever Arrow can reach (s3://, gs://, hdfs://).

Read-only on purpose: the pipeline never writes into a hub's directory. Credentials come from the environment of the
reading process, so a URL that is sent to executors holds none.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from veen.io.errors import PlaceMissing, StorageError
from veen.io.local import File, Fs, OsFs


def open_fs(uri: str) -> Fs:
    """Return the directory at `uri`, a path or a URL."""
    scheme = urlsplit(uri).scheme
    if len(scheme) <= 1:  # none, or the letter of a drive
        return OsFs(Path(uri))
    if scheme == "file":
        return OsFs(Path(urlsplit(uri).path))
    return ArrowFs(uri)


def absolute(uri: str) -> str:
    """Return an absolute path for a task that runs in another directory; a URL unchanged."""
    return str(Path(uri).absolute()) if len(urlsplit(uri).scheme) <= 1 else uri


def open_place(uri: str) -> Fs:
    """Open `uri`; raise PlaceMissing if it does not exist, because a wrong bucket must not look like an empty log."""
    fs = open_fs(uri)
    try:
        there = fs.exists("")
    except OSError as exc:
        raise PlaceMissing(f"{uri}: {_words(exc)}") from exc
    if not there:
        raise PlaceMissing(f"{uri}: the directory or bucket does not exist")
    return fs


class _ArrowFile:
    """A file for reading. A size that a listing returned is not requested again."""

    def __init__(self, opened: Callable[[], Any], size: int | None) -> None:
        self._opened, self._size = opened, size
        self._handle: Any = None if size is not None else opened()

    def read_at(self, offset: int, size: int) -> bytes:
        if self._handle is None:
            self._handle = self._opened()
        data: bytes = self._handle.read_at(size, offset)
        return data

    def size(self) -> int:
        return int(self._handle.size()) if self._size is None else self._size

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()

    def write_at(self, offset: int, data: bytes) -> NoReturn:
        raise _read_only()

    def truncate(self, size: int) -> NoReturn:
        raise _read_only()

    def sync(self) -> NoReturn:
        raise _read_only()


class ArrowFs:
    """A directory behind pyarrow's file systems."""

    def __init__(self, uri: str, arrow: Any = None) -> None:
        # Sizes that a listing told. To ask for each would be a request per chunk before the first byte is read.
        self._sizes: dict[str, int] = {}
        if arrow is None:
            self._fs, self._root = open_arrow_fs(uri)
        else:
            self._fs, self._root = arrow, urlsplit(uri).path

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}".rstrip("/")

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            raise _read_only()
        where = self._path(path)
        return _ArrowFile(lambda: self._fs.open_input_file(where), self._sizes.get(where))

    def read_exposed_mode(self, path: str) -> int | None:
        return None  # it is only read, and private keys are no part of what is read

    def exists(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self._fs.get_file_info(self._path(path)).type != fs.FileType.NotFound)

    def list(self, directory: str) -> list[str]:
        from pyarrow import fs

        entries = self._fs.get_file_info(fs.FileSelector(self._path(directory), allow_not_found=True))
        self._sizes |= {info.path: info.size for info in entries if info.type == fs.FileType.File}
        return sorted(info.base_name for info in entries)

    def make_dir(self, directory: str) -> NoReturn:
        raise _read_only()

    def replace(self, path: str, data: bytes, *, private: bool = False) -> NoReturn:
        raise _read_only()

    def rename(self, old: str, new: str) -> NoReturn:
        raise _read_only()

    def remove(self, path: str) -> NoReturn:
        raise _read_only()

    def sync_dir(self, directory: str) -> NoReturn:
        raise _read_only()

    def whole(self, directories: Sequence[str]) -> None:
        return None

    def free_bytes(self) -> int:
        return 0

    def database(self, path: str) -> sqlite3.Connection:
        raise _read_only()

    def on_commit(self, path: str, connection: sqlite3.Connection) -> NoReturn:
        raise _read_only()

    def peek(self, path: str) -> sqlite3.Connection:
        raise FileNotFoundError(path)  # an index is of no use to the pipeline

    def remove_database(self, path: str) -> NoReturn:
        raise _read_only()

    def lock(self) -> contextlib.AbstractContextManager[None]:
        raise _read_only()


def open_arrow_fs(uri: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it; credentials are those of this process."""
    from pyarrow import fs

    try:
        system, root = fs.FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", uri))  # as Hadoop calls it
    except (OSError, ValueError) as exc:  # pyarrow's errors are of these kinds
        raise PlaceMissing(f"{uri}: {_words(exc)}") from exc
    return system, root


def _words(exc: Exception) -> str:
    """Return the first line: a missing library is searched for in a hundred places, each with its own line."""
    return (str(exc) or type(exc).__name__).splitlines()[0]


def _read_only() -> StorageError:
    return StorageError("the pipeline does not write into a data directory")
