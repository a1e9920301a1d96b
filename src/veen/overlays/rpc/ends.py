"""The calling end of RPC0: send a request, wait for its answer, call again if need be (001 spec-1 RPC0.1 … RPC0.4).

It speaks through a `Link`, so a `veen.client.Client` or a log in memory will do. Requests and answers are ordinary
messages: sealed, receipted and in the log, for anyone with the key to audit (`rpc.RpcFold`).

The server of RPC0: it carries out requests in the order of the log, each once (001 spec-1 RPC0.2, RPC0.3, D-86).
"""

import asyncio
import contextlib
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.lru import Lru
from veen.overlays.framework.link import Link, Stream, send
from veen.overlays.framework.schema import Draft, Issue, Typed, decode
from veen.overlays.rpc.messages import (
    CALL,
    EXPIRED,
    REPLY,
    CallKey,
    RpcFault,
    RpcReply,
    RpcRequest,
    call,
    call_key,
    deadline_of,
    refuse,
)

_EARLY: Final = 1_024  # answers that came before their call was known to have been sent


class NoAnswer(VeenError, code="RPC.NO_ANSWER"):
    """No answer in time. The call may still run: call again with the same idem, or read the log."""

    def __init__(self, method: str, msg_id: bytes) -> None:
        super().__init__(method, msg_id)
        self.method, self.msg_id = method, msg_id

    def __str__(self) -> str:
        return f"{self.code}: no answer to {self.method} (call {self.msg_id.hex()})"


