"""RPC0: calls and their answers, as messages (001 spec-1 §24, D-86).

`rpccaller` and `rpcserver` are the two ends that talk; here are the messages, and what a log tells of them.

The msg_id of a call correlates: its reply carries it as parent_id. Two calls with one (method, client_id, idem) are one
call; without `idem` every message is a call of its own. Of several replies to a call the first in logical order is the
answer; others that say something else are listed as conflicts. A server that answers RPC.EXPIRED did not begin, so
this is an answer only if there is no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Self

from veen.core import cbor
from veen.core.event import Event, Order
from veen.core.wire import NULL, Fields
from veen.overlays.body import Body, Draft, InvalidBody
from veen.overlays.decode import Typed
from veen.overlays.dedup import NO_MIRRORS, Mirrors
from veen.overlays.fold import Compact
from veen.overlays.schema import Schema, SchemaSet

__all__ = [
    "CALL",
    "EXPIRED",
    "REPLY",
    "Answer",
    "CallKey",
    "CallState",
    "Fault",
    "Reply",
    "Request",
    "RpcFold",
    "RpcView",
    "answer",
    "call",
    "call_key",
    "deadline_of",
    "refuse",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Body):
    """rpc.v1"""

    KIND: ClassVar[str] = "rpc.v1"

    method: str
    args: Any
    timeout_ms: int | None = None
    reply_to: bytes | None = None  # a stream_id
    idem: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            method=f.text("method"),
            args=f.anything("args"),
            timeout_ms=f.optional(f.uint, "timeout_ms"),
            reply_to=f.optional(f.bstr, "reply_to", 32),
            idem=f.optional(f.uint, "idem"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "args": _value(self.args),
            "timeout_ms": self.timeout_ms,
            "reply_to": self.reply_to,
            "idem": self.idem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Body):
    """Why a call failed."""

    KIND: ClassVar[str] = "rpc.res.v1 error"

    code: str
    detail: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(code=f.text("code"), detail=f.optional(f.text, "detail"))

    def _write(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Body):
    """rpc.res.v1: a result, which may be null, or an error."""

    KIND: ClassVar[str] = "rpc.res.v1"

    ok: bool
    result: Any = None
    error: Fault | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        ok = f.flag("ok")
        has_result = f.has("result")
        result = f.anything("result") if has_result else None
        reply = cls(ok=ok, result=result, error=f.optional(f.object, "error", Fault))
        if ok and (not has_result or reply.error is not None):
            raise InvalidBody("RPC.REPLY", "a reply that is ok has a result and no error")
        if not ok and (result is not None or reply.error is None):
            raise InvalidBody("RPC.REPLY", "a reply that is not ok has an error and no result")
        return reply

    def _write(self) -> dict[str, Any]:
        return {"ok": self.ok, "result": _value(self.result) if self.ok else self.result, "error": self.error}


def _value(value: Any) -> Any:
    return NULL if value is None else cbor.sort_keys(value)


EXPIRED: Final = "RPC.EXPIRED"  # the server did not begin: the caller had stopped waiting

CALL: Final = Schema("rpc.v1", Request)
REPLY: Final = Schema("rpc.res.v1", Reply, needs_parent=True)


def call(
    method: str,
    args: Any,
    *,
    timeout_ms: int | None = None,
    reply_to: bytes | None = None,
    idem: int | None = None,
) -> Draft:
    return CALL.draft(Request(method=method, args=args, timeout_ms=timeout_ms, reply_to=reply_to, idem=idem))


def answer(msg_id: bytes, result: Any) -> Draft:
    """The reply to the call with this msg_id."""
    return REPLY.draft(Reply(ok=True, result=result), parent_id=msg_id)


def refuse(msg_id: bytes, code: str, detail: str | None = None) -> Draft:
    return REPLY.draft(Reply(ok=False, error=Fault(code=code, detail=detail)), parent_id=msg_id)


CallKey = tuple[str, bytes, int] | bytes


def call_key(event: Event, body: Request) -> CallKey:
    """What makes two calls one: (method, client_id, idem), or the msg_id (RPC0.3)."""
    return event.leaf_hash if body.idem is None else (body.method, event.client_id, body.idem)


def deadline_of(event: Event, body: Request) -> int | None:
    """The last second of the hub's time in which an answer is of use."""
    return None if body.timeout_ms is None else event.ts + -(-body.timeout_ms // 1000)


# --- the fold -----------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    order: Order
    key: CallKey
    method: str
    client_id: bytes
    deadline: int | None


class Answer(NamedTuple):
    """A reply to a call: `body` is as it was sent."""

    order: Order
    msg_id: bytes
    client_id: bytes
    body: bytes

    @property
    def reply(self) -> Reply:
        return Reply.from_bytes(self.body)

    @property
    def is_expired(self) -> bool:
        error = self.reply.error
        return error is not None and error.code == EXPIRED


class _State(NamedTuple):
    calls: dict[bytes, _Call]  # by msg_id
    replies: dict[bytes, tuple[Answer, ...]]  # by the msg_id of the call; in logical order


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """One call as the log tells it. `status` is open, answered, failed or timed_out."""

    method: str
    client_id: bytes
    status: str
    same_as: bytes | None = None  # the first call with the same idempotency key
    answer: Answer | None = None
    conflicts: tuple[bytes, ...] = ()  # msg_ids of later replies that say something else


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcView:
    calls: dict[bytes, CallState]  # by msg_id, in logical order
    orphans: tuple[bytes, ...]  # msg_ids of replies to what is no call here


class RpcFold(Compact[_State, RpcView]):
    """Calls and answers. With `servers`, only their replies count."""

    name = "rpc"
    schemas = SchemaSet([CALL, REPLY])
    SUMMARY = _State

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS, servers: Iterable[bytes] | None = None) -> None:
        super().__init__(mirrors=mirrors)
        self.servers = None if servers is None else frozenset(servers)

    def settings(self) -> frozenset[bytes] | None:
        return self.servers

    def start(self) -> _State:
        return _State({}, {})

    def add(self, into: _State, event: Typed[Request | Reply]) -> None:
        e, body = event
        if isinstance(body, Request):
            call = _Call(e.order, call_key(e, body), body.method, e.client_id, deadline_of(e, body))
            into.calls[self.mirrors.identity(e)] = call
        elif e.hdr.parent_id is not None and (self.servers is None or e.client_id in self.servers):
            answer = Answer(e.order, e.leaf_hash, e.client_id, e.body)
            into.replies[e.hdr.parent_id] = _union(into.replies.get(e.hdr.parent_id, ()), (answer,))

    def absorb(self, into: _State, other: _State) -> None:
        into.calls.update(other.calls)
        for msg_id, answers in other.replies.items():
            into.replies[msg_id] = _union(into.replies.get(msg_id, ()), answers)

    def show(self, state: _State, as_of: int) -> RpcView:
        by_key: dict[CallKey, list[tuple[Order, bytes]]] = {}
        for msg_id, call in state.calls.items():
            by_key.setdefault(call.key, []).append((call.order, msg_id))
        calls: dict[bytes, CallState] = {}
        for msg_id, call in sorted(state.calls.items(), key=lambda pair: pair[1].order):
            same = sorted(by_key[call.key])
            replies = sorted(a for _, other in same for a in state.replies.get(other, ()))
            answers = [a for a in replies if not a.is_expired] or replies
            first = answers[0] if answers else None
            calls[msg_id] = CallState(
                method=call.method,
                client_id=call.client_id,
                status=_status(first, call.deadline, as_of),
                same_as=None if same[0][1] == msg_id else same[0][1],
                answer=first,
                conflicts=tuple(a.msg_id for a in answers[1:] if first is not None and a.body != first.body),
            )
        orphans = [a for msg_id, answers in state.replies.items() if msg_id not in state.calls for a in answers]
        return RpcView(calls=calls, orphans=tuple(a.msg_id for a in sorted(orphans)))


def _status(first: Answer | None, deadline: int | None, as_of: int) -> str:
    if first is not None:
        return "answered" if first.reply.ok else "failed"
    return "timed_out" if deadline is not None and as_of > deadline else "open"


def _union(a: tuple[Answer, ...], b: tuple[Answer, ...]) -> tuple[Answer, ...]:
    return b if not a else tuple(sorted({*a, *b}))
