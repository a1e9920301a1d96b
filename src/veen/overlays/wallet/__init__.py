"""The wallet layer: accounts, payments and bridges as a pure fold (WAL v0.0.1, WALBR0; docs/overlays-wallet.md).

ids, bodies, codes   names, the nine bodies, why an event has no effect
rules                what one event changes
policy, ledger       who may do what; all wallets, folded together
letter               the same by the letter of the text (D-180)
flows                the same ledger, settled in parallel
drafts, approvals    what producers need
statements           what owners and auditors need
bridge               copies from hub to hub
conformance          the sets of WAL §14
"""

from veen.overlays.wallet.ledger import Ledger, LedgerFold
from veen.overlays.wallet.policy import Policy, WalletGrant, WalletPolicy
from veen.overlays.wallet.rules import Wallet

__all__ = ["Ledger", "LedgerFold", "Policy", "Wallet", "WalletGrant", "WalletPolicy"]
