"""The operation profiles of 001 spec-3, each a module with its bodies, drafts, rules and fold.

common         operation_id, accounts, and for whom a client key speaks (D-137)
delegation     delegated.execution: an agent acts with the authority of a principal
acting         the base of folds that take operations both direct and delegated
paid           paid.operation: a ledger of its own, and who may debit which account
access         access.grant and access.revoke, and the capability tokens that follow from them
agreement      agreement.definition and agreement.confirmation
content        the Merkle root of files and directories
publication    data.publication
recovery       recovery.request, recovery.approval and recovery.execution
queryaudit     query.audit
mirror         federation.mirror
"""

from typing import TYPE_CHECKING

from veen.lazy import names_of

if TYPE_CHECKING:
    from veen.overlays.operations import access, agreement, mirror, paid, publication, queryaudit, recovery
    from veen.overlays.operations.common import account_id_of
    from veen.overlays.operations.content import ContentFile, tree_root
    from veen.overlays.operations.delegation import Caps, KnownCap, delegate

__all__ = [
    "Caps",
    "ContentFile",
    "KnownCap",
    "access",
    "account_id_of",
    "agreement",
    "delegate",
    "mirror",
    "paid",
    "publication",
    "queryaudit",
    "recovery",
    "tree_root",
]

__getattr__ = names_of(
    __name__,
    {
        "Caps": "veen.overlays.operations.delegation:Caps",
        "ContentFile": "veen.overlays.operations.content:ContentFile",
        "KnownCap": "veen.overlays.operations.delegation:KnownCap",
        "access": "veen.overlays.operations.access:",
        "account_id_of": "veen.overlays.operations.common:account_id_of",
        "agreement": "veen.overlays.operations.agreement:",
        "delegate": "veen.overlays.operations.delegation:delegate",
        "mirror": "veen.overlays.operations.mirror:",
        "paid": "veen.overlays.operations.paid:",
        "publication": "veen.overlays.operations.publication:",
        "queryaudit": "veen.overlays.operations.queryaudit:",
        "recovery": "veen.overlays.operations.recovery:",
        "tree_root": "veen.overlays.operations.content:tree_root",
    },
)
