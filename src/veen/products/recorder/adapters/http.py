"""Base class of sources that receive records over HTTP."""

import asyncio
import hashlib
import ssl
from abc import ABC, abstractmethod

from veen.client.errors import LocalError
from veen.core.canonical import Json
from veen.io.web_listener import Tokens, WebAnswer, WebListener, WebRequest, token_of
from veen.products.recorder.sink import SpoolSink


class PushSource(ABC):
    """A source that receives records over HTTP. Subclasses answer the requests."""

    def __init__(self, host: str, port: int, *, token: Tokens, tls: ssl.SSLContext | None) -> None:
        self._token = token
        self._listener = WebListener(host, port, self._handle, unavailable=(LocalError,), tls=tls)
        self._sink: SpoolSink | None = None

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def ready(self) -> asyncio.Event:
        return self._listener.ready

    async def run(self, sink: SpoolSink) -> None:
        self._sink = sink
        await self._listener.run()

    async def _handle(self, request: WebRequest) -> WebAnswer:
        assert self._sink is not None  # noqa: S101 - set before the listener runs
        return await self._answer(request, self._sink)

    def _about(self, request: WebRequest, sink: SpoolSink) -> dict[str, Json]:
        """Return the known facts about a sender: its address, and the certificate or token that it presented."""
        about: dict[str, Json] = {}
        if (peer := request.peer if sink.redactor is None else sink.redactor.name(request.peer)) is not None:
            about["peer"] = peer
        token = token_of(request, self._token)
        if request.certificate is not None:
            about["sender"] = f"cert:{hashlib.sha256(request.certificate).hexdigest()[:16]}"
        elif token is not None:
            about["sender"] = f"token:{sink.digest(token.encode())[:16]}"
        return about

    @abstractmethod
    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer: ...
