"""Waiting for new entries: long polls and server-sent events (DESIGN §5). Nothing polls: the sequencer calls back."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from veen.core.errors import VeenError
from veen.core.objects.envelopes import StreamResponse
from veen.core.objects.tooling import MAX_WAIT_SEC, TailRequest
from veen.hub.api.access import Principal, Role
from veen.hub.api.calls import ApiContext, Call, bad_request, not_found
from veen.hub.api.pages import Page, encode_item, encode_page, open_page, page_bounds
from veen.hub.api.query import hex_field, uint_field
from veen.hub.api.reply import ApiError, Reply, dump_json

EVENT_STREAM: Final = "text/event-stream"
_HEARTBEAT_SEC: Final = 15.0
_MAX_WAITING: Final = 4_096
_EVENT_PAGE: Final = 64
_EVENT_BYTES: Final = 128 * 1024  # of entries at a time, at least one: memory of a stream while its client is slow


class Tails:
    """The readers that wait, by label. Owned by the event loop's thread."""

    def __init__(self, context: ApiContext, *, heartbeat_sec: float = _HEARTBEAT_SEC, max_age_sec: float = 0.0) -> None:
        """Begin to listen to the sequencer. `max_age_sec` ends event streams, whose clients connect again; 0: never."""
        self._context, self._heartbeat_sec, self._max_age_sec = context, heartbeat_sec, max_age_sec
        self._waiting: dict[bytes, set[asyncio.Future[None]]] = {}  # a label is here only while somebody waits for it
        self._count = 0
        self._closed = False
        context.services.sequencer.on_applied(self._on_applied)

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        # Called after the group was applied, so a reader that wakes up finds the entry. An entry that came between a
        # reader's look and its wait cannot be missed: both happen in one turn of the event loop.
        if not self._waiting:
            return
        for label in set(labels):
            for waiter in self._waiting.get(label, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def close(self) -> None:
        """End all waits and event streams, because the hub stops."""
        self._closed = True
        self.wake()

    def wake(self) -> None:
        """Wake all readers, to check again if they still may read and if the hub still serves them."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _wait(self, label: bytes, seconds: float) -> bool:
        """Wait for an entry of `label`; return False after `seconds` without one."""
        if self._count >= _MAX_WAITING:
            raise ApiError.unavailable("too many readers are waiting")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(label, set())
        waiters.add(waiter)
        self._count += 1
        try:
            await asyncio.wait((waiter,), timeout=seconds)
            return waiter.done()
        finally:
            self._count -= 1
            waiters.discard(waiter)
            if not waiters and self._waiting.get(label) is waiters:
                del self._waiting[label]

    async def tail(self, call: Call) -> Reply:
        """Answer with a page like `stream`; if it would be empty, wait for an entry or for the timeout."""
        request = self._context.read(call, TailRequest)
        if request.wait_sec > MAX_WAIT_SEC:
            raise bad_request("the wait is too long", "wait_sec", max_allowed=MAX_WAIT_SEC, actual=request.wait_sec)
        if request.max_items == 0:
            raise bad_request("a page has at least one item", "max_items")
        first = max(request.from_seq, 1)
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.wait_sec
        while True:
            files = self._context.store.files(request.label)
            if (files is not None and files.size >= first) or (left := deadline - clock()) <= 0 or self._closed:
                break
            await self._wait(request.label, left)
            self._context.check_role(Role.READ, call.principal)  # the token may have been withdrawn meanwhile
        if files is None:
            raise not_found("no entry has this label yet", label=request.label.hex())
        first, last, count = page_bounds(files, first, None, request.max_items)
        async with open_page(self._context, files, first, last, count) as page:
            head = StreamResponse(
                label=request.label,
                from_seq=first,
                items=(),
                next_cursor=page.next_cursor,
                server_version=self._context.services.server_version,
            )
            return await encode_page(self._context, head, page, call.answer, with_receipts=bool(request.with_receipts))

    async def events(self, call: Call) -> Reply:
        """Answer GET label, from: every entry as an event, until the client disconnects or the stream reaches its
        greatest age.

        The event id is the stream_seq, by which the client continues after it has connected again.
        """
        label = hex_field(call.query, "label", 32)
        first = uint_field(call.query, "from", 1)
        if call.last_event_id is not None:
            if not (call.last_event_id.isascii() and call.last_event_id.isdigit() and len(call.last_event_id) < 20):
                raise bad_request("expected the id of an event", "Last-Event-ID")
            first = int(call.last_event_id) + 1
        headers = (("Cache-Control", "no-store"),)
        stream = self._follow(label, max(first, 1), call.principal)
        return Reply(200, content_type=EVENT_STREAM, headers=headers, stream=stream)

    async def _follow(self, label: bytes, first: int, principal: Principal) -> AsyncGenerator[bytes, None]:
        yield b": connected\n\n"  # headers leave at once
        clock = asyncio.get_running_loop().time
        end = clock() + self._max_age_sec if self._max_age_sec else math.inf
        while not self._closed and (left := end - clock()) > 0:
            try:
                self._context.check_role(Role.READ, principal)  # on each page: the right may have been withdrawn
                files = self._context.store.files(label)
                if files is None or files.size < first:
                    if not await self._wait(label, min(self._heartbeat_sec, left)):
                        yield b":\n\n"
                    continue
                async with open_page(
                    self._context, files, first, files.size, _EVENT_PAGE, max_bytes=_EVENT_BYTES
                ) as page:
                    events = b"".join(_event(page))
                    first += len(page.frames)
            except VeenError as exc:
                yield _failure(exc)
                return
            yield events


def _event(page: Page) -> list[bytes]:
    return [
        b"event: entry\nid: %d\ndata: %b\n\n" % (frame.stream_seq, encode_item(frame, "json", with_receipt=True))
        for frame in page.frames
    ]


def _failure(error: VeenError) -> bytes:
    return b"event: error\ndata: %b\n\n" % dump_json({"message": str(error)})
