"""What commands share that talk to a hub or use keys: one set of options, and a `Session` that opens what is needed.

::

    @click.command()
    @click.argument("stream", type=STREAM)
    @output_options
    @client_options                                    # below output_options: the Session comes second
    def head(output: Output, session: Session, stream: str) -> None:
        with output.progress("asking the hub"):
            found = session.client().checkpoint(stream)  # connects, checks the pin, unlocks the identity
        output.result(...)

`session.client()` gives a `veen.client` SyncClient that is closed when the command ends. Commands that need keys but no
hub use `identity_options` and `session.keystore` (its `identity`, its `secrets.keyring`); those that only want to know
where things are use `home_options`, `session.home` and `session.settings`. Nothing is opened, asked for or imported
before it is used.

Secrets come from files or from a prompt, never from an argument or from the value of a variable: both are visible to
other processes and end up in histories.
"""

import contextlib
import os
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.names import CONTEXT, IDENTITY
from veen.cli.output import Exit, Fail, Output

if TYPE_CHECKING:
    from veen.cli.settings import Settings
    from veen.client.home import Home
    from veen.client.keystore import Keystore
    from veen.client.sync import SyncClient

__all__ = ["FILE", "Session", "client_options", "home_options", "identity_options", "read_passphrase"]

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=str)
_MAX_PASSPHRASE_BYTES: Final = 4096


class Session:
    """One command's view of configuration, keys and hub."""

    def __init__(self, output: Output, flags: dict[str, str | None]) -> None:
        self.output = output
        self._flags = flags
        self._open = contextlib.ExitStack()

    # --- where -------------------------------------------------------------------------------------------------

    @cached_property
    def user_home(self) -> "Home":
        """The home of the user: configuration and contexts."""
        from veen.client.home import Home

        return Home.default()

    @cached_property
    def settings(self) -> "Settings":
        from veen.cli.configfile import read
        from veen.cli.settings import PROJECT_FILE, resolve

        project = read(Path.cwd() / PROJECT_FILE, project=True)
        user = read(self.user_home.config_file)
        return resolve(self._flags, os.environ, project, user)

    @cached_property
    def home(self) -> "Home":
        """Where keys and state are: the user's home, or the directory that `--identity DIR` names (spec-4 §7)."""
        return self._place[0]

    @property
    def identity_name(self) -> str:
        """Which identity: the one that was asked for or configured, or the only one there is."""
        return self._place[1]

    @cached_property
    def _place(self) -> "tuple[Home, str]":
        return self.place_of(self.settings.identity.value)

    def place_of(self, asked: str | None) -> "tuple[Home, str]":
        """The home and the name of an identity, given by name or as a directory of its own; None: the only one."""
        from veen.client.home import Home

        home = self.user_home
        if asked is not None and ("/" in asked or asked in (".", "..")):
            home, asked = Home.at(Path(asked).expanduser().absolute()), None
        if asked is None:
            found = home.identities()
            if len(found) != 1:
                raise _which_identity(home.data, found)
            asked = found[0]
        home.require(asked)
        return home, asked

    def remember_stream(self, stream: str) -> None:
        """For completion; see `remember_streams` in the configuration."""
        from veen.cli.names import remember_stream

        if self.settings.remember_streams.value:
            remember_stream(self.user_home.cache, stream)

    # --- keys ----------------------------------------------------------------------------------------------------

    @cached_property
    def keystore(self) -> "Keystore":
        """The opened keystore of the identity: its keys and its keyring."""
        return self.opened(self.home, self.identity_name)

    def opened(self, home: "Home", name: str) -> "Keystore":
        """Any keystore; asks for the passphrase if there is one."""
        from veen.client.keystore import SealedKeystore, open_identity

        home.require(name)
        plain = SealedKeystore.read(home.identity_fs(name)).is_plain
        secret = None if plain else self.passphrase(f"passphrase of {name}")
        with self.output.progress("opening the keystore"):
            return open_identity(home, name, secret)

    def passphrase(self, what: str, *, confirm: bool = False) -> str:
        """From the file that was named, or from a person."""
        path = self.settings.path("passphrase_file")
        return self.asked(what, confirm=confirm) if path is None else read_passphrase(path)

    def asked(self, what: str, *, confirm: bool = False) -> str:
        """From a person, or not at all."""
        if not self.output.may_ask:
            raise Fail(
                Exit.LOCAL,
                f"the {what} is needed",
                "there is no terminal to ask at" if not self.output.no_input else "--no-input forbids to ask",
                "give --passphrase-file FILE, or set VEEN_PASSPHRASE_FILE",
                "E.LOCAL.INPUT",
            )
        text: str = click.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True)
        return text

    # --- the hub -------------------------------------------------------------------------------------------------

    @property
    def hub_url(self) -> str:
        url = self.settings.hub.value
        if url is None:
            raise Fail(
                Exit.LOCAL,
                "no hub is chosen",
                "neither --hub, --context, VEEN_HUB, VEEN_CONTEXT nor the configuration names one",
                "veen context add NAME --hub URL --pin ed25519:HEX",
                "E.LOCAL.CONTEXT",
            )
        return str(url)

    @property
    def hub_pk(self) -> bytes:
        """The pinned key. On first contact a person is asked; a script never trusts by itself."""
        pinned = self.settings.hub_pk.value
        if pinned is None:
            from veen.cli.contact import first_contact

            pinned = first_contact(self)
        return bytes.fromhex(pinned.removeprefix("ed25519:"))

    def client(self) -> "SyncClient":
        """Connected to the hub with the pin, the identity and the keyring; closed when the command ends."""
        return self._client

    @cached_property
    def _client(self) -> "SyncClient":
        url, hub_pk = self.hub_url, self.hub_pk  # before the passphrase: a person should not type it in vain
        keystore = self.keystore
        from veen.client.calls import Retry
        from veen.client.client import Client
        from veen.client.pin import HubPin
        from veen.client.sync import SyncClient

        with self.output.progress(f"connecting to {url}"):
            connected = SyncClient(
                lambda: Client.connect(
                    url,
                    pin=HubPin.of_key(hub_pk),
                    identity=keystore.identity,
                    keyring=keystore.secrets.keyring,
                    home=self.home,
                    mode=self.settings.mode.value,
                    ca_file=self.settings.path("ca_file"),
                    token_file=self.settings.path("token_file"),
                    retry=Retry(seconds=self.settings.wait.value),
                )
            )
        return self._open.enter_context(connected)

    def close(self) -> None:
        self._open.close()


