"""HTTP/1.1 for the API: one asyncio.Protocol per connection.

A submit costs no task; answers leave in the order of the requests, whenever they become ready. Submits of one
connection overlap; any other request waits for those before it and holds those behind it, so that a client which
pipelines sees its own writes.
"""

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import Final, cast

from veen.core.limits import Limits
from veen.hub.access import ANYBODY, Principal, network_of
from veen.hub.httpinput import Reader, Request
from veen.hub.pipeline import Outcome
from veen.hub.reply import ApiError, Reply
from veen.hub.responses import CONTINUE, LAST_CHUNK, chunk, head_of
from veen.hub.routes import SUBMIT
from veen.hub.server import HttpServer
from veen.hub.tls import names_of

__all__ = ["Connection"]

_MAX_DUE: Final = 64  # requests of one connection that are not answered yet
_LINGER_SEC: Final = 1.0  # how long a refused client may go on sending, so that it reads the answer
_NEVER: Final = float("inf")
_HEAD_END: Final = b"\r\n\r\n"
_log: Final = logging.getLogger(__name__)


class _Slot:
    """The place of one answer in the order of answers."""

    __slots__ = ("connection", "data", "request")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self.connection, self.request = connection, request
        self.data: bytes | None = None

    def submitted(self, outcome: Outcome | None) -> None:
        """The pipeline has decided about a submit."""
        request, connection = self.request, self.connection
        server = connection.server
        submits = server.api.submits
        if type(outcome) is bytes and request.keep_alive and request.answer == "cbor" and not request.http10:
            body = submits.answer(outcome)
            self.data = server.ok_head(len(body)) + body
        else:
            self.fill(submits.finish(outcome, request.answer))
        connection.flush()

    def fill(self, reply: Reply) -> None:
        request = self.request
        head = head_of(reply, self.connection.server.date, keep_alive=request.keep_alive, http10=request.http10)
        self.data = head if request.method == b"HEAD" else head + reply.body


