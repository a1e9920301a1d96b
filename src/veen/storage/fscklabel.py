"""Verification of one label: every entry, every artifact of every seal, and what is rebuildable (see `fsck`).

A label is held to its files up to `strict`, the last entry that was durable at the last retirement. Behind it the
journal is the truth; files may be ahead of the retirement, torn or missing, but what they show must not contradict
the journal.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from veen.core import cbor, ed25519
from veen.core.checkpoint import Checkpoint
from veen.core.errors import FormatError, VerifyError
from veen.core.hubkeys import HubIdentity
from veen.core.labels import routing_key_of
from veen.core.limits import Limits
from veen.core.mmr import node_count, root_of
from veen.storage import archive, layout
from veen.storage.controlfold import ControlFold, Opened, Spending
from veen.storage.errors import CorruptError
from veen.storage.findings import Code, Findings, Level
from veen.storage.fs import File, Fs
from veen.storage.identity import Binding
from veen.storage.index import ClientRow, Index, LabelRow
from veen.storage.labelfiles import HASH_BYTES, LOCATION_BYTES, index_entry, map_head, map_head_bytes
from veen.storage.scan import Item, LabelFold, Seal, chunk_items, read_file

__all__ = ["Judge", "LabelCheck", "Run", "runs_of"]

_BLOCK: Final = 1 << 16
_UNACCOUNTED: Final = "entries that neither index nor journal account for"


@dataclass(slots=True)
class Judge:
    """What all labels are judged by."""

    fs: Fs
    level: Level
    identity: HubIdentity | None
    control: ControlFold
    findings: Findings
    spending: Spending
    index: Index | None
    retired_control: int = 0  # seq of the last control record that the index knows
    bound: dict[bytes, Binding] = field(default_factory=dict)

    def order(self, item: Item, last_ts: int) -> None:
        if item.hub_ts < last_ts:
            what = f"entry {item.stream_seq}: hub_ts is before that of the entry before it (D-28)"
            self.findings.warning(item.path, item.at, "time", what)

    def signatures(self, item: Item) -> None:
        """Who wrote it, who received it, and by what right (I7)."""
        self.findings.count("entries")
        self.findings.count("bytes", item.length)
        fault: tuple[Code, str] | None = None
        if self.level == "full":
            fault = self._signature_fault(item)
        if fault is None and item.auth_ref is not None:
            fault = self._capability_fault(item, item.auth_ref)
        if fault is not None:
            self.findings.error(item.path, item.at, fault[0], f"entry {item.stream_seq}: {fault[1]}")

    def _signature_fault(self, item: Item) -> tuple[Code, str] | None:
        if item.msg is not None:
            self.findings.count("signatures")
            if not ed25519.verify(item.client_id, item.msg.signing_digest(), item.msg.sig):
                return "signature", "sig does not verify under client_id"
        if item.receipt is not None and self.identity is not None:
            self.findings.count("signatures")
            try:
                self.identity.verify_receipt(item.receipt)
            except VerifyError as exc:
                return "signature", str(exc)
        return None

    def _capability_fault(self, item: Item, auth_ref: bytes) -> tuple[Code, str] | None:
        given = self.control.caps.get(auth_ref)
        if given is None:
            return "capability", "no record authorises its token"
        if given.token.subject_pk != item.client_id:
            return "capability", "its token is for another client"
        if not given.issued_at <= item.hub_ts or not given.token.is_live(issued_at=given.issued_at, hub_ts=item.hub_ts):
            return "capability", "its token was not valid at this time"
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of a label and where it is to be read."""

    kind: Literal["chunk", "active", "dropped", "missing"]
    start_seq: int
    end_seq: int | None  # None: as far as the file goes


