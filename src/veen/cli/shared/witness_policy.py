"""Policy files of witnesses, and sessions with hubs that need no identity."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.session import HubSession
    from veen.core.tlog.policy import WitnessPolicy

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
