"""The API of a hub, for every transport alike (spec §10, 001 spec-1 §16).

A transport reads bytes and uses one of two entry points: `submits.begin`, which starts an admission without a task of
its own, because thousands come in a second; and `call`, for everything. Nothing here knows HTTP, but for the status
numbers that spec §10.6 itself names.

The rate at which one reader is served (001 COMP0.3): bulk reading must not displace writers.

Bytes that a reader was sent count as seconds of its rate. A reader that is more than a second ahead is refused with
the time of its next turn; an answer that has begun is never cut short. Readers that owe nothing are forgotten, so
memory is bounded by the readers of the last seconds.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from veen.core.errors import ApiCode
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
)
from veen.core.objects.receipt import Receipt
from veen.core.wire import Wire
from veen.hub.api.access import ANYBODY, Principal, Role
from veen.hub.api.calls import ApiContext, Call, Services, not_found
from veen.hub.api.pages import encode_page, open_page, page_bounds
from veen.hub.api.reply import ApiError, Form, Replies, Reply
from veen.hub.api.submits import Submits
from veen.hub.sequencer.sequencer import NotDurable, NotPrimary, Overloaded, Stopped
from veen.io.errors import CorruptError, StorageError
from veen.storage.reader import PrunedError

_AHEAD_SEC: Final = 1.0  # seconds of its rate that a reader may be ahead
_LEAST_BYTES: Final = 1024  # the least that an answer counts as: a small one is work, too
_SWEEP: Final = 1024  # readers, until those that owe nothing are removed


class ReadRateLimiter:
    """The readers that were served lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._even_at: dict[str, float] = {}  # time at which each reader owes nothing again
        self._sweep_at = _SWEEP

    async def serve(self, reader: str, rate: int, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """Return the reply of `answer` if the reader's turn has come; raise ApiError if not. `rate` is in bytes per
        second."""
        early = self._early(reader)
        if early > 0:
            message = "this reader has used up its rate for now"
            raise ApiError(ApiCode.RATE, message, detail={"bytes_per_second": rate}, retry_after=math.ceil(early))
        reply = await answer()
        if reply.stream is not None:
            reply.stream = self._pace(reader, rate, reply.stream)
        else:
            self._count(reader, rate, len(reply.body))
        return reply

    async def _pace(self, reader: str, rate: int, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Pass on an answer without a known end, and wait between its pieces instead of refusing."""
        try:
            async for data in stream:
                yield data
                self._count(reader, rate, len(data))
                await asyncio.sleep(max(self._early(reader), 0.0))
        finally:
            await stream.aclose()

    def _early(self, reader: str) -> float:
        return self._even_at.get(reader, 0.0) - self._clock() - _AHEAD_SEC

    def _count(self, reader: str, rate: int, size: int) -> None:
        now = self._clock()
        self._even_at[reader] = max(self._even_at.get(reader, now), now) + max(size, _LEAST_BYTES) / rate
        if len(self._even_at) >= self._sweep_at:
            self._even_at = {name: at for name, at in self._even_at.items() if at > now}
            self._sweep_at = max(_SWEEP, 2 * len(self._even_at))  # a sweep stays cheap even if many owe something


Handler = Callable[[Call], Awaitable[Reply]]

_log: Final = logging.getLogger(__name__)


class Api:
    """All operations by name; `submit`, `stream`, `receipt`, `proof` and `checkpoint` are those of spec §10.1."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.context = ApiContext(services)
        self.replies = Replies(services.observer.on_failed)
        self.submits = Submits(self.context, self.replies)
        self._limiter = ReadRateLimiter()
        self._closing: list[Callable[[], None]] = []
        self._reloading: list[Callable[[], None]] = []
        self._finishing: list[Callable[[], Awaitable[None]]] = []
        self._operations: dict[str, tuple[Role, Handler]] = {
            "submit": (Role.ANY, self.submits.submit),
            "stream": (Role.READ, self._stream),
            "receipt": (Role.READ, self._receipt),
            "proof": (Role.READ, self._proof),
            "checkpoint": (Role.READ, self._checkpoint),
        }

    def add(self, operations: Mapping[str, tuple[Role, Handler]]) -> None:
        """Add operations beyond the data plane."""
        self._operations.update(operations)

    def on_close(self, closing: Callable[[], None]) -> None:
        """Register a function that ends waits when the hub stops."""
        self._closing.append(closing)

    def on_finish(self, finishing: Callable[[], Awaitable[None]]) -> None:
        """Register a wait for tasks that continue without their caller and must end before the sequencer closes."""
        self._finishing.append(finishing)

    async def finish(self) -> None:
        for finishing in self._finishing:
            await finishing()

    def on_reload(self, reloading: Callable[[], None]) -> None:
        """Register a function that checks rights again after a change of the configuration."""
        self._reloading.append(reloading)

    def notify_reload(self) -> None:
        for reloading in self._reloading:
            reloading()

    def close(self) -> None:
        for closing in self._closing:
            closing()
        self.context.close()

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        form: Form = "cbor",
        answer: Form | None = None,
        pow_header: str | None = None,
        cap_header: str | None = None,
        last_event_id: str | None = None,
        principal: Principal = ANYBODY,
        query: Mapping[str, str] | None = None,
    ) -> Reply:
        """Run one operation. Whatever the input, the outcome is a reply."""
        call = Call(
            operation=operation,
            body=body,
            form=form,
            answer=answer or form,
            pow_header=pow_header,
            cap_header=cap_header,
            last_event_id=last_event_id,
            principal=principal,
            query=query or {},
        )

        def reply_to(error: ApiError) -> Reply:
            return self.replies.of_error(error, call.answer, operation=operation, address=principal.address)

        try:
            return await self._run(call)
        except ApiError as exc:
            return reply_to(exc)
        except NotPrimary as exc:
            return self.replies.of_refusal(exc.refuse(), call.answer)
        except PrunedError as exc:
            pruned = not_found(str(exc), reason="pruned", stream_seq=exc.stream_seq)
            return reply_to(pruned)
        except (NotDurable, Overloaded, Stopped, StorageError) as exc:
            return reply_to(ApiError.unavailable(str(exc)))
        except CorruptError as exc:
            _log.error("operation %s met a damaged file: %s", operation, exc)
            damaged = ApiError(ApiCode.UNAVAILABLE, "the hub cannot read what it stored", detail={"reason": "corrupt"})
            return reply_to(damaged)
        except Exception:  # a fault of the hub must not end the connection, nor show internals to the client
            _log.exception("operation %s failed", operation)
            defect = ApiError(ApiCode.UNAVAILABLE, "the hub failed on this request", status=500)
            return reply_to(defect)

    async def _run(self, call: Call) -> Reply:
        entry = self._operations.get(call.operation)
        if entry is None:
            raise not_found("no such operation")
        role, handler = entry
        access = self.services.access
        self.context.check_role(role, call.principal)
        if call.principal.denied and call.operation not in ("submit", "submit_batch"):  # those have their own code
            raise ApiError(ApiCode.FORBIDDEN, "requests from this address are refused")
        if role is Role.READ and (rate := access.read_bytes_per_second) and (reader := access.reader(call.principal)):
            return await self._limiter.serve(reader, rate, partial(handler, call))
        return await handler(call)

    # --- spec §10.4.2 … §10.4.5 --------------------------------------------------------------------------

    async def _stream(self, call: Call) -> Reply:
        request = self.context.read(call, StreamRequest)
        files = self.context.files(request.label)
        start = request.from_seq if request.cursor is None else request.cursor
        first, last, count = page_bounds(files, start, request.to_seq, request.max_items)
        async with open_page(self.context, files, first, last, count) as page:
            head = StreamResponse(
                label=request.label,
                from_seq=first,
                to_seq=request.to_seq,
                items=(),
                next_cursor=page.next_cursor,
                mmr_proof=page.proof(self.context, files) if request.with_mmr_proof else None,
                server_version=self.services.server_version,
            )
            return await encode_page(self.context, head, page, call.answer, with_receipts=bool(request.with_receipts))

    async def _receipt(self, call: Call) -> Reply:
        request = self.context.read(call, ReceiptRequest)
        files = self.context.entry(request.label, request.stream_seq)
        receipt = Receipt.from_bytes(await self.context.receipt(files, request.stream_seq))
        return self._ok(ReceiptResponse(receipt=receipt, server_version=self.services.server_version), call)

    async def _proof(self, call: Call) -> Reply:
        request = self.context.read(call, ProofRequest)
        files = self.context.entry(request.label, request.stream_seq)
        started = time.perf_counter()
        proof = self.context.proofs.prove(files, request.stream_seq)
        self.services.observer.on_proved(time.perf_counter() - started)
        return self._ok(ProofResponse(mmr_proof=proof, server_version=self.services.server_version), call)

    async def _checkpoint(self, call: Call) -> Reply:
        request = self.context.read(call, CheckpointRequest)
        files = self.context.entry(request.label, request.upto_seq, "upto_seq")
        checkpoint = await self.context.checkpoint(files, request.upto_seq)
        return self._ok(CheckpointResponse(checkpoint=checkpoint, server_version=self.services.server_version), call)

    def _ok(self, answer: Wire, call: Call) -> Reply:
        return self.replies.ok(answer, call.answer)
