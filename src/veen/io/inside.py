"""Names and sizes that were read from a file, checked in one place before any of them reaches the disk.

Manifests of tables, portable sets, written states, stored results and reports of audits come from others. A name in
them is relative, stays in the directory of its file, and no link leads out of it. A file is read only up to the size
limit of its kind.
"""

import os
import stat
from pathlib import Path
from typing import Any, Final

from veen.io.errors import StorageError
from veen.io.local import File, Fs, OsFs

_MAX_NAME_BYTES: Final = 1_024


class FileRefused(StorageError):
    """A name that leads out of its directory, or a file that is a link, a device or too large."""

    hint = "Nothing was read or changed there. Ask the author of these files, or make them again from the log."


def check_name(name: Any, *, below: str = "") -> str:
    """Return the name; raise FileRefused unless it is relative, stays in the directory, and is below `below`."""
    if type(name) is not str or not 0 < len(name.encode(errors="replace")) <= _MAX_NAME_BYTES:
        raise FileRefused("a file name has 1 to 1,024 bytes of text")
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise FileRefused(f"{name!r} is not a file name inside this directory")
    if below and (parts[0] != below or len(parts) < 2):
        raise FileRefused(f"{name!r} is not inside {below}/")
    return name


def check_size(size: Any, at_most: int, what: str) -> int:
    """Return the size; raise FileRefused if it is above the limit."""
    if type(size) is not int or not 0 <= size <= at_most:
        raise FileRefused(f"{what}: the size {size!r} is not valid, at most {at_most} bytes are allowed")
    return size


def check_inside(root: Path, name: str) -> Path:
    """Return the path of a checked name; raise FileRefused for a link on the way, a device, a pipe or a socket."""
    path = root
    parts = check_name(name).split("/")
    for number, part in enumerate(parts, start=1):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return root / name  # missing: opening it raises
        if stat.S_ISLNK(mode):
            raise FileRefused(f"{path}: is a link; links are not followed here")
        if number == len(parts) and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileRefused(f"{path}: is neither a file nor a directory")
    return path


def open_inside(fs: Fs, name: str) -> File:
    """Open a file of an untrusted directory for reading."""
    check_name(name)
    if isinstance(fs, OsFs):
        check_inside(fs.root, name)
    return fs.open(name)


def read_inside(fs: Fs, name: str, at_most: int) -> bytes:
    """Read a whole file; raise FileRefused, before any byte is read, if it is larger than `at_most`."""
    file = open_inside(fs, name)
    try:
        return file.read_at(0, check_size(file.size(), at_most, name))
    finally:
        file.close()


def read_path(path: Path, at_most: int) -> bytes:
    """Read a whole file that the user or our own code named: links are followed, devices and large files refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe must not be waited for
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileRefused(f"{path}: not a regular file")
        data = file.read(at_most + 1)
    check_size(len(data), at_most, str(path))
    return data
