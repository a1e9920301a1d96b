"""`veen label derive`: the name of a stream, and what becomes of it on the wire."""

import time
from typing import Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output

label = LazyGroup("label", help="What a hub sees of a stream.")


@label.verb("derive", "The label under which a hub knows a stream.")
@click.argument("stream", type=STREAM)
@click.option("--hub-id", type=hex32, help="The hub_id; default: that of the pinned hub.")
@click.option("--routing-key", type=hex32, help="The routing key, instead of a hub.")
@click.option("--epoch", type=click.IntRange(min=0), help="The epoch; default: the one of --at under --epoch-sec.")
@click.option("--epoch-sec", type=click.IntRange(min=0), default=0, show_default=True, help="Length of an epoch.")
@click.option("--at", type=click.IntRange(min=0), help="Seconds since 1970; default: now.")
@client_options
def derive(
    output: Output,
    session: CliSession,
    stream: str,
    hub_id: bytes | None,
    routing_key: bytes | None,
    epoch: int | None,
    epoch_sec: int,
    at: int | None,
) -> None:
    """Show the label of STREAM at a hub: all that the hub ever sees of its name (spec §2).

    Nothing is asked of the hub. Without --hub-id and --routing-key the context tells hub_id; one that never connected
    must pin the hub's first key, as hub_id derives from that one. Only where the root of an ephemeral hub is pinned,
    the hub is asked which one it is.

    \b
    veen label derive record/app/http
    veen label derive record/app/http --hub-id 4f1c… --epoch-sec 3600
    """
    from veen.client.identity.keyring import StreamRef
    from veen.core.labels import epoch_at, label_of, routing_key_of

    if hub_id is not None and routing_key is not None:
        raise click.UsageError("give one of --hub-id and --routing-key")
    if routing_key is None:
        hub_id = hub_id or session.hub_id or _hub_id(session)
        routing_key = routing_key_of(hub_id)
    ident = StreamRef.parse(stream).stream_id
    if ident is None:
        raise click.UsageError(f"{stream} is a label already")
    number = epoch_at(int(time.time()) if at is None else at, epoch_sec) if epoch is None else epoch
    data: dict[str, Any] = {
        "stream": stream,
        "stream_id": ident.hex(),
        "hub_id": hub_id.hex() if hub_id is not None else None,
        "routing_key": routing_key.hex(),
        "epoch": number,
        "label": label_of(routing_key, ident, number).hex(),
    }
    output.result(data)


def _hub_id(session: CliSession) -> bytes:
    from veen.core.labels import hub_id_of

    return session.client().hub_id if session.pinned.is_root else hub_id_of(session.pinned.public)
