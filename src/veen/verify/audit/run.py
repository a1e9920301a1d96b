"""An audit, from a directory to a verdict (DESIGN §7).

    1  pin         the prefix that is audited; what a running hub writes later belongs to the next audit
    2  driver      identity, control journal, names
    3  pass 1      each chunk is checked from the peaks that the seal before it claims, needing no other chunk
    4  driver      claims compared from left to right: a chunk ends with the peaks that the next one began with
    5  pass 2      chunks of which that does not hold, or in which anything is wrong, from the peaks before them
    6  driver      chunks of a label joined: writers, time, boundaries; the ends of labels

A claim is used only if it equals what follows from the chunks before it, so a report is that of an audit without
claims, for any damage; of a log without damage each chunk is read once. Where a claim does not serve, pass 1 folds the
leaves of the chunk instead, which takes no chunk before it either.

Both passes run wherever the engine says. All merging is in the order of the log, so the outcome does not depend on how
chunks were dealt out.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from veen.core.objects.identity import HubIdentity
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.tlog.policy import WitnessPolicy
from veen.core.verdict import Coverage, Reason, StatedBy, Verdict
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.storage import layout
from veen.storage.control_state import fence_fault
from veen.storage.pinned import ChunkRef, LabelPin, LogView, pin
from veen.verify.audit import findings as found_tables
from veen.verify.audit import tables
from veen.verify.audit.chunk import ChunkReport, ChunkTask, ClaimedCheck, Frontier, check_chunk, check_claimed
from veen.verify.audit.context import SIGNATURES, AuditContext, AuditOptions, Level, list_profiles
from veen.verify.audit.directory import (
    Control,
    cannot_open,
    check_directory,
    check_ends,
    read_control,
    read_identity,
    settle_active,
)
from veen.verify.audit.engine import AuditEngine, PythonEngine
from veen.verify.audit.findings import LogFinding, sort_findings, without_control
from veen.verify.audit.joining import JoinedLabel, LabelJoin
from veen.verify.audit.outer import OuterFiles, WitnessVerdict, check_anchored, check_outer
from veen.verify.audit.previous import Previous
from veen.verify.identity import pin_fault
from veen.verify.seals import Peaks, read_signed_peaks

Progress = Callable[[str], None]
_MOST: Final = (1 << 63) - 1
_WAITING: Final = 4096  # reports that are held until pass 2 has checked a chunk before them


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResult:
    """Extent of a label, and whether it could be followed to its head."""

    label: bytes
    epoch: int | None
    stream_id: bytes | None
    size: int
    root: bytes | None
    resumed_at: int  # entries that an earlier audit has checked


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The verdict and its basis. Equal for every engine and every cut of the log."""

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
    compared: tuple[Coverage, ...]  # by label: how far it was read, and how far it goes by whose word
    inputs: Mapping[str, Any]  # all options that what was found depends on: an audit goes on only from equal ones
    reservations: tuple[Reason, ...] = ()  # of the caller, who knows more than the log

    @property
    def verdict(self) -> Verdict:
        """The verdict: bad if a finding is about the log itself; incomplete if less was compared than is stated."""
        by_code: dict[str, list[LogFinding]] = {}
        for finding in self.findings:
            if finding.severity == "error" or finding.code == "unverified":
                by_code.setdefault(finding.code, []).append(finding)
        findings = (_reason(code, found_here) for code, found_here in by_code.items())
        return Verdict.of(self.compared, (*self.reservations, *findings))

    @property
    def ok(self) -> bool:
        """True if the verdict is good. Warnings do not change it."""
        return self.verdict.is_good

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
    """Audit the directory at `uri`, a path or a URL. `since` continues from an earlier audit."""
    return _Audit(uri, options or AuditOptions(), engine or PythonEngine(), since, progress or (lambda _: None)).run()


