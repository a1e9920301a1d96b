"""What commands share that talk to a hub or use keys: one set of options, and a `CliSession` that opens what is needed.

::

    @click.command()
    @click.argument("stream", type=STREAM)
    @client_options                                    # the options of output as well
    def head(output: Output, session: CliSession, stream: str) -> None:
        with output.progress("asking the hub"):
            checkpoint = session.client().checkpoint(stream)  # connects, checks the pin, unlocks the identity
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

from veen.cli.shared.names import CONTEXT, IDENTITY
from veen.cli.shared.output import Fail, Output, output_options

if TYPE_CHECKING:
    from veen.cli.shared.settings import CliSettings
    from veen.client.home import Home
    from veen.client.identity.keystore import Keystore
    from veen.client.sync import SyncClient
    from veen.client.verify.pin import HubPin
    from veen.core.pin_text import PinnedKey

__all__ = ["FILE", "INSECURE_HTTP", "CliSession", "client_options", "home_options", "identity_options", "name_of"]
__all__ += ["read_passphrase", "several"]

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=str)
_MAX_PASSPHRASE_BYTES: Final = 4096


class CliSession:
    """One command's view of configuration, keys and hub."""

    def __init__(self, output: Output, flags: dict[str, str | None]) -> None:
        self.output = output
        self._flags = flags
        self._open = contextlib.ExitStack()
        self.sends = False  # whether the command sends messages of the user; then a failure says what became of them
        self._waiting_before = 0  # messages that had no receipt when the client was opened

    # --- where -------------------------------------------------------------------------------------------------

    @cached_property
    def user_home(self) -> "Home":
        """The home of the user: configuration and contexts."""
        from veen.client.home import Home

        return Home.default()

    @cached_property
    def settings(self) -> "CliSettings":
        from veen.cli.shared.projects import read_both
        from veen.cli.shared.settings import resolve

        settings = resolve(self._flags, os.environ, *read_both(Path.cwd(), self.user_home.config_file))
        if settings.token_file.value is None and settings.token_file.origin != "unset":
            self.output.note(f"{settings.token_file.origin}; to send a token there, give --token-file FILE")
        return settings

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
            names = home.identities()
            if len(names) != 1:
                raise _which_identity(home.data, names)
            asked = names[0]
        home.require(asked)
        return home, asked

    def as_identity(self, identity: str) -> "CliSession":
        """The same hub and settings with the keys of another identity; close it like this one."""
        return CliSession(self.output, {**self._flags, "identity": identity})

    def remember_stream(self, stream: str) -> None:
        """For completion; see `remember_streams` in the configuration."""
        from veen.cli.shared.names import remember_stream

        if self.settings.remember_streams.value:
            remember_stream(self.user_home.cache, stream)

    # --- keys ----------------------------------------------------------------------------------------------------

    @cached_property
    def keystore(self) -> "Keystore":
        """The opened keystore of the identity: its keys and its keyring. In a batch it is opened once."""
        from veen.cli.shared.batch import opened_once

        home, name = self._place
        return opened_once(home.data, name, lambda: self.opened(home, name))

    def opened(self, home: "Home", name: str) -> "Keystore":
        """Any keystore; asks for the passphrase if there is one."""
        from veen.client.identity.keystore import SealedKeystore, open_identity

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
                "E.LOCAL.INPUT",
                f"the {what} is needed",
                "there is no terminal to ask at" if not self.output.no_input else "--no-input forbids to ask",
                "give --passphrase-file FILE, or set VEEN_PASSPHRASE_FILE",
            )
        text: str = click.prompt(what, hide_input=True, confirmation_prompt=confirm, err=True)
        return text

    # --- the hub -------------------------------------------------------------------------------------------------

    @property
    def hub_url(self) -> str:
        url = self.settings.hub.value
        if url is None:
            raise Fail(
                "E.LOCAL.CONTEXT",
                "no hub is chosen",
                "neither --hub, --context, VEEN_HUB, VEEN_CONTEXT nor the configuration names one",
                "veen context add NAME --hub URL --pin ed25519:HEX",
            )
        return str(url)

    @cached_property
    def pinned(self) -> "PinnedKey":
        """The pinned key. On first contact a person is asked; a script never trusts by itself."""
        from veen.core.pin_text import PinnedKey

        text = self.settings.hub_pk.value
        if text is None:
            from veen.cli.shared.first_contact import first_contact

            text = first_contact(self)
        return PinnedKey.parse(text)

    @property
    def pin(self) -> "HubPin":
        """The pinned key, or root, and the hub_id that goes with it."""
        from veen.client.verify.pin import HubPin

        of = HubPin.of_root if self.pinned.is_root else HubPin.of_key
        return of(self.pinned.public, self.hub_id)

    @property
    def hub_id(self) -> bytes | None:
        """The hub_id that goes with the pinned key; None before it was learned."""
        hub_id = self.settings.hub_id.value
        return None if hub_id is None else bytes.fromhex(hub_id)

    def _remember_hub_id(self, hub_id: bytes) -> None:
        """Bind the context to what its pinned key signed: from now on another hub_id is refused (D-174).

        A root leaves hub_id open: another one is another of its hubs.
        """
        name, path = self.settings.context.value, self.user_home.config_file
        if self.pinned.is_root or self.hub_id is not None or self.settings.hub_pk.origin != f"{path} [context.{name}]":
            return
        from veen.cli.shared.config_edit import change

        try:
            change(path, {f"context.{name}.hub_id": hub_id.hex()})
        except (Fail, OSError) as exc:  # the state of the identity remembers it as well
            self.output.note(f"the hub_id could not be saved in {path}: {exc}")

    def client(self) -> "SyncClient":
        """Connected to the hub with the pin, the identity and the keyring; closed when the command ends."""
        return self._client

    @cached_property
    def _client(self) -> "SyncClient":
        url, pin = self.hub_url, self.pin  # before the passphrase: a person should not type it in vain
        keystore = self.keystore
        from veen.client.client import Client
        from veen.client.sync import SyncClient
        from veen.client.transport.calls import Retry

        with self.output.progress(f"connecting to {url}"):
            connected = SyncClient(
                lambda: Client.connect(
                    url,
                    pin=pin,
                    identity=keystore.identity,
                    keyring=keystore.secrets.keyring,
                    home=self.home,
                    mode=self.settings.mode.value,
                    ca_file=self.settings.path("ca_file"),
                    token_file=self.settings.path("token_file"),
                    insecure_http=bool(self.settings.insecure_http.value),
                    retry=Retry(seconds=self.settings.wait.value),
                    call_seconds=self.settings.timeout.value,
                )
            )
        self._open.enter_context(connected)
        self._open.callback(self._tell_late, connected)  # before it is closed
        self._waiting_before = _waiting(connected)
        self._remember_hub_id(connected.hub_id)
        if connected.replaced_hubs:
            earlier = [hub_id.hex() for hub_id in connected.replaced_hubs]
            self.output.notice(
                f"a new hub answers at {url}: its hub_id is {connected.hub_id.hex()}, and the pinned root signed it."
                " Its log is another one, which began empty. What was verified of earlier hubs of this root is kept:"
                f" {', '.join(earlier)}",
                hub_id=connected.hub_id.hex(),
                replaced_hubs=earlier,
            )
        return connected

    def _tell_late(self, client: "SyncClient") -> None:
        """Announce the messages of earlier commands that this one delivered."""
        for sent in client.take_recovered():
            self.output.notice(
                f"a message of an earlier command was delivered now, once: seq {sent.seq},"
                f" msg_id {sent.msg_id.hex()}, receipt verified",
                delivered_late={"seq": sent.seq, "msg_id": sent.msg_id.hex(), "label": sent.label.hex()},
            )

    def note_waiting(self, error: Exception) -> None:
        """Have an error of a hub or of the network say whether a message is kept for later."""
        from veen.client.errors import HubRefused, NetworkError

        if not isinstance(error, (HubRefused, NetworkError)):
            return
        count = 0
        if "_client" in self.__dict__:  # otherwise nothing was sealed
            count = _waiting(self._client)
        if self.sends or count > self._waiting_before:
            error.waiting = count  # type: ignore[union-attr]  # read by `failures`

    def close(self) -> None:
        self._open.close()


