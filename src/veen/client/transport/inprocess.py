"""A hub in the same process: for tests, notebooks and programs that embed one. It has no socket and the same
answers."""

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import parse_qsl

from veen.client.errors import TimedOut
from veen.client.transport.calls import ATTACHMENT, CAP_HEADER, NO_HEADERS, POW_HEADER, Answer

_OUTER: Final = "outer/"  # before a path of the outer log
_LISTING: Final = {"streams": "streams_list"}  # read by a call without a body


class _Reply(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...


class Handler(Protocol):
    """The part of a hub's `Api` that this transport uses."""

    async def call(
        self,
        operation: str,
        body: bytes = ...,
        *,
        pow_header: str | None = ...,
        cap_header: str | None = ...,
        query: Mapping[str, str] | None = ...,
    ) -> _Reply: ...


class InProcess:
    """A transport that calls a hub's API directly. The hub is the caller's: closing this closes nothing."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        query: dict[str, str] = {}
        name = operation.partition("/")[2] or operation  # readyz and healthz stand alone
        if operation.startswith(ATTACHMENT):
            query["coid"], _, parameters = operation.removeprefix(ATTACHMENT).partition("?")
            query.update(parse_qsl(parameters))
            name = "attachment_put" if body else "attachment_get"
        elif operation.startswith(_OUTER):
            query["path"], _, parameters = operation.removeprefix(_OUTER).partition("?")
            query.update(parse_qsl(parameters))
            name = "outer"
        elif not body:
            name = _LISTING.get(name, name)
        try:
            async with asyncio.timeout(timeout):
                reply = await self._handler.call(
                    name,
                    body,
                    pow_header=headers.get(POW_HEADER),
                    cap_header=headers.get(CAP_HEADER),
                    query=query,
                )
        except TimeoutError as exc:
            raise TimedOut(f"{operation}: no answer within {timeout} s") from exc
        return Answer(reply.status, reply.body, {key.lower(): value for key, value in reply.headers})

    async def aclose(self) -> None:
        return None
