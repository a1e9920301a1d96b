"""HTTP to a hub: connections reused, certificates always checked (spec §10.3, D-67).

HTTP/1.1, plain or over TLS, has its own lean implementation (`http1`). For a server that does not offer HTTP/1.1 in the
handshake of TLS an HTTP library is used, with HTTP/2; this is the only module that imports it. Redirects are not
followed: a hub is reached at its configured address and nowhere else. Proxies and certificates from the environment are
ignored for the same reason.

HTTP/1.1 on a few connections, plain or over TLS, with as little work per request as Python allows (D-67).

Batches of messages are answered in a millisecond, so a general HTTP library would cost a client as much as all its
verification. This module sends a request, reads one bounded answer, and keeps the connection. A connection that the hub
closed while it was idle is replaced silently, and the request sent again, unless the caller states that it must not
be repeated: such a request gets a new connection and is sent once.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import httptools

from veen.client.errors import (
    BadAnswer,
    CertificateUnverified,
    InsecureHttp,
    LocalError,
    NetworkError,
    TimedOut,
    Unreachable,
)
from veen.client.home import read_secret
from veen.client.transport.calls import ATTACHMENT, NO_HEADERS, Answer
from veen.core import cbor
from veen.io.addresses import short_path

if TYPE_CHECKING:
    import httpx2

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


_CBOR: Final = "application/cbor"
CALL_SECONDS: Final = 30.0  # for one call, from the first byte to the last
_MAX_CONNECTIONS: Final = 64
_IDLE_SECONDS: Final = 60.0  # shorter than the 75 s after which a hub closes an idle connection
_MAX_TOKEN_BYTES: Final = 8192
_MAX_CAUSES: Final = 8  # of an error of the HTTP library, down to the one of TLS


class HttpTransport:
    """One hub behind one URL. Open it inside an event loop; `aclose` closes its connections."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        client_cert: Path | None = None,
        client_key: Path | None = None,
        token_file: Path | None = None,
        insecure_http: bool = False,
        timeout: float = CALL_SECONDS,
        max_answer_bytes: int = cbor.MAX_ITEM_BYTES,
        socket_path: Path | None = None,
    ) -> None:
        """Prepare the transport. With `socket_path` the hub is called through that Unix socket of this machine, in
        plain HTTP; `url` is then only its name."""
        scheme, host, port, self._path = _parts_of(url)
        self.url = url.rstrip("/")
        self._timeout = timeout
        headers = {"Content-Type": _CBOR, "Accept": _CBOR, "Accept-Encoding": "identity"}
        if token_file is not None and socket_path is None:
            check_secret_may_travel(url, insecure_http=insecure_http)
            headers["Authorization"] = f"Bearer {read_token(token_file)}"
        encrypted = scheme == "https" and socket_path is None
        tls = tls_of(ca_file, client_cert, client_key) if encrypted else None
        if tls is not None:
            tls.set_alpn_protocols([HTTP1_PROTOCOL])
        lean = Http1(
            host if socket_path is None else "localhost",
            port or (443 if encrypted else 80),
            socket_path=socket_path,
            headers=headers,
            max_answer=max_answer_bytes,
            max_connections=_MAX_CONNECTIONS,
            idle=_IDLE_SECONDS,
            tls=tls,
        )
        self._carrier: Http1 | _TlsHttp = lean
        if tls is not None:

            def make_http2() -> _LibraryHttp:
                context = tls_of(ca_file, client_cert, client_key)
                return _LibraryHttp(f"https://{urlsplit(url).netloc}", headers, context, max_answer_bytes)

            self._carrier = _TlsHttp(lean, make_http2)

    def __repr__(self) -> str:
        return f"HttpTransport({self.url!r})"

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        method = "GET" if not body else "PUT" if operation.startswith(ATTACHMENT) else "POST"
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                return await self._carrier.call(method, f"{self._path}/{operation}", body, headers, again=again)
        except TimeoutError as exc:
            raise TimedOut(f"{self.url}/{operation}: no answer within {limit:g} s") from exc

    async def aclose(self) -> None:
        await self._carrier.aclose()


class _TlsHttp:
    """HTTP over TLS: the lean implementation if the server offers HTTP/1.1, as every hub does, otherwise the
    library."""

    def __init__(self, lean: Http1, make_http2: Callable[[], "_LibraryHttp"]) -> None:
        self._lean, self._make_http2 = lean, make_http2
        self._carrier: Http1 | _LibraryHttp | None = None  # None until a server has answered a handshake
        self._choosing = asyncio.Lock()

    async def call(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, again: bool = True
    ) -> Answer:
        if self._carrier is None:
            async with self._choosing:
                if self._carrier is None:
                    self._carrier = self._lean if await self._lean.offers_http1() else self._make_http2()
        return await self._carrier.call(method, path, body, headers, again=again)

    async def aclose(self) -> None:
        await self._lean.aclose()
        if isinstance(self._carrier, _LibraryHttp):
            await self._carrier.aclose()


