"""Positions and times of labels, from the times of their entries alone: nothing is opened for it (D-27, D-80)."""

from collections.abc import Iterator, Mapping
from typing import Final

from veen.core.receipt import Receipt
from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, chosen
from veen.pipeline.events import Mark, Prefix, make_prefix
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import pin
from veen.pipeline.plan import Piece
from veen.pipeline.prefix import LabelPart, receipt_at
from veen.storage.fs import Fs

__all__ = ["heads_at", "marks_at", "receipts_at"]

_HUB_TS: Final = chosen(["stream_seq", "hub_ts"], ENTRIES)


def _times(fs: Fs, part: LabelPart) -> Iterator[tuple[int, int]]:
    """(position, hub_ts) of the entries of a label that have one."""
    for piece in part.pieces:
        if piece.ref.kind != "missing":
            yield from _piece_times(fs, piece)


def _piece_times(fs: Fs, piece: Piece) -> Iterator[tuple[int, int]]:
    for batch in bronze.batches(fs, piece.ref, _HUB_TS, level="none", first=piece.first, last=piece.last):
        for seq, hub_ts in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            if hub_ts is not None and piece.first <= seq <= piece.last:
                yield seq, hub_ts


def heads_at(prefix: Prefix, ts: int) -> dict[bytes, int]:
    """By label: the last position whose ts* is not after `ts`. Labels that begin later are left out."""
    fs = open_fs(prefix.uri)
    heads = {}
    for part in prefix.labels:
        later = next((seq for seq, hub_ts in _times(fs, part) if hub_ts > ts), part.head + 1)
        if later > 1:
            heads[part.label] = later - 1
    return heads


def marks_at(uri: str, heads: Mapping[bytes, int]) -> dict[bytes, Mark]:
    """By label: the position, and ts* there. Shortened if a label ends before it."""
    prefix = make_prefix(uri, upto=heads)
    fs = open_fs(uri)
    return {part.label: Mark(part.head, max((ts for _, ts in _times(fs, part)), default=0)) for part in prefix.labels}


def receipts_at(uri: str, heads: Mapping[bytes, int]) -> dict[bytes, Receipt]:
    """By label: the receipt at a position; labels without a readable one there are left out."""
    pinned = pin(uri, heads.keys())
    fs = open_fs(uri)
    found = {
        label: receipt_at(fs, pinned.labels[label].chunks, seq)
        for label, seq in heads.items()
        if label in pinned.labels
    }
    return {label: receipt for label, receipt in found.items() if receipt is not None}
