"""Slices: the planner of bulk reading. It assigns entries of chunks to tasks; pure but for first times.

Selection    bounds of a reader: labels, streams, positions, times
Slice        the entries first … last of one chunk, as a task reads them
divide       slices into tasks by entries, chunks split where needed
pack         slices into tasks by bytes, chunks whole
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from veen.core.labels import epoch_at, label_of
from veen.core.objects.profile import PRESETS
from veen.io.local import Fs
from veen.lake.log.errors import SourceDamaged
from veen.storage.pinned import ChunkRef, LabelPin, first_ts

_NEAR: Final = 2  # epochs around the time of an entry in which its label may lie
MAX_HOLE: Final = 1 << 20  # entries in a row that may be missing: a file name can claim any number


class LabelStream(NamedTuple):
    """A label, and the stream that the directory names for it."""

    label: bytes
    epoch: int
    stream_id: bytes | None  # None: the control journal does not say
    routing_key: bytes | None = None  # None: the hub is not known, and nothing can be proven
    epochs: tuple[int, ...] = ()  # where to look for a stream that is not named

    @property
    def is_foreign(self) -> bool:
        """True if the label disproves the journal: the entries are of another hub or another stream."""
        if self.stream_id is None or self.routing_key is None:
            return False
        return label_of(self.routing_key, self.stream_id, self.epoch) != self.label

    def match_stream(self, streams: Iterable[bytes]) -> "LabelStream | None":
        """Return a copy with its stream and epoch, if it is a label of one of `streams`; else None."""
        if self.stream_id is not None:
            return self if self.stream_id in streams and not self.is_foreign else None
        if self.routing_key is None:
            return None
        for epoch in self.epochs:
            for stream_id in streams:
                if label_of(self.routing_key, stream_id, epoch) == self.label:
                    return self._replace(stream_id=stream_id, epoch=epoch)
        return None


class Slice(NamedTuple):
    """The entries first … last of one chunk. Holds no secret: it names files and positions, and travels to tasks."""

    chunk: ChunkRef
    first: int
    last: int
    stream: LabelStream
    before_ts: int = 0  # ts* before the first entry, or less: see `veen.lake.log.prefix`

    @classmethod
    def whole(cls, chunk: ChunkRef) -> "Slice":
        return cls(chunk, chunk.start_seq, chunk.end_seq, LabelStream(chunk.label, chunk.epoch, chunk.stream_id))

    @property
    def label(self) -> bytes:
        return self.chunk.label

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def is_missing(self) -> bool:
        """True if no file has the entries."""
        return self.chunk.kind == "missing"

    def seqs(self) -> range:
        """Return the positions of the entries. Raise SourceDamaged for more than a hole may have."""
        if self.chunk.entries > MAX_HOLE:
            raise SourceDamaged(
                f"label {self.label.hex()}: no file has the entries {self.chunk.start_seq} to {self.chunk.end_seq}, "
                f"more than the {MAX_HOLE} that may be missing in a row"
            )
        return range(self.first, self.last + 1)

    @property
    def is_erased(self) -> bool:
        """True if the payloads were erased under the retention policy."""
        return self.chunk.kind in ("receipts", "heads")

    @property
    def size(self) -> int:
        """Approximate size of the entries in bytes."""
        return self.chunk.size * self.entries // max(self.chunk.entries, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Bounds of a reader, inclusive. They select chunks; Spark filters the rows again."""

    labels: frozenset[bytes] | None = None
    streams: frozenset[bytes] | None = None
    first_seq: int | None = 1
    last_seq: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None

    def narrow(
        self,
        *,
        labels: Iterable[bytes] | None = None,
        streams: Iterable[bytes] | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
        first_ts: int | None = None,
        last_ts: int | None = None,
    ) -> "Selection":
        """Return the intersection with other bounds."""
        return replace(
            self,
            labels=_intersect(self.labels, labels),
            streams=_intersect(self.streams, streams),
            first_seq=_max_bound(self.first_seq, first_seq),
            last_seq=_min_bound(self.last_seq, last_seq),
            first_ts=_max_bound(self.first_ts, first_ts),
            last_ts=_min_bound(self.last_ts, last_ts),
        )

    def takes(self, chunk: ChunkRef) -> bool:
        if self.labels is not None and chunk.label not in self.labels:
            return False
        if self.streams is not None and chunk.stream_id not in self.streams:
            return False
        return chunk.end_seq >= (self.first_seq or 1) and (self.last_seq is None or chunk.start_seq <= self.last_seq)

    def slice_of(self, chunk: ChunkRef, stream: LabelStream | None = None, before_ts: int = 0) -> Slice:
        """Return the part of a chunk within the positions."""
        first = max(chunk.start_seq, self.first_seq or 1)
        last = chunk.end_seq if self.last_seq is None else min(chunk.end_seq, self.last_seq)
        return Slice(chunk, first, last, stream or LabelStream(chunk.label, chunk.epoch, chunk.stream_id), before_ts)


def _intersect(a: frozenset[bytes] | None, b: Iterable[bytes] | None) -> frozenset[bytes] | None:
    if b is None:
        return a
    return frozenset(b) if a is None else a & frozenset(b)


