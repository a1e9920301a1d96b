"""Pinned prefix of labels: the input of one execution, and the roots that bind its results (OVL-11).

Small values without secrets: files, positions and stream ids. The control journal names the stream of a label; where
the hub is known, the label itself proves it, also for labels that the journal does not name.

Times of labels, from the times of entries alone: nothing is opened for it (D-27, D-80, D-120).

ts* of an entry is the greatest hub_ts of its label so far, so a task must know the times before its slices. A first job
surveys the times; then every slice knows ts* before it (`Slice.before_ts`). However the log is divided, each entry gets
the ts* that one process computes.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from veen.core.errors import VeenError
from veen.core.labels import routing_key_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.io.local import Fs
from veen.io.places import absolute, open_fs
from veen.lake.log.columns import ENTRIES, Column, arrow_schema, select_columns
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.errors import PipelineError
from veen.lake.log.slices import LabelStream, Selection, Slice, epochs_near, label_slices
from veen.overlays.framework.snapshot import Cut
from veen.storage.pinned import ChunkRef, LabelPin, LogView, first_ts, pin

_RECEIPT: Final = ReadSpec(columns=select_columns(["stream_seq", "receipt"], ENTRIES))


class Shortened(PipelineError):
    """A label with fewer entries in the directory than before."""

    hint = "Restore the directory; `veen audit run --earlier DIRECTORY` compares it with an earlier audit."


class Mark(NamedTuple):
    """Progress of reading a label: the last position, and ts* there (D-27)."""

    upto_seq: int = 0
    ts: int = 0


def label_stream(fs: Fs, label_pin: LabelPin, identity: HubIdentity | None) -> LabelStream:
    """Return the stream of a label as the directory states it, with the epochs in which to look for it."""
    routing_key = routing_key_of(identity.hub_id) if identity else None
    epochs: tuple[int, ...] = ()
    if label_pin.stream_id is None and routing_key is not None:
        epochs = epochs_near(label_pin.epoch, first_ts(fs, label_pin.chunks[0]) if label_pin.chunks else None)
    return LabelStream(label_pin.label, label_pin.epoch, label_pin.stream_id, routing_key, epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRange:
    """The entries after `before` and up to `head` of one label."""

    stream: LabelStream
    before: Mark
    head: int
    head_receipt: Receipt | None  # None if it cannot be read, or was not asked for
    chunks: tuple[ChunkRef, ...]  # all of the label up to the head: proofs need every leaf
    slices: tuple[Slice, ...]  # those that can hold what was selected, and those of kind "missing"

    @property
    def label(self) -> bytes:
        return self.stream.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A set of labels of a directory at one moment."""

    uri: str
    identity: HubIdentity | None = None
    labels: tuple[LabelRange, ...]  # by label

    @property
    def slices(self) -> Iterator[Slice]:
        """Slices of all labels, by label and position."""
        return (part for label_range in self.labels for part in label_range.slices)

    @property
    def hub_id(self) -> str | None:
        return self.identity.hub_id.hex() if self.identity else None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Positions and roots that bind state made of this prefix to the log, by label; see `rootless`."""
        return tuple(
            Cut(label=label_range.label, upto_seq=label_range.head, mmr_root=label_range.head_receipt.mmr_root)
            for label_range in self.labels
            if label_range.head_receipt is not None
        )

    @property
    def rootless(self) -> tuple[bytes, ...]:
        """Labels whose last entry is damaged: nothing binds state to their head."""
        return tuple(label_range.label for label_range in self.labels if label_range.head_receipt is None)

    @property
    def heads(self) -> dict[bytes, int]:
        return {label_range.label: label_range.head for label_range in self.labels}

    @property
    def entries(self) -> int:
        return sum(label_range.head - label_range.before.upto_seq for label_range in self.labels)

    @property
    def size(self) -> int:
        """Approximate size of the selected log in bytes."""
        return sum(part.size for part in self.slices)


def make_prefix(
    uri: str,
    *,
    streams: Collection[bytes] | None = None,
    labels: Collection[bytes] | None = None,
    since: Mapping[bytes, Mark] | None = None,
    upto: Mapping[bytes, int] | None = None,
    first_ts: int | None = None,
    last_ts: int | None = None,
    pinned: LogView | None = None,
    roots: bool = True,
) -> Prefix:
    """Pin the directory, or take `pinned`, and plan to read it.

    `streams` (ids) selects labels of these streams. `since` gives the progress of earlier reads; a label with nothing
    new is left out. `upto` bounds labels and leaves out those that it does not name; Shortened if a label no longer
    reaches that position. `first_ts` and `last_ts` leave out chunks without such times. Without `roots` nothing of the
    log is read, and the prefix has no cuts.
    """
    fs = open_fs(uri)
    reach = {**{label: mark.upto_seq for label, mark in (since or {}).items()}, **(upto or {})}
    if pinned is None or any(pinned.heads.get(label, 0) < seq for label, seq in reach.items()):
        pinned = pin(uri, reach=reach)  # a hub may have renamed files while the directory was looked at
    if upto is not None and (
        gone := sorted(label for label, head in upto.items() if head and label not in pinned.labels)
    ):
        raise Shortened(f"label {gone[0].hex()} had {upto[gone[0]]} entries and is missing now")
    ranges = []
    for label, label_pin in sorted(pinned.labels.items()):
        if (labels is not None and label not in labels) or (upto is not None and label not in upto):
            continue
        stream: LabelStream | None = label_stream(fs, label_pin, pinned.identity)
        if stream is not None and streams is not None:
            stream = stream.match_stream(streams)
        if stream is None:
            continue
        head = label_pin.size if upto is None else upto[label]
        before = (since or {}).get(label, Mark())
        if max(head, before.upto_seq) > label_pin.size:
            raise Shortened(
                f"label {label.hex()} had {max(head, before.upto_seq)} entries and now has {label_pin.size}"
            )
        if head <= before.upto_seq:
            continue
        selection = Selection(first_seq=before.upto_seq + 1, last_seq=head, first_ts=first_ts, last_ts=last_ts)
        ranges.append(
            LabelRange(
                stream=stream,
                before=before,
                head=head,
                head_receipt=receipt_at(fs, label_pin.chunks, head) if roots else None,
                chunks=tuple(chunk for chunk in label_pin.chunks if chunk.start_seq <= head),
                slices=tuple(label_slices(fs, label_pin, selection, stream, before.ts)),
            )
        )
    return Prefix(uri=absolute(uri), identity=pinned.identity, labels=tuple(ranges))


def receipt_at(fs: Fs, chunks: Sequence[ChunkRef], stream_seq: int) -> Receipt | None:
    """Read the receipt of one entry from the directory. Return None if it cannot be read."""
    for chunk in reversed(chunks):
        if chunk.start_seq <= stream_seq <= chunk.end_seq:
            entry = Slice.whole(chunk)._replace(first=stream_seq, last=stream_seq)
            for batch in batches(fs, entry, _RECEIPT):
                for row in batch.to_pylist():
                    try:
                        return Receipt.from_bytes(row["receipt"]) if row["receipt"] is not None else None
                    except VeenError:
                        return None
    return None


def receipts_at(uri: str, heads: Mapping[bytes, int]) -> dict[bytes, Receipt]:
    """Return the receipt at a position of each label; leave out labels without a readable one."""
    pinned, fs = pin(uri, heads.keys(), reach=heads), open_fs(uri)
    receipts = {
        label: receipt_at(fs, pinned.labels[label].chunks, seq)
        for label, seq in heads.items()
        if label in pinned.labels
    }
    return {label: receipt for label, receipt in receipts.items() if receipt is not None}


_HUB_TS: Final = ReadSpec(columns=select_columns(["stream_seq", "hub_ts"], ENTRIES), level="none")
TIMES: Final = tuple(Column(name, "BIGINT", pa.int64(), "") for name in ("slice", "first_ts", "last_ts"))


@dataclass(slots=True)
class Clock:
    """The value of ts* while the slices of a task are read one after another (D-27). Owned by the loop that reads."""

    label: bytes = b""
    ts: int = 0

    def enter(self, part: Slice) -> None:
        """Continue within the label, or begin with another one."""
        self.ts = max(part.before_ts, self.ts if part.label == self.label else 0)
        self.label = part.label

    def tick(self, hub_ts: int) -> int:
        self.ts = max(self.ts, hub_ts)
        return self.ts


class Times(NamedTuple):
    """The first hub_ts of a slice and the greatest one."""

    first_ts: int
    last_ts: int


def survey_batches(uri: str, number: int, slices: Iterable[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the times of slices, the first of which has `number`. Nothing is opened."""
    fs = open_fs(uri)
    rows = []
    for at, part in enumerate(slices, start=number):
        times = [hub_ts for _, hub_ts in slice_times(fs, part)]
        if times:
            rows.append({"slice": at, "first_ts": times[0], "last_ts": max(times)})
    yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TIMES))