def runs_of(
    label: bytes, files: Sequence[layout.LogFile], drops: Mapping[tuple[bytes, int], int]
) -> tuple[list[Run], list[str]]:
    """The files of a label as one line from entry 1 on, and the paths that are not part of it.

    `drops` tells the last entry of each erased chunk, by label and first entry.
    """
    sealed: dict[int, list[int]] = {}
    for file in files:
        if file.kind == "chunk":
            sealed.setdefault(file.start_seq, []).append(file.end_seq)
    active = {file.start_seq for file in files if file.kind == "active"}
    summaries = {file.start_seq: file.end_seq for file in files if file.kind == "summary"}
    runs: list[Run] = []
    place = 1
    while True:
        if place in sealed:
            run = Run("chunk", place, sealed[place].pop(0))
        elif (label, place) in drops:
            run = Run("dropped", place, drops[label, place])
        elif place in active:
            runs.append(Run("active", place, None))
            active.discard(place)
            break
        elif place in summaries:  # the summary tells of a chunk that is not there
            run = Run("missing", place, summaries[place])
        else:
            break
        if run.end_seq is None or run.end_seq < place:
            break
        runs.append(run)
        place = run.end_seq + 1
    extra = [layout.chunk(label, start, end) for start, ends in sealed.items() for end in ends]
    return runs, extra + [layout.active(label, start) for start in sorted(active)]


