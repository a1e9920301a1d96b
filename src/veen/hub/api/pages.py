"""Pages of entries for the API: bounded, read in short turns, with the bytes of the log.

The event loop also orders messages, so a large page is read in slices with pauses in between. Entries never change,
so a page that is read in several turns is the same page (spec §10.2, §10.5, D-63). A page of one slice is read and
encoded in one turn. Only a few larger pages are in memory at a time; the others wait. While clients write, reading
gets a third of the thread (`writer_priority`).

Waiting for new entries: long polls and server-sent events (DESIGN §5). Nothing polls: the sequencer calls back.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.objects.envelopes import MAX_PAGE_ITEMS, StreamItem, StreamResponse
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import MAX_WAIT_SEC, TailRequest
from veen.core.tree.proof import MmrProof
from veen.hub.api.access import Principal, Role
from veen.hub.api.calls import ApiContext, Call, bad_request, hex_field, not_found, uint_field
from veen.hub.api.reply import JSON, ApiError, Form, Reply, dump_json
from veen.storage.frame import Frame
from veen.storage.label_files import LabelFiles
from veen.storage.reader import PrunedError

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024  # D-63
_SLICE_BYTES: Final = 128 * 1024
_SLICE_ITEMS: Final = 64
_ITEMS_KEY: Final = 5  # of a stream response
_LARGE: Final = 1024 * 1024  # pages from this size on are joined in another thread
_LONG: Final = 4 * 1024  # hex of ciphertexts from this size on is not searched for characters that JSON escapes
_CIPHERTEXT: Final = 1 + [field.name for field in fields(Msg)].index("ciphertext")  # in the array; "ver" is the first


@dataclass(frozen=True, slots=True)
class Page:
    """The entries that were read, and the cursor of the next page."""

    frames: list[Frame]
    next_cursor: int | None

    def proof(self, context: ApiContext, files: LabelFiles) -> MmrProof | None:
        """Return the proof of the last entry under the root of its own receipt (D-33)."""
        return context.proofs.prove(files, self.frames[-1].stream_seq) if self.frames else None


def page_bounds(files: LabelFiles, first_seq: int, to_seq: int | None, max_items: int | None) -> tuple[int, int, int]:
    """Return the first and last existing entry of the requested range, and the greatest number of items."""
    if max_items == 0:
        raise bad_request("a page has at least one item", "max_items")
    last = files.size if to_seq is None else min(to_seq, files.size)
    return max(first_seq, 1), last, min(max_items or MAX_PAGE_ITEMS, MAX_PAGE_ITEMS)


@asynccontextmanager
async def open_page(
    context: ApiContext,
    files: LabelFiles,
    first_seq: int,
    last_seq: int,
    max_items: int,
    *,
    max_bytes: int = MAX_PAGE_BYTES,
) -> AsyncIterator[Page]:
    """Read entries from `first_seq` up to `last_seq`, `max_items` or `max_bytes`, whichever comes first.

    Encode the page inside: its turn, if it needed one, ends with the block.
    """
    slices = _slices(context, files, first_seq, min(last_seq, first_seq + max_items - 1), max_bytes)
    frames: list[Frame] = await anext(slices, [])
    async with AsyncExitStack() as stack:
        if frames and first_seq + len(frames) <= min(last_seq, first_seq + max_items - 1):
            await stack.enter_async_context(context.page_turns)
            async for part in slices:
                frames += part
                await context.priority.wait()
        following = first_seq + len(frames)
        yield Page(frames, following if frames and following <= last_seq else None)


async def _slices(
    context: ApiContext, files: LabelFiles, first_seq: int, last_seq: int, max_bytes: int
) -> AsyncIterator[list[Frame]]:
    left = max_bytes
    position = first_seq
    while position <= last_seq:
        end = min(last_seq, position + _SLICE_ITEMS - 1, context.store.reader.chunk_end(files, position))
        await context.unpack(files, position)
        try:
            part = context.store.reader.frames(files, position, end, min(_SLICE_BYTES, left))
        except PrunedError as exc:
            if exc.stream_seq > position:  # only a later part was erased
                last_seq = exc.stream_seq - 1
                continue
            if position > first_seq:
                return  # the entries read so far are complete; the next page reports the erasure
            raise
        size = sum(frame.size for frame in part)
        if size > left and position > first_seq:  # one entry is always returned, but only the first may exceed
            return
        yield part
        left -= size
        position += len(part)
        if left <= 0:
            return


def encode_item(frame: Frame, form: Form, *, with_receipt: bool) -> bytes:
    """Encode one item of a page. In CBOR the bytes of the log are passed on unchanged."""
    if form == "json":
        receipt = Receipt.from_bytes(frame.receipt) if with_receipt else None
        msg = Msg.from_bytes(frame.msg)
        tree = StreamItem(stream_seq=frame.stream_seq, msg=msg, receipt=receipt).to_json()
        return dump_json(tree) if len(msg.ciphertext) < _LONG else _dump_long(tree)
    head = (b"\xa3\x01" if with_receipt else b"\xa2\x01") + cbor.uint(frame.stream_seq) + b"\x02"
    return b"".join((head, frame.msg, b"\x03", frame.receipt)) if with_receipt else head + frame.msg


def _dump_long(tree: dict[str, Any]) -> bytes:
    """Encode an item with a long ciphertext as JSON, in an eighth of the time: hex needs no escapes."""
    hex_text, tree["msg"][_CIPHERTEXT] = tree["msg"][_CIPHERTEXT], ""
    before, after = dump_json(tree).split(b'""')  # no other text of an item is empty
    return b"".join((before, b'"', hex_text.encode("ascii"), b'"', after))


async def encode_page(
    context: ApiContext, head: StreamResponse, page: Page, form: Form, *, with_receipts: bool
) -> Reply:
    """Encode a page in either form: the entries within the answer `head`, which has no items yet."""
    frames = page.frames
    if form == "json":  # JSON is for people and takes its time
        encode = partial(encode_item, form=form, with_receipt=with_receipts)
        encoded = await context.read_worker.each(encode, frames)
        return await context.read_worker.run(lambda: _json_page(head, encoded))
    items = [encode_item(frame, form, with_receipt=with_receipts) for frame in frames]
    tree = head.to_tree()
    parts = [bytes((0xA0 | len(tree),))]  # joined once: each copy of a large page takes milliseconds
    for key, value in tree.items():
        parts.append(cbor.uint(key))
        parts += (_array_head(len(items)), *items) if key == _ITEMS_KEY else (cbor.encode(value),)
    if sum(map(len, items)) < _LARGE:
        return Reply(200, b"".join(parts))
    return Reply(200, await context.read_worker.run(lambda: b"".join(parts)))


def _json_page(head: StreamResponse, items: Sequence[bytes]) -> Reply:
    parts = [b"{"]  # joined once, as above
    for name, value in head.to_json().items():
        parts.append(b"," if len(parts) > 1 else b"")
        if name == "items":
            parts.append(b'"items":[')
            for item in items:
                parts += (item, b",")
            parts[-1] = b"]" if items else b'"items":[]'
        else:
            parts.append(dump_json({name: value})[1:-1])
    parts.append(b"}")
    return Reply(200, b"".join(parts), JSON)


def _array_head(count: int) -> bytes:
    head = cbor.uint(count)
    return bytes((head[0] | 0x80,)) + head[1:]


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
