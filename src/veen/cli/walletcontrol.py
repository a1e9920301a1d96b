"""`veen wallet adjust`, `limit`, `freeze`, `unfreeze` and `close`: what whoever keeps the books does."""

from pathlib import Path

import click

from veen.cli.clictx import Session
from veen.cli.output import Output
from veen.cli.overlaycmd import drafted
from veen.cli.walletargs import Ledgers, wallet_of
from veen.cli.walletwrite import AMOUNT, REF, U64, now, ref_of, send_event, wallet_write

__all__ = ["adjust", "close", "freeze", "limit", "unfreeze"]


@click.command()
@click.argument("name", metavar="WALLET")
@click.argument("delta", type=click.IntRange(-U64 - 1, U64))
@click.option("--reason", required=True, help="Why: it stands in the log.")
@REF
@wallet_write
def adjust(
    output: Output,
    session: Session,
    name: str,
    delta: int,
    reason: str,
    ref: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Correct the balance of WALLET by DELTA; put -- before a negative one.

    \b
    veen wallet adjust me:EUR --reason "wrong booking" -- -50
    """
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.adjust(wallet_id, delta, ts=now(ts), reason=reason, ref=ref_of(ref)))
    send_event(
        output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"delta": delta, "reason": reason}
    )


@click.command()
@click.argument("name", metavar="WALLET")
@click.argument("amount", type=AMOUNT, required=False)
@click.option("--clear", is_flag=True, help="No limit any more.")
@wallet_write
def limit(
    output: Output,
    session: Session,
    name: str,
    amount: int | None,
    clear: bool,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Let at most AMOUNT leave WALLET in a day, counted in UTC."""
    from veen.overlays.wallet import drafts

    if (amount is None) != clear:
        raise click.UsageError("give AMOUNT, or --clear")
    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.limit(wallet_id, amount, ts=now(ts)))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"daily_limit": amount})


_REASON = click.option("--reason", help="Why: it stands in the log.")


@click.command()
@click.argument("name", metavar="WALLET")
@_REASON
@wallet_write
def freeze(
    output: Output,
    session: Session,
    name: str,
    reason: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Let nothing leave WALLET; it still receives."""
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.freeze(wallet_id, ts=now(ts), reason=reason))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"reason": reason})


@click.command()
@click.argument("name", metavar="WALLET")
@_REASON
@wallet_write
def unfreeze(
    output: Output,
    session: Session,
    name: str,
    reason: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """End the freeze of WALLET."""
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.unfreeze(wallet_id, ts=now(ts), reason=reason))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"reason": reason})


@click.command()
@click.argument("name", metavar="WALLET")
@wallet_write
def close(
    output: Output, session: Session, name: str, ts: int | None, force: bool, ledgers: Ledgers, cap: Path | None
) -> None:
    """Close WALLET for good: nothing enters or leaves it any more. It must be empty."""
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.close(wallet_id, ts=now(ts)))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={})
