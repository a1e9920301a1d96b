"""A small HTTP/1.1 listener: h11 reads the protocol, a handler answers requests.

Bounds: 16 MiB for a body, also after gzip; 256 connections, of which one address has at most a quarter; 30 seconds for
a request to arrive. A connection beyond them is answered with 503 and closed, so that no address shuts out the others.
"""

import asyncio
import contextlib
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Any, Final

from veen.io.addresses import network_of
from veen.io.shares import Shares

_MAX_BODY: Final = 16 * 1024 * 1024
_MAX_CONNECTIONS: Final = 256
_ADDRESS_PERCENT: Final = 25  # of the connections, for one address
_TURNED_AWAY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
)
_SECONDS: Final = 30.0
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class WebRequest:
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str = ""  # the address of the sender
    certificate: bytes | None = None  # that the sender showed, as DER
    notes: dict[str, Any] = field(default_factory=dict)  # what a handler keeps about the connection


@dataclass(frozen=True, slots=True)
class WebAnswer:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[WebRequest], Awaitable[WebAnswer]]


Tokens = str | Sequence[str] | None


def is_authorized(request: WebRequest, tokens: Tokens) -> bool:
    """Return True if the request has one of the bearer tokens, or none is required."""
    return tokens is None or token_of(request, tokens) is not None


def token_of(request: WebRequest, tokens: Tokens) -> str | None:
    """Return the bearer token of the request, if it is one of these."""
    token_text = request.headers.get("authorization", "").removeprefix("Bearer ")
    options = () if tokens is None else (tokens,) if isinstance(tokens, str) else tokens
    matches = [token for token in options if compare_digest(token_text.encode(), token.encode())]
    return matches[0] if matches else None


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.answer = WebAnswer(status, why.encode(), "text/plain; charset=utf-8")


class WebListener:
    """Server of one handler at one address, until it is cancelled.

    An error of the types `unavailable` is answered with 503, so that the sender keeps its request and tries again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler: Handler,
        *,
        unavailable: tuple[type[Exception], ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self.port, self._handler, self._tls = host, port, handler, tls
        self._unavailable = unavailable
        self.ready = asyncio.Event()
        self._slots = Shares(_MAX_CONNECTIONS, _ADDRESS_PERCENT)

    async def run(self) -> None:
        import h11  # of the extra `recorder`

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            address = network_of(writer.get_extra_info("peername"))
            if not self._slots.take(address, 1):
                writer.write(_TURNED_AWAY)
                writer.close()
                return
            try:
                await self._connection(h11, reader, writer)
            except (ConnectionError, ssl.SSLError, TimeoutError):
                pass  # the sender went away: it has no answer, so it sends again
            finally:
                self._slots.give_back(address, 1)
                writer.close()

        server = await asyncio.start_server(serve, self._host, self.port, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        async with server:
            await server.serve_forever()

    async def _connection(self, h11: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        peer = str((writer.get_extra_info("peername") or ("",))[0])
        tls = writer.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        notes: dict[str, Any] = {}
        while True:
            try:
                async with asyncio.timeout(_SECONDS):
                    request = await self._request(h11, connection, reader, writer)
                if request is None:
                    return
                answer = await self._handler(replace(request, peer=peer, certificate=certificate, notes=notes))
            except _Refused as exc:
                answer = exc.answer
            except self._unavailable as exc:  # such as a full disk
                answer = WebAnswer(503, f"{exc}\n".encode(), "text/plain; charset=utf-8", {"retry-after": "5"})
            except h11.RemoteProtocolError as exc:
                answer = WebAnswer(exc.error_status_hint, b"malformed request", "text/plain; charset=utf-8")
            headers = {
                "content-type": answer.content_type,
                "content-length": str(len(answer.body)),
                **answer.headers,
            }
            with contextlib.suppress(h11.LocalProtocolError):
                writer.write(connection.send(h11.Response(status_code=answer.status, headers=list(headers.items()))))
                writer.write(connection.send(h11.Data(data=answer.body)) or b"")
                writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    @staticmethod
    async def _request(
        h11: Any, connection: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> WebRequest | None:
        head, body = None, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    response = h11.InformationalResponse(status_code=100, headers=[])
                    writer.write(connection.send(response))
                connection.receive_data(await reader.read(_CHUNK))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _MAX_BODY:
                    raise _Refused(413, f"a body has at most {_MAX_BODY} bytes")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
                encoding = headers.get("content-encoding", "identity").lower()
                path = head.target.decode("latin-1").partition("?")[0]
                return WebRequest(head.method.decode("latin-1"), path, headers, _unpack(bytes(body), encoding))
            else:
                return None  # the other side has closed


def _unpack(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise _Refused(415, f"content-encoding {encoding!r} is not supported: send gzip or none")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        data = unpacker.decompress(body, _MAX_BODY + 1)
    except zlib.error as exc:
        raise _Refused(400, "the body is not gzip") from exc
    if len(data) > _MAX_BODY:
        raise _Refused(413, f"a body has at most {_MAX_BODY} bytes, also unpacked")
    if not unpacker.eof:
        raise _Refused(400, "the gzip body is truncated")
    return data
