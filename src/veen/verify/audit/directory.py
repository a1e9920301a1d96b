"""Checks of a directory beside its entries: identity, names of files, and claims about entries that are gone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from veen.core.errors import VeenError
from veen.core.hashing import u64be
from veen.core.objects.identity import HubIdentity
from veen.fs.errors import CorruptError
from veen.fs.local import Fs
from veen.storage import frame, layout
from veen.storage.findings import Findings
from veen.storage.frame import HEADER_BYTES
from veen.storage.keys import identity as identities
from veen.storage.label_files import LOCATION_BYTES, index_entry
from veen.storage.pinned import LabelPin, pin
from veen.storage.scan import inventory, read_file
from veen.verify.audit.context import AuditContext, AuditOptions
from veen.verify.audit.control import Control
from veen.verify.audit.findings import LogFinding, placed
from veen.verify.audit.joining import JoinedLabel
from veen.verify.compare import file_size
from veen.verify.files import check_anchor_file, check_limits_file, check_names
from veen.verify.identity import check_rotations, preferred_identity, read_binding
from veen.verify.seals import index_fault, stray_fault


def read_identity(fs: Fs, options: AuditOptions, findings: list[LogFinding]) -> HubIdentity | None:
    """The identity that the log is held to: the given one, or that of the directory if it knows more keys."""
    from_elsewhere = options.identity
    if not identities.exists(fs):
        if from_elsewhere is None:
            what = "the file is missing: nobody vouches for this log (give the identity, if you have it from elsewhere)"
            findings.append(LogFinding(layout.IDENTITY, 0, "identity", what))
        return from_elsewhere
    try:
        own = identities.read_identity(fs, options.root_pk, key_map=False)
    except (VeenError, OSError) as exc:
        where = (exc.path, exc.offset, exc.what) if isinstance(exc, CorruptError) else (layout.IDENTITY, 0, str(exc))
        findings.append(LogFinding(where[0], where[1], "identity", where[2]))
        return from_elsewhere
    try:
        identities.read_identity(fs, options.root_pk)
    except (VeenError, OSError) as exc:
        findings.append(LogFinding(layout.KEY_MAP, 0, "rebuildable", str(exc)))
    if from_elsewhere is not None and from_elsewhere.hub_id != own.hub_id:
        what = f"this is hub {own.hub_id.hex()}, not {from_elsewhere.hub_id.hex()}, which was given"
        findings.append(LogFinding(layout.IDENTITY, 0, "identity", what))
    return preferred_identity(from_elsewhere, own)


def check_directory(
    fs: Fs, context: AuditContext, control: Control, labels: Mapping[bytes, LabelPin], *, all_labels: bool
) -> Iterator[LogFinding]:
    """Names, limits, anchors, rotations, and that every label was opened."""
    stored = Findings()
    if not context.chunks_only:
        if not fs.exists(layout.CONTROL) and labels and not control.records:
            yield LogFinding(layout.CONTROL, 0, "missing", "the control journal is missing")
        elif control.whole:
            check_rotations(context.identity, control.fold, stored)
        if not control.segments and (labels or control.records):
            what = "the write-ahead journal is missing: the last entries may be lost"
            yield LogFinding(layout.JOURNAL, 0, "missing", what)
        for label in sorted(labels):
            if context.opened(label) is None and control.records:
                yield LogFinding(
                    layout.CONTROL,
                    0,
                    "control",
                    f"no record opens label {label.hex()}",
                    "error" if control.whole else "warning",
                    label=label,
                )
        if all_labels:
            check_names(fs, stored, labels)
        check_limits_file(fs, stored, control.fold.limits)
        check_anchor_file(fs, stored, (body for bodies in control.fold.anchors.values() for body in bodies))
    yield from map(placed, stored.all)
    files = inventory(fs)
    for label in sorted(labels):
        yield from _strays(labels[label], files.get(label, []))


def _strays(pinned: LabelPin, files: Sequence[layout.LogFile]) -> Iterator[LogFinding]:
    """Files of a label that are no part of its log. Those behind the pin are simply newer."""
    paths = {ref.path for ref in pinned.chunks}
    starts = {ref.start_seq for ref in pinned.chunks}
    sealed = {(ref.start_seq, ref.end_seq): ref.kind for ref in pinned.chunks if ref.kind != "active"}
    ends = {end for _, end in sealed}
    last = max(ends, default=0)
    for file in files:
        bounds = (file.start_seq, file.end_seq)
        fault: tuple[str, str] | None = None
        if file.kind in ("chunk", "active"):
            newer = file.start_seq > pinned.size or (file.start_seq > last and file.start_seq in starts)
            if file.path not in paths and not newer:
                fault = ("unknown", "not part of the label's log")
        elif file.kind in ("heads", "receipts") or file.end_seq <= last:
            fault = stray_fault(file, sealed, ends, archived=sealed.get(bounds) in ("heads", "receipts"))
        if fault is not None:
            seq = file.end_seq or file.start_seq
            yield LogFinding(file.path, 0, *fault, "warning", label=pinned.label, stream_seq=seq)


# --- where labels end ----------------------------------------------------------------------------------------


def check_ends(
    fs: Fs,
    context: AuditContext,
    control: Control,
    labels: Mapping[bytes, LabelPin],
    joined: Mapping[bytes, JoinedLabel],
    wanted: frozenset[bytes] | None,
) -> Iterator[LogFinding]:
    """Nothing may speak of entries that no file has, unless a running hub wrote them since we looked."""
    stored = Findings()
    bound = {binding.label: binding for binding in read_binding(fs, stored, context.identity).values()}
    yield from map(placed, stored.all)
    sealed = any(ref.kind != "active" for pinned in labels.values() for ref in pinned.chunks)
    if sealed and context.identity is not None and not context.chunks_only and not fs.exists(layout.CHECKPOINT_BINDING):
        what = "the file is missing; the hub writes it"
        yield LogFinding(layout.CHECKPOINT_BINDING, 0, "missing", what, "warning")
    files = inventory(fs)
    all_labels = {*labels, *control.fold.labels}
    for label in sorted(all_labels if wanted is None else all_labels & wanted):
        pinned = labels.get(label) or LabelPin(label=label, epoch=0, stream_id=None, chunks=())
        claims = [(file.end_seq, file.path) for file in files.get(label, ()) if file.kind in ("peaks", "checkpoint")]
        claims.append((file_size(fs, layout.locations(label)) // LOCATION_BYTES, layout.locations(label)))
        claims += [(upto, layout.CONTROL) for binding, upto in control.fold.anchors if binding == label]
        if label in bound:
            claims.append((bound[label].upto_seq, layout.CHECKPOINT_BINDING))
        if label in control.fold.labels:
            claims.append((1, layout.CONTROL))
        claim, path = max(claims, default=(0, ""))
        if claim > pinned.size:
            yield from _cut(fs, context, control, label, pinned.size, claim, path)
        if label in joined:
            yield from _seals(fs, context, joined[label], bound.get(label), pinned)


def _cut(
    fs: Fs, context: AuditContext, control: Control, label: bytes, size: int, claim: int, path: str
) -> Iterator[LogFinding]:
    if _size_now(fs, context.uri, label) >= claim:
        return  # a hub went on writing
    what = f"it speaks of entry {claim}, but no file has an entry behind {size}"
    if control.journaled.get(label, 0) >= claim:
        what = (
            f"entries {size + 1} to {claim} are in the write-ahead journal only: a hub that starts here restores them"
        )
        yield LogFinding(path, 0, "leftover", what, "warning", label=label, stream_seq=size + 1)
        return
    yield LogFinding(path, 0, "cut", what, label=label, stream_seq=size + 1)


def settle_active(fs: Fs, uri: str, pinned: LabelPin, findings: list[LogFinding]) -> LabelPin:
    """What lies behind the last whole frame of a growing chunk: a write under way, the trace of a crash, or damage."""
    ref = pinned.chunks[-1] if pinned.chunks else None
    if ref is None or ref.kind != "active":
        return pinned
    settled = _whole_frames(fs, pinned)
    at = ref.size if settled is pinned else 0
    try:
        rest = read_file(fs, ref.path)[at:]
    except OSError:
        return settled  # sealed since
    if not rest or _size_now(fs, uri, pinned.label) > settled.size:
        return settled  # or a hub went on writing
    seq = ref.end_seq + 1 if settled is pinned else ref.start_seq
    if _may_be_under_way(rest, ref.label, seq):
        what = "the file ends inside a frame: a write that was cut off, or is under way"
        finding = LogFinding(ref.path, at, "leftover", what, "warning")
    else:
        finding = LogFinding(ref.path, at, "frame", "no frame begins here")
    findings.append(replace(finding, label=ref.label, stream_seq=seq))
    return settled


def _whole_frames(fs: Fs, pinned: LabelPin) -> LabelPin:
    """Without an active chunk in which not even the first frame is whole: it has no entry yet."""
    ref = pinned.chunks[-1] if pinned.chunks else None
    if ref is None or ref.kind != "active" or ref.entries > 1:
        return pinned
    try:
        data = read_file(fs, ref.path)[: ref.size]
    except OSError:
        return pinned
    if not _may_be_under_way(data, ref.label, ref.start_seq):
        return pinned
    return replace(pinned, chunks=pinned.chunks[:-1])


def _size_now(fs: Fs, uri: str, label: bytes) -> int:
    """How far a label goes at this moment: a running hub may have gone on since it was pinned."""
    label_pin = pin(uri, [label]).labels.get(label)
    return 0 if label_pin is None else _whole_frames(fs, label_pin).size


def _may_be_under_way(rest: bytes, label: bytes, stream_seq: int) -> bool:
    """Whether these bytes are the beginning of a frame, and not all of it."""
    begin = b"\x01\x00" + label + u64be(stream_seq)
    if rest[: len(begin)] != begin[: len(rest)]:
        return False
    return len(rest) < HEADER_BYTES or frame.wanted(rest, 0) > len(rest)


def _seals(
    fs: Fs, context: AuditContext, joined: JoinedLabel, bound: identities.CheckpointBinding | None, pinned: LabelPin
) -> Iterator[LogFinding]:
    """The checkpoint index and checkpoint-binding.json: both follow from the seals of the label."""
    label = joined.label
    sealed = {ref.end_seq for ref in pinned.chunks if ref.kind != "active"}
    rows = [row for row in joined.commitments if row.end in sealed]
    if len(rows) != len(sealed) or context.chunks_only:
        return  # what the seals should say is not known
    expected = b"".join(index_entry(label, row.start, row.end, row.root) for row in rows)
    path = layout.checkpoint_index(label)
    try:
        data = read_file(fs, path) or None
    except OSError:
        data = None
    fault = index_fault(data, expected, len(rows), extended=not rows)
    if fault is not None and data is not None and _size_now(fs, context.uri, label) > pinned.size:
        fault = index_fault(data, expected, len(rows), extended=True)  # later seals of a running hub
    if fault is not None:
        yield LogFinding(path, 0, "rebuildable", fault, label=label)
    if bound is None or context.identity is None or bound.upto_seq > joined.size:
        return
    row = next((row for row in rows if row.end == bound.upto_seq), None)
    keys = {key.key_id for key in context.identity.keys_valid_at(row.last_ts)} if row else set()
    opened = context.opened(label)
    if (
        row is None
        or bound.mmr_root != row.root
        or bound.key_id not in keys
        or (opened and opened.epoch != bound.epoch)
    ):
        what = f"no checkpoint of label {label.hex()} is as bound here"
        yield LogFinding(layout.CHECKPOINT_BINDING, 0, "rebuildable", what, label=label)