class _LibraryHttp:
    """HTTP/2, or HTTP/1.1 with a server that selects no protocol in the handshake."""

    def __init__(self, base: str, headers: Mapping[str, str], tls: ssl.SSLContext, max_answer: int) -> None:
        import httpx2  # imported only when needed: it is slow to load

        self._base, self._max_answer, self._library = base, max_answer, httpx2
        self._client: httpx2.AsyncClient = httpx2.AsyncClient(
            headers=dict(headers),
            verify=tls,
            http2=True,
            follow_redirects=False,
            trust_env=False,
            timeout=None,  # bounded by the caller, from the first byte to the last
            limits=httpx2.Limits(
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_MAX_CONNECTIONS,
                keepalive_expiry=_IDLE_SECONDS,
            ),
        )

    async def call(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], *, again: bool = True
    ) -> Answer:
        """Send the request once, with or without `again`: the library resends nothing by itself."""
        library = self._library
        request = self._client.build_request(method, self._base + path, content=body or None, headers=dict(headers))
        try:
            response = await self._client.send(request, stream=True)
            try:
                data = await self._read(response)
            finally:
                await response.aclose()
        except library.RemoteProtocolError as exc:
            if "disconnected" in str(exc).lower():
                raise Unreachable(f"{self._base}: the hub closed the connection before it answered") from exc
            raise BadAnswer(f"{self._base}: the answer is not HTTP") from exc
        except (library.ProtocolError, library.DecodingError) as exc:
            raise BadAnswer(f"{self._base}: the answer is not HTTP") from exc
        except (library.TransportError, OSError) as exc:
            if (fault := _certificate_fault(exc)) is not None:
                raise CertificateUnverified(f"{self._base}: {fault}") from exc
            raise Unreachable(f"{self._base}: {_reason(exc)}") from exc
        return Answer(response.status_code, data, {name.lower(): value for name, value in response.headers.items()})

    async def _read(self, response: "httpx2.Response") -> bytes:
        """Read the body within bounds: a hub must not make a client hold more than the protocol allows."""
        data = bytearray()  # one buffer: a list of two-byte parts would take twenty times their size
        async for part in response.aiter_raw():
            if len(data) + len(part) > self._max_answer:
                raise BadAnswer(f"{self._base}: an answer of more than {self._max_answer} bytes")
            data += part
        return bytes(data)

    async def aclose(self) -> None:
        await self._client.aclose()


def _parts_of(url: str) -> tuple[str, str, int | None, str]:
    """Return (scheme, host, port, path without a slash at its end). Raise LocalError for an invalid address of a
    hub."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as exc:
        raise LocalError(f"{url[:80]!r} is not a URL") from exc
    strange = (
        parts.username or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url
    )
    if parts.scheme not in ("http", "https") or not host or strange:
        raise LocalError(f"{url[:80]!r} is not the address of a hub: expected http://HOST:PORT or https://HOST:PORT")
    return parts.scheme, host, port, parts.path.rstrip("/")


def tls_of(ca_file: Path | None, client_cert: Path | None, client_key: Path | None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer that always checks names and chains."""
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_cert is not None:
            context.load_cert_chain(client_cert, client_key)
    except (OSError, ssl.SSLError) as exc:
        raise LocalError(f"{ca_file or client_cert}: not usable for TLS: {_reason(exc)}") from exc
    return context


def check_secret_may_travel(url: str, *, insecure_http: bool) -> None:
    """Raise InsecureHttp if a secret would go to another machine unencrypted and the user has not allowed that."""
    scheme, host, _, _ = _parts_of(url)
    if scheme == "http" and not insecure_http and not is_loopback(host):
        raise InsecureHttp(url)


def is_loopback(host: str) -> bool:
    """Return True for a loopback address, or the one reserved name (RFC 6761); no other name is looked up.

    The unspecified address, at which a hub may listen, is reached without leaving the machine as well.
    """
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Read the bearer token from a file that only its owner may read."""
    try:
        text = read_secret(path, _MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise LocalError(f"{path}: the bearer token cannot be read") from exc
    if not text or not text.isprintable() or " " in text:
        raise LocalError(f"{path}: expected exactly one bearer token")
    return text


def _certificate_fault(exc: BaseException | None) -> str | None:
    """Return the reason why the certificate was refused, if that caused `exc`, else None."""
    for _ in range(_MAX_CAUSES):
        if exc is None:
            return None
        if isinstance(exc, ssl.SSLCertVerificationError):
            return exc.verify_message or "the certificate cannot be verified"
        exc = exc.__cause__ or exc.__context__
    return None


def _reason(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
