"""Entries over HTTP, on the executor: pages become frames, and an entry that the hub does not serve becomes a row.

An answer is put into frames and read like a chunk, so that an invented entry is detected as damage on a disk would be.
Only the frames are trusted, not the envelope.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from veen.client.errors import BadAnswer, HubRefused
from veen.client.transport.calls import Calls, is_not_found
from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.envelopes import MAX_PAGE_ITEMS, ReceiptRequest, ReceiptResponse, StreamRequest
from veen.core.objects.receipt import Receipt
from veen.lake.log.entries import ReadSpec, Row, from_frames, from_rows
from veen.lake.log.hub_link import HubLink
from veen.lake.log.slices import Slice
from veen.storage import frame
from veen.storage.pinned import ChunkRef

TOGETHER: Final = 32  # requests for single entries under way at once
_STREAM: Final = "v1/stream"
_MAX_RECEIPT_BYTES: Final = 256
_ITEMS: Final = 5  # of a stream response, by its key
_LABEL: Final = 2


class Item(NamedTuple):
    """An entry as the hub sent it, byte for byte."""

    stream_seq: int
    msg: bytes
    receipt: bytes

    @property
    def is_plausible(self) -> bool:
        """True if a frame can hold it."""
        return len(self.msg) <= DEFAULT_LIMITS.max_msg_bytes and len(self.receipt) <= _MAX_RECEIPT_BYTES


class Run(NamedTuple):
    """Consecutive entries: their bytes, or a row for each with the reason why it was not served."""

    first: int
    items: Sequence[Item]
    rows: Sequence[Row] = ()
    erased: bool = False  # the hub says that the payloads of `rows` were erased under its retention policy


def runs(link: HubLink, part: Slice) -> Iterator[Run]:
    """Yield every entry of a slice, in order: as the hub sends it, or with the reason why it does not."""
    label, pos = part.label, part.first
    while pos <= part.last:
        last = min(part.last, pos + MAX_PAGE_ITEMS - 1)
        try:
            items = link.run(lambda calls: fetch_page(calls, label, pos, last))  # noqa: B023 - called at once
        except PageRefused as exc:
            if exc.singly:
                for first in range(pos, last + 1, TOGETHER):
                    seqs = range(first, min(first + TOGETHER, last + 1))
                    yield from link.run(lambda calls: _fetch_singly(calls, label, seqs))  # noqa: B023 - called at once
            else:
                yield Run(pos, (), [_bad_row(seq, exc.reason) for seq in range(pos, last + 1)])
            pos = last + 1
            continue
        if not items:
            yield _withheld_run(pos, last)
            pos = last + 1
            continue
        for run in _align(pos, last, items):
            yield run
            pos = run.first + len(run.items or run.rows)


def _align(first: int, last: int, items: Sequence[Item]) -> Iterator[Run]:
    """Yield entries at their own positions, and rows for those left out in between.

    If the numbers do not ascend, each entry is checked at the position where the hub put it.
    """
    numbers = [first - 1, *(item.stream_seq for item in items), last + 1]
    if any(a >= b for a, b in pairwise(numbers)):
        yield Run(first, items)
        return
    begin = 0
    for at, item in enumerate(items):
        expected = numbers[at] + 1
        if item.stream_seq != expected:
            if begin < at:
                yield Run(items[begin].stream_seq, items[begin:at])
            yield _withheld_run(expected, item.stream_seq - 1)
            begin = at
    yield Run(items[begin].stream_seq, items[begin:])


def _withheld_run(first: int, last: int) -> Run:
    return Run(first, (), [_bad_row(seq, "the hub does not give this entry") for seq in range(first, last + 1)])


class PageRefused(Exception):
    """A page that the hub does not serve; `singly` if single entries of it may be served."""

    def __init__(self, reason: str, *, singly: bool) -> None:
        super().__init__(reason)
        self.reason, self.singly = reason, singly


async def fetch_page(calls: Calls, label: bytes, first: int, last: int) -> list[Item]:
    """Request the entries from `first` on, as many as the hub puts into one answer.

    Raise PageRefused if it serves none of them together.
    """
    request = StreamRequest(label=label, from_seq=first, to_seq=last, max_items=last - first + 1, with_receipts=True)
    try:
        items = split_page((await calls.send(_STREAM, request.to_bytes())).body, label)
    except HubRefused as exc:
        if exc.detail.get("reason") in ("pruned", "corrupt"):
            raise PageRefused(str(exc), singly=True) from exc
        if is_not_found(exc):
            raise PageRefused(str(exc), singly=False) from exc
        raise
    except BadAnswer as exc:
        raise PageRefused(str(exc), singly=False) from exc
    if len(items) > last - first + 1:
        raise PageRefused("the hub gives more entries than it was asked for", singly=False)
    return items


async def _fetch_singly(calls: Calls, label: bytes, seqs: Iterable[int]) -> list[Run]:
    return list(await asyncio.gather(*[_fetch_single(calls, label, seq) for seq in seqs]))


async def _fetch_single(calls: Calls, label: bytes, seq: int) -> Run:
    """Fetch one entry of a page in which one is damaged or erased."""
    try:
        items = await fetch_page(calls, label, seq, seq)
    except PageRefused as exc:
        refused = exc.__cause__
        if isinstance(refused, HubRefused) and refused.detail.get("reason") == "pruned":
            return Run(seq, (), [await _row_of_erased(calls, label, seq)], erased=True)
        return Run(seq, (), [_bad_row(seq, exc.reason)])
    return Run(seq, items) if items else _withheld_run(seq, seq)


async def _row_of_erased(calls: Calls, label: bytes, seq: int) -> Row:
    """Return the row of an erased entry, with the fields of its receipt if the hub serves it (D-74)."""
    row = _bad_row(seq, "erased under the retention policy")
    try:
        receipt = (await calls.ask("v1/receipt", ReceiptRequest(label=label, stream_seq=seq), ReceiptResponse)).receipt
    except (HubRefused, BadAnswer):
        return row
    if (receipt.label, receipt.stream_seq) != (label, seq):
        return row | {"reason": "erased, and the hub answers with the receipt of another entry"}
    return row | _of_receipt(receipt)


def _of_receipt(receipt: Receipt) -> Row:
    return {
        "hub_ts": receipt.hub_ts,
        "leaf_hash": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "hub_sig": receipt.hub_sig,
        "receipt": receipt.to_bytes(),
    }


def _bad_row(seq: int, reason: str) -> Row:
    return {"stream_seq": seq, "ok": False, "reason": reason}


def tables(run: Run, ref: ChunkRef, spec: ReadSpec) -> Iterator[pa.Table]:
    """Yield the rows of a run as tables, in the columns of `spec`."""
    if run.rows:
        yield from_rows(run.rows, ref, spec)
        return
    # One entry that no frame can hold must not hide those behind it.
    whole = all(item.is_plausible for item in run.items)
    groups = [run.items] if whole else [[item] for item in run.items]
    first = run.first
    for group in groups:
        data = b"".join(frame.encode(ref.label, *item).to_bytes() for item in group)
        part = replace(ref, start_seq=first, end_seq=first + len(group) - 1, size=len(data))
        yield _without_offsets(from_frames(data, part, spec))
        first += len(group)


def _without_offsets(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("frame_offset")
    return table if at < 0 else table.set_column(at, "frame_offset", pa.nulls(table.num_rows, pa.int64()))


def split_page(body: bytes, label: bytes) -> list[Item]:
    """Split a stream response into its entries, undecoded. Raise BadAnswer for a malformed one or another label."""
    items: list[Item] = []
    try:
        count, pos = _read_head(body, 0, major=5)
        for _ in range(count):
            key, start = _read_head(body, pos, major=0)
            if key == _ITEMS:
                items, pos = _split_items(body, start)
                continue
            pos = cbor.item_end(body, start, what=_STREAM)
            if key == _LABEL and cbor.decode(body[start:pos], what=_STREAM) != label:
                raise BadAnswer(f"{_STREAM}: a page of another label than the one asked for")
    except FormatError as exc:
        raise BadAnswer(f"{_STREAM}: not a page: {exc}") from exc
    return items


def _split_items(body: bytes, start: int) -> tuple[list[Item], int]:
    """Split an array of entries; return them and the position behind it."""
    count, pos = _read_head(body, start, major=4)
    items = []
    for _ in range(count):
        members, pos = _read_head(body, pos, major=5)
        spans: dict[int, tuple[int, int]] = {}
        for _ in range(members):
            key, value = _read_head(body, pos, major=0)
            pos = cbor.item_end(body, value, what=_STREAM)
            spans[key] = (value, pos)
        if set(spans) != {1, 2, 3}:
            raise BadAnswer(f"{_STREAM}: an entry comes without its number, its message or its receipt")
        seq, _ = _read_head(body, spans[1][0], major=0)
        items.append(Item(seq, body[slice(*spans[2])], body[slice(*spans[3])]))
    return items, pos


def _read_head(body: bytes, pos: int, *, major: int) -> tuple[int, int]:
    try:
        return cbor.uint_at(body, pos, major << 5)
    except (IndexError, ValueError) as exc:
        raise BadAnswer(f"{_STREAM}: not a page of entries") from exc
