"""What a data directory holds at one moment: a pinned prefix of every label, as small values that travel to executors.

Everything follows from file names and frames; the index of a hub is not asked. A directory that a hub is writing to
is pinned at the whole frames its files hold now: what comes later belongs to the next pin. Copies without keys, and
places that hold nothing but chunks, are pinned as well.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from veen.core import cbor
from veen.core.errors import FormatError, VeenError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.fs.local import Fs
from veen.fs.places import open_place
from veen.storage import frame, journal, layout
from veen.storage.copies.unfinished import check_finished
from veen.storage.frame import HEADER_BYTES
from veen.storage.keys import identity
from veen.storage.reader import inflate
from veen.storage.scan import inventory, read_file

__all__ = ["ChunkRef", "Kind", "LabelPin", "Pinned", "first_ts", "pin", "read_chunk"]

# missing: no file has the entries; hub: they are asked for by HTTP
Kind = Literal["sealed", "active", "receipts", "heads", "missing", "hub"]
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

    @property
    def entries(self) -> int:
        return self.end_seq - self.start_seq + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPin:
    """One label up to its pinned head."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    chunks: tuple[ChunkRef, ...]  # in order
    gaps: tuple[tuple[int, int], ...] = ()  # entries that no file has, although later ones are there

    @property
    def size(self) -> int:
        return self.chunks[-1].end_seq if self.chunks else 0


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


def pin(uri: str, labels: Collection[bytes] | None = None) -> Pinned:
    """The directory at `uri` as it is now, or only some of its labels."""
    fs = open_place(uri)
    check_finished(fs, uri)
    opened = _opened(fs)
    label_pins: dict[bytes, LabelPin] = {}
    for label, files in inventory(fs).items():
        if labels is None or label in labels:
            label_pins[label] = _pin_label(fs, label, files, opened.get(label))
    try:
        who = identity.read_identity(fs, key_map=False)
    except VeenError:
        who = None  # the audit says what is wrong with it
    return Pinned(uri=uri, identity=who, labels=label_pins)


def _opened(fs: Fs) -> dict[bytes, LabelOpen]:
    """What the control journal says about labels, and the write-ahead journal where it is ahead."""
    opened: dict[bytes, LabelOpen] = {}
    for record in _controls(fs):
        if isinstance(record.body, LabelOpen):
            opened.setdefault(record.body.label, record.body)
    return opened


def _controls(fs: Fs) -> Iterator[ControlRecord]:
    if fs.exists(layout.CONTROL):
        data, pos = read_file(fs, layout.CONTROL), 0
        while pos < len(data):
            try:
                end = cbor.item_end(data, pos)
                yield ControlRecord.from_bytes(data[pos:end])
            except FormatError:
                break  # cut off by a running hub, or damaged: the audit tells the two apart
            pos = end
    numbers = journal.segments(fs)
    if not numbers:
        return
    try:
        for record in journal.replay(fs, numbers[0]):
            if isinstance(record, ControlRecord):
                yield record
    except (VeenError, FileNotFoundError):
        return  # damaged, as the audit will say; or let go while we looked: then the control journal has it by now


def _pin_label(fs: Fs, label: bytes, files: Iterable[layout.LogFile], opened: LabelOpen | None) -> LabelPin:
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
            size=_size(fs, file.path),
        )
        other = best.get(file.start_seq)
        if other is None or _RANKS[ref.kind] < _RANKS[other.kind]:
            best[file.start_seq] = ref
    chunks = [best[start] for start in sorted(best)]
    for file in active:
        if (growing := _pin_active(fs, label, file, epoch, stream_id)) is not None:
            chunks.append(growing)
    chunks.sort(key=lambda ref: ref.start_seq)
    expected, gaps, joined = 1, [], []
    for ref in chunks:
        if ref.start_seq < expected:
            continue  # sealed between two looks: the active file under its old name
        if ref.start_seq > expected:
            gaps.append((expected, ref.start_seq - 1))
        joined.append(ref)
        expected = ref.end_seq + 1
    return LabelPin(label=label, epoch=epoch, stream_id=stream_id, chunks=tuple(joined), gaps=tuple(gaps))


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
    try:
        file = fs.open(ref.path)
    except FileNotFoundError:
        return None
    try:
        head = file.read_at(0, HEADER_BYTES)
        if len(head) < HEADER_BYTES or head[0] != 1:
            return None
        data = file.read_at(0, frame.wanted(head, 0))
        return Receipt.from_bytes(frame.read(data, 0)[0].receipt).hub_ts
    except VeenError:
        return None
    finally:
        file.close()


def only(pinned: Pinned, labels: Iterable[bytes]) -> Pinned:
    """The same moment, fewer labels."""
    return replace(pinned, labels={label: pinned.labels[label] for label in labels if label in pinned.labels})
