"""Clients of several identities at one hub, for commands that act in more than one role."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import Keyring

Connector = Callable[["Identity", "Keyring"], "AbstractAsyncContextManager[Client]"]


def connector(session: CliSession, home: "Home") -> Connector:
    """Return a function that connects an identity to the hub of the session.

    Key bounds are the caller's business (see `Agent`).
    """
    from veen.client.client import Client
    from veen.client.send.captokens import TokenStore
    from veen.client.transport.calls import Retry

    settings = session.settings
    url, pin = session.hub_url, session.pin

    @asynccontextmanager
    async def connect(identity: "Identity", keyring: "Keyring") -> AsyncIterator[Client]:
        client = await Client.connect(
            url,
            pin=pin,
            identity=identity,
            keyring=keyring,
            home=home,
            mode=settings.mode.value,
            ca_file=settings.path("ca_file"),
            token_file=settings.path("token_file"),
            insecure_http=bool(settings.insecure_http.value),
            retry=Retry(seconds=settings.wait.value),
            call_seconds=settings.timeout.value,
            bounds=None,
            tokens=TokenStore(home.tokens_fs(identity.name)),
        )
        async with client:
            yield client

    return connect
