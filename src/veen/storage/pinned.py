"""The view of a log at one moment: a prefix of every label, as small values that are sent to executors (D-181).

Every reader of a directory reads through `pin`: folds, tables, `spark.read`, queries, audits and comparisons see the
same entries of the same directory. Everything follows from file names, frames and the write-ahead journal; the index of
a hub is not read. Copies without keys, and places that contain only chunks, are pinned as well.

A hub writes entries to its journal first and to chunks some seconds later. The journal is opened before the files are
listed: what the hub removes from it meanwhile is in files by then, so no entry is missed. Entries that only the journal
has are sent inside of their `ChunkRef`, because the journal will be gone when they are read.

A running hub renames the growing chunk when it seals it, and removes chunks whose payloads it erases. If a file is gone
between the listing and the opening, its label is listed again.
"""

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from veen.core import cbor
from veen.core.errors import FormatError, VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.verdict import Coverage, StatedBy
from veen.io.errors import LinkError
from veen.io.local import File, Fs, OsFs
from veen.io.places import open_place
from veen.storage import frame, layout
from veen.storage import journal as write_ahead
from veen.storage.copies.unfinished import check_finished
from veen.storage.frame import HEADER_BYTES, Frame
from veen.storage.keys import identity
from veen.storage.reader import inflate
from veen.storage.scan import is_compressed, read_file

