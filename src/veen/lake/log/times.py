"""Times of labels, from the times of entries alone: nothing is opened for it (D-27, D-80, D-120).

ts* of an entry is the greatest hub_ts of its label so far, so a task must know the times before its slices. A first job
surveys the times; then every slice knows ts* before it (`Slice.before_ts`). However the log is divided, each entry gets
the ts* that one process computes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from veen.io.local import Fs
from veen.io.places import open_fs
from veen.lake.log.columns import ENTRIES, Column, arrow_schema, select_columns
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.prefix import Mark, Prefix, make_prefix
from veen.lake.log.slices import Slice

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
