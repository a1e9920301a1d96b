"""An audit, from a directory to a verdict (DESIGN §7).

    1  pin         the prefix that is judged; what a running hub writes later belongs to the next audit
    2  driver      identity, control journal, names
    3  pass 1      each chunk folds into a Span of the tree, needing no other; merged from left to right
    4  pass 2      each chunk is checked from the peaks before it
    5  driver      chunks of a label joined: writers, time, boundaries; the ends of labels

Both passes run wherever the engine says. All merging is in the order of the log, so the outcome does not depend on how
chunks were dealt out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from veen.core.objects.identity import HubIdentity
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.tlog.policy import WitnessPolicy
from veen.fs.local import Fs
from veen.fs.places import open_fs
from veen.storage import layout
from veen.storage.control_state import fence_fault
from veen.storage.pinned import ChunkRef, LabelPin, pin
from veen.verify.audit import findings as found_tables
from veen.verify.audit import tables
from veen.verify.audit.chunk import ChunkTask, check_chunk
from veen.verify.audit.context import AuditContext, AuditOptions, Level, known_profiles
from veen.verify.audit.control import Control, read_control
from veen.verify.audit.directory import check_directory, check_ends, read_identity, settle_active
from veen.verify.audit.engine import AuditEngine, PythonEngine
from veen.verify.audit.findings import LogFinding, ordered
from veen.verify.audit.joining import JoinedLabel, LabelJoin
from veen.verify.audit.outer import WitnessVerdict, check_outer
from veen.verify.audit.peaks import ChunkFold, fold_chunk, starts_of
from veen.verify.audit.previous import Previous
from veen.verify.identity import pin_fault
from veen.verify.seals import Peaks, vouched_peaks

__all__ = ["AuditResult", "LabelResult", "Progress", "audit"]

Progress = Callable[[str], None]
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResult:
    """How far a label goes, and whether it could be followed to its head."""

    label: bytes
    epoch: int | None
    stream_id: bytes | None
    size: int
    root: bytes | None
    resumed_at: int  # entries that an earlier audit has judged


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The verdict and what it rests on. Equal for every engine and every cut of the log."""

    uri: str
    hub_id: bytes | None
    level: Level
    labels: tuple[LabelResult, ...]
    findings: tuple[LogFinding, ...]
    commitments: tuple[tables.Commitment, ...]
    cursors: tuple[tables.Cursor, ...]
    counts: Mapping[str, int]
    pin: TrustedKeys | None = None  # the keys that were trusted before; None: only the directory named them
    identity_given: bool = False  # whether the identity record came from elsewhere
    witnesses: WitnessVerdict | None = None  # what the witnesses of a policy vouch for; None: not asked, or they do not

    @property
    def ok(self) -> bool:
        """Whether the evidence is good: warnings, and files that can be made again, do not count against it."""
        return not any(finding.is_evidence for finding in self.findings)

    @property
    def findings_table(self) -> pa.Table:
        return found_tables.to_table(self.findings)

    @property
    def commitments_table(self) -> pa.Table:
        return tables.table_of(self.commitments, tables.COMMITMENTS)

    @property
    def cursors_table(self) -> pa.Table:
        return tables.table_of(self.cursors, tables.CURSORS)


