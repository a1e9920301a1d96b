"""`veen attachment`: files that travel with a message, sealed like it (spec §4.6)."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from veen.cli.authority import CAP, authority
from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Exit, Fail, Output, output_options
from veen.cli.send import FILES, attached, sent_data, told_sent
from veen.cli.streamargs import EPOCH, SEQ, stream_argument

if TYPE_CHECKING:
    from veen.client.reading import Entry
    from veen.core.attached import Attachment

__all__ = ["attachment", "get", "put", "verify"]


class _AttachmentGroup(LazyGroup):
    table: ClassVar[Table] = {
        "get": ("veen.cli.attachment:get", "Fetch, check and open the attachments of a message."),
        "put": ("veen.cli.attachment:put", "Send files as the attachments of one message."),
        "verify": ("veen.cli.attachment:verify", "Check that all attachments of a message are there and are whole."),
    }


@click.group(cls=_AttachmentGroup)
def attachment() -> None:
    """Files that travel with a message, sealed like it."""


@click.command()
@click.argument("stream", type=STREAM, required=False)
@click.argument("files", type=FILES, nargs=-1)
@click.option("--stream", "stream_option", type=STREAM, help="The stream, instead of the argument STREAM.")
@click.option("--body", default="", help="The body of the message that carries them.")
@CAP
@output_options
@client_options
def put(
    output: Output,
    session: Session,
    stream: str | None,
    files: tuple[Path, ...],
    stream_option: str | None,
    body: str,
    cap: Path | None,
) -> None:
    """Send FILES to STREAM as the attachments of one message. Their keys are made with it: there is none without.

    \b
    veen attachment put record/app/http photo.jpg report.pdf --body "both of them"
    """
    if stream_option is not None:
        files = (*(() if stream is None else (FILES.convert(stream, None, None),)), *files)
        stream = stream_option
    if stream is None or not files:
        raise click.UsageError("give a STREAM and at least one file")
    token = authority(session, stream, cap)
    started = time.perf_counter()
    with output.progress(f"sending {len(files)} files"):
        sent = session.client().send(stream, body.encode(), attachments=list(map(attached, files)), capability=token)
    data = {
        **sent_data(stream, sent),
        "attachments": len(files),
        "seconds": round(time.perf_counter() - started, 4),
    }
    session.remember_stream(stream)
    told_sent(output, data, sent)
    output.next(f"veen attachment get {stream} {sent.seq} --out DIRECTORY")


def _entry(session: Session, stream: str, seq: int, epoch: int | None) -> "Entry":
    """The one entry, opened; a Fail if it cannot be."""
    found = list(session.client().read(stream, from_seq=seq, to_seq=seq, epoch=epoch))
    if not found:
        raise Fail(
            Exit.USAGE,
            f"{stream} has no entry {seq}",
            "the log ends before it",
            f"veen checkpoint show {stream}",
            "E.USAGE",
        )
    if found[0].event is None:
        raise Fail(
            Exit.LOCAL,
            f"entry {seq} of {stream} cannot be opened",
            found[0].error or "there is no key for it",
            f"veen id keyring show {stream}",
            "E.LOCAL.OPEN",
        )
    return found[0]


@click.command()
@stream_argument("which", seq=SEQ, which=click.STRING)
@EPOCH
@click.option("--out", type=click.Path(path_type=Path), help="A file for one, a directory for several; - for stdout.")
@output_options
@client_options
def get(
    output: Output,
    session: Session,
    stream: str,
    seq: int,
    which: str | None,
    epoch: int | None,
    out: Path | None,
) -> None:
    """The attachments of entry SEQ of STREAM: all, or the one that WHICH names by its name or its number from 0.

    Each is checked against what the message declares before it is written. Without --out they are listed only.

    \b
    veen attachment get record/app/http 3
    veen attachment get record/app/http 3 photo.jpg --out photo.jpg
    veen attachment get record/app/http 3 --out ./files
    """
    entry = _entry(session, stream, seq, epoch)
    session.remember_stream(stream)
    chosen = _choose(entry.attachments, which, stream, seq)
    if out is not None and str(out) == "-":
        if len(chosen) != 1:
            raise click.UsageError("standard output takes one attachment: name it")
        sys.stdout.buffer.write(session.client().attachment(entry, chosen[0]))
        sys.stdout.buffer.flush()
        return
    single = out is not None and which is not None and not out.is_dir()
    if out is not None and not single:
        out.mkdir(parents=True, exist_ok=True)
    with output.records("attachments", ("index", "name", "size", "type", "file"), (5, 16, 8, 12)) as records:
        for index in chosen:
            declared, path = entry.attachments[index], None
            if out is not None:
                path = out if single else out / _file_name(index, declared)
                with output.progress(f"fetching attachment {index}"):
                    path.write_bytes(session.client().attachment(entry, index))
            data = {"index": index, **declared.to_json(), "file": None if path is None else str(path)}
            records.add(data, (index, declared.name, declared.size, declared.media_type, path))


def _choose(declared: "Sequence[Attachment]", which: str | None, stream: str, seq: int) -> list[int]:
    if which is None:
        return list(range(len(declared)))
    named = [index for index, one in enumerate(declared) if one.name == which]
    if not named and which.isdecimal() and int(which) < len(declared):
        named = [int(which)]
    if len(named) == 1:
        return named
    why = f"{len(named)} have this name" if named else f"there are {len(declared)}, none of this name or number"
    raise Fail(
        Exit.USAGE,
        f"entry {seq} of {stream}: which attachment is {which!r}?",
        why,
        f"veen attachment get {stream} {seq}",
        "E.USAGE",
    )


def _file_name(index: int, declared: "Attachment") -> str:
    """A name for a file that stays in its directory, whatever the author of the message wrote, and is free."""
    name = (declared.name or "").replace("\\", "/").rpartition("/")[2]
    kept = "".join(character for character in name if character.isprintable()).strip().lstrip(".")
    return f"{index:04d}-{kept[:100]}" if kept else f"{index:04d}"


@click.command()
@stream_argument(seq=SEQ)
@EPOCH
@output_options
@client_options
def verify(output: Output, session: Session, stream: str, seq: int, epoch: int | None) -> None:
    """Fetch every attachment of entry SEQ of STREAM, and check hash, size and place. Nothing is written.

    Exit code 1 means that the hub lost one, or answers with other bytes.
    """
    entry = _entry(session, stream, seq, epoch)
    with output.records("attachments", ("index", "name", "size", "ok"), (5, 16, 8)) as records:
        for index, declared in enumerate(entry.attachments):
            with output.progress(f"checking attachment {index}"):
                size = len(session.client().attachment(entry, index))
            data = {"index": index, **declared.to_json(), "ok": True}
            records.add(data, (index, declared.name, size, "yes"))
        records.summary({"ok": True, "count": len(entry.attachments)})
