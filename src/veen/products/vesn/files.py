"""Sets in directories.

Reads only regular files inside the directory, never through a symbolic link, up to a size limit.

Import of a set into an archive, and export of a set into a directory (002 §15, D-117).

    ARCHIVE/set/…         the files of the set, byte for byte
    ARCHIVE/report.json   the verification report of exactly these bytes

The copy is verified, so a source that changes during the import cannot bypass the checks. The archive appears under its
name in one step, by renaming a complete and synced directory beside it.
"""

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Self

from veen.client.errors import LocalError
from veen.core.errors import FormatError
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.lines import MAX_LINE_BYTES
from veen.products.vesn.logcheck import Trust
from veen.products.vesn.portability import (
    ATTACHMENTS,
    FILES,
    MAX_ATTACHMENTS,
    FileSum,
    Report,
    is_attachment,
    sequence_of,
    verify_set,
)

MAX_FILE_BYTES: Final = 8 * 1024**3
MAX_SET_BYTES: Final = 64 * 1024**3
MAX_LINES_BYTES: Final = 16 * 1024**3
_MAX_NAMES: Final = 256  # beside attachments
_PIECE: Final = 1 << 20
# Without O_NONBLOCK, opening a FIFO waits for a writer; with O_NOFOLLOW a symbolic link is an error.
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIR_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DirectorySource:
    """A set in a directory. Used as a context manager: it keeps the directory open, so a rename has no effect."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, _DIR_FLAGS)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> Sequence[str]:
        names: list[str] = []
        for name in self._list(self._fd, _MAX_NAMES, "the set"):
            if name == ATTACHMENTS:
                names += self._attachments()
            else:
                names.append(name)
        return sorted(names)

    def read(self, name: str, limit: int) -> bytes:
        data = b"".join(self._pieces(name, limit))
        if len(data) > limit:
            raise Violation(Problem.LIMIT, f"more than {limit} bytes")
        return data

    def items(self, name: str) -> Iterator[bytes]:
        return sequence_of(self._pieces(name, MAX_FILE_BYTES), what=name)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, a megabyte at a time."""
        return self._pieces(name, MAX_FILE_BYTES)

    def digest(self, name: str) -> FileSum:
        digest, size = sha256(), 0
        for piece in self._pieces(name, MAX_FILE_BYTES):
            digest.update(piece)
            size += len(piece)
        return FileSum(size, digest.digest())

    def size(self, name: str) -> int:
        fd = self._open(name)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _attachments(self) -> list[str]:
        fd = self._open_folder()
        try:
            return [f"{ATTACHMENTS}/{name}" for name in self._list(fd, MAX_ATTACHMENTS, ATTACHMENTS)]
        finally:
            os.close(fd)

    def _list(self, fd: int, limit: int, what: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    names.append(entry.name)
                    if len(names) > limit:
                        raise Violation(Problem.LIMIT, f"more than {limit} files in {what}")
        except OSError as exc:
            raise _unreadable(exc) from exc
        return names

    def _open_folder(self) -> int:
        try:
            return os.open(ATTACHMENTS, _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=self._fd)
        except OSError as exc:
            raise Violation(Problem.FILE, f"{ATTACHMENTS} is not a directory: {exc.strerror}") from exc

    def _open(self, name: str) -> int:
        """Open a regular file of the set, by a name from `names`."""
        folder, _, rest = name.rpartition("/")
        if rest in ("", ".", "..") or folder not in ("", ATTACHMENTS):
            raise Violation(Problem.FILE, "it is outside of the set")
        try:
            if not folder:
                fd = os.open(rest, _FILE_FLAGS, dir_fd=self._fd)
            else:
                folder_fd = self._open_folder()
                try:
                    fd = os.open(rest, _FILE_FLAGS, dir_fd=folder_fd)
                finally:
                    os.close(folder_fd)
        except OSError as exc:
            raise _unreadable(exc) from exc
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Violation(Problem.FILE, "it is not a regular file")
        return fd

    def _pieces(self, name: str, limit: int) -> Iterator[bytes]:
        fd = self._open(name)
        try:
            size = os.fstat(fd).st_size
            if size > limit:
                raise Violation(Problem.LIMIT, f"{size} bytes, at most {limit} are read")
            left = limit
            while left >= 0:  # a file may grow while it is read
                piece = os.read(fd, _PIECE)
                if not piece:
                    return
                left -= len(piece)
                yield piece
            raise Violation(Problem.LIMIT, f"more than {limit} bytes")
        except OSError as exc:
            raise _unreadable(exc) from exc
        finally:
            os.close(fd)


class Spool:
    """Records in a private file that nobody else can open, so that the verified bytes are read back."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def write(self, record: bytes) -> None:
        self._file.write(record)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        return sequence_of(iter(lambda: self._file.read(_PIECE), b""), what="spool")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is cut, so that its reader refuses it."""
    left = MAX_LINES_BYTES
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            left -= len(line)
            if left < 0:
                raise Violation(Problem.LIMIT, f"more than {MAX_LINES_BYTES} bytes")
            yield line


def _unreadable(exc: OSError) -> Violation:
    """Return the violation of a file that cannot be read; O_NOFOLLOW reports a symbolic link as ELOOP."""
    return Violation(Problem.FILE, f"it cannot be read: {exc.strerror} (links are not followed)")


SET: Final = "set"
REPORT: Final = "report.json"


class ArchiveExists(LocalError, code="E.LOCAL.EXISTS"):
    """The name of the archive is taken by something else."""

    hint = "Choose another directory; an archive is never overwritten."

    def __str__(self) -> str:
        return self.what


class SetRefused(Violation):
    """A set that is not imported; `report` has the reason."""

    def __init__(self, report: Report) -> None:
        finding = report.findings[0] if report.findings else None
        what = str(finding) if finding else "; ".join(report.missing)
        problem = finding.problem if finding else Problem.INCOMPLETE
        super().__init__(problem, what)
        self.args = (report,)
        self.report = report


@dataclass(frozen=True, slots=True)
class Imported:
    report: Report
    existed: bool  # the archive has exactly this set already; nothing was written


def import_set(source: Path, archive: Path, trust: Trust, *, allow_incomplete: bool = False) -> Imported:
    """Copy, verify the copy, keep it with its report; SetRefused leaves nothing behind."""
    archive = archive.absolute()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _staging(archive) as staging:
        copy = staging / SET
        copy.mkdir()
        with DirectorySource(source) as files:
            _copy(files, copy, trust.ignore)
        with DirectorySource(copy) as files:
            report = verify_set(files, trust)
        if report.verdict == "failed" or (report.verdict == "incomplete" and not allow_incomplete):
            raise SetRefused(report)
        if archive.exists():
            if _same_set(archive, report):
                return Imported(report, existed=True)
            raise ArchiveExists(f"{archive} exists and is not an archive of this set")
        document = {"format": 1, "hub_pks": [key.hex() for key in trust.hub_pks], **report.to_json()}
        _write(staging / REPORT, [json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"])
        _sync_directory(staging)
        staging.rename(archive)
        _sync_directory(archive.parent)
        return Imported(report, existed=False)


def export_set(files: Mapping[str, bytes], target: Path) -> None:
    """Write the files of a set (`portability.encode_set`) into a directory that is not there yet."""
    target = target.absolute()
    if target.exists():
        raise ArchiveExists(f"{target} exists already")
    target.parent.mkdir(parents=True, exist_ok=True)
    with _staging(target) as staging:
        for name, data in files.items():
            if name not in FILES and not is_attachment(name):
                raise LocalError(f"no set has a file {name!r}")
            (staging / name).parent.mkdir(exist_ok=True)
            _write(staging / name, [data])
        for directory in (staging / ATTACHMENTS, staging):
            if directory.is_dir():
                _sync_directory(directory)
        staging.rename(target)
        _sync_directory(target.parent)


def _copy(source: DirectorySource, target: Path, ignore: frozenset[str]) -> None:
    """Copy the files that a set may have; refuse other names."""
    total = 0
    for name in source.names():
        if not is_attachment(name) and ((name not in FILES and name not in ignore) or "/" in name):
            raise Violation(Problem.FILE, f"{name[:100]!a}: no set has a file of this name")
        total += source.size(name)
        if total > MAX_SET_BYTES:
            raise Violation(Problem.LIMIT, f"the set has more than {MAX_SET_BYTES} bytes")
        (target / name).parent.mkdir(exist_ok=True)
        _write(target / name, source.pieces(name))
    for directory in (target / ATTACHMENTS, target):
        if directory.is_dir():
            _sync_directory(directory)


def _same_set(archive: Path, report: Report) -> bool:
    """Return True if the archive has exactly these files."""
    try:
        with DirectorySource(archive / SET) as files:
            return {name: files.digest(name) for name in files.names()} == dict(report.files)
    except (OSError, Violation, FormatError):
        return False


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Yield a directory beside `target` that is removed at the end, unless it was renamed.

    Its name is fixed, so the next import removes the remains of a killed one; a lock keeps two imports apart.
    """
    staging = target.with_name(f".{target.name}.partial")
    fd = _lock(staging)
    try:
        for entry in staging.iterdir():  # remains of a killed import
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        yield staging
    finally:
        if staging.exists():
            shutil.rmtree(staging)
        os.close(fd)


def _lock(directory: Path) -> int:
    """Create the directory if it is missing, and lock it for this process."""
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its owner renamed or removed it just now
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if directory.exists() and os.path.samestat(os.fstat(fd), directory.stat()):
                return fd
        except BlockingIOError as exc:
            os.close(fd)
            raise LocalError(f"another process is writing {directory}") from exc
        os.close(fd)  # the lock is on a directory that was renamed or removed in between


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a new file; it is on disk on return. Sets contain secrets: only the owner can read them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