def audit(
    uri: str,
    options: AuditOptions | None = None,
    *,
    engine: AuditEngine | None = None,
    since: Previous | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Judge the directory at `uri`, a path or a URL. `since` goes on from an earlier audit."""
    return _Audit(uri, options or AuditOptions(), engine or PythonEngine(), since, progress or (lambda _: None)).run()


class _Audit:
    def __init__(
        self, uri: str, options: AuditOptions, engine: AuditEngine, since: Previous | None, progress: Progress
    ) -> None:
        self._uri, self._options, self._engine, self._since = uri, options, engine, since
        self._progress = progress
        self._fs: Fs = open_fs(uri)
        self._findings: list[LogFinding] = []

    def run(self) -> AuditResult:
        options, fs = self._options, self._fs
        self._progress("pinning the log")
        pinned = pin(self._uri, options.labels)
        identity = read_identity(fs, options, self._findings)
        if self._since is not None:
            self._since.check_hub(identity.hub_id if identity else None)
            self._since.check_pin(options.pin.to_text() if options.pin else None)
        # After the pin: whatever authorises a pinned entry was written before it.
        control = read_control(fs, identity, verify=options.level != "structure")
        if (fault := pin_fault(options.pin, options.identity, identity, control.fold, self._fs)) is not None:
            self._findings.append(LogFinding(layout.IDENTITY, 0, "pin", fault))
        context = AuditContext(
            uri=self._uri,
            level=options.level,
            sample_per_million=options.sample_per_million,
            seed=options.seed,
            identity=identity,
            control=control.fold,
            control_whole=control.whole,
            chunks_only=options.chunks_only,
            profiles=known_profiles(options.profiles),
            profiles_given=options.profiles is not None,
        )
        if not options.chunks_only:
            self._findings += control.findings
        labels = {label: self._sane(label_pin) for label, label_pin in sorted(pinned.labels.items())}
        self._findings += check_directory(fs, context, control, labels, all_labels=options.labels is None)
        resumed = {label: self._resume(label_pin, identity) for label, label_pin in labels.items()}
        self._check_gone(labels)
        joined = self._judge(context, labels, resumed)
        self._findings += check_ends(fs, context, control, labels, joined, options.labels)
        heads = ((label, part.size, part.root) for label, part in joined.items())
        if options.labels is None and (fault := fence_fault(control.last, heads)) is not None:
            self._findings.append(LogFinding(layout.CONTROL, 0, "control", fault))
        result = self._result(context, control, labels, joined, resumed)
        return result if options.policy is None else self._witnessed(result, options.policy, control, labels, joined)

    def _witnessed(
        self,
        result: AuditResult,
        policy: WitnessPolicy,
        control: Control,
        labels: Mapping[bytes, LabelPin],
        joined: Mapping[bytes, JoinedLabel],
    ) -> AuditResult:
        self._progress("the list that witnesses cosigned")
        roots = {label: (part.size, part.root) for label, part in joined.items()}
        verdict, findings = check_outer(self._fs, policy, control.fold.outer_key, labels, roots)
        return replace(result, witnesses=verdict, findings=ordered([*result.findings, *findings]))

    def _sane(self, pinned: LabelPin) -> LabelPin:
        """Without files whose names cannot be true."""
        good: list[ChunkRef] = []
        for ref in pinned.chunks:
            if 1 <= ref.start_seq <= ref.end_seq <= _MOST:
                good.append(ref)
            else:
                what = "no chunk can have the bounds that this name says"
                self._findings.append(LogFinding(ref.path, 0, "frame", what, label=pinned.label))
        return settle_active(self._fs, self._uri, replace(pinned, chunks=tuple(good)), self._findings)

    def _resume(self, pinned: LabelPin, identity: HubIdentity | None) -> int:
        """Behind which entry this audit begins; says so if what an earlier one has seen is not here any more."""
        if self._since is None:
            return 0
        last, head = self._since.resume_at(pinned.label), self._since.head(pinned.label)
        if head > pinned.size:
            self._history(pinned.label, pinned.size, f"has seen entry {head}; the log now ends with {pinned.size}")
        if not last:
            return 0
        if all(ref.end_seq != last for ref in pinned.chunks):
            self._history(pinned.label, last, f"has seen a chunk that ends with entry {last}; there is none now")
            return 0
        signed = vouched_peaks(self._fs, identity, pinned.label, last)
        if signed is not None and signed != self._since.peaks(pinned.label)[last]:
            self._history(pinned.label, last, "has seen another root than the checkpoint after this entry has now")
            return 0
        return last

    def _history(self, label: bytes, seq: int, what: str) -> None:
        message = f"an earlier audit {what}"
        self._findings.append(LogFinding(layout.LOG, 0, "history", message, label=label, stream_seq=seq))

    def _check_gone(self, labels: Mapping[bytes, LabelPin]) -> None:
        """Labels that an earlier audit has seen."""
        wanted = self._options.labels
        for label in sorted(self._since.commitments if self._since else ()):
            if label not in labels and (wanted is None or label in wanted):
                self._history(label, 1, "has seen this label; it is gone")

    # --- both passes -------------------------------------------------------------------------------------

    def _judge(
        self, context: AuditContext, labels: Mapping[bytes, LabelPin], resumed: Mapping[bytes, int]
    ) -> dict[bytes, JoinedLabel]:
        chunks = {
            label: [ref for ref in label_pin.chunks if ref.start_seq > resumed[label]]
            for label, label_pin in labels.items()
        }
        refs = [ref for label_pin in chunks.values() for ref in label_pin]
        self._progress(f"pass 1: the trees of {len(refs)} chunks")
        folds = iter(self._engine.map(fold_chunk, context, refs, weight=_bytes_of, what="pass 1"))
        tasks: list[ChunkTask] = []
        for label, label_pin in chunks.items():
            tasks += self._tasks(context, label_pin, [next(folds) for _ in label_pin], label)
        return self._join(context, labels, resumed, tasks)

    def _tasks(
        self, context: AuditContext, chunks: Sequence[ChunkRef], folds: Sequence[ChunkFold], label: bytes
    ) -> Iterator[ChunkTask]:
        peaks_before: Mapping[int, Peaks] = self._since.peaks(label) if self._since else {}
        marks = self._since.marks(label) if self._since else {}
        starts = starts_of(self._fs, context.identity, chunks, folds, peaks_before)
        for ref, peaks in zip(chunks, starts, strict=True):
            chunk_marks = tuple((seq, root) for seq, root in marks.items() if ref.start_seq <= seq <= ref.end_seq)
            yield ChunkTask(ref=ref, peaks=peaks, marks=chunk_marks)

    def _join(
        self,
        context: AuditContext,
        labels: Mapping[bytes, LabelPin],
        resumed: Mapping[bytes, int],
        tasks: Sequence[ChunkTask],
    ) -> dict[bytes, JoinedLabel]:
        joins = {label: LabelJoin(label, context) for label in labels}
        for label, last in resumed.items():
            if self._since is not None and last:
                joins[label].resume(*self._since.state(label))
                joins[label].findings += self._since.findings_upto(label, last)
        self._progress(f"pass 2: the entries of {len(tasks)} chunks")
        reports = self._engine.map(check_chunk, context, tasks, weight=_task_bytes, what="pass 2")
        for number, (task, report) in enumerate(zip(tasks, reports, strict=True), start=1):
            joins[task.ref.label].add(task, report)
            self._progress(f"pass 2: {number} of {len(tasks)} chunks")
        return {label: join.finish(labels[label].size) for label, join in joins.items()}

    # --- the verdict -------------------------------------------------------------------------------------

    def _result(
        self,
        context: AuditContext,
        control: Control,
        labels: Mapping[bytes, LabelPin],
        joined: Mapping[bytes, JoinedLabel],
        resumed: Mapping[bytes, int],
    ) -> AuditResult:
        self._epochs(joined)
        label_results = []
        for label in labels:
            opened = context.opened(label)
            label_results.append(
                LabelResult(
                    label=label,
                    epoch=opened.epoch if opened else None,
                    stream_id=opened.stream_id if opened else None,
                    size=joined[label].size,
                    root=joined[label].root,
                    resumed_at=resumed[label],
                )
            )
        findings = [*self._findings, *(finding for result in joined.values() for finding in result.findings)]
        return AuditResult(
            uri=self._uri,
            hub_id=context.identity.hub_id if context.identity else None,
            level=context.level,
            pin=self._options.pin,
            identity_given=self._options.identity is not None,
            labels=tuple(label_results),
            findings=ordered(findings),
            commitments=tuple(row for result in joined.values() for row in result.commitments),
            cursors=tuple(row for result in joined.values() for row in sorted(result.cursors, key=_by_client)),
            counts={
                "labels": len(labels),
                "chunks": sum(len(findings.chunks) for findings in labels.values()),
                "entries": sum(result.size for result in joined.values()),
                "entries_read": sum(result.entries for result in joined.values()),
                "bytes_read": sum(result.total_bytes for result in joined.values()),
                "signatures": sum(result.signatures for result in joined.values()) + control.signatures,
                "control_records": control.records,
            },
        )

    def _epochs(self, joined: Mapping[bytes, JoinedLabel]) -> None:
        used = sorted(set().union(*(result.epoch_secs for result in joined.values())))
        if len(used) > 1:
            what = f"the profiles of one hub must share one epoch_sec, found {used} (D-25)"
            self._findings.append(LogFinding(layout.LOG, 0, "epoch", what))


def _by_client(cursor: tables.Cursor) -> bytes:
    return cursor.client_id or b""


def _bytes_of(ref: ChunkRef) -> int:
    return ref.size


def _task_bytes(task: ChunkTask) -> int:
    return task.ref.size
