"""Errors of data directories."""

import errno
import sqlite3
from typing import Final

from veen.core.errors import StatedError, VerifyError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class StorageError(StatedError, code="E.STORAGE"):
    """A failure of the disk or of a data directory; nothing was acknowledged that is not durable."""


class LockedError(StorageError, code="E.LOCKED"):
    """Another process writes to this data directory."""

    def __init__(self, directory: str, holder: str) -> None:
        super(StatedError, self).__init__(directory, holder)
        self.directory, self.holder = directory, holder

    def __str__(self) -> str:
        return f"{self.directory}: in use by another hub ({self.holder or 'unknown process'})"


class LinkError(StorageError, code="E.STORAGE.LINK"):
    """A symbolic link in the place of a file or directory of a data directory; it was not followed."""

    def __init__(self, path: str) -> None:
        super(StatedError, self).__init__(path)
        self.path = path

    def __str__(self) -> str:
        return self.row.message.format(error=self)


class NoSpaceError(StorageError):
    """The disk is full; nothing of the last group counts as written."""

    hint = "Free some space or enlarge the disk; the hub admits messages again as soon as there is room."


class UnsyncedError(NoSpaceError):
    """The disk is full, and a file that was written may not have reached it: it must be written again."""


def is_disk_full(error: BaseException) -> bool:
    """Return True if space ran out: the disk has no fault, and the same operation may succeed later."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in _SQLITE_FULL
    return isinstance(error, NoSpaceError) or (isinstance(error, OSError) and error.errno in _FULL)


class CorruptError(VerifyError):
    """A file of the data directory that differs from what was written: position and details."""

    hint = "Keep the directory as evidence and restore from a replica; `veen hub verify-data DIR` checks all of it."

    def __init__(self, path: str, offset: int, what: str) -> None:
        super(StatedError, self).__init__(path, offset, what)
        self.path, self.offset, self.what = path, offset, what

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset}: {self.what}"


class PlaceMissing(StatedError):
    """A directory or bucket that does not exist or may not be read."""

    hint = "Check the URL, its bucket and the credentials in the environment; docs/spark-cluster.md names them."


class NoConditionalPut(StorageError):
    """A place that cannot serialise two writers: tables are not written there."""

    hint = "Write tables to a directory, or to s3:// or gs:// with veen[lake] or veen[spark], which bring obstore."

    def __init__(self, uri: str) -> None:
        super(StatedError, self).__init__(uri)
        self.uri = uri
        self.what = (
            f"{uri}: this place cannot create a file only if it does not exist, so two writers would damage tables"
        )
