"""The scrubber: reads sealed chunks again, slowly and forever, to find damage before a reader does (DESIGN §3).

`scrub_step` does all the work: from a position and a budget of bytes, it returns its findings and the next position.
The thread only adds the clock. Each round begins with the manifest, which shows chunks that are not listed and would
not be missed otherwise.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from veen.core.tree.mmr import Mmr
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.findings import LogFinding
from veen.storage.index import ChunkRow, Index
from veen.storage.maintenance.compress import is_chunk_compressed
from veen.storage.manifest import check_manifest
from veen.storage.scan import chunk_frames

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
