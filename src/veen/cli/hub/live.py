"""Commands that ask a running hub: status, health, checkpoint, limits, admission, metrics.

Commands for the hub of a data directory, as a service: reload, log.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from veen.cli.hub.common import DATA_DIR, holder_of, hub_options, open_directory
from veen.cli.hub.run import default_directory
from veen.cli.shared import options
from veen.cli.shared.failures import failing_as
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.client.transport.hubapi import HubApi
    from veen.core.objects.checkpoint import Checkpoint
    from veen.core.objects.tooling import ReadyResponse

_WARNED: Final = {  # metrics that are not 0 while an operator should look
    "veen_replicas_unknown": "a replica that `replicas` names cannot be asked whether it was promoted: see the log",
    "veen_outer_halted": "the outer log signs nothing any more: see the log",
    "veen_evidence_files": "somebody proved that this hub signed two histories: see evidence/",
}


@click.command()
@hub_options
def status(output: Output, hub: "HubApi") -> None:
    """Show the identity, clock and size of a hub, as it states them: nothing is verified.

    A data directory of this machine names the hub that runs it. It is asked through its local door: no token and no
    certificate is needed.

    \b
    veen hub status ./hub
    veen hub status --hub https://hub.example.org
    """
    from veen.cli.shared.wire_tree import to_named

    about, labels, ready = hub.status(), hub.label_count(), hub.ready()
    rows = [
        ("url", hub.url),
        ("hub_pk", f"ed25519:{about.hub_pk.hex()}"),
        ("hub_id", about.hub_id.hex()),
        ("version", about.server_version),
        ("ready", _readiness(ready)),
        ("hub_ts", about.hub_ts),
        ("epoch", about.epoch),
        ("labels", labels),
        ("stream_scope", about.stream_scope),
        ("capabilities", "required" if about.capability_gating else "optional"),
    ]
    background, warnings = _background(hub)
    rows.append(("background", _background_text(background)))
    rows += [("warning", warning) for warning in warnings]
    about_json = {**to_named(about), "hub_pk": f"ed25519:{about.hub_pk.hex()}"}
    data = {**dict(rows), "ready": ready.to_json(), "status": about_json, "labels": labels}
    data |= {"background": background, "warnings": warnings}
    data.pop("warning", None)
    output.result(data, lambda: output.fields(rows))


def _background(hub: "HubApi") -> "tuple[list[dict[str, Any]] | None, list[str]]":
    """Return the background tasks, None if the caller may not see them, and warnings for the operator."""
    from veen.client.errors import HubRefused
    from veen.client.transport.hubapi import metric_samples

    try:
        samples = metric_samples(hub.metrics())
    except HubRefused:
        return None, []
    prefix, end = 'veen_background_restarts_total{task="', '"}'
    tasks = [
        {
            "task": task,
            "restarts": int(value or 0),
            "running": samples.get(f'veen_background_running{{task="{task}"}}') == 1,
        }
        for name, value in samples.items()
        if name.startswith(prefix)
        for task in [name.removeprefix(prefix).removesuffix(end)]
    ]
    return tasks, [text for metric, text in _WARNED.items() if samples.get(metric)]


def _background_text(tasks: "list[dict[str, Any]] | None") -> str:
    if tasks is None:
        return "not shown without a token"
    restarted = [
        f"{row['task']} restarted {row['restarts']} times" + ("" if row["running"] else ", waits for its restart")
        for row in tasks
        if row["restarts"]
    ]
    return "; ".join(restarted) or "all tasks run"


def _readiness(ready: "ReadyResponse") -> str:
    return "yes" if ready.ready else f"no: {ready.reason or 'the reason needs a token'}"


@click.command()
@hub_options
def health(output: Output, hub: "HubApi") -> None:
    """Check that the hub is alive and admits messages. Exit code 6 if it is alive but does not."""
    about, ready = hub.health(), hub.ready()
    state = {"alive": about.ok, "ready": ready.ready}
    data = {"url": hub.url, **state, "healthz": about.to_json(), "readyz": ready.to_json()}
    rows = [
        ("alive", about.ok),
        ("ready", _readiness(ready)),
        ("last_stream_seq", "not shown without a token" if about.last_stream_seq is None else about.last_stream_seq),
        ("last_mmr_root", about.last_mmr_root or "none"),
    ]
    output.result(data, lambda: output.fields(rows))
    if not ready.ready:
        raise click.exceptions.Exit(Exit.POLICY)


@click.command()
@hub_options
def fence(output: Output, hub: "HubApi") -> None:
    """Have a running hub admit nothing any more, for good: a record in its control journal says so, and how much there
    is. A replica that has all of it can be promoted without loss. Readers are still served.

    Only a replica that is promoted writes the log again, in its own directory. Administrators only; a data directory of
    this machine needs no token.

    \b
    veen hub fence ./hub
    """
    from veen.core.objects.control import HubFence

    record = hub.fence()
    assert isinstance(record.body, HubFence)  # noqa: S101 - `fence` has looked
    output.result({"url": hub.url, "record": record.seq, "hub_ts": record.hub_ts, "entries": record.body.upto})


@click.command()
@hub_options
@click.option("--label", type=hex32, help="Label, in hex. Default: all labels of the hub.")
@click.option("--upto", type=click.IntRange(min=1), help="Number of entries to cover. Default: all.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Directory to write each CHECKPOINT to, as CBOR."
)
def checkpoint(output: Output, hub: "HubApi", label: bytes | None, upto: int | None, out: Path | None) -> None:
    """Have the hub sign what its log is now. It keeps no record of it; the checkpoints of its chunks it writes itself.

    \b
    veen hub checkpoint --data-dir ./hub --out ./checkpoints
    veen verify ./checkpoints/*.cbor --hub-pk ed25519:…
    """
    from veen.cli.shared.wire_tree import to_named

    if upto is not None and label is None:
        raise click.UsageError("--upto needs --label")
    with output.records("checkpoints", ("label", "upto_seq", "root"), (64, 8, 64)) as records:
        for info in hub.labels() if label is None else [hub.label(label)]:
            signed = hub.checkpoint(info.label, upto or info.last_stream_seq)
            if out is not None:
                _save(signed, out)
            records.add(to_named(signed), (signed.label_curr, signed.upto_seq, signed.mmr_root))


def _save(signed: "Checkpoint", out: Path) -> None:
    from veen.io.local import OsFs

    try:
        out.mkdir(parents=True, exist_ok=True)
        name = f"checkpoint-{signed.label_curr.hex()}-{signed.upto_seq:020d}.cbor"
        OsFs(out).replace(name, signed.to_bytes())
    except OSError as exc:
        raise Fail("E.LOCAL", f"{out}: cannot be written", str(exc.strerror), "give another --out") from exc


@click.command()
@hub_options
def limits(output: Output, hub: "HubApi") -> None:
    """Show the limits in force: fixed for the life of the process (spec §14.1)."""
    registry = hub.status().limits
    output.result(registry)


@click.command()
@hub_options
def admission(output: Output, hub: "HubApi") -> None:
    """Show the hub's rules of admission."""
    about = hub.status().to_json()
    data = {name: about[name] for name in ("profiles", "capability_gating", "stream_scope", "pow_difficulty")}
    output.result(data)


@click.command()
@hub_options
def metrics(output: Output, hub: "HubApi") -> None:
    """Print the metrics of the hub in the text form of Prometheus."""
    from veen.client.transport.hubapi import metric_samples

    text = hub.metrics()
    samples = metric_samples(text)  # also where they are not printed one by one: what is no metrics is not printed
    output.result({"metrics": samples}, lambda: output.text(text))


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
