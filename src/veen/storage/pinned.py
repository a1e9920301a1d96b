"""What a data directory holds at one moment: a pinned prefix of every label, as small values that travel to executors.

Everything follows from file names and frames; the index of a hub is not asked. A directory that a hub is writing to
is pinned at the whole frames its files hold now: what comes later belongs to the next pin. Copies without keys, and
places that hold nothing but chunks, are pinned as well.

A hub writes entries to its journal first and to chunks some seconds later. With `journal=True` those that only the
journal has are pinned as well. The journal is read before the files are listed: what the hub let go of meanwhile is in
files by then, so nothing lies between the two. These entries travel inside of their `ChunkRef`, for the journal will
be gone when they are read.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from veen.core import cbor
from veen.core.errors import FormatError, VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.fs.local import File, Fs, OsFs
from veen.fs.places import open_place
from veen.storage import frame, layout
from veen.storage import journal as write_ahead
from veen.storage.copies.unfinished import check_finished
from veen.storage.frame import HEADER_BYTES, Frame
from veen.storage.keys import identity
from veen.storage.reader import inflate, is_compressed
from veen.storage.scan import inventory, read_file

# journal: they are in `data`; missing: no file has the entries; hub: they are asked for by HTTP
Kind = Literal["sealed", "active", "receipts", "heads", "journal", "missing", "hub"]
_LOOKS: Final = 3  # at a journal whose oldest segment goes away meanwhile
_MAX_JOURNAL_BYTES: Final = 32 << 20  # of frames that are held and travel: later ones belong to the next pin
_PACKED_BYTES: Final = 16 << 10  # of a compressed chunk, read at a time to learn its first entry
_FEW_FILES: Final = 64  # whose sizes are asked for one by one
_WITH_ENTRIES: Final = frozenset(("chunk", "receipts", "heads", "active"))  # how names of such files begin
_RANKS: Final = {"sealed": 0, "receipts": 1, "heads": 2}  # a chunk that is there twice is read from its fullest form


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRef:
    """A run of entries and the file that has them."""

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

    def __reduce__(self) -> "tuple[Any, ...]":
        """Plans travel to tasks: a name that follows from the rest is left out, which is most of the bytes."""
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
    left_out: int = 0  # the last position in files that were left out, all of which were read before

    @property
    def size(self) -> int:
        return self.chunks[-1].end_seq if self.chunks else self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A data directory at one moment."""

    uri: str
    identity: HubIdentity | None  # None where nothing but chunks was copied
    labels: Mapping[bytes, LabelPin]

    def chunks(self) -> Iterator[ChunkRef]:
        for label in sorted(self.labels):
            yield from self.labels[label].chunks

    @property
    def heads(self) -> dict[bytes, int]:
        return {label: label_pin.size for label, label_pin in self.labels.items()}


def pin(
    uri: str,
    labels: Collection[bytes] | None = None,
    *,
    journal: bool = False,
    after: Mapping[bytes, int] | None = None,
) -> Pinned:
    """The directory at `uri` as it is now, or only some of its labels; `journal`: with what only the journal has.

    `after` says how far labels were read before: files that end there or earlier are left out, for the price of their
    names. A stream that looks every second must not look at all files of a long log each time.
    """
    fs = open_place(uri)
    check_finished(fs, uri)
    opened, newest = _opened(fs, journal)
    label_pins: dict[bytes, LabelPin] = {}
    files, left_out = _listed(fs, labels, after or {})
    is_long = sum(map(len, files.values())) > _FEW_FILES
    sizes = fs.sizes(layout.LOG) if is_long and isinstance(fs, OsFs) else {}
    for label in files.keys() | newest.keys() | left_out.keys():
        listed = files.pop(label, [])  # of a million chunks the names are not kept twice
        if labels is None or label in labels:
            label_pin = _pin_label(fs, label, listed, opened.get(label), left_out.get(label, 0), sizes)
            label_pins[label] = _with_newest(label_pin, newest.get(label, ()))
    try:
        who = identity.read_identity(fs, key_map=False)
    except VeenError:
        who = None  # the audit says what is wrong with it
    return Pinned(uri=uri, identity=who, labels=label_pins)


def _listed(
    fs: Fs, labels: Collection[bytes] | None, after: Mapping[bytes, int]
) -> tuple[dict[bytes, list[layout.LogFile]], dict[bytes, int]]:
    """The files with entries of each label, and where those end that were left out. Most names are not parsed.

    A label of which only other files are left, such as checkpoints, is listed without any.
    """
    wanted = None if labels is None else {label.hex() for label in labels}
    bounds = {label.hex(): f"{seq:020d}" for label, seq in after.items()}
    files: dict[bytes, list[layout.LogFile]] = {}
    left_out: dict[bytes, int] = {}
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
            continue
        bound, end = bounds.get(label_text), rest[86:106]  # names have a fixed width
        if bound is not None and len(end) == len(bound) and end.isdecimal() and end <= bound:
            label = bytes.fromhex(label_text)
            left_out[label] = max(left_out.get(label, 0), int(end))
        elif file := layout.log_file(name):
            files.setdefault(file.label, []).append(file)
    return files, left_out


