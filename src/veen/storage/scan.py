"""Derived data of a label, computed from its files alone (spec §4.8, DESIGN §4).

`chunk_items` and `archive.items` yield entries in order, each checked as far as possible by itself: frame, MSG,
RECEIPT, I1 and I2. `LabelFold` folds them to the tree, the cursors and the artifacts of a label; its `RunCheck` has the
rules that need the entries before. Verification compares the result with the files, rebuilding writes it. Memory does
not grow with the log: one window of a chunk, the peaks, and one cursor per client of the label.

Codes and texts of the rules for a run of entries, for rebuild, verify-data and audit.

The rules themselves are in `veen.core.run_check`. The caller decides if the first fault ends the reading (rebuild,
`veen hub verify-data`) or all of them are collected (`veen audit run`). Rules that need more than the run (tokens,
sizes, epochs) are in `veen.verify.entry`.

The files of a label as one sequence from entry 1 on, which verification and rebuilding read.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import AuthorSpan, Fault, Rule, RunCheck, RunSummary, check_ack, check_pair
from veen.core.tree.mmr import Mmr, root_of
from veen.io.errors import CorruptError
from veen.io.local import File, Fs
from veen.native import ScannedChunk
from veen.storage import frame, layout
from veen.storage.findings import Severity
from veen.storage.frame import Frame
from veen.storage.index import ChunkRow, ClientRow, LabelRow
from veen.storage.label_files import Location, index_entry, split_hashes, summary_bytes

OTHER_LABEL: Final = "it belongs to another label"
ROOT_FAULT: Final = "mmr_root is not the root after this entry (I3)"
_WORDS: Final = {
    Rule.CT_HASH: ("ct_hash", "MSG: ct_hash is not the hash of the ciphertext (I1)"),
    Rule.LEAF: ("leaf_hash", "leaf_hash is not that of the message (I2)"),
    Rule.ROOT: ("mmr_root", ROOT_FAULT),
    Rule.ACK_AHEAD: ("prev_ack", "prev_ack {0.actual} names an entry that did not exist yet (I6)"),
    Rule.ACK_BACK: ("prev_ack", "prev_ack is {0.actual}, the entry before by this writer had {0.expected} (I6)"),
    Rule.CLIENT_SEQ: ("client_seq", "client_seq is {0.actual}, {0.expected} follows (I8, I9)"),
    Rule.AUTHOR_SIG: ("msg_sig", "sig does not verify under client_id"),
    Rule.TIME: ("time", "hub_ts {0.actual} is before {0.expected}, that of an entry before it (D-28)"),
    Rule.UNREAD: (
        "unverified",
        "roots cannot be checked up to the end of this chunk, since entry {0.actual} is damaged",
    ),
}
_SHORT: Final = {Rule.TIME: "hub_ts is before that of the entry before it (D-28)"}


class EntryFault(NamedTuple):
    """A rule that an entry breaks. `code` and `message` are those of an audit."""

    code: str
    message: str
    severity: Severity = "error"
    short: str = ""  # the words of verify-data, where they differ

    @property
    def what(self) -> str:
        return self.short or self.message


def entry_fault(fault: Fault) -> EntryFault:
    """Return the code and the text of a broken rule that is not about the place of an entry."""
    code, words = _WORDS[fault.rule]
    severity: Severity = "warning" if fault.rule in (Rule.TIME, Rule.UNREAD) else "error"
    return EntryFault(code, words.format(fault), severity, _SHORT.get(fault.rule, ""))


def contradictions(msg: Msg | None, receipt: Receipt | None, label: bytes, stream_seq: int) -> Iterator[EntryFault]:
    """Yield contradictions between MSG and RECEIPT of one entry and with their place; None: not readable."""
    faults = check_pair(msg, receipt, label, stream_seq)
    yield from (entry_fault(fault) for fault in faults if fault.rule is Rule.CT_HASH)
    if msg is not None and msg.label != label:
        yield EntryFault("place", f"its MSG is for label {msg.label.hex()}", short=OTHER_LABEL)
    if receipt is not None and (receipt.label, receipt.stream_seq) != (label, stream_seq):
        what = f"its RECEIPT is for entry {receipt.stream_seq} of label {receipt.label.hex()}"
        short = OTHER_LABEL if receipt.label != label else "its RECEIPT is for another position"
        yield EntryFault("place", what, short=short)
    yield from (entry_fault(fault) for fault in faults if fault.rule is Rule.LEAF)


@dataclass(frozen=True, slots=True)
class LabelRun:
    """A range of a label and its file."""

    kind: Literal["chunk", "active", "dropped", "missing"]
    start_seq: int
    end_seq: int | None  # None: as far as the file goes


def runs_of(
    label: bytes, files: Sequence[layout.LogFile], drops: Mapping[tuple[bytes, int], int]
) -> tuple[list[LabelRun], list[str]]:
    """Return the files of a label as one sequence from entry 1 on, and the paths that are not part of it.

    `drops` has the last entry of each erased chunk, by label and first entry.
    """
    sealed: dict[int, list[int]] = {}
    for file in files:
        if file.kind == "chunk":
            sealed.setdefault(file.start_seq, []).append(file.end_seq)
    active = {file.start_seq for file in files if file.kind == "active"}
    summaries = {file.start_seq: file.end_seq for file in files if file.kind == "summary"}
    runs: list[LabelRun] = []
    place = 1
    while True:
        if place in sealed:
            run = LabelRun("chunk", place, sealed[place].pop(0))
        elif (label, place) in drops:
            run = LabelRun("dropped", place, drops[label, place])
        elif place in active:
            runs.append(LabelRun("active", place, None))
            active.discard(place)
            break
        elif place in summaries:  # the summary tells of a chunk that is not there
            run = LabelRun("missing", place, summaries[place])
        else:
            break
        if run.end_seq is None or run.end_seq < place:
            break
        runs.append(run)
        place = run.end_seq + 1
    extra = [layout.chunk(label, start, end) for start, ends in sealed.items() for end in ends]
    return runs, extra + [layout.active(label, start) for start in sorted(active)]


def run_path(label: bytes, run: LabelRun) -> str:
    """Return the file that contains a range, or contained it."""
    if run.kind == "active" or run.end_seq is None:
        return layout.active(label, run.start_seq)
    if run.kind == "dropped":
        return layout.heads_archive(label, run.start_seq, run.end_seq)
    return layout.chunk(label, run.start_seq, run.end_seq)


_WINDOW: Final = 1 << 20
_ZLIB_FIRST: Final = 0x78  # a frame begins with 0x01, so the first byte tells a compressed chunk


@dataclass(frozen=True, slots=True)
class ScannedEntry:
    """One entry with all that cursors, tree and proofs need; `msg` and `receipt` while they exist."""

    path: str
    at: int  # position in `path`, for error messages
    offset: int  # position of its frame in its chunk, now or formerly
    length: int
    stream_seq: int
    entry_hash: bytes
    leaf_hash: bytes
    client_id: bytes
    client_seq: int
    prev_ack: int
    auth_ref: bytes | None
    hub_ts: int
    msg: Msg | None
    receipt: Receipt | None

    def fault(self, what: str) -> CorruptError:
        return CorruptError(self.path, self.at, f"entry {self.stream_seq}: {what}")


def read_file(fs: Fs, path: str) -> bytes:
    """Read a whole small file."""
    file = fs.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


# --- entries in a chunk ------------------------------------------------------------------------------------


def is_compressed(data: bytes) -> bool:
    """Return True if a chunk file with these first bytes is compressed."""
    return data[:1] == bytes((_ZLIB_FIRST,))


def chunk_frames(fs: Fs, path: str, start: int = 0) -> Iterator[tuple[int, Frame]]:
    """Yield every frame of a chunk with its offset in the plain chunk; from `start` on if it is not compressed."""
    file = fs.open(path)
    try:
        size = file.size()
        compressed = is_compressed(file.read_at(0, 1))
        window, base, pos = b"", 0 if compressed else start, 0
        for block in _inflate_blocks(file, size, path) if compressed else _blocks(file, size, start):
            window, base, pos = window[pos:] + block, base + pos, 0
            while len(window) - pos >= frame.bytes_needed(window, pos):
                entry, end = frame.read(window, pos, path=path, base=base)
                yield base + pos, entry
                pos = end
        if pos < len(window):
            frame.read(window, pos, path=path, base=base)  # says what is wrong with the rest
    finally:
        file.close()


def _blocks(file: File, size: int, start: int = 0) -> Iterator[bytes]:
    for offset in range(start, size, _WINDOW):
        yield file.read_at(offset, min(_WINDOW, size - offset))


def _inflate_blocks(file: File, size: int, path: str) -> Iterator[bytes]:
    """Yield decompressed blocks. Any decoding error voids the whole chunk (spec §4.8.4), hence byte 0."""
    decoder = zlib.decompressobj()
    try:
        for block in _blocks(file, size):
            if decoder.eof:
                raise CorruptError(path, 0, "bytes follow the compressed chunk")
            rest = block
            while rest and not decoder.eof:
                if plain := decoder.decompress(rest, _WINDOW):
                    yield plain
                rest = decoder.unconsumed_tail
        if plain := decoder.flush():
            yield plain
    except zlib.error as exc:
        raise CorruptError(path, 0, f"the compressed chunk cannot be decoded: {exc}") from exc
    if not decoder.eof or decoder.unused_data:
        raise CorruptError(path, 0, "the compressed chunk is cut short or followed by other bytes")


def chunk_items(fs: Fs, path: str, label: bytes) -> Iterator[ScannedEntry]:
    for offset, entry in chunk_frames(fs, path):
        yield item_of(entry, label, path, offset)


def item_of(entry: Frame, label: bytes, path: str, offset: int) -> ScannedEntry:
    """Return a frame as a scanned entry, with all checks that it allows by itself (spec §4.8.1, I1, I2)."""
    try:
        msg, receipt = Msg.from_bytes(entry.msg), Receipt.from_bytes(entry.receipt)
    except FormatError as exc:
        raise CorruptError(path, offset, f"entry {entry.stream_seq}: {exc}") from exc
    fault = next(contradictions(msg, receipt, label, entry.stream_seq), None)
    if entry.label != label and (fault is None or fault.code != "ct_hash"):
        raise CorruptError(path, offset, f"entry {entry.stream_seq}: {OTHER_LABEL}")
    if fault is not None:
        raise CorruptError(path, offset, f"entry {entry.stream_seq}: {fault.what}")
    return ScannedEntry(
        path,
        offset,
        offset,
        entry.size,
        entry.stream_seq,
        entry.entry_hash,
        receipt.leaf_hash,
        msg.client_id,
        msg.client_seq,
        msg.prev_ack,
        msg.auth_ref,
        receipt.hub_ts,
        msg,
        receipt,
    )


# --- what they add up to -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seal:
    """Artifacts of the end of a chunk (spec §4.8.3)."""

    row: ChunkRow
    summary: bytes
    peaks: bytes
    entry: bytes  # of the checkpoint index


Warn = Callable[[ScannedEntry, EntryFault], None]


class LabelFold:
    """Fold of a label, from its first entry on. `warn` is called with warnings about an entry (D-28)."""

    def __init__(self, label: bytes, row: int, epoch: int, stream_id: bytes | None, warn: Warn | None = None) -> None:
        self.label, self.row, self.epoch, self.stream_id = label, row, epoch, stream_id
        self._warn: Warn = warn or (lambda _item, _fault: None)
        self.check = RunCheck(label, Mmr())
        self.active_start, self.active_bytes, self.active_first_ts = 1, 0, 0
        self.entry_hashes = Mmr()
        self.checkpoints, self.checkpoints_bytes = 0, 0

    @property
    def mmr(self) -> Mmr:
        return self.check.tree

    @property
    def size(self) -> int:
        return self.check.size

    @property
    def last_ts(self) -> int:
        return self.check.last_ts

    @property
    def clients(self) -> dict[bytes, tuple[int, int]]:
        """client_seq and prev_ack of the last entry of each client, as far as entries were read."""
        return {client: (span.last_seq, span.last_ack) for client, span in self.check.authors.spans.items()}

    def add(self, item: ScannedEntry) -> list[bytes]:
        """Append an entry; return the nodes it created. Raise CorruptError if it does not continue the log."""
        if item.stream_seq != self.size + 1:
            raise item.fault(f"entry {self.size + 1} belongs here")
        if item.offset != self.active_bytes:
            raise item.fault("it does not begin where the entry before it ends")
        nodes = self._append(item)
        self.active_bytes += item.length
        self.entry_hashes.append(item.entry_hash)
        return nodes

    def continues(self, chunk: ScannedChunk) -> bool:
        """Return True if `add` would accept the entries of a chunk that begins at the end of this label."""
        if self.active_bytes or self.active_start != self.size + 1:
            return False
        return self.check.is_followed_by(run_of(chunk, self.active_start))

    def add_chunk(self, chunk: ScannedChunk) -> None:
        """Add all entries of a chunk that continues the label."""
        self.check.merge(run_of(chunk, self.active_start))
        self.entry_hashes = Mmr(chunk.entries, split_hashes(chunk.hash_peaks))
        self.active_bytes, self.active_first_ts = chunk.end, chunk.first_ts

    def _append(self, item: ScannedEntry) -> list[bytes]:
        """Check an entry and add it; raise CorruptError at the first rule that it breaks.

        An impossible prev_ack is not held against later entries of its author.
        """
        check, seq = self.check, item.stream_seq
        faults = check_ack(item.prev_ack, seq)
        faults = faults or check.authors.see(item.client_id, seq, item.client_seq, item.prev_ack)
        if faults:
            faults += check.check_time(item.hub_ts)
        else:
            if self.size < self.active_start:
                self.active_first_ts = item.hub_ts
            root = None if item.receipt is None else item.receipt.mmr_root
            faults = check.add_leaf(item.leaf_hash, item.hub_ts, root)
        broken = [entry_fault(fault) for fault in faults]
        for fault in broken:
            if fault.severity == "warning":
                self._warn(item, fault)
        for fault in broken:
            if fault.severity == "error":
                raise item.fault(fault.what)
        return check.nodes

    def add_journaled(self, item: ScannedEntry) -> None:
        """Append an entry of the journal: its chunk boundaries are not known yet."""
        if item.stream_seq != self.size + 1:
            raise item.fault(f"entry {self.size + 1} of its label belongs here")
        self._append(item)

    def seal(self, dropped: int = 0) -> Seal:
        """End the chunk with the last entry."""
        label, start, end = self.label, self.active_start, self.size
        root, hashes_root, total = self.mmr.root(), self.entry_hashes.root(), self.active_bytes
        row = ChunkRow(
            self.row, start, end, self.epoch, total, self.active_first_ts, self.last_ts, root, hashes_root, dropped
        )
        seal = Seal(
            row,
            summary_bytes(label, start, end, root, total, hashes_root),
            cbor.encode(list(self.mmr.peaks())),
            index_entry(label, start, end, root),
        )
        self._begin_chunk(end + 1, len(seal.entry))
        return seal

    def skip(self, end_seq: int, peaks: tuple[bytes, ...]) -> None:
        """Continue after a chunk that cannot be read, from the peaks after it. Its entries may be of any client."""
        start, authors = self.active_start, self.check.authors
        authors.skip(end_seq - start + 1)
        self.check = RunCheck(self.label, Mmr(end_seq, peaks), authors, last_ts=self.last_ts)
        self._begin_chunk(end_seq + 1, len(index_entry(self.label, start, end_seq, root_of(peaks))))

    def _begin_chunk(self, start_seq: int, index_bytes: int) -> None:
        self.checkpoints += 1
        self.checkpoints_bytes += index_bytes
        self.active_start, self.active_bytes = start_seq, 0
        self.entry_hashes = Mmr()

    def location(self, item: ScannedEntry) -> bytes:
        return Location(self.active_start, item.offset, item.length).to_bytes()

    def to_row(self, max_bytes: int, max_entries: int) -> LabelRow:
        """Return the cursor as the index stores it."""
        return LabelRow(
            row=self.row,
            label=self.label,
            epoch=self.epoch,
            stream_id=self.stream_id,
            size=self.size,
            peaks=b"".join(self.mmr.peaks()),
            last_ts=self.last_ts,
            active_start=self.active_start,
            active_bytes=self.active_bytes,
            active_first_ts=self.active_first_ts,
            active_hash_peaks=b"".join(self.entry_hashes.peaks()),
            active_max_bytes=max_bytes,
            active_max_entries=max_entries,
            checkpoints=self.checkpoints,
            checkpoints_bytes=self.checkpoints_bytes,
        )

    def client_rows(self, numbers: dict[bytes, int]) -> list[ClientRow]:
        """Return the cursors of all writers; `numbers` are their rows in the index."""
        return [
            ClientRow(numbers[client_id], self.row, client_id, client_seq, prev_ack)
            for client_id, (client_seq, prev_ack) in self.clients.items()
        ]


def run_of(chunk: ScannedChunk, first_seq: int) -> RunSummary:
    """Return the summary of a chunk without faults, to be joined to the entries before it."""
    authors = {
        client_id: AuthorSpan(places[0], first_seq, first_ack, 0, last_seq, last_ack, 0)
        for client_id, _, first_seq, first_ack, last_seq, last_ack, places in chunk.writers
    }
    return RunSummary(chunk.entries, authors, 0, first_seq, chunk.first_ts, chunk.last_ts, split_hashes(chunk.peaks))


def inventory(fs: Fs) -> dict[bytes, list[layout.LogFile]]:
    """Return the files of each label in the log directory."""
    files: dict[bytes, list[layout.LogFile]] = {}
    for name in fs.list(layout.LOG):
        if file := layout.log_file(name):
            files.setdefault(file.label, []).append(file)
    return files