def _which_identity(where: Path, found: list[str]) -> Exception:
    from veen.client.errors import IdentityMissing

    if not found:
        return Fail(
            Exit.LOCAL,
            "there is no identity yet",
            f"{where} holds no keys",
            "veen keygen --name NAME",
            IdentityMissing.code,
        )
    return Fail(
        Exit.LOCAL,
        "which identity?",
        f"there are {', '.join(found)}, and none is chosen",
        f"add --identity {found[0]}, or for good: veen config set identity {found[0]}",
        IdentityMissing.code,
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file, without its end."""
    with path.open("rb") as file:
        data = file.read(_MAX_PASSPHRASE_BYTES + 1)
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    if not line or len(line) > _MAX_PASSPHRASE_BYTES:
        raise Fail(
            Exit.LOCAL,
            f"{path}: holds no passphrase",
            "its first line is empty" if not line else "its first line is too long",
            "put the passphrase into the first line",
            "E.LOCAL.INPUT",
        )
    try:
        return line.decode()
    except UnicodeDecodeError as exc:
        raise Fail(
            Exit.LOCAL, f"{path}: holds no passphrase", "it is not UTF-8 text", "save it as UTF-8", "E.LOCAL.INPUT"
        ) from exc


_HOME: Final = (
    click.option("--context", type=CONTEXT, help="The context to use. [VEEN_CONTEXT]"),
    click.option("--identity", "--client", type=IDENTITY, help="Whose keys: a name, or a directory. [VEEN_IDENTITY]"),
    click.option("--passphrase-file", type=FILE, help="A file with the passphrase. [VEEN_PASSPHRASE_FILE]"),
)
_HUB: Final = (
    click.option("--hub", help="The URL of the hub. [VEEN_HUB]"),
    click.option("--pin", "hub_pk", help="The key of the hub, ed25519:HEX. [VEEN_PIN]"),
    click.option("--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM). [VEEN_CA_FILE]"),
    click.option("--token-file", type=FILE, help="A file with the hub's bearer token. [VEEN_TOKEN_FILE]"),
    click.option("--wait", metavar="SECONDS", help="How long to try a hub that does not answer. [VEEN_WAIT]"),
)


def _session_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    names = [_name_of(option) for option in options]

    def decorate(command: F) -> F:
        @wraps(command)
        def run(output: Output, *args: Any, **kwargs: Any) -> Any:
            flags = {name: kwargs.pop(name) for name in names}
            session = Session(output, flags)
            try:
                return command(output, session, *args, **kwargs)
            except Exception as exc:
                if getattr(exc, "evidence", None) is not None:
                    from veen.cli.convict import keep_evidence

                    keep_evidence(session, exc)
                raise
            finally:
                session.close()

        decorated: Any = run
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]  # click's decorators keep the type

    return decorate


def _name_of(option: Callable[[Any], Any]) -> str:
    """Under which name click hands the value of an option over."""
    (parameter,) = option(lambda: None).__click_params__
    return str(parameter.name)


client_options: Final = _session_options(*_HUB, *_HOME)  # commands that talk to a hub
identity_options: Final = _session_options(*_HOME)  # commands that use keys only
home_options: Final = _session_options(_HOME[0])  # commands that want to know what is configured
