"""Pass 1 of an audit: the subtrees that a chunk adds to the tree of its label (spec §5.1, DESIGN §7).

Pass 1 needs no other chunk and is cheap: it takes each leaf_hash from the receipt. Pass 2 reads the same bytes again
and checks all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from veen.core.entry import HASH_BYTES
from veen.core.errors import VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.identity import HubIdentity
from veen.core.tree.mmr import Span
from veen.fs.local import Fs
from veen.storage import layout
from veen.storage.copies import archive
from veen.storage.pinned import ChunkRef, read_chunk
from veen.storage.scan import ScannedEntry
from veen.verify.audit.context import AuditContext
from veen.verify.entry import read_entry
from veen.verify.seals import Peaks, vouched_peaks
from veen.verify.vectors import Departs, decode

__all__ = ["ChunkFold", "archived", "fold_chunk", "starts_of"]


@dataclass(frozen=True, slots=True)
class ChunkFold:
    """The leaves of a chunk, folded; None where one of them cannot be told."""

    span: Span | None
    root: bytes | None  # after its last entry, as the receipt of that entry says


def fold_chunk(fs: Fs, _context: AuditContext, ref: ChunkRef) -> ChunkFold:
    """Fold the leaves of a chunk. It never fails: a chunk that cannot be read has no span, and pass 2 says why."""
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
        return _of_items(archived(fs, ref))
    try:
        data = read_chunk(fs, ref)
    except FileNotFoundError:
        return _of_items(archived(fs, ref))
    try:
        vector = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
    except Departs:
        return _one_by_one(data, ref)
    leaves = [data[at : at + HASH_BYTES] for at in vector.leaf_at.tolist()]
    at = int(vector.root_at[-1]) if len(vector) else None
    return leaves, None if at is None else data[at : at + HASH_BYTES]


def archived(fs: Fs, ref: ChunkRef) -> Iterator[ScannedEntry]:
    """The entries of an erased chunk, also of one that a running hub erased since it was pinned."""
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


# --- between the passes: merged from left to right -----------------------------------------------------------


def starts_of(
    fs: Fs,
    identity: HubIdentity | None,
    chunks: Sequence[ChunkRef],
    folds: Sequence[ChunkFold],
    peaks_by_size: Mapping[int, Peaks],
) -> list[Peaks | None]:
    """The peaks before each chunk of a label; None where they cannot be known.

    The tree goes on from a chunk only if its leaves give the root that its last receipt has. Behind a chunk for
    which they do not, or that is missing, it goes on from peaks that a signed checkpoint vouches for. `known` are
    peaks by size, of an earlier audit.
    """
    state: Span | None = Span(0, 0, ())
    starts: list[Peaks | None] = []
    for ref, fold in zip(chunks, folds, strict=True):
        size = ref.start_seq - 1
        if state is None or state.end != size:
            peaks = peaks_by_size.get(size)
            if peaks is None:
                peaks = vouched_peaks(fs, identity, ref.label, size)
            state = None if peaks is None else Span.from_peaks(size, peaks)
        starts.append(None if state is None else state.peaks())
        if state is None or fold.span is None:
            state = None
            continue
        merged = state.merge(fold.span)
        state = merged if fold.root is None or merged.root() == fold.root else None
    return starts
