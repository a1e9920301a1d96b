"""The HTTP server around the connections: listening, common bounds, time, and stopping.

`Listener` counts every client from the moment it is accepted: a TLS handshake that never ends takes a slot like a
connection, and no burst of clients opens more sockets than the process has file descriptors for. The loop's own server
accepts all waiting clients at a time, and reports a TLS client only after the handshake, so no bound of the hub would
cover those sockets.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from veen.core import cbor
from veen.hub.api.operations import Api
from veen.hub.api.reply import Reply
from veen.hub.http.request_input import Request, plain_body_bytes, split_head
from veen.io.addresses import network_of
from veen.io.descriptors import SPARES
from veen.io.shares import ConnectionSlot, ConnectionSlots, Shares
from veen.io.tls import Tls, check_plain

if TYPE_CHECKING:
    from veen.hub.http.connection import Connection

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def date_line() -> bytes:
    """Return the Date and Server headers, which all answers of one second share."""
    return f"date: {formatdate(usegmt=True)}\r\nserver: veen\r\n".encode()


def head_of(reply: Reply, date: bytes, *, keep_alive: bool, http10: bool) -> bytes:
    """Return status line and headers of a reply."""
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}"]
    if reply.status != HTTPStatus.NO_CONTENT:
        lines.append(f"content-type: {reply.content_type}")
        if reply.stream is None:
            lines.append(f"content-length: {len(reply.body)}")
        elif not http10:
            lines.append("transfer-encoding: chunked")
        lines.append("x-content-type-options: nosniff")
    if all(name.lower() != "cache-control" for name, _ in reply.headers):
        lines.append("cache-control: no-store")
    lines += [f"{name.lower()}: {value}" for name, value in reply.headers]
    if not keep_alive:
        lines.append("connection: close")
    elif http10:
        lines.append("connection: keep-alive")
    return "\r\n".join(lines).encode() + b"\r\n" + date + b"\r\n"


def chunk(data: bytes, http10: bool) -> bytes:
    """Encode a piece of a body of unknown length. HTTP/1.0 has no chunks: the end of the connection ends its body."""
    return data if http10 else b"%x\r\n%b\r\n" % (len(data), data)


_listener_log: Final = logging.getLogger(__name__)

_PAUSE_SEC: Final = 1.0  # after the process had no more file descriptors for sockets
_NO_MORE: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_TURN: Final = 8  # clients that are accepted in one turn of the event loop
_MOST_DELAY_SEC: Final = 0.01  # between two turns while others write: one of the new clients may be a writer


class Listener:
    """Acceptor of clients: it accepts, shakes hands and hands over to a protocol. `enter` returns a slot, or
    refuses."""

    def __init__(
        self,
        make: Callable[[ConnectionSlot], asyncio.Protocol],
        enter: Callable[[object], ConnectionSlot | None],
        handshake_sec: float,
        tls: Tls | None = None,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Prepare a listener. `delay` returns the seconds that work for clients that do not write must wait."""
        self._make, self._enter, self._handshake_sec, self._tls = make, enter, handshake_sec, tls
        self._delay = delay
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: dict[asyncio.Task[None], socket.socket] = {}
        self._fresh: dict[socket.socket, ConnectionSlot] = {}  # accepted; no transport closes them yet

    @property
    def handshakes(self) -> int:
        """Clients that were accepted and have no connection yet."""
        return len(self._opening)

    async def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Listen on every address of `host`; return the first one."""
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((info[0], info[4]) for info in addresses):
                sockets.append(socket.create_server(address[:2], family=family, backlog=backlog))
                sockets[-1].setblocking(False)
        except BaseException:
            for listening in sockets:
                listening.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    def replace(self, tls: Tls, *, trust_removed: bool) -> None:
        """Use `tls` for handshakes from now on. With `trust_removed`, cancel handshakes under the old settings:
        their clients may no longer be trusted."""
        if self._tls is None:
            return
        self._tls = tls
        for task, client in self._opening.items() if trust_removed else ():
            if client not in self._fresh:  # one that has not begun takes the new context by itself
                task.cancel()

    async def close(self) -> None:
        """Stop accepting, and close clients that have not finished their handshake."""
        tasks = [*self._accepting, *self._opening]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for client, slot in self._fresh.items():
            client.close()
            slot.release()
        self._fresh.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                for _ in range(_TURN):
                    try:
                        client, peer = await loop.sock_accept(listening)
                    except OSError as exc:  # the client disconnected again, or the process has too many files open
                        if exc.errno in _NO_MORE:
                            _listener_log.error("no connection can be accepted for now: %s", exc.strerror)
                            await asyncio.sleep(_PAUSE_SEC)
                        continue
                    self._admit(client, peer)
                # `sock_accept` does not wait while clients wait.
                await asyncio.sleep(min(self._delay(), _MOST_DELAY_SEC))

    def _admit(self, client: socket.socket, peer: object) -> None:
        slot = self._enter(peer)
        if slot is None or (slot.refusal is not None and self._tls is not None):
            client.close()  # with TLS the reason cannot be sent before the handshake
            if slot is not None:
                slot.release()
            return
        with contextlib.suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fresh[client] = slot
        task = asyncio.create_task(self._open(client, slot))
        self._opening[task] = client
        task.add_done_callback(self._opening.pop)

    async def _open(self, client: socket.socket, slot: ConnectionSlot) -> None:
        del self._fresh[client]
        tls = self._tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(slot),
                client,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=None if tls is None else self._handshake_sec,
            )
        except OSError:  # of which TLS errors and the time limit are kinds
            slot.release()
        except BaseException:
            slot.release()
            raise


_MAX_HEAD_BYTES: Final = 1024
_LEAST_SHARE: Final = 2 * cbor.MAX_ITEM_BYTES  # of bytes: any one request and any one answer fit
_POW: Final = b"veen-pow"  # belongs to one body, like "expect"
_MAX_HEADS: Final = 4096
_SHED: Final = 32  # idle connections at a time
_log: Final = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bounds of the server. None of them affects a message that arrives complete and in time."""

    max_connections: int = 4_096
    address_percent: int = 100  # of connections and of the bytes below that one address may hold
    max_buffered_bytes: int = 256 * 1024 * 1024  # of bodies above 64 KiB that are not complete
    max_answer_bytes: int = 256 * 1024 * 1024  # of answers above 64 KiB that their clients have not read
    handshake_sec: float = 10.0  # of TLS
    header_sec: float = 10.0
    body_idle_sec: float = 10.0
    request_sec: float = 120.0
    keep_alive_sec: float = 75.0
    write_sec: float = 30.0
    denied_networks: tuple[Network, ...] = ()  # a static filter (001 SH1+ §5.1)
    loopback_only: bool = False  # answer only to names of loopback, so that no web page reaches the hub by another name


