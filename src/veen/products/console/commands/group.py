"""`veen console`: serves the console of the user's context on the user's machine; sets passwords for its login."""

import re
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options, home_options, several
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.cli.shared.connecting import Connector
    from veen.products.console.guard import BrowserAdmission
    from veen.products.console.serving import Listening

console = LazyGroup(
    "console",
    help="""Look at logs in a browser. The console runs on your machine, with your keys and your pinned hub, and changes
    nothing unless you allow it.

    \b
    veen console open
    """,
)

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_DIR: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_ROOT_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){0,8}")
_LISTENING: Final = several(
    click.option("--host", "--listen", "host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        show_default=True,
        help="Port to listen on; 0 picks a free one.",
    ),
    click.option("--allow-name", "names", multiple=True, help="Host name to accept in requests. Repeatable."),
    click.option("--tls-cert", type=_FILE, help="Certificate (PEM). Required beyond loopback."),
    click.option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM)."),
    click.option(
        "--login", type=_FILE, help="Password file of `veen console password` for logins. Required beyond loopback."
    ),
    click.option(
        "--allow-write", is_flag=True, help="Let pages send messages, anchor roots and revoke tokens, as your identity."
    ),
    click.option("--data-dir", type=_DIR, help="Data directory of the hub, or a copy, to answer queries from."),
    click.option(
        "--audit", "audits", type=_DIR, multiple=True, help="Output directory of an audit (--out). Repeatable."
    ),
    click.option("--root-path", default="", help="Prefix of all paths behind a proxy, such as /veen."),
)

Announce = Callable[[str, "BrowserAdmission"], None]


@console.verb("serve", "Serve the console until stopped, and print the address to open.")
@_LISTENING
@client_options
def serve(output: Output, session: CliSession, **options: Any) -> None:
    """Serve the console until stopped. The address that is printed has a token that works once: open it in a browser.

    It listens on this machine alone. Another --listen address needs a certificate, and a file of passwords that people
    log in with. Everything that is shown was verified with the pinned key of the context. Nothing is written to the hub
    unless --allow-write is given.

    \b
    veen console serve
    veen console serve --port 8448 --allow-write
    veen console serve --listen 0.0.0.0 --port 8448 --tls-cert cert.pem --tls-key key.pem --login console.passwords
    """

    def announce(url: str, admission: "BrowserAdmission") -> None:
        if admission.token is None:
            output.notice(f"the console is at {url}; people log in", url=url, address=url)
            return
        address = f"{url}/?token={admission.token}"
        output.notice(f"the console is at {address} (the address works once)", url=url, address=address)

    _run(session, announce, **options)


@console.verb("open", "Serve the console until stopped, and open it in a browser.")
@_LISTENING
@client_options
def open_(output: Output, session: CliSession, **options: Any) -> None:
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

        _run(session, announce, **options)


@console.verb("password", "Make or change a password for the login of a console.")
@click.argument("name")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Password file.")
@click.option("--password-file", type=_FILE, help="File with the new password in its first line.")
@click.option("--remove", is_flag=True, help="Remove NAME from the file instead.")
@home_options
def password(
    output: Output, session: CliSession, name: str, out: Path, password_file: Path | None, remove: bool
) -> None:
    """Put the password of NAME into a file, as an argon2id hash, for `veen console serve --login FILE`.

    The password is asked for at the terminal, or read from a file. Weak ones are refused. A console reads the file when
    it starts.

    \b
    veen console password alice --out console.passwords
    veen console password alice --out console.passwords --password-file new.txt
    veen console password alice --out console.passwords --remove
    """
    from veen.products.console.passwords import PasswordFile, check_login_name, hash_password

    check_login_name(name)
    file = PasswordFile.read(out) if out.exists() else PasswordFile({})
    if remove:
        if name not in file.names:
            raise click.UsageError(f"{out} has no {name}")
        file = file.without(name)
    else:
        if password_file is None and not output.may_ask:
            raise Fail(
                "E.LOCAL.INPUT",
                f"the password of {name} is needed",
                "there is no terminal to ask at" if not output.no_input else "--no-input forbids to ask",
                "give --password-file FILE",
            )
        secret = session.new_passphrase(f"password of {name}", name, password_file)
        with output.progress("hashing"):
            file = file.with_password(name, hash_password(secret))
    file.write(out)
    output.result({"file": str(out), "names": list(file.names)})


