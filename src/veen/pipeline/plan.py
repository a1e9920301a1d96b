"""Which entries, from which chunks, in which tasks: pure, so that it is tested without Spark."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from veen.pipeline.inventory import ChunkRef, Pinned, first_ts
from veen.storage.fs import Fs

__all__ = ["Piece", "Selection", "budget", "pack", "pieces"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a reader wants; bounds are inclusive. Chunks are chosen by it, rows are filtered by Spark again."""

    labels: frozenset[bytes] | None = None
    streams: frozenset[bytes] | None = None
    first_seq: int | None = 1
    last_seq: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None

    def narrowed(
        self,
        *,
        labels: Iterable[bytes] | None = None,
        streams: Iterable[bytes] | None = None,
        first_seq: int | None = None,
        last_seq: int | None = None,
        first_ts: int | None = None,
        last_ts: int | None = None,
    ) -> "Selection":
        """Both this and the given bounds."""
        return replace(
            self,
            labels=_both(self.labels, labels),
            streams=_both(self.streams, streams),
            first_seq=_later(self.first_seq, first_seq),
            last_seq=_earlier(self.last_seq, last_seq),
            first_ts=_later(self.first_ts, first_ts),
            last_ts=_earlier(self.last_ts, last_ts),
        )

    def takes(self, ref: ChunkRef) -> bool:
        if self.labels is not None and ref.label not in self.labels:
            return False
        if self.streams is not None and ref.stream_id not in self.streams:
            return False
        return ref.end_seq >= (self.first_seq or 1) and (self.last_seq is None or ref.start_seq <= self.last_seq)

    def of(self, ref: ChunkRef) -> "Piece":
        """The part of a chunk that lies within the positions."""
        first = max(ref.start_seq, self.first_seq or 1)
        return Piece(ref, first, ref.end_seq if self.last_seq is None else min(ref.end_seq, self.last_seq))


def _both(a: frozenset[bytes] | None, b: Iterable[bytes] | None) -> frozenset[bytes] | None:
    if b is None:
        return a
    return frozenset(b) if a is None else a & frozenset(b)


def _later(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _earlier(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


class Piece(NamedTuple):
    """The entries first … last of one chunk."""

    ref: ChunkRef
    first: int
    last: int

    @property
    def size(self) -> int:
        """About how many bytes they have."""
        return self.ref.size * (self.last - self.first + 1) // max(self.ref.entries, 1)


def pieces(fs: Fs, pinned: Pinned, selection: Selection) -> Iterator[Piece]:
    """The parts of chunks that can hold what was selected, by label and position."""
    for label in sorted(pinned.labels):
        refs = [ref for ref in pinned.labels[label].chunks if selection.takes(ref)]
        for ref in _in_time(fs, refs, selection):
            yield selection.of(ref)


def _in_time(fs: Fs, refs: list[ChunkRef], selection: Selection) -> list[ChunkRef]:
    """hub_ts never decreases in a label (D-28): a chunk ends before the next one begins.

    Where a foreign log breaks that rule, this may only leave out what no honest hub would have put there; the audit,
    which reads everything, reports it.
    """
    if selection.first_ts is None and selection.last_ts is None:
        return refs
    begins = [first_ts(fs, ref) for ref in refs]
    kept = []
    for number, ref in enumerate(refs):
        begin, after = begins[number], begins[number + 1] if number + 1 < len(refs) else None
        too_late = selection.last_ts is not None and begin is not None and begin > selection.last_ts
        too_early = selection.first_ts is not None and after is not None and after < selection.first_ts
        if not too_late and not too_early:
            kept.append(ref)
    return kept


def pack(found: Iterable[Piece], partition_bytes: int) -> list[tuple[Piece, ...]]:
    """Tasks of at most about `partition_bytes` each, in order and of like size, so that none is waited for alone.

    One task per small chunk would cost more than reading it.
    """
    chosen = list(found)
    total = sum(piece.size for piece in chosen)
    count = max(1, -(-total // partition_bytes))
    tasks: dict[int, list[Piece]] = {}
    begin = 0
    for piece in chosen:
        number = min(begin * count // max(1, total), count - 1)  # behind the last byte there may be empty pieces
        tasks.setdefault(number, []).append(piece)
        begin += piece.size
    return [tuple(task) for task in tasks.values()]


def budget(start: Mapping[str, int], heads: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How far each label may go in one micro-batch: `limit` shared fairly, and the same way every time.

    Labels with little to read give their share to the others; the remainder goes to labels in their order.
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
            given = min(share, waiting[label] - grant[label], left)
            grant[label] += given
            left -= given
            if grant[label] == waiting[label]:
                open_labels.remove(label)
            if not left:
                break
    return {label: start.get(label, 0) + grant[label] for label in sorted(heads)}
