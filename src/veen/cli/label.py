"""`veen label derive` and `veen schema id`: names, and what becomes of them on the wire."""

import time
from typing import Any, ClassVar

import click

from veen.cli.clictx import Session, client_options
from veen.cli.files import hex32
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options

__all__ = ["derive", "id_", "label", "schema"]


class _LabelGroup(LazyGroup):
    table: ClassVar[Table] = {"derive": ("veen.cli.label:derive", "The label under which a hub knows a stream.")}


class _SchemaGroup(LazyGroup):
    table: ClassVar[Table] = {"id": ("veen.cli.label:id_", "The id of a schema, from its name.")}


@click.group(cls=_LabelGroup)
def label() -> None:
    """What a hub sees of a stream."""


@click.group(cls=_SchemaGroup)
def schema() -> None:
    """The ids of payload schemas."""


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--hub-id", type=hex32, help="The hub_id; default: that of the pinned hub.")
@click.option("--routing-key", type=hex32, help="The routing key, instead of a hub.")
@click.option("--epoch", type=click.IntRange(min=0), help="The epoch; default: the one of --at under --epoch-sec.")
@click.option("--epoch-sec", type=click.IntRange(min=0), default=0, show_default=True, help="Length of an epoch.")
@click.option("--at", type=click.IntRange(min=0), help="Seconds since 1970; default: now.")
@output_options
@client_options
def derive(
    output: Output,
    session: Session,
    stream: str,
    hub_id: bytes | None,
    routing_key: bytes | None,
    epoch: int | None,
    epoch_sec: int,
    at: int | None,
) -> None:
    """The label of STREAM at a hub: all that the hub ever sees of its name (spec §2).

    Nothing is asked of the hub. Without --hub-id and --routing-key the key pinned in the context must be the hub's
    first key, as hub_id derives from that one.

    \b
    veen label derive record/app/http
    veen label derive record/app/http --hub-id 4f1c… --epoch-sec 3600
    """
    from veen.client.keyring import StreamRef
    from veen.core.labels import epoch_at, hub_id_of, label_of, routing_key_of

    if hub_id is not None and routing_key is not None:
        raise click.UsageError("give one of --hub-id and --routing-key")
    if routing_key is None:
        hub_id = hub_id_of(session.hub_pk) if hub_id is None else hub_id
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
    output.result(data, lambda: output.fields(data.items()))


@click.command("id")
@click.argument("name")
@output_options
def id_(output: Output, name: str) -> None:
    """The id under which payload headers name the schema NAME: its hash (spec §4.5, §4.7)."""
    from veen.core.schemaid import schema_id

    data = {"schema": name, "schema_id": schema_id(name).hex()}
    output.result(data, lambda: output.fields(data.items()))
