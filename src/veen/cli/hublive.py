"""Commands that ask a running hub: status, health, checkpoint, limits, admission, metrics."""

import json
from pathlib import Path
from typing import Any

import click

from veen.cli.hubclient import HubClient, hub_options
from veen.cli.output import Exit, Fail, Output, output_options

__all__ = ["admission", "checkpoint", "health", "limits", "metrics", "status"]


@click.command()
@output_options
@hub_options
def status(output: Output, client: HubClient) -> None:
    """Who a hub is, what time it is there, and how much it holds."""
    found = client.get("/tooling/status")
    labels = client.post("/tooling/inspect", {"ver": 1})
    ready = json.loads(client.request("GET", "/readyz", good=503)[1])
    data = {"url": client.url, "ready": ready, "status": found, "labels": labels["label_count"]}
    rows = [
        ("url", client.url),
        ("hub_pk", f"ed25519:{found['hub_pk']}"),
        ("hub_id", found["hub_id"]),
        ("version", found["server_version"]),
        ("ready", "yes" if ready["ready"] else f"no: {ready.get('reason')}"),
        ("hub_ts", str(found["hub_ts"])),
        ("epoch", str(found["epoch"])),
        ("labels", str(labels["label_count"])),
        ("stream scope", found["stream_scope"]),
        ("capabilities", "required" if found["capability_gating"] else "optional"),
    ]
    output.result(data, lambda: output.fields(rows))


@click.command()
@output_options
@hub_options
def health(output: Output, client: HubClient) -> None:
    """Is the hub alive, and does it admit messages? Exit code 6 if it lives but does not."""
    found = client.get("/healthz")
    ready = json.loads(client.request("GET", "/readyz", good=503)[1])
    data = {"url": client.url, "healthz": found, "readyz": ready}
    rows = [
        ("alive", "yes" if found["ok"] else "no"),
        ("ready", "yes" if ready["ready"] else f"no: {ready.get('reason')}"),
        ("last_stream_seq", str(found["last_stream_seq"])),
        ("last_mmr_root", str(found.get("last_mmr_root") or "none")),
    ]
    output.result(data, lambda: output.fields(rows))
    if not ready["ready"]:
        raise click.exceptions.Exit(Exit.POLICY)


@click.command()
@output_options
@hub_options
@click.option("--label", help="The label, in hex; default: all labels of the hub.")
@click.option("--upto", type=click.IntRange(min=1), help="Up to which entry; default: all.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write each CHECKPOINT here, as CBOR.")
def checkpoint(output: Output, client: HubClient, label: str | None, upto: int | None, out: Path | None) -> None:
    """Have the hub sign what its log is now. It keeps no record of it; the checkpoints of its chunks it writes itself.

    \b
    veen hub checkpoint --data-dir ./hub --out ./checkpoints
    veen verify ./checkpoints/*.cbor --hub-pk ed25519:…
    """
    if upto is not None and label is None:
        raise click.UsageError("--upto needs --label")
    heads = _heads(client, label)
    found = []
    for head in heads:
        request = {"ver": 1, "label": head["label"], "upto_seq": upto or head["last_stream_seq"]}
        found.append(client.post("/v1/checkpoint", request)["checkpoint"])
    if out is not None:
        _save(found, out)
    from veen.core.checkpoint import Checkpoint

    rows = []
    for signed in map(Checkpoint.from_json, found):
        rows.append((signed.label_curr.hex(), f"1..{signed.upto_seq}  root {signed.mmr_root.hex()}"))
    output.result({"checkpoints": found}, lambda: output.fields(rows))


def _heads(client: HubClient, label: str | None) -> list[dict[str, Any]]:
    """The labels of the hub and how far they go, page by page."""
    heads: list[dict[str, Any]] = []
    request: dict[str, Any] = {"ver": 1} if label is None else {"ver": 1, "label": label}
    while True:
        page = client.post("/tooling/inspect", request)
        heads += page["labels"]
        if not page["more"]:
            return heads
        request |= {"after_epoch": heads[-1]["epoch"], "after": heads[-1]["label"]}


def _save(found: list[Any], out: Path) -> None:
    from veen.core.checkpoint import Checkpoint

    try:
        out.mkdir(parents=True, exist_ok=True)
        for signed in map(Checkpoint.from_json, found):
            name = f"checkpoint-{signed.label_curr.hex()}-{signed.upto_seq:020d}.cbor"
            (out / name).write_bytes(signed.to_bytes())
    except OSError as exc:
        raise Fail(Exit.LOCAL, f"{out}: cannot be written", str(exc.strerror), "give another --out", "E.LOCAL") from exc


@click.command()
@output_options
@hub_options
def limits(output: Output, client: HubClient) -> None:
    """The limit registry that is in force: fixed for the life of the process (spec §14.1)."""
    found = client.get("/tooling/status")["limits"]
    output.result(found, lambda: output.fields((name, str(value)) for name, value in found.items()))


@click.command()
@output_options
@hub_options
def admission(output: Output, client: HubClient) -> None:
    """What the hub admits."""
    found = client.get("/tooling/status")
    data = {name: found[name] for name in ("profiles", "capability_gating", "stream_scope", "pow_difficulty")}
    rows = [(name, json.dumps(value)) for name, value in data.items()]
    output.result(data, lambda: output.fields(rows))


@click.command()
@output_options
@hub_options
def metrics(output: Output, client: HubClient) -> None:
    """Print the metrics of the hub in the text form of Prometheus."""
    _, data = client.request("GET", "/metrics", accept="text/plain")
    text = data.decode()
    output.result({"metrics": _parsed(text)}, lambda: click.echo(text, nl=False))


def _parsed(text: str) -> dict[str, float]:
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}
