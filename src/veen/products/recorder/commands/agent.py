"""`veen recorder agent`: moves records from sources to the hub until stopped. Stopping or killing it loses nothing."""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import connector
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.products.recorder.commands.init import role_of

if TYPE_CHECKING:
    from veen.products.recorder.agent import AgentConfig, AgentSource

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_LISTENERS: Final = ("syslog", "otlp", "cloudevents", "webhook", "kubernetes")


@click.command()
@click.option("--config", "config_file", type=_FILE, help="A TOML file with [agent] and [[source]] tables.")
@click.option(
    "--source",
    help="One source: -, lines:NAME, file:PATH, syslog:HOST:PORT, syslog+udp:HOST:PORT, otlp:HOST:PORT, journald …",
)
@click.option("--stream", type=STREAM, help="Stream for the records of --source.")
@click.option("--type", "event_type", help="Event type for --source, or a path such as .event.")
@click.option("--subject", help="Subject for --source, or a path such as .user.")
@click.option("--redact", multiple=True, metavar="RULE", help="Replace a value by a commitment: .password, re:PATTERN.")
@click.option("--once", is_flag=True, help="Record the existing entries and exit. For files and the journal.")
@client_options
def agent(
    output: Output,
    session: CliSession,
    config_file: Path | None,
    source: str | None,
    stream: str | None,
    event_type: str | None,
    subject: str | None,
    redact: tuple[str, ...],
    once: bool,
) -> None:
    """Record events of sources, as the producer --identity, until the sources end or the agent is stopped.

    Records are on disk before anything is sent and leave it with a verified receipt; after a crash the same command
    continues. Exit code 6 if records still wait for the hub at the end. Standard input is `-`, or
    `lines:NAME` if the same lines will be piped in again after a crash: recorded lines are then skipped.

    \b
    veen recorder agent --identity web --source file:/var/log/app.log --stream record/app/web
    veen recorder agent --identity web --source syslog:127.0.0.1:5514 --stream record/app/web
    veen recorder agent --identity web --config /etc/veen/agent.toml
    """
    from veen.products.recorder.agent import AgentConfig

    if (config_file is None) == (source is None) or (source is None) != (stream is None):
        raise click.UsageError("give --config FILE, or --source and --stream")
    if config_file is not None:
        config = AgentConfig.read(config_file)
    else:
        fields = {"type": event_type, "subject": subject}
        table = _source_table(str(source), {name: value for name, value in fields.items() if value}, once)
        config = AgentConfig.of({"agent": {"redact": list(redact)}, "source": [{**table, "stream": stream}]})
    import asyncio

    counts, trouble = asyncio.run(_run(output, session, config))
    output.result(counts)
    if counts["waiting"]:
        raise Fail(
            "SDR.WAITING",
            f"{counts['waiting']} records wait for the hub",
            trouble or "the agent was stopped before the hub had taken them",
            "nothing is lost: the same command sends them",
        )


def _source_table(text: str, fields: Mapping[str, str], once: bool) -> dict[str, Any]:
    """Return the configuration table of `--source`."""
    kind, _, where = text.partition(":")
    if text == "-":  # what is piped in now has nothing to do with what was piped in before
        return {"id": f"stdin-{time.time_ns()}", "kind": "lines", **fields}
    if kind == "lines":
        return {"id": where or "lines", "kind": kind, **fields}
    if kind == "file":
        return {"id": where, "kind": kind, "path": where, "follow": not once, **fields}
    if kind == "journald":
        return {"id": "journald", "kind": kind, "follow": not once}
    name, _, transport = kind.partition("+")
    if name in _LISTENERS:
        table = {"id": kind, "kind": name, **({"listen": where} if where else {})}
        return {**table, "transport": transport} if transport else table
    return {"id": kind, "kind": kind, **fields}


async def _run(output: Output, session: CliSession, config: "AgentConfig") -> tuple[dict[str, int], str | None]:
    import asyncio
    from socket import gethostname

    from veen.client.home import PrivateFs
    from veen.products.recorder.agent import Agent
    from veen.products.recorder.sink import Sinks
    from veen.products.recorder.spool import Spool, spool_key

    home, name = session.home, session.identity_name
    role = role_of(session, home, name)
    sources = config.open_sources(role.keystore.secrets.keyring)
    connect = connector(session, home)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    fs = PrivateFs(home.state / "recorder" / name)
    with Spool(fs, spool_key(role.keystore.identity), max_bytes=config.spool_bytes) as spool:
        shared = Sinks(spool, gethostname(), config.max_payload)
        announcement = asyncio.create_task(_announce(output, sources))
        try:
            running = Agent(role.keystore, role.tokens, shared, sources, connect, pace=config.pace)
            await running.run(stop)
        finally:
            announcement.cancel()
        return dict(spool.counts()), running.trouble


async def _announce(output: Output, sources: "list[AgentSource]") -> None:
    """Print the sources, once those that listen are ready."""
    about = []
    for source in sources:
        adapter: Any = source.adapter
        if hasattr(adapter, "ready"):
            await adapter.ready.wait()
        about.append({"id": adapter.id, "kind": adapter.kind, "port": getattr(adapter, "port", None)})
    listed = ", ".join(f"{entry['id']}{' on port ' + str(entry['port']) if entry['port'] else ''}" for entry in about)
    output.notice(f"recording {listed}", sources=about)
