"""Wallets with streams of their own, as `veen wallet` has them: balances of all, and the steps of one (WAL)."""

from typing import Any

from veen.overlays.framework.plain import plain
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.statements import Statement, statement
from veen.products.console.charts import steps
from veen.products.console.errors import BadAddress
from veen.products.console.events import FoldedStreams
from veen.products.console.pages.common import digest, entry_link, fold_page, now
from veen.products.console.report import LinkCell, MarkCell, MomentCell, Section
from veen.products.console.views import Console, PageView, Query


async def wallet(console: Console, query: Query) -> PageView:
    fold = LedgerFold()
    folded = await console.events.fold(fold, now=now(), only=lambda keys: keys.name is None)
    wallets = folded.state.wallets
    wallet_id = _select_wallet(wallets, query)
    account = None if wallet_id is None else statement(fold, folded.events(), wallet_id)
    if account is not None:
        account.check()
    supply = folded.state.supply()
    sections = [
        Section(
            title="Wallets",
            columns=("Wallet", "Currency", "Balance", "State", "Daily limit"),
            rows=tuple(
                (
                    LinkCell(f"{key.hex()[:8]}…{key.hex()[-4:]}", f"/wallet?wallet={key.hex()}"),
                    record.currency,
                    record.balance,
                    MarkCell("frozen", "partly")
                    if record.frozen
                    else MarkCell("closed", "muted")
                    if record.closed
                    else MarkCell("open", "good"),
                    record.daily_limit,
                )
                for key, record in wallets.items()
            ),
        ),
        Section(
            title="All money",
            note="The balance of all wallets is what came in less what went out, or money appeared or disappeared.",
            columns=("Currency", "Balance", "Deposited", "Withdrawn", "Adjusted", ""),
            rows=tuple(
                (
                    currency,
                    sums.balance,
                    sums.deposited,
                    sums.withdrawn,
                    sums.adjusted,
                    MarkCell("adds up", "good")
                    if sums.balance == sums.deposited - sums.withdrawn + sums.adjusted
                    else MarkCell("DOES NOT ADD UP", "bad"),
                )
                for currency, sums in supply.items()
            ),
        ),
    ]
    if account is not None:
        sections.insert(0, _steps(account, folded, wallets[account.wallet_id].daily_limit))
    return fold_page(
        folded,
        title="Wallets",
        command="veen wallet balance"
        if account is None
        else f"veen wallet statement {account.wallet_id.hex()} --with-proofs",
        data={
            "wallets": plain(wallets),
            "supply": plain(supply),
            "statement": None if account is None else plain(account),
        },
        sections=sections,
        nothing="no stream of your keyring has events of wallets.",
    )


def _select_wallet(wallets: Any, query: Query) -> bytes | None:
    text = query.get("wallet", "").strip()
    if not text:
        return max(wallets, key=lambda key: (wallets[key].deposited, key), default=None)
    try:
        wallet_id = bytes.fromhex(text[:128])
    except ValueError:
        wallet_id = b""
    if wallet_id not in wallets:
        raise BadAddress("no stream of the keyring has a wallet of this id")
    return wallet_id


def _steps(account: Statement, folded: FoldedStreams, limit: int | None) -> Section:
    """Draw the balance as a step chart, with bands while the wallet was frozen."""
    bands, since = [], None
    for number, line in enumerate(account.lines):
        if line.operation == "freeze":
            since = number
        elif line.operation == "unfreeze" and since is not None:
            bands.append((since, number))
            since = None
    if since is not None:
        bands.append((since, len(account.lines)))
    return Section(
        title=f"Balance of {account.wallet_id.hex()[:8]}…, in the smallest unit of {account.currency}",
        note="One step for each event that counted. Bands: while it was frozen. Dashed line: the daily limit.",
        picture=steps(
            "Balance in steps", [(line.hub_ts, line.balance) for line in account.lines], bands=bands, limit=limit
        ),
        columns=("Time", "Event", "Change", "Balance", "Other wallet", "Where"),
        rows=tuple(
            (
                MomentCell(line.hub_ts),
                line.operation,
                line.delta,
                line.balance,
                digest(line.other),
                entry_link(folded, line.label, line.stream_seq),
            )
            for line in account.lines
        ),
    )
