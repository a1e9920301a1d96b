"""The calling end of RPC0: send a request, wait for its answer, call again if need be (001 spec-1 RPC0.1 … RPC0.4).

It speaks through a `Link`, so a `veen.client.Client` or a log in memory will do. Requests and answers are ordinary
messages: sealed, receipted and in the log, for anyone with the key to audit (`rpc.RpcFold`).
"""

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.lru import Lru
from veen.overlays.framework.decode import Issue, decode
from veen.overlays.framework.link import Link, Stream, send
from veen.overlays.rpc.messages import REPLY, RpcReply, call

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
