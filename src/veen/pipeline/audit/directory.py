"""What is judged of a directory beside its entries: identity, names, what speaks of entries that are gone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from veen.core.errors import VeenError
from veen.core.hashing import u64be
from veen.core.hubkeys import HubIdentity
from veen.pipeline.audit.context import AuditOptions, Context
from veen.pipeline.audit.control import Control
from veen.pipeline.audit.findings import Finding, from_storage
from veen.pipeline.audit.joining import Joined
from veen.pipeline.inventory import LabelPin, pin
from veen.storage import frame, layout
from veen.storage import identity as identities
from veen.storage.errors import CorruptError
from veen.storage.findings import Findings
from veen.storage.frame import HEADER_BYTES
from veen.storage.fs import Fs
from veen.storage.fsckcompare import file_size
from veen.storage.fsckfiles import check_anchor_file, check_limits_file, check_names
from veen.storage.fsckidentity import check_rotations, read_binding
from veen.storage.labelfiles import LOCATION_BYTES, index_entry, map_head, map_head_bytes
from veen.storage.scan import inventory, read_file

__all__ = ["check_directory", "check_ends", "read_identity", "settle_active"]


def read_identity(fs: Fs, options: AuditOptions, findings: list[Finding]) -> HubIdentity | None:
    """Whom the log is held to: the given identity, or what the directory says, whichever knows more keys."""
    given = options.identity
    if not identities.exists(fs):
        if given is None:
            what = "the file is missing: nobody vouches for this log (give the identity, if you have it from elsewhere)"
            findings.append(Finding(path=layout.IDENTITY, code="identity", message=what))
        return given
    try:
        found = identities.read_identity(fs, options.root_pk, key_map=False)
    except (VeenError, OSError) as exc:
        where = (exc.path, exc.offset, exc.what) if isinstance(exc, CorruptError) else (layout.IDENTITY, 0, str(exc))
        findings.append(Finding(path=where[0], offset=where[1], code="identity", message=where[2]))
        return given
    try:
        identities.read_identity(fs, options.root_pk)
    except (VeenError, OSError) as exc:
        findings.append(Finding(path=layout.KEY_MAP, code="rebuildable", message=str(exc)))
    if given is None:
        return found
    if given.hub_id != found.hub_id:
        what = f"this is hub {found.hub_id.hex()}, not {given.hub_id.hex()}, which was given"
        findings.append(Finding(path=layout.IDENTITY, code="identity", message=what))
        return given
    return found if len(found.keys) > len(given.keys) else given


def check_directory(
    fs: Fs, context: Context, control: Control, labels: Mapping[bytes, LabelPin], *, all_labels: bool
) -> Iterator[Finding]:
    """Names, limits, anchors, rotations, and that every label was opened."""
    stored = Findings()
    if not context.chunks_only:
        if not fs.exists(layout.CONTROL) and labels and not control.records:
            yield Finding(path=layout.CONTROL, code="missing", message="the control journal is missing")
        elif control.whole:
            check_rotations(context.identity, control.fold, stored)
        if not control.segments and (labels or control.records):
            what = "the write-ahead journal is missing: the last entries may be lost"
            yield Finding(path=layout.JOURNAL, code="missing", message=what)
        for label in sorted(labels):
            if context.opened(label) is None and control.records:
                yield Finding(
                    label=label,
                    path=layout.CONTROL,
                    code="control",
                    message=f"no record opens label {label.hex()}",
                    severity="error" if control.whole else "warning",
                )
        if all_labels:
            check_names(fs, stored, labels)
        check_limits_file(fs, stored, control.fold.limits)
        check_anchor_file(fs, stored, (body for bodies in control.fold.anchors.values() for body in bodies))
    yield from map(from_storage, stored.all)
    files = inventory(fs)
    for label in sorted(labels):
        yield from _strays(labels[label], files.get(label, []))


def _strays(pinned: LabelPin, files: Sequence[layout.LogFile]) -> Iterator[Finding]:
    """Files of a label that are no part of its log. Those behind the pin are simply newer."""
    paths = {ref.path for ref in pinned.chunks}
    starts = {ref.start_seq for ref in pinned.chunks}
    sealed = {(ref.start_seq, ref.end_seq): ref.kind for ref in pinned.chunks if ref.kind != "active"}
    ends = {end for _, end in sealed}
    last = max(ends, default=0)
    for file in files:
        place = (file.start_seq, file.end_seq)
        code, what = "unknown", "belongs to no chunk of this label"
        if file.kind in ("chunk", "active"):
            known = file.path in paths or file.start_seq > pinned.size or (file.start_seq > last and place[0] in starts)
            what = "not part of the label's log"
        elif file.kind in ("peaks", "checkpoint"):
            known = file.end_seq in ends or file.end_seq > last
        elif file.kind == "summary":
            known = place in sealed or file.end_seq > last
        elif file.kind in ("heads", "receipts"):
            known = sealed.get(place) in ("heads", "receipts")
            code, what = "leftover", "the archive of an erasure that was cut off"
        else:
            known = True
        if not known:
            seq = file.end_seq or file.start_seq
            yield Finding(
                label=pinned.label, stream_seq=seq, path=file.path, code=code, message=what, severity="warning"
            )


# --- where labels end ----------------------------------------------------------------------------------------


def check_ends(
    fs: Fs, context: Context, control: Control, labels: Mapping[bytes, LabelPin], joined: Mapping[bytes, Joined],
    wanted: frozenset[bytes] | None,
) -> Iterator[Finding]:  # fmt: skip
    """Nothing may speak of entries that no file has, unless a running hub wrote them since we looked."""
    stored = Findings()
    bound = {found.label: found for found in read_binding(fs, stored, context.identity).values()}
    yield from map(from_storage, stored.all)
    sealed = any(ref.kind != "active" for pinned in labels.values() for ref in pinned.chunks)
    if sealed and context.identity is not None and not context.chunks_only and not fs.exists(layout.CHECKPOINT_BINDING):
        what = "the file is missing; the hub writes it"
        yield Finding(path=layout.CHECKPOINT_BINDING, code="missing", message=what, severity="warning")
    files = inventory(fs)
    known = {*labels, *control.fold.labels}
    for label in sorted(known if wanted is None else known & wanted):
        pinned = labels.get(label) or LabelPin(label=label, epoch=0, stream_id=None, chunks=())
        claims = [(file.end_seq, file.path) for file in files.get(label, ()) if file.kind in ("peaks", "checkpoint")]
        claims.append((file_size(fs, layout.locations(label)) // LOCATION_BYTES, layout.locations(label)))
        claims += [(upto, layout.CONTROL) for found, upto in control.fold.anchors if found == label]
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
    fs: Fs, context: Context, control: Control, label: bytes, size: int, claim: int, path: str
) -> Iterator[Finding]:
    if _size_now(fs, context.uri, label) >= claim:
        return  # a hub went on writing
    what = f"it speaks of entry {claim}, but no file has an entry behind {size}"
    if control.journaled.get(label, 0) >= claim:
        what = (
            f"entries {size + 1} to {claim} are in the write-ahead journal only: a hub that starts here restores them"
        )
        yield Finding(label=label, stream_seq=size + 1, path=path, code="leftover", message=what, severity="warning")
        return
    yield Finding(label=label, stream_seq=size + 1, path=path, code="cut", message=what)


def settle_active(fs: Fs, uri: str, pinned: LabelPin, findings: list[Finding]) -> LabelPin:
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
        found = Finding(path=ref.path, offset=at, code="leftover", message=what, severity="warning")
    else:
        found = Finding(path=ref.path, offset=at, code="frame", message="no frame begins here")
    findings.append(replace(found, label=ref.label, stream_seq=seq))
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
    found = pin(uri, [label]).labels.get(label)
    return 0 if found is None else _whole_frames(fs, found).size


def _may_be_under_way(rest: bytes, label: bytes, stream_seq: int) -> bool:
    """Whether these bytes are the beginning of a frame, and not all of it."""
    begin = b"\x01\x00" + label + u64be(stream_seq)
    if rest[: len(begin)] != begin[: len(rest)]:
        return False
    return len(rest) < HEADER_BYTES or frame.wanted(rest, 0) > len(rest)


def _seals(
    fs: Fs, context: Context, joined: Joined, bound: identities.Binding | None, pinned: LabelPin
) -> Iterator[Finding]:
    """The checkpoint index and checkpoint-binding.json: both follow from the seals of the label."""
    label = joined.label
    sealed = {ref.end_seq for ref in pinned.chunks if ref.kind != "active"}
    rows = [row for row in joined.commitments if row.end in sealed]
    if len(rows) != len(sealed) or context.chunks_only:
        return  # what the seals should say is not known
    expected = b"".join(index_entry(label, row.start, row.end, row.root) for row in rows)
    path = layout.checkpoint_index(label)
    try:
        found = read_file(fs, path)
    except OSError:
        found = b""
    width = map_head_bytes(found[:1]) if found else 0
    good = found[width : width + len(expected)] == expected
    if good and found != map_head(len(rows)) + expected and rows:
        good = _size_now(fs, context.uri, label) > pinned.size  # later seals of a running hub
    if not good:
        what = "not what the seals of the label give" if found else "the file is missing"
        yield Finding(label=label, path=path, code="rebuildable", message=what)
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
        yield Finding(label=label, path=layout.CHECKPOINT_BINDING, code="rebuildable", message=what)
