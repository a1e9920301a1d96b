"""Commands for the hub of a data directory, as a service: reload, log."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import click

from veen.cli.hub.common import DATA_DIR, holder_of, open_directory
from veen.cli.hub.dev import default_directory
from veen.cli.shared import options
from veen.cli.shared.failures import failing_as
from veen.cli.shared.output import Fail, Output, output_options

_POLL_SECONDS: Final = 0.05
_MAX_NOTE_BYTES: Final = 1 << 20
_MAX_LINE_CHARS: Final = 1 << 16  # of a log: longer ones are no hub's
_FIELDS: Final = ("ts", "level", "operation", "code", "detail", "client_id_prefix", "request_id", "message")


@click.command()
@click.option("--data-dir", type=DATA_DIR, help=options.HUB_DIR)
@click.option("--timeout", type=click.IntRange(1, 3600), default=30, show_default=True, help=options.TIMEOUT)
@output_options
def reload(output: Output, data_dir: Path | None, timeout: int) -> None:
    """Have a running hub read its configuration and its files again, and print the outcome.

    Certificates, client CAs, token files, denied clients and most limits of connections count at once; what waits for a
    restart is named. A configuration that cannot be used changes nothing and is exit code 5.

    \b
    veen hub reload ./hub
    """
    if data_dir is None:
        raise click.UsageError("give the data directory")
    with failing_as("the hub cannot be reloaded"):
        holder = holder_of(open_directory(data_dir))
        if holder is None or holder.url is None:
            raise Fail(
                "E.NET.UNREACHABLE",
                f"{data_dir}: no hub to reload",
                "no hub runs it" if holder is None else f"its hub (pid {holder.pid}) does not listen yet",
                f"veen hub start --data-dir {data_dir}",
            )
        before = _note(data_dir)
        os.kill(holder.pid, signal.SIGHUP)
        note = _await_note(data_dir, before, holder.pid, timeout)
    if not note["ok"]:
        raise Fail(
            "E.CONFIG",
            "the configuration was not taken over; the one before stays in force",
            str(note["error"]),
            "correct it, then: " + f"veen hub reload {data_dir}",
        )
    data = {"reloaded": True, "pid": holder.pid, "applied": note["applied"], "needs_restart": note["needs_restart"]}

    def human() -> None:
        output.line(f"reloaded the hub of {data_dir} (pid {holder.pid})")
        output.fields([("applied", ", ".join(note["applied"]) or "nothing changed")])
        output.fields([("needs a restart", ", ".join(note["needs_restart"]) or "nothing")])

    output.result(data, human)


def _note(data_dir: Path) -> dict[str, Any] | None:
    """Return the hub's note about its last reload; None if there was none since it started."""
    from veen.storage import layout

    try:
        with (data_dir / layout.RELOAD).open("rb") as file:
            note = json.loads(file.read(_MAX_NOTE_BYTES))
    except FileNotFoundError:
        return None
    except ValueError:
        return None
    names = ("number", "ok", "applied", "needs_restart", "error")
    return note if isinstance(note, dict) and all(name in note for name in names) else None


def _await_note(data_dir: Path, before: dict[str, Any] | None, pid: int, timeout: int) -> dict[str, Any]:
    deadline = time.monotonic() + timeout
    last = before["number"] if before else 0
    while True:
        note = _note(data_dir)
        if note is not None and note["number"] != last:
            return note
        if time.monotonic() > deadline:
            raise Fail(
                "E.TIMEOUT",
                f"the hub (pid {pid}) did not say that it has reloaded",
                f"nothing was noted within {timeout} seconds",
                f"look for the operation `reload` in its log: veen hub log {data_dir} --operation reload",
            )
        time.sleep(_POLL_SECONDS)


@click.command()
@click.argument("source", type=click.Path(path_type=Path), required=False)
@click.option("--request-id", help="Only lines of this request, by the id that a refused client was shown.")
@click.option("--client", metavar="PREFIX", help="Only lines of the client whose client_id has this prefix, in hex.")
@click.option("--code", help="Only lines with this error code or detail, such as E.AUTH or CLIENT_REVOKED.")
@click.option("--operation", help="Only lines of this operation: submit, request, reload, disk, scrub, …")
@click.option("--refused", is_flag=True, help="Only refusals and failures.")
@click.option("--last", type=click.IntRange(min=1), help="Number of newest lines to show.")
@output_options
def log(
    output: Output,
    source: Path | None,
    request_id: str | None,
    client: str | None,
    code: str | None,
    operation: str | None,
    refused: bool,
    last: int | None,
) -> None:
    """Find lines in the log of a hub, such as the reason of a refusal.

    SOURCE is a log file in JSON, a data directory (then the file beside it, as `hub start --detach` writes it), or "-"
    for standard input; by default the directory of `hub start --dev`.

    A client_id in a line about a refusal is what the message claimed; it is verified only where the
    refusal came after the signature.

    \b
    veen hub log --last 20
    veen hub log ./hub --request-id 5f2a91c0-1b
    veen hub log /var/log/veen/hub.log --refused --client 9f2c41d0
    journalctl -u veen-hub -o cat | veen hub log - --code CLIENT_REVOKED
    """
    source = source or default_directory()
    wanted = {
        "request_id": request_id,
        "operation": operation,
    }
    prefix = client.lower() if client else None

    def matches(line: dict[str, Any]) -> bool:
        if any(value is not None and line.get(name) != value for name, value in wanted.items()):
            return False
        if code is not None and code not in (line.get("code"), line.get("detail")):
            return False
        shown = line.get("client_id_prefix")
        if prefix is not None and not (isinstance(shown, str) and shown and prefix.startswith(shown[: len(prefix)])):
            return False
        return not refused or "code" in line

    with failing_as(f"{source}: the log cannot be read"), _open(source) as file:
        lines: Iterable[dict[str, Any]] = filter(matches, _lines(file))
        if last is not None:
            from collections import deque

            lines = deque(lines, maxlen=last)
        with output.records("lines", _FIELDS) as records:
            for line in lines:
                records.add(line, tuple(line.get(name, line.get("reason", "")) for name in _FIELDS))


def _open(source: Path) -> IO[str]:
    if str(source) == "-":
        return os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8", errors="replace")
    path = source.with_name(f"{source.resolve().name}.log") if source.is_dir() else source
    if not path.is_file():
        raise Fail(
            "E.LOCAL",
            f"{source}: no log",
            f"there is no file {path}",
            "give the file of `log.file`; a service's log is in the journal: journalctl -u veen-hub -o cat",
        )
    return path.open(encoding="utf-8", errors="replace")


def _lines(file: IO[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects; skip other lines of a journal."""
    while line := file.readline(_MAX_LINE_CHARS):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
