"""The console as a server: uvicorn with the limits of the console, and the address once it listens."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvicorn

from veen.products.console.app import make_app
from veen.products.console.guard import BrowserAdmission
from veen.products.console.passwords import PasswordFile
from veen.products.console.views import Console

_MAX_REQUESTS: Final = 100  # at once
_MAX_HEAD_BYTES: Final = 64 * 1024

Announce = Callable[[str, BrowserAdmission], None]


class Listening:
    """Address and options of a console's listener. `root_path` is the prefix of every path behind a proxy."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        names: tuple[str, ...] = (),
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        root_path: str = "",
        passwords: PasswordFile | None = None,
    ) -> None:
        """Set the options. With `passwords` people log in; otherwise one browser presents a token."""
        self.host, self.port, self.names, self.passwords = host, port, names, passwords
        self.tls_cert, self.tls_key, self.root_path = tls_cert, tls_key, root_path

    @property
    def shown_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


async def serve(console: Console, at: Listening, announce: Announce) -> None:
    """Serve until the process is stopped. `announce` gets the address, without the token, once it listens."""
    admission = BrowserAdmission(
        [at.shown_host, *at.names], secure=at.tls_cert is not None, root_path=at.root_path, passwords=at.passwords
    )
    config = uvicorn.Config(
        make_app(console, admission),
        host=at.host,
        port=at.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        ssl_certfile=at.tls_cert,
        ssl_keyfile=at.tls_key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
        timeout_graceful_shutdown=5,
        limit_concurrency=_MAX_REQUESTS,
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    scheme = "https" if at.tls_cert else "http"

    async def announce_when_ready() -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn only sets a flag
            await asyncio.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        announce(f"{scheme}://{at.shown_host}:{port}{at.root_path}", admission)

    task = asyncio.create_task(announce_when_ready())
    try:
        await server.serve()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
