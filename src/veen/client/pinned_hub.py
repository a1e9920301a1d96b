"""A hub for administrators and agents: an address, a pinned key, a token; no identity is required."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from veen.client.session import HubSession
from veen.client.transport.calls import Calls, Retry
from veen.client.transport.http import CALL_SECONDS
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedHub:
    """The address of a hub and its pinned key."""

    name: str
    url: str
    pin: HubPin
    ca_file: Path | None = None
    token_file: Path | None = None
    insecure_http: bool = False

    @asynccontextmanager
    async def session(self, retry: Retry | None = None) -> AsyncIterator[HubSession]:
        """Connect and check the pin. Raise ForeignKey if another hub answers."""
        transport = open_transport(
            self.url,
            ca_file=self.ca_file,
            token_file=self.token_file,
            insecure_http=self.insecure_http,
            timeout=CALL_SECONDS,
        )
        try:
            session = HubSession(Calls(transport, retry), self.pin)
            await session.open()
            yield session
        finally:
            await transport.aclose()