@contextmanager
def browser_page(directory: Path) -> Iterator[Callable[[str, "BrowserAdmission"], Path]]:
    """Write a private file that opens the console in a browser with the token; remove it at the end."""
    from veen.client.home import PrivateFs

    fs = PrivateFs(directory)
    name = "console.html"

    def write(url: str, admission: "BrowserAdmission") -> Path:
        token = "" if admission.token is None else f"?token={admission.token}"
        address = f"{url}/{token}"  # the token has letters, digits, - and _: nothing to escape
        page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">'
        fs.replace(name, f'{page}<a href="{address}">Open the console</a>\n'.encode())
        return fs.root / name

    try:
        yield write
    finally:
        (fs.root / name).unlink(missing_ok=True)


def _run(
    session: CliSession,
    announce: Announce,
    *,
    host: str,
    port: int,
    names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    login: Path | None,
    allow_write: bool,
    data_dir: Path | None,
    audits: tuple[Path, ...],
    root_path: str,
) -> None:
    import asyncio

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if not _ROOT_PATH.fullmatch(root_path):
        raise click.UsageError("--root-path is a path such as /veen, without a slash at its end")
    from veen.io.addresses import is_loopback

    if not is_loopback(host):
        _check_beyond(host, tls_cert, login)
    from veen.cli.shared.connecting import connector
    from veen.client.home import Home
    from veen.products.console.passwords import PasswordFile

    passwords = None if login is None else PasswordFile.read(login)
    listening = console_parts().Listening(
        host, port, names=names, tls_cert=tls_cert, tls_key=tls_key, root_path=root_path, passwords=passwords
    )
    # The console has its own proof state: that of an identity has one user at a time, the commands in the terminal.
    connect = connector(session, Home.at(session.home.state / "console"))
    asyncio.run(_serve(session, connect, listening, data_dir, audits, announce, allow_write=allow_write))


def _check_beyond(host: str, tls_cert: Path | None, login: Path | None) -> None:
    """Refuse an address that others can reach unless there is TLS, and a login."""
    if tls_cert is None:
        raise Fail(
            "E.LOCAL.PLAIN_HTTP",
            f"the console is not started on {host} without TLS",
            "opened messages would cross the network in the clear, and browsers verify only over HTTPS",
            "give --tls-cert FILE, --tls-key FILE and --login FILE, or listen on 127.0.0.1 and use an SSH tunnel",
        )
    if login is None:
        raise Fail(
            "E.CONSOLE.LOGIN",
            f"the console is not started on {host} without a login",
            "whoever reaches that address would be answered",
            "make a file of passwords: veen console password NAME --out FILE; then give --login FILE",
        )


def console_parts() -> Any:
    """Return the serving module. Raise Fail if the packages of the extra are not installed."""
    try:
        from veen.products.console import serving
    except ImportError as exc:
        raise Fail(
            "E.EXTRA", "the console needs more packages", f"{exc.name} is not installed", "install the extra `console`"
        ) from exc
    return serving


async def _serve(
    session: CliSession,
    connect: "Connector",
    listening: "Listening",
    data_dir: Path | None,
    audits: tuple[Path, ...],
    announce: Announce,
    *,
    allow_write: bool,
) -> None:
    from veen.client.send.captokens import TokenStore
    from veen.client.verify.witnesses import read_witness_policy
    from veen.products.console.commands.writing import SessionWriter
    from veen.products.console.serving import serve as serve_console
    from veen.products.console.views import Console, LocalFiles

    keystore = session.keystore
    policy = session.settings.path("witness_policy")
    local = LocalFiles(
        tokens=TokenStore(session.home.tokens_fs(session.identity_name)),
        evidence=session.home.evidence_fs().root,
        data_dir=data_dir,
        audits=audits,
        witness_policy=None if policy is None else read_witness_policy(policy),
    )

    async with connect(keystore.identity, keystore.secrets.keyring) as client:
        view = Console(
            client,
            keystore.secrets.keyring,
            url=session.hub_url,
            identity=session.identity_name,
            local=local,
            writer=SessionWriter(session) if allow_write else None,
        )
        await serve_console(view, listening, announce)
