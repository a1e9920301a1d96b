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

from veen.core.hubkeys import HubIdentity
from veen.pipeline.audit import findings as found_tables
from veen.pipeline.audit import tables
from veen.pipeline.audit.chunk import ChunkTask, check_chunk
from veen.pipeline.audit.context import AuditOptions, Context, Level, known_profiles
from veen.pipeline.audit.control import Control, read_control
from veen.pipeline.audit.directory import check_directory, check_ends, read_identity, settle_active
from veen.pipeline.audit.engine import Engine, PythonEngine
from veen.pipeline.audit.findings import Finding, ordered
from veen.pipeline.audit.folding import ChunkFold, Peaks, fold_chunk, starts_of, vouched_peaks
from veen.pipeline.audit.joining import Joined, LabelJoin
from veen.pipeline.audit.previous import Previous
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import ChunkRef, LabelPin, pin
from veen.storage import layout
from veen.storage.fs import Fs

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
    findings: tuple[Finding, ...]
    commitments: tuple[tables.Commitment, ...]
    cursors: tuple[tables.Cursor, ...]
    counts: Mapping[str, int]

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
    engine: Engine | None = None,
    since: Previous | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Judge the directory at `uri`, a path or a URL. `since` goes on from an earlier audit."""
    return _Audit(uri, options or AuditOptions(), engine or PythonEngine(), since, progress or (lambda _: None)).run()


class _Audit:
    def __init__(
        self, uri: str, options: AuditOptions, engine: Engine, since: Previous | None, progress: Progress
    ) -> None:
        self._uri, self._options, self._engine, self._since = uri, options, engine, since
        self._progress = progress
        self._fs: Fs = open_fs(uri)
        self._found: list[Finding] = []

    def run(self) -> AuditResult:
        options, fs = self._options, self._fs
        self._progress("pinning the log")
        pinned = pin(self._uri, options.labels)
        identity = read_identity(fs, options, self._found)
        if self._since is not None:
            self._since.check_hub(identity.hub_id if identity else None)
        # After the pin: whatever authorises a pinned entry was written before it.
        control = read_control(fs, identity, verify=options.level != "structure")
        context = Context(
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
            self._found += control.findings
        labels = {label: self._sane(found) for label, found in sorted(pinned.labels.items())}
        self._found += check_directory(fs, context, control, labels, all_labels=options.labels is None)
        resumed = {label: self._resume(found, identity) for label, found in labels.items()}
        self._check_gone(labels)
        joined = self._judge(context, labels, resumed)
        self._found += check_ends(fs, context, control, labels, joined, options.labels)
        return self._result(context, control, labels, joined, resumed)

    def _sane(self, pinned: LabelPin) -> LabelPin:
        """Without files whose names cannot be true."""
        good: list[ChunkRef] = []
        for ref in pinned.chunks:
            if 1 <= ref.start_seq <= ref.end_seq <= _MOST:
                good.append(ref)
            else:
                what = "no chunk can have the bounds that this name says"
                self._found.append(Finding(label=pinned.label, path=ref.path, code="frame", message=what))
        return settle_active(self._fs, self._uri, replace(pinned, chunks=tuple(good)), self._found)

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
        self._found.append(Finding(label=label, stream_seq=seq, path=layout.LOG, code="history", message=message))

    def _check_gone(self, labels: Mapping[bytes, LabelPin]) -> None:
        """Labels that an earlier audit has seen."""
        wanted = self._options.labels
        for label in sorted(self._since.commitments if self._since else ()):
            if label not in labels and (wanted is None or label in wanted):
                self._history(label, 1, "has seen this label; it is gone")

    # --- both passes -------------------------------------------------------------------------------------

    def _judge(
        self, context: Context, labels: Mapping[bytes, LabelPin], resumed: Mapping[bytes, int]
    ) -> dict[bytes, Joined]:
        chunks = {
            label: [ref for ref in found.chunks if ref.start_seq > resumed[label]] for label, found in labels.items()
        }
        refs = [ref for found in chunks.values() for ref in found]
        self._progress(f"pass 1: the trees of {len(refs)} chunks")
        folds = iter(self._engine.map(fold_chunk, context, refs, weight=_bytes_of, what="pass 1"))
        tasks: list[ChunkTask] = []
        for label, found in chunks.items():
            tasks += self._tasks(context, found, [next(folds) for _ in found], label)
        return self._join(context, labels, resumed, tasks)

    def _tasks(
        self, context: Context, chunks: Sequence[ChunkRef], folds: Sequence[ChunkFold], label: bytes
    ) -> Iterator[ChunkTask]:
        known: Mapping[int, Peaks] = self._since.peaks(label) if self._since else {}
        marks = self._since.marks(label) if self._since else {}
        starts = starts_of(self._fs, context.identity, chunks, folds, known)
        for ref, peaks in zip(chunks, starts, strict=True):
            seen = tuple((seq, root) for seq, root in marks.items() if ref.start_seq <= seq <= ref.end_seq)
            yield ChunkTask(ref=ref, peaks=peaks, marks=seen)

    def _join(
        self,
        context: Context,
        labels: Mapping[bytes, LabelPin],
        resumed: Mapping[bytes, int],
        tasks: Sequence[ChunkTask],
    ) -> dict[bytes, Joined]:
        joins = {label: LabelJoin(label, context) for label in labels}
        for label, last in resumed.items():
            if self._since is not None and last:
                joins[label].resume(*self._since.state(label))
                joins[label].found += self._since.findings_upto(label, last)
        self._progress(f"pass 2: the entries of {len(tasks)} chunks")
        reports = self._engine.map(check_chunk, context, tasks, weight=_task_bytes, what="pass 2")
        for number, (task, report) in enumerate(zip(tasks, reports, strict=True), start=1):
            joins[task.ref.label].add(task, report)
            self._progress(f"pass 2: {number} of {len(tasks)} chunks")
        return {label: join.finish(labels[label].size) for label, join in joins.items()}

    # --- the verdict -------------------------------------------------------------------------------------

    def _result(
        self,
        context: Context,
        control: Control,
        labels: Mapping[bytes, LabelPin],
        joined: Mapping[bytes, Joined],
        resumed: Mapping[bytes, int],
    ) -> AuditResult:
        self._epochs(joined)
        made = []
        for label in labels:
            opened = context.opened(label)
            made.append(
                LabelResult(
                    label=label,
                    epoch=opened.epoch if opened else None,
                    stream_id=opened.stream_id if opened else None,
                    size=joined[label].size,
                    root=joined[label].root,
                    resumed_at=resumed[label],
                )
            )
        found = [*self._found, *(finding for one in joined.values() for finding in one.findings)]
        return AuditResult(
            uri=self._uri,
            hub_id=context.identity.hub_id if context.identity else None,
            level=context.level,
            labels=tuple(made),
            findings=ordered(found),
            commitments=tuple(row for one in joined.values() for row in one.commitments),
            cursors=tuple(row for one in joined.values() for row in sorted(one.cursors, key=_by_client)),
            counts={
                "labels": len(labels),
                "chunks": sum(len(found.chunks) for found in labels.values()),
                "entries": sum(one.size for one in joined.values()),
                "entries_read": sum(one.entries for one in joined.values()),
                "bytes_read": sum(one.total_bytes for one in joined.values()),
                "signatures": sum(one.signatures for one in joined.values()) + control.signatures,
                "control_records": control.records,
            },
        )

    def _epochs(self, joined: Mapping[bytes, Joined]) -> None:
        used = sorted(set().union(*(one.epoch_secs for one in joined.values())))
        if len(used) > 1:
            what = f"the profiles of one hub must share one epoch_sec, found {used} (D-25)"
            self._found.append(Finding(path=layout.LOG, code="epoch", message=what))


def _by_client(cursor: tables.Cursor) -> bytes:
    return cursor.client_id or b""


def _bytes_of(ref: ChunkRef) -> int:
    return ref.size


def _task_bytes(task: ChunkTask) -> int:
    return task.ref.size
