"""Exchange of rows and summaries between tasks: columns of Arrow, and CBOR in slices of bounded size.

A Spark cell has a bound and a state has none, so a summary is cut into slices. No pickle: what an executor returns is
decoded with the types of the fold, like a snapshot from a stranger.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.event import Event
from veen.lake.folds.coverage import FoldCoverage
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.errors import OptionError
from veen.lake.log.events import EVENT_COLUMNS, SILVER, LogEntry, NotAnEvent, entry_of, header_of

_SLICE_BYTES: Final = 8 << 20
_NOT_NEEDED: Final = ("stream",)
NEEDED: Final[tuple[Column, ...]] = tuple(column for column in SILVER if column.name not in _NOT_NEEDED)
EVENTS: Final = (
    *(column for column in SILVER if column.name in EVENT_COLUMNS),
    Column("data", "BINARY", pa.binary(), "the coverage of the task; such a row is no event"),
)
PARCELS: Final = (
    Column("part", "BIGINT", pa.int64(), "which task made it"),
    Column("slice", "BIGINT", pa.int64(), "place of the slice"),
    Column("data", "BINARY", pa.binary(), "a piece of its CBOR"),
)


# --- events --------------------------------------------------------------------------------------------------------


def check_columns(names: Iterable[str]) -> None:
    """Raise OptionError if a frame lacks a column that folding needs."""
    have = set(names)
    if missing := [column.name for column in NEEDED if column.name not in have]:
        raise OptionError(f"a frame of events needs the columns of SILVER; missing: {', '.join(missing)}")


def entries_in(batches: Iterable[pa.RecordBatch]) -> Iterator[LogEntry]:
    """Yield the entries of some batches, in their order. Raise NotAnEvent for an invalid row."""
    for batch in batches:
        whole = all(batch.column(name).null_count == 0 for name in EVENT_COLUMNS if name != "auth_ref")
        if not whole or not all(batch.column("ok").to_pylist()):
            yield from map(entry_of, batch.to_pylist())
            continue
        for row in zip(*(batch.column(name).to_pylist() for name in EVENT_COLUMNS), strict=True):
            fields = dict(zip(EVENT_COLUMNS, row, strict=True))
            try:
                fields["hdr"], fields["origin"] = header_of(fields["hdr"])
            except (VeenError, TypeError) as exc:
                raise NotAnEvent(f"entry {fields['stream_seq']} of a label: the row is not a valid event") from exc
            yield Event(**fields)


# --- coverage ------------------------------------------------------------------------------------------------------


def coverage_row(coverage: FoldCoverage) -> dict[str, Any]:
    """Return the row with the coverage of a task."""
    return {"data": cbor.encode(coverage.to_tree())}


def merge_coverages(rows: Iterable[Mapping[str, Any]]) -> FoldCoverage:
    """Merge the coverages of several tasks."""
    coverage = FoldCoverage()
    for row in rows:
        data = bytes(row["data"])
        tree = cbor.decode(data, what="coverage", max_bytes=len(data), max_items=len(data) + 1)
        coverage.absorb(FoldCoverage.from_tree(tree))
    return coverage


# --- summaries -----------------------------------------------------------------------------------------------------


def pack(part: int, tree: cbor.Item) -> Iterator[pa.RecordBatch]:
    """Encode one item as rows of PARCELS."""
    data, schema = cbor.encode(tree), arrow_schema(PARCELS)
    for number, start in enumerate(range(0, len(data), _SLICE_BYTES)):
        row = {"part": part, "slice": number, "data": data[start : start + _SLICE_BYTES]}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def unpack(rows: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[int, Any]]:
    """Decode rows of PARCELS in any order; yield (part, item) by part."""
    parcels: dict[int, dict[int, bytes]] = {}
    for part, number, data in rows:
        parcels.setdefault(part, {})[number] = bytes(data)
    for part in sorted(parcels):
        slices = parcels.pop(part)
        data = b"".join(slices[number] for number in sorted(slices))
        yield part, cbor.decode(data, what="summary", max_bytes=len(data), max_items=len(data) + 1)
