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

from typing import TYPE_CHECKING

from veen.lazy import names_of
from veen.overlays.wallet.ledger import Ledger, LedgerFold
from veen.overlays.wallet.policy import Policy, WalletGrant, WalletPolicy
from veen.overlays.wallet.rules import Wallet

if TYPE_CHECKING:
    from veen.overlays.wallet import drafts
    from veen.overlays.wallet.approvals import Quorum, TransferApproval, attach, attached
    from veen.overlays.wallet.bodies import wallet_id_of
    from veen.overlays.wallet.policy import owners_by
    from veen.overlays.wallet.statements import statement

__all__ = [
    "Ledger",
    "LedgerFold",
    "Policy",
    "Quorum",
    "TransferApproval",
    "Wallet",
    "WalletGrant",
    "WalletPolicy",
    "attach",
    "attached",
    "drafts",
    "owners_by",
    "statement",
    "wallet_id_of",
]

__getattr__ = names_of(
    __name__,
    {
        "Quorum": "veen.overlays.wallet.approvals:Quorum",
        "TransferApproval": "veen.overlays.wallet.approvals:TransferApproval",
        "attach": "veen.overlays.wallet.approvals:attach",
        "attached": "veen.overlays.wallet.approvals:attached",
        "drafts": "veen.overlays.wallet.drafts:",
        "owners_by": "veen.overlays.wallet.policy:owners_by",
        "statement": "veen.overlays.wallet.statements:statement",
        "wallet_id_of": "veen.overlays.wallet.bodies:wallet_id_of",
    },
)