def _opened(fs: Fs, frames: bool) -> tuple[dict[bytes, LabelOpen], dict[bytes, list[Frame]]]:
    """What the control journal says about labels, and the write-ahead journal where it is ahead; and its frames."""
    opened: dict[bytes, LabelOpen] = {}
    newest: dict[bytes, list[Frame]] = {}
    size = 0
    for record in _records(fs):
        if isinstance(record, Frame):
            size += record.size
            if frames and size <= _MAX_JOURNAL_BYTES:
                newest.setdefault(record.label, []).append(record)
        elif isinstance(record.body, LabelOpen):
            opened.setdefault(record.body.label, record.body)
    return opened, newest


def _records(fs: Fs) -> Iterator[ControlRecord | Frame]:
    if fs.exists(layout.CONTROL):
        data, pos = read_file(fs, layout.CONTROL), 0
        while pos < len(data):
            try:
                end = cbor.item_end(data, pos)
                yield ControlRecord.from_bytes(data[pos:end])
            except FormatError:
                break  # cut off by a running hub, or damaged: the audit tells the two apart
            pos = end
    for _ in range(_LOOKS):
        numbers = write_ahead.segments(fs)
        if not numbers:
            return
        try:
            for record in write_ahead.replay(fs, numbers[0]):
                if isinstance(record, ControlRecord | Frame):
                    yield record
        except (VeenError, FileNotFoundError):
            continue  # damaged, as the audit will say; or let go while we looked: then the files have it by now
        return


def _with_newest(label_pin: LabelPin, frames: Iterable[Frame]) -> LabelPin:
    """With the frames that follow the last entry of the files without a gap."""
    expected, data = label_pin.size + 1, bytearray()
    for framed in frames:
        if framed.stream_seq == expected:
            data += framed.to_bytes()
            expected += 1
    if not data:
        return label_pin
    ref = ChunkRef(
        label=label_pin.label,
        epoch=label_pin.epoch,
        stream_id=label_pin.stream_id,
        start_seq=label_pin.size + 1,
        end_seq=expected - 1,
        path=layout.JOURNAL,
        kind="journal",
        size=len(data),
        data=bytes(data),
    )
    return replace(label_pin, chunks=(*label_pin.chunks, ref))


def _pin_label(
    fs: Fs,
    label: bytes,
    files: Iterable[layout.LogFile],
    opened: LabelOpen | None,
    left_out: int,
    sizes: Mapping[str, int],
) -> LabelPin:
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
    for file in active:
        if (growing := _pin_active(fs, label, file, epoch, stream_id)) is not None:
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
    return LabelPin(
        label=label, epoch=epoch, stream_id=stream_id, chunks=tuple(joined), gaps=tuple(gaps), left_out=left_out
    )


def _pin_active(fs: Fs, label: bytes, file: layout.LogFile, epoch: int, stream_id: bytes | None) -> ChunkRef | None:
    """The whole frames that the growing chunk holds now; None if it was sealed meanwhile or holds none."""
    try:
        data = read_file(fs, file.path)
    except FileNotFoundError:
        return None
    pos, count = 0, 0
    while (wanted := frame.wanted(data, pos)) > HEADER_BYTES and pos + wanted <= len(data):
        pos, count = pos + wanted, count + 1
    if not count and not data:
        return None
    end_seq = file.start_seq + max(count, 1) - 1  # a first frame that cannot be read is an entry that is damaged
    return ChunkRef(
        label=label,
        epoch=epoch,
        stream_id=stream_id,
        start_seq=file.start_seq,
        end_seq=end_seq,
        path=file.path,
        kind="active",
        size=pos if count else len(data),
    )


def _size(fs: Fs, path: str) -> int:
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def read_chunk(fs: Fs, ref: ChunkRef) -> bytes:
    """The frames of a sealed or active chunk, inflated if they were compressed; no more than was pinned."""
    path, size = ref.path, ref.size
    if ref.kind == "journal":
        return ref.data
    if ref.kind == "active" and not fs.exists(path):  # sealed since it was pinned: the same bytes under another name
        for chunk in inventory(fs).get(ref.label, ()):
            if chunk.kind == "chunk" and chunk.start_seq == ref.start_seq:
                path = chunk.path
    file = fs.open(path)
    try:
        data = file.read_at(0, size)
        if ref.kind == "active" and path != ref.path and data[:1] == b"\x78":  # and compressed
            data = file.read_at(0, file.size())
    finally:
        file.close()
    plain = inflate(data, DEFAULT_LIMITS.max_chunk_bytes, path)
    return plain[:size] if ref.kind == "active" else plain


def first_ts(fs: Fs, ref: ChunkRef) -> int | None:
    """hub_ts of the first entry, by which time ranges choose chunks; None if it cannot be told cheaply."""
    if ref.kind in ("receipts", "heads"):
        return None
    if ref.kind == "journal":
        return Receipt.from_bytes(frame.read(ref.data, 0)[0].receipt).hub_ts
    try:
        file = fs.open(ref.path)
    except FileNotFoundError:
        return None
    try:
        head = _beginning(file, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[0] != 1:
            return None
        data = _beginning(file, frame.wanted(head, 0))
        return Receipt.from_bytes(frame.read(data, 0)[0].receipt).hub_ts
    except VeenError:
        return None
    finally:
        file.close()


def _beginning(file: File, count: int) -> bytes:
    """The first bytes of a chunk, inflated if it was compressed; fewer if it has no more, or cannot be inflated."""
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


def only(pinned: Pinned, labels: Iterable[bytes]) -> Pinned:
    """The same moment, fewer labels."""
    return replace(pinned, labels={label: pinned.labels[label] for label in labels if label in pinned.labels})
