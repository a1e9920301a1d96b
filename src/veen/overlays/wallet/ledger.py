"""The ledger: all wallets, folded from all their streams in logical order (WAL §6, D-27, D-100).

A transfer touches two wallets on two streams, so no wallet can be folded alone: a destination could not tell a transfer
that its source refused. The ledger therefore folds all streams together and applies debit and credit at the event of
the source. `step` is `rules.apply` behind the policy: pure, and it reads and writes the records of the wallets that the
event names and no others, so wallets that never trade with each other can be folded apart
(`veen.overlays.wallet.flows`). Whose a wallet is, is part of its record: so the owner is checked at the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Typed
from veen.overlays.framework.speaking import STATEMENT_TYPES, Speaking, SpeakingKey, SpeakingRecord, Voice
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.wallet.bodies import SCHEMAS, Open, WalletBody
from veen.overlays.wallet.policy import STREAM_POLICY, WalletMirrors, WalletPolicy
from veen.overlays.wallet.rules import UNOPENED, LedgerState, Record, Wallet, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """All money of one currency. `balance = deposited - withdrawn + adjusted` unless money appeared or disappeared."""

    deposited: int = 0
    withdrawn: int = 0
    adjusted: int = 0
    balance: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every wallet that an event has changed, by wallet_id."""

    wallets: Mapping[bytes, Wallet]

    def wallet(self, wallet_id: bytes) -> Wallet:
        """Return the wallet; an unopened one if it is unknown."""
        return self.wallets.get(wallet_id, UNOPENED)

    def balance(self, wallet_id: bytes) -> int:
        return self.wallet(wallet_id).balance

    def get(self, key: bytes) -> Wallet | None:
        """Return a wallet, as `LedgerState` requires. A ledger does not contain the used transfer_ids and refs."""
        return self.wallets.get(key)

    def supply(self) -> dict[str, Supply]:
        """Return the control sums of each currency."""
        sums: dict[str, Supply] = {}
        for wallet in self.wallets.values():
            if wallet.currency is not None:
                total = sums.get(wallet.currency, Supply())
                sums[wallet.currency] = Supply(
                    deposited=total.deposited + wallet.deposited,
                    withdrawn=total.withdrawn + wallet.withdrawn,
                    adjusted=total.adjusted + wallet.adjusted,
                    balance=total.balance + wallet.balance,
                )
        return dict(sorted(sums.items()))


class LedgerFold(Speaking[bytes, Record, Ledger]):
    """Fold of all wallets. `mirrors` names the bridges; their copies were checked on their own hub."""

    name = "wallet.ledger"
    version = 2  # skew, owners of shared streams, copies from bridges only (D-175, D-176)
    schemas = SCHEMAS
    TABLE = dict[bytes | SpeakingKey, Record | SpeakingRecord]

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS, policy: WalletPolicy = STREAM_POLICY) -> None:
        self.policy = policy
        self.copies = WalletMirrors.under(policy, mirrors)
        # Bindings are read where the policy asks who acts for whom.
        # `settings` need not repeat the policy: it is part of the mirrors.
        super().__init__(speaks=policy.reads_bindings, mirrors=self.copies)

    def screen(self, event: Typed[WalletBody], voice: Voice | None = None) -> bool:
        """Return True if the event may be valid in some state. Raise Violation if the policy forbids it."""
        e, body = event
        if not self._is_trusted_copy(event):
            if self.copies.is_echo(e, body):
                return False
            self.policy.check(e, body, voice)
        if type(body) is Open:
            self.policy.check_currency(body.currency)
        return True

    def sender_to_check(self, event: Typed[WalletBody], voice: Voice | None = None) -> bytes | None:
        """Return the key that must act for the owner of the wallet; None if any key may send the event."""
        e, body = event
        if self._is_trusted_copy(event) or not self.policy.needs_owner(body, e.client_id, e.auth_ref, voice):
            return None
        return e.client_id

    def _is_trusted_copy(self, event: Typed[WalletBody]) -> bool:
        return self.copies.original_of(event.event) is not None

    def admit(self, state: Table[Any, Any], event: Typed[WalletBody], owners: LedgerState | None = None) -> bool:
        """Return True if the event is valid from this sender now. Raise Violation if the sender may not send it.

        `state` says who speaks for whom, and whose the wallets are unless `owners` does.
        """
        voice = self.voice(state, event.event) if self.speaks else None
        if not self.screen(event, voice):
            return False
        sender = self.sender_to_check(event, voice)
        if sender is not None:
            self.policy.check_owner(state if owners is None else owners, event.body, sender, voice)
        return True

    def step(self, state: Table[bytes, Record], event: Typed[Any]) -> None:
        if self.speaks and type(event.body) in STATEMENT_TYPES:
            self.take_statement(state, event)
        elif self.admit(state, event):
            for key, record in apply(state, event.body).items():
                state[key] = record

    def show(self, state: Table[bytes, Record], as_of: int) -> Ledger:
        """Return the ledger. No balance depends on the time of the query."""
        wallets = {key: record for key, record in state.items() if type(record) is Wallet}
        return Ledger(dict(sorted(wallets.items())))


STATES: Final = (
    StateTable.of(
        LedgerFold.name,
        Wallet,
        {"wallet_id": "hex"},
        lambda view: view.wallets,
        about="every wallet that an event has changed",
    ),
    StateTable.of(
        LedgerFold.name,
        Supply,
        {"currency": "text"},
        lambda view: view.supply(),
        part="supply",
        about="the control sums of each currency",
    ),
)
