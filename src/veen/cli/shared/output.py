"""Output of commands: data on stdout, everything else on stderr, and the same facts in every form.

Forms (`Mode`): HUMAN on a terminal, PLAIN (tab-separated, no headings, nothing cut) in a pipe, JSON with `--json` (one
object), NDJSON with `--ndjson` (one object per line). `--output` forces one.

How a command is written
------------------------
::

    @click.command()
    @click.argument("stream", type=STREAM)          # options and arguments of its own
    @output_options                                 # --json --ndjson --output --quiet --no-input
    def head(output: Output, stream: str) -> None:  # the Output comes first
        \"\"\"The help text. Its first sentence is repeated in the table of the group.\"\"\"
        from veen.client import ...                 # heavy imports inside: TAB must stay fast
        output.result({"stream": stream, "head": 7}, lambda: output.fields([("head", 7)]))

- One result: `output.result(data, human)`; `data` is what a program gets, `human` prints the same facts for people
  by `fields`, `table` and `line`. Both forms carry the same data; only the dress differs.
- Many results: `with output.records("entries", ("seq", "body")) as records: records.add(data, cells)`. Nothing is
  gathered in memory, also not under `--json`.
- Text that a hub, a writer or a file said reaches the terminal through `Output` alone, which spells out whatever would
  steer it. `click.echo` appears in no command, but for the few that a test lists.
- Beside the result: `output.note(...)`, `output.next("veen ...")`, `with output.progress("reading"): ...`.
- Failing: raise `Fail`, or let any exception of ours through: `failures` finds its exit code and words in the
  catalogue. No command catches an error only to print it.
- A command that needs a hub, an identity or a home takes `veen.cli.shared.command.client_options` as well.
- Then: a row in the table of its group (`veen.cli.app.COMMANDS`), a section there, and its codes in `veen explain`.

Progress line for anything that takes longer than a second; it vanishes at the end.

Other output to the terminal meanwhile goes through `without_line`, which removes the line first: the next redraw puts
it below.

Records of a result, written one by one, in every form.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, IntEnum
from functools import wraps
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

import click

from veen.cli.shared.log_lines import LogLines
from veen.cli.shared.text import block, cell, compact, cut, pad, pretty, safe, width_of

__all__ = [
    "Exit",
    "Fail",
    "Mode",
    "Output",
    "ProgressLine",
    "RecordWriter",
    "align",
    "is_terminal",
    "output_options",
    "report",
    "sniff_mode",
    "without_line",
]


_PATIENCE_SECONDS: Final = 1.0  # nobody needs to be told about less
_REDRAW_SECONDS: Final = 0.25
_CLEAR: Final = "\r\x1b[K"


class _Screen:
    """State of the progress line. `lock` guards `is_drawn` and output while a line is drawn."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_drawn = False

    def draw(self, line: str) -> None:
        with self.lock:
            print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)
            self.is_drawn = True

    def clear(self) -> None:
        with self.lock:
            if self.is_drawn:
                print(_CLEAR, end="", file=sys.stderr, flush=True)
                self.is_drawn = False


_SCREEN: Final = _Screen()


@contextmanager
def without_line() -> Iterator[None]:
    """Remove the progress line for other output, and draw none into it."""
    with _SCREEN.lock:
        _SCREEN.clear()
        yield


class ProgressLine:
    """`with ProgressLine("reading the log", shown=…) as progress: progress("chunk 3 of 9")`.

    Only a terminal on stderr shows it, so logs and pipes have no half lines.
    """

    def __init__(self, phase: str, *, shown: bool) -> None:
        self._phase, self._shown = phase, shown
        self._detail = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, detail: str) -> None:
        """Set the detail of the line. Cheap: call it as often as you like."""
        self._detail = detail

    def __enter__(self) -> Self:
        if self._shown:
            self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()

    def _draw(self) -> None:
        from shutil import get_terminal_size  # not on the way to --help

        started = time.monotonic()
        if self._done.wait(_PATIENCE_SECONDS):
            return
        while not self._done.wait(_REDRAW_SECONDS):
            elapsed = time.monotonic() - started
            line = safe(f"{self._phase}… {elapsed:.0f} s  {self._detail}".rstrip())
            _SCREEN.draw(_cut_line(line, get_terminal_size().columns - 1))
        _SCREEN.clear()


