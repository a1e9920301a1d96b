"""How summaries travel between tasks: as CBOR in slices, since a cell of Spark has a bound and a state has none.

No pickle: what comes back from an executor is read with the types of the fold, like a snapshot from a stranger.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.pipeline.columns import Column, arrow_schema

__all__ = ["PARCELS", "pack", "unpack"]

_SLICE_BYTES: Final = 8 << 20
PARCELS: Final = (
    Column("part", "BIGINT", pa.int64(), "which task made it"),
    Column("slice", "BIGINT", pa.int64(), "place of the slice"),
    Column("data", "BINARY", pa.binary(), "a piece of its CBOR"),
)


def pack(part: int, tree: cbor.Item) -> Iterator[pa.RecordBatch]:
    """One item as rows of PARCELS."""
    data, schema = cbor.encode(tree), arrow_schema(PARCELS)
    for number, start in enumerate(range(0, len(data), _SLICE_BYTES)):
        row = {"part": part, "slice": number, "data": data[start : start + _SLICE_BYTES]}
        yield pa.RecordBatch.from_pylist([row], schema=schema)


def unpack(rows: Iterable[tuple[int, int, bytes]]) -> Iterator[tuple[int, Any]]:
    """(part, item) by part, from the rows of PARCELS in any order."""
    parcels: dict[int, dict[int, bytes]] = {}
    for part, number, data in rows:
        parcels.setdefault(part, {})[number] = bytes(data)
    for part in sorted(parcels):
        slices = parcels.pop(part)
        data = b"".join(slices[number] for number in sorted(slices))
        yield part, cbor.decode(data, what="summary", max_bytes=len(data), max_items=len(data) + 1)
