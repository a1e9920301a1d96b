"""`veen keystore`: what opens keystores besides their passphrases."""

from typing import TYPE_CHECKING

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, home_options, identity_options
from veen.cli.shared.names import IDENTITY
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.client.home import Home

keystore = LazyGroup(
    "keystore",
    help="""What opens keystores besides the passphrase: the desktop keyring, and recovery secrets.

    With GNOME Keyring, KWallet or the macOS Keychain (extra `keyring`), whoever is logged in to the desktop uses the
    identity without typing its passphrase. To type it once and have the keystore open for a while only: veen agent
    start. A recovery secret opens the keystore when the passphrase is lost.
    """,
    table={
        "recover": ("veen.cli.setup.recovery:recover", "Open with a recovery secret, and set a new passphrase."),
        "recovery": ("veen.cli.setup.recovery:recovery", "Recovery secrets: keys and second passphrases."),
    },
)


def place_of(session: CliSession, name: str | None) -> "tuple[Home, str]":
    """Return home and name of the given identity, or of the one in use."""
    return session.place_of(name) if name is not None else (session.home, session.identity_name)


@keystore.verb("remember", "Have the desktop keyring open a keystore from now on.")
@click.argument("name", type=IDENTITY, required=False)
@identity_options
def remember(output: Output, session: CliSession, name: str | None) -> None:
    """Have the desktop keyring open the keystore of NAME (default: the identity in use), on this machine.

    The passphrase is asked for once more. What is kept in the keyring is the key that the passphrase was stretched to,
    not the passphrase. Nothing is kept there by any other command. After `veen id passphrase` it has to be said again.

    \b
    veen keystore remember
    veen keystore remember alice
    """
    from veen.client.desktop_keyring import backend_name, remember_key

    home, name = place_of(session, name)
    keyring = backend_name()  # before the passphrase: a person should not type it in vain
    opened = session.open_keystore(home, name)
    if opened.is_plain:
        raise Fail(
            "E.LOCAL",
            f"the keystore of {name} is not remembered",
            "it has no passphrase: every command opens it already",
            f"to give it one: veen id passphrase {name}",
        )
    remember_key(session.user_home, name, opened.salt, opened.unlock_key)
    output.result({"name": name, "remembered": True, "keyring": keyring})
    output.note(f"to undo it: veen keystore forget {name}")


@keystore.verb("forget", "Remove the key of a keystore from the desktop keyring.")
@click.argument("name", type=IDENTITY, required=False)
@identity_options
def forget(output: Output, session: CliSession, name: str | None) -> None:
    """Take the key of the keystore of NAME (default: the identity in use) out of the desktop keyring.

    \b
    veen keystore forget alice
    """
    from veen.client.desktop_keyring import forget_key
    from veen.client.identity.keystore import SealedKeystore

    home, name = place_of(session, name)
    forgotten = forget_key(session.user_home, SealedKeystore.read(home.identity_fs(name)).salt)
    data = {"name": name, "forgotten": forgotten}
    text = f"the desktop keyring no longer opens the keystore of {name}"
    output.result(data, lambda: output.line(text if forgotten else f"{name} was not remembered"))


@keystore.verb("status", "Keystores that the desktop keyring opens.")
@home_options
def status(output: Output, session: CliSession) -> None:
    """List the keystores that the desktop keyring can open, and mark those with a stored key. Shows no key.

    \b
    veen keystore status
    """
    from veen.client.desktop_keyring import KeyringUnusable, backend_name, find_key, list_remembered
    from veen.client.errors import ExtraMissing

    home = session.user_home
    rows = [{"name": name, "opens": False} for name, _ in list_remembered(home)]
    keyring, trouble = None, None
    try:
        keyring = backend_name()
        rows = [{"name": name, "opens": find_key(home, salt) is not None} for name, salt in list_remembered(home)]
    except (KeyringUnusable, ExtraMissing) as exc:
        trouble = str(exc)
    data = {"keyring": keyring, "trouble": trouble, "keystores": rows}

    def human() -> None:
        output.line(f"keyring: {keyring}" if trouble is None else trouble)
        for row in rows:
            output.line(f"  {row['name']}  {'opened by it' if row['opens'] else 'remembered, but not opened by it'}")
        if not rows:
            output.line("no keystore is remembered")

    output.result(data, human)
