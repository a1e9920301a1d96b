"""Verification of the rest of a data directory: limits.json, anchors, and files that no hub writes.

Comparison of files with the bytes derived from the log; a finding names the first byte that differs.
"""

import json
from collections.abc import Container, Iterable
from typing import Final

from veen.core.errors import FormatError, LimitError, MalformedError
from veen.core.limits import Limits
from veen.core.objects.control import AnchorPublish
from veen.io.local import File, Fs
from veen.storage import layout
from veen.storage.anchors import AnchorFile, check_anchors
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


_ROOT_NAMES: Final = {
    layout.IDENTITY,
    layout.IDENTITY_SIG,
    layout.KEY_MAP,
    layout.ROOT,
    layout.CHECKPOINT_BINDING,
    layout.LIMITS,
    layout.ANCHORS,
    layout.LOCK,
    layout.CLOCK,
    layout.INDEX,
    f"{layout.INDEX}-wal",
    f"{layout.INDEX}-shm",
    layout.ATTACHMENT_RECORDS,
    f"{layout.ATTACHMENT_RECORDS}-wal",
    f"{layout.ATTACHMENT_RECORDS}-shm",
    layout.FORK_ORIGIN,
    layout.FORK_ORIGIN_SIG,
    # Directories. Attachments are named by their hash, evidence is no part of the log, an origin is checked by itself.
    *layout.DIRECTORIES,
    layout.ATTACHMENTS,
    layout.EVIDENCE,
    layout.CUT,
    layout.LOCAL,
    layout.OUTER,
    layout.ORIGIN,
    layout.ERASED,
    layout.REPLICA,
    layout.REPLICA_DIR,
    layout.REPLACED,
}


def check_names(fs: Fs, findings: Findings, labels: Container[bytes]) -> None:
    """Check that every file has a name of the layout, and belongs to a label of the log."""
    for name in fs.list(""):
        if name not in _ROOT_NAMES:
            findings.unknown(name)
    for name in fs.list(layout.LOG):
        path = f"{layout.LOG}/{name}"
        if layout.log_file(name) is None and path != layout.CONTROL:
            findings.unknown(path)
    for name in fs.list(layout.JOURNAL):
        if layout.segment_number(name) is None:
            findings.unknown(f"{layout.JOURNAL}/{name}")
    for directory, suffix in ((layout.NODES, "nodes"), (layout.OFFSETS, "loc")):
        for name in fs.list(directory):
            label = layout.label_of_array(name, suffix)
            if label is None or label not in labels:
                findings.unknown(f"{directory}/{name}")


def check_limits_file(fs: Fs, findings: Findings, in_force: Limits | None) -> None:
    """Compare limits.json with `in_force`, the limits that the control journal set last."""
    if not fs.exists(layout.LIMITS):
        return
    try:
        limits = limits_of(read_file(fs, layout.LIMITS))
    except (FormatError, LimitError) as exc:
        findings.error(layout.LIMITS, 0, "limits", str(exc))
        return
    if in_force is not None and limits != in_force:
        what = "not the limits that the control journal set last: they take effect when the hub starts"
        findings.warning(layout.LIMITS, 0, "limits", what)


def check_anchor_file(fs: Fs, findings: Findings, published: Iterable[AnchorPublish]) -> None:
    """Check that the local chain of anchors is intact and has all anchors of the control journal (D-104).

    It is not part of the log. A copy of a running hub may lack its newest entries.
    """
    for broken in check_anchors(fs):
        findings.error(broken.path, broken.offset, "anchor", broken.what)
    anchors = AnchorFile(fs)
    for body in published:
        if body.backend == anchors.name and not anchors.verify(body.mmr_root, body.anchor_ref):
            what = f"no entry is the anchor of entry {body.upto_seq} of label {body.label.hex()}"
            findings.warning(layout.ANCHORS, 0, "anchor", what)


def limits_of(data: bytes) -> Limits:
    """Read limits from bytes that may be damaged; raise FormatError or LimitError, nothing else."""
    try:
        return Limits.from_json(json.loads(data))
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not JSON", "limits") from exc
