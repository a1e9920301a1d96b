"""Reading a data directory where it lies: on this machine, or wherever Arrow can reach (s3://, gs://, hdfs://).

Read-only on purpose: the pipeline never writes into a hub's directory.
"""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from veen.storage.errors import StorageError
from veen.storage.fs import File, Fs, OsFs

__all__ = ["ArrowFs", "open_fs"]


def open_fs(uri: str) -> Fs:
    """The directory at `uri`, a path or a URL."""
    scheme = urlsplit(uri).scheme
    if len(scheme) <= 1:  # none, or the letter of a drive
        return OsFs(Path(uri))
    if scheme == "file":
        return OsFs(Path(urlsplit(uri).path))
    return ArrowFs(uri)


class _ArrowFile:
    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def read_at(self, offset: int, size: int) -> bytes:
        data: bytes = self._handle.read_at(size, offset)
        return data

    def size(self) -> int:
        return int(self._handle.size())

    def close(self) -> None:
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
        if arrow is None:
            from pyarrow import fs

            self._fs, self._root = fs.FileSystem.from_uri(uri)
        else:
            self._fs, self._root = arrow, urlsplit(uri).path

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            raise _read_only()
        return _ArrowFile(self._fs.open_input_file(self._path(path)))

    def exists(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self._fs.get_file_info(self._path(path)).type != fs.FileType.NotFound)

    def list(self, directory: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(directory), allow_not_found=True)
        return sorted(info.base_name for info in self._fs.get_file_info(selector))

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

    def free_bytes(self) -> int:
        return 0

    def database(self, path: str) -> sqlite3.Connection:
        raise _read_only()

    def saved(self, path: str, connection: sqlite3.Connection) -> NoReturn:
        raise _read_only()

    def peek(self, path: str) -> sqlite3.Connection:
        raise FileNotFoundError(path)  # an index is of no use to the pipeline

    def remove_database(self, path: str) -> NoReturn:
        raise _read_only()

    def lock(self) -> contextlib.AbstractContextManager[None]:
        raise _read_only()


def _read_only() -> StorageError:
    return StorageError("the pipeline does not write into a data directory")