class Connection(asyncio.Protocol):
    """One client. `deadline` is watched by the server, whose clock is coarse and cheap."""

    __slots__ = (
        "_advancing",
        "_alone",
        "_continue_due",
        "_held",
        "_peer_done",
        "_principal",
        "_queue",
        "_reader",
        "_reading",
        "_reserved",
        "_slots",
        "_started",
        "_task",
        "_writable",
        "deadline",
        "server",
        "transport",
    )

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.transport: asyncio.Transport
        self.deadline = _NEVER
        self._reader = Reader(self)
        self._alone = (b"", 0)  # if the request being read came alone and in one piece: its head, the size of its body
        self._principal = ANYBODY
        self._slots: deque[_Slot] = deque()
        self._queue: deque[Request] = deque()  # behind a request that runs alone
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self._continue_due = self._peer_done = self._advancing = self._held = False
        self._reserved = 0
        self._started = 0.0

    # --- transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        server = self.server
        self.deadline = server.now + server.settings.header_sec
        names = names_of(transport.get_extra_info("peercert"))
        peer = transport.get_extra_info("peername")
        self._principal = Principal(names=names, denied=server.is_denied(peer), address=network_of(peer))
        if not server.join(self):
            self._reader.ended = True
            self.reject(ApiError.unavailable("too many connections"), Request())

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.leave(self)
        self._reader.ended = True
        self._release()
        self._slots.clear()
        self._queue.clear()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        """A client may close its half and still wait for answers."""
        self._reader.ended = self._peer_done = True
        return self._busy()

    def pause_writing(self) -> None:
        self._writable.clear()
        self.deadline = self.server.now + self.server.settings.write_sec
        self._pace()

    def resume_writing(self) -> None:
        self._writable.set()
        self._rest()
        self._pace()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.ended:
            return
        if not reader.in_message:
            # Clients repeat themselves: a head that was understood once, its whole body behind it, needs no parser.
            head = data[: data.find(_HEAD_END) + 4]
            known = self.server.known(head)
            if known is not None and known.size == len(data) - len(head) and not self._queue and self._task is None:
                self._submit(known, data[len(head) :])
                if self._slots:
                    self.deadline = _NEVER
                if len(self._slots) >= _MAX_DUE:
                    self._pace()
                return
            self._alone = (head, len(data) - len(head))
        reader.feed(data)
        if reader.in_body:
            settings = self.server.settings
            self.deadline = min(self.server.now + settings.body_idle_sec, self._started + settings.request_sec)
        elif not reader.in_message:
            self._rest()
        self._pace()

    def _busy(self) -> bool:
        return bool(self._slots or self._queue)

    def _rest(self) -> None:
        """Between requests: while answers are due the client waits for us, otherwise we wait for the client."""
        if self._reader.in_message or not self._writable.is_set():
            return
        if self._busy():
            self.deadline = _NEVER
        elif not self._reader.ended:  # one that was told to go has its own deadline
            self.deadline = self.server.now + self.server.settings.keep_alive_sec

    def hold(self, held: bool) -> None:
        """Listen no more to a client that was turned away, or listen again."""
        self._held = held
        self._pace()

    def _pace(self) -> None:
        """Read on only while the client reads its answers, not too many are due and the hub has time for it."""
        due = len(self._slots) + len(self._queue)
        free = self._writable.is_set() and not self._held
        if self._reading:
            if due >= _MAX_DUE or not free:
                self._reading = False
                self.transport.pause_reading()
        elif due <= _MAX_DUE // 2 and free:
            self._reading = True
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def overdue(self) -> None:
        """The deadline has passed: an unfinished request is told so, an idle or stuck client is let go."""
        if self._reader.in_message and not self._reader.ended and self._writable.is_set():
            self._reader.ended = True
            self._reader.in_message = False
            self.deadline = _NEVER  # the answers before it may take their time
            self.reject(ApiError.timeout("the request took too long to arrive"), self._reader.request)
        elif self._writable.is_set() and not self._busy():
            self.transport.close()
        else:
            self.transport.abort()

    def drain(self) -> None:
        """The server stops: finish what is begun, take nothing new."""
        if not self._reader.in_message:
            self._reader.ended = True
            if not self._busy():
                self.transport.close()

    # --- what the reader tells ---------------------------------------------------------------------------

    def limits(self) -> Limits:
        return self.server.api.context.store.state.limits

    def begin_message(self) -> None:
        self._started = self.server.now
        self.deadline = self._started + self.server.settings.header_sec

    def begin_body(self, *, wants_continue: bool) -> None:
        if wants_continue:
            self._continue_due = True
            self._send_continue()

    def _send_continue(self) -> None:
        if self._continue_due and not self._busy():  # after the answers that are due, never between them
            self._continue_due = False
            self.transport.write(CONTINUE)

    def reserve(self, size: int) -> bool:
        if size > self._reserved:
            size = max(size, 2 * self._reserved)  # a body of unknown length grows in steps
            if not self.server.reserve(size - self._reserved):
                return False
            self._reserved = size
        return True

    def _release(self) -> None:
        if self._reserved:
            self.server.release(self._reserved)
            self._reserved = 0

    def reject(self, error: ApiError | None, request: Request) -> None:
        """Answer in turn, then close: the rest of what the client sends is not understood or not wanted."""
        self._release()
        request.keep_alive = False
        request.error = error
        self._queue.append(request)
        self._advance()

    def take(self, request: Request) -> None:
        self._release()
        self._continue_due = False
        if self.server.draining:
            request.keep_alive = False
            self._reader.ended = True
        if request.route is SUBMIT and not self._queue and self._task is None and self._is_plain(request):
            self.server.remember(*self._alone, request)
            self._submit(request, request.body)
        else:
            self._queue.append(request)
            self._advance()

    # --- order -------------------------------------------------------------------------------------------

    @staticmethod
    def _is_plain(request: Request) -> bool:
        """A submit in CBOR: it needs no task and may overlap with others."""
        return request.route is SUBMIT and request.form == "cbor" and request.error is None

    def _submit(self, request: Request, body: bytes) -> None:
        slot = _Slot(self, request)
        self._slots.append(slot)
        reply = self.server.api.submits.begin(
            body,
            slot.submitted,
            pow_header=request.header(b"veen-pow") if b"veen-pow" in request.headers else None,
            principal=self._principal,
            answer=request.answer,
        )
        if reply is not None:
            slot.fill(reply)
            self.flush()
            if reply.status == HTTPStatus.SERVICE_UNAVAILABLE and not self._reader.ended:
                self.server.hold(self)

    def _advance(self) -> None:
        """Start what may start now. Answers that are known at once come back here: a loop, not a recursion."""
        if self._advancing:
            return
        self._advancing = True
        try:
            self._start_next()
        finally:
            self._advancing = False

    def _start_next(self) -> None:
        while self._queue and self._task is None:
            request = self._queue[0]
            if (reply := self._known(request)) is not None:
                self._queue.popleft()
                slot = _Slot(self, request)
                slot.fill(reply)
                self._slots.append(slot)
                self.flush()
            elif self._is_plain(request):
                self._queue.popleft()
                self._submit(request, request.body)
            elif self._slots:
                return  # it waits for the answers before it
            else:
                self._queue.popleft()
                slot = _Slot(self, request)
                self._slots.append(slot)
                self._task = asyncio.get_running_loop().create_task(self._run(slot))

    def _known(self, request: Request) -> Reply | None:
        """The answer to a request that needs no operation."""
        api = self.server.api
        if request.error is not None:
            return api.replies.failed(request.error, request.answer)
        if request.route is SUBMIT and request.size > request.max_body:
            return api.submits.oversized(max(request.size - 4, 0), request.answer)
        return request.ready

    async def _run(self, slot: _Slot) -> None:
        """Any request but a plain submit."""
        request = slot.request
        assert request.route is not None  # noqa: S101 - a request without one has an error
        try:
            reply = await self.server.api.call(
                request.route.operation,
                request.body,
                form=request.form,
                answer=request.answer,
                pow_header=request.header(b"veen-pow"),
                cap_header=request.header(b"veen-cap"),
                last_event_id=request.header(b"last-event-id"),
                principal=self._caller(request),
                query=request.query,
            )
            if reply.stream is not None and request.method != b"HEAD":
                await self._stream(slot, reply)
            else:
                slot.fill(reply)
        except Exception:
            _log.exception("an answer could not be sent")  # a defect of ours; half an answer cannot be mended
            self.transport.abort()
        finally:
            self._task = None
        self.flush()

    def _caller(self, request: Request) -> Principal:
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token:
            return self._principal
        return replace(self._principal, bearer=token.strip())

    async def _stream(self, slot: _Slot, reply: Reply) -> None:
        """An answer without a known end: at the pace of the client, until it or the server goes."""
        request, stream = slot.request, reply.stream
        assert stream is not None  # noqa: S101 - asked before
        if request.http10:
            request.keep_alive = False
        self.transport.write(head_of(reply, self.server.date, keep_alive=request.keep_alive, http10=request.http10))
        async with aclosing(stream):
            async for data in stream:
                await self._writable.wait()
                if self.transport.is_closing():
                    break
                self.transport.write(chunk(data, request.http10))
        slot.data = b"" if request.http10 else LAST_CHUNK

    # --- out ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the answers that are ready and whose turn it is."""
        slots = self._slots
        ready: list[bytes] = []
        keep_alive = True
        while slots and (data := slots[0].data) is not None and self._task is None:
            ready.append(data)
            keep_alive = slots.popleft().request.keep_alive
            if not keep_alive:
                break
        if not ready or self.transport.is_closing():
            return
        self.transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if not keep_alive:
            self._leave()
            return
        if self._queue:
            self._advance()
        if self._continue_due:
            self._send_continue()
        if self._reader.ended and not self._busy():
            self._leave()
            return
        self._rest()
        if not self._reading:
            self._pace()

    def _leave(self) -> None:
        """Close, but not before the client had a chance to read: closing on unread input would reset it away."""
        self._reader.ended = True
        self._slots.clear()
        self._queue.clear()
        transport = self.transport
        if transport.can_write_eof() and not self._peer_done and not self.server.draining:
            transport.write_eof()
            self.deadline = self.server.now + _LINGER_SEC
            if not self._reading:
                self._reading = True
                transport.resume_reading()
        else:
            transport.close()
