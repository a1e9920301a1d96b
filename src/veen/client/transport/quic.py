"""Calls over QUIC (D-113): `quic://HOST:PORT`, one stream per call on one connection; certificates are always
checked.

A stream that is reset, or a connection that ends, leaves it unknown if the hub acted. The next call opens another
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
    Unreachable,
)
from veen.client.transport.calls import NO_HEADERS, Answer
from veen.client.transport.framed import FramedTransport
from veen.client.transport.http import CALL_SECONDS
from veen.io.quic_link import client_configuration

if TYPE_CHECKING:
    from veen.client.transport.quic_connection import QuicLink

_CONNECT_SEC: Final = 10.0


class QuicTransport(FramedTransport):
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
    ) -> None:
        super().__init__(url, token_file=token_file, timeout=timeout)
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        try:
            self._configuration = client_configuration(self._host, ca_file, client_cert, client_key)
        except ImportError as exc:
            raise ExtraMissing("quic", "a hub by QUIC") from exc
        except (OSError, ValueError) as exc:
            raise LocalError(f"{ca_file or client_cert}: not usable for TLS: {exc}") from exc
        # Of the event loop's thread, from the first call on.
        self._link: QuicLink | None = None
        self._opening = asyncio.Lock()

    async def _exchange(self, operation: str, body: bytes, headers: Mapping[str, str], limit: float) -> Answer:
        frame = self._request(operation, body, headers)
        async with asyncio.timeout(limit):
            link = await self._connect()
            return self._answer(await link.ask(frame, self._max_frame))

    async def stream(self, operation: str, *, headers: Mapping[str, str] = NO_HEADERS) -> AsyncIterator[bytes]:
        """Yield the pieces of an answer without an end (`tooling/events`), as they arrive; leave the loop to end it.

        Raise BadAnswer if the hub answers with an error.
        """
        link = await self._connect()
        pieces = link.follow(self._request(operation, b"", headers), self._max_answer)
        async with contextlib.aclosing(pieces):
            head = self._answer(await anext(pieces))
            if not head.ok:
                raise BadAnswer(f"{self.url}: {operation}: status {head.status}")
            async for piece in pieces:
                yield piece

    async def _connect(self) -> "QuicLink":
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