class _Compared:
    """A file of which every byte is known; tells the first that differs. Holds one block."""

    def __init__(self, judge: Judge, path: str) -> None:
        self._judge, self._path = judge, path
        self._expected = bytearray()
        self._pos = 0
        self._bad = False
        try:
            self._file: File | None = judge.fs.open(path)
        except FileNotFoundError:
            self._file = None

    def feed(self, data: bytes) -> None:
        self._expected += data
        if len(self._expected) >= _BLOCK:
            self._flush()

    def skip_to(self, pos: int) -> None:
        self._flush()
        self._pos = pos

    def _flush(self) -> None:
        expected = bytes(self._expected)
        self._expected.clear()
        if not self._bad and expected:
            found = self._file.read_at(self._pos, len(expected)) if self._file else b""
            if found != expected:
                self._bad = True
                same = next((n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
                what = "not what the entries give" if self._file else "the file is missing"
                self._judge.findings.error(self._path, self._pos + same, "rebuildable", what)
        self._pos += len(expected)

    def finish(self, *, exact: bool) -> None:
        self._flush()
        if self._file is not None:
            if exact and not self._bad and self._file.size() > self._pos:
                self._judge.findings.late_error(self._path, self._pos, "rebuildable", "bytes behind the last entry")
            self._file.close()


class LabelCheck:
    """One label. `run` returns how far its log could be followed, or None if that is unknown."""

    def __init__(
        self,
        judge: Judge,
        label: bytes,
        opened: Opened | None,
        files: Sequence[layout.LogFile],
        row: LabelRow | None,
    ) -> None:
        self.judge, self.label, self.files, self.row = judge, label, files, row
        self.findings, self.opened = judge.findings, opened
        number, epoch, stream_id = (opened.row, opened.epoch, opened.stream_id) if opened else (0, 0, None)
        self.fold = LabelFold(label, number, epoch, stream_id)
        self.index_clients = 0
        self._strict: int | None = None
        self._journal_first: int | None = None
        self._journal_hashes = b""
        self._known_clients: dict[bytes, ClientRow] = {}
        self._row_seen = row is None
        self._index_fault: str | None = None
        self._index_entries = bytearray()
        self._sealed: set[tuple[int, int]] = set()
        self._lost = False
        self._went_ahead = False
        self._limits: list[Limits | None] = [opened.limits if opened else None]
        self._unjudged: Seal | None = None  # the last seal, until it is known what came after it

    # --- the walk --------------------------------------------------------------------------------------

    def run(self, strict: int | None, journal_first: int | None, journal_hashes: bytes) -> LabelFold | None:
        self._strict, self._journal_first, self._journal_hashes = strict, journal_first, journal_hashes
        self._journal_last = journal_first + len(journal_hashes) // HASH_BYTES - 1 if journal_first else 0
        self._soft = strict is not None and self._journal_last > strict
        self._load_clients()
        self._nodes = _Compared(self.judge, layout.nodes(self.label))
        self._locations = _Compared(self.judge, layout.locations(self.label))
        if self.row is not None and self.row.size == 0:
            self._compare_row()
        runs, extra = runs_of(self.label, self.files, self.judge.control.drop_ends())
        whole = True
        for run in self._until_strict(runs):
            whole = self._run(run) and whole
        whole = whole and self._ends(extra)
        if whole and self._soft and not self._went_ahead:
            self._check_ahead(iter(()))
        self._nodes.finish(exact=whole and not self._soft)
        self._locations.finish(exact=whole and not self._soft)
        if whole:
            self._check_checkpoint_index()
            self._check_strays(extra)
            if self._index_fault is None and not self._row_seen:
                self._index_fault = f"the cursor of label {self.label.hex()} is wrong"
            if self._index_fault is not None:
                self.findings.error(layout.INDEX, 0, "rebuildable", self._index_fault)
        return None if self._lost else self.fold

    def _until_strict(self, runs: list[Run]) -> Iterator[Run]:
        """The runs in order, as long as each joins the one before it and anything of it is retired."""
        for run in runs:
            if self._lost or (self._strict is not None and run.start_seq > self._strict):
                return
            if self._strict is not None and self.fold.size >= self._strict:
                return
            yield run

    def _run(self, run: Run, *, retried: bool = False) -> bool:
        """Read one stretch; tells whether it is good. Afterwards the fold stands behind it, or the label is lost."""
        path = self._path(run)
        items = self._items(run)
        try:
            for item in items:
                self._item(item)
                if self.fold.size == self._strict or self.fold.size == run.end_seq:
                    break
            self._end_of_run(run, path, items)
        except CorruptError as exc:
            code: Code = "entry" if self.judge.fs.exists(exc.path) else "missing"
            self.findings.error(exc.path, exc.offset, code, exc.what)
        except FileNotFoundError:
            if not retried:  # a running hub renames what it seals and removes what it erases: look again
                return self._run(run, retried=True)
            self.findings.error(path, 0, "missing", "the file is missing")
        else:
            return True
        self._skip(run)
        return False

    def _path(self, run: Run) -> str:
        if run.kind == "active" or run.end_seq is None:
            return layout.active(self.label, run.start_seq)
        if run.kind == "dropped":
            return layout.heads_archive(self.label, run.start_seq, run.end_seq)
        return layout.chunk(self.label, run.start_seq, run.end_seq)

    def _items(self, run: Run) -> Iterator[Item]:
        fs, label, path = self.judge.fs, self.label, self._path(run)
        if run.kind == "dropped" and run.end_seq is not None:
            kept = layout.receipts_archive(label, run.start_seq, run.end_seq)
            receipts = fs.exists(kept) or self.judge.control.dropped(label, run.start_seq) < 2
            return archive.items(fs, label, run.start_seq, run.end_seq, receipts=receipts)
        if run.kind in ("chunk", "missing") and run.end_seq is not None and not fs.exists(path):
            bounds = (label, run.start_seq, run.end_seq)
            if fs.exists(layout.heads_archive(*bounds)):  # erased a moment ago by a running hub
                if not self.judge.control.dropped(label, run.start_seq):
                    self.findings.late_error(path, 0, "missing", "the file is missing")
                return archive.items(fs, *bounds, receipts=fs.exists(layout.receipts_archive(*bounds)))
        if run.kind == "active" and not fs.exists(path):  # sealed a moment ago by a running hub
            for name in fs.list(layout.LOG):
                chunk = layout.chunk_of(name)
                if chunk and chunk.label == label and chunk.start_seq == run.start_seq:
                    path = f"{layout.LOG}/{name}"
        return chunk_items(fs, path, label)

    def _item(self, item: Item) -> None:
        fold = self.fold
        location = fold.location(item)
        if item.stream_seq == fold.active_start and self._unjudged is not None:
            self._check_boundary(self._unjudged, item.length)
            between = self.judge.control.limits_between(self._unjudged.row.last_ts, item.hub_ts)
            self._limits, self._unjudged = between, None
        self.judge.order(item, fold.last_ts)
        nodes = fold.add(item)
        if not self._agrees(item):
            raise item.fault("the journal holds another entry at this position")
        self._nodes.feed(b"".join(nodes))
        self._locations.feed(location)
        self.judge.signatures(item)
        if self.row is not None and item.stream_seq <= self.row.size:
            self._compare_entry(item)
            if item.stream_seq == self.row.size and self.row.active_start <= item.stream_seq:
                self._compare_row()

    def _agrees(self, item: Item) -> bool:
        """Whether the journal, if it holds an entry at this position, holds the same."""
        if self._journal_first is None or not self._journal_first <= item.stream_seq <= self._journal_last:
            return True
        start = (item.stream_seq - self._journal_first) * HASH_BYTES
        return self._journal_hashes[start : start + HASH_BYTES] == item.entry_hash

    def _end_of_run(self, run: Run, path: str, items: Iterator[Item]) -> None:
        """After the last entry of a run, or the last one that is retired."""
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

    def _check_end(self, items: Iterator[Item]) -> None:
        """Nothing may follow the last entry that index and journal account for."""
        try:
            extra = next(items, None)
        except CorruptError as exc:
            self.findings.late_error(exc.path, exc.offset, "entry", exc.what)
            return
        if extra is not None:
            self.findings.late_error(extra.path, extra.at, "entry", _UNACCOUNTED)

    def _is_sealed(self, run: Run) -> bool:
        """Whether a chunk was sealed for good by the last retirement; if not, recovery will do it again."""
        if run.end_seq is None or run.end_seq > self.fold.size:
            return False
        if self.row is not None:
            return self.row.active_start > run.end_seq
        return not self._soft or self.fold.size != self._strict

    def _skip(self, run: Run) -> None:
        """Go on behind a run that cannot be read, from its peaks, if a checkpoint vouches for them."""
        end = run.end_seq
        self.judge.bound.pop(self.label, None)
        self._index_fault, self._row_seen, self._unjudged = None, True, None
        try:
            if end is None or (self._strict is not None and end > self._strict):
                raise CorruptError("", 0, "")
            peaks = tuple(cbor.decode(read_file(self.judge.fs, layout.peaks(self.label, end))))
            checkpoint = Checkpoint.from_bytes(read_file(self.judge.fs, layout.checkpoint(self.label, end)))
            if self.judge.identity is not None:
                self.judge.identity.verify_checkpoint(checkpoint, 0)
            if (checkpoint.label_curr, checkpoint.upto_seq) != (self.label, end):
                raise CorruptError("", 0, "")
            if root_of(peaks) != checkpoint.mmr_root:
                raise CorruptError("", 0, "")
            self.fold.skip(end, peaks)
            self._index_entries += index_entry(self.label, run.start_seq, end, checkpoint.mmr_root)
        except (FileNotFoundError, FormatError, VerifyError, TypeError):
            self._lost = True
            return
        self._nodes.skip_to(node_count(end) * HASH_BYTES)
        self._locations.skip_to(end * LOCATION_BYTES)

    def _ends(self, extra: list[str]) -> bool:
        """Whether the label ends where it should."""
        size, strict = self.fold.size, self._strict
        if strict is not None and size < strict:
            path = layout.active(self.label, self.fold.active_start)
            what = f"entries {size + 1} to {strict} are missing"
            self.findings.error(path, self.fold.active_bytes, "cut" if self.judge.fs.exists(path) else "missing", what)
            self._lost = True
            return False
        if self._soft:
            return True
        for file in self.files:
            if file.kind not in ("chunk", "active") or file.start_seq <= size:
                continue
            path = file.path
            if file.start_seq > size + 1:
                what = f"entry {size + 1} and following are missing before it"
                self.findings.late_error(path, 0, "gap", what)
            elif strict is not None and self._size(path):
                self.findings.late_error(path, 0, "entry", _UNACCOUNTED)
        if self._unjudged is not None:
            self._check_boundary(self._unjudged, None)
        return True

    def _check_strays(self, extra: list[str]) -> None:
        """Files of the label that are neither part of its log nor of a seal."""
        for path in extra if not self._soft else ():
            self.findings.warning(path, 0, "unknown", "not part of the label's log")
        ends = {end for _, end in self._sealed}
        control, upto = self.judge.control, self.judge.retired_control if self.row is not None else None
        for file in self.files:
            if self._soft and self._strict is not None and file.end_seq >= self._strict:
                continue  # a seal behind the retirement
            if file.kind in ("peaks", "checkpoint"):
                known = file.end_seq in ends
            elif file.kind == "summary":
                known = (file.start_seq, file.end_seq) in self._sealed
            elif file.kind in ("heads", "receipts"):
                erased = control.dropped(self.label, file.start_seq)
                known = bool(erased) and (file.start_seq, file.end_seq) in self._sealed
                if file.kind == "receipts" and control.dropped(self.label, file.start_seq, upto) > 1:
                    known = False
                if not known:
                    self.findings.warning(file.path, 0, "leftover", "the archive of an erasure that was cut off")
                    continue
            else:
                continue
            if not known:
                self.findings.warning(file.path, 0, "unknown", "belongs to no chunk of this label")

    def _size(self, path: str) -> int:
        try:
            file = self.judge.fs.open(path)
        except FileNotFoundError:  # sealed, hence renamed, a moment ago
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _check_ahead(self, items: Iterator[Item]) -> None:
        """Files that are ahead of the retirement may be torn, but may not tell another story than the journal."""
        self._went_ahead = True
        place = self.fold.size + 1
        read: list[layout.LogFile] = []
        while True:
            try:
                for item in items:
                    if item.stream_seq != place:
                        return
                    if place > self._journal_last:
                        what = f"entry {place} is here but not in the journal: the journal was cut"
                        self.findings.late_error(item.path, item.at, "cut", what)
                        return
                    if not self._agrees(item):
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
            items = chunk_items(self.judge.fs, following.path, self.label)

    # --- seals -----------------------------------------------------------------------------------------

    def _seal(self, run: Run) -> None:
        label = self.label
        upto = self.judge.retired_control if self.row is not None else None
        seal = self.fold.seal(self.judge.control.dropped(label, run.start_seq, upto))
        row = seal.row
        self._sealed.add((row.start_seq, row.end_seq))
        self._index_entries += seal.entry
        self.findings.count("chunks")
        self._compare_file(layout.summary(label, row.start_seq, row.end_seq), seal.summary)
        self._compare_file(layout.peaks(label, row.end_seq), seal.peaks)
        self._check_checkpoint(seal)
        for drop in self.judge.control.drops.get((label, run.start_seq), ()):
            if drop.end_seq != row.end_seq or drop.entry_hashes_root != row.entry_hashes_root:
                what = f"control record {drop.seq} drops another chunk than {row.start_seq} to {row.end_seq}"
                self.findings.error(layout.CONTROL, 0, "retention", what)
        if run.kind == "chunk" and self.judge.control.dropped(label, run.start_seq, upto):
            path = layout.chunk(label, row.start_seq, row.end_seq)
            self.findings.warning(path, 0, "leftover", "its payloads should have been erased")
        self._unjudged = seal
        self._compare_chunk(seal)
        self._check_binding(seal)
        if self.row is not None and self.fold.size == self.row.size and self.row.active_start > self.fold.size:
            self._compare_row()

    def _check_binding(self, seal: Seal) -> None:
        """checkpoint-binding.json names this checkpoint, its root and the key of its time, or another one."""
        row, bound, identity = seal.row, self.judge.bound.get(self.label), self.judge.identity
        if bound is None or identity is None or bound.upto_seq != row.end_seq:
            return
        keys = {key.key_id for key in identity.keys_valid_at(row.last_ts)}
        if bound.key_id in keys and bound == Binding(self.label, row.epoch, row.end_seq, row.mmr_root, bound.key_id):
            del self.judge.bound[self.label]

    def _compare_file(self, path: str, expected: bytes) -> None:
        try:
            found = read_file(self.judge.fs, path)
        except FileNotFoundError:
            self.findings.error(path, 0, "rebuildable", "the file is missing")
            return
        if found != expected:
            same = next((n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
            offset = min(len(found), len(expected)) if same is None else same
            self.findings.error(path, offset, "rebuildable", "not what the entries of the chunk give")

    def _check_checkpoint(self, seal: Seal) -> None:
        """spec §4.4.1: the root re-derived, the labels of the epoch, the signature of the time."""
        row = seal.row
        path = layout.checkpoint(self.label, row.end_seq)
        try:
            checkpoint = Checkpoint.from_bytes(read_file(self.judge.fs, path))
            if (checkpoint.label_curr, checkpoint.upto_seq) != (self.label, row.end_seq):
                raise VerifyError("CHECKPOINT: it is for another position")
            if checkpoint.mmr_root != row.mmr_root:
                raise VerifyError("CHECKPOINT: mmr_root is not the root of the log prefix")
            if checkpoint.epoch != row.epoch:
                raise VerifyError("CHECKPOINT: epoch is not that of the label")
            identity = self.judge.identity
            if identity is not None:
                if self.fold.stream_id is not None:
                    checkpoint.check_labels(routing_key_of(identity.hub_id), self.fold.stream_id)
                if self.judge.level == "full":
                    self.findings.count("signatures")
                    identity.verify_seal(checkpoint, row.last_ts)
                    self._unknown_witnesses(path, checkpoint, len(identity.witnesses_at(row.last_ts)))
        except FileNotFoundError:
            self.findings.error(path, 0, "missing", "the file is missing")
        except (FormatError, VerifyError) as exc:
            self.findings.error(path, 0, "seal", str(exc))

    def _unknown_witnesses(self, path: str, checkpoint: Checkpoint, known: int) -> None:
        if (count := len(checkpoint.witness_sigs or ()) - known) > 0:
            self.findings.warning(path, 0, "unknown", f"{count} witness signatures by keys that are not known here")

    def _check_boundary(self, seal: Seal, next_length: int | None) -> None:
        """Chunks end where the limits of their time say, and nowhere else (D-70)."""
        row = seal.row
        count = row.end_seq - row.start_seq + 1
        for limits in self._limits:
            if limits is None:
                return  # no record says which limits applied
            fits = row.total_bytes <= limits.max_chunk_bytes and count <= limits.max_checkpoint_interval
            full = next_length is not None and row.total_bytes + next_length > limits.max_chunk_bytes
            if fits and (full or count == limits.max_checkpoint_interval):
                return
        path = layout.chunk(self.label, row.start_seq, row.end_seq)
        self.findings.error(path, row.total_bytes, "limits", "the chunk does not end where its limits demand")

    def _check_checkpoint_index(self) -> None:
        """All entries of the checkpoint index, each as its seal gave it."""
        path, expected, count = layout.checkpoint_index(self.label), bytes(self._index_entries), self.fold.checkpoints
        try:
            found = read_file(self.judge.fs, path)
        except FileNotFoundError:
            if count:
                self.findings.error(path, 0, "rebuildable", "the file is missing")
            return
        if self._soft:  # a seal behind the retirement may have extended it
            width = map_head_bytes(found[:1]) if found else 0
            good = found[width : width + len(expected)] == expected
        else:
            good = found == map_head(count) + expected
        if not good:
            self.findings.late_error(path, 0, "rebuildable", "not what the seals of the label give")

    # --- the index -------------------------------------------------------------------------------------

    def _load_clients(self) -> None:
        if self.row is None or self.judge.index is None:
            return
        try:
            self._known_clients = {row.client_id: row for row in self.judge.index.clients(self.row.row)}
        except CorruptError as exc:
            self._index_fault = exc.what
        self.index_clients = len(self._known_clients)

    def _compare_chunk(self, seal: Seal) -> None:
        index, row = self.judge.index, self.row
        if index is None or row is None or row.active_start <= seal.row.end_seq:
            return
        try:
            good = index.chunk_at(row.row, seal.row.start_seq) == seal.row
        except (CorruptError, TypeError):  # a column may hold anything once the database is damaged
            good = False
        if not good:
            self._index_fault = self._index_fault or f"the row of chunk {seal.row.start_seq} is wrong"

    def _compare_entry(self, item: Item) -> None:
        if item.auth_ref is not None:
            self.judge.spending.add(item.auth_ref, item.hub_ts)
        if self._index_fault is not None or self.judge.index is None:
            return
        client = self._known_clients.get(item.client_id)
        try:
            place = self.judge.index.stream_seq(client.row, item.client_seq) if client else None
        except (CorruptError, TypeError, ValueError):  # as above
            place = None
        if place != item.stream_seq:
            self._index_fault = f"entry {item.stream_seq} of label {self.label.hex()} is not listed"

    def _compare_row(self) -> None:
        """The cursors of the label and of its clients, at the point of the last retirement."""
        assert self.row is not None  # noqa: S101 - the caller asked
        self._row_seen = True
        row = self.row
        if self.fold.to_row(row.active_max_bytes, row.active_max_entries) != row:
            self._index_fault = self._index_fault or f"the cursor of label {self.label.hex()} is wrong"
        found = {row.client_id: (row.client_seq, row.prev_ack) for row in self._known_clients.values()}
        if found != self.fold.clients:
            self._index_fault = self._index_fault or f"a client of label {self.label.hex()} is wrong"
        limits = self._limits
        if self._unjudged is not None:  # the active chunk is empty
            limits = self.judge.control.limits_between(self._unjudged.row.last_ts, self._unjudged.row.last_ts)
        bounds = [(known.max_chunk_bytes, known.max_checkpoint_interval) for known in limits if known]
        if None not in limits and (row.active_max_bytes, row.active_max_entries) not in bounds:
            self._index_fault = self._index_fault or f"the limits of label {self.label.hex()} are wrong"
