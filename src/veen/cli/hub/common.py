"""Data directories and their holders, for the commands of `veen hub`.

Options that name a hub, for commands that ask it about itself: by URL, by context, or by its data directory here.

A hub that runs on this machine is asked through its local door (`veen.hub.process.local_socket`) if this user may open
it: no token and no certificate is needed then. Otherwise by the URL at which it listens.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared import options
from veen.cli.shared.command import FILE, INSECURE_HTTP, CliSession, several
from veen.cli.shared.names import CONTEXT
from veen.cli.shared.output import Fail, Output, output_options
from veen.io.errors import LockedError, StorageError
from veen.io.local import OsFs
from veen.storage.copies.unfinished import check_finished

if TYPE_CHECKING:
    from veen.client.transport.hubapi import HubApi
    from veen.core.objects.identity import HubIdentity
    from veen.core.objects.trusted_root import PinnedKey

DATA_DIR: Final = click.Path(file_okay=False, path_type=Path)
ACCEPT_CLOCK: Final = click.option(
    "--accept-clock", is_flag=True, help="Accept the clock, however far it is ahead of the log."
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a data directory."""

    pid: int
    url: str | None


def open_directory(data_dir: Path) -> OsFs:
    """Open an existing data directory. Raise Fail for a missing one, or an unfinished clone or fork."""
    if not data_dir.is_dir():
        raise Fail(
            "E.LOCAL",
            f"{data_dir}: not a data directory",
            "there is no such directory",
            "give the directory that `veen hub start` was given",
        )
    fs = OsFs(data_dir)
    check_finished(fs, str(data_dir))
    return fs


def holder_of(fs: OsFs) -> Holder | None:
    """Return the process that runs this directory; None if there is none.

    The lock shows this, not the process id in its file.
    """
    try:
        with fs.lock():
            return None
    except LockedError as exc:
        words = exc.holder.split()
        if len(words) < 2 or words[0] != "pid" or not words[1].isdecimal():
            raise StorageError(f"{fs.root}: in use, but it does not say by whom") from exc
        return Holder(int(words[1]), words[2] if len(words) > 2 else None)


def pin_for_clients(identity: "HubIdentity", root_pk: bytes | None) -> "PinnedKey":
    """Return the pin for clients: the hub's first key, which leads to later ones, or the root of an ephemeral hub.

    A later key would verify nothing that was signed before it (`HubPin.of_key`).
    """
    from veen.core.objects.trusted_root import PinnedKey

    return PinnedKey(identity.keys[0].hub_pk) if root_pk is None else PinnedKey(root_pk, is_root=True)


_FILES: Final = ("ca_file", "token_file")

HUB_FLAGS: Final = several(
    click.option("--hub", help=f"{options.HUB} [VEEN_HUB]"),
    click.option("--data-dir", type=DATA_DIR, help=options.HUB_DIR),
    click.option("--ca-file", type=FILE, help=f"{options.CA_FILE} [VEEN_CA_FILE]"),
    click.option("--token-file", type=FILE, help=f"{options.TOKEN_FILE} [VEEN_TOKEN_FILE]"),
    INSECURE_HTTP,
    click.option("--context", type=CONTEXT, help=options.CONTEXT),
)
HUB_NAMES: Final = ("hub", "data_dir", "ca_file", "token_file", "insecure_http", "context")  # what HUB_FLAGS give


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a `HubApi` as `hub`, which is closed when the command ends, and the options of output."""

    @wraps(command)
    def run(output: Output, *args: Any, **options: Any) -> Any:
        flags = {name: options.pop(name) for name in HUB_NAMES}
        with open_hub(output, **flags) as hub:
            return command(output, *args, hub=hub, **options)

    decorated: Callable[..., Any] = output_options(HUB_FLAGS(run))
    return decorated


def hub_api(session: CliSession, url: str, ca_file: Path | None, token_file: Path | None) -> "HubApi":
    """Connect to the hub at a URL, with the timeout of the settings."""
    from veen.client.transport.hubapi import HubApi

    settings = session.settings
    return HubApi(
        url,
        ca_file=ca_file,
        token_file=token_file,
        insecure_http=bool(settings.insecure_http.value),
        timeout=settings.timeout.value,
    )


def open_hub(output: Output, *, data_dir: Path | None, **flags: str | None) -> "HubApi":
    """Connect to the hub that options of `HUB_FLAGS` name."""
    session = CliSession(output, flags)
    if data_dir is not None:  # this very hub, whatever is configured
        if flags["hub"] is not None:
            raise click.UsageError("give one of --hub and --data-dir")
        return _local_hub(session, data_dir, flags)
    if session.settings.hub.value is None:
        raise click.UsageError("give --hub URL or --data-dir DIR, or name a hub: veen context add NAME --hub URL")
    ca_file, token_file = (session.settings.path(key) for key in _FILES)
    return hub_api(session, session.hub_url, ca_file, token_file)


def _local_hub(session: CliSession, data_dir: Path, flags: dict[str, str | None]) -> "HubApi":
    from veen.client.transport.hubapi import HubApi
    from veen.storage import layout

    url = _url_of(data_dir)
    socket_path = data_dir / layout.LOCAL_SOCKET
    if os.access(socket_path, os.R_OK | os.W_OK):
        return HubApi(url, timeout=session.settings.timeout.value, socket_path=socket_path)
    ca_file, token_file = (Path(path) if (path := flags[key]) else None for key in _FILES)
    return hub_api(session, url, ca_file, token_file)


def _url_of(data_dir: Path) -> str:
    holder = holder_of(open_directory(data_dir))
    if holder is None or holder.url is None:
        what = "no hub runs it" if holder is None else f"its hub (pid {holder.pid}) does not listen yet"
        raise Fail("E.NET.UNREACHABLE", f"{data_dir}: no answer", what, f"veen hub start --data-dir {data_dir}")
    return holder.url