class HttpServer:
    """The HTTP server of one API. Every field is owned by the event loop's thread."""

    def __init__(self, api: Api, settings: HttpSettings | None = None) -> None:
        self.api = api
        self.settings = settings or HttpSettings()
        self.draining = False  # set by `stop`, never cleared
        self.now = 0.0  # the loop's time as of the last tick
        self.date = date_line()  # the Date header as of the last tick
        self._heads: dict[int, bytes] = {}  # heads of answers by the length of their body; emptied by each tick
        self._remembered: dict[bytes, Request] = {}  # requests by their head, as accepted by `remember`
        self._rests: dict[bytes, Request] = {}  # the same by the rest that `split_head` returns, without proof of work
        self._connections: set[Connection] = set()  # from connection_made until connection_lost
        self._on_hold: set[Connection] = set()  # clients that wait for room in the sequencer's queue
        self.priority = api.context.priority
        self._delayed: dict[Connection, None] = {}  # in order: clients that wait in favour of writers
        self._delay_timer: asyncio.TimerHandle | None = None  # runs while `_delayed` is not empty
        settings, percent = self.settings, self.settings.address_percent
        self.slots = ConnectionSlots(Shares(settings.max_connections, percent))
        self.bodies = Shares(settings.max_buffered_bytes, percent, least=_LEAST_SHARE)
        self.answers = Shares(settings.max_answer_bytes, percent, least=_LEAST_SHARE)
        self._listeners: list[Listener] = []
        self._ticker: asyncio.TimerHandle | None = None  # runs from the first `listen` until the end of `stop`
        self._empty = asyncio.Event()  # set while there are no connections
        self._empty.set()
        api.services.sequencer.on_applied(self._on_applied)

    # --- listening ---------------------------------------------------------------------------------------

    async def listen(
        self, host: str, port: int, *, tls: Tls | None = None, force_plain: bool = False, backlog: int = 1024
    ) -> tuple[str, int]:
        """Begin to serve; return the address, with the chosen port if `port` is 0."""
        from veen.hub.http.connection import Connection

        if tls is None and not force_plain:
            check_plain(host)
        if self._ticker is None:
            self._tick()
        listener = Listener(
            lambda slot: Connection(self, slot), self._enter, self.settings.handshake_sec, tls, self.priority.delay
        )
        address = await listener.open(host, port, backlog)
        self._listeners.append(listener)
        return address

    def reload(self, settings: HttpSettings, tls: Tls | None, *, trust_removed: bool) -> None:
        """Apply other settings and files.

        With `trust_removed`, clients whose certificate was verified by the old files must show it again. Clients for
        which `denied_networks` gives another result now must connect again.
        """
        self.settings = settings
        percent = settings.address_percent
        self.slots.shares.resize(settings.max_connections, percent)
        self.bodies.resize(settings.max_buffered_bytes, percent)
        self.answers.resize(settings.max_answer_bytes, percent)
        if tls is not None:
            for listener in self._listeners:
                listener.replace(tls, trust_removed=trust_removed)
        for connection in list(self._connections):
            peer = connection.transport.get_extra_info("peername")
            if trust_removed or connection.is_denied != self.is_denied(peer):
                connection.dismiss()

    def hurry(self) -> None:
        """Close all connections at once."""
        for connection in list(self._connections):
            connection.abort()

    async def stop(self, patience_sec: float = 10.0) -> None:
        """Stop accepting, answer requests that have begun, then close. After `patience_sec` close at once."""
        self.draining = True
        self.api.close()
        for listener in self._listeners:
            await listener.close()
        for connection in list(self._connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_sec)
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()
        for timer in (self._ticker, self._delay_timer):
            if timer is not None:
                timer.cancel()
        self._ticker = self._delay_timer = None

    # --- bounds ------------------------------------------------------------------------------------------

    @property
    def handshakes(self) -> int:
        """Number of clients in a TLS handshake: accepted, and without a connection yet."""
        return sum(listener.handshakes for listener in self._listeners)

    @property
    def connections(self) -> int:
        """Number of slots in use, handshakes included."""
        return self.slots.shares.in_use

    def _enter(self, peer: object) -> ConnectionSlot | None:
        """Return a slot for a client that was just accepted."""
        slot = self.slots.enter(network_of(peer))
        if slot is None or slot.refusal is not None:
            self.api.services.observer.on_connection_refused()
        return slot

    def join(self, connection: "Connection") -> None:
        self._connections.add(connection)
        self._empty.clear()

    def leave(self, connection: "Connection") -> None:
        self._connections.discard(connection)
        self._on_hold.discard(connection)
        self._delayed.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def hold(self, connection: "Connection") -> None:
        """Hold a client whose message was refused for want of room.

        Its next messages wait in its socket until there is room, or for a tick: refusing them, too, would take the
        time that accepted messages need.
        """
        if not self.api.services.sequencer.has_room:
            self._on_hold.add(connection)
            connection.hold(True)

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        if self._on_hold and self.api.services.sequencer.has_room:
            self._listen_again()

    def _listen_again(self) -> None:
        on_hold, self._on_hold = self._on_hold, set()
        for connection in on_hold:
            connection.hold(False)

    def delay(self, connection: "Connection") -> None:
        """Hold a client whose requests took time and led to no message while others write, until its turn comes."""
        self._delayed[connection] = None
        connection.hold(True)
        if self._delay_timer is None:
            self._delay_timer = asyncio.get_running_loop().call_later(self.priority.delay(), self._resume_delayed)

    def _resume_delayed(self) -> None:
        """Let the first client continue. Its work makes the next one wait again, so clients continue one by one."""
        self._delay_timer = None
        while self._delayed and not self.priority.delay():
            connection = next(iter(self._delayed))
            del self._delayed[connection]
            connection.hold(False)
            if self._delay_timer is not None:  # it was delayed again
                return
        if self._delayed:
            self._delay_timer = asyncio.get_running_loop().call_later(self.priority.delay(), self._resume_delayed)

    def is_denied(self, peer: object) -> bool:
        if not self.settings.denied_networks or not isinstance(peer, tuple):
            return False
        address = ipaddress.ip_address(peer[0])
        return any(address in network for network in self.settings.denied_networks)

    # --- time --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Advance the coarse clock and the Date header, and check the deadlines of all connections."""
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        self.date = date_line()
        self._heads.clear()
        self._listen_again()
        if not SPARES.refill():
            self._shed()
        for connection in [late for late in self._connections if late.deadline <= self.now]:
            connection.on_overdue()
        wall_clock = time.time()
        for connection in [each for each in self._connections if each.expires <= wall_clock]:
            connection.dismiss()
        settings = self.settings
        shortest = min(settings.header_sec, settings.body_idle_sec, settings.keep_alive_sec, settings.write_sec)
        self._ticker = loop.call_later(min(1.0, shortest / 4), self._tick)

    def _shed(self) -> None:
        """Close idle connections: storage had to use spare descriptors, and none came back."""
        idle = sorted((each for each in self._connections if each.is_idle), key=lambda each: each.deadline)
        _log.warning("file descriptors are short: closing %d idle connections", min(len(idle), _SHED))
        for connection in idle[:_SHED]:
            connection.close()

    # --- heads -------------------------------------------------------------------------------------------

    def find_remembered(self, head: bytes) -> Request | None:
        """Return the request that `remember` kept for this head, its `size` that of the body; None while the server
        stops."""
        return None if self.draining else self._remembered.get(head)

    def find_similar(self, head: bytes) -> tuple[Request | None, str | None]:
        """Return the remembered request whose head differs only in lines without meaning and in the proof of work,
        and that proof."""
        if self.draining or len(head) > _MAX_HEAD_BYTES:
            return None, None
        rest, proof = split_head(head)
        return self._rests.get(rest), proof

    def remember(self, head: bytes, body_bytes: int, request: Request) -> None:
        """Keep the head of a submit that the parser understood: the same bytes mean the same again.

        The request came alone: `head` up to the first empty line, then `body_bytes` to the end of the input. Only a
        head that can be read in one way and states that very length is kept: the end of a body must follow from the
        head alone, whoever sends it next and whatever follows.
        """
        if (
            request.size == body_bytes
            and len(head) <= _MAX_HEAD_BYTES
            and request.keep_alive
            and b"expect" not in request.headers
            and plain_body_bytes(head) == body_bytes
        ):
            if len(self._remembered) >= _MAX_HEADS or len(self._rests) >= _MAX_HEADS:
                self._remembered.clear()
                self._rests.clear()
            meaning, (rest, proof) = request.without_body(), split_head(head)
            if _POW not in request.headers:
                self._remembered[head] = self._rests[rest] = meaning
            elif proof is not None:  # otherwise the header has no valid form and stays in the rest
                meaning.headers = {name: value for name, value in request.headers.items() if name != _POW}
                self._rests[rest] = meaning

    def ok_head(self, length: int) -> bytes:
        """Return the head of a submit's answer. Receipts have few lengths, so it is nearly always cached."""
        head = self._heads.get(length)
        if head is None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n%b\r\n" % (
                length,
                self.date,
            )
            if len(self._heads) < _MAX_HEADS:
                self._heads[length] = head
        return head
