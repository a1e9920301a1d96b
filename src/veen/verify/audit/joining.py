"""The step after pass 2: the reports of the chunks of a label are joined from left to right (I8, I9, D-28, D-70).

Joining checks what a chunk does not show by itself: that each writer and the time continue from the chunk before, and
that the chunk before ended where its limits demand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from veen.core.limits import Limits
from veen.core.run_check import Authors, AuthorSpan
from veen.core.tree.mmr import root_of
from veen.storage import layout
from veen.storage.pinned import ChunkRef
from veen.storage.rules import entry_fault
from veen.verify.audit.chunk import ChunkReport, ChunkTask, authors_of
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
    """Fed with the chunks of one label in order; may begin where an earlier audit stopped."""

    label: bytes
    context: AuditContext
    findings: list[LogFinding] = field(default_factory=list)
    commitments: list[Commitment] = field(default_factory=list)
    cursors: tuple[Cursor, ...] = ()
    authors: Authors = field(default_factory=Authors)
    place: int = 0  # the last entry that was joined
    last_ts: int = 0
    root: bytes | None = None
    entries: int = 0
    signatures: int = 0
    total_bytes: int = 0
    epoch_secs: set[int] = field(default_factory=set)
    _sealed_bytes: int = 0  # of the chunk before
    _at_seal: bool = False

    def resume(self, commitments: Sequence[Commitment], cursors: Iterable[Cursor]) -> None:
        """Go on behind the last sealed chunk that an earlier audit has seen."""
        self.commitments = list(commitments)
        self.cursors = tuple(cursors)
        lost, spans = 0, {}
        for cursor in self.cursors:
            if cursor.client_id is None:
                self.place, lost, self.last_ts = cursor.upto, cursor.lost, cursor.last_ts
                self._sealed_bytes, self._at_seal = cursor.total_bytes, True
            else:
                last = (cursor.client_seq, cursor.prev_ack, cursor.lost)
                spans[cursor.client_id] = AuthorSpan(cursor.upto, *last, *last)
        self.authors = Authors.of(spans, lost, is_anchored=True)
        if commitments and commitments[-1].end == self.place:
            self.root = commitments[-1].root

    def add(self, task: ChunkTask, report: ChunkReport) -> None:
        ref = task.ref
        if ref.start_seq > self.place + 1:
            self._gap(self.place + 1, ref.start_seq - 1)
        self.findings += report.findings
        if report.entries:
            self._boundary(ref.start_seq, report.first_length)
            self._time(ref, report)
        self._join_writers(ref, report)
        self.last_ts = max(self.last_ts, report.last_ts)
        self.place = ref.end_seq
        self.entries += report.entries
        self.signatures += report.signatures
        self.total_bytes += report.total_bytes
        self.epoch_secs |= set(report.epoch_secs)
        self.root = None
        if report.peaks:
            self.root = root_of(report.peaks)
            times = (report.first_ts, report.last_ts)
            chunk = (ref.label, ref.start_seq, ref.end_seq, report.peaks, self.root, ref.entries)
            self.commitments.append(Commitment(*chunk, *times))
        self._at_seal = ref.is_sealed
        self._sealed_bytes = report.total_bytes if self._at_seal else 0
        if self._at_seal:
            self.cursors = self._cursors()

    def _gap(self, first: int, last: int) -> None:
        what = f"entries {first} to {last} are in no file"
        self._add(first, "log", 0, "gap", what)
        self.authors.skip(last - first + 1)

    def _add(self, seq: int, path: str, offset: int, code: str, message: str) -> None:
        warning = code == "time"
        self.findings.append(
            LogFinding(path, offset, code, message, "warning" if warning else "error", label=self.label, stream_seq=seq)
        )

    def _time(self, ref: ChunkRef, report: ChunkReport) -> None:
        if report.first_ts < self.last_ts:
            what = f"hub_ts {report.first_ts} is before {self.last_ts}, that of an entry before it (D-28)"
            self._add(ref.start_seq, ref.path, 0, "time", what)

    def _boundary(self, start: int, next_length: int | None) -> None:
        """Whether the sealed chunk before `start` ended in the right place; what follows it tells."""
        before = self.commitments[-1] if self.commitments else None
        if before is None or before.end != start - 1 or not self._sealed_bytes:
            return
        if not ends_rightly(self._sealed_bytes, before.count, next_length, self._limits_of(before)):
            path = layout.chunk(self.label, before.start, before.end)
            what = "the chunk does not end where its limits demand (D-70)"
            self._add(before.end, path, self._sealed_bytes, "limits", what)

    def _limits_of(self, chunk: Commitment) -> list[Limits | None]:
        """The limits that may have applied when a chunk was begun."""
        if chunk.start == 1:
            opened = self.context.opened(self.label)
            return [opened.limits if opened else None]
        earlier = self.commitments[-2] if len(self.commitments) > 1 else None
        if earlier is None or earlier.end != chunk.start - 1:
            return [None]
        return self.context.control.limits_between(earlier.last_ts, chunk.first_ts)

    def _join_writers(self, ref: ChunkRef, report: ChunkReport) -> None:
        offsets = {writer.stream_seq: writer.offset for writer in report.writers}
        for fault in self.authors.merge(authors_of(report.writers, report.lost)):
            broken = entry_fault(fault)
            self._add(fault.seq, ref.path, offsets[fault.seq], broken.code, broken.message)

    def _cursors(self) -> tuple[Cursor, ...]:
        """The cursors of the label and of its writers after the last chunk."""
        own = Cursor(self.label, self.place, None, 0, 0, self.authors.unseen, self.last_ts, self._sealed_bytes)
        writers = (
            Cursor(self.label, self.place, client_id, span.last_seq, span.last_ack, span.last_unseen, 0, 0)
            for client_id, span in self.authors.spans.items()
        )
        return (own, *writers)

    def finish(self, size: int) -> JoinedLabel:
        """After the last chunk."""
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
