"""The configured transports beside HTTP: started, drained and stopped together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from veen.hub.api.operations import Api
from veen.hub.http.server import HttpServer
from veen.hub.process.config import HubConfig
from veen.hub.process.supervisor import Supervisor
from veen.hub.transports.door import CallDoor
from veen.hub.transports.file_spool import FileSpool

if TYPE_CHECKING:
    from veen.hub.transports.quic_listener import QuicListener


class _Report(Protocol):
    def __call__(self, level: str, operation: str, message: str, **more: Any) -> None: ...


class _Listening(Protocol):
    @property
    def url(self) -> str: ...
    async def start(self) -> None: ...
    async def drain(self) -> None:
        """Accept no more calls."""

    async def stop(self) -> None:
        """Finish accepted calls."""


class Transports:
    """The running transports, in the order of their start. Owned by the event loop's thread."""

    def __init__(self, api: Api, server: HttpServer, report: _Report, beside: Supervisor) -> None:
        """Prepare the transports. `beside` runs their loops and starts them again."""
        self._api, self._server, self._report, self._beside = api, server, report, beside
        self._listening: list[_Listening] = []
        self._quic: QuicListener | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(transport.url for transport in self._listening)

    async def start(self, config: HubConfig, hub_id: bytes) -> None:
        """Start each configured transport. `stop` stops those that were started, also if another one fails."""
        spool = config.spool
        if spool.directory is not None:
            await self._start(
                FileSpool(
                    self._door(spool.max_calls),
                    spool.directory,
                    max_age_sec=spool.max_age,
                    max_bytes=spool.max_bytes,
                    report=lambda level, message: self._report(level, "spool", message),
                    beside=self._beside,
                )
            )

        if config.nats.url:
            from veen.hub.transports.nats_listener import NatsListener

            await self._start(
                NatsListener(
                    self._door(config.nats.max_calls),
                    config.nats,
                    hub_id,
                    report=lambda level, message: self._report(level, "nats", message),
                    beside=self._beside,
                )
            )

        if config.quic.enabled:
            from veen.hub.transports.quic_listener import QuicListener

            self._quic = QuicListener(self._door(config.quic.max_calls), config, self._server)
            await self._start(self._quic)

    def prepare(self, config: HubConfig) -> Callable[[], None]:
        """Read the files of a configuration; return the function that applies them. Raise ConfigError if they are
        invalid."""
        return (lambda: None) if self._quic is None else self._quic.prepare(config)

    async def _start(self, transport: _Listening) -> None:
        await transport.start()
        self._listening.append(transport)
        self._report("info", "start", "serving another transport", url=transport.url)

    def _door(self, max_calls: int) -> CallDoor:
        return CallDoor(self._api, self._server.bodies, self._server.answers, max_calls)

    async def drain(self) -> None:
        for transport in self._listening:
            await transport.drain()

    async def stop(self) -> None:
        for transport in self._listening:
            await transport.stop()
