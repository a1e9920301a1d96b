"""QUIC to a hub (D-113): `quic://HOST:PORT`, one stream for each call on one connection, certificates always checked.

A stream that is reset, or a connection that ends, leaves open whether the hub acted. The next call opens another
connection, and `veen.client.transport.calls` sends the same bytes again.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from veen.client.errors import (
    BadAnswer,
    CertificateUnverified,
    ExtraMissing,
    LocalError,
    NetworkError,
    TimedOut,
    Unreachable,
)
from veen.client.transport.base import NO_HEADERS, Answer
from veen.client.transport.framed import answer_of, request_bytes
from veen.client.transport.http import CALL_SECONDS, read_token
from veen.core import cbor
from veen.core.call_frames import MAX_OVERHEAD_BYTES
from veen.net.quic_link import client_configuration

if TYPE_CHECKING:
    from veen.client.transport.quic_connection import QuicLink

_CONNECT_SEC: Final = 10.0


class QuicTransport:
    """One hub behind one UDP port. Use it inside one event loop; `aclose` closes its connection."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        client_cert: Path | None = None,
        client_key: Path | None = None,
        token_file: Path | None = None,
        timeout: float = CALL_SECONDS,
        max_answer_bytes: int = cbor.MAX_ITEM_BYTES,
    ) -> None:
        parts = urlsplit(url)
        self.url, self._host, self._port = url, parts.hostname or "", parts.port or 0
        self._timeout, self._max_answer = timeout, max_answer_bytes
        try:
            self._configuration = client_configuration(self._host, ca_file, client_cert, client_key)
        except ImportError as exc:
            raise ExtraMissing("quic", "a hub by QUIC") from exc
        except (OSError, ValueError) as exc:
            raise LocalError(f"{ca_file or client_cert}: not usable for TLS: {exc}") from exc
        self._headers = {} if token_file is None else {"authorization": f"Bearer {read_token(token_file)}"}
        # Of the event loop's thread, from the first call on.
        self._link: QuicLink | None = None
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"QuicTransport({self.url!r})"

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        limit = self._timeout if timeout is None else timeout
        frame = request_bytes(operation, body, self._headers, headers)
        try:
            async with asyncio.timeout(limit):
                link = await self._connected()
                data = await link.ask(frame, self._max_answer + MAX_OVERHEAD_BYTES)
        except TimeoutError as exc:
            raise TimedOut(f"{self.url}: no answer to {operation} within {limit:g} s") from exc
        return answer_of(self.url, data)

    async def stream(self, operation: str, *, headers: Mapping[str, str] = NO_HEADERS) -> AsyncIterator[bytes]:
        """The pieces of an answer without an end (`tooling/events`), as they come; leave the loop to end it.

        BadAnswer with the hub's error if it answers with one.
        """
        link = await self._connected()
        pieces = link.follow(request_bytes(operation, b"", self._headers, headers), self._max_answer)
        async with contextlib.aclosing(pieces):
            head = answer_of(self.url, await anext(pieces))
            if not head.ok:
                raise BadAnswer(f"{self.url}: {operation}: status {head.status}")
            async for piece in pieces:
                yield piece

    async def _connected(self) -> "QuicLink":
        async with self._opening:
            if self._link is not None and self._link.is_open:
                return self._link
            from veen.client.transport.quic_connection import open_quic

            try:
                infos = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            except OSError as exc:
                raise Unreachable(f"{self.url}: {exc.strerror or exc}") from exc
            fault: NetworkError = Unreachable(f"{self.url}: no address")
            for info in infos:
                try:
                    self._link = await asyncio.wait_for(open_quic(self._configuration, self.url, info), _CONNECT_SEC)
                    return self._link
                except CertificateUnverified:
                    raise
                except NetworkError as exc:
                    fault = exc
                except (OSError, TimeoutError) as exc:
                    fault = Unreachable(f"{self.url}: {str(exc) or 'no answer'}")
            raise fault

    async def aclose(self) -> None:
        link: Any = self._link
        if link is not None:
            await link.aclose()
