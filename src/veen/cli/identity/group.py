"""`veen id` and `veen keygen`: identities, their keystores and cards. Secrets never leave the keystore in the clear."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.names import IDENTITY, STREAM
from veen.cli.shared.output import Output

if TYPE_CHECKING:
    from veen.client.home import Home
    from veen.client.identity.card import IdentityCard

_DIRECTORY = click.Path(file_okay=False, path_type=Path)

id_ = LazyGroup(
    "id",
    help="Identities: make, show, rotate, move; and the keys of streams.",
    table={
        "bind": ("veen.cli.identity.speaking:bind", "Have your client key speak for your identity in a stream."),
        "bindings": ("veen.cli.identity.speaking:bindings", "The client keys that speak for identities in a stream."),
        "revoke-key": ("veen.cli.identity.speaking:revoke_key", "End what a client key may say for your identity."),
        "stolen": ("veen.cli.identity.theft:take_back", "Take the identity back after its keystore was copied."),
        "context": ("veen.cli.identity.nouns:context", "Accounts of principals in realms."),
        "delegate": ("veen.cli.identity.authority:delegate", "Let a device act for you, by a token that you sign."),
        "device": ("veen.cli.identity.nouns:device", "Keys that act for a principal."),
        "external": ("veen.cli.identity.nouns:external", "Links to accounts elsewhere."),
        "gateway": ("veen.products.idgateway.commands:gateway", "External logins: accounts of an OpenID provider."),
        "graph": (
            "veen.cli.identity.graph:graph",
            "Who belongs to whom: principals, devices, accounts, groups, roles.",
        ),
        "group": ("veen.cli.identity.nouns:group", "Groups of accounts within an organization."),
        "handle": ("veen.cli.identity.nouns:handle", "Names of a realm for accounts and organizations."),
        "org": ("veen.cli.identity.nouns:org", "Organizations."),
        "principal": ("veen.cli.identity.nouns:principal", "Root identities."),
        "resolve": ("veen.cli.identity.authority:resolve", "Whom a handle or an external account means."),
        "role": ("veen.cli.identity.nouns:role", "Roles that an organization gives."),
        "keyring": ("veen.cli.identity.keyring:keyring", "Keys of streams: who may write, who may read."),
        "new": ("veen.cli.identity.group:new", "Make an identity: keys of your own."),
    },
    sections=(
        (
            "Keys on this machine",
            ("new", "list", "show", "card", "rotate", "passphrase", "export", "import", "keyring"),
        ),
        ("Your keys in streams", ("bind", "bindings", "revoke-key", "stolen")),
        (
            "Identities in the log",
            ("principal", "device", "context", "org", "group", "role", "handle", "external", "gateway"),
        ),
        ("Questions", ("delegate", "resolve", "graph")),
    ),
)


def _create(output: Output, session: CliSession, name: str | None, out: Path | None, insecure: bool) -> None:
    """Make an identity: keys that sign and open, in a keystore under a passphrase.

    On a terminal the passphrase is asked for. With --out the identity lies in a directory of its own, which other
    commands take as --identity DIR.

    \b
    veen keygen --name alice
    veen keygen --out ./client --passphrase-file /run/secrets/passphrase
    """
    from veen.client.home import Home
    from veen.client.identity.identity import check_name
    from veen.client.identity.keystore import create_identity

    home = session.user_home if out is None else Home.at(out.absolute())
    if name is None:
        name = "default" if out is None else out.absolute().name
    check_name(name)
    if home.has_identity(name):
        from veen.client.errors import IdentityExists

        raise IdentityExists(name)
    secret = None if insecure else session.first_passphrase(name)
    default = None if out is not None else default_identity(session, name)
    with output.progress("making keys"):
        keystore = create_identity(home, name, secret, now=int(time.time()))
    own_card = keystore.identity.card()
    data = {
        **_about(own_card),
        "keystore": "plain" if insecure else "sealed",
        "directory": str(home.identity_dir(name)),
    }
    output.result(data)
    if default is not None and default != name:
        output.note(f"{default} stays the identity in use; to choose the new one: veen config set identity {name}")
    if insecure:
        output.note("the keystore has no passphrase: whoever can read the file has the keys")
    else:
        output.note("a lost passphrase loses the keys; make a recovery key: veen keystore recovery add")
    output.next("veen context add NAME --hub URL --pin ed25519:HEX")


def default_identity(session: CliSession, new: str | None) -> str | None:
    """Make the first identity of a home its default before there is a second one, so that no command has to ask.

    One that a context made for itself (`make_keys`) is chosen by that context alone: then the `new` one is the first.
    """
    from veen.client.config.file import read
    from veen.client.config.projects import change

    home = session.user_home
    file = read(home.config_file)
    if "identity" in file.top:
        return str(file.top["identity"])
    own = {table.get("identity") for table in file.contexts.values() if table.get("make_keys")}
    names = home.identities()
    others = [name for name in names if name not in own]
    if not names or len(others) > 1:
        return None  # the only one needs no choice; among several of an older release a person chooses
    default = others[0] if others else new
    if default is None:
        return None
    change(home.config_file, {"identity": default})
    return default


def _make_create_command(name: str) -> click.Command:
    options = (
        click.option("--name", help="Its name; default: that of --out, or 'default'."),
        click.option("--out", type=_DIRECTORY, help="A directory for it alone, instead of your home."),
        click.option(
            "--insecure-plain-keystore", "insecure", is_flag=True, help="No passphrase: for tests and machines only."
        ),
    )
    command: Any = identity_options(_create)
    for option in reversed(options):
        command = option(command)
    return click.command(name)(command)


new = _make_create_command("new")
keygen = _make_create_command("keygen")


def _about(card: "IdentityCard") -> dict[str, Any]:
    return {
        "name": card.name,
        "card_id": card.card_id,
        "client_id": card.client_id.hex(),
        "id_sign_pk": card.id_sign_pk.hex(),
        "dh_pk": card.dh_pk.hex(),
        "card": card.to_text(),
    }


@id_.verb("list", "The identities on this machine.")
@identity_options
def list_(output: Output, session: CliSession) -> None:
    """List the identities on this machine, and how their keystores are sealed."""
    from veen.client.errors import ClientError
    from veen.client.identity.keystore import SealedKeystore, read_card

    home = session.user_home
    entries: list[dict[str, Any]] = []
    for name in home.identities():
        try:
            card = read_card(home.identity_fs(name))
            plain = SealedKeystore.read(home.identity_fs(name)).is_plain
            about: dict[str, Any] = {
                "card_id": card.card_id,
                "client_id": card.client_id.hex(),
                "keystore": _format_sealing(plain),
            }
        except (ClientError, OSError) as exc:
            about = {"card_id": None, "client_id": None, "keystore": f"damaged: {exc}"}
        entries.append({"name": name, **about})
    columns = ("name", "card_id", "client_id", "keystore")
    rows = [[entry[column] for column in columns] for entry in entries]
    output.result({"identities": entries}, lambda: output.table(columns, rows))
    if not entries:
        output.next("veen keygen --name NAME")


def _format_sealing(plain: bool) -> str:
    return "plain" if plain else "sealed"


@id_.verb("show", "Show an identity without its secrets.")
@click.argument("name", type=IDENTITY, required=False)
@click.option("--keys", is_flag=True, help="Open the keystore, and show client keys, prekeys and streams as well.")
@identity_options
def show(output: Output, session: CliSession, name: str | None, keys: bool) -> None:
    """Show the identity NAME (default: the one in use). Its public keys need no passphrase."""
    from veen.client.identity.keystore import SealedKeystore, read_card

    home, name = _place(session, name)
    fs = home.identity_fs(name)
    data = {
        **_about(read_card(fs)),
        "keystore": _format_sealing(SealedKeystore.read(fs).is_plain),
        "directory": str(fs.root),
    }
    if keys:
        secrets = session.open_keystore(home, name).secrets
        key = secrets.identity.client_key
        data |= {
            "client_key_generation": key.generation,
            "client_key_created_at": key.created_at,
            "retired_client_ids": [old.client_id.hex() for old in secrets.identity.client_keys[:-1]],
            "prekeys": len(secrets.prekeys),
            "streams": len({entry.stream_id for entry in secrets.keyring.entries}),
        }
    output.result(data)


def _place(session: CliSession, name: str | None) -> "tuple[Home, str]":
    """Return the identity that an argument names, or the one in use."""
    if name is None:
        return session.home, session.identity_name
    return session.place_of(name)


@id_.verb("card", "The public card of an identity, one line; or check one.")
@click.argument("name", type=IDENTITY, required=False)
@click.option("--check", "text", help="Check this card (veen1…) instead, and show what it says.")
@identity_options
def card(output: Output, session: CliSession, name: str | None, text: str | None) -> None:
    """Print the card of NAME: the one line that others need to issue tokens to it or to seal for it."""
    from veen.client.identity.card import IdentityCard
    from veen.client.identity.keystore import read_card

    if text is not None:
        checked = IdentityCard.from_text(text)
        output.result(_about(checked))
        return
    home, name = _place(session, name)
    card = read_card(home.identity_fs(name))
    output.result(_about(card), lambda: output.line(card.to_text()))


@id_.verb("rotate", "Go on with a new client key.")
@click.argument("name", type=IDENTITY, required=False)
@identity_options
def rotate(output: Output, session: CliSession, name: str | None) -> None:
    """Go on with a new client key. Old messages stay verifiable, and those that wait are sent by the next command.

    A client key is replaced by itself before it reaches its bounds. A token for the identity goes on with the new key;
    one for the old client key does not fit it.
    """
    home, name = _place(session, name)
    with home.lock(name):
        keystore = session.open_keystore(home, name)
        before = keystore.identity.client_id
        identity = keystore.rotate(int(time.time()))
    data = {
        "name": name,
        "client_id": identity.client_id.hex(),
        "generation": identity.client_key.generation,
        "retired_client_id": before.hex(),
    }
    output.result(data)
    output.note("tokens for the old client key do not fit the new one; those for the identity do")


@id_.verb("passphrase", "Change the passphrase of a keystore.")
@click.argument("name", type=IDENTITY, required=False)
@click.option(
    "--new-passphrase-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The new one."
)
@click.option("--insecure-plain-keystore", "insecure", is_flag=True, help="Take the passphrase away.")
@identity_options
def passphrase(
    output: Output, session: CliSession, name: str | None, new_passphrase_file: Path | None, insecure: bool
) -> None:
    """Change the passphrase of NAME. Copies made before still open with the old one."""
    if insecure and new_passphrase_file is not None:
        raise click.UsageError("give one of --new-passphrase-file and --insecure-plain-keystore")
    from veen.client.desktop_keyring import KeyringUnusable, forget_key, is_remembered
    from veen.client.errors import ExtraMissing

    home, name = _place(session, name)
    with home.lock(name):
        keystore = session.open_keystore(home, name)
        salt = keystore.salt
        asked = f"new passphrase for {name}"
        secret = None if insecure else session.new_passphrase(asked, name, new_passphrase_file)
        with output.progress("sealing the keystore"):
            keystore.change_passphrase(secret)
    output.result({"name": name, "keystore": _format_sealing(keystore.is_plain)})
    _forget_passphrase_files(output, session, name)
    if is_remembered(session.user_home, salt):
        try:
            forget_key(session.user_home, salt)
        except (KeyringUnusable, ExtraMissing) as exc:
            output.note(f"the key of before, which opens copies made before, is still in the keyring: {exc}")
        output.note(f"the desktop keyring no longer opens it; to have it do so again: veen keystore remember {name}")


def _forget_passphrase_files(output: Output, session: CliSession, name: str) -> None:
    """Report a context whose passphrase file has the former passphrase: commands would fail with it."""
    from veen.client.config.file import read
    from veen.client.config.projects import change

    path = session.user_home.config_file
    for context, table in read(path).contexts.items():
        if table.get("identity") == name and (file := table.get("passphrase_file")) is not None:
            change(path, {f"context.{context}.passphrase_file": None})
            output.note(f"the context {context} no longer names {file}, which has the passphrase of before")


@id_.verb("export", "Write an identity and all it holds into a directory.")
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--stream", "streams", type=STREAM, multiple=True, help="With this stream, read from the hub. Repeatable."
)
@client_options
def export(output: Output, session: CliSession, directory: Path, streams: tuple[str, ...]) -> None:
    """Write the identity in use into the empty DIRECTORY: card, sealed keystore, tokens, state.

    With --stream, the export also has the receipts, messages, checkpoints and attachments of the stream. They are
    verified, and the messages stay sealed. The keystore stays sealed with its passphrase. Use --identity to choose the
    identity.
    """
    from tempfile import TemporaryDirectory

    from veen.cli.identity.exporting import Gathered
    from veen.client.home import PrivateFs
    from veen.client.portable.portability import export_identity

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
    output.result(data)
    for line in _context_lines(session):
        output.note(f"contexts stay here; where it is imported: {line}")
    output.next(f"veen verify {directory}")


def _context_lines(session: CliSession) -> list[str]:
    """Return the commands that create the contexts of this home elsewhere, without those of trial hubs."""
    import shlex

    from veen.client.config.file import read

    contexts = read(session.user_home.config_file).contexts
    return [
        f"veen context add {shlex.quote(name)} --hub {shlex.quote(table['hub'])} --pin {table['hub_pk']}"
        + (f" --ca-file {shlex.quote(table['ca_file'])}" if "ca_file" in table else "")
        for name, table in contexts.items()
        if "hub" in table and "hub_pk" in table and not table.get("make_keys")
    ]


@id_.verb("import", "Take in what `id export` wrote, after checking all of it.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@identity_options
def import_(output: Output, session: CliSession, directory: Path) -> None:
    """Take in the identity in DIRECTORY, after every byte of it was checked. Nothing is ever overwritten."""
    from veen.client.identity.keystore import SealedKeystore
    from veen.client.portable.portability import import_set
    from veen.io.local import OsFs

    source = OsFs(directory.absolute())
    secret = None if SealedKeystore.read(source).is_plain else session.passphrase("passphrase of the exported keystore")
    default_identity(session, None)
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
    output.result(data)
