"""Clients of several identities at one hub, for commands that act in more than one role.

The hubs of contexts, for commands that speak to several.

Policy files of witnesses, and sessions with hubs that need no identity.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.home import Home
    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import Keyring
    from veen.client.session import HubSession, PinnedHub
    from veen.core.tlog.policy import WitnessPolicy


def hubs_of(session: CliSession, contexts: Sequence[str] = ()) -> "list[PinnedHub]":
    """Return the hubs of some contexts; that of the current one if none is named."""
    return [_hub_of(session.in_context(name)) for name in contexts] or [_hub_of(session)]


def _hub_of(session: CliSession) -> "PinnedHub":
    from veen.client.session import PinnedHub

    settings = session.settings
    return PinnedHub(
        name=str(settings.context.value or session.hub_url),
        url=session.hub_url,
        pin=session.pin,
        ca_file=settings.path("ca_file"),
        token_file=settings.path("token_file"),
        insecure_http=bool(settings.insecure_http.value),
    )


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


T = TypeVar("T")


def read_policy_file(path: Path) -> "WitnessPolicy":
    from veen.client.verify.witnesses import read_witness_policy

    return read_witness_policy(path)


POLICY: Final = click.Path(exists=True, dir_okay=False, path_type=Path)  # to be read by `read_policy_file`


async def open_session(session: CliSession, url: str) -> "HubSession":
    """Open a session with the hub at a URL under the pin of the command; needs no keys.

    The caller closes its transport.
    """
    from veen.client.session import HubSession
    from veen.client.transport.calls import Calls, Retry
    from veen.client.transport.opening import open_transport

    transport = open_transport(
        url,
        ca_file=session.settings.path("ca_file"),
        token_file=session.settings.path("token_file"),
        insecure_http=bool(session.settings.insecure_http.value),
        timeout=session.settings.timeout.value,
    )
    hub = HubSession(Calls(transport, Retry(seconds=session.settings.wait.value)), session.pin)
    try:
        await hub.open()
    except BaseException:
        await transport.aclose()
        raise
    return hub


def run_with_session(session: CliSession, url: str, work: "Callable[[HubSession], Coroutine[Any, Any, T]]") -> T:
    """Run some work with one hub."""

    async def run() -> T:
        hub = await open_session(session, url)
        try:
            return await work(hub)
        finally:
            await hub.calls.transport.aclose()

    import asyncio

    return asyncio.run(run())
