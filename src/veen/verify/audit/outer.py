"""The outer log of a data directory, judged by a policy: are its checkpoints those that the witnesses cosigned?

    note      published, signed by the key that a control record binds, cosigned as the policy asks
    leaves    lead to the root of the note
    newest    the last checkpoint of each label in the list is one of the log that was audited

So nobody who asks those witnesses is shown another list, and up to the newest listed checkpoint of each label the log
here is the one of that list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import OuterKey
from veen.core.tlog.errors import TlogError
from veen.core.tlog.leaf import OuterLeaf
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.tree import TreeCursor, leaf_hash
from veen.fs.local import Fs
from veen.storage import layout
from veen.storage.pinned import LabelPin
from veen.storage.scan import read_file
from veen.verify.audit.anchored import roots_after
from veen.verify.audit.findings import LogFinding

_OFFSET_BYTES: Final = 8
_CODE: Final = "witness"


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessVerdict:
    """What the witnesses vouch for."""

    origin: str
    size: int  # leaves of the list
    cosigned: Mapping[str, int]  # names of the policy, with the time
    covered: int  # entries up to the newest listed checkpoint of their label
    entries: int


class _Fault(Exception):
    def __init__(self, path: str, message: str, *, label: bytes | None = None, seq: int | None = None) -> None:
        super().__init__(message)
        self.finding = LogFinding(path, 0, _CODE, message, label=label, stream_seq=seq)


def check_outer(
    fs: Fs,
    policy: WitnessPolicy,
    outer_key: OuterKey | None,
    labels: Mapping[bytes, LabelPin],
    roots: Mapping[bytes, tuple[int, bytes | None]],
) -> tuple[WitnessVerdict | None, list[LogFinding]]:
    """`roots`: size and root of each label as they were audited; None as a root: it could not be followed so far."""
    try:
        head, cosigned = _note(fs, policy, outer_key)
        newest = _newest(_leaves(fs, head))
        covered = 0
        for label, checkpoint in sorted(newest.items()):
            if label in labels:
                _compare(fs, labels[label], roots[label], checkpoint)
                covered += checkpoint.upto_seq
    except _Fault as exc:
        return None, [exc.finding]
    entries = sum(size for size, _ in roots.values())
    return WitnessVerdict(origin=head.origin, size=head.size, cosigned=cosigned, covered=covered, entries=entries), []


def _note(fs: Fs, policy: WitnessPolicy, outer_key: OuterKey | None) -> tuple[LogCheckpoint, Mapping[str, int]]:
    path = layout.OUTER_PUBLISHED
    if not fs.exists(path):
        raise _Fault(path, "no note of an outer log is here, so no witness has cosigned anything")
    if outer_key is None:
        raise _Fault(path, "no record of the control journal binds the key of an outer log")
    try:
        note = Note.from_bytes(read_file(fs, path))
        accepted = policy.check(note)
        vkey = VerifierKey.parse(outer_key.vkey)
    except TlogError as exc:
        raise _Fault(path, f"the published note does not satisfy the witness policy: {exc}") from exc
    if accepted.log != vkey:
        raise _Fault(path, f"the policy lists another key for {vkey.name} than the one that the hub has bound")
    return accepted.checkpoint, accepted.cosigned


def _leaves(fs: Fs, head: LogCheckpoint) -> list[OuterLeaf]:
    """Those that the note counts, if they lead to its root."""
    for path in (layout.OUTER_OFFSETS, layout.OUTER_LEAVES):
        if not fs.exists(path):
            raise _Fault(path, "the list that the witnesses cosigned is not here")
    offsets, data = read_file(fs, layout.OUTER_OFFSETS), read_file(fs, layout.OUTER_LEAVES)
    if len(offsets) < head.size * _OFFSET_BYTES:
        raise _Fault(layout.OUTER_OFFSETS, f"fewer leaves than the {head.size} that the witnesses cosigned")
    cursor, start, leaves = TreeCursor(), 0, []
    for number in range(head.size):
        end = int.from_bytes(offsets[number * _OFFSET_BYTES : (number + 1) * _OFFSET_BYTES], "big")
        leaf = data[start:end]
        if not start < end <= len(data):
            raise _Fault(layout.OUTER_LEAVES, f"leaf {number} is cut off")
        cursor.append(leaf_hash(leaf))
        try:
            leaves.append(OuterLeaf.from_bytes(leaf))
        except TlogError as exc:
            raise _Fault(layout.OUTER_LEAVES, f"leaf {number}: {exc}") from exc
        start = end
    if cursor.root() != head.root:
        raise _Fault(layout.OUTER_LEAVES, "the leaves do not lead to the root that the witnesses cosigned")
    return leaves


def _newest(leaves: list[OuterLeaf]) -> dict[bytes, Checkpoint]:
    """The last checkpoint of each label; two for one position must have one root."""
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


def _compare(fs: Fs, pinned: LabelPin, audited: tuple[int, bytes | None], checkpoint: Checkpoint) -> None:
    """The newest listed checkpoint is one of the log here."""
    label, upto_seq = pinned.label, checkpoint.upto_seq
    size, head_root = audited
    if upto_seq > size:
        what = f"the witnesses cosigned a list that counts entry {upto_seq}; the log here ends with {size}"
        raise _Fault(layout.OUTER_LEAVES, what, label=label, seq=upto_seq)
    root = head_root if upto_seq == size else roots_after(fs, pinned, (upto_seq,)).get(upto_seq)
    if root is not None and root != checkpoint.mmr_root:
        what = "the witnesses cosigned a list with another root after this entry than the log here has"
        raise _Fault(layout.OUTER_LEAVES, what, label=label, seq=upto_seq)
