"""A listener that counts every client from the moment it is accepted.

A TLS handshake that never ends takes a slot like a connection, and no burst of clients opens more sockets than the
process has file descriptors for. The loop's own server accepts all waiting clients at a time, and reports a TLS
client only after the handshake, so no bound of the hub would cover those sockets.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from veen.io.shares import ConnectionSlot
from veen.io.tls import Tls

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
