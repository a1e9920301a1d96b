"""`veen replica`: follows a hub without its keys, shows the lag, and promotes the replica."""

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.hub.common import ACCEPT_CLOCK, DATA_DIR, holder_of, open_directory
from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import FILE
from veen.cli.shared.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.products.federation.promotion import OpenRange

replica = LazyGroup(
    "replica",
    help="""Run a read-only hub that follows another one without its keys and verifies everything.

    `run` follows, `status` shows how far it is, `promote` makes it the primary.
    """,
)
_SHOWN: Final = 20
_CONFIG: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def _ranges(ranges: "tuple[OpenRange, ...]") -> list[dict[str, Any]]:
    return [
        {
            "label": part.label.hex(),
            "first_seq": part.first_seq,
            "last_seq": part.last_seq,
            "known": bool(part.last_seq),
        }
        for part in ranges
    ]


@replica.verb("run", "Follow a hub and serve its log, read-only.")
@click.argument("source", metavar="SOURCE_URL")
@click.argument("directory", metavar="DIR", type=DATA_DIR)
@click.option("--hub-pk", "pin", help="Key of the hub to follow, ed25519:HEX. Required the first time.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Address for readers.")
@click.option("--token-file", type=FILE, help="File with a bearer token for reading the source.")
@click.option("--ca-file", type=FILE, help="CA certificates for the source, instead of the system's (PEM).")
@click.option("--config", "-c", "file", type=_CONFIG, help="Hub configuration: TLS, readers and log apply.")
@click.option("--once", is_flag=True, help="Stop when the replica has caught up with the source.")
@output_options
def run(
    output: Output,
    source: str,
    directory: Path,
    pin: str | None,
    listen: str,
    token_file: str | None,
    ca_file: str | None,
    file: Path | None,
    once: bool,
) -> None:
    """Follow the hub at SOURCE_URL into DIR until stopped. Each entry is verified before it is written: author, hub,
    root, order and checkpoints. Readers are served as by the hub itself; messages are refused (NOT_PRIMARY).

    DIR is new, or a clone of the hub without its keys. It may be killed at any time and started again. A source that
    contradicts what it signed before ends the command with exit code 1, and both statements are kept in DIR/evidence.

    \b
    veen replica run https://hub.example.org ./replica --hub-pk ed25519:HEX --listen 0.0.0.0:8080
    veen replica run http://127.0.0.1:8080 ./replica
    """
    import asyncio

    from veen.cli.shared.failures import failing_as

    with failing_as("the replica cannot run"):
        settings = _config(directory, listen, file)
        tokens = None if token_file is None else Path(token_file)
        certificates = None if ca_file is None else Path(ca_file)
        asyncio.run(_run(output, source, settings, pin, tokens, certificates, once))


def _config(directory: Path, listen: str, file: Path | None) -> Any:
    from veen.hub.process.config import load

    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter("expected HOST:PORT, such as 127.0.0.1:8080", param_hint="--listen")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    return load(file, {}, {"data_dir": str(directory), "listen.host": host, "listen.port": port})


