"""The scrubber: reads sealed chunks again, slowly and forever, to find damage before a reader does (DESIGN §3).

`scrub_step` does all the work: from a position and a budget of bytes, it returns its findings and the next position.
The thread only adds the clock. Each round begins with the manifest, which shows chunks that are not listed and would
not be missed otherwise.

The manifest: the entries of each label and epoch in sealed chunks, by keys alone (spec §3.4.1, STOR-19).

Its leaves are the rows of the index with the key (epoch, label, start_seq, end_seq). The key has everything that
completeness depends on, so no segment is opened, however large the log is.

Compression of sealed chunks, if the limit registry enables it (spec §4.8.4).

Only chunk files are compressed, only when they are sealed and retired, and each is replaced atomically: readers see one
form or the other, and both contain the same frames. Offsets, sizes and hashes are those of the plain chunk.
"""

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from veen.core.tree.mmr import Mmr
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.findings import LogFinding
from veen.storage.index import ChunkRow, Index
from veen.storage.reader import inflate
from veen.storage.scan import chunk_frames, is_compressed, read_file


def check_manifest(index: Index) -> Iterator[LogFinding]:
    """Yield ranges in no chunk, or in two, up to the start of each label's active chunk."""
    for (label, active_start), leaves in groupby(index.manifest(), key=lambda leaf: leaf[:2]):
        following = 1
        for _, _, start_seq, end_seq in leaves:
            if start_seq is None or end_seq is None:  # a label without sealed chunks
                break
            if start_seq != following:
                yield _gap(label, following, start_seq)
            following = end_seq + 1
        if following != active_start:
            yield _gap(label, following, active_start)


def _gap(label: bytes, expected: int, next_seq: int) -> LogFinding:
    what = (
        f"entries {expected} to {next_seq - 1} are in no chunk"
        if next_seq > expected
        else f"entry {next_seq} is in two chunks"
    )
    return LogFinding(layout.INDEX, 0, "gap", f"label {label.hex()}: {what}")


_LEVEL: Final = 6  # fixed: the algorithm and its parameters are part of the deterministic configuration


def is_chunk_compressed(fs: Fs, path: str) -> bool:
    file = fs.open(path)
    try:
        return is_compressed(file.read_at(0, 1))
    finally:
        file.close()


def compress_chunk(fs: Fs, label: bytes, chunk: ChunkRow) -> int | None:
    """Compress one sealed and retired chunk of a hub at rest; return the bytes saved, None if it was compressed.

    CorruptError is raised for a damaged chunk, because compressed damage would be harder to locate.
    """
    path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
    if (packed := pack_chunk(fs, label, chunk)) is None:
        return None
    data, saved = packed
    return saved if replace_chunk(fs, path, data) else None


def pack_chunk(fs: Fs, label: bytes, chunk: ChunkRow) -> tuple[bytes, int] | None:
    """Return the compressed bytes of a chunk and the bytes saved; None if it is compressed already.

    Raise FileNotFoundError if it is missing, CorruptError if it is damaged.
    """
    path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
    if is_chunk_compressed(fs, path):
        return None
    hashes = Mmr()
    for _, entry in chunk_frames(fs, path):
        hashes.append(entry.entry_hash)
    if not hashes.size or hashes.root() != chunk.entry_hashes_root:
        raise CorruptError(path, 0, "its entries are not those that were sealed")
    plain = read_file(fs, path)
    data = zlib.compress(plain, _LEVEL)
    if inflate(data, len(plain), path) != plain:
        raise CorruptError(path, 0, "compression does not give the same bytes back")
    return data, len(plain) - len(data)


def replace_chunk(fs: Fs, path: str, data: bytes) -> bool:
    """Replace a chunk by its compressed form; return False if it was erased meanwhile, because it must not come back.

    Nothing may remove the chunk while this runs: beside a running hub it runs between two retirements.
    """
    if not fs.exists(path):
        return False
    fs.replace(path, data)
    return True


_TICK_SEC: Final = 0.25
_REST_SEC: Final = 1.0  # between two looks at whether there is a rate again


@dataclass(frozen=True, slots=True)
class ScrubState:
    """Position of the scrubber: the last checked chunk, the progress in the next one, and totals."""

    label_row: int = 0
    start_seq: int = 0
    offset: int = 0
    entries: int = 0
    hashes: tuple[bytes, ...] = ()  # the peaks over the entry hashes so far
    chunks: int = 0
    bytes: int = 0
    rounds: int = 0  # how often it has been through all chunks


