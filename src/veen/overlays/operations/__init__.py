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
