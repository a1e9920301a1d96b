"""`veen id keyring`: the keys of streams. Whoever has a write key can seal, whoever has a read key can open (D-10)."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, identity_options
from veen.cli.shared.files import text_of
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.client.identity.keyring import Keyring, StreamKeys


keyring = LazyGroup(
    "keyring",
    help="""Keys of streams: who may write, who may read.

    The write key of a stream is public and seals; the read key is secret and opens. The hub has neither.
    """,
)


def _change(session: CliSession, change: "Callable[[Keyring], Keyring]") -> None:
    """Change the keyring in the keystore. It is opened under the lock, so that no other write comes between."""
    from dataclasses import replace

    with session.home.lock(session.identity_name):
        keystore = session.keystore
        keystore.save(replace(keystore.secrets, keyring=change(keystore.secrets.keyring)))


def _about(keys: "StreamKeys") -> dict[str, Any]:
    return {
        "stream": str(keys),
        "stream_id": keys.stream_id.hex(),
        "reader_pk": keys.reader_pk.hex(),
        "rights": "read and write" if keys.can_read else "write",
    }


@keyring.verb("new", "Make the keys of a new stream.")
@click.argument("stream", type=STREAM, metavar="[STREAM]", required=False)
@click.option("--private", is_flag=True, help="Use a random id instead of a name, so that nobody can guess it.")
@identity_options
def new(output: Output, session: CliSession, stream: str | None, private: bool) -> None:
    """Make the keys of STREAM, of which you become the owner. The stream must not have keys yet.

    To replace keys, run `veen keys rotate STREAM`, which tells all readers; if others use the stream already, ask its
    owner for an invitation instead.

    The id of a stream is the hash of its name, so whoever guesses the name finds its label at the hub. With --private
    there is no name: the stream goes by hex:ID, and others learn it from the key that you share.

    \b
    veen id keyring new orders
    veen id keyring new --private
    """
    from veen.client.errors import StreamKeysExist
    from veen.client.identity.keyring import StreamKeys

    if private == (stream is not None):
        raise click.UsageError("give STREAM, or --private for a stream without a name")
    owner_pk = session.keystore.identity.id_sign_pk
    keys = StreamKeys.create(f"hex:{os.urandom(32).hex()}" if stream is None else stream, owner_pk=owner_pk)

    def add_new(ring: "Keyring") -> "Keyring":
        if any(old.stream_id == keys.stream_id for old in ring.entries):
            raise StreamKeysExist(str(keys))
        return ring.with_keys(keys)

    _change(session, add_new)
    session.remember_stream(str(keys))
    output.result(_about(keys))
    output.next(f"veen send {keys} BODY")


@keyring.verb("add", "Add a stream key that somebody shared.")
@click.argument("text")
@identity_options
def add(output: Output, session: CliSession, text: str) -> None:
    """Add the stream key TEXT (veen-stream1…), "@FILE", or "-" for standard input.

    A read key is a secret: give it by file or standard input, never as an argument, where other processes and the
    history of the shell would see it.
    """
    from veen.client.identity.keyring import StreamKeys

    keys = StreamKeys.from_text(text_of(text))
    if keys.can_read and not text.startswith(("@", "-")):
        raise Fail(
            "E.USAGE",
            "a read key must not be an argument",
            "other processes and the history of the shell can see it now",
            "put it into a file with mode 600 and run: veen id keyring add @FILE",
        )
    _change(session, lambda ring: ring.with_keys(keys))
    if keys.name is not None:
        session.remember_stream(keys.name)
    output.result(_about(keys))


@keyring.verb("list", "List the streams you can write to or read.")
@identity_options
def list_(output: Output, session: CliSession) -> None:
    """List the streams that you can write to or read, the newest key first."""
    entries = [_about(keys) for keys in session.keystore.secrets.keyring.entries]
    columns = ("stream", "rights", "stream_id", "reader_pk")
    rows = [[entry[column] for column in columns] for entry in entries]
    output.result({"streams": entries}, lambda: output.table(columns, rows))
    if not entries:
        output.next("veen id keyring new STREAM")


@keyring.verb("show", "Show the keys that you hold for a stream.")
@click.argument("stream", type=STREAM)
@identity_options
def show(output: Output, session: CliSession, stream: str) -> None:
    """Show the keys that you hold for STREAM, and what they allow: reading, writing, or both."""
    entries = session.keystore.secrets.keyring.readers(stream)
    output.result({**_about(entries[0]), "older_keys": [keys.reader_pk.hex() for keys in entries[1:]]})


@keyring.verb("share", "Print a stream's key for a writer, or for a reader.")
@click.argument("stream", type=STREAM)
@click.option("--read", "read", is_flag=True, help="Print the read key, a secret: it opens every message.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write the key to, with mode 0600."
)
@identity_options
def share(output: Output, session: CliSession, stream: str, read: bool, out: Path | None) -> None:
    """Print the key of STREAM as one word: the write key, which is public; with --read the read key, a secret."""
    keys = session.keystore.secrets.keyring.for_stream(stream)
    if read:
        keys.secret()  # or say that there is none
    text = (keys if read else keys.for_writers()).to_text()
    data: dict[str, Any] = {"stream": str(keys), "rights": "read and write" if read else "write", "key": text}
    if out is not None:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        data |= {"key": None, "file": str(out)}
    output.result(data, lambda: output.line(text if out is None else f"written to {out}"))
    if read:
        output.note("this key opens all messages of the stream, past and future: send it over a safe channel only")


@keyring.verb("remove", "Forget the keys of a stream.")
@click.argument("stream", type=STREAM)
@click.option("--yes", is_flag=True, help="Do not ask.")
@identity_options
def remove(output: Output, session: CliSession, stream: str, yes: bool) -> None:
    """Forget all keys of STREAM. Without its read key nobody on this machine can open its messages again."""

    def without(ring: "Keyring") -> "Keyring":
        keys = ring.for_stream(stream)
        if keys.can_read and not yes:
            if not output.may_ask:
                raise Fail(
                    "E.LOCAL.INPUT", f"the read key of {keys} would be lost", "there is nobody to ask", "add --yes"
                )
            click.confirm(f"Forget the read key of {keys}?", abort=True, err=True)
        return ring.without(stream)

    _change(session, without)
    output.result({"removed": stream}, lambda: output.line(f"removed the keys of {stream}"))
