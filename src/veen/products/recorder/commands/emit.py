"""`veen recorder emit`: records one event, or lines of standard input. Exit code 0 if all have receipts."""

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.authority import token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Exit, Output

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.send.writing import Outcome
    from veen.products.recorder.events import SourceRecord

_BATCH: Final = 256
_MAX_LINE: Final = 16 * 1024 * 1024


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("payload", required=False)
@click.option("--type", "event_type", help="Event type; with -, also a path such as .event.")
@click.option("--subject", help="Subject of the event; with -, also a path such as .user.name.")
@click.option("--origin", help="Service or host. Default: name of this host.")
@click.option("--time", "moment", help="Time of the event: ISO 8601 or seconds; with -, also a path. Default: now.")
@client_options
def emit(
    output: Output,
    session: CliSession,
    stream: str,
    payload: str | None,
    event_type: str | None,
    subject: str | None,
    origin: str | None,
    moment: str | None,
) -> None:
    """Record PAYLOAD (JSON or text) as one event in STREAM; "-" records each line of standard input.

    Every event is signed by the producer's key and returns with a verified receipt. With "-", a line that is a JSON
    object is the payload and any other line is {"message": …}; a member is chosen by its path. Exit code 0 means that
    every line has a receipt.

    \b
    veen recorder emit record/app/web --type login --subject alice '{"ip":"10.0.0.7"}'
    tail -n 100 app.log | veen recorder emit record/app/web - --subject .user --type .event
    """
    from socket import gethostname

    from veen.cli.shared.named import to_named
    from veen.products.recorder.emitting import line_records
    from veen.products.recorder.fields import Selectors

    lines = payload == "-"
    if not lines and not (event_type and subject):
        raise click.UsageError("give --type and --subject, or - to take them from the lines of standard input")
    host = origin or gethostname()
    defaults = Selectors()
    selectors = Selectors(
        subject=subject or defaults.subject,
        event_type=event_type or defaults.event_type,
        origin=origin or defaults.origin,
        time=moment or defaults.time,
    )
    source = sys.stdin.buffer if lines else iter([(payload or "{}").encode("utf-8", "surrogateescape")])
    session.make_stream_keys(stream)
    keys = session.keystore.secrets.keyring.for_stream(stream)
    tokens, client = token_store(session), session.client()
    read, first, last, faults = 0, None, None, []

    def send(records: "list[SourceRecord]") -> "list[Outcome]":
        from veen.api.token_authority import TokenAuthority
        from veen.products.recorder.emitting import emit as record

        async def work(opened: "Client") -> "list[Outcome]":
            return await record(TokenAuthority(opened, tokens), keys, records, source=host)

        return client.run(work)

    receipt: dict[str, Any] | None = None
    started = time.time_ns()  # tells the lines of this run from those of others
    with output.progress("recording"):
        while batch := list(islice(_lines(source), _BATCH)):
            records = line_records(batch, selectors, origin=host)
            records = [_renumber(record, started, read) for record in records]
            read += len(batch)
            for record, outcome in zip(records, send(records), strict=True):
                if isinstance(outcome, Exception):
                    faults.append(
                        {
                            "line": int(record.position.rpartition(":")[2]),
                            "code": getattr(outcome, "code", "E.BUG"),
                            "message": str(outcome),
                        }
                    )
                    continue
                first, last = first if first is not None else outcome.seq, outcome.seq
                receipt = to_named(outcome.receipt) if not lines else None
    session.remember_stream(stream)
    recorded = read - len(faults)
    data = {"stream": stream, "lines": read, "recorded": recorded, "first_seq": first, "last_seq": last,
            "faults": faults, "receipt": receipt}  # fmt: skip

    def human() -> None:
        output.fields((name, value) for name, value in data.items() if name not in ("faults", "receipt"))
        for fault in faults:
            output.line(f"line {fault['line']}: {fault['code']} {fault['message']}", "bad")

    output.result(data, human)
    if faults:
        raise click.exceptions.Exit(Exit.REFUSED)


def _lines(source: Any) -> Any:
    """Yield lines of standard input. A line above the size limit comes in pieces, none of which is lost."""
    if not hasattr(source, "readline"):
        yield from source
        return
    while line := source.readline(_MAX_LINE):
        yield line


def _renumber(record: "SourceRecord", started: int, before: int) -> "SourceRecord":
    from dataclasses import replace

    return replace(record, position=f"{started}:{int(record.position) + before}")
