"""Files of a spool that two parties share: written atomically, read without trust in the directory.

Any party may put anything into the directory: links, pipes, directories, files of any size. A file is opened without
following links and without blocking, and must be a regular one within its limit.
"""

import contextlib
import os
import stat
from pathlib import Path

_PRIVATE, _GROUP = 0o600, 0o660


class NotPlainFile(OSError):
    """A link, a pipe, a directory or a device where a file was expected."""


class TooLargeFile(OSError):
    """A file above its size limit."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def file_mode(directory: Path) -> int:
    """Return the mode of new files: private, or also for the group if the group can write to the directory."""
    return _GROUP if directory.stat().st_mode & stat.S_IWGRP else _PRIVATE


def read_plain(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file; raise OSError if it is missing, NotPlainFile, or TooLargeFile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise NotPlainFile(exc.errno, exc.strerror) from exc
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainFile(f"{path.name}: not a regular file")
        if status.st_size > max_bytes:
            raise TooLargeFile(status.st_size)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:  # it grew meanwhile
        raise TooLargeFile(len(data))
    return data


def put_file(path: Path, data: bytes, mode: int) -> None:
    """Write beside `path`, sync, then rename: nobody reads half a file. An existing file is replaced."""
    part = path.with_name(f".{path.name}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(part, flags, mode)
    except FileExistsError:  # of a writer that was killed
        part.unlink()
        descriptor = os.open(part, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask says
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