# journal: they are in `data`; missing: no file has the entries; hub: they are asked for by HTTP
Kind = Literal["sealed", "active", "receipts", "heads", "journal", "missing", "hub"]
_LOOKS: Final = 8  # at files that a running hub renames or removes meanwhile
_MAX_JOURNAL_BYTES: Final = 256 << 20  # of frames that no file has: more than an honest hub leaves in its journal
_JOURNAL_REF_BYTES: Final = 4 << 20  # of frames that travel in one `ChunkRef`
_PACKED_BYTES: Final = 16 << 10  # of a compressed chunk, read at a time to learn its first entry
_FEW_FILES: Final = 64  # whose sizes are asked for one by one
_WITH_ENTRIES: Final = frozenset(("chunk", "receipts", "heads", "active"))  # how names of such files begin
_UPTO: Final = frozenset(("checkpoint", "peaks"))  # how names of files begin that speak of all entries up to one
_RANKS: Final = {"sealed": 0, "receipts": 1, "heads": 2}  # a chunk that is there twice is read from its fullest form
_STRENGTH: Final = {who: rank for rank, who in enumerate(StatedBy)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRef:
    """A run of entries and the file that contains them."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    start_seq: int
    end_seq: int
    path: str
    kind: Kind
    size: int  # bytes that count: later ones of an active chunk do not belong to this pin
    data: bytes = field(default=b"", repr=False)  # of kind "journal": the frames

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1

    @property
    def is_sealed(self) -> bool:
        """True if no entry will be added: the hub has sealed the chunk, and may have erased its payloads since."""
        return self.kind not in ("active", "journal")

    @property
    def is_possible(self) -> bool:
        """True if a file of this size can contain as many entries as its name states."""
        return self.entries <= max(self.size, DEFAULT_LIMITS.max_chunk_bytes) // HEADER_BYTES

    def __reduce__(self) -> "tuple[Any, ...]":
        """Omit a name that follows from the rest, which is most of the bytes: plans are sent to tasks."""
        path = "" if self.kind == "sealed" and self.path == self._sealed_path else self.path
        start, entries = self.start_seq, self.entries
        return _chunk_ref, (
            self.label,
            self.epoch,
            self.stream_id,
            start,
            entries,
            path,
            self.kind,
            self.size,
            self.data,
        )

    @property
    def _sealed_path(self) -> str:
        return layout.chunk(self.label, self.start_seq, self.end_seq)


def _chunk_ref(
    label: bytes,
    epoch: int,
    stream_id: bytes | None,
    start_seq: int,
    entries: int,
    path: str,
    kind: Kind,
    size: int,
    data: bytes,
) -> ChunkRef:
    end_seq = start_seq + entries - 1
    return ChunkRef(
        label=label,
        epoch=epoch,
        stream_id=stream_id,
        start_seq=start_seq,
        end_seq=end_seq,
        path=path or (layout.chunk(label, start_seq, end_seq) if kind == "sealed" else ""),
        kind=kind,
        size=size,
        data=data,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPin:
    """One label up to its pinned head."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    chunks: tuple[ChunkRef, ...]  # in order
    gaps: tuple[tuple[int, int], ...] = ()  # entries that no file has, although later ones are there
    erased: tuple[tuple[int, int], ...] = ()  # of a copy: entries that the hub had erased when it was asked for them
    left_out: int = 0  # the last position in files that were left out, all of which were read before
    active: str | None = None  # the file of the growing chunk, also if the journal has its entries

    @property
    def size(self) -> int:
        return self.chunks[-1].end_seq if self.chunks else self.left_out

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The gaps that retention does not explain."""
        return tuple(part for gap in self.gaps for part in without(gap, self.erased))

    @property
    def read_upto(self) -> int:
        """The position up to which every entry is present, or was erased by retention."""
        if holes := self.holes:
            return holes[0][0] - 1
        upto = self.size
        for first, last in sorted(self.erased):
            if first <= upto + 1 <= last:
                upto = last
        return upto

    @property
    def first_payload(self) -> int:
        """The first position after a pruned beginning; size + 1 if no payload is left.

        A reader that needs payloads starts there, from a state of the entries before it if it has one.
        """
        chunks = {ref.start_seq: ref for ref in self.chunks}
        gaps = {gap[0]: gap[1] for gap in self.gaps if not list(without(gap, self.erased))}
        at = self.left_out + 1
        while at <= self.size:
            ref = chunks.get(at)
            if ref is not None and ref.kind in ("receipts", "heads"):
                at = ref.end_seq + 1
            elif at in gaps:
                at = gaps[at] + 1
            else:
                break
        return at


def without(span: tuple[int, int], others: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span of positions that are in none of the others."""
    first, last = span
    for begin, end in sorted(others):
        if begin > last or first > last:
            break
        if end < first:
            continue
        if begin > first:
            yield first, begin - 1
        first = end + 1
    if first <= last:
        yield first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A log at one moment: of a data directory, or of a running hub that was asked for its heads."""

    uri: str
    identity: HubIdentity | None  # None where nothing but chunks was copied
    labels: Mapping[bytes, LabelPin]
    stated: Mapping[bytes, int] = field(default_factory=dict)  # the greatest position that the place itself speaks of
    stated_by: StatedBy = StatedBy.OWN_FILES

    def chunks(self) -> Iterator[ChunkRef]:
        for label in sorted(self.labels):
            yield from self.labels[label].chunks

    @property
    def heads(self) -> dict[bytes, int]:
        return {label: label_pin.size for label, label_pin in self.labels.items()}

    def coverage(
        self,
        identity: str | None,
        *,
        read: Mapping[bytes, int] | None = None,
        stated: Mapping[StatedBy, Mapping[bytes, int]] | None = None,
        labels: Collection[bytes] | None = None,
        names: Mapping[bytes, str] | None = None,
    ) -> tuple[Coverage, ...]:
        """Return a row for each label of the view, and for each label with a stated head.

        `identity` is the key that signatures were checked under. `read` is the position up to which labels were
        compared. Default: up to the first hole. `stated` has heads from elsewhere, by their source. `labels` restricts
        the rows. `names` replaces labels in hex.
        """
        statements = [(self.stated_by, self.heads), (self.stated_by, self.stated), *(stated or {}).items()]
        heads: dict[bytes, tuple[int, StatedBy]] = {}
        for who, positions in statements:
            for label, head in positions.items():
                best = heads.get(label)
                if best is None or (head, _STRENGTH[who]) > (best[0], _STRENGTH[best[1]]):
                    heads[label] = (head, who)
        rows = []
        for label, (head, who) in sorted(heads.items()):
            if labels is None or label in labels:
                label_pin = self.labels.get(label)
                upto = label_pin.read_upto if label_pin is not None else 0
                rows.append(
                    Coverage(
                        log=(names or {}).get(label) or label.hex(),
                        read=upto if read is None else min(upto, read.get(label, 0)),
                        head=head,
                        stated_by=who,
                        identity=identity,
                    )
                )
        return tuple(rows)


def pin(
    uri: str,
    labels: Collection[bytes] | None = None,
    *,
    after: Mapping[bytes, int] | None = None,
    reach: Mapping[bytes, int] | None = None,
) -> LogView:
    """Return the present view of the directory at `uri`, or of some of its labels.

    `after` is the position up to which labels were read before: files that end there or earlier are skipped, at the
    cost of their names. A stream that polls every second must not read all files of a long log each time. A label that
    ends before `after` or `reach` is read again before it may be called shorter.
    """
    fs = open_place(uri)
    check_finished(fs, uri)
    earlier = {**(reach or {}), **(after or {})}
    view = _look(fs, uri, labels, after or {})
    for _ in range(_LOOKS - 1):
        if all(view.heads.get(label, 0) >= seq for label, seq in earlier.items()):
            break
        view = _look(fs, uri, labels, after or {})
    return view


def _look(fs: Fs, uri: str, labels: Collection[bytes] | None, after: Mapping[bytes, int]) -> LogView:
    opened: dict[bytes, LabelOpen] = {}
    label_pins: dict[bytes, LabelPin] = {}
    with _Journal(fs) as journal:
        for record in _control_records(fs):
            if isinstance(record.body, LabelOpen):
                opened.setdefault(record.body.label, record.body)
        listing = _Listing.of(fs, labels, after)
        newest, ends = journal.read(opened, listing.sealed_ends, labels)
    stated = {label: listing.claims.get(label, 0) for label in listing.files.keys() | listing.claims.keys()}
    for label in opened.keys() | ends.keys():
        if labels is None or label in labels:
            stated[label] = max(1, stated.get(label, 0), ends.get(label, 0))
    erased = read_erased_spans(fs)
    looks = 0
    waiting = listing.files.keys() | newest.keys() | listing.left_out.keys()
    while waiting:
        looks += 1
        moved: set[bytes] = set()
        sizes = fs.sizes(layout.LOG) if listing.is_long and isinstance(fs, OsFs) else {}
        for label in waiting:
            listed = listing.files.pop(label, [])  # of a million chunks the names are not kept twice
            try:
                label_pins[label] = _pin_label(
                    fs, label, listed, opened.get(label), listing.left_out.get(label, 0), sizes, newest.get(label, ())
                )
            except FileNotFoundError:
                if looks < _LOOKS:
                    moved.add(label)
                    continue
                raise
        waiting = moved
        if moved:  # renamed or erased between the listing and the opening
            listing = _Listing.of(fs, moved, after)
    for label, spans in erased.items():
        if labels is None or label in labels:
            nothing = LabelPin(label=label, epoch=0, stream_id=None, chunks=())
            label_pins[label] = replace(label_pins.get(label, nothing), erased=spans)
    try:
        who = identity.read_identity(fs, key_map=False)
    except (VeenError, OSError) as exc:
        if isinstance(exc, LinkError):
            raise
        who = None  # the audit says what is wrong with it
    return LogView(uri=uri, identity=who, labels=label_pins, stated=stated)


@dataclass(slots=True)
class _Listing:
    """The names in the log directory, most of which are not parsed."""

    files: dict[bytes, list[layout.LogFile]]  # those with entries; none of a label of which only others are left
    left_out: dict[bytes, int]  # where files end that were read before
    claims: dict[bytes, int]  # the greatest position that the name of a checkpoint has

    @classmethod
    def of(cls, fs: Fs, labels: Collection[bytes] | None, after: Mapping[bytes, int]) -> "_Listing":
        wanted = None if labels is None else {label.hex() for label in labels}
        bounds = {label.hex(): f"{seq:020d}" for label, seq in after.items()}
        files: dict[bytes, list[layout.LogFile]] = {}
        left_out: dict[bytes, int] = {}
        upto: dict[str, str] = {}
        labels_seen: set[str] = set()
        for name in fs.list(layout.LOG):
            kind, _, rest = name.partition("-")
            label_text = rest[:64]
            if wanted is not None and label_text not in wanted:
                continue
            if kind not in _WITH_ENTRIES or name.endswith(".summary"):
                if label_text not in labels_seen and (file := layout.log_file(name)):
                    labels_seen.add(label_text)
                    files.setdefault(file.label, [])
                if kind in _UPTO and label_text in labels_seen and rest[85:] == ".cbor" and rest[65:85].isdecimal():
                    upto[label_text] = max(upto.get(label_text, ""), rest[65:85])
                continue
            bound, end = bounds.get(label_text), rest[86:106]  # names have a fixed width
            if bound is not None and len(end) == len(bound) and end.isdecimal() and end <= bound:
                label = bytes.fromhex(label_text)
                left_out[label] = max(left_out.get(label, 0), int(end))
            elif file := layout.log_file(name):
                files.setdefault(file.label, []).append(file)
        claims = {bytes.fromhex(label_text): int(seq) for label_text, seq in upto.items()}
        return cls(files, left_out, claims)

    @property
    def is_long(self) -> bool:
        return sum(map(len, self.files.values())) > _FEW_FILES

    @property
    def sealed_ends(self) -> dict[bytes, int]:
        """The last positions in the finished files of each label: they contain what the journal has before that."""
        ends = {label: max((file.end_seq for file in files), default=0) for label, files in self.files.items()}
        return {label: max(ends.get(label, 0), self.left_out.get(label, 0)) for label in ends | self.left_out}


class _Journal:
    """The write-ahead journal as of its opening: neither growth nor removal of a segment disturbs it."""

    def __init__(self, fs: Fs) -> None:
        self._segments: list[write_ahead.Segment] = []
        for _ in range(_LOOKS):
            try:
                self._segments = write_ahead.open_segments(fs, write_ahead.newest_run(write_ahead.segments(fs)))
            except FileNotFoundError:
                continue  # let go while we looked
            except (VeenError, OSError) as exc:
                if isinstance(exc, LinkError):
                    raise
            return

    def __enter__(self) -> "_Journal":
        return self

    def __exit__(self, *_: object) -> None:
        write_ahead.close_segments(self._segments)

    def read(
        self, opened: dict[bytes, LabelOpen], sealed: Mapping[bytes, int], labels: Collection[bytes] | None
    ) -> tuple[dict[bytes, list[Frame]], dict[bytes, int]]:
        """Return the frames behind the sealed entries of each label, and the last position of each label.

        Labels that it opens are added to `opened`. Damage ends the journal: the audit reports it.
        """
        newest: dict[bytes, list[Frame]] = {}
        ends: dict[bytes, int] = {}
        size = 0
        try:
            for item in write_ahead.walk(self._segments):
                record = item.record if isinstance(item, write_ahead.Placed) else None
                if isinstance(record, ControlRecord) and isinstance(record.body, LabelOpen):
                    opened.setdefault(record.body.label, record.body)
                elif isinstance(record, Frame) and (labels is None or record.label in labels):
                    ends[record.label] = max(record.stream_seq, ends.get(record.label, 0))
                    if record.stream_seq > sealed.get(record.label, 0) and size < _MAX_JOURNAL_BYTES:
                        size += record.size
                        newest.setdefault(record.label, []).append(record)
        except (VeenError, OSError):
            pass
        return newest, ends


def _control_records(fs: Fs) -> Iterator[ControlRecord]:
    try:
        data, pos = read_file(fs, layout.CONTROL), 0
    except (VeenError, OSError) as exc:
        if isinstance(exc, LinkError):
            raise
        return  # missing, or no file: the audit says so
    while pos < len(data):
        try:
            end = cbor.item_end(data, pos)
            yield ControlRecord.from_bytes(data[pos:end])
        except FormatError:
            return  # cut off by a running hub, or damaged: the audit finds out which
        pos = end


def read_erased_spans(fs: Fs) -> dict[bytes, tuple[tuple[int, int], ...]]:
    """Return the entries that a hub had erased when it was copied, by label (`veen.lake.log.hub_copy`)."""
    try:
        if not fs.exists(layout.ERASED):
            return {}
        spans = json.loads(read_file(fs, layout.ERASED))
        return {
            bytes.fromhex(label): tuple((int(first), int(last)) for first, last in pairs)
            for label, pairs in spans.items()
        }
    except (VeenError, OSError, ValueError, TypeError, AttributeError) as exc:
        if isinstance(exc, LinkError):
            raise
        return {}  # then they are holes, and asked for again


def _with_newest(label_pin: LabelPin, frames: Iterable[Frame]) -> LabelPin:
    """Add the frames that follow the last entry of the files without a gap."""
    refs: list[ChunkRef] = []
    data, first, expected = bytearray(), label_pin.size + 1, label_pin.size + 1

    def flush() -> None:
        if data:
            refs.append(
                ChunkRef(
                    label=label_pin.label,
                    epoch=label_pin.epoch,
                    stream_id=label_pin.stream_id,
                    start_seq=first,
                    end_seq=expected - 1,
                    path=layout.JOURNAL,
                    kind="journal",
                    size=len(data),
                    data=bytes(data),
                )
            )
            data.clear()

    for framed in frames:
        if framed.stream_seq == expected:
            if len(data) >= _JOURNAL_REF_BYTES:
                flush()
                first = expected
            data += framed.to_bytes()
            expected += 1
    flush()
    return replace(label_pin, chunks=(*label_pin.chunks, *refs)) if refs else label_pin


def _pin_label(
    fs: Fs,
    label: bytes,
    files: Iterable[layout.LogFile],
    opened: LabelOpen | None,
    left_out: int,
    sizes: Mapping[str, int],
    newest: Sequence[Frame],
) -> LabelPin:
    """Pin the files of one label, and the later entries of the journal; raise FileNotFoundError if a file is gone."""
    epoch, stream_id = (opened.epoch, opened.stream_id) if opened else (0, None)
    best: dict[int, ChunkRef] = {}
    active: list[layout.LogFile] = []
    kinds: dict[str, Kind] = {"chunk": "sealed", "receipts": "receipts", "heads": "heads"}
    for file in files:
        if file.kind == "active":
            active.append(file)
        if file.kind not in kinds:
            continue
        ref = ChunkRef(
            label=label,
            epoch=epoch,
            stream_id=stream_id,
            start_seq=file.start_seq,
            end_seq=file.end_seq,
            path=file.path,
            kind=kinds[file.kind],
            size=size if (size := sizes.get(file.path.rpartition("/")[2])) is not None else _size(fs, file.path),
        )
        other = best.get(file.start_seq)
        if other is None or _RANKS[ref.kind] < _RANKS[other.kind]:
            best[file.start_seq] = ref
    chunks = [best[start] for start in sorted(best)]
    journaled = {framed.stream_seq for framed in newest}
    for file in active:
        growing = _pin_active(fs, label, file, epoch, stream_id, in_journal=file.start_seq in journaled)
        if growing is not None:
            chunks.append(growing)
    chunks.sort(key=lambda ref: ref.start_seq)
    expected, gaps, joined = left_out + 1, [], []
    for ref in chunks:
        if ref.start_seq < expected:
            continue  # sealed between two looks: the active file under its old name
        if ref.start_seq > expected:
            gaps.append((expected, ref.start_seq - 1))
        joined.append(ref)
        expected = ref.end_seq + 1
    label_pin = LabelPin(
        label=label,
        epoch=epoch,
        stream_id=stream_id,
        chunks=tuple(joined),
        gaps=tuple(gaps),
        left_out=left_out,
        active=active[-1].path if active else None,
    )
    return _with_newest(label_pin, newest)


def _pin_active(
    fs: Fs, label: bytes, file: layout.LogFile, epoch: int, stream_id: bytes | None, *, in_journal: bool
) -> ChunkRef | None:
    """Return the complete frames of the growing chunk; None if it has none.

    A first frame that cannot be read is a damaged entry, unless the journal has it.
    """
    try:
        data = read_file(fs, file.path)
    except FileNotFoundError:
        raise
    except (VeenError, OSError) as exc:
        if isinstance(exc, LinkError):
            raise
        data = None
    pos, count = 0, 0
    while data and (wanted := frame.bytes_needed(data, pos)) > HEADER_BYTES and pos + wanted <= len(data):
        pos, count = pos + wanted, count + 1
    if not count and (in_journal or data == b""):
        return None
    return ChunkRef(
        label=label,
        epoch=epoch,
        stream_id=stream_id,
        start_seq=file.start_seq,
        end_seq=file.start_seq + max(count, 1) - 1,
        path=file.path,
        kind="active",
        size=pos if count else len(data or b""),
    )


def _size(fs: Fs, path: str) -> int:
    """Return the size of a file; 0 if it cannot be opened, which its reader will report."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        raise
    except (VeenError, OSError) as exc:
        if isinstance(exc, LinkError):
            raise
        return 0
    try:
        return file.size()
    finally:
        file.close()


def read_chunk(fs: Fs, ref: ChunkRef) -> bytes:
    """Return the frames of a chunk, decompressed, and no more than was pinned."""
    path, size = ref.path, ref.size
    if ref.kind == "journal":
        return ref.data
    try:
        file = fs.open(path)
    except FileNotFoundError:
        if ref.kind != "active":
            raise
        path = _find_sealed_name(fs, ref)  # the same bytes under another name
        file = fs.open(path)
    try:
        data = file.read_at(0, size)
        if ref.kind == "active" and path != ref.path and data[:1] == b"\x78":  # and compressed
            data = file.read_at(0, file.size())
    finally:
        file.close()
    plain = inflate(data, DEFAULT_LIMITS.max_chunk_bytes, path)
    return plain[:size] if ref.kind == "active" else plain


def find_archive(fs: Fs, ref: ChunkRef) -> ChunkRef | None:
    """Return the archive of a chunk whose payloads were erased since it was pinned; None if there is none."""
    if ref.kind == "sealed":
        bounds = (ref.label, ref.start_seq, ref.end_seq)
        if fs.exists(path := layout.receipts_archive(*bounds)):
            return replace(ref, path=path, kind="receipts")
        if fs.exists(path := layout.heads_archive(*bounds)):
            return replace(ref, path=path, kind="heads")
    return None


def _find_sealed_name(fs: Fs, ref: ChunkRef) -> str:
    """Return the present name of a chunk that was active when it was pinned; its old name if there is none."""
    start = f"chunk-{ref.label.hex()}-{ref.start_seq:020d}-"
    names = (name for name in fs.list(layout.LOG) if name.startswith(start) and name.endswith(".log"))
    return next((f"{layout.LOG}/{name}" for name in names), ref.path)


def first_ts(fs: Fs, ref: ChunkRef) -> int | None:
    """Return hub_ts of the first entry, by which time ranges choose chunks; None if that is expensive."""
    if ref.kind in ("receipts", "heads"):
        return None
    if ref.kind == "journal":
        return Receipt.from_bytes(frame.read(ref.data, 0)[0].receipt).hub_ts
    try:
        file = fs.open(ref.path)
    except (VeenError, OSError):
        return None
    try:
        head = _read_start(file, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[0] != 1:
            return None
        data = _read_start(file, frame.bytes_needed(head, 0))
        return Receipt.from_bytes(frame.read(data, 0)[0].receipt).hub_ts
    except VeenError:
        return None
    finally:
        file.close()


def _read_start(file: File, count: int) -> bytes:
    """Return the first bytes of a chunk, decompressed; fewer if it is shorter or cannot be decompressed."""
    data = file.read_at(0, count)
    if not is_compressed(data):
        return data
    plain, at, decoder = bytearray(), 0, zlib.decompressobj()
    try:
        while len(plain) < count and (packed := file.read_at(at, _PACKED_BYTES)):
            plain += decoder.decompress(packed, count - len(plain))
            at += len(packed)
    except zlib.error:
        return b""
    return bytes(plain)
