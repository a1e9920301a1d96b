"""Options that name a hub, for commands that ask it about itself: by URL, by context, or by its data directory here."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.hub.common import DATA_DIR, existing, holder_of
from veen.cli.shared.command import FILE, INSECURE_HTTP, CliSession
from veen.cli.shared.names import CONTEXT
from veen.cli.shared.output import Fail, Output, output_options

if TYPE_CHECKING:
    from veen.client.transport.hubapi import HubApi

__all__ = ["hub_api", "hub_options"]

_FILES: Final = ("ca_file", "token_file")


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a `HubApi` as `hub`, which is closed when the command ends, and the options of output."""

    @wraps(command)
    def run(output: Output, *args: Any, **options: Any) -> Any:
        names = ("hub", "data_dir", "ca_file", "token_file", "insecure_http", "context")
        with _hub(output, **{name: options.pop(name) for name in names}) as hub:
            return command(output, *args, hub=hub, **options)

    decorated: Callable[..., Any] = run
    for option in (
        click.option("--context", type=CONTEXT, help="The context that names the hub. [VEEN_CONTEXT]"),
        INSECURE_HTTP,
        click.option("--token-file", type=FILE, help="A file with the hub's bearer token. [VEEN_TOKEN_FILE]"),
        click.option(
            "--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM). [VEEN_CA_FILE]"
        ),
        click.option("--data-dir", type=DATA_DIR, help="The data directory of a hub that runs on this machine."),
        click.option("--hub", help="The URL of the hub. [VEEN_HUB]"),
    ):
        decorated = option(decorated)
    return output_options(decorated)


def hub_api(session: CliSession, url: str, ca_file: Path | None, token_file: Path | None) -> "HubApi":
    """The hub at a URL, for as long as one call may take by the settings."""
    from veen.client.transport.hubapi import HubApi

    settings = session.settings
    return HubApi(
        url,
        ca_file=ca_file,
        token_file=token_file,
        insecure_http=bool(settings.insecure_http.value),
        timeout=settings.timeout.value,
    )


def _hub(output: Output, *, data_dir: Path | None, **flags: str | None) -> "HubApi":
    session = CliSession(output, flags)
    if data_dir is not None:  # this very hub, whatever is configured
        if flags["hub"] is not None:
            raise click.UsageError("give one of --hub and --data-dir")
        ca_file, token_file = (Path(path) if (path := flags[key]) else None for key in _FILES)
        return hub_api(session, _url_of(data_dir), ca_file, token_file)
    if session.settings.hub.value is None:
        raise click.UsageError("give --hub URL or --data-dir DIR, or name a hub: veen context add NAME --hub URL")
    ca_file, token_file = (session.settings.path(key) for key in _FILES)
    return hub_api(session, session.hub_url, ca_file, token_file)


def _url_of(data_dir: Path) -> str:
    holder = holder_of(existing(data_dir))
    if holder is None or holder.url is None:
        what = "no hub runs it" if holder is None else f"its hub (pid {holder.pid}) does not listen yet"
        raise Fail("E.NET.UNREACHABLE", f"{data_dir}: no answer", what, f"veen hub start --data-dir {data_dir}")
    return holder.url
