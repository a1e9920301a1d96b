"""`veen wallet bridge`: carry wallet events from the hub in use to another one, each once (WALBR0, WAL §11)."""

from dataclasses import replace
from typing import Any

import click

from veen.cli.clictx import Session, client_options
from veen.cli.names import CONTEXT, IDENTITY, STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import send_draft
from veen.cli.walletargs import Ledgers, ledger_options

__all__ = ["bridge"]


@click.command()
@click.option("--to-context", type=CONTEXT, required=True, help="The context of the hub to copy to.")
@click.option("--to-identity", type=IDENTITY, help="Whose keys send the copies: the bridge's; default: the context's.")
@click.option("--onto", type=STREAM, help="One stream for all copies: keeps the order of all wallets.")
@click.option("--dry-run", is_flag=True, help="Tell what is missing over there, and send nothing.")
@ledger_options
@output_options
@client_options
def bridge(
    output: Output,
    session: Session,
    to_context: str,
    to_identity: str | None,
    onto: str | None,
    dry_run: bool,
    ledgers: Ledgers,
) -> None:
    """Copy to another hub what it lacks of the wallets here: same schema, same bytes, the original as parent.

    Both logs are read and verified. What counts for nothing under the policy here stays here. Readers over there name
    the key of the bridge by --bridge. Running it again sends only what is new.

    \b
    veen wallet bridge --to-context replica --to-identity bridge --onto replica/wallets
    """
    from veen.cli.folding import events_of
    from veen.overlays.wallet.bridge import Seen

    with output.progress("reading this hub"):
        here = list(events_of(session, ledgers.streams(session)))
    there = Session(output, {"context": to_context, "identity": to_identity})
    try:
        known = [onto] if onto is not None else sorted({f"hex:{event.stream_id.hex()}" for event in here})
        ours = (*ledgers.bridges, there.client().client_id)  # by it copies are known as such
        seen = Seen(replace(ledgers, bridges=ours).fold())
        with output.progress("reading the other hub"):
            seen.note(events_of(there, known))
        sent = []
        with output.records("copies", ("original", "stream", "seq")) as records:
            for event, draft in seen.missing(here):
                stream = onto or f"hex:{event.stream_id.hex()}"
                seq = None if dry_run else send_draft(there, stream, draft).seq
                sent.append(seq)
                told: dict[str, Any] = {"original": event.msg_id.hex(), "stream": stream, "seq": seq}
                records.add(told, list(told.values()))
            records.summary({"copied": 0 if dry_run else len(sent), "missing": len(sent), "read": len(here)})
    finally:
        there.close()
