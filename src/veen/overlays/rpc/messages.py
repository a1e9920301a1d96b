"""RPC0: calls and their answers, as messages (001 spec-1 §24, D-86).

`rpccaller` and `rpcserver` are the two ends that talk; here are the messages, and what a log tells of them.

The msg_id of a call correlates: its reply carries it as parent_id. Two calls with one (method, client_id, idem) are one
call; without `idem` every message is a call of its own. Of several replies to a call the first in logical order is the
answer; others that say something else are listed as conflicts. A server that answers RPC.EXPIRED did not begin, so
this is an answer only if there is no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from veen.core.event import Event, Order
from veen.core.wire import NULL, Anything, Bytes32, Fields, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed
from veen.overlays.framework.typed_table import StateTable, TypedColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest(Body, kind="rpc.v1"):
    """A call of a method."""

    method: str
    args: Anything
    timeout_ms: Uint | None = None
    reply_to: Bytes32 | None = None  # a stream_id
    idem: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFault(Body, kind="rpc.res.v1 error"):
    """The error of a failed call."""

    code: str
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcReply(Body, kind="rpc.res.v1"):
    """A result, which may be null, or an error."""

    ok: bool
    result: Anything | None = None
    error: RpcFault | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        ok = f.flag("ok")
        has_result = f.has("result")
        result = f.anything("result") if has_result else None
        reply = cls(ok=ok, result=result, error=f.optional(f.object, "error", RpcFault))
        if ok and (not has_result or reply.error is not None):
            raise InvalidBody("RPC.REPLY", "a reply that is ok has a result and no error")
        if not ok and (result is not None or reply.error is None):
            raise InvalidBody("RPC.REPLY", "a reply that is not ok has an error and no result")
        return reply

    def _write(self) -> dict[str, Any]:
        fields = super(RpcReply, self)._write()
        return {**fields, "result": NULL} if self.ok and self.result is None else fields


EXPIRED: Final = "RPC.EXPIRED"  # the server did not begin: the caller had stopped waiting

CALL: Final = Schema(RpcRequest.KIND, RpcRequest)
REPLY: Final = Schema(RpcReply.KIND, RpcReply, needs_parent=True)


def call(
    method: str,
    args: Any,
    *,
    timeout_ms: int | None = None,
    reply_to: bytes | None = None,
    idem: int | None = None,
) -> Draft:
    return CALL.draft(RpcRequest(method=method, args=args, timeout_ms=timeout_ms, reply_to=reply_to, idem=idem))


def answer(msg_id: bytes, result: Any) -> Draft:
    """Build the reply to the call with this msg_id."""
    return REPLY.draft(RpcReply(ok=True, result=result), parent_id=msg_id)


def refuse(msg_id: bytes, code: str, detail: str | None = None) -> Draft:
    return REPLY.draft(RpcReply(ok=False, error=RpcFault(code=code, detail=detail)), parent_id=msg_id)


CallKey = tuple[str, bytes, int] | bytes


def call_key(event: Event, body: RpcRequest) -> CallKey:
    """Return the key that equal calls share: (method, client_id, idem), or the msg_id (RPC0.3)."""
    return event.leaf_hash if body.idem is None else (body.method, event.client_id, body.idem)


def deadline_of(event: Event, body: RpcRequest) -> int | None:
    """Return the last second of the hub's time in which an answer is useful; None without a timeout."""
    return None if body.timeout_ms is None else event.ts + -(-body.timeout_ms // 1000)


# --- the fold -----------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    order: Order
    key: CallKey
    method: str
    client_id: bytes
    deadline: int | None


class RpcAnswer(NamedTuple):
    """A reply to a call: `body` is as it was sent."""

    order: Order
    msg_id: bytes
    client_id: bytes
    body: bytes

    @property
    def reply(self) -> RpcReply:
        return RpcReply.from_bytes(self.body)

    @property
    def is_expired(self) -> bool:
        error = self.reply.error
        return error is not None and error.code == EXPIRED


class _State(NamedTuple):
    calls: dict[bytes, _Call]  # by msg_id
    replies: dict[bytes, tuple[RpcAnswer, ...]]  # by the msg_id of the call; in logical order


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """One call by the log. `status` is open, answered, failed or timed_out."""

    method: str
    client_id: bytes
    status: str
    same_as: bytes | None = None  # the first call with the same idempotency key
    answer: RpcAnswer | None = None
    conflicts: tuple[bytes, ...] = ()  # msg_ids of later replies that say something else


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcView:
    calls: dict[bytes, CallState]  # by msg_id, in logical order
    orphans: tuple[bytes, ...]  # msg_ids of replies to what is no call here


class RpcFold(Compact[_State, RpcView]):
    """Fold of calls and answers. With `servers`, only their replies are valid."""

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

    def add(self, into: _State, event: Typed[RpcRequest | RpcReply]) -> None:
        e, body = event
        if isinstance(body, RpcRequest):
            call = _Call(e.order, call_key(e, body), body.method, e.client_id, deadline_of(e, body))
            into.calls[self.mirrors.identity(e)] = call
        elif e.hdr.parent_id is not None and (self.servers is None or e.client_id in self.servers):
            answer = RpcAnswer(e.order, e.leaf_hash, e.client_id, e.body)
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


def _status(first: RpcAnswer | None, deadline: int | None, as_of: int) -> str:
    if first is not None:
        return "answered" if first.reply.ok else "failed"
    return "timed_out" if deadline is not None and as_of > deadline else "open"


def _union(a: tuple[RpcAnswer, ...], b: tuple[RpcAnswer, ...]) -> tuple[RpcAnswer, ...]:
    return b if not a else tuple(sorted({*a, *b}))


STATES: Final = (
    StateTable.of(
        RpcFold.name,
        CallState,
        {"msg_id": "hex"},
        lambda view: view.calls,
        part="calls",
        about="calls and their answers",
    ),
    StateTable(
        fold=RpcFold.name,
        part="orphans",
        about="replies to what is no call here",
        columns=(TypedColumn("msg_id", "hex", "of the reply"),),
        key=("msg_id",),
        rows=lambda view: ({"msg_id": msg_id} for msg_id in view.orphans),
    ),
)
