"""`veen id` and `veen keygen`: identities, their keystores and cards. Secrets never leave the keystore in the clear."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.clictx import Session, client_options, identity_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import IDENTITY, STREAM
from veen.cli.output import Output, output_options

if TYPE_CHECKING:
    from veen.client.card import IdentityCard
    from veen.client.home import Home

__all__ = ["card", "export", "id_", "import_", "keygen", "list_", "new", "passphrase", "rotate", "show"]

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


class _IdGroup(LazyGroup):
    table: ClassVar[Table] = {
        "context": ("veen.cli.idnouns:context", "Accounts of principals in realms."),
        "delegate": ("veen.cli.idauthority:delegate", "Let a device act for you, by a token that you sign."),
        "device": ("veen.cli.idnouns:device", "Keys that act for a principal."),
        "external": ("veen.cli.idnouns:external", "Links to accounts elsewhere."),
        "graph": ("veen.cli.idgraph:graph", "Who belongs to whom: principals, devices, accounts, groups, roles."),
        "group": ("veen.cli.idnouns:group", "Groups of accounts within an organization."),
        "handle": ("veen.cli.idnouns:handle", "Names of a realm for accounts and organizations."),
        "org": ("veen.cli.idnouns:org", "Organizations."),
        "principal": ("veen.cli.idnouns:principal", "Root identities."),
        "resolve": ("veen.cli.idauthority:resolve", "Whom a handle or an external account means."),
        "role": ("veen.cli.idnouns:role", "Roles that an organization gives."),
        "card": ("veen.cli.id:card", "The public card of an identity, one line; or check one."),
        "export": ("veen.cli.id:export", "Write an identity and all it holds into a directory."),
        "import": ("veen.cli.id:import_", "Take in what `id export` wrote, after checking all of it."),
        "keyring": ("veen.cli.keyring:keyring", "Keys of streams: who may write, who may read."),
        "list": ("veen.cli.id:list_", "The identities on this machine."),
        "new": ("veen.cli.id:new", "Make an identity: keys of your own."),
        "passphrase": ("veen.cli.id:passphrase", "Change the passphrase of a keystore."),
        "rotate": ("veen.cli.id:rotate", "Go on with a new client key."),
        "show": ("veen.cli.id:show", "What is known of an identity; no secrets."),
    }
    sections: ClassVar = (
        (
            "Keys on this machine",
            ("new", "list", "show", "card", "rotate", "passphrase", "export", "import", "keyring"),
        ),
        ("Identities in the log", ("principal", "device", "context", "org", "group", "role", "handle", "external")),
        ("Questions", ("delegate", "resolve", "graph")),
    )


@click.group("id", cls=_IdGroup)
def id_() -> None:
    """Identities: make, show, rotate, move; and the keys of streams."""


def _create(output: Output, session: Session, name: str | None, out: Path | None, insecure: bool) -> None:
    """Make an identity: keys that sign and open, in a keystore under a passphrase.

    On a terminal the passphrase is asked for. With --out the identity lies in a directory of its own, which other
    commands take as --identity DIR.

    \b
    veen keygen --name alice
    veen keygen --out /work/client --passphrase-file /run/secrets/passphrase
    """
    from veen.client.home import Home
    from veen.client.identity import check_name
    from veen.client.keystore import create_identity

    home = session.user_home if out is None else Home.at(out.absolute())
    if name is None:
        name = "default" if out is None else out.absolute().name
    check_name(name)
    if home.has_identity(name):
        from veen.client.errors import IdentityExists

        raise IdentityExists(name)
    secret = None if insecure else session.passphrase(f"passphrase for {name}", confirm=True)
    with output.progress("making keys"):
        keystore = create_identity(home, name, secret, now=int(time.time()))
    made = keystore.identity.card()
    data = {**_about(made), "keystore": "plain" if insecure else "sealed", "directory": str(home.identity_dir(name))}
    output.result(data, lambda: output.fields(data.items()))
    if insecure:
        output.note("the keystore has no passphrase: whoever can read the file has the keys")
    output.next("veen context add NAME --hub URL --pin ed25519:HEX")


def _creating(name: str) -> click.Command:
    options = (
        click.option("--name", help="Its name; default: that of --out, or 'default'."),
        click.option("--out", type=_DIRECTORY, help="A directory for it alone, instead of your home."),
        click.option(
            "--insecure-plain-keystore", "insecure", is_flag=True, help="No passphrase: for tests and machines only."
        ),
    )
    command: Any = output_options(identity_options(_create))
    for option in reversed(options):
        command = option(command)
    return click.command(name)(command)


new = _creating("new")
keygen = _creating("keygen")


def _about(found: "IdentityCard") -> dict[str, Any]:
    return {
        "name": found.name,
        "card_id": found.card_id,
        "client_id": found.client_id.hex(),
        "id_sign_pk": found.id_sign_pk.hex(),
        "dh_pk": found.dh_pk.hex(),
        "card": found.to_text(),
    }


@click.command("list")
@output_options
@identity_options
def list_(output: Output, session: Session) -> None:
    """The identities on this machine, and how their keystores are kept."""
    from veen.client.errors import ClientError
    from veen.client.keystore import SealedKeystore, read_card

    home = session.user_home
    found: list[dict[str, Any]] = []
    for name in home.identities():
        try:
            known = read_card(home.identity_fs(name))
            plain = SealedKeystore.read(home.identity_fs(name)).is_plain
            about: dict[str, Any] = {
                "card_id": known.card_id,
                "client_id": known.client_id.hex(),
                "keystore": _kept(plain),
            }
        except (ClientError, OSError) as exc:
            about = {"card_id": None, "client_id": None, "keystore": f"damaged: {exc}"}
        found.append({"name": name, **about})
    columns = ("name", "card_id", "client_id", "keystore")
    rows = [[one[column] for column in columns] for one in found]
    output.result({"identities": found}, lambda: output.table(columns, rows))
    if not found:
        output.next("veen keygen --name NAME")


def _kept(plain: bool) -> str:
    return "plain" if plain else "sealed"


@click.command()
@click.argument("name", type=IDENTITY, required=False)
@click.option("--keys", is_flag=True, help="Open the keystore and tell of client keys, prekeys and streams too.")
@output_options
@identity_options
def show(output: Output, session: Session, name: str | None, keys: bool) -> None:
    """What is known of the identity NAME (default: the one in use). Its public keys need no passphrase."""
    from veen.client.keystore import SealedKeystore, read_card

    home, name = _place(session, name)
    fs = home.identity_fs(name)
    data = {**_about(read_card(fs)), "keystore": _kept(SealedKeystore.read(fs).is_plain), "directory": str(fs.root)}
    if keys:
        secrets = session.opened(home, name).secrets
        key = secrets.identity.client_key
        data |= {
            "client_key_generation": key.generation,
            "client_key_created_at": key.created_at,
            "retired_client_ids": [old.client_id.hex() for old in secrets.identity.client_keys[:-1]],
            "prekeys": len(secrets.prekeys),
            "streams": len({entry.stream_id for entry in secrets.keyring.entries}),
        }
    output.result(data, lambda: output.fields(data.items()))


def _place(session: Session, name: str | None) -> "tuple[Home, str]":
    """The identity an argument names, or else the one in use."""
    if name is None:
        return session.home, session.identity_name
    return session.place_of(name)


@click.command()
@click.argument("name", type=IDENTITY, required=False)
@click.option("--check", "text", help="Check this card (veen1…) instead, and show what it says.")
@output_options
@identity_options
def card(output: Output, session: Session, name: str | None, text: str | None) -> None:
    """Print the card of NAME: the one line that others need to issue tokens to it or to seal for it."""
    from veen.client.card import IdentityCard
    from veen.client.keystore import read_card

    if text is not None:
        checked = IdentityCard.from_text(text)
        output.result(_about(checked), lambda: output.fields(_about(checked).items()))
        return
    home, name = _place(session, name)
    found = read_card(home.identity_fs(name))
    output.result(_about(found), lambda: output.line(found.to_text()))


@click.command()
@click.argument("name", type=IDENTITY, required=False)
@output_options
@identity_options
def rotate(output: Output, session: Session, name: str | None) -> None:
    """Go on with a new client key. Old messages stay verifiable; capability tokens must be issued anew (D-49)."""
    home, name = _place(session, name)
    with home.lock(name):
        keystore = session.opened(home, name)
        before = keystore.identity.client_id
        identity = keystore.rotate(int(time.time()))
    data = {
        "name": name,
        "client_id": identity.client_id.hex(),
        "generation": identity.client_key.generation,
        "retired_client_id": before.hex(),
    }
    output.result(data, lambda: output.fields(data.items()))
    output.note("tokens for the old client key do not fit the new one")


@click.command()
@click.argument("name", type=IDENTITY, required=False)
@click.option(
    "--new-passphrase-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The new one."
)
@click.option("--insecure-plain-keystore", "insecure", is_flag=True, help="Take the passphrase away.")
@output_options
@identity_options
def passphrase(
    output: Output, session: Session, name: str | None, new_passphrase_file: Path | None, insecure: bool
) -> None:
    """Change the passphrase of NAME. Copies made before still open with the old one."""
    from veen.cli.clictx import read_passphrase

    if insecure and new_passphrase_file is not None:
        raise click.UsageError("give one of --new-passphrase-file and --insecure-plain-keystore")
    home, name = _place(session, name)
    with home.lock(name):
        keystore = session.opened(home, name)
        if insecure:
            secret = None
        elif new_passphrase_file is not None:
            secret = read_passphrase(new_passphrase_file)
        else:
            secret = session.asked(f"new passphrase for {name}", confirm=True)
        with output.progress("sealing the keystore"):
            keystore.change_passphrase(secret)
    data = {"name": name, "keystore": _kept(keystore.is_plain)}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--stream", "streams", type=STREAM, multiple=True, help="With this stream, read from the hub. Repeatable."
)
@output_options
@client_options
def export(output: Output, session: Session, directory: Path, streams: tuple[str, ...]) -> None:
    """Write the identity in use into the empty DIRECTORY: card, sealed keystore, tokens, state (D-72).

    With --stream also its receipts, messages, checkpoints and attachments, verified; messages stay sealed. The
    keystore stays sealed with its passphrase. Choose the identity by --identity.
    """
    from tempfile import TemporaryDirectory

    from veen.cli.exporting import Gathered
    from veen.client.home import PrivateFs
    from veen.client.portability import export_identity

    keystore = session.keystore
    target = PrivateFs(directory.absolute())
    with TemporaryDirectory(prefix="veen-export-") as waiting, output.progress("exporting"):
        gathered = Gathered(PrivateFs(Path(waiting)))
        if streams:
            gathered.gather(session.client(), streams)
            session.close()  # the export wants the identity for itself
        manifest = export_identity(
            session.home,
            keystore,
            target,
            now=int(time.time()),
            entries=gathered.entries() if streams else (),
            checkpoints=gathered.checkpoints,
            attachments=gathered.attachments(),
        )
    data = {
        "name": keystore.identity.name,
        "card_id": keystore.identity.card_id,
        "directory": str(directory),
        "files": len(manifest.files),
        "checkpoints": len(gathered.checkpoints),
    }
    output.result(data, lambda: output.fields(data.items()))
    output.next(f"veen verify {directory}")


@click.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@output_options
@identity_options
def import_(output: Output, session: Session, directory: Path) -> None:
    """Take in the identity in DIRECTORY, after every byte of it was checked. Nothing is ever overwritten."""
    from veen.client.keystore import SealedKeystore
    from veen.client.portability import import_set
    from veen.storage.fs import OsFs

    source = OsFs(directory.absolute())
    secret = None if SealedKeystore.read(source).is_plain else session.passphrase("passphrase of the exported keystore")
    with output.progress("checking and importing"):
        done, _ = import_set(source, session.user_home, secret)
    data = {
        "name": done.card.name,
        "card_id": done.card.card_id,
        "tokens": len(done.tokens),
        "labels": len(done.states),
        "entries": done.entries,
        "attachments": done.attachments,
    }
    output.result(data, lambda: output.fields(data.items()))
