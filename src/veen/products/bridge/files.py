"""The directory of one side of a bridge: folders of bundles, and one small state file.

Moves are renames inside one file system, and the state file is replaced as a whole, so a crash leaves either the step
before or the step after.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final

from veen.client.home import PrivateFs
from veen.products.bridge.bundle import MAX_BUNDLE_BYTES, SUFFIX, BridgeError

_STATE: Final = "state.json"
_FORM: Final = 1


def is_bundle_name(name: str) -> bool:
    """Return True for the name of a finished bundle. Names that start with a dot are still being written."""
    return name.endswith(SUFFIX) and not name.startswith(".") and "/" not in name


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderBounds:
    """Limits of a folder that others fill."""

    files: int
    size: int  # bytes

    def has_room(self, folder: Path, size: int) -> bool:
        """Return True if another bundle of `size` bytes fits into a folder."""
        sizes = [path.lstat().st_size for path in folder.iterdir() if is_bundle_name(path.name)]
        return len(sizes) < self.files and sum(sizes) + size <= self.size


INCOMING_BOUNDS: Final = FolderBounds(files=10_000, size=64 << 30)
REJECTED_BOUNDS: Final = FolderBounds(files=1_000, size=4 << 30)


def publish_new(hidden: Path, path: Path) -> Path:
    """Rename a complete file, or give it a free name beside `path`: existing files are never replaced.

    Return the new name. If a file with the same bytes exists, the hidden one is removed instead.
    """
    for number in range(1_000):
        place = path if not number else path.with_name(f"{path.name.removesuffix(SUFFIX)}-{number}{SUFFIX}")
        try:
            os.link(hidden, place, follow_symlinks=False)
        except FileExistsError:
            if not _has_bytes_of(hidden, place):
                continue
        hidden.unlink()
        _sync_dir(place.parent)
        return place
    raise BridgeError(f"{path.parent} has a thousand bundles that call themselves {path.name}. Look who sends them")


def copy_bundle(source: Path, folder: Path, bounds: FolderBounds | None = None) -> Path:
    """Copy a bundle into a folder that others write to, such as a mounted medium: completely, or not at all.

    Links are followed on neither side, nothing is replaced, and the copy is read back. Raise BridgeError on failure.
    """
    place, hidden = folder / source.name, folder / f".{source.name}"
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BUNDLE_BYTES:
                raise BridgeError(f"{source} is no file, or larger than a bundle")
            if _exists(place):
                if _has_bytes_of(source, place):
                    return place
                raise BridgeError(f"{place} is there with other bytes, and is not replaced. Look what it is; remove it")
            if bounds is not None and not bounds.has_room(folder, status.st_size):
                raise BridgeError(f"{folder} is full: it may hold {bounds.files} bundles and {bounds.size >> 30} GiB")
            hidden.unlink(missing_ok=True)  # of a copy that was cut off, or a link that somebody has put there
            digest, flags = sha256(), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(hidden, flags, 0o600), "w+b") as target:
                while piece := file.read(1 << 20):
                    digest.update(piece)
                    target.write(piece)
                target.flush()
                os.fsync(target.fileno())
                if _digest_of(target) != digest.digest():
                    raise BridgeError(f"{hidden} does not read back as it was written: the medium is bad")
    except OSError as exc:
        raise BridgeError(f"{source.name} cannot be copied to {folder}: {exc.strerror}") from exc
    if _exists(place):  # it came meanwhile
        raise BridgeError(f"{place} came while it was copied, and is not replaced. Copy it again")
    hidden.rename(place)
    _sync_dir(folder)
    return place


def _exists(path: Path) -> bool:
    """Return True if a name is taken, also by a dangling link."""
    return os.path.lexists(path)


def _digest_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    digest = sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.digest()


def _has_bytes_of(one: Path, other: Path) -> bool:
    """Return True if two files are regular files with the same bytes; links are not followed."""
    try:
        with (
            os.fdopen(os.open(one, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as left,
            os.fdopen(os.open(other, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as right,
        ):
            states = [os.fstat(file.fileno()) for file in (left, right)]
            if not all(stat.S_ISREG(state.st_mode) for state in states) or states[0].st_size != states[1].st_size:
                return False
            return _digest_of(left) == _digest_of(right)
    except OSError:
        return False


def _sync_dir(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BridgeFiles:
    """Folders below one directory. Used by one process at a time, which `lock` ensures."""

    def __init__(self, root: Path, folders: tuple[str, ...]) -> None:
        self.root = root
        self._fs = PrivateFs(root)
        for folder in folders:
            self._fs.make_dir(folder)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory for this process. Raise StorageError if another process works in it."""
        with self._fs.lock():
            yield

    def path(self, folder: str, name: str = "") -> Path:
        return self.root / folder / name if name else self.root / folder

    def bundles(self, folder: str) -> list[str]:
        """Return the finished bundles of a folder, by name."""
        return sorted(path.name for path in self.path(folder).iterdir() if is_bundle_name(path.name))

    def move(self, name: str, old: str, new: str) -> None:
        """Move a bundle to another folder, under a free name if it is taken; do nothing if a crash came after the
        move.
        """
        if self.path(old, name).exists():
            publish_new(self.path(old, name), self.path(new, name))
            self._fs.sync_dir(old)

    def trim(self, folder: str, bounds: FolderBounds) -> None:
        """Remove the oldest bundles of a folder above its limits; audit records have their hashes."""
        aged = sorted(
            (path.lstat().st_mtime, path) for path in self.path(folder).iterdir() if is_bundle_name(path.name)
        )
        sizes = [path.lstat().st_size for _, path in aged]
        total, count = sum(sizes), len(aged)
        for (_, path), size in zip(aged, sizes, strict=True):
            if count <= bounds.files and total <= bounds.size:
                return
            path.unlink(missing_ok=True)
            total, count = total - size, count - 1

    def remove(self, name: str, folder: str) -> None:
        """Remove a bundle that exists identically elsewhere."""
        self.path(folder, name).unlink(missing_ok=True)
        self._fs.sync_dir(folder)

    @contextlib.contextmanager
    def temporary(self, folder: str, name: str) -> Iterator[IO[bytes]]:
        """Open a file that gets its name by `publish`; a crash leaves at most a file whose name starts with a dot."""
        with self.path(folder, f".{name}").open("w+b") as file:
            yield file

    def publish(self, folder: str, name: str) -> None:
        if self.path(folder, f".{name}").exists():
            self._fs.rename(f"{folder}/.{name}", f"{folder}/{name}")
            self._fs.sync_dir(folder)

    def load(self) -> dict[str, Any]:
        try:
            data = (self.root / _STATE).read_bytes()
        except FileNotFoundError:
            return {}
        try:
            state = json.loads(data)
        except ValueError as exc:
            raise BridgeError(f"{self.root / _STATE} is damaged: {exc}. Restore it from a backup") from exc
        if type(state) is not dict or state.get("form") != _FORM:
            raise BridgeError(f"{self.root / _STATE} is of another release")
        return state

    def save(self, state: dict[str, Any]) -> None:
        self._fs.replace(_STATE, json.dumps({**state, "form": _FORM}, indent=1, sort_keys=True).encode())
