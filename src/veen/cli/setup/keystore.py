"""`veen keystore`: what opens keystores besides their passphrases.

`veen keystore recovery` and `veen keystore recover`: what opens a keystore whose passphrase is lost.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
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
        "recover": ("veen.cli.setup.keystore:recover", "Open with a recovery secret, and set a new passphrase."),
        "recovery": ("veen.cli.setup.keystore:recovery", "Recovery secrets: keys and second passphrases."),
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


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

recovery = LazyGroup(
    "recovery",
    help="""Recovery secrets: what opens a keystore whose passphrase is lost.

    A recovery secret is a random key, to be printed or kept by somebody you trust, or a second passphrase. It stays
    valid when the passphrase changes. Whoever has it and the keystore file has the keys of the identity.
    """,
)


@recovery.verb("add", "Make a recovery key, or set a second passphrase.")
@click.argument("name", type=IDENTITY, required=False)
@click.option("--passphrase", "second", is_flag=True, help="Ask for a second passphrase instead of making a key.")
@click.option("--new-passphrase-file", type=_FILE, help=options.NEW_PASSPHRASE_FILE)
@click.option("--out", type=click.Path(path_type=Path), help="Write the recovery key to this new file, mode 0600.")
@identity_options
def add(
    output: Output,
    session: CliSession,
    name: str | None,
    second: bool,
    new_passphrase_file: Path | None,
    out: Path | None,
) -> None:
    """Add a recovery secret to the keystore of NAME (default: the identity in use).

    Without options a random recovery key is made and shown once. Write it down, or give --out and move the file to
    another place than this machine.

    \b
    veen keystore recovery add
    veen keystore recovery add alice --passphrase
    """
    if (second or new_passphrase_file is not None) and out is not None:
        raise click.UsageError("--out is for a recovery key; give one of --passphrase and --out")
    home, name = place_of(session, name)
    with home.lock(name):
        keystore = session.open_keystore(home, name)
        key: str | None = None
        if second or new_passphrase_file is not None:
            text = session.new_passphrase(f"second passphrase for {name}", name, new_passphrase_file)
            slot = keystore.make_recovery_passphrase(text)
        else:
            slot, key = keystore.make_recovery_key()
            if out is not None:  # on disk before the keystore names it
                _write_new(out, key)
        keystore.add_recovery(slot)
    shown = key is not None and out is None
    data = {"name": name, **slot.to_public()}
    data |= {"recovery_key": key} if shown else {"file": str(out)} if out is not None else {}
    output.result(data)
    if shown:
        output.note("this key is shown once and kept nowhere: write it down, and keep it away from this machine")
    output.next(f"veen keystore recover {name}   (when the passphrase is lost)")


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as exc:
        raise Fail("E.LOCAL.INPUT", f"{path} exists already", "nothing was changed", "give another --out") from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


@recovery.verb("list", "The recovery secrets of a keystore.")
@click.argument("name", type=IDENTITY, required=False)
@identity_options
def list_(output: Output, session: CliSession, name: str | None) -> None:
    """List the recovery secrets of the keystore of NAME, without opening it. No secret is shown.

    \b
    veen keystore recovery list
    """
    from veen.client.identity.keystore import SealedKeystore

    home, name = place_of(session, name)
    slots = [slot.to_public() for slot in SealedKeystore.read(home.identity_fs(name)).recovery]
    rows = [[slot["id"], slot["kind"]] for slot in slots]
    output.result({"name": name, "recoveries": slots}, lambda: output.table(("id", "kind"), rows))
    if not slots:
        output.next(f"veen keystore recovery add {name}")


@recovery.verb("remove", "Remove a recovery secret.")
@click.argument("recovery_id", metavar="ID")
@click.argument("name", type=IDENTITY, required=False)
@identity_options
def remove(output: Output, session: CliSession, recovery_id: str, name: str | None) -> None:
    """Remove the recovery secret ID from the keystore of NAME, and seal the keystore under a new key.

    The passphrase is asked for, and stays. Copies of the keystore that were made before still open with the removed
    secret.

    \b
    veen keystore recovery remove 5f0c9a12
    """
    from veen.client.identity.keystore import open_identity
    from veen.client.identity.unlocking import read_passphrase

    home, name = place_of(session, name)
    with home.lock(name):
        file = session.settings.passphrase_file_for(name)
        passphrase = read_passphrase(file) if file is not None else session.prompt(f"passphrase of {name}")
        keystore = open_identity(home, name, passphrase)
        with output.progress("sealing the keystore"):
            keystore.remove_recovery(recovery_id, passphrase)
    output.result({"name": name, "removed": recovery_id, "recoveries": len(keystore.recoveries)})


@click.command("recover")
@click.argument("name", type=IDENTITY, required=False)
@click.option("--recovery-file", type=_FILE, help="File whose first line is the recovery key or second passphrase.")
@click.option("--new-passphrase-file", type=_FILE, help=options.NEW_PASSPHRASE_FILE)
@identity_options
def recover(
    output: Output, session: CliSession, name: str | None, recovery_file: Path | None, new_passphrase_file: Path | None
) -> None:
    """Open the keystore of NAME with a recovery secret, and give it a new passphrase.

    \b
    veen keystore recover
    veen keystore recover alice --recovery-file /media/paper/alice.key
    """
    from veen.client.identity.keystore import Keystore, SealedKeystore
    from veen.client.identity.unlocking import read_passphrase

    home, name = place_of(session, name)
    home.require(name)
    fs = home.identity_fs(name)
    if not SealedKeystore.read(fs).recovery:
        raise Fail(
            "E.LOCAL.RECOVERY",
            f"the keystore of {name} has no recovery secret",
            "none was added while its passphrase was known, and nothing else opens it",
            "look for a copy whose passphrase is known; otherwise make an identity: veen keygen --name NAME",
        )
    with home.lock(name):
        if recovery_file is not None:
            secret = read_passphrase(recovery_file)
        else:
            secret = session.prompt(
                f"recovery key or second passphrase of {name}", hint="give it in --recovery-file FILE"
            )
        with output.progress("opening the keystore"):
            keystore = Keystore.recover(fs, secret)
        passphrase = session.new_passphrase(f"new passphrase for {name}", name, new_passphrase_file)
        with output.progress("sealing the keystore"):
            keystore.change_passphrase(passphrase)
    output.result({"name": name, "keystore": "sealed", "recoveries": len(keystore.recoveries)})
    output.note("the recovery secret stays valid; to end it: veen keystore recovery remove ID")