def _waiting(client: "SyncClient") -> int:
    """How many messages have no receipt; 0 if the state is damaged, which is told where the state is used."""
    from veen.client.errors import LocalError

    with contextlib.suppress(LocalError):
        return sum(len(state.pending) for state in client.pending())
    return 0


def _which_identity(where: Path, names: list[str]) -> Exception:
    from veen.client.errors import IdentityMissing

    if not names:
        return Fail(
            IdentityMissing.code, "there is no identity yet", f"{where} holds no keys", "veen keygen --name NAME"
        )
    return Fail(
        IdentityMissing.code,
        "which identity?",
        f"there are {', '.join(names)}, and none is chosen",
        f"add --identity {names[0]}, or for good: veen config set identity {names[0]}",
    )


def read_passphrase(path: Path) -> str:
    """The first line of a file, without its end."""
    from veen.client.home import read_secret

    data = read_secret(path, _MAX_PASSPHRASE_BYTES + 1)
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    if not line or len(line) > _MAX_PASSPHRASE_BYTES:
        raise Fail(
            "E.LOCAL.INPUT",
            f"{path}: holds no passphrase",
            "its first line is empty" if not line else "its first line is too long",
            "put the passphrase into the first line",
        )
    try:
        return line.decode()
    except UnicodeDecodeError as exc:
        raise Fail("E.LOCAL.INPUT", f"{path}: holds no passphrase", "it is not UTF-8 text", "save it as UTF-8") from exc


