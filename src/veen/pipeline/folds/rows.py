"""Rows of SILVER, as they reach a task: batches of Arrow in, entries out."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import pyarrow as pa

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.payload_hdr import PayloadHdr
from veen.pipeline.columns import Column
from veen.pipeline.errors import OptionError
from veen.pipeline.events import SILVER, Found, NotAnEvent, found_of

__all__ = ["NEEDED", "check_columns", "found_in"]

_NOT_NEEDED: Final = ("stream",)
NEEDED: Final[tuple[Column, ...]] = tuple(column for column in SILVER if column.name not in _NOT_NEEDED)
_OPEN: Final = (
    "stream_id", "label", "epoch", "stream_seq", "leaf_hash", "client_id", "auth_ref", "hub_ts", "ts", "hdr", "body",
)  # fmt: skip

_header = lru_cache(maxsize=1024)(PayloadHdr.from_bytes)  # most headers say no more than the schema


def check_columns(names: Iterable[str]) -> None:
    """OptionError if a frame lacks one of the columns that folding needs."""
    have = set(names)
    if missing := [column.name for column in NEEDED if column.name not in have]:
        raise OptionError(f"a frame of events needs the columns of SILVER; missing: {', '.join(missing)}")


def found_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Found]:
    """The entries of some batches, in their order. NotAnEvent for a row that is none of ours."""
    for batch in batches:
        whole = all(batch.column(name).null_count == 0 for name in _OPEN if name != "auth_ref")
        if not whole or not all(batch.column("ok").to_pylist()):
            yield from map(found_of, batch.to_pylist())
            continue
        for row in zip(*(batch.column(name).to_pylist() for name in _OPEN), strict=True):
            stream_id, label, epoch, stream_seq, leaf_hash, client_id, auth_ref, hub_ts, ts, hdr, body = row
            try:
                header = _header(hdr)
            except (VeenError, TypeError) as exc:
                raise NotAnEvent(f"entry {stream_seq} of a label: the row is no event") from exc
            yield Event(
                stream_id=stream_id,
                label=label,
                epoch=epoch,
                stream_seq=stream_seq,
                leaf_hash=leaf_hash,
                client_id=client_id,
                auth_ref=auth_ref,
                hub_ts=hub_ts,
                ts=ts,
                hdr=header,
                body=body,
            )
