"""Roots that the control journal says were anchored, against the log that was audited (D-104).

An anchor whose root is not the one after its entry was made of another history. Whether the backend remembers the root
is asked by `veen anchor verify`: an audit reads the log and nothing else.
"""

from collections.abc import Collection, Iterator, Mapping

from veen.core.errors import FormatError
from veen.core.objects.control import AnchorPublish
from veen.core.objects.receipt import Receipt
from veen.fs.errors import StorageError
from veen.fs.local import Fs
from veen.storage import frame, layout
from veen.storage.pinned import ChunkRef, LabelPin, read_chunk
from veen.storage.scan import chunk_frames
from veen.verify.audit.findings import LogFinding


def check_anchored(
    fs: Fs,
    anchors: Mapping[tuple[bytes, int], Collection[AnchorPublish]],
    labels: Mapping[bytes, LabelPin],
    roots: Mapping[bytes, tuple[int, bytes | None]],
) -> list[LogFinding]:
    """`roots`: size and root of each label as they were audited; None as a root: it could not be followed so far.

    An anchor beyond the end of its label is told as `cut`, with everything else that speaks of entries that are gone.
    """
    by_label: dict[bytes, list[int]] = {}
    for label, upto_seq in sorted(anchors):
        by_label.setdefault(label, []).append(upto_seq)
    findings = []
    for label in sorted(by_label.keys() & labels.keys()):
        pinned, (size, head_root) = labels[label], roots[label]
        positions = [upto_seq for upto_seq in by_label[label] if 1 <= upto_seq <= size]
        entry_roots = roots_after(fs, pinned, [upto_seq for upto_seq in positions if upto_seq < size])
        for upto_seq in positions:
            root = head_root if upto_seq == size else entry_roots.get(upto_seq)
            if root is not None and any(body.mmr_root != root for body in anchors[label, upto_seq]):
                what = "the root that was anchored for this entry is not the log's"
                findings.append(LogFinding(layout.CONTROL, 0, "control", what, label=label, stream_seq=upto_seq))
    return findings


def roots_after(fs: Fs, pinned: LabelPin, positions: Collection[int]) -> dict[int, bytes]:
    """The roots in the receipts of some entries, which the audit has checked; not those of erased or damaged chunks.

    A chunk is read once, and only if an entry of it is asked for.
    """
    wanted, roots = set(positions), {}
    for ref in pinned.chunks:
        inside = {position for position in wanted if ref.start_seq <= position <= ref.end_seq}
        if not inside:
            continue
        try:
            for entry in _frames(fs, ref):
                if entry.stream_seq in inside:
                    roots[entry.stream_seq] = Receipt.from_bytes(entry.receipt).mmr_root
        except (StorageError, FormatError, OSError):  # told by the audit of the chunk
            continue
    return roots


def _frames(fs: Fs, ref: ChunkRef) -> Iterator[frame.Frame]:
    if not ref.is_sealed:  # of a chunk that was sealed since, only what was pinned
        for _, entry in frame.frames(read_chunk(fs, ref)):
            yield entry
        return
    for _, entry in chunk_frames(fs, ref.path):
        yield entry
