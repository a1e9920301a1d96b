"""Submits: single messages and batches, in CBOR and in JSON (spec §8.1, §10.4.1).

The sequencer reports a message that reaches it to the observer; refusals before it are reported here.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from veen import native
from veen.core import cbor
from veen.core.entry import MSG_CLIENT_AT, MSG_SEQ_AT, read_claimed_client
from veen.core.errors import ApiCode, FieldSizeError, FormatError, MalformedError, Refusal, VersionError
from veen.core.objects.envelopes import SUBMIT_PREFIX, SubmitRequest, SubmitResponse
from veen.core.objects.msg import Msg, end_of
from veen.core.objects.receipt import Receipt
from veen.core.objects.recognise import parse_json_parts
from veen.core.objects.tooling import MAX_BATCH_ITEMS
from veen.core.wire import VERSION
from veen.hub.admission.decide import Refuse
from veen.hub.admission.pow import HEADER, Payments, batch_difficulty
from veen.hub.api.access import ANYBODY, Principal
from veen.hub.api.calls import ApiContext, Call, Services, is_other_version
from veen.hub.api.reply import ApiError, Form, Replies, Reply, dump_json
from veen.hub.sequencer.sequencer import Done, Outcome, Overloaded, Stopped

T = TypeVar("T")

_PREFIX: Final = b"\xa3\x01\x01\x02"  # {1: 1, 2: receipt, 3: server_version}
_ENVELOPE_BYTES: Final = 4  # before the MSG in a submit request
_CLIENT_ID: Final = slice(MSG_CLIENT_AT, MSG_SEQ_AT)
_SMALL: Final = 4096  # bytes that may be decoded without a check of their structure
_LARGE: Final = 64 * 1024  # JSON above this size is parsed in another thread
_MAX_ITEMS: Final = 16  # a MSG has 11, the array itself included
_TURN: Final = 64  # messages of a batch that are checked in one turn of the event loop


class Submits:
    """The entry point of messages to the sequencer."""

    def __init__(self, context: ApiContext, replies: Replies) -> None:
        self._context, self._replies = context, replies
        self._services: Services = context.services
        self._payments = Payments()
        version = self._services.server_version.encode()
        self._suffix = b"\x03" + _text_head(len(version)) + version

    # --- one ---------------------------------------------------------------------------------------------

    def begin(
        self,
        body: bytes,
        done: Done,
        *,
        pow_header: str | None = None,
        principal: Principal = ANYBODY,
        answer: Form = "cbor",
    ) -> Reply | None:
        """Start the admission of a request in CBOR. Return an answer at once, or None and call `done` with the
        outcome later."""
        paid = None
        try:
            paid = self._prefilter(body, len(body) - _ENVELOPE_BYTES, pow_header, principal)
            if len(body) > _SMALL or not body.startswith(SUBMIT_PREFIX):
                _check_envelope(body)
            raw = body[_ENVELOPE_BYTES:]
            self._check_denied(raw)
            refuse = self._services.sequencer.admit(raw, done, principal.address)
            if refuse is None:
                return None
            if refuse.refusal is Refusal.CBOR_INVALID:
                SubmitRequest.split(body)  # bytes behind the MSG are a fault of the envelope
            return self._replies.of_refusal(refuse, answer)
        except _Prefiltered as exc:
            client_id = read_claimed_client(body[_ENVELOPE_BYTES:])
            return self._replies.of_refusal(self._count(exc.refuse, len(body), principal, client_id), answer)
        except (Overloaded, Stopped) as exc:
            return self._unavailable(str(exc), answer, len(body), principal, paid)
        except FormatError as exc:
            return self._reply_to_fault(exc, answer, principal)

    async def _begin_json(self, call: Call, done: Done) -> Reply | None:
        """Start the admission of a request in JSON. Faults of envelope and MSG are distinguished as in CBOR (D-54)."""
        paid = client_id = None
        try:
            paid = self._prefilter(call.body, 0, call.pow_header, call.principal)  # `admit` checks its size, as CBOR
            msg = await _parse(lambda: _msg_of_json(_json_envelope(call.body)), call.body)
            client_id, raw = msg.client_id, msg.to_bytes()
            self._check_denied(raw)
            refuse = self._services.sequencer.admit(raw, done, call.principal.address)
            return None if refuse is None else self._replies.of_refusal(refuse, call.answer)
        except _Prefiltered as exc:
            return self._replies.of_refusal(
                self._count(exc.refuse, len(call.body), call.principal, client_id), call.answer
            )
        except (Overloaded, Stopped) as exc:
            return self._unavailable(str(exc), call.answer, len(call.body), call.principal, paid)
        except FormatError as exc:
            return self._reply_to_fault(exc, call.answer, call.principal)

    def _reply_to_fault(self, fault: FormatError, form: Form, principal: Principal) -> Reply:
        return self._replies.of_error(ApiError.of_format(fault), form, operation="submit", address=principal.address)

    def answer(self, receipt: bytes) -> bytes:
        """Return the body of a successful answer in CBOR, from the bytes of the RECEIPT."""
        return b"".join((_PREFIX, receipt, self._suffix))

    def finish(self, outcome: Outcome | None, form: Form = "cbor") -> Reply:
        """Return the answer to a message whose outcome is known."""
        if outcome is None:
            return self._replies.of_error(_not_durable(), form)
        if isinstance(outcome, Refuse):
            return self._replies.of_refusal(outcome, form)
        if form == "cbor":
            return Reply(200, self.answer(outcome))
        version = self._services.server_version
        return self._replies.ok(SubmitResponse(receipt=Receipt.from_bytes(outcome), server_version=version), form)

    async def submit(self, call: Call) -> Reply:
        """Admit one message, from any transport."""
        answer: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome | None) -> None:
            if not answer.done():  # the caller may have disconnected
                answer.set_result(outcome)

        if call.form == "json":
            reply = await self._begin_json(call, done)
        else:
            reply = self.begin(
                call.body, done, pow_header=call.pow_header, principal=call.principal, answer=call.answer
            )
        return reply or self.finish(await answer, call.answer)

    def refuse_oversized(self, size: int, form: Form) -> Reply:
        """Return the answer to a submit that the transport refused to read."""
        maximum = self._context.limits.max_msg_bytes
        refuse = Refuse(Refusal.SIZE_PREFILTER, {"actual": size, "max_allowed": maximum})
        return self._replies.of_refusal(self._count(refuse, 0), form)

    # --- the first stage ---------------------------------------------------------------------------------

    def _prefilter(self, body: bytes, msg_bytes: int, pow_header: str | None, principal: Principal) -> bytes | None:
        """Check sizes, addresses and proof of work; return the mark of the proof that was taken, if one is required.

        The result is a function of the request and the configuration (spec §8.1), but for proof that was spent
        before.
        """
        if (reason := self._services.not_admitting) is not None:
            raise Overloaded(reason)
        maximum = self._context.limits.max_msg_bytes
        if msg_bytes > maximum:
            raise _Prefiltered(Refusal.SIZE_PREFILTER, {"actual": msg_bytes, "max_allowed": maximum})
        if principal.denied:
            raise _Prefiltered(Refusal.PREFILTER_REJECT)
        return self._take_pow(body, pow_header, self._services.policy.pow_difficulty)

    def _take_pow(self, body: bytes, pow_header: str | None, difficulty: int) -> bytes | None:
        if not difficulty:
            return None
        paid = self._payments.spend(pow_header, body, difficulty)
        if isinstance(paid, str):
            detail = {"field": HEADER, "expected": difficulty, "reason": paid}
            raise _Prefiltered(Refusal.PREFILTER_REJECT, detail)
        return paid

    def _check_denied(self, raw: bytes) -> None:
        denied = self._services.policy.denied_clients
        if denied and raw[_CLIENT_ID] in denied:
            raise _Prefiltered(Refusal.PREFILTER_REJECT, {"field": "client_id"})

    def _count(
        self, refuse: Refuse, bytes_in: int, principal: Principal = ANYBODY, client_id: bytes | None = None
    ) -> Refuse:
        """Report a refusal. `client_id` is the claim of the message: nothing was verified yet."""
        self._services.observer.on_refused(refuse, bytes_in, client_id=client_id, address=principal.address)
        return refuse

    def _unavailable(self, reason: str, form: Form, bytes_in: int, principal: Principal, paid: bytes | None) -> Reply:
        """Refuse without a decision about the message, so its proof of work stays valid."""
        if paid is not None:
            self._payments.refund(paid)
        self._services.observer.on_refused(ApiCode.UNAVAILABLE, bytes_in, address=principal.address, reason=reason)
        return self._replies.unavailable(reason, form)

    # --- many --------------------------------------------------------------------------------------------

    async def batch(self, call: Call) -> Reply:
        """Admit each message of a batch as if it came alone; answer in the order of the messages (DESIGN §3)."""
        try:
            messages = await _parse(lambda: _batch_items(call), call.body if call.form == "json" else b"")
        except FormatError as exc:
            raise ApiError.of_format(exc) from exc
        if len(messages) > MAX_BATCH_ITEMS:
            detail = {"field": "messages", "actual": len(messages), "max_allowed": MAX_BATCH_ITEMS}
            raise ApiError(ApiCode.LIMIT, "too many messages in one batch", detail=detail)
        try:
            difficulty = batch_difficulty(self._services.policy.pow_difficulty, len(messages))
            if call.principal.denied:
                raise _Prefiltered(Refusal.PREFILTER_REJECT)
            self._take_pow(call.body, call.pow_header, difficulty)
        except _Prefiltered as exc:
            return self._replies.of_refusal(self._count(exc.refuse, len(call.body), call.principal), call.answer)
        outcomes = _Outcomes(len(messages))
        for number, message in enumerate(messages, start=1):
            self._begin_item(message, outcomes.next(), call.principal)
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return self._replies.sequence(
            [self._item(outcome, call.answer) for outcome in await outcomes.all()], call.answer
        )

    def _begin_item(
        self, message: "bytes | Refuse", done: "Callable[[Outcome | ApiError | None], None]", principal: Principal
    ) -> None:
        if isinstance(message, Refuse):
            done(self._count(message, 0, principal))
            return
        try:
            if (reason := self._services.not_admitting) is not None:
                raise Overloaded(reason)
            self._check_denied(message)
            refuse = self._services.sequencer.admit(message, done, principal.address)
            if refuse is not None:
                done(refuse)
        except _Prefiltered as exc:
            done(self._count(exc.refuse, len(message), principal, read_claimed_client(message)))
        except (Overloaded, Stopped) as exc:
            self._services.observer.on_refused(
                ApiCode.UNAVAILABLE, len(message), address=principal.address, reason=str(exc)
            )
            done(ApiError.unavailable(str(exc)))

    def _item(self, outcome: "Outcome | ApiError | None", form: Form) -> bytes:
        if isinstance(outcome, bytes):
            return outcome if form == "cbor" else dump_json(Receipt.from_bytes(outcome).to_json())
        outcome = outcome or _not_durable()
        envelope = self._replies.refusal(outcome) if isinstance(outcome, Refuse) else self._replies.envelope(outcome)
        return envelope.to_bytes() if form == "cbor" else dump_json(envelope.to_json())


class _Outcomes:
    """The outcomes of several messages, in the order in which `next` was called."""

    __slots__ = ("_done", "_found", "_missing", "_next")

    def __init__(self, count: int) -> None:
        self._found: list[Outcome | ApiError | None] = [None] * count
        self._next, self._missing = 0, count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self) -> "Callable[[Outcome | ApiError | None], None]":
        place = self._next
        self._next += 1
        return partial(self._set, place)

    def _set(self, place: int, outcome: "Outcome | ApiError | None") -> None:
        self._found[place] = outcome
        self._missing -= 1
        if not self._missing and not self._done.done():
            self._done.set_result(None)

    async def all(self) -> "list[Outcome | ApiError | None]":
        if self._missing:
            await self._done
        return self._found


class _Prefiltered(Exception):
    """Refusal of a message before the sequencer."""

    def __init__(self, refusal: Refusal, detail: dict[str, Any] | None = None) -> None:
        super().__init__(refusal, detail)
        self.refuse = Refuse(refusal, detail or {})


def _check_envelope(body: bytes) -> None:
    """Raise for a fault of the envelope, or for a MSG that would take long to decode only to be refused (D-54)."""
    if not body.startswith(SUBMIT_PREFIX):
        if is_other_version(body):
            raise VersionError(SubmitRequest.KIND, 0)
        if len(body) <= _SMALL:
            SubmitRequest.from_bytes(body)  # names the fault: a canonical request begins with the prefix
        raise MalformedError("not a submit request", SubmitRequest.KIND)
    try:
        end = cbor.item_end(body, _ENVELOPE_BYTES, max_items=_MAX_ITEMS)
    except MalformedError as exc:
        raise _Prefiltered(Refusal.CBOR_INVALID) from exc
    if end != len(body):
        raise MalformedError("bytes follow the request", SubmitRequest.KIND)


def _json_envelope(body: bytes) -> Any:
    tree = parse_json_parts(body)
    if type(tree) is not dict:
        SubmitRequest.from_json(tree)  # names the fault
    assert type(tree) is dict  # noqa: S101 - `from_json` raises for anything else
    ver = tree.get("ver")
    if type(ver) is int and ver != VERSION:
        raise VersionError(SubmitRequest.KIND, ver)
    if set(tree) != {"ver", "msg"} or type(ver) is not int:
        SubmitRequest.from_json(tree)
    return tree["msg"]


def _msg_of_json(tree: Any) -> Msg:
    """Decode the JSON form of a MSG, with the same faults as its CBOR form."""
    try:
        return Msg.from_json(tree)
    except VersionError as exc:
        detail = {"field": "ver", "expected": VERSION, "actual": exc.actual}
        raise _Prefiltered(Refusal.VERSION, detail) from exc
    except FieldSizeError as exc:
        detail = {"field": exc.where, "expected": exc.expected, "actual": exc.actual}
        raise _Prefiltered(Refusal.FIELD_SIZE, detail) from exc
    except FormatError as exc:
        raise _Prefiltered(Refusal.CBOR_INVALID) from exc


async def _parse(read: Callable[[], T], body: bytes) -> T:
    """Parse JSON here, or in another thread if it is large."""
    if len(body) <= _LARGE:
        return read()
    return await asyncio.get_running_loop().run_in_executor(None, read)


def _batch_items(call: Call) -> list[bytes | Refuse]:
    if call.form == "cbor":
        return list(islice(_messages(call.body, MAX_BATCH_ITEMS + 1), MAX_BATCH_ITEMS + 1))
    tree = parse_json_parts(call.body)
    if type(tree) is not list:
        raise FieldSizeError("messages", "an array", 0)
    return list(_json_items(tree[: MAX_BATCH_ITEMS + 1]))


def _messages(data: bytes, most: int) -> Iterator[bytes]:
    """Yield the items of a CBOR sequence; `most` bounds the items that the native module splits at a time."""
    start = 0
    module = native.LOADED.module
    while start < len(data):
        if module is not None:
            messages, start = module.split(data, start, most)
            yield from messages
            if start >= len(data):
                return
        end = end_of(data, start) or cbor.item_end(data, start, what="batch", max_items=_MAX_ITEMS)
        yield data[start:end]
        start = end


def _json_items(tree: list[Any]) -> Iterable[bytes | Refuse]:
    for item in tree:
        try:
            yield _msg_of_json(item).to_bytes()
        except _Prefiltered as exc:
            yield exc.refuse


def _not_durable() -> ApiError:
    return ApiError.unavailable("the hub could not make the message durable: resync before sending it again")


def _text_head(length: int) -> bytes:
    head = cbor.uint(length)
    return bytes((head[0] | 0x60,)) + head[1:]
