"""Comparison of files with the bytes derived from the log; a finding names the first byte that differs."""

from typing import Final

from veen.io.local import File, Fs
from veen.storage.findings import Findings
from veen.storage.scan import read_file

_BLOCK: Final = 1 << 16


def _first_difference(data: bytes, expected: bytes) -> int:
    """Return the first position at which two strings differ; the end of the shorter one if it is a prefix."""
    pairs = enumerate(zip(data, expected, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(data), len(expected)))


def file_size(fs: Fs, path: str) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def compare_file(fs: Fs, findings: Findings, path: str, expected: bytes) -> None:
    """Compare a small file that follows from the entries of a chunk."""
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        findings.error(path, 0, "rebuildable", "the file is missing")
        return
    except OSError as exc:
        findings.error(path, 0, "rebuildable", f"the file cannot be opened: {exc.strerror}")
        return
    if data != expected:
        offset = _first_difference(data, expected)
        findings.error(path, offset, "rebuildable", "not what the entries of the chunk give")


class Compared:
    """A large file that is compared block by block with the bytes that are fed."""

    def __init__(self, fs: Fs, findings: Findings, path: str) -> None:
        self._findings, self._path = findings, path
        self._expected = bytearray()
        self._pos = 0
        self._fault: tuple[int, str] | None = None  # the first difference, reported at the end
        try:
            self._file: File | None = fs.open(path)
        except FileNotFoundError:
            self._file = None

    def feed(self, data: bytes) -> None:
        self._expected += data
        if len(self._expected) >= _BLOCK:
            self._flush()

    def skip_to(self, pos: int) -> None:
        self._flush()
        self._pos = pos

    def _flush(self) -> None:
        expected = bytes(self._expected)
        self._expected.clear()
        if self._fault is None and expected:
            data = self._file.read_at(self._pos, len(expected)) if self._file else b""
            if data != expected:
                what = "not what the entries give" if self._file else "the file is missing"
                self._fault = self._pos + _first_difference(data, expected), what
        self._pos += len(expected)

    def finish(self, *, exact: bool) -> None:
        self._flush()
        if self._fault is not None:
            offset, what = self._fault
            self._findings.error(self._path, offset, "rebuildable", what)
        if self._file is not None:
            if exact and self._fault is None and self._file.size() > self._pos:
                self._findings.late_error(self._path, self._pos, "rebuildable", "bytes behind the last entry")
            self._file.close()
