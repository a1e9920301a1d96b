"""`veen queue`: items in stream order, delivered at least once to every group (spec §11.4, D-84)."""

from pathlib import Path
from typing import Any, ClassVar

import click

from veen.cli.asof import View, view_options
from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import drafted, send_draft, show_folded, state_of, tell, tell_counted, write_options
from veen.cli.overlayvalues import HEX32, plain, value_options
from veen.cli.values import MOMENT

__all__ = ["ack", "nack", "pull", "push", "queue", "show"]


class _QueueGroup(LazyGroup):
    table: ClassVar[Table] = {
        "ack": ("veen.cli.queue:ack", "Say that an item is done."),
        "nack": ("veen.cli.queue:nack", "Give an item back."),
        "pull": ("veen.cli.queue:pull", "What a group still has to do, first things first."),
        "push": ("veen.cli.queue:push", "Put an item at the end of the queue."),
        "show": ("veen.cli.queue:show", "All items, and what groups have said of them."),
    }


@click.group(cls=_QueueGroup)
def queue() -> None:
    """Work items over a stream, each delivered at least once to every group of consumers."""


_GROUP = click.option("--group", default="", help="The group of consumers; default: the one without a name.")


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("item")
@value_options("item")
@click.option("--expires", type=MOMENT, help="When the item is no longer delivered: a time, or +10m.")
@write_options
@output_options
@client_options
def push(output: Output, session: Session, stream: str, item: Any, expires: int | None, cap: Path | None) -> None:
    """Put ITEM at the end of the queue in STREAM; "-" reads it from standard input.

    \b
    veen queue push app/mail "write to Ann"
    veen queue push app/mail '{"to": "ann@example.org"}' --format json --expires +2d
    """
    from veen.overlays import queue as overlay

    draft = drafted(lambda: overlay.enqueue(item, expires_at=expires))
    tell(output, send_draft(session, stream, draft, cap), {"stream": stream, "item": item})


@click.command()
@click.argument("stream", type=STREAM)
@_GROUP
@click.option("--max", "-n", "count", type=click.IntRange(min=1), default=1, show_default=True, help="How many items.")
@click.option("--max-attempts", type=click.IntRange(min=1), help="Leave out what was given back so many times.")
@click.option("--consumer", help="Which of several consumers of the group this is; with --consumers.")
@click.option("--consumers", help="All consumers of the group, separated by commas: each gets a part of the items.")
@view_options
@output_options
@client_options
def pull(
    output: Output,
    session: Session,
    stream: str,
    group: str,
    count: int,
    max_attempts: int | None,
    consumer: str | None,
    consumers: str | None,
    view: View,
) -> None:
    """Print what the group still has to do, first things first. An item stays until it is acknowledged.

    \b
    veen queue pull app/mail --group mailers
    veen queue ack app/mail MSG_ID --group mailers
    """
    from veen.overlays.queue import QueueFold

    if (consumer is None) != (consumers is None):
        raise click.UsageError("give --consumer and --consumers together")
    folded = state_of(session, QueueFold(), [stream], view)
    if consumer is not None and consumers is not None:
        found = folded.state.share(group, consumer, consumers.split(","), max_attempts=max_attempts)
    else:
        found = folded.state.pending(group, max_attempts=max_attempts)
    items = plain(found[:count])
    data = {"stream": stream, "group": group, "pending": len(found), "items": items}
    rows = [(one["msg_id"], one["attempt"], one["value"]) for one in items]
    show_folded(output, folded, data, lambda: output.table(("msg_id", "attempt", "item"), rows))


def _said(output: Output, session: Session, op: str, stream: str, msg_id: bytes, group: str, cap: Path | None) -> None:
    from veen.overlays import queue as overlay

    draft = drafted(lambda: {"ack": overlay.ack, "nack": overlay.nack}[op](msg_id, group=group))
    facts = {"stream": stream, "op": op, "ref": msg_id, "group": group}
    tell_counted(output, session, send_draft(session, stream, draft, cap), facts, overlay.QueueFold(), [stream])


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("msg_id", type=HEX32)
@_GROUP
@write_options
@output_options
@client_options
def ack(output: Output, session: Session, stream: str, msg_id: bytes, group: str, cap: Path | None) -> None:
    """Say that the group has done the item MSG_ID: it is not delivered to this group again.

    Exit code 6 if that counts for nothing: there is no such item.
    """
    _said(output, session, "ack", stream, msg_id, group, cap)


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("msg_id", type=HEX32)
@_GROUP
@write_options
@output_options
@client_options
def nack(output: Output, session: Session, stream: str, msg_id: bytes, group: str, cap: Path | None) -> None:
    """Give the item MSG_ID back: it keeps its place, and the next who takes it sees that it was tried.

    Exit code 6 if that counts for nothing: there is no such item, or the group has acknowledged it.
    """
    _said(output, session, "nack", stream, msg_id, group, cap)


@click.command()
@click.argument("stream", type=STREAM)
@view_options
@output_options
@client_options
def show(output: Output, session: Session, stream: str, view: View) -> None:
    """All items of the queue in STREAM, and what groups have said of them."""
    from veen.overlays.queue import QueueFold

    folded = state_of(session, QueueFold(), [stream], view)
    state = folded.state
    groups = sorted({group for group, _ in state.deliveries})
    items = [
        {
            "msg_id": msg_id.hex(),
            "item": plain(item.value),
            "client_id": item.client_id.hex(),
            "expires_at": item.expires_at,
            "deliveries": [
                {"group": group, **plain(said)} for group in groups if (said := state.deliveries.get((group, msg_id)))
            ],
        }
        for msg_id, item in state.items.items()
    ]
    pending = {group: len(state.pending(group)) for group in (groups or [""])}
    rows = [
        (
            one["msg_id"],
            one["item"],
            ", ".join(
                f"{said['group'] or '(no name)'}: {'acked' if said['acked'] else str(said['nacks']) + ' nacks'}"
                for said in one["deliveries"]
            ),
        )
        for one in items
    ]
    data = {"stream": stream, "groups": groups, "pending": pending, "items": items}
    show_folded(output, folded, data, lambda: output.table(("msg_id", "item", "deliveries"), rows))