class _Audit:
    def __init__(
        self, uri: str, options: AuditOptions, engine: AuditEngine, since: Previous | None, progress: Progress
    ) -> None:
        self._uri, self._options, self._engine, self._since = uri, options, engine, since
        self._progress = progress
        self._fs: Fs = open_fs(uri)
        self._findings: list[LogFinding] = []
        self._listed: Mapping[bytes, int] = {}  # the heads in the outer log, before the log was pinned
        self._view: LogView

    def run(self) -> AuditResult:
        options, fs = self._options, self._fs
        self._progress("pinning the log")
        outer = OuterFiles.read(fs)  # before the pin: whatever is listed by now is in the view of the log
        self._listed = outer.heads()
        earlier = self._since.heads if self._since is not None else {}
        reach = {label: head for label, head in earlier.items() if options.labels is None or label in options.labels}
        pinned = self._view = pin(self._uri, options.labels, reach=reach)
        identity = read_identity(fs, options, self._findings)
        if self._since is not None:
            self._since.check_hub(identity.hub_id if identity else None)
            self._since.check_inputs(options.inputs)
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
            profiles=list_profiles(options.profiles),
            profiles_given=options.profiles is not None,
        )
        if not options.chunks_only:
            self._findings += control.findings
        labels = {label: self._sane(label_pin) for label, label_pin in sorted(pinned.labels.items())}
        labels = settle_active(fs, self._uri, labels, self._findings)
        self._take(layout.LOG, check_directory(fs, context, control, labels, all_labels=options.labels is None))
        resumed = {label: self._resume(label_pin, identity) for label, label_pin in labels.items()}
        self._check_gone(labels)
        joined = self._judge(context, labels, resumed)
        ends = check_ends(fs, context, control, labels, joined, options.labels, self._listed)
        self._take(layout.LOG, ends)
        heads = ((label, part.size, part.root) for label, part in joined.items())
        if options.labels is None and (fault := fence_fault(control.last, heads)) is not None:
            self._findings.append(LogFinding(layout.CONTROL, 0, "control", fault))
        if not options.chunks_only:
            roots = {label: (part.size, part.root) for label, part in joined.items()}
            seals = {label: {row.end: row.root for row in part.commitments} for label, part in joined.items()}
            self._findings += check_anchored(fs, control.fold.anchors, labels, roots, seals)
        result = self._result(context, control, labels, joined, resumed)
        if options.policy is None:
            return result
        return self._check_witnesses(result, outer, options.policy, control, labels, joined)

    def _take(self, where: str, findings: Iterator[LogFinding]) -> None:
        """Add findings. A file that cannot be opened is a finding, too, and ends the checks that need it."""
        try:
            for finding in findings:
                self._findings.append(finding)
        except (StorageError, OSError) as exc:
            name = getattr(exc, "filename", None)
            root = str(getattr(self._fs, "root", ""))
            path = name.removeprefix(root).lstrip("/") if isinstance(name, str) else where
            self._findings.append(cannot_open(path, exc))

    def _check_witnesses(
        self,
        result: AuditResult,
        outer: OuterFiles,
        policy: WitnessPolicy,
        control: Control,
        labels: Mapping[bytes, LabelPin],
        joined: Mapping[bytes, JoinedLabel],
    ) -> AuditResult:
        self._progress("the list that witnesses cosigned")
        roots = {label: (part.size, part.root) for label, part in joined.items()}
        verdict, findings = check_outer(
            self._fs, self._uri, outer, policy, control.fold.outer_key, labels, roots, self._options.labels
        )
        compared = result.compared if verdict is None else self._cover(labels, {StatedBy.WITNESS: verdict.heads})
        return replace(
            result, witnesses=verdict, compared=compared, findings=sort_findings([*result.findings, *findings])
        )

    def _cover(
        self, labels: Mapping[bytes, LabelPin], stated: Mapping[StatedBy, Mapping[bytes, int]]
    ) -> tuple[Coverage, ...]:
        """Return for each label the position that was read and the head, by its own files or by others."""
        options = self._options
        key = options.pin.to_text() if options.pin else None
        if key is None and options.identity is not None:
            key = f"ed25519:{options.identity.keys[-1].hub_pk.hex()}"
        rows = replace(self._view, labels=labels).coverage(
            key, stated={StatedBy.OWN_FILES: self._listed, **stated}, labels=options.labels
        )
        return tuple(replace(row, signatures=SIGNATURES[options.level]) for row in rows)

    def _sane(self, pinned: LabelPin) -> LabelPin:
        """Return the pin without files whose names cannot be true."""
        good: list[ChunkRef] = []
        for ref in pinned.chunks:
            if 1 <= ref.start_seq <= ref.end_seq <= _MOST and ref.is_possible:
                good.append(ref)
            else:
                what = "no chunk can have the bounds that this name says"
                self._findings.append(LogFinding(ref.path, 0, "frame", what, label=pinned.label))
        return replace(pinned, chunks=tuple(good))

    def _resume(self, pinned: LabelPin, identity: HubIdentity | None) -> int:
        """Return the entry after which this audit begins; add a finding if earlier entries are missing."""
        if self._since is None:
            return 0
        last, head = self._since.resume_at(pinned.label), self._since.head(pinned.label)
        if head > pinned.size:
            what = f"has seen entry {head}; the log now ends with {pinned.size}"
            self._history(pinned.label, pinned.size, what, code="cut")
        if not last:
            return 0
        if all(ref.end_seq != last for ref in pinned.chunks):
            self._history(
                pinned.label, last, f"has seen a chunk that ends with entry {last}; there is none now", code="cut"
            )
            return 0
        signed = read_signed_peaks(self._fs, identity, pinned.label, last)
        if signed is not None and signed != self._since.peaks(pinned.label)[last]:
            self._history(pinned.label, last, "has seen another root than the checkpoint after this entry has now")
            return 0
        return last

    def _history(self, label: bytes, seq: int, what: str, *, code: str = "history") -> None:
        message = f"an earlier audit {what}"
        self._findings.append(LogFinding(layout.LOG, 0, code, message, label=label, stream_seq=seq))

    def _check_gone(self, labels: Mapping[bytes, LabelPin]) -> None:
        """Check for labels that an earlier audit has read."""
        wanted = self._options.labels
        for label in sorted(self._since.commitments if self._since else ()):
            if label not in labels and (wanted is None or label in wanted):
                self._history(label, 1, "has seen this label; it is gone", code="cut")

    # --- both passes -------------------------------------------------------------------------------------

    def _judge(
        self, context: AuditContext, labels: Mapping[bytes, LabelPin], resumed: Mapping[bytes, int]
    ) -> dict[bytes, JoinedLabel]:
        joins = self._joins(context, labels, resumed)
        tasks = [
            task for label, label_pin in labels.items() for task in self._tasks(label_pin.chunks, label, resumed[label])
        ]
        frontiers = {label: self._frontier(context, label) for label in labels}
        waiting: list[tuple[ChunkTask, ChunkReport | None]] = []  # from the first one that pass 2 must check
        self._progress(f"pass 1: the entries of {len(tasks)} chunks")
        checks = self._engine.map(check_claimed, context, tasks, weight=_task_bytes, what="pass 1")
        for number, (task, check) in enumerate(zip(tasks, checks, strict=True), start=1):
            checked, report = _settle(frontiers[task.ref.label], task, check)
            if report is not None and not waiting:
                joins[task.ref.label].add(checked, report)
            else:
                waiting.append((checked, report))
            if len(waiting) >= _WAITING:
                self._check_again(context, waiting, joins)
                waiting = []
            self._progress(f"pass 1: {number} of {len(tasks)} chunks")
        self._check_again(context, waiting, joins)
        return {label: join.finish(labels[label].size) for label, join in joins.items()}

    def _joins(
        self, context: AuditContext, labels: Mapping[bytes, LabelPin], resumed: Mapping[bytes, int]
    ) -> dict[bytes, LabelJoin]:
        joins = {label: LabelJoin(label, context) for label in labels}
        for label, last in resumed.items():
            if self._since is not None and last:
                joins[label].resume(*self._since.state(label))
                joins[label].findings += self._since.findings_upto(label, last)
        return joins

    def _tasks(self, chunks: Sequence[ChunkRef], label: bytes, resumed_at: int) -> Iterator[ChunkTask]:
        marks = sorted(self._since.marks(label).items()) if self._since else []
        for ref in chunks:
            if ref.start_seq > resumed_at:
                first = bisect_left(marks, (ref.start_seq, b""))
                last = bisect_left(marks, (ref.end_seq + 1, b""))
                yield ChunkTask(ref=ref, marks=tuple(marks[first:last]))

    def _frontier(self, context: AuditContext, label: bytes) -> Frontier:
        peaks_before: Mapping[int, Peaks] = self._since.peaks(label) if self._since else {}
        return Frontier(self._fs, context.identity, peaks_before)

    def _check_again(
        self,
        context: AuditContext,
        waiting: Sequence[tuple[ChunkTask, ChunkReport | None]],
        joins: Mapping[bytes, LabelJoin],
    ) -> None:
        """Run pass 2 on the chunks without a report, and join the chunks that waited for them."""
        again = [task for task, report in waiting if report is None]
        if again:
            self._progress(f"pass 2: the entries of {len(again)} chunks, from the peaks before them")
        reports = iter(self._engine.map(check_chunk, context, again, weight=_task_bytes, what="pass 2"))
        for task, report in waiting:
            joins[task.ref.label].add(task, next(reports) if report is None else report)

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
            opened = context.find_opening(label)
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
        if not control.whole:
            findings = [without_control(finding) for finding in findings]
        return AuditResult(
            uri=self._uri,
            hub_id=context.identity.hub_id if context.identity else None,
            level=context.level,
            pin=self._options.pin,
            identity_given=self._options.identity is not None,
            labels=tuple(label_results),
            findings=sort_findings(findings),
            compared=self._cover(labels, {}),
            inputs=self._options.inputs,
            commitments=tuple(row for result in joined.values() for row in result.commitments),
            cursors=tuple(
                cursor
                for result in joined.values()
                for cursor in sorted(result.cursors, key=lambda cursor: cursor.client_id or b"")
            ),
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


def _settle(frontier: Frontier, task: ChunkTask, check: ClaimedCheck) -> tuple[ChunkTask, ChunkReport | None]:
    """Return the next chunk of a label with the peaks before it, and its report if it was checked from them."""
    peaks = frontier.before(task.ref)
    holds = peaks is not None and check.claim == peaks
    if check.fold is not None:
        frontier.add_fold(check.fold)
    else:
        frontier.clean(task.ref, check.report.run.peaks if holds and check.report is not None else None)
    return replace(task, peaks=peaks, fast=not holds), check.report if holds else None


def _reason(code: str, findings: Sequence[LogFinding]) -> Reason:
    """Return the reason for which findings of one code make a verdict bad or incomplete."""
    first = findings[0]
    entry = "" if first.stream_seq is None else f"entry {first.stream_seq}: "
    more = f"; {len(findings) - 1} more of this kind" if len(findings) > 1 else ""
    text = f"{first.path}, byte {first.offset}: {entry}{first.message} [{code}]{more}"
    return Reason(first.because, text)


def _task_bytes(task: ChunkTask) -> int:
    return task.ref.size
