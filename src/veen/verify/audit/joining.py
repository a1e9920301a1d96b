"""The step after pass 2: the reports of the chunks of a label are joined from left to right (I8, I9, D-28, D-70).

Joining checks what a chunk does not show by itself: that each writer and the time continue from the chunk before, and
that the chunk before ended where its limits demand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from veen.core.limits import Limits
from veen.core.run_check import Authors, AuthorSpan, RunCheck
from veen.core.tree.mmr import root_of
from veen.storage import layout
from veen.storage.scan import EntryFault, entry_fault
from veen.verify.audit.chunk import ChunkReport, ChunkTask
from veen.verify.audit.context import AuditContext
from veen.verify.audit.findings import LogFinding
from veen.verify.audit.tables import Commitment, Cursor
from veen.verify.seals import ends_rightly


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLabel:
    """The result for one label."""

    label: bytes
    size: int
    root: bytes | None  # None if it could not be followed to its head
    findings: tuple[LogFinding, ...]
    commitments: tuple[Commitment, ...]
    cursors: tuple[Cursor, ...]
    entries: int
    signatures: int
    total_bytes: int
    epoch_secs: frozenset[int]


@dataclass(slots=True)
class LabelJoin:
    """The join of the chunks of one label, in order; may begin where an earlier audit stopped."""

    label: bytes
    context: AuditContext
    findings: list[LogFinding] = field(default_factory=list)
    commitments: list[Commitment] = field(default_factory=list)
    cursors: tuple[Cursor, ...] = ()
    check: RunCheck = field(init=False)  # of the entries that were joined
    root: bytes | None = None
    entries: int = 0
    signatures: int = 0
    total_bytes: int = 0
    epoch_secs: set[int] = field(default_factory=set)
    _sealed_bytes: int = 0  # of the chunk before
    _at_seal: bool = False

    def __post_init__(self) -> None:
        self.check = RunCheck(self.label, 0)

    @property
    def place(self) -> int:
        """The last entry that was joined."""
        return self.check.size

    def resume(self, commitments: Sequence[Commitment], cursors: Iterable[Cursor]) -> None:
        """Continue after the last sealed chunk that an earlier audit read."""
        self.commitments = list(commitments)
        self.cursors = tuple(cursors)
        upto, lost, last_ts, spans = 0, 0, 0, {}
        for cursor in self.cursors:
            if cursor.client_id is None:
                upto, lost, last_ts = cursor.upto, cursor.lost, cursor.last_ts
                self._sealed_bytes, self._at_seal = cursor.total_bytes, True
            else:
                last = (cursor.client_seq, cursor.prev_ack, cursor.lost)
                spans[cursor.client_id] = AuthorSpan(cursor.upto, *last, *last)
        self.check = RunCheck(self.label, upto, Authors.of(spans, lost, is_anchored=True), last_ts=last_ts)
        if commitments and commitments[-1].end == self.place:
            self.root = commitments[-1].root

    def add(self, task: ChunkTask, report: ChunkReport) -> None:
        """Join the next chunk."""
        ref = task.ref
        offsets = {span.seq: report.offsets[author] for author, span in report.run.authors.items()}
        if ref.start_seq > self.place + 1:
            self._gap(self.place + 1, ref.start_seq - 1)
        self.findings += report.findings
        if report.entries:
            self._boundary(ref.start_seq, report.first_length)
        for fault in self.check.merge(report.run):
            self._add(fault.seq, ref.path, offsets[fault.seq], entry_fault(fault))
        self.entries += report.entries
        self.signatures += report.signatures
        self.total_bytes += report.total_bytes
        self.epoch_secs |= set(report.epoch_secs)
        self.root = None
        if peaks := report.run.peaks:
            self.root = root_of(peaks)
            times = (report.run.first_ts, report.run.last_ts)
            chunk = (ref.label, ref.start_seq, ref.end_seq, peaks, self.root, ref.entries)
            self.commitments.append(Commitment(*chunk, *times))
        self._at_seal = ref.is_sealed
        self._sealed_bytes = report.total_bytes if self._at_seal else 0
        if self._at_seal:
            self.cursors = self._cursors()

    def _gap(self, first: int, last: int) -> None:
        self._add(first, "log", 0, EntryFault("gap", f"entries {first} to {last} are in no file"))
        self.check.skip(last - first + 1)

    def _add(self, seq: int, path: str, offset: int, fault: EntryFault) -> None:
        code, message, severity, _ = fault
        self.findings.append(LogFinding(path, offset, code, message, severity, label=self.label, stream_seq=seq))

    def _boundary(self, start: int, next_length: int | None) -> None:
        """Check that the sealed chunk before `start` ended in the right place, which its successor shows."""
        before = self.commitments[-1] if self.commitments else None
        if before is None or before.end != start - 1 or not self._sealed_bytes:
            return
        if not ends_rightly(self._sealed_bytes, before.count, next_length, self._limits_of(before)):
            path = layout.chunk(self.label, before.start, before.end)
            what = "the chunk does not end where its limits demand (D-70)"
            self._add(before.end, path, self._sealed_bytes, EntryFault("limits", what))

    def _limits_of(self, chunk: Commitment) -> list[Limits | None]:
        """Return the limits that may have applied when a chunk was begun."""
        if chunk.start == 1:
            opened = self.context.find_opening(self.label)
            return [opened.limits if opened else None]
        earlier = self.commitments[-2] if len(self.commitments) > 1 else None
        if earlier is None or earlier.end != chunk.start - 1:
            return [None]
        return self.context.control.limits_between(earlier.last_ts, chunk.first_ts)

    def _cursors(self) -> tuple[Cursor, ...]:
        """Return the cursors of the label and of its writers after the last chunk."""
        own = Cursor(
            self.label, self.place, None, 0, 0, self.check.authors.unseen, self.check.last_ts, self._sealed_bytes
        )
        writers = (
            Cursor(self.label, self.place, client_id, span.last_seq, span.last_ack, span.last_unseen, 0, 0)
            for client_id, span in self.check.authors.spans.items()
        )
        return (own, *writers)

    def finish(self, size: int) -> JoinedLabel:
        """End the join after the last chunk."""
        if self._at_seal:
            self._boundary(self.place + 1, None)
        return JoinedLabel(
            label=self.label,
            size=size,
            root=self.root if self.place == size else None,
            findings=tuple(self.findings),
            commitments=tuple(self.commitments),
            cursors=self.cursors,
            entries=self.entries,
            signatures=self.signatures,
            total_bytes=self.total_bytes,
            epoch_secs=frozenset(self.epoch_secs),
        )
