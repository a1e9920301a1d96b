"""Pages of entries for the API: bounded, read in short turns, with the bytes of the log.

The event loop also orders messages, so a large page is read in slices with pauses in between. Entries never change,
so a page that is read in several turns is the same page (spec §10.2, §10.5, D-63). A page of one slice is read and
encoded in one turn. Only a few larger pages are in memory at a time; the others wait. While clients write, reading
gets a third of the thread (`writer_priority`).
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

from veen.core import cbor
from veen.core.objects.envelopes import MAX_PAGE_ITEMS, StreamItem, StreamResponse
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof
from veen.hub.api.calls import ApiContext, bad_request
from veen.hub.api.reply import JSON, Form, Reply, dump_json
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
