"""`veen stream` and `veen tail`: read a stream, every entry verified before it is opened and shown."""

import contextlib
import functools
import shlex
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import COLUMNS, WIDTHS, WITH_PROOF, cells_of, data_of, line_of, parse_format, summary_line
from veen.cli.shared.output import Mode, Output
from veen.cli.shared.stream_args import EPOCH, stream_argument
from veen.cli.shared.values import MOMENT, RANGE

if TYPE_CHECKING:
    from veen.client.read.reading import Entry

    Entries = Generator[Entry, None, None]

Span = tuple[int | None, int | None]
F = TypeVar("F", bound=Callable[..., Any])
_LAST = "The last N entries; with --author or --grep the last N that match; before --follow, where to begin."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options of `stream` and `tail`: selection of entries, and their form."""

    first: int | None
    last: int | None
    count: int | None
    proofs: bool
    sealed: bool
    layout: str | None
    author: str | None
    grep: str | None
    full: bool


def _with_reading(command: F) -> F:
    """Give a command its `reading`, a Reading."""

    @click.option("--from", "first", type=click.IntRange(min=0), help=options.FIRST)
    @click.option("--to", "last", type=click.IntRange(min=1), help=options.LAST)
    @click.option("--last", "-n", "count", metavar="N", type=click.IntRange(min=0), help=_LAST)
    @click.option("--with-proofs", "--with-proof", "proofs", is_flag=True, help="Show the proof of every entry.")
    @click.option("--sealed", is_flag=True, help="Verify entries without opening them. Needs no read key.")
    @click.option("--format", "layout", help="Format of a line for each entry, such as '{seq} {body}'.")
    @click.option("--author", metavar="NAME", help=options.AUTHOR)
    @click.option("--grep", metavar="PATTERN", help=options.GREP)
    @click.option("--full", is_flag=True, help="Show long bodies in full. Default: a terminal cuts them.")
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        reading = Reading(**{field.name: kwargs.pop(field.name) for field in fields(Reading)})
        if reading.layout is not None:
            parse_format(reading.layout)  # before a passphrase is asked for
        return command(*args, reading=reading, **kwargs)

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters


@click.command()
@stream_argument()
@_with_reading
@click.option("--range", "span", type=RANGE, help=options.RANGE)
@click.option("--since", type=MOMENT, help=options.SINCE)
@click.option("--until", type=MOMENT, help=options.UNTIL)
@click.option("--follow", is_flag=True, help="Continue with new entries; see `veen tail`.")
@EPOCH
@client_options
def stream(
    output: Output,
    session: CliSession,
    stream: str,
    reading: Reading,
    span: Span | None,
    since: int | None,
    until: int | None,
    follow: bool,
    epoch: int | None,
) -> None:
    """Read STREAM and verify every entry: signatures, order, place in the tree, consistency with earlier proofs.

    Entries that the read key does not open are shown with the reason. The first thing that does not hold ends the
    command with exit code 1; what was shown before it did hold.

    \b
    veen stream record/app/http --from 10 --to 20
    veen stream record/app/http --since -15m --format '{seq} {body}'
    veen stream record/app/http --author bob --grep "valve|pump"
    veen stream record/app/http --with-proofs --ndjson
    """
    if span is not None:
        if reading.first is not None or reading.last is not None:
            raise click.UsageError("give --range, or --from and --to")
        reading = replace(reading, first=span[0], last=span[1])
    if follow:
        if since is not None or until is not None or epoch is not None:
            raise click.UsageError("--follow allows --from, --to and --last only")
        _follow(output, session, stream, reading)
        return
    first, newest = reading.first, reading.count
    if newest is not None and reading.author is None and reading.grep is None:
        first, newest = _before_end(session, stream, newest, first), None  # else they are known when all were read
    entries = session.client().read(
        stream,
        from_seq=first or None,
        to_seq=reading.last,
        since=since,
        until=until,
        epoch=epoch,
        with_proofs=reading.proofs,
        open=not reading.sealed,
    )
    _show(output, session, stream, entries, reading, newest=newest)


@click.command()
@stream_argument()
@_with_reading
@client_options
def tail(output: Output, session: CliSession, stream: str, reading: Reading) -> None:
    """Show new entries of STREAM until Ctrl-C; with --last N also the N before.

    Goes on when the hub was away: it must then still have, and sign, all that was read from it. With --to it ends by
    itself.

    \b
    veen tail record/app/http
    veen tail record/app/http -n 10 --format '{time} {body}'
    """
    _follow(output, session, stream, reading)


def _follow(output: Output, session: CliSession, stream: str, reading: Reading) -> None:
    first = reading.first
    if reading.count is not None:
        first = _before_end(session, stream, reading.count, first)
    begin = None if first is None else max(first, 1)
    if begin is None and reading.last is not None:
        begin = _end(session, stream) + 1
        if begin > reading.last:
            begin_hint = f"veen stream {shlex.quote(stream)} --to {reading.last}"
            raise click.UsageError(
                f"--to {reading.last}: the log has {begin - 1} entries, so no later one has this number; read it: "
                f"{begin_hint}"
            )
    entries = session.client().follow(stream, from_seq=begin, with_proofs=reading.proofs, open=not reading.sealed)
    _show(output, session, stream, _upto(entries, reading.last), reading, live=True)


def _upto(entries: "Entries", last: int | None) -> "Entries":
    with contextlib.closing(entries):
        for entry in entries:
            yield entry
            if last is not None and entry.seq >= last:
                return


def _before_end(session: CliSession, stream: str, count: int, first: int | None) -> int:
    """Return the position of the first of the last `count` entries, by the signed end of the log."""
    if first is not None:
        raise click.UsageError("give one of --from and --last")
    return max(_end(session, stream) - count + 1, 1)


def _end(session: CliSession, stream: str) -> int:
    """Return the signed number of entries of the log; 0 if nobody wrote to it yet."""
    from veen.client.errors import HubRefused
    from veen.core.errors import ApiCode

    try:
        return session.client().checkpoint(stream).upto_seq
    except HubRefused as exc:
        if exc.code != ApiCode.NOT_FOUND.code:
            raise
        return 0


def _show(
    output: Output,
    session: CliSession,
    stream: str,
    entries: "Entries",
    reading: Reading,
    *,
    live: bool = False,
    newest: int | None = None,  # so many of those that are asked for, from the end
) -> None:
    from veen.cli.shared.people import Authors, filter_entries

    session.remember_stream(stream)
    parts = None if reading.layout is None else parse_format(reading.layout)
    human = output.mode is Mode.HUMAN
    columns = COLUMNS if not reading.proofs else WITH_PROOF if human else (*COLUMNS, "proof")
    first = last = None
    with contextlib.ExitStack() as closing:
        closing.callback(entries.close)
        chosen = filter_entries(entries, Authors(session, stream), reading.author, reading.grep)
        if newest is not None:
            chosen = iter(deque(chosen, maxlen=newest))
        if parts is not None and not output.as_json:
            for entry, who in chosen:
                click.echo(line_of(parts, data_of(entry) | who))
            return
        records = closing.enter_context(output.records("entries", columns, WIDTHS, live=live, whole=reading.full))
        for entry, who in chosen:
            data = data_of(entry, with_proof=reading.proofs) | who
            records.add(data, cells_of(entry, data, human=human, with_proof=reading.proofs))
            if entry.warning is not None:
                output.notice(f"entry {entry.seq}: {entry.warning}")
            first, last = first or entry, entry
    if human and first is not None and last is not None:
        output.line(summary_line(first, last, records.count, session.client().pin), good="verified")
        if records.is_cut:
            output.note("long bodies are cut to the width of the terminal; --full shows them whole")
