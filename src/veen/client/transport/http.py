"""HTTP to a hub: connections reused, certificates always checked (spec §10.3, D-67).

HTTP/1.1, plain or over TLS, has its own lean implementation (`http1`). For a server that does not offer HTTP/1.1 in the
handshake of TLS an HTTP library is used, with HTTP/2; this is the only module that imports it. Redirects are not
followed: a hub is reached at its configured address and nowhere else. Proxies and certificates from the environment are
ignored for the same reason.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from veen.client.errors import BadAnswer, CertificateUnverified, InsecureHttp, LocalError, TimedOut, Unreachable
from veen.client.home import read_secret
from veen.client.transport.base import ATTACHMENT, NO_HEADERS, Answer
from veen.client.transport.http1 import HTTP1_PROTOCOL, Http1
from veen.core import cbor

if TYPE_CHECKING:
    import httpx2

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
