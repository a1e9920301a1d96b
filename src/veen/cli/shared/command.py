"""Options and session of commands that use a hub or keys: `CliSession` opens what is needed when it is needed.

::

    @click.command()
    @click.argument("stream", type=STREAM)
    @client_options                                    # the options of output as well
    def head(output: Output, session: CliSession, stream: str) -> None:
        with output.progress("asking the hub"):
            checkpoint = session.client().checkpoint(stream)  # connects, checks the pin, unlocks the identity
        output.result(...)

`session.client()` gives a `veen.client` SyncClient that is closed when the command ends. Commands that need keys but no
hub use `identity_options` and `session.keystore` (its `identity`, its `secrets.keyring`); those that only need
configuration and paths use `home_options`, `session.home` and `session.settings`. Nothing is opened, asked for or
imported before it is used.

Secrets come from files or from a prompt, never from an argument or from the value of a variable: both are visible to
other processes and end up in histories.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared import options
from veen.cli.shared.names import CONTEXT, IDENTITY
from veen.cli.shared.output import Fail, Output, output_options

if TYPE_CHECKING:
    from veen.client.config.settings import ClientSettings
    from veen.client.errors import IdentityInUse
    from veen.client.home import Home
    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import Keyring
    from veen.client.identity.keystore import Keystore
    from veen.client.identity.rotation import KeyHolder
    from veen.client.sync import SyncClient
    from veen.client.verify.pin import HubPin
    from veen.core.objects.trusted_root import PinnedKey

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=str)
_TRIES: Final = 3  # of a passphrase that is typed
_FILE_HINT: Final = "give --passphrase-file FILE, set VEEN_PASSPHRASE_FILE"
_NEW_PASSPHRASE_HINT: Final = (
    f"{_FILE_HINT}, or, for tests and machines without a person, give --insecure-plain-keystore"
)


class CliSession:
    """The configuration, keys and hub of one command."""

    def __init__(self, output: Output, flags: dict[str, str | None]) -> None:
        self.output = output
        self._flags = flags
        self._is_beside = False  # whether another process uses the identity, and the client has a key of its own
        self._open = contextlib.ExitStack()
        self.trusts_first_use = False  # set by commands with --trust-on-first-use
        self.sends = False  # whether the command sends messages of the user; then a failure says what became of them
        self._waiting_before = 0  # messages that had no receipt when the client was opened

    # --- where -------------------------------------------------------------------------------------------------

    @cached_property
    def user_home(self) -> "Home":
        """The home of the user: configuration and contexts."""
        from veen.client.home import Home

        return Home.default()

    @cached_property
    def settings(self) -> "ClientSettings":
        from veen.client.config.projects import read_both
        from veen.client.config.settings import resolve_with_files

        settings = resolve_with_files(self._flags, os.environ, *read_both(Path.cwd(), self.user_home.config_file))
        if settings.token_file.value is None and settings.token_file.origin != "unset":
            self.output.note(f"{settings.token_file.origin}; to send a token there, give --token-file FILE")
        return settings

    @cached_property
    def home(self) -> "Home":
        """Directory of keys and state: the user's home, or the directory that `--identity DIR` names (spec-4 §7)."""
        return self._place[0]

    @property
    def identity_name(self) -> str:
        """Name of the identity: the given or configured one, or the only one."""
        return self._place[1]

    @cached_property
    def _place(self) -> "tuple[Home, str]":
        return self.place_of(self.settings.identity.value)

    def place_of(self, asked: str | None) -> "tuple[Home, str]":
        """Return home and name of an identity, given by name or directory; None: the only one."""
        from veen.client.home import Home

        home = self.user_home
        if asked is not None and ("/" in asked or asked in (".", "..")):
            home, asked = Home.at(Path(asked).expanduser().absolute()), None
        if asked is None:
            names = home.identities()
            if len(names) != 1:
                raise _which_identity(home.data, names)
            asked = names[0]
        if not home.has_identity(asked) and self.settings.may_make_identity(asked):
            self._make_identity(home, asked)
        home.require(asked)
        return home, asked

    def _make_identity(self, home: "Home", name: str) -> None:
        """Make the identity of a context with `make_keys`, sealed by the passphrase in the context's file."""
        from veen.client.identity.unlocking import make_identity

        path = self.settings.passphrase_file_for(name)
        assert path is not None  # noqa: S101 - may_make_identity
        make_identity(home, name, path)
        self.output.notice(
            f"made the identity {name!r}; its keystore is sealed by the passphrase in {path}."
            f" For a passphrase of your own: veen id passphrase {name}",
            identity=name,
        )

    def as_identity(self, identity: str) -> "CliSession":
        """Return a session of the same hub and settings with the keys of another identity. The caller closes it."""
        return CliSession(self.output, {**self._flags, "identity": identity})

    def in_context(self, name: str) -> "CliSession":
        """Return a session of the same identity at the hub of another context. The caller closes it."""
        hub_flags = dict.fromkeys(("hub", "hub_pk", "ca_file", "token_file"))
        return CliSession(self.output, {**self._flags, **hub_flags, "context": name})

    def renew(self) -> "CliSession":
        """Return a session for one more connection, with the keystore as it is now. The caller closes it."""
        from veen.client.identity.keystore import open_identity

        session = CliSession(self.output, self._flags)
        home, name = self._place
        key = None if self.keystore.is_plain else self.keystore.unlock_key
        # What was asked of a person stays answered: the passphrase, and the pin.
        session.__dict__.update(
            settings=self.settings, pinned=self.pinned, keystore=open_identity(home, name, None, key=key)
        )
        return session

    def remember_stream(self, stream: str) -> None:
        """Remember a stream for completion; see `remember_streams` in the configuration."""
        from veen.cli.shared.names import remember_stream

        if self.settings.remember_streams.value:
            remember_stream(self.user_home.cache, stream)

    # --- keys ----------------------------------------------------------------------------------------------------

    @cached_property
    def keystore(self) -> "Keystore":
        """Opened keystore of the identity: its keys and its keyring. In a batch it is opened once."""
        from veen.cli.shared.batch import open_once

        home, name = self._place
        return open_once(home.data, name, lambda: self.open_keystore(home, name))

    def open_keystore(self, home: "Home", name: str) -> "Keystore":
        """Open a keystore by passphrase file, agent, desktop keyring, or by asking three times at most."""
        from veen.client import agent
        from veen.client.desktop_keyring import KeyringUnusable
        from veen.client.errors import ExtraMissing, WrongPassphrase
        from veen.client.identity.keystore import open_identity
        from veen.client.identity.unlocking import open_without_asking

        path = self.settings.passphrase_file_for(name)
        context_file = self._file_of_a_context(home, name) if path is None else None
        if context_file is not None and context_file[0] == self.settings.context.value:
            path = context_file[1]  # the identity of the context in use, named once more by --identity
        keystore = None
        try:
            with self.output.progress("opening the keystore"):
                keystore = open_without_asking(home, name, passphrase_file=path, agent_home=self.user_home)
        except (KeyringUnusable, ExtraMissing) as exc:
            if not self.output.may_ask:
                raise
            self.output.note(str(exc))
        for left in range(_TRIES - 1, -1, -1):
            if keystore is not None:
                break
            if context_file is not None:
                raise self._not_for_here(*context_file, name)
            secret = self.prompt(f"passphrase of {name}")
            try:
                with self.output.progress("opening the keystore"):
                    keystore = open_identity(home, name, secret)
            except WrongPassphrase:
                if not left:
                    raise
                self.output.say(f"That is not the passphrase of {name}. Try again ({left} left).")
            else:
                agent.store_key(self.user_home, name, keystore.salt, keystore.unlock_key)
        assert keystore is not None  # noqa: S101 - the last try raised
        return keystore

    def _file_of_a_context(self, home: "Home", name: str) -> "tuple[str, Path] | None":
        """Return the context that made this identity automatically, and the file with its random passphrase."""
        from veen.client.config.file import read

        if home != self.user_home:
            return None
        for context, table in read(self.user_home.config_file).contexts.items():
            if table.get("identity") == name and table.get("make_keys") and "passphrase_file" in table:
                return context, Path(table["passphrase_file"])
        return None

    def _not_for_here(self, context: str, file: Path, name: str) -> Fail:
        """Return the error for an identity of another context: nobody knows its random passphrase."""
        in_use = self.settings.context.value
        return Fail(
            "E.LOCAL.INPUT",
            f"the identity {name!r} is for the context {context!r}"
            + (f", and {in_use!r} is in use" if in_use is not None else ""),
            f"it was made on the way, with a random passphrase in {file}",
            f"make an identity of your own: veen keygen --name NAME; to use {name!r} here too:"
            f" --identity {name} --passphrase-file {shlex.quote(str(file))}",
        )

    def passphrase(self, what: str) -> str:
        """Return the passphrase of a keystore that is not an identity here yet, from its file or from a person."""
        path = self.settings.passphrase_file_for("")
        return self.prompt(what, hint=_FILE_HINT) if path is None else read_passphrase(path)

    def first_passphrase(self, name: str) -> str:
        """Return the passphrase for an identity that is about to be made."""
        return self.new_passphrase(f"passphrase for {name}", name, self.settings.passphrase_file_for(name))

    def new_passphrase(self, what: str, name: str, file: Path | None = None) -> str:
        """Return a passphrase to seal with, from a file, or from a person, twice. Refuse weak ones with the reason."""
        from veen.client.identity.passphrases import WeakPassphrase, check_passphrase

        if file is not None:
            secret = read_passphrase(file)
            check_passphrase(secret, name)
            return secret
        for left in range(_TRIES - 1, -1, -1):
            secret = self.prompt(what, confirm=True, hint=_NEW_PASSPHRASE_HINT)
            try:
                check_passphrase(secret, name)
            except WeakPassphrase as exc:
                if not left:
                    raise
                self.output.say(f"Too weak: {exc.what}.")
            else:
                return secret
        raise AssertionError  # the last try returned or raised

    def prompt(self, what: str, *, confirm: bool = False, hint: str = "") -> str:
        """Prompt a person. Without one raise Fail; `hint` says what to do. Default: the hint for keystores."""
        if not self.output.may_ask:
            raise Fail(
                "E.LOCAL.INPUT",
                f"the {what} is needed",
                "there is no terminal for a prompt" if not self.output.no_input else "--no-input forbids to ask",
                hint or f"{_FILE_HINT}, or open it for a while: veen agent start; on a desktop: veen keystore remember",
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
                "no hub configured",
                "--hub, --context, VEEN_HUB, VEEN_CONTEXT and the configuration name none",
                "to try things: veen hub start --dev; else: veen context add NAME --hub URL --pin ed25519:HEX",
            )
        return str(url)

    @cached_property
    def pinned(self) -> "PinnedKey":
        """Pinned key of the hub. On first contact a person is asked; a script must have a pin."""
        from veen.cli.shared.pinning import TRUST_FIRST_USE, first_contact, first_use, say_trusted
        from veen.core.objects.trusted_root import PinnedKey

        text, origin = self.settings.hub_pk.value, self.settings.hub_pk.origin
        if text is None and (self.trusts_first_use or TRUST_FIRST_USE in os.environ):
            text = first_use(
                self.output,
                self.user_home.state,
                self.hub_url,
                ca_file=self.settings.path("ca_file"),
                token_file=self.settings.path("token_file"),
                insecure_http=bool(self.settings.insecure_http.value),
                seconds=self.settings.wait.value,
            )
        elif text is None:
            text = first_contact(self)
        elif origin.startswith("VEEN_PIN") and (self.output.is_log or origin != "VEEN_PIN"):
            say_trusted(self.output, self.hub_url, text, f"{origin} says so")
        return PinnedKey.parse(text)

    @property
    def pin(self) -> "HubPin":
        """Pinned key or root, with its hub_id."""
        from veen.client.verify.pin import HubPin

        of = HubPin.of_root if self.pinned.is_root else HubPin.of_key
        return of(self.pinned.public, self.hub_id)

    @property
    def hub_id(self) -> bytes | None:
        """hub_id of the pinned key; None before it was learned."""
        hub_id = self.settings.hub_id.value
        return None if hub_id is None else bytes.fromhex(hub_id)

    def _remember_hub_id(self, hub_id: bytes) -> None:
        """Store the hub_id that the pinned key signed in the context: from now on another one is refused (D-174).

        A root leaves hub_id open: another one is another of its hubs.
        """
        name, path = self.settings.context.value, self.user_home.config_file
        if self.pinned.is_root or self.hub_id is not None or self.settings.hub_pk.origin != f"{path} [context.{name}]":
            return
        from veen.client.config.projects import change
        from veen.client.errors import SettingsError

        try:
            change(path, {f"context.{name}.hub_id": hub_id.hex()})
        except (SettingsError, OSError) as exc:  # the state of the identity remembers it as well
            self.output.note(f"the hub_id could not be saved in {path}: {exc}")

    def make_stream_keys(self, stream: str) -> None:
        """Make and store keys for a stream without keys here, if the context says so (`make_keys`).

        Only for a stream without entries: in one that is in use, new keys would lock its readers out.
        """
        from veen.client.errors import UnknownStream
        from veen.client.identity.keyring import StreamRef
        from veen.client.identity.stream_keys import new_stream_keys

        ring = self.keystore.secrets.keyring
        if not self.settings.make_keys.value or StreamRef.parse(stream).label is not None:
            return
        try:
            ring.for_stream(stream)
        except UnknownStream:
            client = self.client()
            with contextlib.ExitStack() as lock:
                if self._is_beside:  # then the lock of the identity is not ours
                    lock.enter_context(self.home.lock(self.identity_name))
                client.run(lambda inner: new_stream_keys(inner, self.keystore, stream))
            self.output.notice(
                f"made the keys of {stream!r}; to let somebody else use it: veen invite {shlex.quote(stream)} --code",
                stream=stream,
            )

    def client(self) -> "SyncClient":
        """Return the client, connected to the hub with pin, identity and keyring; closed when the command ends."""
        return self._client

    @cached_property
    def _client(self) -> "SyncClient":
        url, _ = self.hub_url, self.pin  # before the passphrase: a person should not type it in vain
        keystore = self.keystore
        from veen.client.errors import IdentityInUse
        from veen.client.identity.rotation import KeystoreKeys

        with self.output.progress(f"connecting to {url}"):
            try:
                connected = self._connect(self.home, keystore.identity, KeystoreKeys(keystore, self._on_new_key))
            except IdentityInUse as exc:
                connected = self._beside(exc, keystore, self._connect)
        self._open.enter_context(connected)
        self._open.callback(self._tell_late, connected)  # before it is closed
        self._waiting_before = _count_waiting(connected)
        self._remember_hub_id(connected.hub_id)
        self._check_witnesses(connected)
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

    def client_as(self, identity: "Identity") -> "SyncClient":
        """Connect as an identity that acts by keys of the keystore, such as former ones. The caller closes the client.

        Its keys do not rotate, and IdentityInUse is an error here: nobody else may use the identity meanwhile.
        """
        with contextlib.ExitStack() as undo:
            connected = undo.enter_context(self._connect(self.home, identity, None))
            self._check_witnesses(connected)
            undo.pop_all()
        return connected

    def _connect(self, home: "Home", identity: "Identity", holder: "KeyHolder | None") -> "SyncClient":
        from veen.api.connecting import rules_of
        from veen.client.client import Client
        from veen.client.send.captokens import TokenStore
        from veen.client.sync import SyncClient
        from veen.client.transport.calls import Retry

        url, pin, keyring = self.hub_url, self.pin, self.keystore.secrets.keyring
        return SyncClient(
            lambda: Client.connect(
                url,
                pin=pin,
                identity=identity,
                keyring=keyring,
                home=home,
                mode=self.settings.mode.value,
                ca_file=self.settings.path("ca_file"),
                token_file=self.settings.path("token_file"),
                insecure_http=bool(self.settings.insecure_http.value),
                retry=Retry(seconds=self.settings.wait.value),
                call_seconds=self.settings.timeout.value,
                keys_learned=self._keep_keys,
                **rules_of(keyring),
                holder=holder,
                tokens=TokenStore(self.home.tokens_fs(identity.name)),
            )
        )

    def _check_witnesses(self, client: "SyncClient") -> None:
        """Raise QuorumError, or warn, if the hub lacks the cosignatures that the context requires."""
        path = self.settings.path("witness_policy")
        if path is None or self.settings.witnesses.value == "off":
            return
        from veen.client.verify.witnesses import read_witness_policy
        from veen.core.tlog.tree import QuorumError

        policy = read_witness_policy(path)
        try:
            client.run(lambda connected: connected.check_witnesses(policy))
        except QuorumError as exc:
            if self.settings.witnesses.value == "require":
                raise
            self.output.notice(
                f"warning: the hub lacks the cosignatures that {path} asks for: {exc}", witnesses="insufficient"
            )

    def _keep_keys(self, keyring: "Keyring") -> None:
        """Save key generations that were found in a stream. The connected client has the lock of the identity."""
        from dataclasses import replace

        self.keystore.save(replace(self.keystore.secrets, keyring=keyring))

    def _on_new_key(self, identity: "Identity") -> None:
        self.output.note("the client key was about to reach its bounds and was replaced by a new one")

    def _beside(
        self,
        error: "IdentityInUse",
        keystore: "Keystore",
        connect: "Callable[[Home, Identity, KeyHolder], SyncClient]",
    ) -> "SyncClient":
        """Connect with a client key of this command, as a worker does: another process uses the identity."""
        from veen.client.errors import IdentityInUse
        from veen.client.identity.workers import SlotKeys, take_slot

        for slot in take_slot(self.home, keystore.identity, int(time.time())):
            with contextlib.suppress(IdentityInUse):  # yet another process was faster
                connected = connect(slot.home, slot.identity, SlotKeys(slot))
                self._is_beside = True
                self.output.note(f"{error}; this command signs with a client key of its own")
                return connected
        raise error

    def _tell_late(self, client: "SyncClient") -> None:
        """Print the messages of earlier commands that this one delivered."""
        for sent in client.take_recovered():
            self.output.notice(
                f"a message of an earlier command was delivered now, once: seq {sent.seq},"
                f" msg_id {sent.msg_id.hex()}, receipt verified",
                delivered_late={"seq": sent.seq, "msg_id": sent.msg_id.hex(), "label": sent.label.hex()},
            )

    def note_waiting(self, error: Exception) -> None:
        """Set on an error of hub or network the number of messages kept for later."""
        from veen.client.errors import HubRefused, NetworkError

        if not isinstance(error, (HubRefused, NetworkError)):
            return
        count = 0
        if "_client" in self.__dict__:  # otherwise nothing was sealed
            count = _count_waiting(self._client)
        if self.sends or count > self._waiting_before:
            error.waiting = count  # type: ignore[union-attr]  # read by `failures`

    def close(self) -> None:
        self._open.close()


