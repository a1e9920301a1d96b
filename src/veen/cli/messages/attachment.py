"""`veen attachment`: files that travel with a message, sealed like it (spec §4.6)."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.lazy import LazyGroup
from veen.cli.messages.send import FILES, describe_sent, show_sent, to_attachment
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument

if TYPE_CHECKING:
    from veen.client.read.reading import Entry
    from veen.core.sealing.attachment_root import Attachment

attachment = LazyGroup("attachment", help="Files that travel with a message, sealed like it.")


@attachment.verb("put", "Send files as the attachments of one message.")
@click.argument("stream", type=STREAM, required=False)
@click.argument("files", type=FILES, nargs=-1)
@click.option("--stream", "stream_option", type=STREAM, help="Stream, instead of the argument STREAM.")
@click.option("--body", default="", help="Body of the message that carries them.")
@CAP
@client_options
def put(
    output: Output,
    session: CliSession,
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
    session.sends = True
    token = authority(session, stream, cap)
    started = time.perf_counter()
    with output.progress(f"sending {len(files)} files"):
        sent = session.client().send(
            stream, body.encode(), attachments=list(map(to_attachment, files)), capability=token
        )
    data = {
        **describe_sent(stream, sent),
        "attachments": len(files),
        "seconds": round(time.perf_counter() - started, 4),
    }
    session.remember_stream(stream)
    show_sent(output, data, sent)
    output.next(f"veen attachment get {stream} {sent.seq} --out DIRECTORY")


def _read_entry(session: CliSession, stream: str, seq: int, epoch: int | None) -> "Entry":
    """Read the entry and open it. Raise Fail if this is impossible."""
    entries = list(session.client().read(stream, from_seq=seq, to_seq=seq, epoch=epoch))
    if not entries:
        raise Fail(
            "E.USAGE", f"{stream} has no entry {seq}", "the log ends before it", f"veen checkpoint show {stream}"
        )
    if entries[0].event is None:
        raise Fail(
            "E.LOCAL.OPEN",
            f"entry {seq} of {stream} cannot be opened",
            entries[0].error or "no key opens it",
            f"veen id keyring show {stream}",
        )
    return entries[0]


@attachment.verb("get", "Fetch, check and open the attachments of a message.")
@stream_argument("which", seq=SEQ, which=click.STRING)
@EPOCH
@click.option("--out", type=click.Path(path_type=Path), help="File for one, directory for several; - for stdout.")
@client_options
def get(
    output: Output,
    session: CliSession,
    stream: str,
    seq: int,
    which: str | None,
    epoch: int | None,
    out: Path | None,
) -> None:
    """Fetch the attachments of entry SEQ of STREAM: all, or the one that WHICH names by its name or its number from 0.

    Each is checked against the declaration in the message before it is written. Without --out they are only listed.

    \b
    veen attachment get record/app/http 3
    veen attachment get record/app/http 3 photo.jpg --out photo.jpg
    veen attachment get record/app/http 3 --out ./files
    """
    from veen.io.local import OsFs

    entry = _read_entry(session, stream, seq, epoch)
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
                    data = session.client().attachment(entry, index)
                if single:
                    path.write_bytes(data)
                else:  # the author chose the name, so a link that lies there must not lead the bytes elsewhere
                    OsFs(out).replace(path.name, data)
            record = {"index": index, **declared.to_json(), "file": None if path is None else str(path)}
            records.add(record, (index, declared.name, declared.size, declared.media_type, path))
    if not chosen:
        output.note(f"entry {seq} of {stream} has no attachments")


def _choose(declared: "Sequence[Attachment]", which: str | None, stream: str, seq: int) -> list[int]:
    if which is None:
        return list(range(len(declared)))
    named = [index for index, attachment in enumerate(declared) if attachment.name == which]
    if not named and which.isdecimal() and int(which) < len(declared):
        named = [int(which)]
    if len(named) == 1:
        return named
    why = f"{len(named)} have this name" if named else f"there are {len(declared)}, none of this name or number"
    raise Fail(
        "E.USAGE",
        f"entry {seq} of {stream}: which attachment is {which!r}?",
        why,
        f"veen attachment get {stream} {seq}",
    )


def _file_name(index: int, declared: "Attachment") -> str:
    """Return a file name that stays in its directory and is unused, whatever name the author chose."""
    name = (declared.name or "").replace("\\", "/").rpartition("/")[2]
    printable = "".join(character for character in name if character.isprintable()).strip().lstrip(".")
    return f"{index:04d}-{printable[:100]}" if printable else f"{index:04d}"


@attachment.verb("verify", "Check the attachments of a message at the hub.")
@stream_argument(seq=SEQ)
@EPOCH
@client_options
def verify(output: Output, session: CliSession, stream: str, seq: int, epoch: int | None) -> None:
    """Fetch every attachment of entry SEQ of STREAM, and check hash, size and place. Nothing is written.

    Exit code 1 means that the hub lost one, or answers with other bytes.
    """
    entry = _read_entry(session, stream, seq, epoch)
    with output.records("attachments", ("index", "name", "size", "ok"), (5, 16, 8)) as records:
        for index, declared in enumerate(entry.attachments):
            with output.progress(f"checking attachment {index}"):
                size = len(session.client().attachment(entry, index))
            data = {"index": index, **declared.to_json(), "ok": True}
            records.add(data, (index, declared.name, size, "yes"))
        records.summary({"ok": True, "count": len(entry.attachments)})