async def _run(
    output: Output, source: str, settings: Any, pin: str | None, token: Path | None, ca_file: Path | None, once: bool
) -> None:
    import asyncio

    from veen.client.transport.http import HttpTransport
    from veen.hub.process.replica import ReplicaHub
    from veen.products.federation.replica import ReplicaFollower, ReplicaInconsistent, open_replica

    transport = HttpTransport(source, ca_file=ca_file, token_file=token)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        pin = await open_replica(settings.data_dir, source, pin, transport, ca_file=ca_file, token_file=token)
        async with ReplicaHub.serve(settings, accept_clock=True) as hub:
            follower = ReplicaFollower(hub, transport, pin)
            output.notice(f"replica of {source} listens on {hub.url}", url=hub.url, source=source, pin=pin)
            following = asyncio.create_task(follower.run(once=once))
            stopping = asyncio.create_task(stop.wait())
            failing = asyncio.ensure_future(hub.failure)
            try:
                await asyncio.wait((following, stopping, failing), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                if failing.done():
                    raise failing.result()
            except ReplicaInconsistent as exc:
                if exc.evidence is not None:
                    hub.keep_evidence(exc.evidence)
                raise
            finally:
                for task in (following, stopping):
                    task.cancel()
                    with contextlib.suppress(BaseException):
                        await task
                follower.save()
            entries, seconds = follower.lag()
            counts = {
                "entries": hub.sequencer.store.entry_count,
                "lag_entries": entries,
                "lag_seconds": seconds,
                "attachments_missing": follower.attachments.missing,
            }
            output.result(counts)
    finally:
        await transport.aclose()


@replica.verb("status", "How far a replica is behind its primary.")
@click.argument("directory", metavar="DIR", type=DATA_DIR)
@output_options
def status(output: Output, directory: Path) -> None:
    """Show the state of the replica in DIR: running or not, its source, and the lag in entries and seconds. If it is
    stopped: its entries, and the ranges that may be missing. Exit code 6 if it runs and is behind.

    \b
    veen replica status ./replica
    """
    from veen.storage.copies.replica import read_mark

    fs = open_directory(directory)
    mark = read_mark(fs)
    if mark is None:
        raise Fail(
            "E.REPLICA.DIRECTORY",
            f"{directory}: not a replica",
            "the directory has no source to follow",
            "veen replica run SOURCE_URL DIR --hub-pk KEY",
        )
    holder = holder_of(fs)
    data: dict[str, Any] = {"source": mark.source, "pin": mark.pin, "running": holder is not None}
    if holder is None or holder.url is None:
        from veen.products.federation.promotion import replica_state

        state = replica_state(fs)
        data |= {
            "entries": state.entries,
            "labels": state.labels,
            "fenced": state.fence is not None,
            "complete": state.complete,
            "in_step_at": mark.heard_at or None,
            "may_be_missing": _ranges(() if state.complete else state.ranges),
        }
        rows = [(name, value) for name, value in data.items() if name != "may_be_missing"]
        output.result(data, lambda: output.fields([*rows, ("may_be_missing", len(data["may_be_missing"]))]))
        return
    lag = _lag(holder.url, directory)
    data |= {"url": holder.url, **lag}
    output.result(data)
    if lag["lag_entries"] or lag["lag_seconds"]:
        raise click.exceptions.Exit(Exit.POLICY)


def _lag(url: str, directory: Path) -> dict[str, Any]:
    """Return the lag that the running replica reports."""
    import os

    from veen.client.transport.hubapi import HubApi, metric_samples
    from veen.storage import layout

    door = directory / layout.LOCAL_SOCKET
    with HubApi(url, socket_path=door if os.access(door, os.R_OK | os.W_OK) else None) as hub:
        samples = metric_samples(hub.metrics())
    names = {
        "entries": "veen_entries",
        "lag_entries": "veen_replica_lag_entries",
        "attachments_missing": "veen_replica_attachments_missing",
    }
    counts: dict[str, Any] = {name: int(samples.get(sample) or 0) for name, sample in names.items()}
    return {**counts, "lag_seconds": samples.get("veen_replica_lag_seconds")}


@replica.verb("promote", "Make a replica the primary.")
@click.argument("directory", metavar="DIR", type=DATA_DIR)
@click.option(
    "--key-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Place of the hub's private keys: its data directory, its keys_dir, or a copy.",
)
@click.option("--accept-loss", is_flag=True, help="Promote although acknowledged entries may be missing here.")
@click.option("--move-keys", is_flag=True, help="Remove the keys from --key-from, so that the old primary cannot sign.")
@ACCEPT_CLOCK
@output_options
def promote(
    output: Output, directory: Path, key_from: Path, accept_loss: bool, move_keys: bool, accept_clock: bool
) -> None:
    """Make the stopped replica of DIR the primary: it gets the keys and writes a hub.promote record. `veen hub start`
    runs it then, with the configuration of the old primary.

    Refused while the old primary admits messages: fence it first (`veen hub fence`), so that the replica proves to
    have everything. If it is gone, entries may be missing that it acknowledged; the ranges are named, and --accept-loss
    goes on. Name the new primary as one of `replicas` in the configuration of the old one: it does not start then.

    \b
    veen replica promote ./replica --key-from /safe/keys
    veen replica promote ./replica --key-from /safe/keys --accept-loss
    """
    from veen.products.federation.promotion import LossNotAccepted
    from veen.products.federation.promotion import promote as promote_replica

    try:
        done = promote_replica(
            open_directory(directory),
            key_from,
            int(time.time()),
            accept_loss=accept_loss,
            move_keys=move_keys,
            accept_clock=accept_clock,
        )
    except LossNotAccepted as exc:
        output.notice(f"{exc.entries} entries are here", may_be_missing=_ranges(exc.ranges[:_SHOWN]))
        raise
    data = {
        "hub_pk": f"ed25519:{done.hub_pk.hex()}",
        "entries": done.entries,
        "labels": done.labels,
        "complete": done.complete,
        "outer_log": done.outer,
        "may_be_lost": _ranges(done.accepted),
        "next": f"veen hub start --data-dir {directory}",
    }
    rows = [(name, value) for name, value in data.items() if name != "may_be_lost"]
    output.result(data, lambda: output.fields([*rows, ("may_be_lost", len(done.accepted))]))
