"""Pass 2: every entry of a chunk, from the peaks before it; and what its seal left (I1 to I4, I6, I8 to I12).

A pure function of the pinned bytes: what it needs from other chunks is given, what others need from it is returned.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from veen.core.errors import VeenError
from veen.core.mmr import Mmr
from veen.pipeline.audit.context import Context
from veen.pipeline.audit.entries import Entry, Fault, judge, take_apart
from veen.pipeline.audit.findings import Finding, Severity, collapsed, from_storage
from veen.pipeline.audit.folding import Peaks, archived
from veen.pipeline.audit.quick import Clean, Writer, quick_check
from veen.pipeline.inventory import ChunkRef, read_chunk
from veen.storage import frame
from veen.storage.controlfold import Spending
from veen.storage.errors import CorruptError
from veen.storage.findings import Findings
from veen.storage.fs import Fs
from veen.storage.fsckjudge import Judge
from veen.storage.fsckseal import SealCheck
from veen.storage.runs import Run
from veen.storage.scan import Item, LabelFold

__all__ = ["ChunkReport", "ChunkTask", "check_chunk", "check_chunk_slowly", "continuity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """One chunk, and what is known about the log before it."""

    ref: ChunkRef
    peaks: Peaks | None  # before its first entry; None if that cannot be known
    marks: tuple[tuple[int, bytes], ...] = ()  # roots that an earlier audit has seen inside it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReport:
    """What came out."""

    findings: tuple[Finding, ...]
    writers: tuple[Writer, ...]
    entries: int  # that were read
    lost: int  # entries whose writer is not known
    signatures: int
    total_bytes: int
    first_length: int
    first_ts: int
    last_ts: int
    peaks: Peaks | None  # after its last entry, if every root up to there was found true
    epoch_secs: tuple[int, ...]


def check_chunk(fs: Fs, context: Context, task: ChunkTask) -> ChunkReport:
    """Never fails: what cannot be read is a finding."""
    return _Check(fs, context, task).run(quick=True)


def check_chunk_slowly(fs: Fs, context: Context, task: ChunkTask) -> ChunkReport:
    """The same, always entry by entry: what `check_chunk` must equal."""
    return _Check(fs, context, task).run(quick=False)


@dataclass(slots=True)
class _Check:
    fs: Fs
    context: Context
    task: ChunkTask
    found: list[Finding] = field(default_factory=list)
    writers: dict[bytes, Writer] = field(default_factory=dict)
    entries: int = 0
    lost: int = 0
    signatures: int = 0
    first_length: int = 0
    first_ts: int = 0
    last_ts: int = 0  # the latest so far
    epoch_secs: set[int] = field(default_factory=set)
    fold: LabelFold = field(init=False)  # tree, bytes and hashes of this chunk
    in_tree: bool = True  # whether the tree can still be followed
    guessed: int = 0  # the entry whose leaf was taken on its own word, until a later root confirms it
    true_roots: bool = True

    def run(self, *, quick: bool) -> ChunkReport:
        ref, peaks = self.task.ref, self.task.peaks
        opened = self.context.opened(ref.label)
        epoch, stream_id = (opened.epoch, opened.stream_id) if opened else (0, None)
        self.fold = LabelFold(ref.label, 0, epoch, stream_id)
        self.fold.active_start = ref.start_seq
        if peaks is None:
            self.in_tree = False
            self._add(ref.start_seq, 0, Fault("unverified", "the tree before this chunk is not known", "warning"))
        else:
            self.fold.mmr = Mmr(ref.start_seq - 1, peaks)
        for entry in self._entries(quick=quick):
            self._entry(entry)
        if self.guessed and self.in_tree:
            self._leave_tree(ref.end_seq, 0)
        whole = self.in_tree and self.true_roots and self.fold.size == ref.end_seq
        total_bytes = self.fold.active_bytes
        after = self.fold.mmr.peaks() if whole else None
        if ref.kind != "active":
            self._check_erasure()
            if whole and not self.lost:
                self._check_seal(stream_id)
        return ChunkReport(
            findings=tuple(collapsed(self.found)),
            writers=tuple(self.writers.values()),
            entries=self.entries,
            lost=self.lost,
            signatures=self.signatures,
            total_bytes=total_bytes,
            first_length=self.first_length,
            first_ts=self.first_ts,
            last_ts=self.last_ts,
            peaks=after,
            epoch_secs=tuple(sorted(self.epoch_secs)),
        )

    def _add(self, seq: int, offset: int, fault: Fault, path: str | None = None) -> None:
        self.found.append(
            Finding(
                label=self.task.ref.label,
                stream_seq=seq,
                path=path or self.task.ref.path,
                offset=offset,
                code=fault.code,
                message=fault.message,
                severity=fault.severity,
            )
        )

    # --- reading -----------------------------------------------------------------------------------------

    def _entries(self, *, quick: bool) -> Iterator[Entry]:
        ref = self.task.ref
        if ref.kind in ("receipts", "heads"):
            yield from self._archived()
            return
        try:
            data = read_chunk(self.fs, ref)
        except FileNotFoundError:
            yield from self._archived()  # erased since it was pinned
            return
        except (VeenError, OSError) as exc:
            self._lose(ref.start_seq, 0, "frame", getattr(exc, "what", str(exc)))
            return
        if quick and self.task.peaks is not None and not self.task.marks:
            clean = quick_check(data, ref, self.context, self.task.peaks)
            if clean is not None:
                self._take_over(clean)
                return
        pos = 0
        for seq in range(ref.start_seq, ref.end_seq + 1):
            entry = take_apart(data, pos, ref, seq)
            if entry is None:
                self._lose(seq, pos, "frame", _why(data, pos, ref))
                return
            yield entry
            pos += entry.length
        if pos != len(data):
            self._add(ref.end_seq, pos, Fault("frame", "bytes follow the last entry that the name speaks of"))

    def _take_over(self, clean: Clean) -> None:
        """Nothing is wrong with any entry."""
        fold = self.fold
        fold.mmr, fold.entry_hashes, fold.active_bytes, fold.last_ts = (
            clean.mmr, clean.entry_hashes, clean.size, clean.last_ts,
        )  # fmt: skip
        self.entries, self.signatures = self.task.ref.entries, clean.signatures
        self.first_length, self.first_ts, self.last_ts = clean.first_length, clean.first_ts, clean.last_ts
        self.epoch_secs, self.writers = clean.epoch_secs, clean.writers

    def _archived(self) -> Iterator[Entry]:
        ref, seq = self.task.ref, self.task.ref.start_seq
        try:
            for item in archived(self.fs, ref):
                root = item.receipt.mmr_root if item.receipt else None
                yield Entry(item.stream_seq, item.at, item.length, item, b"", (item.leaf_hash,), root)
                seq = item.stream_seq + 1
        except (CorruptError, OSError) as exc:
            where = (exc.path, exc.offset, exc.what) if isinstance(exc, CorruptError) else (ref.path, 0, str(exc))
            code = "frame" if self.fs.exists(where[0]) else "missing"
            self._lose(min(seq, ref.end_seq), where[1], code, where[2], where[0])

    def _lose(self, seq: int, offset: int, code: str, why: str, path: str | None = None) -> None:
        """Nothing is known of the entries from here to the end of the chunk."""
        end = self.task.ref.end_seq
        rest = f"; entries {seq + 1} to {end} behind it cannot be found" if seq < end else ""
        self._add(seq, offset, Fault(code, f"{why}{rest}"), path)
        self.lost += end - seq + 1
        self.in_tree = False

    # --- one entry ---------------------------------------------------------------------------------------

    def _entry(self, entry: Entry) -> None:
        for fault in entry.faults:
            self._add(entry.stream_seq, entry.offset, fault)
        self.entries += 1
        item, fold = entry.item, self.fold
        if not fold.active_bytes:
            self.first_length = entry.length
        fold.active_bytes += entry.length
        if item is None:
            self.lost += 1
            self._guess_leaf(entry)
            return
        faults, signatures = judge(entry, item, self.context, self.task.ref)
        for fault in faults:
            self._add(entry.stream_seq, item.at, fault, item.path)
        self.signatures += signatures
        if item.msg is not None and (epoch_sec := self.context.profiles.get(item.msg.profile_id)) is not None:
            self.epoch_secs.add(epoch_sec)
        if item.hub_ts < self.last_ts:
            what = f"hub_ts {item.hub_ts} is before {self.last_ts}, that of an entry before it (D-28)"
            self._add(entry.stream_seq, item.at, Fault("time", what, "warning"), item.path)
        self.first_ts = self.first_ts or item.hub_ts
        self.last_ts, fold.last_ts = max(self.last_ts, item.hub_ts), item.hub_ts
        self._writer(item)
        fold.entry_hashes.append(item.entry_hash)
        self._leaf(entry, item)

    def _writer(self, item: Item) -> None:
        known = self.writers.get(item.client_id)
        here = (item.client_seq, item.prev_ack, self.lost)
        if known is None:
            self.writers[item.client_id] = Writer(item.client_id, item.stream_seq, item.at, *here, *here)
            return
        for fault in continuity(known.last_seq, known.last_ack, self.lost - known.last_lost, *here[:2]):
            self._add(item.stream_seq, item.at, fault, item.path)
        self.writers[item.client_id] = known._replace(last_seq=here[0], last_ack=here[1], last_lost=here[2])

    def _leaf(self, entry: Entry, item: Item) -> None:
        if not self.in_tree:
            return
        mmr = self.fold.mmr
        mmr.append(item.leaf_hash)
        root = mmr.root()
        if entry.root is not None and root != entry.root:
            if self.guessed:
                self._leave_tree(entry.stream_seq, item.at)
                return
            self.true_roots = False
            what = "mmr_root is not the root after this entry (I3)"
            self._add(entry.stream_seq, item.at, Fault("mmr_root", what), item.path)
        elif entry.root is not None:
            self.guessed = 0
        for seq, seen in self.task.marks:
            if seq == entry.stream_seq and seen != root:
                what = f"an earlier audit has seen the root {seen.hex()} here, now it is {root.hex()}"
                self._add(seq, item.at, Fault("history", what), item.path)

    def _guess_leaf(self, entry: Entry) -> None:
        """The tree goes on with what a damaged entry says its leaf was; its root, or a later one, tells if it was."""
        if not self.in_tree:
            return
        mmr = self.fold.mmr
        for leaf in entry.leaves:
            tried = mmr.copy()
            tried.append(leaf)
            if tried.root() == entry.root:
                self.fold.mmr, self.guessed = tried, 0
                return
        if not entry.leaves:
            self.in_tree = False
            return
        mmr.append(entry.leaves[-1])
        self.guessed = self.guessed or entry.stream_seq

    def _leave_tree(self, seq: int, offset: int) -> None:
        what = f"roots cannot be checked up to the end of this chunk, since entry {self.guessed} is damaged"
        self._add(seq, offset, Fault("unverified", what, "warning"))
        self.in_tree = False

    # --- what a seal leaves ------------------------------------------------------------------------------

    def _check_erasure(self) -> None:
        """Payloads that are gone must have been erased by a record (D-74)."""
        ref = self.task.ref
        if ref.kind == "sealed" or self.context.chunks_only:
            return
        severity: Severity = "error" if self.context.control_whole else "warning"
        erased = self.context.control.dropped(ref.label, ref.start_seq)
        if not erased:
            what = "the payloads are gone, and no record says that they were erased"
            self._add(ref.start_seq, 0, Fault("retention", what, severity))
        elif erased == 1 and ref.kind == "heads":
            self._add(ref.start_seq, 0, Fault("missing", "the receipts are gone, and no record says so", severity))

    def _check_seal(self, stream_id: bytes | None) -> None:
        ref, context = self.task.ref, self.context
        findings, spending = Findings(), Spending()
        try:
            judge_ = Judge(
                self.fs,
                "structure" if context.level == "structure" else "full",
                context.identity,
                context.control,
                findings,
                spending,
                None,
            )
            checked = SealCheck(judge_, ref.label, stream_id, None, None)
            seal = self.fold.seal(checked.dropped(ref.start_seq))
            checked.add(seal, Run("chunk" if ref.kind == "sealed" else "dropped", ref.start_seq, ref.end_seq))
        finally:
            spending.close()
        self.signatures += findings.counts["signatures"]
        for found in findings.all:
            if not (context.chunks_only and not self.fs.exists(found.path)):
                self.found.append(from_storage(found, ref.label, ref.end_seq))


def _why(data: bytes, pos: int, ref: ChunkRef) -> str:
    try:
        frame.read(data, pos, path=ref.path)
    except CorruptError as exc:
        return exc.what
    return "the file ends before this entry"


def continuity(last_seq: int, last_ack: int, slack: int, seq: int, ack: int) -> Iterable[Fault]:
    """What follows an entry of the same writer; `slack` entries in between may have been the writer's own."""
    if not last_seq < seq <= last_seq + 1 + slack:
        yield Fault("client_seq", f"client_seq is {seq}, {last_seq + 1} follows (I8, I9)")
    if ack < last_ack:
        yield Fault("prev_ack", f"prev_ack is {ack}, the entry before by this writer had {last_ack} (I6)")
