"""Checks of a directory apart from its entries: identity, names of files, and claims about missing entries.

The control journal as an audit reads it: every record, also after a broken one (D-46).

A hub may write while the audit reads: an incomplete record at the end of the file is then in the write-ahead journal.
If the journal does not have it, the file was cut or damaged.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from veen.core.errors import FormatError, LimitError, SignatureError, VeenError, VerifyError
from veen.core.hashing import u64be
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity
from veen.io.errors import CorruptError, LinkError, StorageError
from veen.io.local import Fs
from veen.storage import frame, journal, layout
from veen.storage.control_state import ControlFold, control_records
from veen.storage.findings import Findings
from veen.storage.frame import HEADER_BYTES
from veen.storage.keys import identity as identities
from veen.storage.label_files import LOCATION_BYTES, index_entry
from veen.storage.pinned import LabelPin, pin
from veen.storage.scan import inventory, read_file
from veen.verify.audit.context import AuditContext, AuditOptions
from veen.verify.audit.findings import LogFinding, place_finding, reason_of
from veen.verify.audit.joining import JoinedLabel
from veen.verify.audit.tables import Commitment
from veen.verify.control import label_open_fault
from veen.verify.files import check_anchor_file, check_limits_file, check_names, file_size
from veen.verify.identity import check_rotations, choose_identity, read_binding
from veen.verify.seals import index_fault, stray_fault

_LOOKS: Final = 3  # a running hub may let go of a segment between two looks


@dataclass(slots=True)
class Control:
    """State of the control records, and the entries of the write-ahead journal that no file has."""

    fold: ControlFold = field(default_factory=ControlFold)
    whole: bool = True
    findings: list[LogFinding] = field(default_factory=list)
    records: int = 0
    signatures: int = 0
    journaled: dict[bytes, int] = field(default_factory=dict)  # the last entry of each label in the journal
    segments: list[int] = field(default_factory=list)  # of the write-ahead journal, when it was read
    last: ControlRecord | None = None

    def error(self, offset: int, code: str, message: str, path: str = layout.CONTROL) -> None:
        self.findings.append(LogFinding(path, offset, code, message))

    def add(self, record: ControlRecord, path: str, offset: int, identity: HubIdentity | None) -> None:
        """Apply a record if the hub signed it, even if the chain before it is broken."""
        if path != layout.CONTROL and record.seq > (behind := self.last.seq if self.last else 0) + 1:
            self.whole = False
            self.error(offset, "gap", f"control records {behind + 1} to {record.seq - 1} are missing before it", path)
        else:
            try:
                record.check_follows(self.last)
            except VerifyError as exc:
                self.whole = False
                self.error(offset, "control", str(exc), path)
        self.last = record
        self.records += 1
        try:
            if identity is not None:
                self.signatures += 1
                identity.verify_rotation(record)
            self.fold.apply(record)
        except (VerifyError, FormatError, LimitError) as exc:
            self.whole = False
            said = f"control record {record.seq}: {exc}"
            self.error(offset, "hub_sig" if isinstance(exc, SignatureError) else "control", said, path)


def read_control(fs: Fs, identity: HubIdentity | None, *, verify: bool) -> Control:
    """Read all records of file and journal; with `verify`, check their signatures."""
    control = _read(fs, identity if verify else None)
    for _ in range(_LOOKS):
        if journal.segments(fs) == control.segments:
            break
        control = _read(fs, identity if verify else None)
    if not control.records or not control.segments:  # the newest records are in the journal alone
        control.whole = False
    for label, opened in control.fold.labels.items():
        if (fault := label_open_fault(label, opened, identity)) is not None:
            control.error(0, "control", fault)
    return control


def _read(fs: Fs, identity: HubIdentity | None) -> Control:
    control = Control(segments=journal.segments(fs))
    stopped: CorruptError | None = None
    try:
        for offset, record in control_records(fs):
            control.add(record, layout.CONTROL, offset, identity)
    except CorruptError as exc:
        stopped = exc
    except (StorageError, OSError) as exc:
        stopped = CorruptError(layout.CONTROL, 0, f"it cannot be opened: {reason_of(exc)}")
    last = control.last.seq if control.last else 0
    waiting = _read_journal(fs, control)
    for placed in waiting:
        if isinstance(placed.record, ControlRecord) and placed.record.seq > last:
            if stopped is not None and placed.record.seq == last + 1:
                stopped = None  # under way, or cut off by a crash: the journal has it
            control.add(placed.record, placed.path, placed.offset, identity)
    if stopped is not None:
        control.whole = False
        control.error(stopped.offset, "control", stopped.what)
    return control


def _read_journal(fs: Fs, control: Control) -> list[journal.Placed]:
    """Return the control records of the write-ahead journal; note the last entry that it has of each label."""
    records: list[journal.Placed] = []
    numbers = journal.segments(fs)
    try:
        if not numbers or journal.is_empty(fs):
            return records
        opened = journal.open_segments(fs, journal.newest_run(numbers))
    except FileNotFoundError:
        return records  # let go by a running hub: the caller looks again
    except (StorageError, OSError) as exc:
        control.error(0, "journal", f"it cannot be opened: {reason_of(exc)}", layout.journal_segment(numbers[0]))
        return records
    try:
        for item in journal.walk(opened):
            if not isinstance(item, journal.Placed):
                continue
            if isinstance(item.record, ControlRecord):
                records.append(item)
            else:
                control.journaled[item.record.label] = item.record.stream_seq
    except CorruptError as exc:
        control.error(exc.offset, "journal", exc.what, exc.path)
    except VeenError as exc:
        control.error(0, "journal", str(exc), layout.journal_segment(numbers[0]))
    finally:
        journal.close_segments(opened)
    return records


def read_identity(fs: Fs, options: AuditOptions, findings: list[LogFinding]) -> HubIdentity | None:
    """Return the identity to verify with: the given one, or that of the directory if it knows more keys."""
    from_elsewhere = options.identity
    if not identities.exists(fs):
        if from_elsewhere is None:
            what = "the file is missing: nobody vouches for this log (give the identity, if you have it from elsewhere)"
            findings.append(LogFinding(layout.IDENTITY, 0, "missing", what))
        return from_elsewhere
    try:
        own = identities.read_identity(fs, options.root_pk, key_map=False)
    except (VeenError, OSError) as exc:
        where = (exc.path, exc.offset, exc.what) if isinstance(exc, CorruptError) else (layout.IDENTITY, 0, str(exc))
        code = "identity" if fs.exists(where[0]) else "missing"
        findings.append(LogFinding(where[0], where[1], code, where[2]))
        return from_elsewhere
    try:
        identities.read_identity(fs, options.root_pk)
    except (VeenError, OSError) as exc:
        findings.append(LogFinding(layout.KEY_MAP, 0, "rebuildable", str(exc)))
    if from_elsewhere is not None and from_elsewhere.hub_id != own.hub_id:
        what = f"this is hub {own.hub_id.hex()}, not {from_elsewhere.hub_id.hex()}, which was given"
        findings.append(LogFinding(layout.IDENTITY, 0, "identity", what))
    return choose_identity(from_elsewhere, own)


def check_directory(
    fs: Fs, context: AuditContext, control: Control, labels: Mapping[bytes, LabelPin], *, all_labels: bool
) -> Iterator[LogFinding]:
    """Check names, limits, anchors and rotations, and that every label was opened."""
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
            if context.find_opening(label) is None and control.records:
                yield LogFinding(
                    layout.CONTROL,
                    0,
                    "control" if control.whole else "unverified",
                    f"no record opens label {label.hex()}",
                    "error" if control.whole else "warning",
                    label=label,
                )
        if all_labels:
            check_names(fs, stored, labels)
        check_limits_file(fs, stored, control.fold.limits)
        check_anchor_file(fs, stored, (body for bodies in control.fold.anchors.values() for body in bodies))
    yield from map(place_finding, stored.all)
    files = inventory(fs)
    for label in sorted(labels):
        yield from _strays(labels[label], files.get(label, []))


def _strays(pinned: LabelPin, files: Sequence[layout.LogFile]) -> Iterator[LogFinding]:
    """Yield findings about files of a label that are not part of its log. Files after the pin are only newer."""
    paths = {ref.path for ref in pinned.chunks}
    starts = {ref.start_seq for ref in pinned.chunks}
    journaled = [(ref.start_seq, ref.end_seq) for ref in pinned.chunks if ref.kind == "journal"]
    sealed = {(ref.start_seq, ref.end_seq): ref.kind for ref in pinned.chunks if ref.is_sealed}
    ends = {end for _, end in sealed}
    last = max(ends, default=0)
    for file in files:
        bounds = (file.start_seq, file.end_seq)
        fault: tuple[str, str] | None = None
        if file.kind in ("chunk", "active"):
            newer = (
                file.start_seq > pinned.size
                or (file.start_seq > last and file.start_seq in starts)
                or any(first <= file.start_seq <= end for first, end in journaled)  # written to a file since
            )
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
    listed: Mapping[bytes, int],
) -> Iterator[LogFinding]:
    """Yield findings about claims to missing entries, unless a running hub has written these meanwhile.

    `listed` are the heads in the outer log, as it was before the log was pinned.
    """
    stored = Findings()
    bound = {binding.label: binding for binding in read_binding(fs, stored, context.identity).values()}
    yield from map(place_finding, stored.all)
    sealed = any(ref.is_sealed for pinned in labels.values() for ref in pinned.chunks)
    if sealed and context.identity is not None and not context.chunks_only and not fs.exists(layout.CHECKPOINT_BINDING):
        what = "the file is missing; the hub writes it"
        yield LogFinding(layout.CHECKPOINT_BINDING, 0, "missing", what, "warning")
    files = inventory(fs)
    anchored: dict[bytes, int] = {}
    for label, upto in control.fold.anchors:
        anchored[label] = max(upto, anchored.get(label, 0))
    beyond: dict[bytes, tuple[int, str]] = {}
    indexes: dict[bytes, _Index] = {}
    # Of a label that the journal does not have, nothing but its locations says how far the growing chunk went.
    located = frozenset[bytes]() if context.chunks_only else control.fold.labels.keys() - control.journaled.keys()
    all_labels = {*labels, *control.fold.labels, *listed}
    for label in sorted(all_labels if wanted is None else all_labels & wanted):
        pinned = labels.get(label) or LabelPin(label=label, epoch=0, stream_id=None, chunks=())
        claims = [(file.end_seq, file.path) for file in files.get(label, ()) if file.kind in ("peaks", "checkpoint")]
        size, fault = _size_of(fs, layout.locations(label))
        if fault is not None:
            yield fault
        elif not size and pinned.chunks and label in located:
            yield LogFinding(layout.locations(label), 0, "rebuildable", "the file is missing", label=label)
        claims.append((size // LOCATION_BYTES, layout.locations(label)))
        claims.append((anchored.get(label, 0), layout.CONTROL))
        claims.append((listed.get(label, 0), layout.OUTER_LEAVES))
        if label in bound:
            claims.append((bound[label].upto_seq, layout.CHECKPOINT_BINDING))
        if label in control.fold.labels:
            claims.append((1, layout.CONTROL))
        if (newest := max(claims))[0] > pinned.size:
            beyond[label] = newest
        if label in joined and not context.chunks_only:
            index = _Index.read(fs, joined[label], pinned)
            if index is not None and (index.fault() or not index.is_bound(context, bound.get(label))):
                indexes[label] = index
    now = _labels_now(fs, context.uri, beyond.keys() | indexes.keys())
    for label, (claim, path) in beyond.items():
        size = labels[label].size if label in labels else 0
        if label not in now or now[label].size < claim:  # else a hub went on writing
            yield _cut(control, label, size, claim, path)
    for label, index in indexes.items():
        sealed_now = {ref.end_seq for ref in now[label].chunks if ref.is_sealed} if label in now else set()
        grown = len(sealed_now) > len(index.rows)  # by later seals of a running hub
        if (wrong := index.fault(extended=grown)) is not None:
            yield LogFinding(index.path, 0, "rebuildable", wrong, label=label)
        binding = bound.get(label)
        if not index.is_bound(context, binding) and not (grown and binding and binding.upto_seq > index.last):
            what = f"no checkpoint of label {label.hex()} is as bound here"
            yield LogFinding(layout.CHECKPOINT_BINDING, 0, "rebuildable", what, label=label)


def _size_of(fs: Fs, path: str) -> tuple[int, LogFinding | None]:
    """Return the size of a derived file; with a finding if it cannot be opened."""
    try:
        return file_size(fs, path), None
    except (StorageError, OSError) as exc:
        return 0, cannot_open(path, exc)


def cannot_open(path: str, exc: Exception) -> LogFinding:
    """Return the finding about a file that cannot be opened, such as a directory in its place."""
    if isinstance(exc, LinkError):
        raise exc
    derived = path.startswith((f"{layout.OFFSETS}/", f"{layout.NODES}/"))
    return LogFinding(path, 0, "rebuildable" if derived else "missing", f"it cannot be opened: {reason_of(exc)}")


def _cut(control: Control, label: bytes, size: int, claim: int, path: str) -> LogFinding:
    if control.journaled.get(label, 0) >= claim:
        what = (
            f"entries {size + 1} to {claim} are in the write-ahead journal only: a hub that starts here restores them"
        )
        return LogFinding(path, 0, "leftover", what, "warning", label=label, stream_seq=size + 1)
    what = f"it speaks of entry {claim}, but no file has an entry behind {size}"
    return LogFinding(path, 0, "cut", what, label=label, stream_seq=size + 1)


class _Tail(NamedTuple):
    """The bytes behind the last whole frame of a growing chunk."""

    path: str
    at: int
    stream_seq: int
    data: bytes


def settle_active(
    fs: Fs, uri: str, labels: Mapping[bytes, LabelPin], findings: list[LogFinding]
) -> dict[bytes, LabelPin]:
    """Classify the bytes after the last whole frame of growing chunks: a write in progress, a crash, or damage."""
    settled: dict[bytes, LabelPin] = {}
    tails: dict[bytes, _Tail] = {}
    for label, pinned in labels.items():
        settled[label] = _whole_frames(fs, pinned)
        try:
            if (tail := _tail_of(fs, pinned, settled[label])) is not None:
                tails[label] = tail
        except FileNotFoundError:
            continue  # sealed since
        except (StorageError, OSError) as exc:
            findings.append(replace(cannot_open(pinned.active or "", exc), label=label))
    now = _labels_now(fs, uri, tails.keys())
    for label, tail in tails.items():
        if label in now and now[label].size > settled[label].size:
            continue  # a hub went on writing
        if _may_be_under_way(tail.data, label, tail.stream_seq):
            what = "the file ends inside a frame: a write that was cut off, or is under way"
            finding = LogFinding(tail.path, tail.at, "leftover", what, "warning")
        else:
            finding = LogFinding(tail.path, tail.at, "frame", "no frame begins here")
        findings.append(replace(finding, label=label, stream_seq=tail.stream_seq))
    return settled


def _tail_of(fs: Fs, pinned: LabelPin, settled: LabelPin) -> _Tail | None:
    if pinned.active is None:
        return None
    ref = next((ref for ref in settled.chunks if ref.path == pinned.active), None)
    file = layout.log_file(pinned.active.rpartition("/")[2])
    data = read_file(fs, pinned.active)
    if file is None or (
        ref is None and any(chunk.start_seq < file.start_seq <= chunk.end_seq for chunk in settled.chunks)
    ):
        return None  # the name of a chunk that was sealed
    at, seq = (ref.size, ref.end_seq + 1) if ref is not None else (0, file.start_seq)
    return _Tail(pinned.active, at, seq, data[at:]) if len(data) > at else None


def _whole_frames(fs: Fs, pinned: LabelPin) -> LabelPin:
    """Remove an active chunk without a complete first frame: it has no entry yet."""
    ref = pinned.chunks[-1] if pinned.chunks else None
    if ref is None or ref.kind != "active" or ref.entries > 1:
        return pinned
    try:
        data = read_file(fs, ref.path)[: ref.size]
    except (StorageError, OSError):
        return pinned
    if not _may_be_under_way(data, ref.label, ref.start_seq):
        return pinned
    return replace(pinned, chunks=pinned.chunks[:-1])


def _labels_now(fs: Fs, uri: str, labels: Collection[bytes]) -> dict[bytes, LabelPin]:
    """Pin the labels again: a running hub may have continued since they were pinned."""
    if not labels:
        return {}
    return {label: _whole_frames(fs, label_pin) for label, label_pin in pin(uri, labels).labels.items()}


def _may_be_under_way(rest: bytes, label: bytes, stream_seq: int) -> bool:
    """Return True if these bytes are an incomplete beginning of a frame."""
    begin = b"\x01\x00" + label + u64be(stream_seq)
    if rest[: len(begin)] != begin[: len(rest)]:
        return False
    return len(rest) < HEADER_BYTES or frame.bytes_needed(rest, 0) > len(rest)


@dataclass(frozen=True, slots=True)
class _Index:
    """The checkpoint index of a label, and the content that the seals of the label require."""

    label: bytes
    size: int
    path: str
    data: bytes | None
    expected: bytes
    rows: tuple[Commitment, ...]

    @classmethod
    def read(cls, fs: Fs, joined: JoinedLabel, pinned: LabelPin) -> "_Index | None":
        """Read the index; return None if the required content is unknown."""
        sealed = {ref.end_seq for ref in pinned.chunks if ref.is_sealed}
        rows = tuple(row for row in joined.commitments if row.end in sealed)
        if len(rows) != len(sealed):
            return None
        path = layout.checkpoint_index(joined.label)
        try:
            data = read_file(fs, path) or None
        except (StorageError, OSError):
            data = None
        expected = b"".join(index_entry(joined.label, row.start, row.end, row.root) for row in rows)
        return cls(joined.label, joined.size, path, data, expected, rows)

    def fault(self, *, extended: bool = False) -> str | None:
        """Return the fault of the index, None if there is none; with `extended`, later seals may follow."""
        if extended and self.data is not None:
            return index_fault(self.data, self.expected, len(self.rows), extended=True)
        return index_fault(self.data, self.expected, len(self.rows), extended=not self.rows)

    @property
    def last(self) -> int:
        return self.rows[-1].end if self.rows else 0

    def is_bound(self, context: AuditContext, bound: identities.CheckpointBinding | None) -> bool:
        """Return True if checkpoint-binding.json names a seal of the label, or nothing that can be checked here."""
        if bound is None or context.identity is None or bound.upto_seq > self.size:
            return True
        row = next((row for row in self.rows if row.end == bound.upto_seq), None)
        if row is None or bound.mmr_root != row.root:
            return False
        opened = context.find_opening(self.label)
        return bound.key_id in {key.key_id for key in context.identity.keys_valid_at(row.last_ts)} and (
            opened is None or opened.epoch == bound.epoch
        )