def _count_waiting(client: "SyncClient") -> int:
    """Return the number of messages without receipt; 0 if the state is damaged, which is reported where it is used."""
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
    """Return the first line of a file, without its end."""
    from veen.client.identity import unlocking

    return unlocking.read_passphrase(path)


INSECURE_HTTP: Final = click.option(
    "--insecure-http",
    is_flag=True,
    flag_value="true",
    default=None,
    help=f"{options.INSECURE_HTTP} [VEEN_INSECURE_HTTP]",
)
_HOME: Final = (
    click.option("--context", type=CONTEXT, help=options.CONTEXT),
    click.option("--identity", "--client", type=IDENTITY, help=f"{options.IDENTITY} [VEEN_IDENTITY]"),
    click.option("--passphrase-file", type=FILE, help=f"{options.PASSPHRASE_FILE} [VEEN_PASSPHRASE_FILE]"),
)
_HUB: Final = (
    click.option("--hub", help=f"{options.HUB} [VEEN_HUB]"),
    click.option("--pin", "hub_pk", help=f"{options.PIN} [VEEN_PIN]"),
    click.option("--ca-file", type=FILE, help=f"{options.CA_FILE} [VEEN_CA_FILE]"),
    click.option("--token-file", type=FILE, help=f"{options.TOKEN_FILE} [VEEN_TOKEN_FILE]"),
    INSECURE_HTTP,
    click.option("--wait", metavar="SECONDS", help="Time for retries while the hub does not answer. [VEEN_WAIT]"),
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
    """Combine several options into one decorator, in the order of the help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _save_evidence(session: CliSession, error: Exception) -> None:
    """Store the proof that a hub signed two histories in a file, and add its path to the error (RCPT-07)."""
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
    """Return the name under which click passes the value of an option."""
    (parameter,) = option(lambda: None).__click_params__
    return str(parameter.name)


client_options: Final = _session_options(*_HUB, *_HOME)  # commands that talk to a hub
identity_options: Final = _session_options(*_HOME)  # commands that use keys only
home_options: Final = _session_options(_HOME[0])  # commands that want to know what is configured
