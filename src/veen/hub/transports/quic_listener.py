"""Calls over QUIC (D-113); `veen.io.quic_link` defines their form.

An address is validated before it costs more than a packet (Retry). Connections are bounded in all and for each
address, and so are calls, incoming bodies and unread answers, the last two together with those of HTTP. A client
that does not read its answers is disconnected.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from veen.core.catalogue import install_hint
from veen.hub.http.server import HttpServer
from veen.hub.process.config import ConfigError, HubConfig
from veen.hub.transports.door import CallDoor
from veen.io.quic_link import server_configuration
from veen.io.shares import Shares

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

_STOP_SEC: Final = 10.0


class QuicListener:
    """One UDP port. Every field is owned by the event loop's thread."""

    def __init__(self, door: CallDoor, config: HubConfig, http: HttpServer) -> None:
        self.door, self._config, self.http = door, config, http
        self.connections = Shares(config.quic.max_connections, config.listen.address_percent)
        self.draining = False
        self.calls: set[asyncio.Task[None]] = set()
        self._server: Any = None  # of aioquic, from `start` on
        self._port = 0

    @property
    def url(self) -> str:
        host = self._config.listen.host
        return f"quic://{f'[{host}]' if ':' in host else host}:{self._port}"

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raise ConfigError if that is not possible."""
        listen, port = self._config.listen, self._config.quic.port
        try:
            configuration = self._make_configuration(self._config)
            from veen.hub.transports.quic_connection import make_server
        except ImportError as exc:
            raise ConfigError(
                "", "quic.enabled", "needs a package that is not installed", install_hint("quic")
            ) from exc
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(listen.host, port, type=socket.SOCK_DGRAM)
            transport, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: make_server(self, configuration), local_addr=(str(infos[0][4][0]), port), family=infos[0][0]
            )
        except OSError as exc:
            what = f"cannot listen on {listen.host}, UDP port {port}: {exc.strerror or exc}"
            raise ConfigError(self._config.origins.get("quic.port", "default"), "quic.port", what) from exc
        self._port = transport.get_extra_info("sockname")[1]

    def _make_configuration(self, config: HubConfig) -> "QuicConfiguration":
        tls = config.tls
        if tls.cert is None or tls.key is None:
            raise ConfigError("", "quic.enabled", "needs tls.cert and tls.key", "QUIC is always encrypted: give both.")
        try:
            return server_configuration(tls.cert, tls.key)
        except (OSError, ValueError) as exc:
            raise ConfigError(str(tls.cert), "tls.cert", f"not usable for QUIC: {exc}", "Give PEM files.") from exc

    def prepare(self, config: HubConfig) -> Callable[[], None]:
        """Read certificate and key; return the function that applies them to later connections."""
        configuration = self._make_configuration(config)

        def use() -> None:
            self._server._configuration = configuration

        return use

    async def drain(self) -> None:
        """Accept no more calls and connections."""
        self.draining = True

    async def stop(self) -> None:
        """Finish accepted calls, then close."""
        if self._server is None:
            return
        if self.calls:
            await asyncio.wait(self.calls, timeout=_STOP_SEC)
        for call in self.calls:
            call.cancel()
        if self.calls:
            await asyncio.wait(self.calls)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._wait_flushed(), 1)
        self._server.close()
        await asyncio.sleep(0)  # the loop closes the socket

    async def _wait_flushed(self) -> None:
        while any(link.unread for link in set(self._server._protocols.values())):  # noqa: ASYNC110 - as there
            await asyncio.sleep(0.01)
