"""Verification of one label: every entry, every artifact of every seal, and the derived files.

The files of a label must be valid up to `strict`, the last entry that was durable at the last retirement. After it the
journal is the truth; files may be ahead of the retirement, torn or missing, but must not contradict the journal.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from veen.core.tree.mmr import node_count, root_of
from veen.io.errors import CorruptError
from veen.storage import frame, layout
from veen.storage.control_state import OpenedLabel
from veen.storage.copies import archive
from veen.storage.findings import Code
from veen.storage.index import LabelRow
from veen.storage.label_files import HASH_BYTES, LOCATION_BYTES
from veen.storage.scan import LabelFold, LabelRun, ScannedEntry, chunk_items, item_of, run_path, runs_of
from veen.verify.chunk_scan import clean_bytes, scan_chunk
from veen.verify.entry import DirectoryRules, Journaled
from veen.verify.files import Compared, file_size
from veen.verify.index import LabelIndexCheck
from veen.verify.seals import Peaks, SealCheck, read_signed_peaks

_UNACCOUNTED: Final = "entries that neither index nor journal account for"


class LabelCheck:
    """Check of one label. `run` returns the position up to which its log could be followed, or None if unknown."""

    def __init__(
        self,
        rules: DirectoryRules,
        label: bytes,
        opened: OpenedLabel | None,
        files: Sequence[layout.LogFile],
        row: LabelRow | None,
        *,
        strict: int | None,
        journaled: Journaled | None,
    ) -> None:
        self.rules, self.label, self.files, self.row = rules, label, files, row
        self.findings = rules.findings
        number, epoch, stream_id = (opened.row, opened.epoch, opened.stream_id) if opened else (0, 0, None)
        self.fold = LabelFold(label, number, epoch, stream_id, rules.warn)
        self.index = LabelIndexCheck(rules, label, row)
        upto = rules.retired_control if row is not None else None
        self._seals = SealCheck(rules, label, stream_id, opened.limits if opened else None, upto)
        self._nodes = Compared(rules.fs, self.findings, layout.nodes(label))
        self._locations = Compared(rules.fs, self.findings, layout.locations(label))
        self._strict = strict
        self._journaled = journaled or Journaled(1)
        # Whether the journal goes on behind the retirement, so that files may be ahead of it.
        self._soft = strict is not None and self._journaled.last > strict
        self._lost = False
        self._hole: int | None = None  # the first entry that was skipped
        self._went_ahead = False

    def run(self) -> LabelFold | None:
        if self.row is not None and self.row.size == 0:
            self._compare_cursors(self.row)
        runs, extra = runs_of(self.label, self.files, self.rules.control.drop_ends())
        whole = True
        for run in self._until_strict(runs):
            whole = self._run(run) and whole
        whole = whole and self._ends()
        if whole and self._soft and not self._went_ahead:
            self._check_ahead(iter(()))
        self._nodes.finish(exact=whole and not self._soft)
        self._locations.finish(exact=whole and not self._soft)
        if whole:
            self._seals.check_index(self.fold.checkpoints, extended=self._soft)
            self._check_strays(extra)
            self.index.finish()
        return None if self._lost else self.fold

    @property
    def read(self) -> int:
        """The position up to which every entry was read."""
        return self.fold.size if self._hole is None else self._hole - 1

    def _until_strict(self, runs: list[LabelRun]) -> Iterator[LabelRun]:
        """Yield the runs in order, as long as each joins the previous one and a part of it is retired."""
        for run in runs:
            if self._lost or (self._strict is not None and run.start_seq > self._strict):
                return
            if self._strict is not None and self.fold.size >= self._strict:
                return
            yield run

    # --- one run ---------------------------------------------------------------------------------------

    def _run(self, run: LabelRun, *, retried: bool = False) -> bool:
        """Read one run; return True if it is valid. Afterwards the fold is at its end, or the label is lost."""
        path = run_path(self.label, run)
        rest = self._take_clean(run, path)
        items = self._items(run) if rest is None else rest
        try:
            for item in items if rest is None else ():
                self._item(item)
                if self.fold.size == self._strict or self.fold.size == run.end_seq:
                    break
            self._end_of_run(run, path, items)
        except CorruptError as exc:
            gone = not self.rules.fs.exists(exc.path)
            if gone and not retried and self.fold.size == run.start_seq - 1:  # receipts are erased after payloads
                return self._run(run, retried=True)
            code: Code = "missing" if gone else "entry"
            self.findings.error(exc.path, exc.offset, code, exc.what)
        except FileNotFoundError:
            if not retried:  # a running hub renames what it seals and removes what it erases: look again
                return self._run(self._find_erased(run) or run, retried=True)
            self.findings.error(path, 0, "missing", "the file is missing")
        else:
            return True
        self._skip(run)
        return False

    def _take_clean(self, run: LabelRun, path: str) -> Iterator[ScannedEntry] | None:
        """Take all entries of a run at once, if none has a fault; return those after them in its file.

        None means that nothing was taken. Reading entry by entry then names the fault, or finds that there is none.
        """
        fold, rules = self.fold, self.rules
        ends = [end for end in (run.end_seq, self._strict) if end is not None]
        most = min(ends) - fold.size if ends else None
        if run.kind not in ("chunk", "active") or run.start_seq != fold.size + 1:
            return None
        data = clean_bytes(rules.fs, path)
        if data is None:
            return None
        chunk = scan_chunk(data, rules, self.label, fold, most)
        if chunk is None or (most is not None and chunk.entries != most) or not fold.continues(chunk):
            return None
        if not self._journaled.agree(run.start_seq, chunk.entry_hashes) or not rules.tokens_hold(chunk):
            return None
        if self.row is not None and not self.index.lists(chunk):
            return None
        if not rules.anchors_hold(self.label, run.start_seq, chunk.roots):
            return None
        self._seals.first_entry(chunk.first_length, chunk.first_ts)
        fold.add_chunk(chunk)
        self._nodes.feed(chunk.nodes)
        self._locations.feed(chunk.locations)
        rules.chunk_entries(chunk)
        if self.row is not None:
            self.index.chunk_entries(chunk)
            if self.row.active_start <= fold.size == self.row.size:
                self._compare_cursors(self.row)
        behind = frame.frames(data[chunk.end :], path=path, base=chunk.end)
        return (item_of(entry, self.label, path, offset) for offset, entry in behind)

    def _find_erased(self, run: LabelRun) -> LabelRun | None:
        """Return the growing chunk as erased, if it was sealed and erased while earlier chunks were read."""
        for name in self.rules.fs.list(layout.LOG) if run.kind == "active" else ():
            file = layout.log_file(name)
            if file and (file.kind, file.label, file.start_seq) == ("heads", self.label, run.start_seq):
                return LabelRun("chunk", file.start_seq, file.end_seq)
        return None

    def _items(self, run: LabelRun) -> Iterator[ScannedEntry]:
        fs, label, path = self.rules.fs, self.label, run_path(self.label, run)
        if run.kind == "dropped" and run.end_seq is not None:
            receipts_path = layout.receipts_archive(label, run.start_seq, run.end_seq)
            receipts = fs.exists(receipts_path) or self.rules.control.drop_level(label, run.start_seq) < 2
            return archive.items(fs, label, run.start_seq, run.end_seq, receipts=receipts)
        if run.kind in ("chunk", "missing") and run.end_seq is not None and not fs.exists(path):
            bounds = (label, run.start_seq, run.end_seq)
            if fs.exists(layout.heads_archive(*bounds)):  # erased a moment ago by a running hub
                if not self.rules.control.drop_level(label, run.start_seq):
                    self.findings.late_error(path, 0, "missing", "the file is missing")
                return archive.items(fs, *bounds, receipts=fs.exists(layout.receipts_archive(*bounds)))
        if run.kind == "active" and not fs.exists(path):  # sealed a moment ago by a running hub
            for name in fs.list(layout.LOG):
                chunk = layout.chunk_of(name)
                if chunk and chunk.label == label and chunk.start_seq == run.start_seq:
                    path = f"{layout.LOG}/{name}"
        return chunk_items(fs, path, label)

    def _item(self, item: ScannedEntry) -> None:
        fold = self.fold
        location = fold.location(item)
        if item.stream_seq == fold.active_start:
            self._seals.first_entry(item.length, item.hub_ts)
        nodes = fold.add(item)
        if self.rules.control.anchors:
            self.rules.anchor(self.label, fold)
        if not self._journaled.agrees(item):
            raise item.fault("the journal holds another entry at this position")
        self._nodes.feed(b"".join(nodes))
        self._locations.feed(location)
        self.rules.signatures(item)
        if self.row is not None and item.stream_seq <= self.row.size:
            self.index.entry(item)
            if item.stream_seq == self.row.size and self.row.active_start <= item.stream_seq:
                self._compare_cursors(self.row)

    def _compare_cursors(self, row: LabelRow) -> None:
        self.index.cursors(self.fold, row, self._seals.active_limits())

    def _end_of_run(self, run: LabelRun, path: str, items: Iterator[ScannedEntry]) -> None:
        """Check the end of a run: after its last entry, or the last retired one."""
        fold = self.fold
        if self._soft and fold.size == self._strict and not self._is_sealed(run):
            self._check_ahead(items)
            return
        if run.end_seq is not None and fold.size < run.end_seq and fold.size != self._strict:
            raise CorruptError(path, fold.active_bytes, f"entries {fold.size + 1} to {run.end_seq} are missing")
        if fold.size == self._strict and run.end_seq != fold.size:  # an active chunk, or one that grew meanwhile
            self._check_end(items)
            return
        if (extra := next(items, None)) is not None:
            raise extra.fault("it lies behind the last entry of this file")
        if run.end_seq is not None and fold.size == run.end_seq:
            self._seal(run)

    def _is_sealed(self, run: LabelRun) -> bool:
        """Return True if the last retirement made the seal of a chunk durable; if not, recovery will repeat it."""
        if run.end_seq is None or run.end_seq > self.fold.size:
            return False
        if self.row is not None:
            return self.row.active_start > run.end_seq
        return not self._soft or self.fold.size != self._strict

    def _seal(self, run: LabelRun) -> None:
        seal = self.fold.seal(self._seals.drop_level(run.start_seq))
        self._seals.add(seal, run)
        self.index.chunk(seal)
        row, size = self.row, self.fold.size
        if row is not None and size == row.size and row.active_start > size:
            self._compare_cursors(row)

    def _skip(self, run: LabelRun) -> None:
        """Continue after an unreadable run, from its peaks, if a checkpoint confirms them."""
        end = run.end_seq
        self._hole = self._hole or self.fold.size + 1
        self.rules.bound.pop(self.label, None)
        self.index.forget()
        self._seals.forget()
        peaks: Peaks | None = None
        if end is not None and (self._strict is None or end <= self._strict):
            peaks = read_signed_peaks(self.rules.fs, self.rules.identity, self.label, end)
        if end is None or peaks is None:
            self._lost = True
            return
        self.fold.skip(end, peaks)
        self._seals.skip(run.start_seq, end, root_of(peaks))
        self._nodes.skip_to(node_count(end) * HASH_BYTES)
        self._locations.skip_to(end * LOCATION_BYTES)

    # --- the end of the label --------------------------------------------------------------------------

    def _check_end(self, items: Iterator[ScannedEntry]) -> None:
        """Check that nothing follows the last entry of index and journal."""
        try:
            extra = next(items, None)
        except CorruptError as exc:
            self.findings.late_error(exc.path, exc.offset, self._unaccounted, exc.what)
            return
        if extra is not None:
            self.findings.late_error(extra.path, extra.at, self._unaccounted, _UNACCOUNTED)

    @property
    def _unaccounted(self) -> Code:
        """Return the code for entries after the retirement: the journal file with them may be missing."""
        return "unverified" if self.rules.journal_missing else "entry"

    def _ends(self) -> bool:
        """Return True if the label ends where it should."""
        size, strict = self.fold.size, self._strict
        if strict is not None and size < strict:
            path = layout.active(self.label, self.fold.active_start)
            what = f"entries {size + 1} to {strict} are missing"
            self.findings.error(path, self.fold.active_bytes, "cut" if self.rules.fs.exists(path) else "missing", what)
            self._lost = True
            return False
        if self._soft:
            return True
        for file in self.files:
            if file.kind not in ("chunk", "active") or file.start_seq <= size:
                continue
            if file.start_seq > size + 1:
                what = f"entry {size + 1} and following are missing before it"
                self.findings.late_error(file.path, 0, "gap", what)
            elif strict is not None and file_size(self.rules.fs, file.path):
                self.findings.late_error(file.path, 0, self._unaccounted, _UNACCOUNTED)
        self._seals.no_entry_follows()
        return True

    def _check_strays(self, extra: list[str]) -> None:
        """Check for files of the label that belong neither to its log nor to a seal."""
        if self._strict is None or not self._soft:
            for path in extra:
                self.findings.warning(path, 0, "unknown", "not part of the label's log")
            self._seals.check_strays(self.files)
        else:  # leave out what may belong to a seal behind the retirement
            self._seals.check_strays([file for file in self.files if file.end_seq < self._strict])

    def _check_ahead(self, items: Iterator[ScannedEntry]) -> None:
        """Check files ahead of the retirement: they may be torn, but must not contradict the journal."""
        self._went_ahead = True
        place = self.fold.size + 1
        read: list[layout.LogFile] = []
        while True:
            try:
                for item in items:
                    if item.stream_seq != place:
                        return
                    if place > self._journaled.last:
                        what = f"entry {place} is here but not in the journal: the journal was cut"
                        self.findings.late_error(item.path, item.at, "cut", what)
                        return
                    if not self._journaled.agrees(item):
                        what = f"entry {place}: the journal holds another entry at this position"
                        self.findings.error(item.path, item.at, "journal", what)
                        return
                    place += 1
            except (CorruptError, FileNotFoundError):
                return
            following = next((f for f in self.files if f.kind in ("chunk", "active") and f.start_seq == place), None)
            if following is None or following in read:
                return
            read.append(following)
            items = chunk_items(self.rules.fs, following.path, self.label)
