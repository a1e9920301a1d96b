"""`verify_data`: everything in a data directory, re-derived from frames and control records alone (DESIGN §4).

Truth is what the hub signed: identity, chunks, control journal, checkpoints, and what the write-ahead journal still
holds. All else follows from it and can be made again; such a file that is wrong is a finding with the code
`rebuildable`. The directory may belong to a running hub, or to one that was cut off: files are held to what was
synced by the last retirement, the journal to all whole groups. Nothing is written.

    1  identity       `fsckidentity`: hub-identity.json, its signature, the key map, private keys if they are there
    2  journal        `fsckjournal`: chain of groups; what it holds of each label and of the control journal;
                      is the index usable, and from which point of the journal on would a hub go on
    3  control        `fsckcontrol`: chain, signatures and bodies of all control records
    4  labels         `fscklabel`: every entry and every artifact
    5  journal        its entries, as the continuation of the labels
    6  the rest       `fsckindex`: cursors, tokens and counts; `fsckfiles`: limits, unknown files; bindings
"""

from collections.abc import Callable
from dataclasses import dataclass

from veen.core.hubkeys import HubIdentity
from veen.core.labels import label_of, routing_key_of
from veen.storage import layout
from veen.storage.controlfold import Spending
from veen.storage.errors import CorruptError
from veen.storage.findings import Finding, Findings, LabelSummary, Level
from veen.storage.frame import Frame
from veen.storage.fs import Fs
from veen.storage.fsckcontrol import ControlCheck
from veen.storage.fsckfiles import check_anchor_file, check_limits_file, check_names
from veen.storage.fsckidentity import check_binding, check_identity, check_rotations, read_binding
from veen.storage.fsckindex import check_index
from veen.storage.fsckjournal import JournalCheck
from veen.storage.fsckjudge import Journaled, Judge
from veen.storage.fscklabel import LabelCheck
from veen.storage.fsckpool import SignaturePool
from veen.storage.journal import Placed
from veen.storage.scan import LabelFold, inventory, item_of

__all__ = ["Finding", "Report", "verify_data"]

Progress = Callable[[str], None]  # is told the path that is read next


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict, and how much it covers."""

    findings: tuple[Finding, ...]
    labels: dict[bytes, LabelSummary]
    counts: dict[str, int]
    level: Level

    @property
    def errors(self) -> tuple[Finding, ...]:
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
    progress: Progress | None = None,
    jobs: int = 1,
) -> Report:
    """Check a whole data directory. `structure` leaves out the signatures, nothing else.

    `jobs` processes verify signatures; the report is the same for any number.
    `identity` is one known from elsewhere (HID-01): the directory's own must then be the same hub, and may be absent.
    """
    check = _Check(fs, level, progress, jobs)
    try:
        check.run(identity, root_pk)
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
        # As of the last retirement, which is what the index must show.
        self.retired_ts = 0
        self.clients = 0

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.journal.close()
        self.spending.close()

    def run(self, given: HubIdentity | None, root_pk: bytes | None) -> None:
        fs, findings, journal = self.fs, self.findings, self.journal
        identity = check_identity(fs, findings, given, root_pk)
        journal.open()
        journal.read()
        self.progress(layout.CONTROL)
        control = ControlCheck(fs, findings, self.level, identity)
        control.run(journal)
        check_rotations(identity, control.fold, findings)
        judge = Judge(fs, self.level, identity, control.fold, findings, self.spending, journal.index)
        if self.jobs > 1 and self.level == "full":
            judge.pool = self.pool = SignaturePool(self.jobs, judge.verify)
            findings.settle_before = self.pool.settle
        judge.retired_control, judge.bound = control.retired_seq, read_binding(fs, findings, identity)
        self.retired_ts = control.retired_ts
        self._labels(judge, control)
        for placed, frame in journal.entries():
            self._journal_entry(judge, placed, frame)
        findings.settle_before()
        judge.anchors_left()
        check_index(judge, control, journal.meta, journal.rows, clients=self.clients, retired_ts=self.retired_ts)
        check_names(fs, findings, self.summaries)
        check_limits_file(fs, findings, control.fold.limits)
        check_anchor_file(fs, findings, (body for bodies in control.fold.anchors.values() for body in bodies))
        check_binding(judge)
        # Files that are ahead of the journal: a hub wrote on meanwhile, or the journal was cut.
        findings.settle(written_on=journal.written_on())

    def _labels(self, judge: Judge, control: ControlCheck) -> None:
        files, rows = inventory(self.fs), self.journal.rows
        for label in sorted({*files, *rows, *control.fold.labels}):
            self.progress(f"{layout.LOG}: label {label.hex()}")
            held = self.journal.journaled.get(label)
            row = rows.get(label)
            opened = control.fold.labels.get(label)
            if opened is None:
                what = f"no record opens label {label.hex()}"
                self.findings.late_error(layout.CONTROL, control.file_bytes, "control", what)
                if row is None and held is None:
                    continue
            elif opened.stream_id is not None and judge.identity is not None:
                routing_key = routing_key_of(judge.identity.hub_id)
                if label_of(routing_key, opened.stream_id, opened.epoch) != label:
                    what = f"record {opened.seq} opens a label that is not that of its stream and epoch"
                    self.findings.error(layout.CONTROL, 0, "control", what)
            strict = row.size if row is not None else self._strict(label, held, control)
            check = LabelCheck(judge, label, opened, files.get(label, []), row, strict=strict, journaled=held)
            fold = check.run()
            if row is not None:
                self.retired_ts = max(self.retired_ts, row.last_ts)
                self.clients += check.index.clients
            if fold is not None and held is not None:
                self.folds[label] = fold
            size = check.fold.size
            root = check.fold.mmr.root() if size else None
            self.summaries[label] = LabelSummary(size, root, complete=fold is not None)

    def _strict(self, label: bytes, held: Journaled | None, control: ControlCheck) -> int | None:
        """How much of a label that has no cursor was retired; None: all that its files show, so all must be good."""
        opened = control.fold.labels.get(label)
        if self.journal.index is not None:
            if opened is not None and opened.seq > control.retired_seq:
                return 0
            self.findings.error(layout.INDEX, 0, "rebuildable", f"label {label.hex()} is missing")
        return held.first - 1 if held is not None else None

    def _journal_entry(self, judge: Judge, placed: Placed, record: Frame) -> None:
        fold = self.folds.get(record.label)
        if fold is None:
            if record.label not in self.summaries:
                what = f"no record opens label {record.label.hex()}"
                self.findings.error(placed.path, placed.offset, "journal", what)
                self.summaries[record.label] = LabelSummary(0, None)
            return
        if record.stream_seq <= fold.size:
            return
        try:
            item = item_of(record, record.label, placed.path, placed.offset)
            judge.order(item, fold.last_ts)
            fold.add_journaled(item)
            judge.anchor(record.label, fold)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "entry", exc.what)
            del self.folds[record.label]  # nothing after it can be judged
            self.summaries[record.label] = LabelSummary(fold.size, fold.mmr.root(), complete=False)
            return
        judge.signatures(item)
        self.summaries[record.label] = LabelSummary(fold.size, fold.mmr.root())