def times_by_slice(rows: Iterable[Mapping[str, Any]], count: int) -> list[Times | None]:
    """Index rows of TIMES by the number of the slice; None for a slice without any time."""
    times: list[Times | None] = [None] * count
    for row in rows:
        times[row["slice"]] = Times(row["first_ts"], row["last_ts"])
    return times


def with_times(tasks: Sequence[Sequence[Slice]], times: Sequence[Times | None]) -> list[list[Slice]]:
    """Set `before_ts` of each slice. The slices of a label are in its order, across all tasks."""
    latest: dict[bytes, int] = {}
    numbers = iter(times)
    timed: list[list[Slice]] = []
    for task in tasks:
        timed.append([])
        for part in task:
            before_ts = max(part.before_ts, latest.get(part.label, 0))
            timed[-1].append(part._replace(before_ts=before_ts))
            span = next(numbers)
            latest[part.label] = before_ts if span is None else max(before_ts, span.last_ts)
    return timed


def slice_times(fs: Fs, part: Slice) -> Iterator[tuple[int, int]]:
    """Yield (position, hub_ts) of the entries that have a time."""
    if part.is_missing:
        return
    for batch in batches(fs, part, _HUB_TS):
        for seq, hub_ts in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            if hub_ts is not None and part.first <= seq <= part.last:
                yield seq, hub_ts


def heads_at(prefix: Prefix, ts: int) -> dict[bytes, int]:
    """Return by label the last position whose ts* is not after `ts`. Labels that begin later are left out."""
    fs = open_fs(prefix.uri)
    heads = {}
    for label_range in prefix.labels:
        times = (time for part in label_range.slices for time in slice_times(fs, part))
        later = next((seq for seq, hub_ts in times if hub_ts > ts), label_range.head + 1)
        if later > 1:
            heads[label_range.label] = later - 1
    return heads


def marks_at(uri: str, heads: Mapping[bytes, int]) -> dict[bytes, Mark]:
    """Return by label the position and ts* there. Raise Shortened if a label ends before it."""
    fs = open_fs(uri)
    return {
        label_range.label: Mark(
            label_range.head, max((ts for part in label_range.slices for _, ts in slice_times(fs, part)), default=0)
        )
        for label_range in make_prefix(uri, upto=heads).labels
    }
