"""`veen recorder map`: assigns event types to streams; renames and splits streams by records (SDR-02, SDR-04)."""

import time
from typing import TYPE_CHECKING

import click

from veen.cli.shared.authority import token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.overlays.recorder.config import Configuration


@click.command("map")
@click.argument("event_type", required=False)
@click.argument("stream", type=STREAM, required=False)
@click.option("--rename", "renamed", type=STREAM, metavar="OLD", help="STREAM replaces OLD for all its event types.")
@click.option("--split", "split", type=STREAM, metavar="OLD", help="Split OLD: STREAM takes over EVENT_TYPE.")
@click.option("--reason", help="Reason, stored in the log.")
@client_options
def map_(
    output: Output,
    session: CliSession,
    event_type: str | None,
    stream: str | None,
    renamed: str | None,
    split: str | None,
    reason: str | None,
) -> None:
    """Record that EVENT_TYPE belongs to STREAM; without arguments, show the mapping.

    From the first mapping on every event type must be mapped; `veen recorder verify` reports the others.

    \b
    veen recorder map --identity recorder-admin
    veen recorder map login record/security/gate --identity recorder-admin
    """
    from veen.core.labels import stream_id_of
    from veen.overlays.recorder.config import change
    from veen.products.recorder.events import CHANGES_STREAM

    if (event_type is None) != (stream is None) or (renamed and split):
        raise click.UsageError("give EVENT_TYPE and STREAM, and at most one of --rename and --split")
    drafts = []
    now = int(time.time())
    if event_type is not None and stream is not None:
        old = renamed or split
        if old is not None:
            kind = "rename" if renamed else "split"
            drafts.append(
                change(
                    kind, ts=now, stream_id=stream_id_of(old), stream=old, to=(stream_id_of(stream),),
                    to_names=(stream,), reason=reason,
                )
            )  # fmt: skip
        drafts.append(
            change("map", ts=now, event_type=event_type, stream_id=stream_id_of(stream), stream=stream, reason=reason)
        )
    tokens = token_store(session)

    async def work(opened: "Client") -> "Configuration":
        from veen.api.token_authority import TokenAuthority
        from veen.products.recorder.setup import read_history

        for draft in drafts:
            await TokenAuthority(opened, tokens).send(stream_id_of(CHANGES_STREAM), draft)
        admins = {key.client_id for key in session.keystore.identity.client_keys}
        return (await read_history(opened, admins)).now

    with output.progress("reading the configuration"):
        current = session.client().run(work)
    rows = [
        {"event_type": kind, "stream": current.streams.get(stream_id, stream_id.hex())}
        for kind, stream_id in sorted(current.mapping.items())
    ]
    data = {"written": len(drafts), "closed": current.is_closed, "mapping": rows}
    output.result(data, lambda: output.table(("event_type", "stream"), [tuple(row.values()) for row in rows]))
