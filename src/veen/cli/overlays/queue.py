"""`veen queue`: items in stream order, delivered at least once to every group (spec §11.4, D-84)."""

from typing import Any, Final

import click
from click import argument, option

from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, OneStream, index
from veen.cli.shared.overlay_commands import show_folded, state_of
from veen.overlays.framework.plain import plain

_NOUN: Final = "veen.overlays.queue:queue"

queue: Final = NounGroup("queue", index()[_NOUN]["about"], takes=[argument("stream", type=STREAM)])
queue.declare(_NOUN, OneStream)
_GROUP: Final = option("--group", default="", help="Group of consumers. Default: the group without a name.")


@queue.read(
    "pull",
    "Print the pending items of a group.",
    _GROUP,
    option("--max", "-n", "count", type=click.IntRange(min=1), default=1, show_default=True, help="Number of items."),
    option("--max-attempts", type=click.IntRange(min=1), help="Skip items that failed N times."),
    option("--consumer", help="Name of this consumer. Requires --consumers."),
    option("--consumers", help="All consumers of the group, separated by commas. Each gets a share of the items."),
)
def _pull(
    session: CliSession,
    stream: str,
    group: str,
    count: int,
    max_attempts: int | None,
    consumer: str | None,
    consumers: str | None,
    view: View,
) -> None:
    """Print the pending items of a group, in stream order. An item stays until it is acknowledged.

    \b
    veen queue pull app/mail --group mailers
    veen queue ack app/mail MSG_ID --group mailers
    """
    from veen.overlays.queue import QueueFold

    if (consumer is None) != (consumers is None):
        raise click.UsageError("give --consumer and --consumers together")
    folded = state_of(session, QueueFold(), [stream], view)
    if consumer is not None and consumers is not None:
        pending = folded.state.share(group, consumer, consumers.split(","), max_attempts=max_attempts)
    else:
        pending = folded.state.pending(group, max_attempts=max_attempts)
    items = plain(pending[:count])
    data = {"stream": stream, "group": group, "pending": len(pending), "items": items}
    rows = [(item["msg_id"], item["attempt"], item["value"]) for item in items]
    show_folded(session, folded, data, lambda: session.output.table(("msg_id", "attempt", "item"), rows))


@queue.read("show", "List all items, with the answers of groups.")
def _show(session: CliSession, stream: str, view: View) -> None:
    """List all items of the queue in STREAM, with the answers of groups."""
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
                {"group": group, **plain(delivery)}
                for group in groups
                if (delivery := state.deliveries.get((group, msg_id)))
            ],
        }
        for msg_id, item in state.items.items()
    ]
    pending = {group: len(state.pending(group)) for group in (groups or [""])}
    rows = [(item["msg_id"], item["item"], ", ".join(map(_delivery, item["deliveries"]))) for item in items]
    data = {"stream": stream, "groups": groups, "pending": pending, "items": items}
    show_folded(session, folded, data, lambda: session.output.table(("msg_id", "item", "deliveries"), rows))


def _delivery(delivery: dict[str, Any]) -> str:
    result = "acked" if delivery["acked"] else f"{delivery['nacks']} nacks"
    return f"{delivery['group'] or '(no name)'}: {result}"
