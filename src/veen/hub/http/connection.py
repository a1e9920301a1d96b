"""HTTP/1.1 for the API: one asyncio.Protocol per connection.

A submit costs no task. Answers leave in the order of the requests, whatever the order in which they become ready.
Submits of one connection overlap. Any other request runs alone: it waits for the answers before it, and requests behind
it wait, so that a client that pipelines sees its own writes.

Memory is bounded by what clients read, not by what they request. Parsing stops at a number of unanswered requests, none
is started while the answers before it are unread, and large answers of all connections together are bounded.

The states of a connection and their transitions are tables in `states.py`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import Final, cast

from veen.core import cbor
from veen.core.limits import Limits
from veen.hub.api.access import ANYBODY, Principal
from veen.hub.api.reply import ApiError, Reply
from veen.hub.api.routes import SUBMIT, SUBMIT_BATCH
from veen.hub.http.request_input import Reader, Request, check_site
from veen.hub.http.server import CONTINUE, LAST_CHUNK, HttpServer, chunk, head_of
from veen.hub.http.states import InputEvent, InputState, OutputEvent, OutputState, after_output
from veen.hub.sequencer.sequencer import Outcome
from veen.io.addresses import network_of
from veen.io.shares import LARGE, ConnectionMemory, ConnectionSlot
from veen.io.tls import expiry_of, names_of

_MAX_DUE: Final = 64  # requests of one connection that are not answered yet
_PIECE_BYTES: Final = 4 * 1024  # of input that is parsed before the number of due requests is checked again
_BODY_BYTES: Final = 64 * 1024  # instead, within a body of known length
_CHUNKED_BYTES: Final = 512  # instead, within a chunked body: a hundred chunks at most, not a thousand
_PARSE_SEC: Final = 0.002  # for one request, and for each byte of its body; a client that sends tiny chunks and takes
_PARSE_SEC_PER_BYTE: Final = 20e-9  # more waits for its turn. The parser needs about 1 ns for a byte.
_CONNECT: Final = 3  # accepting, opening and closing a connection takes this many times as long as `connection_made`
_LINGER_SEC: Final = 1.0  # for the client to read the last answer before the socket is closed
_NEVER: Final = float("inf")
_HEAD_END: Final = b"\r\n\r\n"
_WRITES: Final = {"submit", "submit_batch", "authorize"}  # not delayed in favour of writers
_PROMPT: Final = {"healthz", "readyz"}  # never delayed: a supervisor that gets no answer ends the hub
_log: Final = logging.getLogger(__name__)
# Read for every request: a global name costs a tenth of the access to a member of an Enum.
_IDLE: Final = InputState.IDLE
_HEAD: Final = InputState.HEAD
_BODY: Final = InputState.BODY
_ENDED: Final = InputState.ENDED
_OPEN: Final = OutputState.OPEN
_STALLED: Final = OutputState.STALLED


class _Answer:
    """The answer to one request, in the queue of answers. Owned by the event loop's thread.

    `data` is None until the answer is ready; it is set once and never changed. `connection` may be lost before.
    """

    __slots__ = ("connection", "data", "request", "submit_sec", "tail")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self.connection, self.request = connection, request
        self.data: bytes | None = None
        self.submit_sec = 0.0  # the time of a submit until the sequencer had it
        self.tail = b""  # the body behind `data`, if it is too large to be copied

    def on_outcome(self, outcome: Outcome | None) -> None:
        """Set the answer of a submit once the sequencer has decided."""
        request, connection = self.request, self.connection
        server = connection.server
        submits = server.api.submits
        if type(outcome) is bytes and request.keep_alive and request.answer == "cbor" and not request.http10:
            body = submits.answer(outcome)
            self.data = server.ok_head(len(body)) + body
        else:
            began = server.priority.clock()
            self.fill(submits.finish(outcome, request.answer))
            if type(outcome) is not bytes:
                connection.charge(began - 2 * self.submit_sec)  # the decision took about as long as the submit
        connection.flush()

    def fill(self, reply: Reply) -> None:
        request = self.request
        head = head_of(reply, self.connection.server.date, keep_alive=request.keep_alive, http10=request.http10)
        if request.method == b"HEAD":
            self.data = head
        elif len(reply.body) > LARGE:
            self.data, self.tail = head, reply.body
        else:
            self.data = head + reply.body


class Connection(asyncio.Protocol):
    """One client. Every field belongs to the event loop's thread.

    Legal together:
        - `_reader.state` and `output`: see `states.is_legal`.
        - `_task` runs: `_answers` holds the answer it makes, and nothing else.
        - `_queue` is not empty: its first request may not start yet (see `_may_start`, or an answer is due).
        - `_unparsed` is not empty: the transport does not read, unless `_peer_done`.
        - `_peer_done`: the input has ended, or ends as soon as `_unparsed` is empty.
        - `output` is FLUSHING, LINGERING or LOST: no request is queued, no answer is due, nothing is unparsed.
    """

    __slots__ = (
        "_advancing",
        "_answers",
        "_continue_due",
        "_feeding",
        "_memory",
        "_on_hold",
        "_parse_sec",
        "_peer_done",
        "_principal",
        "_queue",
        "_reader",
        "_reading",
        "_resumed",
        "_slot",
        "_sole_head",
        "_started",
        "_task",
        "_unparsed",
        "deadline",
        "expires",
        "output",
        "server",
        "transport",
    )

    def __init__(self, server: HttpServer, slot: ConnectionSlot | None = None) -> None:
        """Create the protocol of one client. `slot` is released when the connection is lost; without one it counts
        for no address."""
        self.server, self._slot = server, slot
        self.transport: asyncio.Transport  # from connection_made on; paused and resumed only here, see `_reading`
        self.output: OutputState = _OPEN  # changed only by `_change_output`
        self.deadline = _NEVER  # by the server's coarse clock, which calls `on_overdue` after it
        self.expires = _NEVER  # end of the client's certificate, by the wall clock
        self._memory = ConnectionMemory("", server.bodies, server.answers)  # with the address from connection_made on
        self._principal = ANYBODY  # the caller; from connection_made on
        # InputState: bytes, then requests.
        self._reader = Reader(self)
        self._reading = True  # True while the transport reads
        self._peer_done = False  # the client closed its half
        self._unparsed = b""  # input that waits until fewer requests are due
        self._feeding = False  # within `_feed`: callbacks of the parser must not feed it again
        self._started = 0.0  # start of the request that is being read, by the server's clock
        self._parse_sec = 0.0  # parsing time of the request that is being read, without its first and last piece
        self._continue_due = False  # the client waits for "100 Continue"
        # While the first request of the last input is read: that input up to its first empty line, and the bytes after
        # it.
        self._sole_head: tuple[bytes, int] | None = None
        # Requests, then answers.
        self._queue: deque[Request] = deque()  # complete and not started
        self._answers: deque[_Answer] = deque()  # started, in the order of their requests
        self._task: asyncio.Task[None] | None = None  # of the request that runs alone
        self._advancing = False  # within `_advance`: an answer that is ready at once must not start the next request
        self._on_hold = False  # set by the server (`hold`): neither read nor start anything
        self._resumed: asyncio.Future[None] | None = (
            None  # set when the output is no longer STALLED; `_task` waits for it
        )

    # --- transport ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        server = self.server
        began = server.priority.clock()
        self.deadline = server.now + server.settings.header_sec
        certificate = transport.get_extra_info("peercert")
        self.expires = expiry_of(certificate)
        peer = transport.get_extra_info("peername")
        self._principal = Principal(
            names=names_of(certificate), denied=server.is_denied(peer), address=network_of(peer)
        )
        self._memory = ConnectionMemory(self._principal.address, server.bodies, server.answers)
        server.join(self)
        if self._slot is not None and self._slot.refusal is not None:
            self._reader.advance(InputEvent.REFUSE)
            self.reject(ApiError.unavailable(self._slot.refusal), Request())
        server.priority.charge(_CONNECT * (server.priority.clock() - began))

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.leave(self)
        self._reader.advance(InputEvent.STOP)
        self._change_output(OutputEvent.LOSE)
        self._memory.release_all()
        self._unparsed = b""
        if self._slot is not None:
            self._slot.release()
        self._answers.clear()
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    def eof_received(self) -> bool:
        """Keep the connection while answers are due: a client may close its half and still wait for them."""
        self._peer_done = True
        if not self._unparsed:
            self._reader.advance(InputEvent.CLIENT_EOF)
            self._set_deadline()
        if self._busy() or self._unparsed:
            return True
        self.close()
        return False

    def pause_writing(self) -> None:
        self._change_output(OutputEvent.STALL)
        self.deadline = self.server.now + self.server.settings.write_sec
        self._pause_or_resume_reading()

    def resume_writing(self) -> None:
        self._change_output(OutputEvent.RESUME)
        self._memory.release_answers()
        if self.output is OutputState.LINGERING:  # until now the client was reading the last answer
            self.deadline = self.server.now + _LINGER_SEC
            return
        self._set_deadline()
        self._advance()
        self._pause_or_resume_reading()

    def _change_output(self, event: OutputEvent) -> None:
        self.output = after_output(self.output, event)
        if self._resumed is not None and self.output is not _STALLED:
            if not self._resumed.done():  # its task may have been cancelled
                self._resumed.set_result(None)
            self._resumed = None

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.state is _ENDED:
            return
        self._sole_head = None
        if self._unparsed:  # input that was on its way when reading paused
            data, self._unparsed = self._unparsed + data, b""
        elif reader.state is _IDLE:
            # Clients repeat their heads: a head that was parsed once, followed by its whole body, needs no parser.
            head = data[: data.find(_HEAD_END) + 4]
            request, proof = self.server.find_remembered(head), None
            if request is None and len(data) > len(head):
                request, proof = self.server.find_similar(head)
            if request is not None and request.size == len(data) - len(head) and not self._queue and self._may_start():
                self._submit(request, data[len(head) :], proof)
                if self._answers:
                    self.deadline = _NEVER
                if len(self._answers) >= _MAX_DUE:
                    self._pause_or_resume_reading()
                return
            self._sole_head = (head, len(data) - len(head))
        self._feed(data)
        self._pause_or_resume_reading()

    def _feed(self, data: bytes) -> None:
        """Parse until enough requests are due. The rest waits in `_unparsed`, and reading pauses."""
        reader, start = self._reader, 0
        self._feeding, progress = True, False
        clock = self.server.priority.clock
        try:
            while start < len(data) and reader.state is not _ENDED and self._due() < _MAX_DUE and self._may_read():
                request, began = reader.request, clock()
                missing = min(reader.missing_bytes, _BODY_BYTES)  # a piece of nothing but a body ends no other request
                size = _CHUNKED_BYTES if reader.in_chunks else max(missing, _PIECE_BYTES)
                reader.feed(data[start : start + size])
                progress = progress or reader.progress
                start += size
                if reader.request is request and reader.in_message:  # neither the begin nor the end of a request
                    self._parse_sec += clock() - began
                    fair_sec = _PARSE_SEC + request.size * _PARSE_SEC_PER_BYTE
                    self.charge(began, hold=self._parse_sec > fair_sec)
        finally:
            self._feeding = False
        self._keep_unparsed(data[start:])
        if self._unparsed:
            self.deadline = _NEVER if self.output is _OPEN else self.deadline  # the client waits for the hub
        elif reader.state is _BODY:
            settings = self.server.settings
            self.deadline = min(self.server.now + settings.body_idle_sec, self._started + settings.request_sec)
        elif reader.state is not _HEAD and progress:  # empty lines buy no time
            self._set_deadline()

    def _keep_unparsed(self, rest: bytes) -> None:
        self._forget_unparsed()
        if not rest or self._reader.state is _ENDED:
            return
        if not self._memory.take_unparsed(len(rest)):
            self._reader.advance(InputEvent.REFUSE)
            self.reject(ApiError.unavailable("too much is being sent at once"), Request())
            return
        self._unparsed = rest

    def _forget_unparsed(self) -> None:
        self._unparsed = b""
        self._memory.release_unparsed()

    def _due(self) -> int:
        return len(self._answers) + len(self._queue)

    def _may_read(self) -> bool:
        """Return True if the client reads its answers and the server does not hold the connection."""
        return self.output is _OPEN and not self._on_hold

    @property
    def is_idle(self) -> bool:
        """True if closing the connection loses nothing: no request is being read or answered."""
        return not self._reader.in_message and not self._busy() and not self._unparsed

    def _busy(self) -> bool:
        return bool(self._answers or self._queue)

    def _set_deadline(self) -> None:
        """Set the deadline between requests. While answers are due the client waits for the hub, otherwise the hub
        for the client."""
        if self._reader.in_message or self.output is not _OPEN:
            return
        if self._busy():
            self.deadline = _NEVER
        elif self._reader.state is not _ENDED:
            self.deadline = self.server.now + self.server.settings.keep_alive_sec

    def hold(self, on_hold: bool) -> None:
        """Stop reading from this client and starting its requests, or continue."""
        self._on_hold = on_hold
        if not on_hold:
            self._advance()
        self._pause_or_resume_reading()

    def _may_start(self) -> bool:
        """Return True if the next request may start: none runs alone, the client reads, the server does not hold it."""
        return self._task is None and self.output is _OPEN and not self._on_hold

    def charge(self, began: float, *, hold: bool = True) -> None:
        """Charge the work since `began`, which led to no accepted message. With `hold`, this client waits for its
        turn, too."""
        priority = self.server.priority
        priority.charge(2 * (priority.clock() - began))  # receiving, parsing and sending cost as much again
        if hold and priority.delay() and not self._on_hold and self._reader.state is not _ENDED:
            self.server.delay(self)

    def _pause_or_resume_reading(self) -> None:
        """Read only while the client reads its answers, few enough are due and the server does not hold the
        connection."""
        if self._feeding or (self.output is not _OPEN and self.output is not _STALLED):
            return  # `_feed` calls this afterwards; a connection that ends keeps reading, and drops the input
        while self._unparsed and self._due() <= _MAX_DUE // 2 and self._may_read():
            if self._reader.in_message:
                self._started = self.server.now  # until now the client waited for the hub
                self.deadline = self._started + self.server.settings.header_sec
            self._sole_head = None
            self._feed(self._unparsed)
            if self._peer_done and not self._unparsed:
                self._reader.advance(InputEvent.CLIENT_EOF)
                if not self._busy():
                    self._leave()
                    return
        free = self._may_read() and not self._unparsed
        if self._reading:
            if self._due() >= _MAX_DUE or not free:
                self._reading = False
                self.transport.pause_reading()
        elif self._due() <= _MAX_DUE // 2 and free and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def on_overdue(self) -> None:
        """Handle a deadline that has passed: answer an unfinished request with a timeout, close an idle or stuck
        connection."""
        if self.output is OutputState.LINGERING:
            self.close()
        elif self.output is not _OPEN:  # the client does not read
            self.abort()
        elif not self._reading:
            self.deadline = self.server.now + self.server.settings.header_sec  # the client waits for the hub
        elif self._reader.in_message:
            self._reader.advance(InputEvent.REFUSE)
            self.deadline = _NEVER  # the answers before it may take their time
            self.reject(ApiError.timeout("the request took too long to arrive"), self._reader.request)
        elif not self._busy():
            self.close()
        else:
            self.abort()

    def drain(self) -> None:
        """Finish the requests that have begun and read no new one, because the server stops."""
        self._reader.advance(InputEvent.DRAIN)
        if self._reader.state is _ENDED and not self._busy():
            self.close()

    def close(self) -> None:
        """Send what the transport has, then close. Requests without an answer are dropped."""
        self._reader.advance(InputEvent.STOP)
        self._change_output(OutputEvent.CLOSE)
        self.deadline = self.server.now + self.server.settings.write_sec  # for a client that does not read
        self.transport.close()

    def abort(self) -> None:
        """Close at once. Answers that the client has not read are dropped."""
        self._reader.advance(InputEvent.STOP)
        self._change_output(OutputEvent.CLOSE)
        self.transport.abort()

    @property
    def is_denied(self) -> bool:
        """True if the filter on addresses refused the client when it connected."""
        return self._principal.denied

    def dismiss(self) -> None:
        """Answer submits that the sequencer has and drop everything else, because the client is no longer trusted."""
        if self._task is None and not self._reader.in_message:
            self.drain()
        else:
            self.close()

    # --- callbacks of the reader -------------------------------------------------------------------------

    def limits(self) -> Limits:
        return self.server.api.context.limits

    def screen(self, request: Request) -> None:
        check_site(request.method, request.headers, loopback_only=self.server.settings.loopback_only)

    def begin_message(self) -> None:
        self._started, self._parse_sec = self.server.now, 0.0
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
        return self._memory.reserve_body(size)

    def reject(self, error: ApiError | None, request: Request) -> None:
        """Answer after the answers that are due, then close. The input has ended."""
        self._memory.release_body()
        request.keep_alive = False
        request.error = error
        self._queue.append(request)
        self._advance()

    def take(self, request: Request) -> None:
        self._memory.release_body()
        self._continue_due = False
        sole_head, self._sole_head = self._sole_head, None  # the next input is another request
        if self.server.draining:
            request.keep_alive = False
            self._reader.advance(InputEvent.DRAIN)
        if self._is_plain(request) and not self._queue and self._may_start():
            if sole_head is not None:
                self.server.remember(*sole_head, request)
            self._submit(request, request.body, request.header(b"veen-pow"))
        else:
            self._queue.append(request)
            self._advance()

    # --- order -------------------------------------------------------------------------------------------

    @staticmethod
    def _is_plain(request: Request) -> bool:
        """Return True for a submit in CBOR, which needs no task and may overlap with others."""
        return request.route is SUBMIT and request.form == "cbor" and request.error is None

    def _submit(self, request: Request, body: bytes, pow_header: str | None) -> None:
        answer = _Answer(self, request)
        self._answers.append(answer)
        began = self.server.priority.clock()
        reply = self.server.api.submits.begin(
            body,
            answer.on_outcome,
            pow_header=pow_header,
            principal=self._principal,
            answer=request.answer,
        )
        answer.submit_sec = self.server.priority.clock() - began
        if reply is not None:
            answer.fill(reply)
            self.flush()
            if reply.status == HTTPStatus.SERVICE_UNAVAILABLE and self._reader.state is not _ENDED:
                self.server.hold(self)
            else:
                self.charge(began)

    def _advance(self) -> None:
        """Start the requests that may start now. A nested call, made by an answer that is ready, does nothing."""
        if self._advancing:
            return
        self._advancing = True
        try:
            self._start_next()
        finally:
            self._advancing = False

    def _start_next(self) -> None:
        while self._queue and self._may_start():
            request = self._queue[0]
            began = self.server.priority.clock()
            if (reply := self._immediate_reply(request)) is not None:
                self._queue.popleft()
                answer = _Answer(self, request)
                answer.fill(reply)
                self._answers.append(answer)
                self.flush()
                self.charge(began)
            elif self._is_plain(request):
                self._queue.popleft()
                self._submit(request, request.body, request.header(b"veen-pow"))
            elif self._answers:
                return  # it waits for the answers before it
            else:
                self._queue.popleft()
                answer = _Answer(self, request)
                self._answers.append(answer)
                self._task = asyncio.get_running_loop().create_task(self._run(answer))

    def _immediate_reply(self, request: Request) -> Reply | None:
        """Return the answer to a request that needs no operation; None if it needs one."""
        api = self.server.api
        if request.error is not None:
            return api.replies.of_error(request.error, request.answer)
        if request.route is SUBMIT and request.size > request.max_body:
            return api.submits.refuse_oversized(max(request.size - 4, 0), request.answer)
        if request.route is not None and request.route.large and not self._has_answer_room():
            return api.replies.of_error(_too_much_unread(), request.answer)
        return request.ready

    async def _run(self, answer: _Answer) -> None:
        """Run the operation of any request but a plain submit."""
        request, priority = answer.request, self.server.priority
        assert request.route is not None  # noqa: S101 - a request without one has an error
        writes = request.route.operation in _WRITES
        try:
            if not writes and request.route.operation not in _PROMPT and priority.delay():
                await priority.wait()
            calling = self.server.api.call(
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
            reply = await (calling if writes else priority.charge_for(calling))
            if reply.stream is not None and request.method != b"HEAD":
                await self._stream(answer, reply)
            else:
                answer.fill(self._count_answer(request, reply))
        except asyncio.CancelledError:
            if self.output is not OutputState.LOST:  # only a lost connection cancels its task
                _log.exception("operation %s was cancelled on a connection that is open", request.route.operation)
                self.abort()
            raise
        except Exception:
            _log.exception("an answer could not be sent")  # a fault of the hub; half an answer cannot be completed
            self.abort()
        finally:
            self._task = None
        began = priority.clock()
        self.flush()
        if not writes:  # a large answer is copied to the kernel
            priority.charge(priority.clock() - began)

    def _caller(self, request: Request) -> Principal:
        authorization = request.headers.get(b"authorization")
        if authorization is None:
            return self._principal
        scheme, _, token = authorization.partition(b" ")
        return replace(self._principal, bearer=token.strip() if scheme.lower() == b"bearer" else b"")

    async def _stream(self, answer: _Answer, reply: Reply) -> None:
        """Write an answer without a known end, as fast as the client reads, until the client or the server ends it."""
        request, stream = answer.request, reply.stream
        assert stream is not None  # noqa: S101 - asked before
        request.keep_alive = False  # the client connects again for other requests; an idle connection costs the hub
        self.transport.write(head_of(reply, self.server.date, keep_alive=request.keep_alive, http10=request.http10))
        async with aclosing(stream):
            while True:
                await self._until_writable()  # before the next piece is made
                if self.server.priority.delay():
                    await self.server.priority.wait()
                data = await self.server.priority.charge_for(_next_of(stream))
                if data is None or self.transport.is_closing() or not self._memory.take_answer(len(data)):
                    break  # no room for it: the client must connect again
                began = self.server.priority.clock()
                self.transport.write(chunk(data, request.http10))
                self.server.priority.charge(self.server.priority.clock() - began)
                if self.output is _OPEN:
                    self._memory.release_answers()
        answer.data = b"" if request.http10 else LAST_CHUNK

    async def _until_writable(self) -> None:
        while self.output is _STALLED:
            self._resumed = asyncio.get_running_loop().create_future()
            await self._resumed

    # --- unread answers ----------------------------------------------------------------------------------

    def _has_answer_room(self) -> bool:
        """Return True if the largest answer would fit. Checked before a large answer is made, which takes time."""
        return self._memory.has_answer_room(cbor.MAX_ITEM_BYTES)

    def _count_answer(self, request: Request, reply: Reply) -> Reply:
        """Return `reply`, or a refusal in its place if the hub already holds too many bytes for slow readers."""
        size = 0 if request.method == b"HEAD" else len(reply.body)
        assert request.route is not None  # noqa: S101 - it was called
        if self._memory.take_answer(size, always=request.route is SUBMIT_BATCH):  # receipts are never withheld
            return reply
        return self.server.api.replies.of_error(_too_much_unread(), request.answer)

    # --- out ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the answers that are ready, in the order of their requests."""
        answers = self._answers
        ready: list[bytes] = []
        keep_alive = True
        while answers and (data := answers[0].data) is not None and self._task is None:
            answer = answers.popleft()
            ready.append(data)
            if answer.tail and not self.transport.is_closing():
                self.transport.write(b"".join(ready))
                ready = [answer.tail]
            keep_alive = answer.request.keep_alive
            if not keep_alive:
                break
        if not ready or self.transport.is_closing():
            return
        self.transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        if self.output is _OPEN:
            self._memory.release_answers()
        if not keep_alive:
            self._leave()
            return
        if self._queue:
            self._advance()
        if self._continue_due:
            self._send_continue()
        if self._reader.state is _ENDED and not self._busy():
            self._leave()
            return
        self._set_deadline()
        if not self._reading:
            self._pause_or_resume_reading()

    def _leave(self) -> None:
        """End the connection after the last answer.

        Closing a socket with unread input resets it, and the client would lose that answer. So the hub closes its
        half first and keeps reading for a while.
        """
        self._reader.advance(InputEvent.STOP)
        self._forget_unparsed()
        self._answers.clear()
        self._queue.clear()
        transport = self.transport
        if not transport.can_write_eof() or self._peer_done or self.server.draining:
            self.close()
            return
        self._change_output(OutputEvent.HALF_CLOSE)
        wait_sec = self.server.settings.write_sec if self.output is OutputState.FLUSHING else _LINGER_SEC
        self.deadline = self.server.now + wait_sec
        transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()


async def _next_of(stream: AsyncGenerator[bytes, None]) -> bytes | None:
    """Return the next piece; None after the last."""
    return await anext(stream, None)


def _too_much_unread() -> ApiError:
    return ApiError.unavailable("too many answers wait for clients that do not read them")
