"""`verify_data`: everything in a data directory, re-derived from frames and control records alone (DESIGN §4).

Truth is what the hub signed: identity, chunks, control journal, checkpoints, and what the write-ahead journal still
holds. All else follows from it and can be made again; such a file that is wrong is a finding with the code
`rebuildable`. The directory may belong to a running hub, or to one that was cut off: files are held to what was
synced by the last retirement, the journal to all whole groups. Nothing is written.

    1  identity       `identity`: hub-identity.json, its signature, the key map, private keys if they are there
    2  journal        `journal`: chain of groups; what it holds of each label and of the control journal;
                      is the index usable, and from which point of the journal on would a hub go on
    3  control        `control`: chain, signatures and bodies of all control records
    4  labels         `label`: every entry and every artifact
    5  journal        its entries, as the continuation of the labels
    6  the rest       `index`: cursors, tokens and counts; `files`: limits, unknown files; bindings
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from veen.core.objects.identity import HubIdentity
from veen.core.objects.trusted_root import TrustedKeys
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.control_state import Spending, fence_fault
from veen.storage.copies.unfinished import check_finished
from veen.storage.findings import Code, Findings, LabelSummary, Level, LogFinding
from veen.storage.frame import Frame
from veen.storage.journal import Placed
from veen.storage.label_files import LOCATION_BYTES
from veen.storage.scan import LabelFold, inventory, item_of
from veen.verify.control import ControlCheck, label_open_fault
from veen.verify.entry import DirectoryRules, Journaled
from veen.verify.files import check_anchor_file, check_limits_file, check_names, file_size
from veen.verify.identity import check_binding, check_identity, check_pin, check_rotations, read_binding
from veen.verify.index import check_index
from veen.verify.journal import JournalCheck
from veen.verify.label import LabelCheck
from veen.verify.signatures import SignaturePool

__all__ = ["LogFinding", "Report", "verify_data"]

Progress = Callable[[str], None]  # called with the path that is read next


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of `verify_data`, and the amount of data read."""

    findings: tuple[LogFinding, ...]
    labels: dict[bytes, LabelSummary]
    counts: dict[str, int]
    level: Level

    @property
    def errors(self) -> tuple[LogFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def ok(self) -> bool:
        return not self.errors


def verify_data(
    fs: Fs,
    *,
    level: Level = "full",
    identity: HubIdentity | None = None,
    root_pk: bytes | None = None,
    pin: TrustedKeys | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Report:
    """Check a whole data directory. `structure` skips the signatures only."""
    check_finished(fs)
    check = _Check(fs, level, progress, jobs)
    try:
        check.run(identity, root_pk, pin)
    finally:
        check.close()
    return Report(tuple(check.findings.all), check.summaries, dict(check.findings.counts), level)


class _Check:
    """One run of `verify_data`."""

    def __init__(self, fs: Fs, level: Level, progress: Progress | None, jobs: int) -> None:
        self.fs, self.level, self.jobs = fs, level, jobs
        self.pool: SignaturePool | None = None
        self.progress: Progress = progress or (lambda _path: None)
        self.findings = Findings()
        self.summaries: dict[bytes, LabelSummary] = {}
        self.journal = JournalCheck(fs, self.findings)
        self.spending = Spending()
        self.folds: dict[bytes, LabelFold] = {}  # of the labels that the journal continues
        self.files: dict[bytes, list[layout.LogFile]] = {}
        self.read: dict[bytes, int] = {}  # the position before the first hole of a label
        # As of the last retirement, which is what the index must show.
        self.retired_ts = 0
        self.clients = 0

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.journal.close()
        self.spending.close()

    def run(self, given: HubIdentity | None, root_pk: bytes | None, pin: TrustedKeys | None) -> None:
        fs, findings, journal = self.fs, self.findings, self.journal
        identity = check_identity(fs, findings, given, root_pk)
        journal.open()
        journal.read()
        self.progress(layout.CONTROL)
        control = ControlCheck(fs, findings, self.level, identity)
        control.run(journal)
        check_pin(fs, pin, given, identity, control.fold, findings)
        check_rotations(identity, control.fold, findings)
        rules = DirectoryRules(
            fs, self.level, identity, control.fold, findings, spending=self.spending, index=journal.index
        )
        rules.jobs, rules.journal_missing = self.jobs, journal.is_missing
        if self.level == "full":
            rules.pool = self.pool = SignaturePool(self.jobs, rules.verify)
            findings.settle_before = self.pool.settle
        rules.retired_control, rules.bound = control.retired_seq, read_binding(fs, findings, identity)
        self.retired_ts = control.retired_ts
        self._labels(rules, control)
        for placed, frame in journal.entries():
            self._journal_entry(rules, placed, frame)
        findings.settle_before()
        heads = ((label, summary.size, summary.root) for label, summary in self.summaries.items())
        if (fault := fence_fault(control.fold.last, heads)) is not None:
            findings.error(layout.CONTROL, 0, "control", fault)
        rules.anchors_left()
        check_index(rules, control, journal.meta, journal.rows, clients=self.clients, retired_ts=self.retired_ts)
        check_names(fs, findings, self.summaries)
        check_limits_file(fs, findings, control.fold.limits)
        check_anchor_file(fs, findings, (body for bodies in control.fold.anchors.values() for body in bodies))
        check_binding(rules)
        # Files that are ahead of the journal: a hub wrote on meanwhile, or the journal was cut.
        written_on = journal.has_grown()
        anchored: dict[bytes, int] = {}
        for label, upto_seq in control.fold.anchors:
            anchored[label] = max(upto_seq, anchored.get(label, 0))
        findings.settle(written_on=written_on)
        for label, summary in self.summaries.items():
            head = max(summary.size, summary.head, 0 if written_on else self._state_head(label), anchored.get(label, 0))
            self.summaries[label] = replace(summary, head=head)

    def _labels(self, rules: DirectoryRules, control: ControlCheck) -> None:
        files, rows = inventory(self.fs), self.journal.rows
        self.files = files
        for label in sorted({*files, *rows, *control.fold.labels, *self.journal.sizes}):
            self.progress(f"{layout.LOG}: label {label.hex()}")
            journaled = self.journal.journaled.get(label)
            row = rows.get(label)
            opened = control.fold.labels.get(label)
            if opened is None:
                what = f"no record opens label {label.hex()}"
                code: Code = "unverified" if self.findings.lacks_control else "control"
                self.findings.late_error(layout.CONTROL, control.file_bytes, code, what)
                if row is None and journaled is None:
                    continue
            elif (fault := label_open_fault(label, opened, rules.identity)) is not None:
                self.findings.error(layout.CONTROL, 0, "control", fault)
            strict = row.size if row is not None else self._strict(label, journaled, control)
            check = LabelCheck(rules, label, opened, files.get(label, []), row, strict=strict, journaled=journaled)
            fold = check.run()
            if row is not None:
                self.retired_ts = max(self.retired_ts, row.last_ts)
                self.clients += check.index.clients
            if fold is not None and journaled is not None:
                self.folds[label] = fold
            if check.read < check.fold.size:
                self.read[label] = check.read
            stated = max(self.journal.sizes.get(label, 0), int(opened is not None and row is None))
            self._summarize(label, check.fold, stated, complete=fold is not None)

    def _summarize(self, label: bytes, fold: LabelFold, stated: int, *, complete: bool = True) -> None:
        size = fold.size
        read = self.read.get(label, size)
        self.summaries[label] = LabelSummary(size, fold.mmr.root() if size else None, read, stated, complete)

    def _state_head(self, label: bytes) -> int:
        """Return the greatest position in names of files and in the locations."""
        ends = [max(file.start_seq - 1, file.end_seq) for file in self.files.get(label, ())]
        return max([*ends, file_size(self.fs, layout.locations(label)) // LOCATION_BYTES])

    def _strict(self, label: bytes, journaled: Journaled | None, control: ControlCheck) -> int | None:
        """Return the retired size of a label without a cursor; None if all of its files must be valid."""
        opened = control.fold.labels.get(label)
        if self.journal.index is not None:
            if opened is not None and opened.seq > control.retired_seq:
                return 0
            self.findings.error(layout.INDEX, 0, "rebuildable", f"label {label.hex()} is missing")
        return journaled.first - 1 if journaled is not None else None

    def _journal_entry(self, rules: DirectoryRules, placed: Placed, record: Frame) -> None:
        fold = self.folds.get(record.label)
        if fold is None:
            if record.label not in self.summaries:
                what = f"no record opens label {record.label.hex()}"
                code: Code = "unverified" if self.findings.lacks_control else "journal"
                self.findings.error(placed.path, placed.offset, code, what)
                self.summaries[record.label] = LabelSummary(0, None, 0, record.stream_seq)
            return
        if record.stream_seq <= fold.size:
            return
        try:
            item = item_of(record, record.label, placed.path, placed.offset)
            fold.add_journaled(item)
            rules.anchor(record.label, fold)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "entry", exc.what)
            del self.folds[record.label]  # nothing after it can be judged
            self._summarize(record.label, fold, self.summaries[record.label].head, complete=False)
            return
        rules.signatures(item)
        self._summarize(record.label, fold, self.summaries[record.label].head)
