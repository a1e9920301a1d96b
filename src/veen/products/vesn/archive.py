"""Import of a set into an archive, and export of a set into a directory (002 §15, D-117).

    ARCHIVE/set/…         the files of the set, byte for byte
    ARCHIVE/report.json   the verification report of exactly these bytes

The copy is verified, so a source that changes during the import cannot bypass the checks. The archive appears under its
name in one step, by renaming a complete and synced directory beside it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veen.client.errors import LocalError
from veen.core.errors import FormatError
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.files import MAX_SET_BYTES, DirectorySource
from veen.products.vesn.logcheck import Trust
from veen.products.vesn.portability import ATTACHMENTS, FILES, Report, is_attachment, verify_set

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
