"""Names and sizes that were read from a file, judged in one place before any of them reaches the disk.

Manifests of tables, portable sets, written states, stored results and reports of audits come from others. A name in
them is relative, stays in the directory of its file, and no link leads out of it. A file is read only up to the size
that its kind can have.
"""

import os
import stat
from pathlib import Path
from typing import Any, Final

from veen.io.errors import StorageError
from veen.io.local import File, Fs, OsFs

_MAX_NAME_BYTES: Final = 1_024


class FileRefused(StorageError):
    """A file names a place outside of its directory, or is none that may be read: a link, a device, or too large."""

    hint = "Nothing was read or changed there. Ask whoever made these files, or make them again from the log."


def check_name(name: Any, *, below: str = "") -> str:
    """The name, if it is relative, has no part that leads elsewhere, and lies in the directory `below`."""
    if type(name) is not str or not 0 < len(name.encode(errors="replace")) <= _MAX_NAME_BYTES:
        raise FileRefused("a file is named by 1 to 1,024 bytes of text")
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise FileRefused(f"{name!r} is no name of a file in this directory")
    if below and (parts[0] != below or len(parts) < 2):
        raise FileRefused(f"{name!r} does not lie in {below}/")
    return name


def check_size(size: Any, at_most: int, what: str) -> int:
    """The size, if it is one that `what` can have."""
    if type(size) is not int or not 0 <= size <= at_most:
        raise FileRefused(f"{what}: {size!r} is no size for it, {at_most} bytes is the most")
    return size


def check_inside(root: Path, name: str) -> Path:
    """The path of a checked name. FileRefused if a link is on the way to it, or if it is no file that can be read."""
    path = root
    parts = check_name(name).split("/")
    for number, part in enumerate(parts, start=1):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return root / name  # nothing is there: whoever opens it says so
        if stat.S_ISLNK(mode):
            raise FileRefused(f"{path}: is a link, and may lead out of the directory")
        if number == len(parts) and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileRefused(f"{path}: is neither a file nor a directory")
    return path


def open_inside(fs: Fs, name: str) -> File:
    """A file of a directory that others have filled, for reading."""
    check_name(name)
    if isinstance(fs, OsFs):
        check_inside(fs.root, name)
    return fs.open(name)


def read_inside(fs: Fs, name: str, at_most: int) -> bytes:
    """The whole file; FileRefused before a byte is read if it is larger than its kind can be."""
    file = open_inside(fs, name)
    try:
        return file.read_at(0, check_size(file.size(), at_most, name))
    finally:
        file.close()


def read_path(path: Path, at_most: int) -> bytes:
    """The whole file that a person or our own code has named: links are followed, devices and large files refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a named pipe must not be waited for
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileRefused(f"{path}: is no file")
        data = file.read(at_most + 1)
    check_size(len(data), at_most, str(path))
    return data
