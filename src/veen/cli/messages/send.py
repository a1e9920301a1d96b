"""`veen send`: seals and sends a message, and succeeds only with a verified receipt.

`veen attachment`: files that travel with a message, sealed like it (spec §4.6).
"""

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.people.contacts import announce_new_key
from veen.cli.shared import options
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.text import short
from veen.cli.shared.values import MOMENT

if TYPE_CHECKING:
    from veen.client.read.reading import Entry
    from veen.client.send.sealing import Attach, Draft
    from veen.client.send.writing import Sent
    from veen.core.sealing.ciphertext import Attachment

FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_MAX_BODY = 64 * 1024 * 1024  # read no more than any hub could take; the limits of the hub decide


@click.command()
@stream_argument("body", "stream", body=click.STRING)
@click.option("--body", "body_option", help="Body as text, instead of the argument BODY.")
@click.option("--file", "-f", "file", type=FILES, help="File whose bytes are the body.")
@click.option("--attach", type=FILES, multiple=True, help="File to attach, sealed like the message. Repeatable.")
@click.option("--schema", help="Schema of the body: its name, or its id in 64 hex digits.")
@click.option("--parent", type=hex32, metavar="MSG_ID", help="Message that this one answers.")
@click.option("--expires", type=MOMENT, help="Time after which readers may forget it: ISO 8601, seconds, or +10m.")
@click.option("--pow/--no-pow", "work", default=True, help="Compute the proof of work that the hub asks for, or fail.")
@click.option("--receipt", "receipt_file", type=click.Path(dir_okay=False, path_type=Path), help=options.RECEIPT_OUT)
@click.option(
    "--to", metavar="NAME", help="Contact to send it to, sealed to her prekey; without STREAM. See `veen inbox`."
)
@click.option("--long-term-key", is_flag=True, help="Seal to the key on her card if she has no prekey. Requires --to.")
@click.option("--dry-run", is_flag=True, help=options.DRY_RUN)
@click.option("--lines", is_flag=True, help="Send a message for each line of standard input, or of --file.")
@click.option(
    "--from-ndjson", is_flag=True, help="Send a message for each JSON object, as `veen stream --ndjson` prints them."
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, help="Number of lines to skip. Requires --lines or --from-ndjson."
)
@click.option("--again", is_flag=True, help="Send it even if the same message is pending: then there are two.")
@CAP
@client_options
def send(
    output: Output,
    session: CliSession,
    stream: str | None,
    body: str | None,
    body_option: str | None,
    file: Path | None,
    attach: tuple[Path, ...],
    schema: str | None,
    parent: bytes | None,
    expires: int | None,
    work: bool,
    receipt_file: Path | None,
    to: str | None,
    long_term_key: bool,
    dry_run: bool,
    lines: bool,
    from_ndjson: bool,
    skip: int,
    again: bool,
    cap: Path | None,
) -> None:
    """Send BODY to STREAM, encrypted for its readers. "-" reads the body from standard input.

    Succeeds only if the hub's receipt verifies, names this message, and fits all that the hub proved before. If no
    answer comes, the message is kept, and the error says so; the same command again, or `veen pending send`, sends it
    byte for byte, and the log has it once. With --lines every line is a message, and all go out in batches; empty
    lines are left out.

    \b
    veen send record/app/http "the valve is open"
    echo '{"event":"login"}' | veen send record/app/http - --schema app.login.v1
    veen send record/app/http --file report.json --attach photo.jpg
    veen send --to bob "for you alone"
    tail -f app.log | veen send record/app/http --lines
    veen stream orders --ndjson | veen send copies --from-ndjson
    """
    if to is not None:
        from veen.cli.people.contacts import send_to

        if body is not None or attach or dry_run:
            raise click.UsageError("--to takes one body and no stream, no --attach and no --dry-run")
        send_to(output, session, to, body_of(stream, body_option, file), schema, to_card=long_term_key)
        return
    if stream is None:
        raise click.UsageError("Missing argument 'STREAM'.")
    from veen.client.send.sealing import Draft
    from veen.core.labels import schema_id

    session.sends = not dry_run
    if lines or from_ndjson:
        only_alone = (lines and from_ndjson, body not in (None, "-"), body_option is not None, attach, parent, dry_run)
        if any(only_alone) or receipt_file is not None:
            raise click.UsageError(
                "--lines and --from-ndjson go with --file, --schema, --expires, --skip and --cap only"
            )
        _send_lines(output, session, stream, file, schema, expires, from_ndjson, skip, work, cap, once=not again)
        return
    if skip:
        raise click.UsageError("--skip requires --lines or --from-ndjson")
    data = body_of(body, body_option, file)
    draft = Draft(
        body=data,
        schema=None if schema is None else schema_id(schema),
        parent=parent,
        expires_at=expires,
        attachments=tuple(map(to_attachment, attach)),
    )
    if dry_run:
        _show(output, session, stream, draft, cap)
        return
    client = session.client()
    session.make_stream_keys(stream)
    if not work:
        check_work(session)
    token = authority(session, stream, cap)
    announce_new_key(session, stream)
    started = time.perf_counter()
    with output.progress(f"sending {len(data)} bytes"):
        sent = client.send(
            stream,
            draft.body,
            schema=draft.schema,
            attachments=draft.attachments,
            parent=parent,
            expires_at=expires,
            capability=token,
            once=not again,
        )
    seconds = time.perf_counter() - started
    session.remember_stream(stream)
    if receipt_file is not None:
        receipt_file.write_bytes(sent.receipt.to_bytes())
    show_sent(output, {**describe_sent(stream, sent), "seconds": round(seconds, 4)}, sent)
    if sent.is_late:
        output.notice(
            "this message waited since an earlier command, which got no answer; it was sent once. To send another one"
            " like it: --again",
            late=True,
        )
    output.next(f"veen proof show {stream} {sent.seq} --tree")


