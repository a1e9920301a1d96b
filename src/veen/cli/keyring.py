"""`veen id keyring`: the keys of streams. Whoever has a write key can seal, whoever has a read key can open (D-10)."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from veen.cli.clictx import Session, identity_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.client.keyring import Keyring, StreamKeys

__all__ = ["add", "keyring", "list_", "new", "remove", "share", "show"]

_MAX_TEXT: Final = 4096


class _KeyringGroup(LazyGroup):
    table: ClassVar[Table] = {
        "add": ("veen.cli.keyring:add", "Add a stream key that you were given."),
        "list": ("veen.cli.keyring:list_", "The streams you can write to or read."),
        "new": ("veen.cli.keyring:new", "Make the keys of a new stream."),
        "remove": ("veen.cli.keyring:remove", "Forget the keys of a stream."),
        "share": ("veen.cli.keyring:share", "Print a stream's key for a writer, or for a reader."),
        "show": ("veen.cli.keyring:show", "What you can do with a stream."),
    }


@click.group(cls=_KeyringGroup)
def keyring() -> None:
    """Keys of streams: who may write, who may read.

    The write key of a stream is public and seals; the read key is secret and opens. The hub has neither.
    """


def _change(session: Session, change: "Callable[[Keyring], Keyring]") -> None:
    """Put another keyring into the keystore. Opened under the lock: nothing comes between reading and writing."""
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


@click.command()
@click.argument("stream", type=STREAM)
@output_options
@identity_options
def new(output: Output, session: Session, stream: str) -> None:
    """Make the keys of STREAM. Made again, the new ones seal from now on and the old ones still open old messages."""
    from veen.client.keyring import StreamKeys

    keys = StreamKeys.create(stream)
    _change(session, lambda ring: ring.with_keys(keys))
    session.remember_stream(stream)
    output.result(_about(keys), lambda: output.fields(_about(keys).items()))
    output.next(f"veen id keyring share {keys}")


@click.command()
@click.argument("text")
@output_options
@identity_options
def add(output: Output, session: Session, text: str) -> None:
    """Add the stream key TEXT (veen-stream1…), "@FILE", or "-" for standard input.

    A read key is a secret: give it by file or standard input, never as an argument, where other processes and the
    history of the shell would see it.
    """
    from veen.client.keyring import StreamKeys

    keys = StreamKeys.from_text(_read(text))
    if keys.can_read and not text.startswith(("@", "-")):
        raise Fail(
            Exit.USAGE,
            "a read key must not be an argument",
            "other processes and the history of the shell can see it now",
            "put it into a file with mode 600 and run: veen id keyring add @FILE",
            "E.USAGE",
        )
    _change(session, lambda ring: ring.with_keys(keys))
    if keys.name is not None:
        session.remember_stream(keys.name)
    output.result(_about(keys), lambda: output.fields(_about(keys).items()))


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read(_MAX_TEXT).strip()
    if text.startswith("@"):
        with Path(text[1:]).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_TEXT).strip()
    return text


@click.command("list")
@output_options
@identity_options
def list_(output: Output, session: Session) -> None:
    """The streams you can write to or read, the newest key first."""
    found = [_about(keys) for keys in session.keystore.secrets.keyring.entries]
    columns = ("stream", "rights", "stream_id", "reader_pk")
    rows = [[one[column] for column in columns] for one in found]
    output.result({"streams": found}, lambda: output.table(columns, rows))
    if not found:
        output.next("veen id keyring new STREAM")


@click.command()
@click.argument("stream", type=STREAM)
@output_options
@identity_options
def show(output: Output, session: Session, stream: str) -> None:
    """What you can do with STREAM."""
    found = session.keystore.secrets.keyring.readers(stream)
    data = {**_about(found[0]), "older_keys": [keys.reader_pk.hex() for keys in found[1:]]}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--read", "read", is_flag=True, help="The read key: whoever has it can open every message.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it here, for your eyes only (0600)."
)
@output_options
@identity_options
def share(output: Output, session: Session, stream: str, read: bool, out: Path | None) -> None:
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
        output.note("this is the right to read the stream, past and future: pass it on over a safe channel only")


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_options
@identity_options
def remove(output: Output, session: Session, stream: str, yes: bool) -> None:
    """Forget all keys of STREAM. Without its read key nobody on this machine can open its messages again."""

    def without(ring: "Keyring") -> "Keyring":
        keys = ring.for_stream(stream)
        if keys.can_read and not yes:
            if not output.may_ask:
                raise Fail(
                    Exit.LOCAL,
                    f"the read key of {keys} would be lost",
                    "there is nobody to ask",
                    "add --yes",
                    "E.LOCAL.INPUT",
                )
            click.confirm(f"Forget the read key of {keys}?", abort=True, err=True)
        return ring.without(stream)

    _change(session, without)
    output.result({"removed": stream}, lambda: output.line(f"removed the keys of {stream}"))
