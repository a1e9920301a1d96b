"""An ASGI server: uvicorn with limits, with the hub's TLS, and with the client certificate in the scope of each
request.

uvicorn verifies client certificates but does not pass them to the application, so our protocol class reads the names
when a connection is made. No header, not even one of a proxy, is accepted in place of a certificate.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from veen.io.tls import Tls, expiry_of, names_of

_KEY: Final = "veen.client_certificate"  # in scope["extensions"]
_MAX_REQUESTS: Final = 1000  # at once
_MAX_HEAD_BYTES: Final = 64 * 1024
_GRACE_SECONDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """Contents of a verified certificate: common name, DNS names and URIs, and its end in seconds."""

    names: tuple[str, ...]
    expires_at: float


def certificate_of(scope: Any) -> ClientCertificate | None:
    """Return the client certificate of the connection of a request; None if it has none."""
    certificate = (scope.get("extensions") or {}).get(_KEY)
    return certificate if isinstance(certificate, ClientCertificate) else None


class CertificateProtocol(H11Protocol):
    """HTTP/1.1 that puts the client certificate of the connection into `scope["extensions"]`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        peer = tls.getpeercert() if tls is not None else None  # empty or None without a certificate that was verified
        if not peer:
            return
        certificate, app = ClientCertificate(names=names_of(peer), expires_at=expiry_of(peer)), self.app

        async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
            extensions = {**(scope.get("extensions") or {}), _KEY: certificate}
            await app({**scope, "extensions": extensions}, receive, send)

        self.app = with_certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address and TLS files of a service. With `client_ca`, clients may present a certificate that it signed."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None

    def tls(self) -> Tls | None:
        """Return the TLS context; raise TlsError if the files cannot be used."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Tls(self.tls_cert, self.tls_key, self.client_ca, demand_client=False)


def make_server(app: Any, at: ListenAddress) -> uvicorn.Server:
    """Return a server that is not started yet."""
    tls = at.tls()
    config = uvicorn.Config(
        app,
        host=at.host,
        port=at.port,
        http=CertificateProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=_MAX_REQUESTS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    return uvicorn.Server(config)


def renew_certificate(server: uvicorn.Server, at: ListenAddress) -> None:
    """Load the certificate files again for new connections; raise TlsError, and change nothing, if they are invalid.

    The client CA does not change: a context that trusts an authority cannot be made to distrust it.
    """
    if at.tls() is not None and server.config.ssl is not None:  # read whole by a context of its own first
        server.config.ssl.load_cert_chain(str(at.tls_cert), str(at.tls_key))


@contextlib.asynccontextmanager
async def listening(server: uvicorn.Server, at: ListenAddress) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """Serve while the context lasts; yield the URL and the serving task. On exit the server has stopped."""
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn sets a flag and tells nobody
            await asyncio.sleep(0.02)
        if serving.done():
            await serving  # raises why
            raise OSError(f"{at.host}:{at.port}: the server did not start")
        port = server.servers[0].sockets[0].getsockname()[1]
        scheme = "http" if at.tls_cert is None else "https"
        yield f"{scheme}://{f'[{at.host}]' if ':' in at.host else at.host}:{port}", serving
    finally:
        server.should_exit = True
        await serving
