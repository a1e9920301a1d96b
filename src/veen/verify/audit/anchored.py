"""Comparison of the anchored roots in the control journal with the audited log (D-104).

An anchor whose root differs from the one after its entry belongs to another history. `veen anchor verify` asks the
backend; an audit reads the log and nothing else.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping

from veen.core.errors import FormatError
from veen.core.objects.control import AnchorPublish
from veen.core.objects.receipt import Receipt
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage import frame, layout
from veen.storage.pinned import ChunkRef, LabelPin, read_chunk
from veen.storage.scan import chunk_frames
from veen.verify.audit.findings import LogFinding
from veen.verify.audit.peaks import read_archive


def check_anchored(
    fs: Fs,
    anchors: Mapping[tuple[bytes, int], Collection[AnchorPublish]],
    labels: Mapping[bytes, LabelPin],
    roots: Mapping[bytes, tuple[int, bytes | None]],
    seals: Mapping[bytes, Mapping[int, bytes]],
) -> list[LogFinding]:
    """Compare anchored roots with those of the log.

    `roots` has the audited size and root of each label; None if the root could not be computed. `seals` has the roots
    after the last entries of chunks, which are known even if receipts are erased. An anchor inside of such a chunk
    cannot be compared. An anchor beyond the end of its label is reported as `cut`, like every other claim about missing
    entries.
    """
    by_label: dict[bytes, list[int]] = {}
    for label, upto_seq in sorted(anchors):
        by_label.setdefault(label, []).append(upto_seq)
    findings = []
    for label in sorted(by_label.keys() & labels.keys()):
        pinned, (size, head_root) = labels[label], roots[label]
        positions = [upto_seq for upto_seq in by_label[label] if 1 <= upto_seq <= size]
        known_roots = {**seals.get(label, {}), **({} if head_root is None else {size: head_root})}
        known_roots |= roots_after(fs, pinned, [upto_seq for upto_seq in positions if upto_seq not in known_roots])
        for upto_seq in positions:
            root = known_roots.get(upto_seq)
            if root is None:
                what = "the root after this entry is not known here, so its anchor was not compared"
                finding = LogFinding(layout.CONTROL, 0, "unverified", what, "warning", label=label, stream_seq=upto_seq)
                findings.append(finding)
            elif any(body.mmr_root != root for body in anchors[label, upto_seq]):
                what = "the root that was anchored for this entry is not the log's"
                findings.append(LogFinding(layout.CONTROL, 0, "control", what, label=label, stream_seq=upto_seq))
    return findings


def roots_after(fs: Fs, pinned: LabelPin, positions: Collection[int]) -> dict[int, bytes]:
    """Return the roots in the receipts of some entries, which the audit has checked; omit erased receipts.

    A chunk is read once, and only if one of its entries is needed.
    """
    roots: dict[int, bytes] = {}
    by_chunk: dict[int, set[int]] = {}
    starts = [ref.start_seq for ref in pinned.chunks]
    for position in positions:
        by_chunk.setdefault(bisect_right(starts, position) - 1, set()).add(position)
    for number, inside in by_chunk.items():
        if number < 0:
            continue
        ref = pinned.chunks[number]
        try:
            if ref.kind in ("receipts", "heads"):
                for item in read_archive(fs, ref):
                    if item.stream_seq in inside and item.receipt is not None:
                        roots[item.stream_seq] = item.receipt.mmr_root
                continue
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