INSECURE_HTTP: Final = click.option(
    "--insecure-http",
    is_flag=True,
    flag_value="true",
    default=None,
    help="Allow the bearer token to go to another machine over plain http://. [VEEN_INSECURE_HTTP]",
)
_HOME: Final = (
    click.option("--context", type=CONTEXT, help="The context to use. [VEEN_CONTEXT]"),
    click.option("--identity", "--client", type=IDENTITY, help="Whose keys: a name, or a directory. [VEEN_IDENTITY]"),
    click.option("--passphrase-file", type=FILE, help="A file with the passphrase. [VEEN_PASSPHRASE_FILE]"),
)
_HUB: Final = (
    click.option("--hub", help="The URL of the hub. [VEEN_HUB]"),
    click.option("--pin", "hub_pk", help="The key of the hub, ed25519:HEX, or root:ed25519:HEX. [VEEN_PIN]"),
    click.option("--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM). [VEEN_CA_FILE]"),
    click.option("--token-file", type=FILE, help="A file with the hub's bearer token. [VEEN_TOKEN_FILE]"),
    INSECURE_HTTP,
    click.option("--wait", metavar="SECONDS", help="How long to try a hub that does not answer. [VEEN_WAIT]"),
)


def _session_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    names = [name_of(option) for option in options]

    def decorate(command: F) -> F:
        @wraps(command)
        def run(output: Output, *args: Any, **kwargs: Any) -> Any:
            flags = {name: kwargs.pop(name) for name in names}
            session = CliSession(output, flags)
            try:
                return command(output, session, *args, **kwargs)
            except Exception as exc:
                if getattr(exc, "evidence", None) is not None:
                    _save_evidence(session, exc)
                session.note_waiting(exc)
                raise
            finally:
                session.close()

        return output_options(several(*options)(run))  # type: ignore[no-any-return]  # click's decorators keep the type

    return decorate


def several(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator for several options, in the order of the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _save_evidence(session: CliSession, error: Exception) -> None:
    """Write the proof that a hub signed two histories into a file, and have the error say where it is (RCPT-07)."""
    from veen.core.hashing import H
    from veen.core.objects.evidence import Equivocation

    evidence = getattr(error, "evidence", None)
    if isinstance(evidence, Equivocation):
        data = evidence.to_bytes()
        fs = session.home.evidence_fs()
        name = f"equivocation-{H(data).hex()[:16]}.cbor"
        fs.replace(name, data)
        error.remedy = f"the proof is kept; publish it: veen equivocation show {fs.root / name}"  # type: ignore[attr-defined]  # read by `failures`


def name_of(option: Callable[[Any], Any]) -> str:
    """Under which name click hands the value of an option over."""
    (parameter,) = option(lambda: None).__click_params__
    return str(parameter.name)


client_options: Final = _session_options(*_HUB, *_HOME)  # commands that talk to a hub
identity_options: Final = _session_options(*_HOME)  # commands that use keys only
home_options: Final = _session_options(_HOME[0])  # commands that want to know what is configured
