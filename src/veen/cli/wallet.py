"""`veen wallet`: accounts on a log (WAL). Here payments; `walletcontrol` has the rest that writes."""

import os
from pathlib import Path
from typing import ClassVar

import click

from veen.cli.clictx import Session
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Output
from veen.cli.overlaycmd import drafted, make_keys
from veen.cli.overlayvalues import HEX32, json_value
from veen.cli.walletargs import Ledgers, owner_of, wallet_of
from veen.cli.walletwrite import AMOUNT, REF, now, ref_of, send_event, wallet_write

__all__ = ["deposit", "open_", "transfer", "wallet", "withdraw"]


class _WalletGroup(LazyGroup):
    table: ClassVar[Table] = {
        "adjust": ("veen.cli.walletcontrol:adjust", "Correct a balance, up or down."),
        "balance": ("veen.cli.walletview:balance", "What a wallet holds, or all wallets."),
        "bridge": ("veen.cli.walletbridge:bridge", "Copy wallet events to another hub, each once."),
        "close": ("veen.cli.walletcontrol:close", "Close an empty wallet for good."),
        "deposit": ("veen.cli.wallet:deposit", "Money comes in from outside."),
        "freeze": ("veen.cli.walletcontrol:freeze", "Let nothing leave a wallet."),
        "history": ("veen.cli.walletview:history", "Everything that happened to a wallet."),
        "limit": ("veen.cli.walletcontrol:limit", "How much may leave a wallet in a day."),
        "open": ("veen.cli.wallet:open_", "Open a wallet in one currency."),
        "statement": ("veen.cli.walletview:statement", "What happened to a wallet in a period, with proofs if wanted."),
        "transfer": ("veen.cli.wallet:transfer", "Money goes from one wallet to another."),
        "unfreeze": ("veen.cli.walletcontrol:unfreeze", "End a freeze."),
        "verify": ("veen.cli.walletview:verify", "Fold all wallets again and prove every line of one."),
        "withdraw": ("veen.cli.wallet:withdraw", "Money goes out."),
    }


@click.group(cls=_WalletGroup)
def wallet() -> None:
    """Accounts on a log: every balance can be recomputed by anyone who can read it.

    A WALLET is its id, 64 hex digits, or OWNER:CURRENCY, where OWNER is `me`, a card (veen1…) or a ctx_id. Amounts are
    integers in the smallest unit of the currency.
    """


@click.command("open")
@click.argument("currency")
@click.option("--owner", help="Whose: a card (veen1…) or a ctx_id; default: yours.")
@click.option("--make-keys", "keys", is_flag=True, help="Make the keys of the wallet's stream, if there are none.")
@wallet_write
def open_(
    output: Output,
    session: Session,
    currency: str,
    owner: str | None,
    keys: bool,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Open a wallet in CURRENCY, such as EUR, for an owner in a realm.

    \b
    veen wallet open EUR --make-keys
    veen wallet open EUR --stream bank/ledger --owner veen1xyz
    """
    from veen.overlays.wallet import drafts
    from veen.overlays.wallet.ids import wallet_id_of

    ctx_id = owner_of(session, ledgers, owner)
    realm_id = ledgers.realm_id
    draft = drafted(lambda: drafts.open_wallet(realm_id=realm_id, ctx_id=ctx_id, currency=currency, created_at=now(ts)))
    wallet_id = wallet_id_of(realm_id, ctx_id, currency)
    if keys:
        make_keys(session, ledgers.stream_of(wallet_id))
    facts = {"currency": currency, "ctx_id": ctx_id, "realm_id": realm_id}
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts=facts)
    output.next(f"veen wallet deposit {wallet_id.hex()} AMOUNT")


@click.command()
@click.argument("name", metavar="WALLET")
@click.argument("amount", type=AMOUNT)
@REF
@wallet_write
def deposit(
    output: Output,
    session: Session,
    name: str,
    amount: int,
    ref: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Money comes into WALLET from outside.

    \b
    veen wallet deposit me:EUR 10000 --ref "bank transfer 4711"
    """
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.deposit(wallet_id, amount, ts=now(ts), ref=ref_of(ref)))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"amount": amount})


@click.command()
@click.argument("name", metavar="WALLET")
@click.argument("amount", type=AMOUNT)
@REF
@wallet_write
def withdraw(
    output: Output,
    session: Session,
    name: str,
    amount: int,
    ref: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Money goes out of WALLET. Exit code 6 and nothing is sent if it may not: see `veen explain WAL.FROZEN`."""
    from veen.overlays.wallet import drafts

    wallet_id = wallet_of(session, ledgers, name)
    draft = drafted(lambda: drafts.withdraw(wallet_id, amount, ts=now(ts), ref=ref_of(ref)))
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts={"amount": amount})


@click.command()
@click.argument("name", metavar="WALLET")
@click.argument("to", metavar="TO_WALLET")
@click.argument("amount", type=AMOUNT)
@click.option("--transfer-id", type=HEX32, help="The same one counts once; default: a new one.")
@click.option("--metadata", help="A JSON object that travels along; no balance depends on it.")
@wallet_write
def transfer(
    output: Output,
    session: Session,
    name: str,
    to: str,
    amount: int,
    transfer_id: bytes | None,
    metadata: str | None,
    ts: int | None,
    force: bool,
    ledgers: Ledgers,
    cap: Path | None,
) -> None:
    """Money goes from WALLET to TO_WALLET, debit and credit at once.

    \b
    veen wallet transfer me:EUR veen1xyz:EUR 3000
    """
    from veen.overlays.wallet import drafts

    wallet_id, to_wallet_id = wallet_of(session, ledgers, name), wallet_of(session, ledgers, to)
    more = None if metadata is None else json_value(metadata)
    if more is not None and type(more) is not dict:
        raise click.UsageError("--metadata is a JSON object")
    nonce = os.urandom(16) if transfer_id is None else None
    draft = drafted(
        lambda: drafts.transfer(
            wallet_id, to_wallet_id, amount, ts=now(ts), nonce=nonce, transfer_id=transfer_id, metadata=more
        )
    )
    body = drafts.body_of(draft)
    facts = {"to_wallet_id": to_wallet_id, "amount": amount, "transfer_id": getattr(body, "transfer_id", None)}
    send_event(output, session, ledgers, wallet_id, draft, force=force, cap=cap, facts=facts)
