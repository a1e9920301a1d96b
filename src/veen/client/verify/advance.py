"""Advancing a view: by the entries in between (full), or by a proof about them (light) (D-66).

Nothing is committed here: callers work on a copy of their view and keep it once the signature of the last receipt
is verified. That one signature covers the whole run before it, because its root does.
"""

from collections.abc import AsyncIterator
from typing import Final

from veen.client.errors import BadAnswer, Divergence, Dropped, HubRefused, Reordered, Rewound
from veen.client.session import HubSession
from veen.client.state import Mode
from veen.client.transport.calls import is_not_found
from veen.client.verify.view import LabelView, check_order, contradiction, divergence
from veen.core.errors import VeenError
from veen.core.objects.envelopes import ReceiptRequest, ReceiptResponse, StreamItem
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Authors, Fault, Rule

PAGE_ITEMS: Final = 512
MAX_AUTHORS: Final = 65_536  # authors whose numbers are remembered; the least recent one is forgotten


def receipt_of(item: StreamItem) -> Receipt:
    """Return the receipt that was requested with an entry."""
    if item.receipt is None:
        raise BadAnswer(f"v1/stream: entry {item.stream_seq} comes without the receipt that was asked for")
    if item.receipt.stream_seq != item.stream_seq:
        raise Reordered(
            "entry and receipt have different stream_seq",
            label=item.msg.label,
            seq=item.stream_seq,
            expected=item.stream_seq,
            found=item.receipt.stream_seq,
        )
    return item.receipt


async def run(session: HubSession, label: bytes, first: int, last: int | None) -> AsyncIterator[tuple[StreamItem, ...]]:
    """Yield pages of entries in order from `first` on, at most to `last`. The caller verifies the entries."""
    while last is None or first <= last:
        page = await session.page(label, first, last, PAGE_ITEMS)
        if page.label != label:
            raise BadAnswer("v1/stream: a page of another label than the one asked for")
        check_order(label, first, [item.stream_seq for item in page.items])
        if page.items:
            if last is not None and page.items[-1].stream_seq > last:
                raise BadAnswer("v1/stream: more entries than were asked for")
            yield page.items
        first += len(page.items)
        if page.next_cursor is None:
            return
        if page.next_cursor != first or not page.items:
            raise BadAnswer("v1/stream: next_cursor does not follow the page")


def authors_after(size: int) -> Authors:
    """Return the authors of a run that begins behind `size` entries, which nobody showed."""
    return Authors(size, limit=MAX_AUTHORS)


def append_item(view: LabelView, item: StreamItem, authors: Authors, last_ts: int = 0) -> list[Fault]:
    """Append an entry but for its signatures; return warnings. Raise Divergence if it does not continue the log."""
    faults = view.append_entry(item.msg, receipt_of(item), authors, last_ts)
    for fault in faults:
        if fault.rule is not Rule.TIME:
            raise divergence(fault, view.label)
    return faults


async def fill(session: HubSession, view: LabelView, upto: int) -> None:
    """Fold every entry up to `upto` into the view (full mode)."""
    authors = authors_after(view.size)
    async for items in run(session, view.label, view.size + 1, upto):
        for item in items:
            append_item(view, item, authors)
    if view.size < upto:
        raise Dropped(
            "the hub signed a later entry and does not serve one before it",
            label=view.label,
            seq=view.size + 1,
            expected=upto,
            found=view.size,
        )


async def advance(session: HubSession, view: LabelView, receipt: Receipt, leaf_hash: bytes, mode: Mode) -> None:
    """Advance the view to `receipt`, over the entries of others in between. The caller checks the signature."""
    gap_end = receipt.stream_seq - 1
    if mode == "full" and view.is_whole:
        if view.size < gap_end:
            try:
                await fill(session, view, gap_end)
            except HubRefused as exc:
                if not _is_pruned(exc):
                    raise
                await _skip(session, view, receipt)  # the payloads are erased, the tree is not (D-74)
    elif view.size < gap_end or not view.is_whole:
        await _skip(session, view, receipt)
    view.append(leaf_hash, receipt)


async def _skip(session: HubSession, view: LabelView, receipt: Receipt) -> None:
    """Advance by one proof that the log only grew, which also places the entry under its root (light mode)."""
    if view.size:
        view.skip_to(receipt.stream_seq - 1, await session.consistency(view.label, view.size, receipt.stream_seq - 1))
    else:
        view.start_before(receipt, await session.proof(receipt))


def _is_pruned(error: HubRefused) -> bool:
    return is_not_found(error) and error.detail.get("reason") == "pruned"


async def accuse(session: HubSession, view: LabelView, error: Divergence) -> Divergence:
    """Return proof of equivocation if the hub now signs another history than before, else `error` itself.

    `view` is the view from before `error`. It costs one call; without an answer
    the error stays as it is.
    """
    last = view.last
    if last is None:
        return error
    request = ReceiptRequest(label=view.label, stream_seq=last.stream_seq)
    try:
        now = (await session.calls.ask("v1/receipt", request, ReceiptResponse, again=False)).receipt
        contradiction(last, now, session.pin)
    except HubRefused as exc:
        if is_not_found(exc) and not _is_pruned(exc):
            return Rewound(
                "the hub no longer has an entry that it signed",
                label=view.label,
                seq=last.stream_seq,
                expected=last.stream_seq,
            )
    except Divergence as stronger:
        return stronger
    except VeenError:
        pass
    return error
