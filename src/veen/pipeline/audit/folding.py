"""Pass 1: what a chunk adds to the tree of its label, without knowing what came before it (spec §5.1, DESIGN §7).

Cheap on purpose: it believes each receipt's leaf_hash. Pass 2 reads the same bytes again and believes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from veen.core import cbor
from veen.core.checkpoint import Checkpoint
from veen.core.errors import VeenError
from veen.core.hubkeys import HubIdentity
from veen.core.limits import DEFAULT_LIMITS
from veen.core.mmr import Mmr, Span, root_of
from veen.pipeline.audit.context import Context
from veen.pipeline.audit.entries import take_apart
from veen.pipeline.inventory import ChunkRef, read_chunk
from veen.pipeline.vector import Departs, decode
from veen.storage import archive, layout
from veen.storage.fs import Fs
from veen.storage.scan import Item, read_file

__all__ = ["ChunkFold", "Peaks", "archived", "fold_chunk", "starts_of", "vouched_peaks"]

Peaks = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ChunkFold:
    """The leaves of a chunk, folded; None where one of them cannot be told."""

    span: Span | None
    root: bytes | None  # after its last entry, as the receipt of that entry says


def fold_chunk(fs: Fs, _context: Context, ref: ChunkRef) -> ChunkFold:
    """Never fails: a chunk that cannot be read folds to nothing, and pass 2 says why."""
    try:
        found = _leaves(fs, ref)
    except (VeenError, OSError):
        return ChunkFold(None, None)
    if found is None or len(found[0]) != ref.entries:
        return ChunkFold(None, None)
    leaves, root = found
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
    leaves = [data[at : at + 32] for at in vector.leaf_at.tolist()]
    at = int(vector.root_at[-1]) if len(vector) else None
    return leaves, None if at is None else data[at : at + 32]


def archived(fs: Fs, ref: ChunkRef) -> Iterator[Item]:
    """The entries of an erased chunk, also of one that a running hub erased since it was pinned."""
    kept = fs.exists(layout.receipts_archive(ref.label, ref.start_seq, ref.end_seq))
    return archive.items(fs, ref.label, ref.start_seq, ref.end_seq, receipts=kept)


def _of_items(items: Iterator[Item]) -> tuple[list[bytes], bytes | None]:
    leaves, root = [], None
    for item in items:
        leaves.append(item.leaf_hash)
        root = item.receipt.mmr_root if item.receipt else None
    return leaves, root


def _one_by_one(data: bytes, ref: ChunkRef) -> tuple[list[bytes], bytes | None] | None:
    leaves: list[bytes] = []
    pos, root = 0, None
    for seq in range(ref.start_seq, ref.end_seq + 1):
        entry = take_apart(data, pos, ref, seq)
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
    known: Mapping[int, Peaks],
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
            peaks = known.get(size)
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


def vouched_peaks(fs: Fs, identity: HubIdentity | None, label: bytes, size: int) -> Peaks | None:
    """The peaks that the seal at `size` left, if they have the root that the hub signed."""
    if size == 0:
        return ()
    try:
        peaks = tuple(cbor.decode(read_file(fs, layout.peaks(label, size))))
        checkpoint = Checkpoint.from_bytes(read_file(fs, layout.checkpoint(label, size)))
        if identity is not None:
            identity.verify_checkpoint(checkpoint, 0)
        Mmr(size, peaks)  # the right number of hashes
        good = (checkpoint.label_curr, checkpoint.upto_seq, checkpoint.mmr_root) == (label, size, root_of(peaks))
    except (VeenError, OSError, TypeError):
        return None
    return peaks if good else None
