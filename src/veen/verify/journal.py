"""Verification of the write-ahead journal, and of the point from which a hub would continue: the index.

The journal is read twice: for its entries of each label and the control journal before those are checked, and for its
entries afterwards, as the continuation of the labels.
"""

from collections.abc import Iterator
from typing import Any

from veen.core.objects.control import ControlRecord
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.findings import Findings
from veen.storage.frame import Frame
from veen.storage.index import META, Index, LabelRow
from veen.storage.journal import Placed
from veen.verify.entry import Journaled
from veen.verify.files import file_size


class JournalCheck:
    """Journal and index that belong together. Without a usable index `index` is None, `meta` and `rows` are empty."""

    def __init__(self, fs: Fs, findings: Findings) -> None:
        self._fs, self._findings = fs, findings
        self.index: Index | None = None
        self.meta: dict[str, Any] = {}
        self.rows: dict[bytes, LabelRow] = {}
        self._segments: list[wal.Segment] = []
        self.journaled: dict[bytes, Journaled] = {}
        self.controls: dict[int, tuple[Placed, ControlRecord]] = {}
        self.sizes: dict[bytes, int] = {}  # of each label, as far as index and journal say
        self.is_missing = False  # the journal, or the segment of it from which a hub would go on

    def close(self) -> None:
        wal.close_segments(self._segments)
        self._drop_index()

    def open(self) -> None:
        """Open journal and index; retry until both fit, as a running hub may retire a segment at any moment."""
        while True:
            numbers = wal.segments(self._fs)
            # A first segment that a crash cut off while it began holds nothing.
            run = [] if wal.is_empty(self._fs) else wal.newest_run(numbers)
            try:
                self._segments = wal.open_segments(self._fs, run)
            except FileNotFoundError:
                continue
            self._open_index()
            if not run or self.meta.get("segment", 0) <= run[-1] or wal.segments(self._fs) == numbers:
                break
            wal.close_segments(self._segments)
            self._drop_index()
        for number in numbers if run else ():
            if number not in run:
                self._findings.warning(layout.journal_segment(number), 0, "leftover", "a segment that was retired")

    def _open_index(self) -> None:
        self.index, self.meta, self.rows = None, {}, {}
        try:
            index = Index(self._fs, read_only=True)
        except FileNotFoundError:
            return
        try:
            if fault := index.fault():
                raise CorruptError(layout.INDEX, 0, fault)
            meta = {key: index.meta(key) for key in META}
            kinds = {"limits": str, "control": bytes, "newest": bytes}
            if meta["segment"] is not None and any(type(meta[key]) is not kinds.get(key, int) for key in META):
                raise CorruptError(layout.INDEX, 0, "its cursors are not readable")
            if meta["segment"] is not None:
                index.check_meta()
            rows = {row.label: row for row in index.labels()}
            self.sizes |= {label: max(row.size, self.sizes.get(label, 0)) for label, row in rows.items()}
        except CorruptError as exc:
            self._findings.error(layout.INDEX, 0, "rebuildable", exc.what)
            index.close()
            return
        if meta["segment"] is None:  # no retirement yet
            index.close()
        else:
            self.index, self.meta, self.rows = index, meta, rows

    def _drop_index(self) -> None:
        if self.index is not None:
            self.index.close()
        self.index, self.meta, self.rows = None, {}, {}

    def read(self) -> None:
        """Check the chain of groups, and note their entries and records."""
        segment = self.meta.get("segment")
        oldest = self._segments[0].number if self._segments else None
        newest = self._segments[-1].number if self._segments else None
        if oldest is None or newest is None:
            if segment is not None or self._fs.list(layout.LOG):
                self.is_missing = True
                path = layout.journal_segment(segment or 1)
                self._findings.error(path, 0, "missing", "the journal is missing: its last entries may be lost")
        elif segment is None:
            if oldest > 1 and not self._findings.has(layout.INDEX):
                self._findings.error(layout.INDEX, 0, "rebuildable", "the index is missing")
            self._drop_index()
        elif segment > newest:
            self.is_missing = True
            path = layout.journal_segment(segment)
            self._findings.error(path, 0, "missing", "the segment is missing: its entries may be lost")
        elif segment < oldest:
            self._findings.error(layout.INDEX, 0, "rebuildable", f"older than the journal, which begins at {oldest}")
            self._drop_index()
        try:
            for item in wal.walk(self._segments):
                if isinstance(item, Placed):
                    self._note(item)
                elif item.offset < self._segments[-1].size and item.segment == self._segments[-1].number:
                    what = "a write that was interrupted, or is under way"
                    self._findings.warning(self._segments[-1].path, item.offset, "leftover", what)
        except CorruptError as exc:
            self._findings.error(exc.path, exc.offset, "journal", exc.what)

    def _note(self, placed: Placed) -> None:
        record = placed.record
        retired = placed.segment < self.meta.get("segment", 0)
        if isinstance(record, ControlRecord):
            self.controls[record.seq] = (placed, record)
            return
        row = self.rows.get(record.label)
        if retired != (record.stream_seq <= (row.size if row else 0)) and self.index is not None:
            self._findings.error(layout.INDEX, 0, "rebuildable", "its cursors are not those of its journal segment")
        journaled = self.journaled.setdefault(record.label, Journaled(record.stream_seq))
        if record.stream_seq != journaled.last + 1:
            what = f"entry {journaled.last + 1} of label {record.label.hex()} belongs here, found {record.stream_seq}"
            self._findings.error(placed.path, placed.offset, "journal", what)
            return
        journaled.hashes += record.entry_hash
        self.sizes[record.label] = max(record.stream_seq, self.sizes.get(record.label, 0))

    def entries(self) -> Iterator[tuple[Placed, Frame]]:
        """Yield all entries again, in order, as far as the chain is intact."""
        try:
            for placed in wal.walk(self._segments) if self.journaled else ():
                if isinstance(placed, Placed) and isinstance(placed.record, Frame):
                    yield placed, placed.record
        except CorruptError as exc:
            self._findings.error(exc.path, exc.offset, "journal", exc.what)

    def has_grown(self) -> bool:
        """Return True if a running hub has written since the journal was opened."""
        newest, now = self._segments[-1] if self._segments else None, wal.segments(self._fs)
        same = now[-1:] == ([newest.number] if newest else []) and (
            newest is None or file_size(self._fs, newest.path) == newest.size
        )
        return not same