def _cut_line(line: str, columns: int) -> str:
    """Cut a line to the columns of the terminal: a wrapped line could not be removed."""
    while line and width_of(line) > columns:
        line = line[:-1]
    return line


def align(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of a table, in columns of a terminal; do not cut cells that are wider than their column."""
    return "  ".join(pad(text, width) for text, width in zip(cells, widths, strict=True)).rstrip()


_SHORTEST: Final = 24  # columns that a cut cell has at least
_WIDEST: Final = 48  # columns that one long cell gives to all rows
_HELD: Final = 64  # rows that decide how wide the columns are


class RecordWriter:
    """Writer of records one by one: a row, a line of JSON, or an element of the one object.

    For people the first rows are collected, so that the columns fit them; `live` writes each at once.
    """

    def __init__(
        self,
        output: "Output",
        name: str,
        columns: Sequence[str],
        widths: Sequence[int] = (),
        *,
        live: bool = False,
        room: int | None = None,
    ) -> None:
        self._output, self._name, self._columns, self._room = output, name, columns, room
        wanted = dict(zip(columns, widths, strict=False))
        self._widths = [max(width_of(column), wanted.get(column, 0)) for column in columns]
        self._count = 0
        self._summary: Mapping[str, Any] = {}
        self._rows: list[list[str]] | None = [] if output.mode.value == "human" and not live else None
        self._has_head = False
        self.is_cut = False  # whether a row did not fit the terminal

    @property
    def count(self) -> int:
        return self._count

    def add(self, data: Mapping[str, Any], cells: Sequence[Any]) -> None:
        """Write one record: `data` for programs; `cells`, in the order of the columns, for people and pipes."""
        mode, output = self._output.mode.value, self._output
        if mode == "ndjson":
            output.echo(compact(data))
        elif mode == "json":
            output.echo((",\n" if self._count else self._open()) + compact(data), nl=False)
        elif mode == "plain":
            output.echo("\t".join(map(cell, cells)))
        elif self._rows is None:
            self._write([*map(cell, cells)])
        else:
            self._rows.append([*map(cell, cells)])
            if len(self._rows) >= _HELD:
                self._release()
        self._count += 1

    def _release(self) -> None:
        """Write the collected rows, in columns that fit them; later rows are written at once."""
        rows, self._rows = self._rows or [], None
        for row in rows:
            self._widths = [
                max(width, min(width_of(text), _WIDEST)) for width, text in zip(self._widths, row, strict=True)
            ]
        for row in rows:
            self._write(row)

    def _write(self, row: list[str]) -> None:
        if not self._has_head:
            self._output.echo(self._output.style(align(self._columns, self._widths), "head"))
            self._has_head = True
        if self._room is not None and row:
            before = sum(max(width, width_of(text)) + 2 for width, text in zip(self._widths, row[:-1], strict=False))
            last = cut(row[-1], max(self._room - before, _SHORTEST))
            self.is_cut |= last != row[-1]
            row = [*row[:-1], last]
        self._output.echo(align(row, self._widths))

    def summary(self, data: Mapping[str, Any]) -> None:
        """Set further members of the one object of `--json`, beside its list."""
        self._summary = data

    def close(self) -> None:
        if self._rows is not None:
            self._release()
        if self._output.is_log:
            self._output.echo(compact({"summary": self._summary, "of": self._name}))
        elif self._output.mode.value == "json":  # a whole object, also if the command failed half way
            self._output.echo(("" if self._count else self._open()) + "\n]" + self._tail())

    def _open(self) -> str:
        return f"{{{compact(self._name)}:[\n"

    def _tail(self) -> str:
        return "".join(f",{compact(name)}:{compact(value)}" for name, value in self._summary.items()) + "}"


F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit codes. 1 means that evidence is bad, and nothing else."""

    OK = 0
    BAD_EVIDENCE = 1
    USAGE = 2
    NETWORK = 3
    REFUSED = 4
    LOCAL = 5
    POLICY = 6
    SELFTEST = 7
    INTERRUPTED = 130


class Fail(Exception):
    """End of a command: a code for `veen explain`, and the three parts of a message.

    The exit code is that of the code's row in the catalogue, unless another one is given.
    """

    def __init__(
        self,
        code: str,
        what: str,
        cause: str,
        hint: str,
        *,
        exit_code: Exit | None = None,
        stage: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(code, what, cause, hint)
        self.code, self.what, self.cause, self.hint = code, what, cause, hint
        self.exit_code = _exit_code_of(code) if exit_code is None else exit_code
        self.stage, self.request_id = stage, request_id
        self.waiting: int | None = None  # messages that are kept and sent again; None: the command sends none

    @property
    def waiting_line(self) -> str:
        """Line about the message that a command could not deliver."""
        if not self.waiting:
            return "no message is kept"
        what = "the message is kept, and is" if self.waiting == 1 else f"{self.waiting} messages are kept, and are"
        return f"{what} sent once, by the next veen send to this stream or by veen pending send; veen pending list"


def _exit_code_of(code: str) -> Exit:
    from veen.core.catalogue import catalogue  # when a command fails, and not before

    return Exit(catalogue()[code].exit_status)


class Mode(Enum):
    HUMAN = "human"
    PLAIN = "plain"
    JSON = "json"
    NDJSON = "ndjson"


def is_terminal(stream: IO[Any]) -> bool:
    """Return True if the stream is a terminal, or VEEN_FORCE_TTY is set, as for pagers and recordings of sessions."""
    return bool(os.environ.get("VEEN_FORCE_TTY")) or stream.isatty()


def _mode_of_stdout() -> Mode:
    if isinstance(sys.stdout, LogLines):
        return Mode.NDJSON
    return Mode.HUMAN if is_terminal(sys.stdout) else Mode.PLAIN


def _has_colour(stream: IO[Any]) -> bool:
    """Return True if the stream takes colours: no-color.org, bixense.com/clicolors, TERM."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb" and os.environ.get("CLICOLOR") != "0"


_STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "good": {"fg": "green"},
    "bad": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "head": {"bold": True},
    "dim": {"dim": True},
}


class Output:
    """The output of one command, and its prompts."""

    def __init__(self, mode: Mode | None = None, *, quiet: bool = False, no_input: bool = False) -> None:
        self.mode = mode or _mode_of_stdout()
        self.quiet = quiet
        self.no_input = no_input

    @property
    def as_json(self) -> bool:
        return self.mode in (Mode.JSON, Mode.NDJSON)

    @property
    def is_log(self) -> bool:
        """True if standard output has lines of a log (spec-4 §10.3)."""
        return isinstance(sys.stdout, LogLines)

    @property
    def may_ask(self) -> bool:
        """True if there is a person to prompt: stderr and stdin are terminals."""
        return not self.no_input and sys.stdin.isatty() and sys.stderr.isatty()

    # --- results ------------------------------------------------------------------------------------------

    def result(self, data: Mapping[str, Any], human: Callable[[], None] | None = None) -> None:
        """Print the one result of a command: `data` as JSON, or by `human`. Default: its names and values."""
        if self.mode is Mode.JSON:
            self.echo(pretty(data))
        elif self.mode is Mode.NDJSON:
            self.echo(compact(data))
        elif human is None:
            self.fields(data.items())
        else:
            human()

    def echo(self, text: str, *, nl: bool = True, err: bool = False) -> None:
        """Print text that is safe for terminals. It replaces a progress line."""
        with without_line():
            click.echo(text, nl=nl, err=err)

    def line(self, text: str, style: str | None = None, *, good: str = "", bad: str = "") -> None:
        """Print one line for people and pipes; nothing under --json.

        `good` and `bad` are its words for the outcome of a check: a terminal shows them green, or red.
        """
        if self.as_json:
            return
        for words, how in ((good, "good"), (bad, "bad")):
            before, mark, after = text.partition(words) if words else (text, "", "")
            if mark:
                self.echo(safe(before) + self.style(safe(mark), how) + safe(after))
                return
        self.echo(self.style(safe(text), style))

    def text(self, text: str) -> None:
        """Print several lines with control characters removed; nothing under --json."""
        if not self.as_json:
            self.echo(safe(text, keep="\n").removesuffix("\n"))

    def document(self, value: Any) -> None:
        """Print a nested value for people and pipes as indented JSON; nothing under --json."""
        if not self.as_json:
            self.echo(pretty(value))

    def fields(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Print names and values: aligned for people, separated by a tab in a pipe."""
        cells = [(cell(name), cell(value)) for name, value in rows]
        width = max((width_of(name) for name, _ in cells), default=0)
        for name, value in cells:
            self.echo(f"  {pad(name, width)}  {value}" if self.mode is Mode.HUMAN else f"{name}\t{value}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print rows under headings for people; bare tab-separated rows in a pipe."""
        if self.mode is not Mode.HUMAN:
            for row in rows:
                self.echo("\t".join(map(cell, row)))
            return
        lines = [[cell(value) for value in row] for row in rows]
        widths = [
            max(width_of(column), *(width_of(line[at]) for line in lines), 0) for at, column in enumerate(columns)
        ]
        self.echo(self.style(align(columns, widths), "head"))
        for line in lines:
            self.echo(align(line, widths))

    @contextmanager
    def records(
        self, name: str, columns: Sequence[str], widths: Sequence[int] = (), *, live: bool = False, whole: bool = True
    ) -> Iterator[RecordWriter]:
        """Print results one by one; `name` is the member of the one object that `--json` prints.

        People get columns as wide as the first rows need, at least `widths`; `live` shows every row at once instead.
        Unless `whole`, a terminal cuts the last column at its right edge, and notes it.
        """
        room = _width() if not whole and self.mode is Mode.HUMAN and is_terminal(sys.stdout) else None
        records = RecordWriter(self, name, columns, widths, live=live, room=room)
        try:
            yield records
        finally:
            records.close()

    def style(self, text: str, style: str | None) -> str:
        """Style text for a terminal. Colour carries no fact: the text says the same without it."""
        if style is None or self.as_json or not _has_colour(sys.stdout):
            return text
        return click.style(text, **_STYLES[style])

    # --- beside the result -------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a note beside the result."""
        if not self.quiet and not self.as_json:
            self.echo(f"note:  {safe(text)}", err=True)

    def notice(self, text: str, **data: Any) -> None:
        """Print a note that must not be lost: also under --quiet and --json, on standard error."""
        self.echo(compact({"notice": text, **data}) if self.as_json else f"note:  {safe(text)}", err=True)

    def say(self, text: str) -> None:
        """Print a line for a person who is about to be prompted, in every form and under --quiet."""
        self.echo(safe(text), err=True)

    def next(self, command: str) -> None:
        """Print the command that a person would most likely run now."""
        if not self.quiet and self.mode is Mode.HUMAN:
            self.echo(f"next:  {safe(command)}", err=True)

    def progress(self, phase: str) -> ProgressLine:
        """Show a phase line on a terminal after a second; remove it at the end."""
        return ProgressLine(phase, shown=not self.quiet and sys.stderr.isatty())


def _stdout_is_gone() -> bool:
    """Return True if the reader of our output closed it, as `head` does, and not the other side of a connection."""
    from select import POLLERR, poll

    asked = poll()
    try:
        asked.register(sys.stdout, POLLERR)
    except (OSError, ValueError):  # no file behind it
        return True
    return bool(asked.poll(0))


def report(output: Output, fail: Fail) -> None:
    """Print an error: what happened, the cause, and what to do next; for a program as one line of JSON."""
    if output.as_json:
        data = {
            "code": fail.code,
            "stage": fail.stage,
            "message": fail.what,
            "cause": fail.cause,
            "hint": fail.hint,
            "request_id": fail.request_id,
            "exit": int(fail.exit_code),
        }
        if fail.waiting is not None:
            data["pending"] = fail.waiting
        output.echo(compact(data), err=True)
        return
    width = _width() if is_terminal(sys.stderr) else None
    hint = fail.hint if fail.exit_code is Exit.USAGE else f"{fail.hint}  (veen explain {fail.code})"
    lines = [block("error", fail.what, width), block("cause", fail.cause, width), block("hint", hint, width)]
    if fail.request_id:
        lines.append(block("note", f"request_id {fail.request_id}", width))
    if fail.waiting is not None:
        lines.append(block("note", fail.waiting_line, width))
    if _has_colour(sys.stderr):
        lines[0] = click.style("error:", **_STYLES["bad"]) + lines[0].removeprefix("error:")
        for word in ("FAILED", "BAD"):
            lines[0] = lines[0].replace(word, click.style(word, **_STYLES["bad"]))
    output.echo("\n".join(lines), err=True)


def _width() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns


def sniff_mode(arguments: Sequence[str]) -> Mode | None:
    """Return the form that a command line selects, even if the rest of it cannot be parsed."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        for mode in (Mode.JSON, Mode.NDJSON):
            if word in (f"--{mode.value}", f"--output={mode.value}", f"-o{mode.value}"):
                return mode
            if word == mode.value and before in ("-o", "--output"):
                return mode
    return None


def _print_schema(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from veen.cli.shared.shapes import schema_of

    click.echo(pretty(schema_of(" ".join(ctx.command_path.split()[1:]))))
    ctx.exit()


def output_options(command: F) -> F:
    """Give a command its `Output` as first argument, and turn exceptions into text and an exit code."""

    @click.option(
        "--json-schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_schema,
        help="Print the JSON Schema of what --json prints, and do nothing else.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--ndjson", "as_ndjson", is_flag=True, help="Print JSON, one object per line.")
    @click.option(
        "--output",
        "-o",
        "form",
        type=click.Choice([mode.value for mode in Mode]),
        help="Form of the output. Default: human on a terminal, else plain.",
    )
    @click.option("--quiet", "-q", is_flag=True, help="Print the result only: no notes, no progress.")
    @click.option("--no-input", is_flag=True, help="Never prompt; fail instead.")
    @wraps(command)
    def run(
        *args: Any, as_json: bool, as_ndjson: bool, form: str | None, quiet: bool, no_input: bool, **kwargs: Any
    ) -> Any:
        chosen = {mode for mode, flag in ((Mode.JSON, as_json), (Mode.NDJSON, as_ndjson)) if flag}
        chosen |= {Mode(form)} if form else set()
        if len(chosen) > 1:
            raise click.UsageError("give one of --json, --ndjson and --output")
        output = Output(chosen.pop() if chosen else None, quiet=quiet, no_input=no_input)
        try:
            return command(output, *args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # the business of `main`
        except Exception as exc:
            if isinstance(exc, BrokenPipeError) and _stdout_is_gone():
                raise
            from veen.cli.shared.failures import failure_of

            fail = failure_of(exc)
            report(output, fail)
            raise click.exceptions.Exit(int(fail.exit_code)) from exc

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
