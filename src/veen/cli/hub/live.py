"""Commands that ask a running hub: status, health, checkpoint, limits, admission, metrics."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.hub.client import hub_options
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Exit, Fail, Output

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
    from veen.cli.shared.named import to_named

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
    from veen.cli.shared.named import to_named

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
