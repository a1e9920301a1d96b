"""HTTP/1.1 on a few connections, plain or over TLS, with as little work per request as Python allows (D-67).

Batches of messages are answered in a millisecond, so a general HTTP library would cost a client as much as all its
verification. This module sends a request, reads one bounded answer, and keeps the connection. A connection that the hub
closed while it was idle is replaced silently, and the request sent again, unless the caller states that it must not
be repeated: such a request gets a new connection and is sent once.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import httptools

from veen.client.errors import BadAnswer, CertificateUnverified, NetworkError, Unreachable
from veen.client.transport.base import Answer
from veen.io.unix_socket import short_path

HTTP1_PROTOCOL: Final = "http/1.1"  # its name in a TLS handshake (RFC 7301)
_MAX_HEADERS: Final = 64 * 1024
_JOINED_BYTES: Final = 16 * 1024  # of a body that is copied behind its head: one record of TLS, one segment of TCP


class Http1:
    """Connections to one address. Calls beyond `max_connections` wait for their turn."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        headers: Mapping[str, str],
        max_answer: int,
        max_connections: int,
        idle: float,
        socket_path: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Prepare connections. With `socket_path`, a Unix socket of this machine replaces the address, and `tls` is
        unused."""
        self._host, self._port, self._max_answer, self._idle_seconds = host, port, max_answer, idle
        self._socket_path, self._tls = socket_path, tls
        name = f"[{host}]" if ":" in host else host
        name += "" if port == (80 if tls is None else 443) else f":{port}"
        self._headers = "".join(f"{key}: {value}\r\n" for key, value in {"Host": name, **headers}.items())
        self._turns = asyncio.Semaphore(max_connections)
        self._idle: deque[_Connection] = deque()

    async def call(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, again: bool = True
    ) -> Answer:
        """Return one answer; raise NetworkError if none came. The caller sets the timeout.

        A connection that breaks before the first byte of an answer may have delivered the request. Without `again` it
        is therefore never resent, and no kept connection is used, which could be broken already.
        """
        more = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}{more}Content-Length: {len(body)}\r\n\r\n".encode("latin-1")
        async with self._turns:
            while again and (idle := self._take()) is not None:
                try:
                    return await self._exchange(idle, head, body)
                except Unreachable:
                    if idle.heard:  # it broke in the middle of an answer
                        raise
            return await self._exchange(await self._connect(), head, body)

    async def offers_http1(self) -> bool:
        """Return True if a server behind TLS offers HTTP/1.1. The connection that this opens is kept."""
        try:
            connection = await self._connect()
        except Unreachable as exc:
            if getattr(exc.__cause__, "reason", None) == "TLSV1_ALERT_NO_APPLICATION_PROTOCOL":
                return False
            raise
        if connection.protocol != HTTP1_PROTOCOL:
            connection.abort()
            return False
        self._idle.append(connection)
        return True

    async def _exchange(self, connection: "_Connection", head: bytes, body: bytes) -> Answer:
        try:
            answer = await connection.exchange(head, body)
        except BaseException:
            connection.abort()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    def _take(self) -> "_Connection | None":
        """Return the idle connection that was used last, so that others can expire."""
        now = asyncio.get_running_loop().time()
        while self._idle and (not self._idle[0].is_usable or now - self._idle[0].used > self._idle_seconds):
            self._idle.popleft().abort()
        return self._idle.pop() if self._idle else None

    async def _connect(self) -> "_Connection":
        if self._socket_path is not None:
            return await self._connect_local(self._socket_path)
        loop = asyncio.get_running_loop()
        where = f"{self._host}:{self._port}"
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(where, self._max_answer), self._host, self._port, ssl=self._tls
            )
        except ssl.SSLCertVerificationError as exc:
            raise CertificateUnverified(
                f"https://{where}: {exc.verify_message or 'the certificate cannot be verified'}"
            ) from exc
        except OSError as exc:
            # asyncio replaces the text of the system by its own, with the address again
            refused = isinstance(exc, ConnectionRefusedError)
            reason = "connection refused, nothing listens there" if refused else exc.strerror or exc
            raise Unreachable(f"{where}: {reason}") from exc
        return connection

    async def _connect_local(self, path: Path) -> "_Connection":
        loop = asyncio.get_running_loop()
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.setblocking(False)
            with short_path(path) as name:
                await loop.sock_connect(local, name)
            _, connection = await loop.create_unix_connection(
                lambda: _Connection(str(path), self._max_answer), sock=local
            )
        except OSError as exc:
            local.close()
            raise Unreachable(f"{path}: {exc.strerror or exc}") from exc
        except BaseException:
            local.close()
            raise
        return connection

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().close()


class _Connection(asyncio.Protocol):
    """One connection with one request at a time. The names of the `on_` methods are the parser's."""

    def __init__(self, where: str, max_answer: int) -> None:
        self._where, self._max_answer = where, max_answer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lost = self._loop.create_future()
        self._waiting: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._head_bytes = 0  # received while the head of the present answer is not complete
        self._in_head = True
        # The first piece as it came, then a bytearray: a list of tiny chunks would take twenty times the body.
        self._body: bytes | bytearray = b""
        self._size = 0
        self.heard = False  # True once a byte of the present answer has arrived
        self.is_usable = True
        self.used = self._loop.time()

    async def exchange(self, head: bytes, body: bytes) -> Answer:
        assert self._transport is not None  # noqa: S101 - connected
        self._waiting = self._loop.create_future()
        self.heard = False
        if not self.is_usable:
            raise Unreachable(f"{self._where}: the hub closed the connection")
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return await self._waiting

    @property
    def protocol(self) -> str | None:
        """Protocol negotiated by ALPN, or None without TLS."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if tls is None else tls.selected_alpn_protocol()

    def abort(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        self.abort()
        await self._lost

    # --- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass of it

    def data_received(self, data: bytes) -> None:
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail(BadAnswer(f"{self._where}: the answer is not HTTP"))
        except httptools.HttpParserUpgrade:
            self._fail(BadAnswer(f"{self._where}: the answer changes the protocol"))
        if self._in_head:  # the parser keeps a header that has no end until memory ends
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEADERS:
                self._fail(BadAnswer(f"{self._where}: more headers than any hub sends"))
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        refused = f" ({exc.reason})" if isinstance(exc, ssl.SSLError) and exc.reason else ""  # a word of OpenSSL
        self._fail(Unreachable(f"{self._where}: the hub closed the connection before it answered{refused}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def _fail(self, error: NetworkError) -> None:
        self.is_usable = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # --- the parser ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers, self._header_bytes, self._body, self._size = {}, 0, b"", 0
        self._head_bytes, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADERS:
            self._fail(BadAnswer(f"{self._where}: more headers than any hub sends"))
            self.abort()
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_answer:
            self._fail(BadAnswer(f"{self._where}: an answer of more than {self._max_answer} bytes"))
            self.abort()
            return
        if not self._body:
            self._body = part
            return
        if type(self._body) is bytes:
            self._body = bytearray(self._body)
        self._body += part

    def on_message_complete(self) -> None:
        if self._waiting is None or self._waiting.done():  # an answer without a request
            self.is_usable = False
            return
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        self.used = self._loop.time()
        body, self._body = bytes(self._body), b""  # no copy of what is bytes already
        self._waiting.set_result(Answer(self._parser.get_status_code(), body, self._headers))