def scrub_step(fs: Fs, index: Index, state: ScrubState, budget: int) -> tuple[ScrubState, list[LogFinding]]:
    """Read about `budget` bytes, or up to the end of a round. A compressed chunk can only be read as a whole."""
    findings: list[LogFinding] = []
    if not (state.label_row or state.offset):  # a round begins
        findings += check_manifest(index)
    end = state.bytes + budget
    while state.bytes < end:
        chunk = index.chunk_after(state.label_row, state.start_seq)
        if chunk is None:
            return _rewound(state, label_row=0, start_seq=0, rounds=state.rounds + 1), findings
        label = index.label_of(chunk.label_row)
        path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
        try:
            if not chunk.dropped:
                if state.offset and is_chunk_compressed(fs, path):
                    state = _rewound(state)
                state, complete = _read_on(fs, label, chunk, path, state, end)
                if not complete:
                    break
        except CorruptError as exc:
            findings.append(LogFinding(path, exc.offset, "entry", exc.what))
        except FileNotFoundError:
            now = index.chunk_at(chunk.label_row, chunk.start_seq)
            if now is not None and not now.dropped:  # otherwise the retention policy took it a moment ago
                findings.append(LogFinding(path, 0, "missing", "the file is missing"))
        except OSError as exc:  # a bad sector is what a scrubber is for; the next chunk may be good
            findings.append(LogFinding(path, state.offset, "entry", f"cannot be read: {exc.strerror or exc}"))
        state = _rewound(state, label_row=chunk.label_row, start_seq=chunk.start_seq, chunks=state.chunks + 1)
    return state, findings


def _rewound(state: ScrubState, **changes: int) -> ScrubState:
    """Return the state at the beginning of a chunk."""
    return replace(state, offset=0, entries=0, hashes=(), **changes)


def _read_on(fs: Fs, label: bytes, chunk: ChunkRow, path: str, state: ScrubState, end: int) -> tuple[ScrubState, bool]:
    """Read frames of one chunk until `end` or its own end; raise CorruptError unless they are the sealed ones."""
    hashes, count = Mmr(state.entries, state.hashes), state.bytes
    compressed = is_chunk_compressed(fs, path)
    for offset, entry in chunk_frames(fs, path, state.offset):
        seq = chunk.start_seq + hashes.size
        if entry.label != label or entry.stream_seq != seq:
            raise CorruptError(path, offset, f"entry {seq} belongs here")
        hashes.append(entry.entry_hash)
        count += entry.size
        following = offset + entry.size
        if count >= end and not compressed and following < chunk.total_bytes:
            return replace(state, offset=following, entries=hashes.size, hashes=hashes.peaks(), bytes=count), False
    if hashes.size != chunk.end_seq - chunk.start_seq + 1 or hashes.root() != chunk.entry_hashes_root:
        raise CorruptError(path, 0, "its entries are not those that were sealed")
    return replace(state, bytes=count), True


class Scrubber:
    """Background thread that reads at most `bytes_per_second` on average and reports its findings."""

    def __init__(
        self,
        fs: Fs,
        bytes_per_second: int,
        report: Callable[[ScrubState, list[LogFinding]], None],
        *,
        idle_sec: float = 60.0,
    ) -> None:
        """Call `report` in the thread, after each step; pause `idle_sec` between two rounds."""
        self._fs, self._report, self._idle = fs, report, idle_sec
        self.rate = bytes_per_second  # any thread may replace it; 0: nothing is read
        self._stop = threading.Event()
        self._state = ScrubState()  # owned by the thread that runs

    def halt(self) -> None:
        """Make `run` return soon. Thread-safe."""
        self._stop.set()

    def run(self) -> None:
        """Read until `halt`. A second call after an error continues with the same chunk."""
        index = Index(self._fs)  # a thread needs its own connection
        try:
            while not self._stop.is_set():
                rate = self.rate
                if not rate:
                    self._stop.wait(_REST_SEC)
                    continue
                began = time.monotonic()
                before, rounds = self._state.bytes, self._state.rounds
                state, findings = scrub_step(self._fs, index, self._state, max(1, int(rate * _TICK_SEC)))
                self._state = state
                self._report(state, findings)
                # A compressed chunk may be larger than the budget of a step: what was read too much is waited for.
                pause = (state.bytes - before) / rate - (time.monotonic() - began)
                if state.rounds > rounds:
                    pause = max(pause, self._idle)
                self._stop.wait(max(pause, 0.0))
        finally:
            index.close()
