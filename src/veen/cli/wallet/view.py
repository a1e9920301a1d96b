"""`veen wallet balance`, `history`, `statement` and `verify`: queries of owners and auditors (WAL §12)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.overlay_commands import absent, show_folded, state_of
from veen.cli.shared.people import KnownKeys, cells, show_table
from veen.cli.shared.values import MOMENT
from veen.cli.wallet.args import Ledgers, ledger_options, wallet_of
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.core.objects.checkpoint import Checkpoint
    from veen.overlays.wallet.rules import Wallet
    from veen.overlays.wallet.statements import Line, Statement


def _about(wallet_id: bytes, wallet: "Wallet", as_of: int) -> dict[str, Any]:
    state = "closed" if wallet.closed else "frozen" if wallet.frozen else "open" if wallet.exists else "unopened"
    return {"wallet_id": wallet_id.hex(), "state": state, "spendable": wallet.spendable(as_of), **plain(wallet)}


@click.command()
@click.argument("name", metavar="[WALLET]", required=False)
@view_options
@ledger_options
@client_options
def balance(output: Output, session: CliSession, name: str | None, view: View, ledgers: Ledgers) -> None:
    """Print the balance of WALLET, or of every wallet whose stream can be read, now or as of a moment."""
    folded = state_of(session, ledgers.fold(session), ledgers.streams(session), view)
    if name is None:
        wallets = [_about(key, entry, folded.as_of) for key, entry in folded.state.wallets.items()]
        columns = ("wallet_id", "balance", "currency", "state")
        data = {"wallets": wallets, "supply": plain(folded.state.supply())}

        def human() -> None:
            cell = _cells(session, ledgers, folded.state.wallets.values())
            output.table(columns, [[cell(entry[column]) for column in columns] for entry in wallets])

        show_folded(session, folded, data, human)
        return
    wallet_id = wallet_of(session, ledgers, name)
    wallet = folded.state.wallets.get(wallet_id)
    if wallet is None:
        raise absent(f"wallet {wallet_id.hex()}", "veen wallet balance")
    about = _about(wallet_id, wallet, folded.as_of)
    show_folded(session, folded, about, lambda: output.line(f"{wallet.balance} {wallet.currency or ''}".strip()))


def _statement(
    session: CliSession, ledgers: Ledgers, wallet_id: bytes, since: int | None, until: int | None
) -> "Statement":
    from veen.cli.shared.folding import events_of
    from veen.overlays.wallet.statements import statement as make

    with session.output.progress("folding"):
        account = make(
            ledgers.fold(session),
            events_of(session, ledgers.streams(session)),
            wallet_id,
            since=since or 0,
            until=until,
        )
    account.check()
    return account


_COLUMNS = ("hub_ts", "operation", "delta", "balance", "other", "ref", "stream_seq")


def _row(line: "Line") -> list[Any]:
    return [line.hub_ts, line.operation, line.delta, line.balance, line.other, line.ref, line.stream_seq]


def _cells(session: CliSession, ledgers: Ledgers, wallets: "Iterable[Wallet]") -> Callable[[Any], Any]:
    """Return a function that formats values. Wallets of known people appear as commands take them: bob:EUR."""
    from veen.overlays.id.ids import ctx_id_of
    from veen.overlays.wallet.bodies import wallet_id_of

    currencies = {wallet.currency for wallet in wallets if wallet.currency is not None}
    names = {
        wallet_id_of(ledgers.realm_id, ctx_id_of(principal, ledgers.realm_id), currency): f"{name}:{currency}"
        for name, principal in KnownKeys(session).principals()
        for currency in currencies
    }
    return cells(session, names)


@click.command()
@click.argument("name", metavar="WALLET")
@click.option("--refused", is_flag=True, help="List events without effect and the reasons, too.")
@ledger_options
@client_options
def history(output: Output, session: CliSession, name: str, refused: bool, ledgers: Ledgers) -> None:
    """Print every event of WALLET, the oldest first."""
    account = _statement(session, ledgers, wallet_of(session, ledgers, name), None, None)
    with output.records("lines", _COLUMNS, widths=(10, 9, 8, 8, 9, 9)) as records:
        cell = cells(session)
        for line in account.lines:
            records.add(plain(line), [cell(value) for value in _row(line)])
        if refused:
            records.summary({"wallet_id": account.wallet_id.hex(), "refused": plain(account.refused)})
    if refused:
        for issue in account.refused:
            output.note(f"{issue.code} at {issue.stream_seq}: {issue.what}")


@click.command()
@click.argument("name", metavar="WALLET")
@click.option("--since", type=MOMENT, help="Start of the period, by the hub's time.")
@click.option("--until", type=MOMENT, help="End of the period, by the hub's time.")
@click.option(
    "--with-proofs", "proofs", is_flag=True, help="Add an inclusion proof of each line under a checkpoint of the hub."
)
@ledger_options
@client_options
def statement(
    output: Output,
    session: CliSession,
    name: str,
    since: int | None,
    until: int | None,
    proofs: bool,
    ledgers: Ledgers,
) -> None:
    """Print the events of WALLET in a period: opening balance, lines that add up, closing balance.

    \b
    veen wallet statement me:EUR --since 2026-11-01 --until 2026-11-30T23:59:59Z --with-proofs
    """
    account = _statement(session, ledgers, wallet_of(session, ledgers, name), since, until)
    data: dict[str, Any] = plain(account)
    if proofs:
        data["proofs"] = _proofs(session, account)

    def human() -> None:
        output.fields([("wallet_id", account.wallet_id), ("currency", account.currency), ("opening", account.opening)])
        show_table(session, _COLUMNS, [_row(line) for line in account.lines])
        output.fields([("closing", account.closing), ("had no effect", len(account.refused))])
        if proofs:
            output.line(f"{len(account.lines)} lines proven", "good")

    output.result(data, human)


def _proofs(session: CliSession, account: "Statement") -> list[dict[str, Any]]:
    """Return a proof of each line, under the root of the latest checkpoint, or of its own receipt if that is later."""
    checkpoints: dict[bytes, Checkpoint] = {}
    return [_prove(session, line, checkpoints) for line in account.lines]


def _prove(session: CliSession, line: "Line", checkpoints: "dict[bytes, Checkpoint]") -> dict[str, Any]:
    from veen.cli.shared.wire_tree import to_named

    client = session.client()
    stream = f"label:{line.label.hex()}"
    checkpoint = checkpoints.get(line.label)
    if checkpoint is None:
        checkpoint = checkpoints[line.label] = client.checkpoint(stream)
    if line.stream_seq <= checkpoint.upto_seq:
        proven = client.proof(stream, line.stream_seq, tree_size=checkpoint.upto_seq)
        line.verify(proven.proof, checkpoint)
        return {"proof": proven.proof.to_json(), "checkpoint": to_named(checkpoint)}
    proven = client.proof(stream, line.stream_seq)
    proven.proof.verify(leaf_hash=line.leaf_hash, stream_seq=line.stream_seq, expected_root=proven.root)
    return {"proof": proven.proof.to_json(), "receipt": to_named(proven.receipt)}


@click.command()
@click.argument("name", metavar="[WALLET]", required=False)
@ledger_options
@client_options
def verify(output: Output, session: CliSession, name: str | None, ledgers: Ledgers) -> None:
    """Fold all wallets again from the log alone, and check that no money appeared or disappeared.

    With WALLET its statement is checked too, and every line of it is proven against a checkpoint. Exit code 1 if
    anything does not hold.
    """
    folded = state_of(session, ledgers.fold(session), ledgers.streams(session), View(None, keep=False))
    supply = folded.state.supply()
    for currency, sums in supply.items():
        if sums.balance != sums.deposited - sums.withdrawn + sums.adjusted:
            raise Fail(
                "E.VERIFY",
                f"the sum of {currency} in all wallets differs from deposits, withdrawals and adjustments",
                ", ".join(f"{name} {amount}" for name, amount in plain(sums).items()),
                "this is a defect of the fold: keep the log and report it",
            )
    data: dict[str, Any] = {"good": True, "wallets": len(folded.state.wallets), "supply": plain(supply)}
    if name is not None:
        account = _statement(session, ledgers, wallet_of(session, ledgers, name), None, None)
        data |= {
            "wallet_id": account.wallet_id.hex(),
            "closing": account.closing,
            "lines_proven": len(_proofs(session, account)),
        }
    rows = [
        (currency, amounts.balance, amounts.deposited, amounts.withdrawn, amounts.adjusted)
        for currency, amounts in supply.items()
    ]
    columns = ("currency", "balance", "deposited", "withdrawn", "adjusted")

    def human() -> None:
        output.table(columns, rows)
        output.line(f"{data['wallets']} wallets, nothing appeared or disappeared", "good")
        if name is not None:
            output.line(f"{data['lines_proven']} lines of {data['wallet_id']} proven", "good")

    show_folded(session, folded, data, human)
