"""Waiting for new entries: long polls and server-sent events (DESIGN §5). Nothing polls: the pipeline calls."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from veen.core.envelopes import StreamResponse
from veen.core.errors import VeenError
from veen.core.tooling import MAX_WAIT_SEC, TailRequest
from veen.hub.calls import Call, Context, bad_request, not_found
from veen.hub.pages import Page, encode_item, encode_page, page_bounds, read_page
from veen.hub.query import hex_field, uint_field
from veen.hub.reply import ApiError, Reply, dump_json

__all__ = ["EVENT_STREAM", "Tails"]

EVENT_STREAM: Final = "text/event-stream"
_HEARTBEAT_SEC: Final = 15.0
_MAX_WAITING: Final = 4_096
_EVENT_PAGE: Final = 64


class Tails:
    """Who waits for which label."""

    def __init__(self, context: Context, *, heartbeat_sec: float = _HEARTBEAT_SEC) -> None:
        self._context, self._heartbeat_sec = context, heartbeat_sec
        self._waiting: dict[bytes, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._closed = False
        context.services.pipeline.on_applied(self._applied)

    def _applied(self, labels: Sequence[bytes]) -> None:
        if not self._waiting:
            return
        for label in set(labels):
            for waiter in self._waiting.get(label, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def close(self) -> None:
        """The hub stops: nobody waits any longer, and event streams end."""
        self._closed = True
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def _wait(self, label: bytes, seconds: float) -> bool:
        """Whether `label` got an entry within `seconds`."""
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
        """A page as `stream` gives it; if it would be empty, the answer waits for an entry or for the time to pass."""
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
        if files is None:
            raise not_found("no entry has this label yet", label=request.label.hex())
        first, last, count = page_bounds(files, first, None, request.max_items)
        page = await read_page(self._context, files, first, last, count)
        head = StreamResponse(
            label=request.label,
            from_seq=first,
            items=(),
            next_cursor=page.next_cursor,
            server_version=self._context.services.server_version,
        )
        return await encode_page(head, page.frames, call.answer, with_receipts=bool(request.with_receipts))

    async def events(self, call: Call) -> Reply:
        """GET label, from: every entry as an event, for as long as the client stays. The event id is the stream_seq."""
        label = hex_field(call.query, "label", 32)
        first = uint_field(call.query, "from", 1)
        if call.last_event_id is not None:
            if not (call.last_event_id.isascii() and call.last_event_id.isdigit() and len(call.last_event_id) < 20):
                raise bad_request("expected the id of an event", "Last-Event-ID")
            first = int(call.last_event_id) + 1
        headers = (("Cache-Control", "no-store"),)
        return Reply(200, content_type=EVENT_STREAM, headers=headers, stream=self._follow(label, max(first, 1)))

    async def _follow(self, label: bytes, first: int) -> AsyncGenerator[bytes, None]:
        yield b": connected\n\n"  # headers leave at once
        while not self._closed:
            files = self._context.store.files(label)
            if files is None or files.size < first:
                try:
                    if not await self._wait(label, self._heartbeat_sec):
                        yield b":\n\n"
                except ApiError as exc:
                    yield _failure(exc)
                    return
                continue
            try:
                page = await read_page(self._context, files, first, files.size, _EVENT_PAGE)
            except VeenError as exc:
                yield _failure(exc)
                return
            yield b"".join(_event(page))
            first += len(page.frames)


def _event(page: Page) -> list[bytes]:
    return [
        b"event: entry\nid: %d\ndata: %b\n\n" % (frame.stream_seq, encode_item(frame, "json", with_receipt=True))
        for frame in page.frames
    ]


def _failure(error: VeenError) -> bytes:
    return b"event: error\ndata: %b\n\n" % dump_json({"message": str(error)})
