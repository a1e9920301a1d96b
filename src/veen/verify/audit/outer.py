"""The check of the outer log of a data directory by a policy: its checkpoints must be those that witnesses cosigned.

Note and leaves are read before the log is pinned: a running hub lists a head when the journal has its entry, so
whatever is listed by then is in the view of the log.

Comparison of the anchored roots in the control journal with the audited log (D-104).

An anchor whose root differs from the one after its entry belongs to another history. `veen anchor verify` asks the
backend; an audit reads the log and nothing else.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Self

from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, OuterKey
from veen.core.objects.receipt import Receipt
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.proof import OuterLeaf
from veen.core.tlog.tree import QuorumError, TlogError, TreeCursor, leaf_hash
from veen.io.errors import LinkError, StorageError
from veen.io.local import Fs
from veen.storage import frame, layout
from veen.storage.pinned import ChunkRef, LabelPin, pin, read_chunk
from veen.storage.scan import chunk_frames, read_file
from veen.verify.audit.chunk import read_archive
from veen.verify.audit.findings import LogFinding, reason_of


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


_OFFSET_BYTES: Final = 8
_CODE: Final = "witness"
_NOT_MET: Final = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessVerdict:
    """Checkpoints that the witnesses confirm."""

    origin: str
    size: int  # leaves of the list
    cosigned: Mapping[str, int]  # names of the policy, with the time
    covered: int  # entries up to the newest listed checkpoint of their label
    entries: int
    heads: Mapping[bytes, int]  # the newest listed checkpoint of each label that was compared with the log here


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterFiles:
    """The files of an outer log as they were before the log was pinned; None for a missing file."""

    note: bytes | None
    offsets: bytes | None
    leaves: bytes | None
    findings: tuple[LogFinding, ...] = ()

    @classmethod
    def read(cls, fs: Fs) -> Self:
        """Read the note before the leaves: the list grows, so it has the leaves that the note counts."""
        data: dict[str, bytes | None] = {}
        findings = []
        for path in (layout.OUTER_PUBLISHED, layout.OUTER_OFFSETS, layout.OUTER_LEAVES):
            try:
                data[path] = read_file(fs, path) if fs.exists(path) else None
            except (StorageError, OSError) as exc:
                if isinstance(exc, LinkError):
                    raise
                data[path] = None
                findings.append(LogFinding(path, 0, _CODE, f"it cannot be opened: {reason_of(exc)}"))
        note, offsets, leaves = data.values()
        return cls(note=note, offsets=offsets, leaves=leaves, findings=tuple(findings))

    def split(self) -> Iterator[bytes]:
        """Yield the leaves up to the first that is cut off."""
        offsets, data, start = self.offsets or b"", self.leaves or b"", 0
        for at in range(0, len(offsets) - _OFFSET_BYTES + 1, _OFFSET_BYTES):
            end = int.from_bytes(offsets[at : at + _OFFSET_BYTES], "big")
            if not start < end <= len(data):
                return
            yield data[start:end]
            start = end

    def heads(self) -> dict[bytes, int]:
        """Return the newest listed position of each label, as far as the list can be read."""
        heads: dict[bytes, int] = {}
        for raw in self.split():
            try:
                checkpoint = OuterLeaf.from_bytes(raw).checkpoint()
            except TlogError:
                break
            if checkpoint is not None:
                heads[checkpoint.label_curr] = max(checkpoint.upto_seq, heads.get(checkpoint.label_curr, 0))
        return heads


class _Fault(Exception):
    def __init__(
        self, path: str, message: str, *, label: bytes | None = None, seq: int | None = None, code: str = _CODE
    ) -> None:
        super().__init__(message)
        self.finding = LogFinding(path, 0, code, message, label=label, stream_seq=seq)


def check_outer(
    fs: Fs,
    uri: str,
    files: OuterFiles,
    policy: WitnessPolicy,
    outer_key: OuterKey | None,
    labels: Mapping[bytes, LabelPin],
    roots: Mapping[bytes, tuple[int, bytes | None]],
    wanted: frozenset[bytes] | None,
) -> tuple[WitnessVerdict | None, list[LogFinding]]:
    """Compare the list with the audited log; `wanted` are the requested labels."""
    if files.findings:
        return None, list(files.findings)
    try:
        head, cosigned = _note(files, policy, outer_key)
        newest = _newest(_leaves(files, head))
        _beyond(uri, newest, roots, wanted)
        heads: dict[bytes, int] = {}
        for label, checkpoint in sorted(newest.items()):
            if label in labels and _is_listed(fs, labels[label], roots[label], checkpoint):
                heads[label] = checkpoint.upto_seq
    except _Fault as exc:
        return None, [exc.finding]
    entries = sum(size for size, _ in roots.values())
    covered = sum(heads.values())
    verdict = WitnessVerdict(
        origin=head.origin, size=head.size, cosigned=cosigned, covered=covered, entries=entries, heads=heads
    )
    return verdict, []


def _note(
    files: OuterFiles, policy: WitnessPolicy, outer_key: OuterKey | None
) -> tuple[LogCheckpoint, Mapping[str, int]]:
    path = layout.OUTER_PUBLISHED
    if files.note is None:
        raise _Fault(path, "no note of an outer log is here, so no witness has cosigned anything", code=_NOT_MET)
    if outer_key is None:
        raise _Fault(path, "no record of the control journal binds the key of an outer log")
    try:
        note = Note.from_bytes(files.note)
        vkey = VerifierKey.parse(outer_key.vkey)
    except TlogError as exc:
        raise _Fault(path, f"the published note cannot be read: {exc}") from exc
    try:
        accepted = policy.check(note)
    except TlogError as exc:
        code = _NOT_MET if isinstance(exc, QuorumError) else _CODE
        raise _Fault(path, f"the published note does not satisfy the witness policy: {exc}", code=code) from exc
    if accepted.log != vkey:
        raise _Fault(path, f"the policy lists another key for {vkey.name} than the one that the hub has bound")
    return accepted.checkpoint, accepted.cosigned


def _leaves(files: OuterFiles, head: LogCheckpoint) -> list[OuterLeaf]:
    """Those that the note counts, if they lead to its root."""
    for path, data in ((layout.OUTER_OFFSETS, files.offsets), (layout.OUTER_LEAVES, files.leaves)):
        if data is None:
            raise _Fault(path, "the list that the witnesses cosigned is not here", code="missing")
    if len(files.offsets or b"") < head.size * _OFFSET_BYTES:
        raise _Fault(layout.OUTER_OFFSETS, f"fewer leaves than the {head.size} that the witnesses cosigned")
    cursor, leaves = TreeCursor(), []
    for number, leaf in enumerate(islice(files.split(), head.size)):
        cursor.append(leaf_hash(leaf))
        try:
            leaves.append(OuterLeaf.from_bytes(leaf))
        except TlogError as exc:
            raise _Fault(layout.OUTER_LEAVES, f"leaf {number}: {exc}") from exc
    if len(leaves) < head.size:
        raise _Fault(layout.OUTER_LEAVES, f"leaf {len(leaves)} is cut off")
    if cursor.root() != head.root:
        raise _Fault(layout.OUTER_LEAVES, "the leaves do not lead to the root that the witnesses cosigned")
    return leaves


def _newest(leaves: list[OuterLeaf]) -> dict[bytes, Checkpoint]:
    """Return the last checkpoint of each label; two for one position must have one root."""
    newest: dict[bytes, Checkpoint] = {}
    positions: dict[tuple[bytes, int], bytes] = {}
    for number, leaf in enumerate(leaves):
        try:
            checkpoint = leaf.checkpoint()
        except TlogError as exc:
            raise _Fault(layout.OUTER_LEAVES, f"leaf {number}: {exc}") from exc
        if checkpoint is None:
            continue
        label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
        if positions.setdefault((label, upto_seq), checkpoint.mmr_root) != checkpoint.mmr_root:
            what = "two listed checkpoints of one position have different roots: the hub signed two histories"
            raise _Fault(layout.OUTER_LEAVES, what, label=label, seq=upto_seq)
        if label not in newest or newest[label].upto_seq < upto_seq:
            newest[label] = checkpoint
    return newest


def _beyond(
    uri: str,
    newest: Mapping[bytes, Checkpoint],
    roots: Mapping[bytes, tuple[int, bytes | None]],
    wanted: frozenset[bytes] | None,
) -> None:
    """Read again before reporting that a log is shorter than the list."""
    sizes = {label: roots[label][0] if label in roots else 0 for label in newest if wanted is None or label in wanted}
    beyond = {label: newest[label].upto_seq for label, size in sizes.items() if newest[label].upto_seq > size}
    now = pin(uri, beyond.keys(), reach=beyond).heads if beyond else {}
    for label, upto_seq in sorted(beyond.items()):
        if now.get(label, 0) < upto_seq:
            what = f"the witnesses cosigned a list that counts entry {upto_seq}; the log here ends with {sizes[label]}"
            raise _Fault(layout.OUTER_LEAVES, what, label=label, seq=upto_seq, code="cut")


def _is_listed(fs: Fs, pinned: LabelPin, audited: tuple[int, bytes | None], checkpoint: Checkpoint) -> bool:
    """Compare the newest listed checkpoint with the log; return False if the root after its entry is unknown."""
    upto_seq = checkpoint.upto_seq
    size, head_root = audited
    if upto_seq > size:
        return False  # `_beyond` has looked again: a running hub has written it since
    root = head_root if upto_seq == size else roots_after(fs, pinned, (upto_seq,)).get(upto_seq)
    if root is not None and root != checkpoint.mmr_root:
        what = "the witnesses cosigned a list with another root after this entry than the log here has"
        raise _Fault(layout.OUTER_LEAVES, what, label=pinned.label, seq=upto_seq)
    return root is not None