def _send_lines(
    output: Output,
    session: CliSession,
    stream: str,
    file: Path | None,
    schema: str | None,
    expires: int | None,
    ndjson: bool,
    skip: int,
    work: bool,
    cap: Path | None,
    *,
    once: bool,
) -> None:
    from veen.cli.messages.send_lines import LineSource, send_lines
    from veen.core.labels import schema_id

    if not work:
        check_work(session)
    session.client()
    token = authority(session, stream, cap)
    with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as opened:
        source = LineSource(
            file=opened,
            name="-" if file is None else str(file),
            ndjson=ndjson,
            skip=skip,
            schema=None if schema is None else schema_id(schema),
            expires_at=expires,
        )
        send_lines(output, session, stream, source, token, once=once)


def body_of(argument: str | None, option: str | None, file: Path | None) -> bytes:
    """Return the bytes to send, from exactly one source, and from standard input only if it was named."""
    sources = [source for source in (argument, option, file) if source is not None]
    if len(sources) != 1:
        raise click.UsageError("give one body: BODY, --body TEXT, --file PATH, or - for standard input")
    if file is not None:
        return file.read_bytes()
    if argument is not None and argument.startswith("@") and Path(argument[1:]).is_file():
        raise click.UsageError(
            f"{argument[1:]} is a file: --file {argument[1:]} sends what is in it, --body {argument} this text"
        )
    if sources[0] != "-":
        return str(sources[0]).encode("utf-8", "surrogateescape")
    data = sys.stdin.buffer.read(_MAX_BODY + 1)
    if len(data) > _MAX_BODY:
        from veen.core.errors import LimitError

        raise LimitError("body bytes", len(data), _MAX_BODY)
    return data


def to_attachment(path: Path) -> "Attach":
    """Read a file as an attachment, under its own name without the path."""
    from mimetypes import guess_type

    from veen.client.send.sealing import Attach

    return Attach(data=path.read_bytes(), name=path.name, media_type=guess_type(path.name)[0])


def check_work(session: CliSession) -> None:
    """Raise Fail if the hub asks for work and the caller will not pay."""
    bits = session.client().status().pow_difficulty
    if bits:
        raise Fail(
            "PREFILTER_REJECT",
            "the hub asks for a proof of work",
            f"it wants {bits} zero bits, and --no-pow forbids to look for them",
            "leave out --no-pow, or see the cost: veen pow request",
        )


def describe_sent(stream: str, sent: "Sent") -> dict[str, Any]:
    """Return the fields of an admitted message, for programs."""
    from veen.cli.shared.wire_tree import to_named

    receipt, msg = sent.receipt, sent.msg
    return {
        "stream": stream,
        "seq": sent.seq,
        "msg_id": sent.msg_id.hex(),
        "label": sent.label.hex(),
        "client_id": msg.client_id.hex(),
        "client_seq": msg.client_seq,
        "bytes": len(sent.raw),
        "mmr_root": sent.root.hex(),
        "hub_ts": receipt.hub_ts,
        "verified": True,
        "late": sent.is_late,
        "mode": sent.mode,
        "receipt": to_named(receipt),
    }


def show_sent(output: Output, data: dict[str, Any], sent: "Sent") -> None:
    def human() -> None:
        if output.mode is Mode.PLAIN:
            output.fields((name, value) for name, value in data.items() if name != "receipt")
            return
        output.line(
            f"accepted  seq {sent.seq}  msg_id {short(sent.msg_id)}  root {short(sent.root)}  "
            f"receipt verified  ({data['seconds'] * 1000:.0f} ms)",
            good="receipt verified",
        )

    output.result(data, human)


def _show(output: Output, session: CliSession, stream: str, draft: "Draft", cap: Path | None) -> None:
    """Print the MSG as it would be sent. Sealing draws fresh randomness: a later one has other bytes."""
    from veen.cli.shared.wire_tree import derive_fields, fields_of

    token = authority(session, stream, cap, contact=False)
    (prepared,) = session.client().prepare(stream, [draft], auth_ref=None if token is None else token.auth_ref())
    msg = prepared.msg
    data = {
        "dry_run": True,
        "stream": stream,
        "bytes": len(prepared.raw),
        "attachments": 0 if prepared.attachments is None else len(prepared.attachments.coids),
        "cbor": prepared.raw.hex(),
        "msg": msg.to_json(),
        "fields": dict(fields_of(msg)),
        "derived": derive_fields(msg),
    }

    def human() -> None:
        output.line(f"MSG of {len(prepared.raw)} bytes, not sent")
        output.fields(fields_of(msg))
        output.fields(derive_fields(msg).items())

    output.result(data, human)


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
