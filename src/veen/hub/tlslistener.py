"""Listening for TLS, with every handshake under way counted: one that never ends takes a place like a connection.

The loop's own server tells its protocols about a client only after the handshake, so whoever connects and then says
nothing would cost a socket and buffers that no bound knows of (slow loris).
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

__all__ = ["TlsListener"]

_log: Final = logging.getLogger(__name__)

_PAUSE_SEC: Final = 1.0  # when the process has no more files for sockets
_NO_MORE: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class TlsListener:
    """Accepts, shakes hands, and hands over to a protocol. `has_room` is asked before each handshake."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        has_room: Callable[[], bool],
        handshake_sec: float,
    ) -> None:
        self._make, self._context, self._has_room, self._handshake_sec = make, context, has_room, handshake_sec
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._fresh: set[socket.socket] = set()  # accepted; no transport closes them yet

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._handshakes)

    async def open(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Begin to listen on every address of `host`; returns the first."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((info[0], info[4]) for info in found):
                sockets.append(socket.create_server(address[:2], family=family, backlog=backlog))
                sockets[-1].setblocking(False)
        except BaseException:
            for listening in sockets:
                listening.close()
            raise
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets]
        address = sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Take no more, and let go of those who have not finished their handshake."""
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for client in self._fresh:
            client.close()
        self._fresh.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    client, _ = await loop.sock_accept(listening)
                except OSError as exc:  # the client went away again, or the process has too many files open
                    if exc.errno in _NO_MORE:
                        _log.error("no connection can be accepted for now: %s", exc.strerror)
                        await asyncio.sleep(_PAUSE_SEC)
                    continue
                if not self._has_room():
                    client.close()  # there is no telling why before the handshake
                    continue
                self._fresh.add(client)
                task = asyncio.create_task(self._shake_hands(client))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, client: socket.socket) -> None:
        self._fresh.discard(client)
        with contextlib.suppress(OSError):  # of which TLS errors and the time limit are kinds
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(
                self._make, client, ssl=self._context, ssl_handshake_timeout=self._handshake_sec
            )
