"""Calls as frames: from a request to a reply, with the routes, bounds and errors of HTTP.

A request without a body corresponds to GET, one with a body to POST, and an attachment with a body is stored. The
client's HTTP transport uses the same rule, and the answer has the same bytes. Every transport reads a frame, calls
this class and carries the response back; none of them decides anything about an operation.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from veen.core import cbor
from veen.core.call_frames import RequestFrame, RequestHead, ResponseFrame
from veen.core.errors import ApiCode, FormatError
from veen.hub.api.access import Principal
from veen.hub.api.operations import Api
from veen.hub.api.reply import ApiError, Reply
from veen.hub.api.routes import SUBMIT, SUBMIT_BATCH, Route, find_route
from veen.io.shares import LARGE, Shares

_ATTACHMENT: Final = "tooling/attachment/"
_WRITES: Final = frozenset(("submit", "submit_batch", "authorize", "derive"))  # not delayed in favour of writers
_PROMPT: Final = frozenset(("healthz", "readyz"))


class CallDoor:
    """The API for transports of frames. Owned by the event loop's thread.

    `calls` counts running calls; a transport accepts at most `max_calls` of them.
    """

    def __init__(self, api: Api, bodies: Shares, answers: Shares, max_calls: int) -> None:
        self.api, self.max_calls = api, max_calls
        self.bodies = bodies  # the share for requests in parts, together with the bodies of HTTP
        self.answers = answers  # the share for responses that are not read yet, together with those of HTTP
        self.calls = 0

    @property
    def has_room(self) -> bool:
        return self.calls < self.max_calls

    def check_head(self, head: RequestHead) -> Reply | None:
        """Return a refusal that needs no body (no such operation, or too large a body); None to go on."""
        try:
            route, _ = _route(head.operation, head.body_bytes)
        except ApiError as exc:
            return self.of_error(exc)
        return self._refuse_oversized(route, head.body_bytes)

    def of_error(self, error: ApiError, principal: Principal | None = None) -> Reply:
        return self.api.replies.of_error(error, "cbor", address=principal.address if principal else "")

    def of_fault(self, fault: FormatError, principal: Principal) -> Reply:
        """Return the answer to bytes that are no frame."""
        return self.of_error(ApiError.of_format(fault), principal)

    def too_many(self, principal: Principal) -> Reply:
        return self.of_error(ApiError.unavailable("too many calls at once"), principal)

    async def call(self, request: RequestFrame, principal: Principal) -> Reply:
        """Run one call. Whatever the input, the outcome is a reply."""
        if not self.has_room:
            return self.too_many(principal)
        self.calls += 1
        try:
            return await self._call(request, principal)
        finally:
            self.calls -= 1

    async def _call(self, request: RequestFrame, principal: Principal) -> Reply:
        try:
            route, query = _route(request.operation, len(request.body))
        except ApiError as exc:
            return self.of_error(exc, principal)
        if (refusal := self._refuse_oversized(route, len(request.body))) is not None:
            return refusal
        if route.large and not self.answers.has_room(principal.address, cbor.MAX_ITEM_BYTES):
            return self.of_error(_too_much_unread(), principal)
        priority, writes = self.api.context.priority, route.operation in _WRITES
        if not writes and route.operation not in _PROMPT and priority.delay():
            await priority.wait()
        headers = request.headers
        calling = self.api.call(
            route.operation,
            request.body,
            form="cbor",
            answer="cbor",
            pow_header=headers.get("veen-pow"),
            cap_header=headers.get("veen-cap"),
            last_event_id=headers.get("last-event-id"),
            principal=_caller(principal, headers),
            query=query,
        )
        return await (calling if writes else priority.charge_for(calling))

    def _refuse_oversized(self, route: Route, size: int) -> Reply | None:
        maximum = route.max_body(self.api.context.limits, "cbor")
        if size <= maximum:
            return None
        if route is SUBMIT:
            return self.api.submits.refuse_oversized(max(size - 4, 0), "cbor")
        detail = {"actual": size, "max_allowed": maximum}
        return self.of_error(ApiError(ApiCode.LIMIT, "the request is too large", detail=detail))

    def max_request_bytes(self) -> int:
        """Return the greatest body of any operation."""
        limits = self.api.context.limits
        routes = (SUBMIT, SUBMIT_BATCH, _route(f"{_ATTACHMENT}{'0' * 64}", 1)[0])
        return max(route.max_body(limits, "cbor") for route in routes)

    def take_answer(self, principal: Principal, reply: Reply, operation: str) -> bool:
        """Reserve room for a reply until it is read; return False if there is none. `release_answer` gives it back."""
        if len(reply.body) <= LARGE:
            return True
        always = False
        with suppress(ApiError):  # receipts are never withheld
            always = _route(operation, 1)[0] is SUBMIT_BATCH
        return self.answers.take(principal.address, len(reply.body), always=always)

    def release_answer(self, principal: Principal, reply: Reply) -> None:
        if len(reply.body) > LARGE:
            self.answers.give_back(principal.address, len(reply.body))

    def unread(self, principal: Principal) -> Reply:
        return self.of_error(_too_much_unread(), principal)

    def endless(self, principal: Principal) -> Reply:
        """Return the answer in place of a reply without an end, for transports whose answers have one."""
        message = "this operation streams without an end, which this transport does not support: use tooling/tail"
        return self.of_error(ApiError(ApiCode.BAD_REQUEST, message, status=501), principal)


def _route(operation: str, body_bytes: int) -> tuple[Route, dict[str, str]]:
    method = "GET" if not body_bytes else "PUT" if operation.startswith(_ATTACHMENT) else "POST"
    try:
        return find_route(method, f"/{operation}")
    except ValueError as exc:  # too many fields in the query
        raise ApiError(ApiCode.BAD_REQUEST, "the query has too many fields") from exc


def _caller(principal: Principal, headers: Mapping[str, str]) -> Principal:
    authorization = headers.get("authorization")
    if authorization is None:
        return principal
    scheme, _, token = authorization.partition(" ")
    return replace(principal, bearer=token.strip().encode("ascii") if scheme.lower() == "bearer" else b"")


def _too_much_unread() -> ApiError:
    return ApiError.unavailable("too many answers wait for clients that do not read them")


def frame_of(reply: Reply) -> ResponseFrame:
    """Return the frame of a reply that has an end."""
    headers = {name.lower(): value for name, value in reply.headers}
    return ResponseFrame(reply.status, reply.body, {"content-type": reply.content_type, **headers})
