"""A stream over all its labels: one order for all entries, and a live end (D-26, D-27, D-102b).

Where labels rotate, a stream is many logs. Entries are merged by (ts*, epoch, stream_seq). A label is opened only when
the merge comes near its time, so a stream of years needs memory for a few labels. Live, the labels around the present
epoch are followed together, and whatever a hub answers late, twice or not at all, nothing is skipped or repeated.

Reading the entries that a hub still has, and the ranges that retention has erased.

`Client.read` ends with an error at an erased payload. Callers that must continue after it, such as a mirror, the policy
agent or the query service, use `read_kept` and report the ranges.
"""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from veen.client.errors import BadAnswer, HubRefused, NetworkError
from veen.client.read.reading import Entry, LabelReader
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found, is_transient
from veen.client.verify.view import check_order
from veen.core.objects.envelopes import StreamItem, StreamResponse
from veen.core.objects.tooling import MAX_WAIT_SEC, TailRequest

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.keyring import Stream

_TAIL_ITEMS: Final = 256
_QUEUED: Final = 64  # entries of one label that wait for the reader
_ANSWER_SECONDS: Final = 15.0  # on top of the wait, before a long poll counts as lost
_LIVE_EPOCHS: Final = 1  # CLOCK_SKEW_EPOCHS: distance of a live label from the present epoch (001 spec-1 §4)

OpenLabel = Callable[[int], Awaitable[LabelReader]]  # by epoch


async def seek(session: HubSession, label: bytes, since: int) -> int:
    """Return the first entry whose hub_ts is at least `since`. Times never decrease, so a few receipts suffice
    (D-28)."""
    info = await session.label_info(label)
    low, high = 1, (info.last_stream_seq if info else 0) + 1
    while low < high:
        middle = (low + high) // 2
        receipt = await session.receipt(label, middle)
        low, high = (middle + 1, high) if receipt.hub_ts < since else (low, middle)
    return low


async def merge_labels(
    session: HubSession, epochs: Sequence[int], entries: Callable[[int], AsyncGenerator[Entry, None]]
) -> AsyncGenerator[Entry, None]:
    """Yield the entries of several labels in one order (D-27); `entries` reads the label of one epoch."""
    waiting = list(reversed(epochs))  # ascending from the end
    heads: list[tuple[tuple[int, int, int], Entry, AsyncGenerator[Entry, None]]] = []
    async with contextlib.AsyncExitStack() as opened:
        while waiting or heads:
            # A label accepts no entry before its window opens, so entries of later labels cannot precede this one.
            while waiting and (not heads or _opens_at(session, waiting[-1]) <= heads[0][0][0]):
                source = entries(waiting.pop())
                opened.push_async_callback(source.aclose)
                await _push(heads, source)
            if heads:
                _, entry, source = heapq.heappop(heads)
                yield entry
                await _push(heads, source)


def _opens_at(session: HubSession, epoch: int) -> int:
    return (epoch - session.window) * session.epoch_sec


async def _push(
    heads: list[tuple[tuple[int, int, int], Entry, AsyncGenerator[Entry, None]]], source: AsyncGenerator[Entry, None]
) -> None:
    entry = await anext(source, None)
    if entry is not None:
        heapq.heappush(heads, (entry.order, entry, source))  # orders differ, so entries are never compared


# --- live -------------------------------------------------------------------------------------------------


async def follow_labels(session: HubSession, open_label: OpenLabel, first: int) -> AsyncGenerator[Entry, None]:
    """Yield every entry from `first` of the present label on, as it arrives, forever."""
    if not session.epoch_sec:
        async for entry in _follow(session, await open_label(0), first, lambda: False):
            yield entry
        return
    queue: asyncio.Queue[Entry | BaseException] = asyncio.Queue(_QUEUED)
    tasks: dict[int, asyncio.Task[None]] = {}
    start = session.epoch_now()
    try:
        while True:
            now = session.epoch_now()
            for epoch in range(max(now - _LIVE_EPOCHS, start), now + _LIVE_EPOCHS + 1):
                if epoch not in tasks:
                    at = first if epoch == start else 1
                    tasks[epoch] = asyncio.create_task(_pump(session, open_label, epoch, at, queue))
            with contextlib.suppress(TimeoutError):
                item = await asyncio.wait_for(queue.get(), min(session.epoch_sec, 1.0))
                if isinstance(item, BaseException):
                    raise item
                yield item
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _pump(
    session: HubSession, open_label: OpenLabel, epoch: int, first: int, queue: "asyncio.Queue[Entry | BaseException]"
) -> None:
    """Follow one label until its window has passed and it has no further entry."""

    def is_over() -> bool:
        return session.epoch_now() > epoch + max(session.window, _LIVE_EPOCHS)

    try:
        async for entry in _follow(session, await open_label(epoch), first, is_over):
            await queue.put(entry)
    except Exception as exc:  # raised to the reader, which ends the other tasks
        await queue.put(exc)


