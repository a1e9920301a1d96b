"""Typed calls: a wire object out, a wire object back, and every fault as a named error.

Reading changes nothing, and a submit resends identical bytes, which the hub recognises (D-09, D-56), so both may be
repeated. An administrative request may be repeated if it carries a request id (`ask_once`); otherwise it is sent with
`again=False`, once. A call that may be repeated and got no answer, or a transient refusal, is retried, with growing
pauses that differ from client to client. A final refusal, or an answer outside of the protocol, is not retried.

The protocol of all transports: HTTP, queues, pipes and tests (spec §10, 001 spec-1 §16).

An operation is a name such as `v1/submit` or `tooling/status`; bodies are CBOR both ways. An empty body is for
operations without a request (`tooling/status`, an attachment); an attachment with a body is stored. Nothing above
this module knows which transport carries its calls.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from veen.client.errors import BadAnswer, HubRefused, NetworkError, TimedOut, Unreachable
from veen.core import cbor
from veen.core.errors import ApiCode, FormatError, Refusal
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.tooling import MAX_LISTED, AnchorRequest, RotateKeyRequest, VersionRequest
from veen.core.wire import Wire

ATTACHMENT: Final = "tooling/attachment/"  # before the hex of a coid
CAP_HEADER: Final = "VEEN-Cap"
POW_HEADER: Final = "VEEN-PoW"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, with the status numbers of spec §10.6 for every transport."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Transport(Protocol):
    """One connection to one hub, by any transport."""

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - each transport bounds its own reads; a cut-off call is an error of its own
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        """Run one operation. Raise NetworkError if no answer came: the hub may still have acted.

        Without `again` the request is sent once and never resent, whatever fails: the hub may have acted.
        """

    async def aclose(self) -> None: ...


W = TypeVar("W", bound=Wire)
T = TypeVar("T")

REQUEST_ID_BYTES: Final = 32
NOTHING: Final = VersionRequest()  # a request without parameters
_TRANSIENT: Final = frozenset((ApiCode.UNAVAILABLE.code, Refusal.CAP_RATE.code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Limits of retries. `seconds` bounds all attempts of one call together."""

    seconds: float = 60.0
    first_pause: float = 0.05
    longest_pause: float = 5.0
    jitter: Callable[[], float] = field(default=random.random)  # in [0, 1); spreads clients, keeps no secret
    sleep: Callable[[float], Awaitable[None]] = field(default=asyncio.sleep)

    async def pauses(self) -> AsyncIterator[None]:
        """Yield once per attempt, with pauses in between; end when the time is up."""
        clock = asyncio.get_running_loop().time
        until, pause = clock() + self.seconds, self.first_pause
        while True:
            yield
            wait = pause * (0.5 + self.jitter())
            if clock() + wait > until:
                return
            await self.sleep(wait)
            pause = min(pause * 2, self.longest_pause)


NO_RETRY: Final = Retry(seconds=0.0)


def is_transient(error: Exception) -> bool:
    """Return True if the same bytes may succeed later."""
    if isinstance(error, HubRefused):
        return error.code in _TRANSIENT and error.detail.get("reason") != "corrupt"
    return isinstance(error, (Unreachable, TimedOut))


def is_not_found(error: HubRefused) -> bool:
    return error.code == ApiCode.NOT_FOUND.code


def refusal_of(error: HubRefused) -> Refusal | None:
    """Return the row of the admission table that a refusal names, or None."""
    try:
        return Refusal[error.detail_enum or ""]
    except KeyError:
        return None


def place_of(error: HubRefused) -> int | None:
    """Return the stream_seq that a refusal names as the place of this very message, or None (D-56, D-161).

    It is a hint (CLNT-14): only the receipt there proves it.
    """
    seq = error.detail.get("stream_seq")
    return seq if type(seq) is int and seq >= 1 else None


class Calls:
    """Calls to one hub, by any transport."""

    def __init__(self, transport: Transport, retry: Retry | None = None) -> None:
        self.transport = transport
        self.retry = retry or Retry()

    async def ask(
        self,
        operation: str,
        request: Wire | None,
        response: type[W],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - handed to the transport, which names what ran out
        again: bool = True,
    ) -> W:
        """Send `request`, and decode the answer as `response`."""
        body = b"" if request is None else request.to_bytes()
        answer = await self.send(operation, body, timeout=timeout, again=again)
        return read(operation, answer.body, response)

    async def ask_once(
        self,
        operation: str,
        request: RotateKeyRequest | AnchorRequest,
        response: type[W],
        *,
        request_id: bytes | None = None,
        again: bool = True,
    ) -> W:
        """Send a request that must take effect once, under a request id (drawn here unless one is given).

        The hub journals the id with the record, so the same request again gets the same record and changes nothing. A
        hub of an older release does not know request ids and refuses the request; it is asked without one then, once.
        """
        identified = replace(request, request_id=request_id or os.urandom(REQUEST_ID_BYTES))
        try:
            return await self.ask(operation, identified, response, again=again)
        except HubRefused as exc:
            if exc.code != ApiCode.BAD_REQUEST.code:
                raise
        return await self.ask(operation, request, response, again=False)

    async def send(
        self,
        operation: str,
        body: bytes,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        """Return a successful answer to these bytes. Raise NetworkError or HubRefused if there is none."""

        async def once() -> Answer:
            if again:
                answer = await self.transport.call(operation, body, timeout=timeout, headers=headers)
            else:
                answer = await self.transport.call(operation, body, timeout=timeout, headers=headers, again=False)
            if not answer.ok:
                raise error_of(operation, answer)
            return answer

        return await self.repeat(once) if again else await once()

    async def repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retry until it works, fails for good, or the time is up; then raise the last error."""
        last: NetworkError | HubRefused | None = None
        async for _ in self.retry.pauses():
            if last is not None and isinstance(last, HubRefused) and last.retry_after:
                await self.retry.sleep(min(float(last.retry_after), self.retry.longest_pause))
            try:
                return await attempt()
            except (NetworkError, HubRefused) as exc:
                if not is_transient(exc):
                    raise
                last = exc
        assert last is not None  # noqa: S101 - there is at least one attempt
        raise last


def read(operation: str, body: bytes, response: type[W]) -> W:
    try:
        return response.from_bytes(body)
    except FormatError as exc:
        raise BadAnswer(f"{operation}: not a {response.KIND}: {exc}") from exc


def sequence(operation: str, body: bytes) -> list[bytes]:
    """Return the raw items of an answer that is a CBOR sequence, at most MAX_LISTED."""
    try:
        items = list(islice(cbor.sequence(body, what=operation, max_items=Wire.MAX_ITEMS), MAX_LISTED + 1))
    except FormatError as exc:
        raise BadAnswer(f"{operation}: not a sequence of items: {exc}") from exc
    if len(items) > MAX_LISTED:
        raise BadAnswer(f"{operation}: more than {MAX_LISTED} items")
    return items


def error_of(operation: str, answer: Answer) -> HubRefused | BadAnswer:
    """Return the error for an answer that is not successful."""
    try:
        return HubRefused.from_envelope(ErrorEnvelope.from_bytes(answer.body))
    except FormatError:
        return BadAnswer(f"{operation}: status {answer.status} with a body that is not an error of a hub")
