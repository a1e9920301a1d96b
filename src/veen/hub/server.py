"""The HTTP server around the connections: listening, bounds for all of them together, time, and going away."""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from veen.hub.api import Api
from veen.hub.responses import date_line
from veen.hub.tls import Tls, check_plain
from veen.hub.tlslistener import TlsListener

if TYPE_CHECKING:
    from veen.hub.http import Connection
    from veen.hub.httpinput import Request

__all__ = ["HttpServer", "HttpSettings"]

_MAX_KNOWN_HEAD: Final = 1024
_VARYING: Final = {b"expect", b"veen-pow"}  # these belong to one body
_KNOWN_HEADS: Final = 4096

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds of the server. None of them decides about a message that arrives whole and in time."""

    max_connections: int = 4_096
    max_buffered_bytes: int = 256 * 1024 * 1024  # of bodies above 64 KiB that are not complete
    handshake_sec: float = 10.0  # of TLS
    header_sec: float = 10.0
    body_idle_sec: float = 10.0
    request_sec: float = 120.0
    keep_alive_sec: float = 75.0
    write_sec: float = 30.0
    denied_networks: tuple[Network, ...] = ()  # a static filter (001 SH1+ §5.1)


class HttpServer:
    """Listens for one API."""

    def __init__(self, api: Api, settings: HttpSettings | None = None) -> None:
        self.api = api
        self.settings = settings or HttpSettings()
        self.draining = False
        self.now = 0.0  # of the loop, as of the last tick
        self.date = date_line()
        self._heads: dict[int, bytes] = {}
        self._known: dict[bytes, Request] = {}
        self._connections: set[Connection] = set()
        self._held: set[Connection] = set()
        self._buffered = 0
        self._servers: list[asyncio.Server] = []
        self._tls_listeners: list[TlsListener] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        api.services.pipeline.on_applied(self._applied)

    # --- listening ---------------------------------------------------------------------------------------

    async def listen(
        self, host: str, port: int, *, tls: Tls | None = None, force_plain: bool = False, backlog: int = 1024
    ) -> tuple[str, int]:
        """Begin to serve; returns the address, with the port that was taken if `port` is 0."""
        from veen.hub.http import Connection

        if tls is None and not force_plain:
            check_plain(host)
        loop = asyncio.get_running_loop()
        make: Callable[[], Connection] = lambda: Connection(self)  # noqa: E731 - typed for mypy
        if self._ticker is None:
            self._tick()
        if tls is not None:
            listener = TlsListener(make, tls.context, self._has_room, self.settings.handshake_sec)
            address = await listener.open(host, port, backlog)
            self._tls_listeners.append(listener)
            return address
        server = await loop.create_server(make, host, port, backlog=backlog)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def stop(self, patience_sec: float = 10.0) -> None:
        """Take no more connections, answer what was asked, then close; after `patience_sec` close at once."""
        self.draining = True
        self.api.close()
        for server in self._servers:
            server.close()
        for listener in self._tls_listeners:
            await listener.close()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_sec)
        for connection in list(self._connections):
            connection.transport.abort()
        await self._empty.wait()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    # --- bounds ------------------------------------------------------------------------------------------

    @property
    def handshakes(self) -> int:
        """Clients that have connected and not finished their TLS handshake."""
        return sum(listener.handshakes for listener in self._tls_listeners)

    def _has_room(self) -> bool:
        """Whether one more may begin its handshake: each under way may become a connection."""
        return len(self._connections) + self.handshakes < self.settings.max_connections and not self.draining

    def join(self, connection: "Connection") -> bool:
        """Whether there is room for one more. A connection that gets no for an answer joins until it is told."""
        room = len(self._connections) < self.settings.max_connections and not self.draining
        self._connections.add(connection)
        self._empty.clear()
        return room

    def leave(self, connection: "Connection") -> None:
        self._connections.discard(connection)
        self._held.discard(connection)
        if not self._connections:
            self._empty.set()

    def hold(self, connection: "Connection") -> None:
        """A message of this client was turned away. If for want of room, the next ones wait in its socket until there
        is some, or for a tick: turning them away, too, would take the time that those who were let in need."""
        if not self.api.services.pipeline.has_room:
            self._held.add(connection)
            connection.hold(True)

    def _applied(self, labels: Sequence[bytes]) -> None:
        if self._held and self.api.services.pipeline.has_room:
            self._listen_again()

    def _listen_again(self) -> None:
        held, self._held = self._held, set()
        for connection in held:
            connection.hold(False)

    def reserve(self, size: int) -> bool:
        if self._buffered + size > self.settings.max_buffered_bytes:
            return False
        self._buffered += size
        return True

    def release(self, size: int) -> None:
        self._buffered -= size

    def is_denied(self, peer: object) -> bool:
        if not self.settings.denied_networks or not isinstance(peer, tuple):
            return False
        address = ipaddress.ip_address(peer[0])
        return any(address in network for network in self.settings.denied_networks)

    # --- time --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """A coarse clock, the Date header, and an eye on everyone's deadline."""
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        self.date = date_line()
        self._heads.clear()
        self._listen_again()
        for connection in [found for found in self._connections if found.deadline <= self.now]:
            connection.overdue()
        settings = self.settings
        shortest = min(settings.header_sec, settings.body_idle_sec, settings.keep_alive_sec, settings.write_sec)
        self._ticker = loop.call_later(min(1.0, shortest / 4), self._tick)

    # --- heads -------------------------------------------------------------------------------------------

    def known(self, head: bytes) -> "Request | None":
        """What a head means if `remember` saw it; its `size` is that of the body. Nothing while the server stops."""
        return None if self.draining else self._known.get(head)

    def remember(self, head: bytes, body_bytes: int, request: "Request") -> None:
        """Keep the head of a submit that the parser understood: the same bytes mean the same again.

        `head` and `body_bytes` are how the bytes of the request were cut at the first empty line. They are right if the
        parser, too, found a body of that size, and found it by its length: then the head alone tells where it ends.
        """
        if (
            request.size == body_bytes
            and request.headers.get(b"content-length") == b"%d" % body_bytes
            and head.startswith(b"POST ")
            and len(head) <= _MAX_KNOWN_HEAD
            and request.keep_alive
            and not request.headers.keys() & _VARYING
        ):
            if len(self._known) >= _KNOWN_HEADS:
                self._known.clear()
            self._known[head] = request.without_body()

    def ok_head(self, length: int) -> bytes:
        """The head of a submit's answer; receipts have few lengths, so it is nearly always known."""
        head = self._heads.get(length)
        if head is None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n%b\r\n" % (
                length,
                self.date,
            )
            if len(self._heads) < _KNOWN_HEADS:
                self._heads[length] = head
        return head
