"""Anchors: roots that a party outside of the log remembers (001 spec-1 ANCHOR0, D-104).

An anchor is published first and journaled then, so a record never promises an anchor that does not exist. Commits do
not depend on the backend: it is called in a thread, and its failure is counted and reported to the caller.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, ControlRecord
from veen.core.objects.tooling import AnchoredCheckpoint, AnchorRequest, AnchorResponse, AnchorsResponse
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, LabelOrder, bad_request, hex_field, uint_field
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import ApiError, Reply
from veen.hub.process.housekeeping import in_thread
from veen.storage.anchors import MAX_REF_BYTES, NONCE_BYTES, AnchorError
from veen.storage.label_files import LabelFiles

_MAX_BACKEND_CHARS: Final = 64
_PAGE: Final = 100  # anchors in one answer; the checkpoint of each is signed for it
_TURN: Final = 16
_IDLE_SECONDS: Final = 60.0


class Anchoring:
    """The operation `anchor`, by POST and by GET, and the schedule by which a hub anchors by itself."""

    def __init__(self, api: Api, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._api, self._context, self._services = api, api.context, api.services
        self._order = LabelOrder(api.context)
        self._draw = draw
        self._turn = asyncio.Lock()  # for requests with an id: a retry waits until the first one has ended
        self._running: set[asyncio.Task[Reply]] = set()
        api.on_finish(self._finish)

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {"anchor": (Role.ADMIN, self._anchor), "anchor_list": (Role.READ, self._list)}

    # --- publishing ------------------------------------------------------------------------------------

    async def _anchor(self, call: Call) -> Reply:
        request = self._context.read(call, AnchorRequest)
        if request.request_id is None:
            return await self._anchor_now(request, call)
        # The lock and the work outlive a caller that disconnects: a retry finds the outcome of the first request.
        working = asyncio.create_task(self._anchor_in_turn(request, request.request_id, call))
        self._running.add(working)
        working.add_done_callback(self._on_end)
        return await asyncio.shield(working)

    def _on_end(self, working: asyncio.Task[Reply]) -> None:
        self._running.discard(working)
        if not working.cancelled():
            working.exception()  # mark it as retrieved: the caller may have disconnected

    async def _finish(self) -> None:
        """Wait for all running requests: the sequencer must not close before."""
        if self._running:
            await asyncio.wait(self._running)

    async def _anchor_in_turn(self, request: AnchorRequest, request_id: bytes, call: Call) -> Reply:
        async with self._turn:
            record = self._context.control.outcome(request_id, AnchorPublish.KIND, request.label)
            if record is None or not isinstance(record.body, AnchorPublish):
                return await self._anchor_now(request, call)
            checkpoint = await self._context.checkpoint(self._context.files(request.label), record.body.upto_seq)
            return self._api.replies.ok(AnchorResponse(checkpoint=checkpoint, record=record), call.answer)

    async def _anchor_now(self, request: AnchorRequest, call: Call) -> Reply:
        if (request.backend is None) != (request.anchor_ref is None):
            raise bad_request("backend and anchor_ref come together or not at all", "anchor_ref")
        files = self._context.files(request.label)
        upto_seq = files.size if request.upto_seq is None else request.upto_seq
        self._context.entry(request.label, upto_seq, "upto_seq")
        checkpoint = await self._context.checkpoint(files, upto_seq)
        if request.backend is not None and request.anchor_ref is not None:
            record = await self._anchor_record(checkpoint, request.backend, request.anchor_ref, request.request_id)
        else:
            record = await self._publish(checkpoint, request.request_id)
        return self._api.replies.ok(AnchorResponse(checkpoint=checkpoint, record=record), call.answer)

    async def _anchor_record(
        self, checkpoint: Checkpoint, backend: str, anchor_ref: bytes, request_id: bytes | None
    ) -> ControlRecord:
        """Journal an anchor that the caller published elsewhere. The hub cannot check it: the record says where to
        look."""
        if not 0 < len(backend) <= _MAX_BACKEND_CHARS or backend == self._services.anchors.name:
            raise bad_request("expected the name of another backend", "backend")
        if len(anchor_ref) > MAX_REF_BYTES:
            raise bad_request(f"expected at most {MAX_REF_BYTES} bytes", "anchor_ref")
        for anchor in self._context.control.anchors_at(checkpoint.label_curr, checkpoint.upto_seq):
            body = anchor.body
            assert isinstance(body, AnchorPublish)  # noqa: S101 - the index lists this kind only
            if (body.backend, body.anchor_ref) == (backend, anchor_ref):
                return anchor
        return await self._journal(checkpoint, backend, anchor_ref, request_id)

    async def _publish(self, checkpoint: Checkpoint, request_id: bytes | None = None) -> ControlRecord:
        """Anchor a checkpoint once; a repeated request gets the first record."""
        backend = self._services.anchors
        anchored = self._context.control.anchor(checkpoint.label_curr, checkpoint.upto_seq, backend.name)
        if anchored is not None:
            return anchored
        root, epoch, nonce = checkpoint.mmr_root, checkpoint.epoch, self._draw(NONCE_BYTES)
        try:
            anchor_ref = await in_thread(backend.publish, root, epoch, self._services.sequencer.now(), nonce)
        except (AnchorError, OSError) as exc:
            self._services.observer.on_anchor_failed()
            raise ApiError.unavailable(
                "the anchor backend did not accept the anchor; the log continues without it"
            ) from exc
        return await self._journal(checkpoint, backend.name, anchor_ref, request_id)

    async def _journal(
        self, checkpoint: Checkpoint, backend: str, anchor_ref: bytes, request_id: bytes | None
    ) -> ControlRecord:
        body = AnchorPublish(
            label=checkpoint.label_curr,
            upto_seq=checkpoint.upto_seq,
            mmr_root=checkpoint.mmr_root,
            backend=backend,
            anchor_ref=anchor_ref,
        )
        record = await self._context.journal(lambda hub_ts: body, request_id)
        assert record is not None  # noqa: S101 - `make` always returns a body
        self._services.observer.on_anchored()
        return record

    # --- by itself -------------------------------------------------------------------------------------

    async def run(self, every: Callable[[], int]) -> None:
        """Run until cancelled. Read the period on each pass: a reload may change it."""
        while True:
            await asyncio.sleep(every() or _IDLE_SECONDS)
            if every():
                await self.anchor_all()

    async def anchor_all(self) -> int:
        """Anchor each label that grew since its last anchor; return their number. Stop at the first failure of the
        backend."""
        done = 0
        async for head in self._order.iterate(0, cbor.U64_MAX, None):
            if head.size > self._context.control.last_anchored_seq(head.label):
                try:
                    await self._publish(self._context.latest_checkpoint(head))
                except VeenError:  # counted already, or the hub is stopping
                    break
                done += 1
        return done

    # --- reading ---------------------------------------------------------------------------------------

    async def _list(self, call: Call) -> Reply:
        """GET label, from: the anchors of a label beside their checkpoints, by upto_seq (ANC-04)."""
        files = self._context.files(hex_field(call.query, "label", 32))
        anchors: list[AnchoredCheckpoint] = []
        more = False
        first = uint_field(call.query, "from", 0)
        for record in self._context.control.anchors(files.label, first, _PAGE + 1):
            if len(anchors) == _PAGE:
                more = True
                break
            anchors.append(AnchoredCheckpoint(record=record, checkpoint=await self._checkpoint(files, record)))
            if len(anchors) % _TURN == 0:
                await asyncio.sleep(0)
        return self._api.replies.ok(AnchorsResponse(anchors=tuple(anchors), more=more), call.answer)

    async def _checkpoint(self, files: LabelFiles, record: ControlRecord) -> Checkpoint | None:
        assert isinstance(record.body, AnchorPublish)  # noqa: S101 - that is what was asked for
        if record.body.upto_seq > files.size:  # the log was cut back
            return None
        try:
            return await self._context.checkpoint(files, record.body.upto_seq)
        except ApiError:  # the key of that time was removed
            return None