class RpcFailed(VeenError):
    """A refusal by the server. Handlers raise it; callers get it with the same code."""

    code = "RPC.INTERNAL"  # an error has the server's own, which may be one of its application

    def __init__(self, code: str, detail: str | None = None) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return self.code if self.detail is None else f"{self.code}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waiting times between calls: `first` seconds, then `factor` times as long each time."""

    first: float = 1.0
    factor: float = 2.0
    longest: float = 60.0

    def wait(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt; attempts are numbered from 0."""
        return min(self.first * self.factor ** min(attempt, 64), self.longest)


class Caller:
    """Calls through one stream; answers come back on it, or on `reply_to`.

    One task follows the stream of answers and hands each to whoever waits for it, so many calls may be open at once.
    `servers` are the client_ids whose answers count; without it anyone who may write to the stream may answer.
    """

    def __init__(
        self,
        link: Link,
        stream: Stream,
        *,
        reply_to: bytes | None = None,
        reply_from: int = 1,
        servers: Collection[bytes] | None = None,
    ) -> None:
        self._link, self._stream, self._reply_to, self._reply_from = link, stream, reply_to, reply_from
        self._servers = None if servers is None else frozenset(servers)
        self._waiting: dict[bytes, asyncio.Future[RpcReply]] = {}
        self._early: Lru[bytes, RpcReply] = Lru(_EARLY)
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError, VeenError):
                await self._listener

    async def call(
        self,
        method: str,
        args: Any = None,
        *,
        timeout: float = 30.0,  # noqa: ASYNC109 - it is part of the message too, not only of the waiting
        idem: int | None = None,
        backoff: Backoff | None = None,
    ) -> Any:
        """Return the result. Raise RpcFailed if the server refuses, NoAnswer after `timeout` seconds.

        With `backoff` the call is sent again while no answer comes. That is safe only with `idem`, by which a server
        knows that it is the same call.
        """
        if backoff is not None and idem is None:
            raise ValueError("a retry needs an idem, or the call may be carried out twice")
        draft = call(method, args, timeout_ms=max(int(timeout * 1000), 1), reply_to=self._reply_to, idem=idem)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        answer: asyncio.Future[RpcReply] = loop.create_future()
        sent: list[bytes] = []
        try:
            while True:
                receipt = await send(self._link, self._stream, draft)
                sent.append(receipt.msg_id)
                self._expect(receipt.msg_id, receipt.seq, answer)
                left = until - loop.time()
                pause = left if backoff is None else min(left, backoff.wait(len(sent) - 1))
                with contextlib.suppress(TimeoutError):
                    return _result(await asyncio.wait_for(asyncio.shield(answer), max(pause, 0)))
                if loop.time() >= until:
                    raise NoAnswer(method, sent[0])
        finally:
            for msg_id in sent:
                self._waiting.pop(msg_id, None)
            answer.cancel()

    def _expect(self, msg_id: bytes, seq: int, answer: asyncio.Future[RpcReply]) -> None:
        early = self._early.pop(msg_id)
        if early is not None and not answer.done():
            answer.set_result(early)
            return
        self._waiting[msg_id] = answer
        if self._listener is not None and self._listener.done() and not self._listener.cancelled():
            failure = self._listener.exception()
            if failure is not None:
                raise failure
        if self._listener is None:
            # No answer lies before the first call; on a stream of answers we start where the caller said.
            stream, start = (self._stream, seq + 1) if self._reply_to is None else (self._reply_to, self._reply_from)
            self._listener = asyncio.create_task(self._listen(stream, start))

    async def _listen(self, stream: Stream, from_seq: int) -> None:
        try:
            async with contextlib.aclosing(self._link.follow(stream, from_seq=from_seq)) as entries:
                async for entry in entries:
                    self._hear(entry.event)
        except VeenError as exc:  # whoever waits must hear that nothing will come
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(exc)
            raise

    def _hear(self, event: Event | None) -> None:
        if event is None or event.hdr.schema != REPLY.id or event.hdr.parent_id is None:
            return
        if self._servers is not None and event.client_id not in self._servers:
            return
        reply = decode(event, REPLY)
        if isinstance(reply, Issue):
            return
        answer = self._waiting.get(event.hdr.parent_id)
        if answer is None:
            self._early.put(event.hdr.parent_id, reply.body)
        elif not answer.done():
            answer.set_result(reply.body)


def _result(reply: RpcReply) -> Any:
    if reply.error is not None:
        raise RpcFailed(reply.error.code, reply.error.detail)
    return reply.result


_REMEMBERED: Final = 65_536  # answers in memory; older ones are in a temporary file
_TABLE: Final = "CREATE TABLE answers (key BLOB PRIMARY KEY, reply BLOB NOT NULL) WITHOUT ROWID"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The caller, and the message of the call."""

    method: str
    client_id: bytes
    msg_id: bytes
    idem: int | None
    event: Event


Context = CallContext  # the name in documents of earlier versions


Handler = Callable[[Any, CallContext], Awaitable[Any]]


class _Answers:
    """Answers to calls with `idem`, so that an equal call gets the same answer and is carried out once (RPC0.3).

    The newest are in memory, the others in a temporary file that ends with the server: the log has all of them. A call
    without `idem` needs none, as a message is in the log once.
    """

    def __init__(self, in_memory: int) -> None:
        self._most = in_memory
        self._newest: OrderedDict[CallKey, RpcReply] = OrderedDict()
        self._file: sqlite3.Connection | None = None

    def get(self, key: CallKey) -> RpcReply | None:
        if (reply := self._newest.get(key)) is not None or self._file is None:
            return reply
        row = self._file.execute("SELECT reply FROM answers WHERE key = ?", (_hash_key(key),)).fetchone()
        return None if row is None else RpcReply.from_bytes(row[0])

    def keep(self, key: CallKey, reply: RpcReply) -> None:
        """Store the first answer to a call. An error of the file ends the server: it must not forget answers."""
        if isinstance(key, bytes) or self.get(key) is not None:
            return
        self._newest[key] = reply
        while len(self._newest) > self._most:
            oldest = next(iter(self._newest))
            if self._file is None:
                self._file = sqlite3.connect("", isolation_level=None)
                self._file.execute(_TABLE)
            values = _hash_key(oldest), self._newest[oldest].to_bytes()
            self._file.execute("INSERT INTO answers VALUES (?, ?)", values)
            del self._newest[oldest]


def _hash_key(key: CallKey) -> bytes:
    return H(cbor.encode(list(key)))


class Server:
    """A server that carries out the calls of a stream, one after another in the order of the log.

    Before anything else it reads what is there: calls that were answered are not carried out again, those that were
    not are. A crash between carrying out and answering leads to a second try, so handlers should themselves be
    idempotent. `servers` are the client_ids whose answers count as given, our own among them; without it a stranger who
    may write could make us believe that a call was answered. `remember` is how many answers are in memory; no answer is
    forgotten. `clock` gives unix time; without it calls are carried out however old they are. `report` hears what no
    answer tells. Codes of answers:

        RPC.BODY      the request cannot be read
        RPC.METHOD    there is no such method
        RPC.EXPIRED   the caller has stopped waiting
        RPC.TIMEOUT   it took longer than the caller waits
        RPC.RESULT    the handler returned what cannot be sent
        RPC.INTERNAL  the handler failed; it does not say why to strangers
    """

    def __init__(
        self,
        link: Link,
        stream: Stream,
        handlers: Mapping[str, Handler],
        *,
        servers: Collection[bytes] | None = None,
        clock: Callable[[], float] | None = None,
        report: Callable[[str, BaseException], None] = lambda what, exc: None,
        remember: int = _REMEMBERED,
    ) -> None:
        self._link, self._stream, self._handlers = link, stream, dict(handlers)
        self._servers = None if servers is None else frozenset(servers)
        self._clock, self._report = clock, report
        self._answers = _Answers(remember)
        self._open: OrderedDict[bytes, Typed[RpcRequest] | tuple[Event, Issue]] = OrderedDict()  # by msg_id

    async def run(self, *, from_seq: int = 1) -> None:
        """Serve until cancelled. Calls before `from_seq` are neither carried out nor remembered."""
        last = await self._catch_up(self._stream, from_seq)
        elsewhere = {call.body.reply_to for call in self._open.values() if isinstance(call, Typed)} - {None}
        for stream in sorted(stream for stream in elsewhere if stream is not None):
            try:
                await self._catch_up(stream, 1)
            except VeenError as exc:
                self._report("a stream of answers cannot be read; its calls may be carried out again", exc)
        while self._open:
            await self._serve(self._open.popitem(last=False)[1])
        async with contextlib.aclosing(self._link.follow(self._stream, from_seq=last + 1)) as entries:
            async for entry in entries:
                if entry.event is not None and entry.event.hdr.schema == CALL.id:
                    await self._serve(_request(entry.event))

    async def _catch_up(self, stream: Stream, from_seq: int) -> int:
        """Read calls and drop those that have an answer; return the last position read."""
        last = from_seq - 1
        async with contextlib.aclosing(self._link.read(stream, from_seq=from_seq)) as entries:
            async for entry in entries:
                last, event = entry.seq, entry.event
                if event is None:
                    continue
                if event.hdr.schema == CALL.id and stream == self._stream:
                    self._open[event.msg_id] = _request(event)
                elif event.hdr.schema == REPLY.id:
                    self._strike_out(event)
        return last

    def _strike_out(self, event: Event) -> None:
        reply = decode(event, REPLY)
        if isinstance(reply, Issue) or (self._servers is not None and event.client_id not in self._servers):
            return
        call = self._open.pop(event.hdr.parent_id or b"", None)
        if isinstance(call, Typed):
            self._keep(call_key(*call), reply.body)

    async def _serve(self, found: Typed[RpcRequest] | tuple[Event, Issue]) -> None:
        event, request = found
        if isinstance(request, Issue):
            await self._answer(self._stream, refuse(event.msg_id, "RPC.BODY", request.what))
            return
        key = call_key(event, request)
        reply = self._answers.get(key)
        if reply is None:
            reply = await self._carry_out(event, request)
            self._keep(key, reply)
        await self._answer(request.reply_to or self._stream, REPLY.draft(reply, parent_id=event.msg_id))

    def _keep(self, key: CallKey, reply: RpcReply) -> None:
        if reply.error is not None and reply.error.code == EXPIRED:
            return  # it was not carried out, so the same call may come again
        self._answers.keep(key, reply)

    async def _carry_out(self, event: Event, request: RpcRequest) -> RpcReply:
        handler = self._handlers.get(request.method)
        if handler is None:
            return _refusal("RPC.METHOD", request.method)
        deadline = deadline_of(event, request)
        if deadline is not None and self._clock is not None and self._clock() > deadline:
            return _refusal(EXPIRED)
        context = CallContext(
            method=request.method,
            client_id=event.client_id,
            msg_id=event.msg_id,
            idem=request.idem,
            event=event,
        )
        limit = None if request.timeout_ms is None else request.timeout_ms / 1000
        try:
            async with asyncio.timeout(limit):
                reply = RpcReply(ok=True, result=await handler(request.args, context))
        except RpcFailed as exc:
            return _refusal(exc.code, exc.detail)
        except TimeoutError:
            return _refusal("RPC.TIMEOUT")
        except Exception as exc:  # whatever a handler does, the next call is served
            self._report(f"{request.method} failed", exc)
            return _refusal("RPC.INTERNAL")
        try:
            reply.to_bytes()
        except VeenError as exc:
            self._report(f"{request.method} returned what cannot be sent", exc)
            return _refusal("RPC.RESULT")
        return reply

    async def _answer(self, stream: Stream, draft: Draft) -> None:
        try:
            await send(self._link, stream, draft)
        except VeenError as exc:  # a caller may name a stream that we cannot write to; others must not suffer
            self._report("an answer could not be sent", exc)


def _request(event: Event) -> Typed[RpcRequest] | tuple[Event, Issue]:
    call = decode(event, CALL)
    return (event, call) if isinstance(call, Issue) else call


def _refusal(code: str, detail: str | None = None) -> RpcReply:
    return RpcReply(ok=False, error=RpcFault(code=code, detail=detail))
