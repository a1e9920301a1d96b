"""`veen console serve` and `open`: the console of the user's context, on the user's machine."""

import re
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options, several
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.cli.recorder.connecting import Connector
    from veen.client.identity.keystore import Keystore
    from veen.console.guard import BrowserAdmission
    from veen.console.serving import Listening

__all__ = ["browser_page", "console", "console_parts", "open_", "serve"]

console = LazyGroup(
    "console",
    help="""Look at logs in a browser. The console runs on your machine, with your keys and your pinned hub, and changes
    nothing.

    \b
    veen console open
    """,
)

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIR: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_ROOT_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){0,8}")
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_LISTENING: Final = several(
    click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on."),
    click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free port."),
    click.option("--allow-name", "names", multiple=True, help="A host name by which it may be asked. Repeatable."),
    click.option("--tls-cert", type=_FILE, help="The certificate, in PEM; beyond loopback it is needed."),
    click.option("--tls-key", type=_FILE, help="Its private key."),
    click.option(
        "--data-dir", type=_DIR, help="The data directory of the hub, or a copy: queries are answered from it."
    ),
    click.option("--audit", "audits", type=_DIR, multiple=True, help="What an audit left by --out. Repeatable."),
    click.option("--root-path", default="", help="Behind a proxy: the prefix of all paths, such as /veen."),
)

Announce = Callable[[str, "BrowserAdmission"], None]


@console.verb("serve", "Serve the console until stopped, and print the address to open.")
@_LISTENING
@client_options
def serve(
    output: Output,
    session: CliSession,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    data_dir: Path | None,
    audits: tuple[Path, ...],
    root_path: str,
) -> None:
    """Serve the console until stopped. The address that is printed has a token that works once: open it in a browser.

    It listens on this machine alone; another --host needs a certificate. Everything that is shown was verified with the
    pinned key of the context. Nothing is written to the hub.

    \b
    veen console serve
    veen console serve --port 8448
    """

    def announce(url: str, admission: "BrowserAdmission") -> None:
        address = f"{url}/?token={admission.token}"
        output.notice(f"the console is at {address} (the address works once)", url=url, address=address)

    _run(session, host, port, names, tls_cert, tls_key, data_dir, audits, root_path, announce)


@console.verb("open", "Serve the console until stopped, and open it in a browser.")
@_LISTENING
@client_options
def open_(
    output: Output,
    session: CliSession,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    data_dir: Path | None,
    audits: tuple[Path, ...],
    root_path: str,
) -> None:
    """Serve the console until stopped, and open it in your browser.

    The browser gets the token by a file that only you can read, so that it is in no list of processes.

    \b
    veen console open
    """
    with browser_page(session.home.state / "console" / "open") as write:

        def announce(url: str, admission: "BrowserAdmission") -> None:
            file = write(url, admission)
            opened = webbrowser.open(file.as_uri())
            words = "opening" if opened else "no browser could be started: open this file in one, for"
            output.notice(f"{words} the console at {url} ({file})", url=url, file=str(file))

        _run(session, host, port, names, tls_cert, tls_key, data_dir, audits, root_path, announce)


@contextmanager
def browser_page(directory: Path) -> Iterator[Callable[[str, "BrowserAdmission"], Path]]:
    """Writes a file, for the user alone, that leads a browser to the console with the token. It is gone at the end."""
    from veen.client.home import PrivateFs

    fs = PrivateFs(directory)
    name = "console.html"

    def write(url: str, admission: "BrowserAdmission") -> Path:
        address = f"{url}/?token={admission.token}"  # of letters, digits, - and _: nothing to escape
        page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">'
        fs.replace(name, f'{page}<a href="{address}">Open the console</a>\n'.encode())
        return fs.root / name

    try:
        yield write
    finally:
        (fs.root / name).unlink(missing_ok=True)


def _run(
    session: CliSession,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    data_dir: Path | None,
    audits: tuple[Path, ...],
    root_path: str,
    announce: Announce,
) -> None:
    import asyncio

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if not _ROOT_PATH.fullmatch(root_path):
        raise click.UsageError("--root-path is a path such as /veen, without a slash at its end")
    if tls_cert is None and host not in _LOOPBACK:
        raise Fail(
            "E.LOCAL.PLAIN_HTTP",
            f"the console is not started on {host} without TLS",
            "opened messages would cross the network in the clear, and browsers verify only over HTTPS",
            "give --tls-cert FILE and --tls-key FILE, or listen on 127.0.0.1 and use an SSH tunnel",
        )
    from veen.cli.recorder.connecting import connector
    from veen.client.home import Home

    listening = console_parts().Listening(
        host, port, names=names, tls_cert=tls_cert, tls_key=tls_key, root_path=root_path
    )
    # What the console proved is kept apart: the state of an identity has one user at a time, and that is the terminal.
    connect = connector(session, Home.at(session.home.state / "console"))
    asyncio.run(_serve(session, connect, session.keystore, listening, data_dir, audits, announce))


def console_parts() -> Any:
    """The module that serves; Fail if the packages of the extra are not installed."""
    try:
        from veen.console import serving
    except ImportError as exc:
        raise Fail(
            "E.EXTRA", "the console needs more packages", f"{exc.name} is not installed", "install the extra `console`"
        ) from exc
    return serving


async def _serve(
    session: CliSession,
    connect: "Connector",
    keystore: "Keystore",
    listening: "Listening",
    data_dir: Path | None,
    audits: tuple[Path, ...],
    announce: Announce,
) -> None:
    from veen.client.send.captokens import TokenStore
    from veen.console.serving import serve as serve_console
    from veen.console.views import Console, LocalFiles

    local = LocalFiles(
        tokens=TokenStore(session.home.tokens_fs(session.identity_name)),
        evidence=session.home.evidence_fs().root,
        data_dir=data_dir,
        audits=audits,
    )

    async with connect(keystore.identity, keystore.secrets.keyring) as client:
        view = Console(
            client, keystore.secrets.keyring, url=session.hub_url, identity=session.identity_name, local=local
        )
        await serve_console(view, listening, announce)
