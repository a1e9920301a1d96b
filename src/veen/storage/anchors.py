"""The default anchor backend: a hash-chained file beside the log (D-104, 001 spec-1 ANCHOR0).

Copied elsewhere now and then, on paper or on a disk that cannot be rewritten, its last hash vouches for every root
before it. All entries have one length, so a reference is found without a search and a torn end is seen at once:

    entry = seq u64 · hash of the entry before 32 · root 32 · epoch u64 · ts u64 · nonce 16 · hash 32
    hash  = Ht("veen/anchor", what is before it)          anchor_ref = seq u64 · hash 32
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, Self

from veen.core.errors import StatedError
from veen.core.hashing import Ht, u64be
from veen.io.errors import CorruptError
from veen.io.local import File, Fs
from veen.storage import layout

NONCE_BYTES: Final = 16
MAX_REF_BYTES: Final = 4_096  # of an anchor_ref, whatever the backend
_ENTRY_BYTES: Final = 8 + 32 + 32 + 8 + 8 + NONCE_BYTES + 32
_GENESIS: Final = bytes(32)


class AnchorError(StatedError):
    """A backend did not accept an anchor. The log continues without it."""

    hint = "Check the backend, then anchor again. The log does not depend on it."


class AnchorBackend(Protocol):
    """A place outside of the log that records a root (ANCHOR0.1). Methods may block and are called in a thread."""

    @property
    def name(self) -> str:
        """Name of the backend in anchor.publish records."""

    def publish(self, root: bytes, epoch: int, ts: int, nonce: bytes) -> bytes:
        """Return the anchor_ref; raise AnchorError or OSError if the root was not accepted."""

    def verify(self, root: bytes, anchor_ref: bytes) -> bool:
        """Return True if the backend has this root under this reference."""


@dataclass(frozen=True, slots=True)
class _Entry:
    seq: int  # 1-based
    prev_hash: bytes
    root: bytes
    epoch: int
    ts: int
    nonce: bytes

    def body(self) -> bytes:
        return u64be(self.seq) + self.prev_hash + self.root + u64be(self.epoch) + u64be(self.ts) + self.nonce

    def hash(self) -> bytes:
        return Ht("veen/anchor", self.body())

    @classmethod
    def read(cls, file: File, seq: int) -> Self:
        """Read entry number `seq`; raise CorruptError if it is missing or was changed."""
        offset = (seq - 1) * _ENTRY_BYTES
        data = file.read_at(offset, _ENTRY_BYTES)
        if len(data) < _ENTRY_BYTES:
            raise CorruptError(layout.ANCHORS, offset, f"there is no entry {seq}")
        number, epoch, ts = (int.from_bytes(data[place : place + 8]) for place in (0, 72, 80))
        entry = cls(number, data[8:40], data[40:72], epoch, ts, data[88 : 88 + NONCE_BYTES])
        if entry.seq != seq or entry.hash() != data[-32:]:
            raise CorruptError(layout.ANCHORS, offset, f"entry {seq} is not what it was")
        return entry


class AnchorFile:
    """One chain. Thread-safe."""

    name: ClassVar[str] = "file"

    def __init__(self, fs: Fs) -> None:
        self._fs, self._lock = fs, threading.Lock()

    def publish(self, root: bytes, epoch: int, ts: int, nonce: bytes) -> bytes:
        """Append an entry; durable on return."""
        if len(root) != 32 or len(nonce) != NONCE_BYTES:
            raise AnchorError(f"a root has 32 bytes and a nonce {NONCE_BYTES}")
        with self._lock:
            try:
                return self._append(root, epoch, ts, nonce)
            except CorruptError as exc:  # the chain must not go on from a link that is broken
                raise AnchorError(str(exc)) from exc

    def _append(self, root: bytes, epoch: int, ts: int, nonce: bytes) -> bytes:
        file = self._fs.open(layout.ANCHORS, create=True)
        try:
            count = file.size() // _ENTRY_BYTES  # what a crash left of an entry behind it is overwritten
            prev_hash = _Entry.read(file, count).hash() if count else _GENESIS
            entry = _Entry(count + 1, prev_hash, root, epoch, ts, nonce)
            try:
                file.write_at(count * _ENTRY_BYTES, entry.body() + entry.hash())
                file.sync()
            except OSError:  # nothing may be chained onto what did not reach the disk
                file.truncate(count * _ENTRY_BYTES)
                raise
        finally:
            file.close()
        self._fs.sync_dir("")  # also if the file was there: who made it may have ended before its name was durable
        return u64be(entry.seq) + entry.hash()

    def verify(self, root: bytes, anchor_ref: bytes) -> bool:
        if len(anchor_ref) != 40 or not (seq := int.from_bytes(anchor_ref[:8])) or not self._fs.exists(layout.ANCHORS):
            return False
        file = self._fs.open(layout.ANCHORS)
        try:
            if seq * _ENTRY_BYTES > file.size():
                return False
            entry = _Entry.read(file, seq)
        except CorruptError:
            return False
        finally:
            file.close()
        return entry.root == root and entry.hash() == anchor_ref[8:]


def check_anchors(fs: Fs) -> Iterator[CorruptError]:
    """Yield the first fault of the chain, if there is one: nothing is known of what follows it."""
    if not fs.exists(layout.ANCHORS):
        return
    file = fs.open(layout.ANCHORS)
    try:
        prev_hash = _GENESIS
        for seq in range(1, file.size() // _ENTRY_BYTES + 1):
            entry = _Entry.read(file, seq)
            if entry.prev_hash != prev_hash:
                raise CorruptError(layout.ANCHORS, (seq - 1) * _ENTRY_BYTES, f"entry {seq} does not continue the chain")
            prev_hash = entry.hash()
    except CorruptError as exc:
        yield exc
    finally:
        file.close()
