"""The local socket of a hub: a Unix socket in its data directory, for administrators on the same machine.

Only the hub's own user and root can open it, and they can read the private keys anyway. So every caller is an
administrator and needs neither token nor certificate: `veen hub status DIR` works for any TLS configuration. Where
no socket can be made (a file system without sockets), only this access is missing.

`reload.json` beside the socket has the outcome of the last reload, for `veen hub reload`.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from veen.hub.http.connection import Connection
from veen.hub.http.server import HttpServer
from veen.io.addresses import short_path
from veen.io.local import OsFs
from veen.storage import layout

_BACKLOG: Final = 16
_DIRECTORY_MODE: Final = 0o700
_SOCKET_MODE: Final = 0o600


class _LocalConnection(Connection):
    """A connection of an administrator on this machine."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._principal = replace(self._principal, local=True)


class LocalSocket:
    """The socket and its notes. Created while the lock of the data directory is held; owned by the event loop's
    thread."""

    def __init__(self, fs: OsFs) -> None:
        self._directory: Final = fs.root / layout.LOCAL
        self._path: Final = fs.root / layout.LOCAL_SOCKET
        self._note: Final = fs.root / layout.RELOAD
        self._server: asyncio.Server | None = None
        self._reloads = 0

    async def open(self, server: HttpServer) -> None:
        """Listen beside the port of `server`, for the same API. Raise OSError if no socket can be made."""
        self._check_directory()
        for stale in (self._path, self._note):  # left by a hub that was killed
            stale.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self._path) as name:
                listening.bind(name)
            self._path.chmod(_SOCKET_MODE)  # nobody else could reach it before: the directory is private
            listening.setblocking(False)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                lambda: _LocalConnection(server), sock=listening, backlog=_BACKLOG
            )
        except BaseException:
            listening.close()
            raise

    def _check_directory(self) -> None:
        self._directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        status = self._directory.lstat()
        if self._directory.is_symlink() or status.st_uid != os.geteuid():
            raise PermissionError(f"{self._directory}: not a directory of the hub's own user")
        if status.st_mode & 0o077:
            self._directory.chmod(_DIRECTORY_MODE)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(OSError):
            for path in (self._path, self._note):
                path.unlink(missing_ok=True)
            self._directory.rmdir()

    def note_reload(self, *, applied: Sequence[str] = (), needs_restart: Sequence[str] = (), error: str = "") -> None:
        """Write the outcome of a reload. `number` distinguishes one reload from the next."""
        self._reloads += 1
        result = {
            "number": self._reloads,
            "ok": not error,
            "applied": list(applied),
            "needs_restart": list(needs_restart),
            "error": error,
        }
        with contextlib.suppress(OSError):  # without a local socket nobody waits for it
            temporary = Path(f"{self._note}.tmp")
            temporary.write_text(json.dumps(result), "utf-8")
            temporary.replace(self._note)
