"""The check of every entry of a chunk, and of the files of its seal (I1 to I4, I6, I8 to I12).

`check_chunk` is a pure function of the pinned bytes. It receives the peaks before the chunk, and returns what the
following chunks need. `check_claimed` does the same from the peaks that the seal before the chunk claims; the claim
itself is checked later, from the chunks before it (`run`).

The peaks before each chunk of a label: claimed by a seal, or from the chunks before it (spec §5.1, DESIGN §7).

The subtrees that a chunk adds to the tree need no other chunk and are cheap: `fold_chunk` takes each leaf_hash from the
receipt. The check of the chunk reads the same bytes again and checks all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from veen.core import cbor
from veen.core.entry import HASH_BYTES
from veen.core.errors import VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.identity import HubIdentity
from veen.core.run_check import Authors, Rule, RunCheck, RunSummary
from veen.core.tree.mmr import Mmr, Span
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.copies import archive
from veen.storage.findings import Findings, Level, Severity
from veen.storage.pinned import ChunkRef, read_chunk
from veen.storage.scan import EntryFault, LabelFold, LabelRun, ScannedEntry, entry_fault, read_file
from veen.verify.audit.context import AuditContext
from veen.verify.audit.fast import Clean, fast_check
from veen.verify.audit.findings import LogFinding, merge_runs, place_finding
from veen.verify.entry import (
    EntryReading,
    LogScope,
    epoch_fault,
    frame_fault,
    read_entry,
    signature_count,
    signature_faults,
    size_faults,
    token_faults,
)
from veen.verify.seals import Peaks, SealCheck, read_signed_peaks
from veen.verify.vectors import Departs, decode


@dataclass(frozen=True, slots=True)
class ChunkFold:
    """The folded leaves of a chunk; None if one of them is unknown."""

    span: Span | None
    root: bytes | None  # after its last entry, as the receipt of that entry says


def fold_chunk(fs: Fs, _context: AuditContext, ref: ChunkRef) -> ChunkFold:
    """Fold the leaves of a chunk.

    It never raises: an unreadable chunk has no span, and its check reports the reason.
    """
    try:
        leaves_and_root = _leaves(fs, ref)
    except (VeenError, OSError):
        return ChunkFold(None, None)
    if leaves_and_root is None or len(leaves_and_root[0]) != ref.entries:
        return ChunkFold(None, None)
    leaves, root = leaves_and_root
    return ChunkFold(Span.of(ref.start_seq - 1, leaves), root)


def _leaves(fs: Fs, ref: ChunkRef) -> tuple[list[bytes], bytes | None] | None:
    if ref.kind in ("receipts", "heads"):
        return _of_items(read_archive(fs, ref))
    try:
        data = read_chunk(fs, ref)
    except FileNotFoundError:
        return _of_items(read_archive(fs, ref))
    try:
        vector = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
    except Departs:
        return _one_by_one(data, ref)
    leaves = [data[at : at + HASH_BYTES] for at in vector.leaf_at.tolist()]
    at = int(vector.root_at[-1]) if len(vector) else None
    return leaves, None if at is None else data[at : at + HASH_BYTES]


def read_archive(fs: Fs, ref: ChunkRef) -> Iterator[ScannedEntry]:
    """Yield the entries of an erased chunk, also of one that a running hub erased since it was pinned."""
    receipts = fs.exists(layout.receipts_archive(ref.label, ref.start_seq, ref.end_seq))
    return archive.items(fs, ref.label, ref.start_seq, ref.end_seq, receipts=receipts)


def _of_items(items: Iterator[ScannedEntry]) -> tuple[list[bytes], bytes | None]:
    leaves, root = [], None
    for item in items:
        leaves.append(item.leaf_hash)
        root = item.receipt.mmr_root if item.receipt else None
    return leaves, root


def _one_by_one(data: bytes, ref: ChunkRef) -> tuple[list[bytes], bytes | None] | None:
    leaves: list[bytes] = []
    pos, root = 0, None
    for seq in range(ref.start_seq, ref.end_seq + 1):
        entry = read_entry(data, pos, ref, seq)
        if entry is None or not entry.leaves:
            return None
        leaves.append(entry.leaves[0])
        pos, root = pos + entry.length, entry.root
    return leaves, root


# --- claims, and what follows from the chunks before ---------------------------------------------------------


def read_claimed_peaks(fs: Fs, label: bytes, size: int) -> Peaks | None:
    """Return the peaks that the seal at `size` claims; None if it has none that fit `size` entries."""
    if size == 0:
        return ()
    try:
        peaks = cbor.decode(read_file(fs, layout.peaks(label, size)))
        if type(peaks) is not list or any(type(peak) is not bytes for peak in peaks):
            return None
        Mmr(size, peaks)  # the right number of hashes
    except (VeenError, OSError):
        return None
    return tuple(peaks)


class Frontier:
    """The tree of one label up to the next chunk, from left to right.

    The tree continues from a chunk only if its leaves give the root in its last receipt. After a chunk for which they
    do not, or that is missing, it continues from the peaks of a signed checkpoint. `peaks_by_size` are those of an
    earlier audit.
    """

    def __init__(self, fs: Fs, identity: HubIdentity | None, peaks_by_size: Mapping[int, Peaks]) -> None:
        self._fs, self._identity, self._peaks_by_size = fs, identity, peaks_by_size
        self._state: Span | None = Span(0, 0, ())

    def before(self, ref: ChunkRef) -> Peaks | None:
        """Return the peaks before the next chunk; None if they are unknown."""
        size = ref.start_seq - 1
        if self._state is None or self._state.end != size:
            peaks = self._peaks_by_size.get(size)
            if peaks is None:
                peaks = read_signed_peaks(self._fs, self._identity, ref.label, size)
            self._state = None if peaks is None else Span.from_peaks(size, peaks)
        return None if self._state is None else self._state.peaks()

    def clean(self, ref: ChunkRef, peaks: Peaks | None) -> None:
        """Continue after a chunk in which the fast path found no fault; `peaks` are those after it.

        None means that it was checked from other peaks than those before it. Its roots, all true from those, are not
        true here.
        """
        follows = self._state is not None and peaks is not None
        self._state = Span.from_peaks(ref.end_seq, peaks or ()) if follows else None

    def add_fold(self, fold: ChunkFold) -> None:
        """Continue after a chunk with folded leaves."""
        if self._state is None or fold.span is None:
            self._state = None
            return
        merged = self._state.merge(fold.span)
        self._state = merged if fold.root is None or merged.root() == fold.root else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """A chunk to check, and what is known about the log before it."""

    ref: ChunkRef
    peaks: Peaks | None = None  # before its first entry; None if that is not known
    marks: tuple[tuple[int, bytes], ...] = ()  # roots that an earlier audit has seen inside it
    fast: bool = True  # False: the fast path has failed with these peaks before


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """The findings of a chunk, and the values that join it to its neighbours."""

    findings: tuple[LogFinding, ...]
    run: RunSummary  # with peaks if every root up to the last entry was found true
    offsets: Mapping[bytes, int]  # where the first entry of each author lies
    entries: int  # that were read
    signatures: int
    total_bytes: int
    first_length: int
    epoch_secs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedCheck:
    """The result of checking a chunk from peaks that are only claimed.

    Without `fold`, the fast path found no fault: the roots of all receipts are true from `claim`, and the peaks of the
    report are those after the last one. With it, `report` is set only for chunks that the fast path does not read.
    """

    claim: Peaks | None  # None: no file claims any
    report: ChunkReport | None = None
    fold: ChunkFold | None = None


def check_chunk(fs: Fs, context: AuditContext, task: ChunkTask) -> ChunkReport:
    """Check one chunk. It never raises: what cannot be read becomes a finding."""
    return _Check(fs, context, task).run(fast=task.fast)


def check_claimed(fs: Fs, context: AuditContext, task: ChunkTask) -> ClaimedCheck:
    """Check one chunk from the peaks that the seal before it left; `task.peaks` is not read."""
    ref = task.ref
    claim = read_claimed_peaks(fs, ref.label, ref.start_seq - 1)
    if claim is None:
        return fold_only(fs, context, task)
    claimed = replace(task, peaks=claim)
    if task.marks or ref.kind in ("receipts", "heads"):  # the fast path reads neither
        return ClaimedCheck(claim=claim, report=check_chunk(fs, context, claimed), fold=fold_chunk(fs, context, ref))
    report = _Check(fs, context, claimed).run_clean()
    return ClaimedCheck(claim=claim, report=report, fold=None if report else fold_chunk(fs, context, ref))


def fold_only(fs: Fs, context: AuditContext, task: ChunkTask) -> ClaimedCheck:
    """Fold the leaves of a chunk without claimed peaks; it is checked when the peaks before it are known."""
    return ClaimedCheck(claim=None, fold=fold_chunk(fs, context, task.ref))


def check_chunk_slowly(fs: Fs, context: AuditContext, task: ChunkTask) -> ChunkReport:
    """Check one chunk entry by entry, without the fast path: the result must equal that of `check_chunk`."""
    return _Check(fs, context, task).run(fast=False)


@dataclass(slots=True)
class _Check:
    fs: Fs
    context: AuditContext
    task: ChunkTask
    findings: list[LogFinding] = field(default_factory=list)
    offsets: dict[bytes, int] = field(default_factory=dict)  # where the first entry of each author lies
    entries: int = 0
    signatures: int = 0
    first_length: int = 0
    first: tuple[int, int] = (0, 0)  # stream_seq and hub_ts of the first entry that could be read
    epoch_secs: set[int] = field(default_factory=set)
    fold: LabelFold = field(init=False)  # bytes and hashes of this chunk, and its check
    true_roots: bool = True

    def run(self, *, fast: bool) -> ChunkReport:
        stream_id = self._begin()
        for entry in self._entries(fast=fast):
            self._entry(entry)
        return self._report(stream_id)

    def run_clean(self) -> ChunkReport | None:
        """Return the report of a chunk in which the fast path finds no fault; None for any other."""
        assert self.task.peaks is not None  # noqa: S101 - `check_claimed` has them
        stream_id = self._begin()
        try:
            data = read_chunk(self.fs, self.task.ref)
        except (VeenError, OSError):
            return None
        clean = fast_check(data, self.task.ref, self.context, self.task.peaks)
        if clean is None:
            return None
        self._take_over(clean)
        return self._report(stream_id)

    def _begin(self) -> bytes | None:
        """Set the tree to the peaks before the chunk; return the stream of the label, if it is known."""
        ref, peaks = self.task.ref, self.task.peaks
        opened = self.context.find_opening(ref.label)
        epoch, stream_id = (opened.epoch, opened.stream_id) if opened else (0, None)
        self.fold = LabelFold(ref.label, 0, epoch, stream_id)
        self.fold.active_start = ref.start_seq
        before = ref.start_seq - 1
        tree = before if peaks is None else Mmr(before, peaks)
        self.fold.check = RunCheck(ref.label, tree, Authors(is_anchored=False))  # `joining` knows authors from before
        if peaks is None:
            self._add(ref.start_seq, 0, EntryFault("unverified", "the tree before this chunk is not known", "warning"))
        return stream_id

    def _report(self, stream_id: bytes | None) -> ChunkReport:
        ref, check = self.task.ref, self.fold.check
        for fault in check.finish():
            self._add(ref.end_seq, 0, entry_fault(fault))
        whole = check.is_followed and self.true_roots and check.size == ref.end_seq
        total_bytes, authors = self.fold.active_bytes, check.authors
        peaks = check.tree.peaks() if whole else None
        run = RunSummary(ref.entries, authors.spans, authors.unseen, *self.first, check.last_ts, peaks)
        if ref.is_sealed:
            self._check_erasure()
            if whole and not authors.unseen:
                self._check_seal(stream_id)
        return ChunkReport(
            findings=tuple(merge_runs(self.findings)),
            run=run,
            offsets=self.offsets,
            entries=self.entries,
            signatures=self.signatures,
            total_bytes=total_bytes,
            first_length=self.first_length,
            epoch_secs=tuple(sorted(self.epoch_secs)),
        )

    def _add(self, seq: int, offset: int, fault: EntryFault, path: str | None = None) -> None:
        self.findings.append(
            LogFinding(
                path or self.task.ref.path,
                offset,
                fault.code,
                fault.message,
                fault.severity,
                label=self.task.ref.label,
                stream_seq=seq,
            )
        )

    # --- reading -----------------------------------------------------------------------------------------

    def _entries(self, *, fast: bool) -> Iterator[EntryReading]:
        ref = self.task.ref
        if ref.kind in ("receipts", "heads"):
            yield from self._read_archived()
            return
        try:
            data = read_chunk(self.fs, ref)
        except FileNotFoundError:
            yield from self._read_archived()  # erased since it was pinned
            return
        except (VeenError, OSError) as exc:
            self._lose(ref.start_seq, 0, "frame", getattr(exc, "what", str(exc)))
            return
        if fast and self.task.peaks is not None and not self.task.marks:
            clean = fast_check(data, ref, self.context, self.task.peaks)
            if clean is not None:
                self._take_over(clean)
                return
        pos = 0
        for seq in range(ref.start_seq, ref.end_seq + 1):
            entry = read_entry(data, pos, ref, seq)
            if entry is None:
                self._lose(seq, pos, "frame", frame_fault(data, pos, ref.path).what)
                return
            yield entry
            pos += entry.length
        if pos != len(data):
            self._add(ref.end_seq, pos, EntryFault("frame", "bytes follow the last entry that the name speaks of"))

    def _take_over(self, clean: Clean) -> None:
        """Use the results of the fast path, which checked every entry."""
        fold = self.fold
        fold.check.merge(clean.run)
        fold.entry_hashes, fold.active_bytes = clean.entry_hashes, clean.size
        self.entries, self.signatures = clean.run.entries, clean.signatures
        self.first_length, self.first = clean.first_length, (clean.run.first_seq, clean.run.first_ts)
        self.epoch_secs, self.offsets = clean.epoch_secs, clean.offsets

    def _read_archived(self) -> Iterator[EntryReading]:
        ref, seq = self.task.ref, self.task.ref.start_seq
        try:
            for item in read_archive(self.fs, ref):
                root = item.receipt.mmr_root if item.receipt else None
                yield EntryReading(item.stream_seq, item.at, item.length, item, b"", (item.leaf_hash,), root)
                seq = item.stream_seq + 1
        except (CorruptError, OSError) as exc:
            where = (exc.path, exc.offset, exc.what) if isinstance(exc, CorruptError) else (ref.path, 0, str(exc))
            code = "frame" if self.fs.exists(where[0]) else "missing"
            self._lose(min(seq, ref.end_seq), where[1], code, where[2], where[0])

    def _lose(self, seq: int, offset: int, code: str, why: str, path: str | None = None) -> None:
        """Report that the entries from here to the end of the chunk cannot be read."""
        end = self.task.ref.end_seq
        rest = f"; entries {seq + 1} to {end} behind it cannot be found" if seq < end else ""
        self._add(seq, offset, EntryFault(code, f"{why}{rest}"), path)
        self.fold.check.skip(end - seq + 1)

    # --- one entry ---------------------------------------------------------------------------------------

    def _entry(self, entry: EntryReading) -> None:
        for fault in entry.faults:
            self._add(entry.stream_seq, entry.offset, fault)
        self.entries += 1
        item, fold = entry.item, self.fold
        if not fold.active_bytes:
            self.first_length = entry.length
        fold.active_bytes += entry.length
        if item is None:
            fold.check.append_unread(entry.leaves, entry.root)
            return
        self.first = self.first if self.first[0] else (item.stream_seq, item.hub_ts)
        faults = fold.check.check_author(item.client_id, item.client_seq, item.prev_ack)
        faults += fold.check.add_leaf(item.leaf_hash, item.hub_ts, entry.root)
        self.true_roots &= all(fault.rule is not Rule.ROOT for fault in faults)
        for broken in (*map(entry_fault, faults), *self._entry_faults(entry, item)):
            self._add(entry.stream_seq, item.at, broken, item.path)
        self.offsets.setdefault(item.client_id, item.at)
        fold.entry_hashes.append(item.entry_hash)
        self._compare_marks(item)

    def _entry_faults(self, entry: EntryReading, item: ScannedEntry) -> Iterator[EntryFault]:
        """Check what a run alone does not decide: signatures, tokens, sizes, profile and epoch."""
        context, ref, opened = self.context, self.task.ref, self.context.find_opening(self.task.ref.label)
        if context.checks_signatures_of(ref.label, item.stream_seq, ref.end_seq):
            self.signatures += signature_count(item, context.identity)
            yield from signature_faults(item, context.identity)
        if item.auth_ref is not None and not context.chunks_only:
            grant = context.control.caps.get(item.auth_ref)
            severity: Severity = "error" if grant is not None or context.control_whole else "warning"
            for fault in token_faults(item, grant, opened.stream_id if opened else None):
                yield fault._replace(severity=severity)
        if item.msg is None:
            return
        limits = context.limits_at(item.hub_ts)
        yield from size_faults(item.msg, len(entry.raw_msg), limits)
        epoch_sec = context.profiles.get(item.msg.profile_id)
        if epoch_sec is None:
            what = f"profile {item.msg.profile_id.hex()} is not known to be supported (I4)"
            yield EntryFault("profile", what, "error" if context.profiles_given else "warning")
            return
        self.epoch_secs.add(epoch_sec)
        if opened is not None and (late := epoch_fault(opened.epoch, epoch_sec, item.hub_ts, limits)) is not None:
            yield late

    def _compare_marks(self, item: ScannedEntry) -> None:
        check = self.fold.check
        for seq, root_before in self.task.marks if check.is_followed else ():
            if seq == item.stream_seq and root_before != (root := check.tree.root()):
                what = f"an earlier audit has seen the root {root_before.hex()} here, now it is {root.hex()}"
                self._add(seq, item.at, EntryFault("history", what), item.path)

    # --- what a seal leaves ------------------------------------------------------------------------------

    def _check_erasure(self) -> None:
        """Check that a record erased the missing payloads (D-74)."""
        ref = self.task.ref
        if ref.kind == "sealed" or self.context.chunks_only:
            return
        severity: Severity = "error" if self.context.control_whole else "warning"
        erased = self.context.control.drop_level(ref.label, ref.start_seq)
        if not erased:
            what = "the payloads are gone, and no record says that they were erased"
            self._add(ref.start_seq, 0, EntryFault("retention", what, severity))
        elif erased == 1 and ref.kind == "heads":
            self._add(ref.start_seq, 0, EntryFault("missing", "the receipts are gone, and no record says so", severity))

    def _check_seal(self, stream_id: bytes | None) -> None:
        ref, context = self.task.ref, self.context
        findings = Findings()
        level: Level = "structure" if context.level == "structure" else "full"
        scope = LogScope(self.fs, level, context.identity, context.control, findings)
        check = SealCheck(scope, ref.label, stream_id, None, None)
        seal = self.fold.seal(check.drop_level(ref.start_seq))
        check.add(seal, LabelRun("chunk" if ref.kind == "sealed" else "dropped", ref.start_seq, ref.end_seq))
        self.signatures += findings.counts["signatures"]
        for finding in findings.all:
            if not (context.chunks_only and not self.fs.exists(finding.path)):
                self.findings.append(place_finding(finding, ref.label, ref.end_seq))
