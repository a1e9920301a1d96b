"""The peaks before each chunk of a label: claimed by a seal, or from the chunks before it (spec §5.1, DESIGN §7).

The subtrees that a chunk adds to the tree need no other chunk and are cheap: `fold_chunk` takes each leaf_hash from the
receipt. The check of the chunk reads the same bytes again and checks all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from veen.core import cbor
from veen.core.entry import HASH_BYTES
from veen.core.errors import VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.identity import HubIdentity
from veen.core.tree.mmr import Mmr, Span
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.copies import archive
from veen.storage.pinned import ChunkRef, read_chunk
from veen.storage.scan import ScannedEntry, read_file
from veen.verify.audit.context import AuditContext
from veen.verify.entry import read_entry
from veen.verify.seals import Peaks, read_signed_peaks
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