def _max_bound(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _min_bound(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


# --- from a label to its slices ----------------------------------------------------------------------------------


def label_slices(
    fs: Fs, label_pin: LabelPin, selection: Selection, stream: LabelStream | None = None, before_ts: int = 0
) -> Iterator[Slice]:
    """Yield the slices of a label that can hold selected entries, by position.

    Entries that no file has are slices of kind "missing": a lost file must not look as if nothing had been there. Their
    times are unknown, so bounds of time leave them in.
    """
    chunks = [chunk for chunk in label_pin.chunks if selection.takes(chunk)]
    holes = [hole for hole in _holes(label_pin) if selection.takes(hole)]
    for chunk in sorted((*_in_time(fs, chunks, selection), *holes), key=lambda chunk: chunk.start_seq):
        yield selection.slice_of(chunk, stream, before_ts)


def epochs_near(epoch: int, hub_ts: int | None) -> tuple[int, ...]:
    """Return the epochs in which a label of unknown stream may lie, by the time of one of its entries."""
    epochs = {epoch}
    if hub_ts is not None:
        for profile in PRESETS.values():
            now = epoch_at(hub_ts, profile.epoch_sec)
            epochs |= {near for near in range(now - _NEAR, now + _NEAR + 1) if near >= 0}
    return tuple(sorted(epochs))


def _holes(label_pin: LabelPin) -> Iterator[ChunkRef]:
    for start, end in label_pin.gaps:
        yield ChunkRef(
            label=label_pin.label,
            epoch=label_pin.epoch,
            stream_id=label_pin.stream_id,
            start_seq=start,
            end_seq=end,
            path="",
            kind="missing",
            size=0,
        )


def _in_time(fs: Fs, chunks: list[ChunkRef], selection: Selection) -> list[ChunkRef]:
    """Select chunks by time. hub_ts never decreases in a label (D-28), so a binary search reads few first times.

    Where a foreign log breaks that rule, this may leave out only what no honest hub would have put there. The audit,
    which reads everything, reports it.
    """
    first, last = 0, len(chunks)
    times: dict[int, int | None] = {}

    def begin_of(number: int) -> int | None:
        if number not in times:
            times[number] = first_ts(fs, chunks[number])
        return times[number]

    def search(begins_late: Callable[[int], bool]) -> int:
        """Return the number of the first chunk that begins late, or the count of chunks.

        Chunks of unknown time are passed over.
        """
        low, high = 0, len(chunks)
        while low < high:
            middle = number = (low + high) // 2
            while number < high and begin_of(number) is None:
                number += 1
            begin = begin_of(number) if number < high else None
            if begin is None or begins_late(begin):
                high = middle
            else:
                low = number + 1
        while low < len(chunks) and begin_of(low) is None:
            low += 1
        return low

    if selection.first_ts is not None:
        bound = selection.first_ts
        first = max(0, search(lambda begin: begin >= bound) - 1)
        while first > 0 and begin_of(first) is None:  # one that cannot tell its time may begin before the bound
            first -= 1
    if selection.last_ts is not None:
        limit = selection.last_ts
        last = search(lambda begin: begin > limit)
    return chunks[first:last]


# --- from slices to tasks ----------------------------------------------------------------------------------------


def divide(slices: Iterable[Slice], parts: int) -> list[list[Slice]]:
    """Divide slices into about `parts` tasks of about as many entries each, in order; split chunks where needed."""
    slices = list(slices)
    share = max(1, -(-sum(part.entries for part in slices) // parts))
    tasks: list[list[Slice]] = [[]]
    room = share
    for part in slices:
        first = part.first
        while first <= part.last:
            end = min(part.last, first + room - 1)
            is_whole = first == part.first and end == part.last
            tasks[-1].append(part if is_whole else part._replace(first=first, last=end))
            room -= end - first + 1
            first = end + 1
            if not room:
                tasks.append([])
                room = share
    return [task for task in tasks if task]


def pack(slices: Iterable[Slice], partition_bytes: int) -> list[tuple[Slice, ...]]:
    """Pack slices into tasks of at most about `partition_bytes` each, in order; no chunk is read by two tasks.

    One task per small chunk would cost more than reading it.
    """
    slices = list(slices)
    total = sum(part.size for part in slices)
    count = max(1, -(-total // partition_bytes))
    tasks: dict[int, list[Slice]] = {}
    begin = 0
    for part in slices:
        number = min(begin * count // max(1, total), count - 1)  # slices of 0 bytes may lie behind the last byte
        tasks.setdefault(number, []).append(part)
        begin += part.size
    return [tuple(task) for task in tasks.values()]


def budget(start: Mapping[str, int], heads: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return the end of each label in one micro-batch: `limit` shared fairly and deterministically.

    Labels with little to read leave their share to the others; the remainder goes to labels in their order.
    """
    waiting = {label: max(0, heads[label] - start.get(label, 0)) for label in sorted(heads)}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(sorted(heads.items()))
    grant = dict.fromkeys(waiting, 0)
    left, open_labels = limit, [label for label, count in waiting.items() if count]
    while left and open_labels:
        share = max(1, left // len(open_labels))
        for label in list(open_labels):
            more = min(share, waiting[label] - grant[label], left)
            grant[label] += more
            left -= more
            if grant[label] == waiting[label]:
                open_labels.remove(label)
            if not left:
                break
    return {label: start.get(label, 0) + grant[label] for label in sorted(heads)}
