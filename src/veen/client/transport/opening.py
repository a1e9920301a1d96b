"""The transport for a URL: http, https, file, nats, nats+tls, quic. Each is imported when it is used."""

from pathlib import Path
from typing import TypedDict

from veen.client.errors import LocalError
from veen.client.transport.addresses import SCHEMES, check_hub_url
from veen.client.transport.calls import Transport
from veen.client.transport.http import CALL_SECONDS, HttpTransport


class _Tls(TypedDict):
    """Options of the transports that encrypt."""

    ca_file: Path | None
    client_cert: Path | None
    client_key: Path | None


class _Call(TypedDict):
    """Options of every transport."""

    token_file: Path | None
    timeout: float


def open_transport(
    url: str,
    *,
    ca_file: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    token_file: Path | None = None,
    insecure_http: bool = False,
    timeout: float = CALL_SECONDS,
    socket_path: Path | None = None,
) -> Transport:
    """Open the transport of a URL inside the event loop of its connections. Raise LocalError if the URL is invalid."""
    scheme = url.partition(":")[0]
    tls: _Tls = {"ca_file": ca_file, "client_cert": client_cert, "client_key": client_key}
    call: _Call = {"token_file": token_file, "timeout": timeout}
    if socket_path is not None or scheme not in SCHEMES or scheme in ("http", "https"):
        return HttpTransport(url, **tls, **call, insecure_http=insecure_http, socket_path=socket_path)
    try:
        url = check_hub_url(url)
    except ValueError as exc:
        raise LocalError(f"not the address of a hub: {exc}") from exc
    if scheme == "file":
        from veen.client.transport.framed import FileTransport

        return FileTransport(url, **call)
    if scheme == "quic":
        from veen.client.transport.quic import QuicTransport

        return QuicTransport(url, **tls, **call)
    from veen.client.transport.nats import NatsTransport

    return NatsTransport(url, **tls, **call, insecure_http=insecure_http)