async def _follow(
    session: HubSession, reader: LabelReader, first: int, is_over: Callable[[], bool]
) -> AsyncGenerator[Entry, None]:
    """Read to the end, then wait there. Wait for a broken connection or a restarting hub."""
    async for entry in reader.entries(first, None):
        first = entry.seq + 1
        yield entry
    pause = session.calls.retry.first_pause
    was_away = False
    while True:
        over = is_over()
        try:
            if was_away:
                await reader.check_end()
                was_away = False
            items = await _tail(session, reader.label, first)
        except (NetworkError, HubRefused) as exc:
            if not is_transient(exc):
                raise
            was_away = True
            await session.calls.retry.sleep(pause * (0.5 + session.calls.retry.jitter()))
            pause = min(pause * 2, session.calls.retry.longest_pause)
            continue
        pause = session.calls.retry.first_pause
        if items:
            await reader.resume(first)
            for entry in await reader.verify_next(items):
                first = entry.seq + 1
                yield entry
        elif over:
            return


async def _tail(session: HubSession, label: bytes, first: int) -> tuple[StreamItem, ...]:
    """Return new entries by a long poll, or none for now."""
    wait = min(max(session.epoch_sec, 1), MAX_WAIT_SEC) if session.epoch_sec else MAX_WAIT_SEC
    request = TailRequest(label=label, from_seq=first, wait_sec=wait, max_items=_TAIL_ITEMS, with_receipts=True)
    try:
        page = await session.calls.ask(
            "tooling/tail", request, StreamResponse, timeout=wait + _ANSWER_SECONDS, again=False
        )
    except HubRefused as exc:
        if is_not_found(exc):
            return ()  # nobody wrote to this label yet
        raise
    if page.label != label:
        raise BadAnswer("tooling/tail: a page of another label than the one asked for")
    check_order(label, first, [item.stream_seq for item in page.items])
    return page.items


@dataclass(frozen=True, slots=True)
class ErasedRange:
    """Entries of one label whose payloads the hub has erased."""

    label: bytes
    first: int
    last: int


async def read_kept(
    client: "Client", stream: "Stream", *, after: Mapping[bytes, int] | None = None
) -> AsyncGenerator[Entry | ErasedRange, None]:
    """Yield every entry of a stream that can be read, label by label in the order of epochs, and erased ranges.

    `after` has positions by label; entries up to and including them are left out.
    """
    for epoch, label in sorted((epoch, label) for label, epoch in (await client.labels_of(stream)).items()):
        async for item in read_kept_label(client, stream, epoch, label, (after or {}).get(label, 0) + 1):
            yield item


async def read_kept_label(
    client: "Client", stream: "Stream", epoch: int, label: bytes, first: int
) -> AsyncIterator[Entry | ErasedRange]:
    """Yield the entries of one label from `first` on that can be read, and erased ranges."""
    seq = first
    while True:
        try:
            async for entry in client.read(stream, epoch=epoch, from_seq=seq):
                yield entry
                seq = entry.seq + 1
            return
        except HubRefused as exc:
            if not is_pruned(exc):
                if is_not_found(exc):
                    return  # the label has no entries, or none from here on
                raise
        behind = await _behind_erased(client, stream, epoch, seq)
        yield ErasedRange(label, seq, behind - 1)
        seq = behind


def is_pruned(error: HubRefused) -> bool:
    """Return True if the hub refuses because it has erased the requested entries."""
    return is_not_found(error) and error.detail.get("reason") == "pruned"


async def _behind_erased(client: "Client", stream: "Stream", epoch: int, erased: int) -> int:
    """Return the first readable position after an erased one, in O(log n) requests: runs are erased."""
    size = (await client.checkpoint(stream, epoch=epoch)).upto_seq
    step, low = 1, erased  # `low` is erased
    while low + step <= size and await _is_erased(client, stream, epoch, low + step):
        low, step = low + step, step * 2
    high = min(low + step, size + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if middle <= size and await _is_erased(client, stream, epoch, middle):
            low = middle
        else:
            high = middle
    return high


async def _is_erased(client: "Client", stream: "Stream", epoch: int, seq: int) -> bool:
    try:
        async for _ in client.read(stream, epoch=epoch, from_seq=seq, to_seq=seq, open=False):
            return False
    except HubRefused as exc:
        if not is_pruned(exc):
            raise
        return True
    return False
