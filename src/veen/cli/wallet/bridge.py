"""`veen wallet bridge`: carry wallet events from the hub in use to another one, each once (WALBR0, WAL §11)."""

from dataclasses import replace
from typing import Any

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import CONTEXT, IDENTITY, STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import send_draft
from veen.cli.wallet.args import Ledgers, ledger_options


@click.command()
@click.option("--to-context", type=CONTEXT, required=True, help="Context of the hub to copy to.")
@click.option("--to-identity", type=IDENTITY, help="Identity that sends the copies. Default: that of the context.")
@click.option(
    "--onto",
    type=STREAM,
    help="Stream for all copies, which keeps the order across wallets. Default: each wallet's stream.",
)
@click.option("--dry-run", is_flag=True, help="List the missing events and send nothing.")
@ledger_options
@client_options
def bridge(
    output: Output,
    session: CliSession,
    to_context: str,
    to_identity: str | None,
    onto: str | None,
    dry_run: bool,
    ledgers: Ledgers,
) -> None:
    """Copy the wallet events that another hub lacks: same schema, same bytes, the original as parent.

    Both logs are read and verified. What has no effect under the policy here stays here. Readers over there name
    the key of the bridge by --bridge. Running it again sends only what is new.

    \b
    veen wallet bridge --to-context replica --to-identity bridge --onto replica/wallets
    """
    from veen.cli.shared.folding import events_of
    from veen.overlays.wallet.bridge import BridgedReferences

    with output.progress("reading this hub"):
        here = list(events_of(session, ledgers.streams(session)))
    there = CliSession(output, {"context": to_context, "identity": to_identity})
    try:
        targets = [onto] if onto is not None else sorted({f"hex:{event.stream_id.hex()}" for event in here})
        ours = (*ledgers.bridges, there.client().client_id)  # by it copies are known as such
        events = BridgedReferences(replace(ledgers, bridges=ours).fold(session))
        with output.progress("reading the other hub"):
            events.note(events_of(there, targets))
        sent = []
        with output.records("copies", ("original", "stream", "seq")) as records:
            for event, draft in events.find_missing(here):
                stream = onto or f"hex:{event.stream_id.hex()}"
                seq = None if dry_run else send_draft(there, stream, draft).seq
                sent.append(seq)
                row: dict[str, Any] = {"original": event.msg_id.hex(), "stream": stream, "seq": seq}
                records.add(row, list(row.values()))
            records.summary({"copied": 0 if dry_run else len(sent), "missing": len(sent), "read": len(here)})
    finally:
        there.close()
