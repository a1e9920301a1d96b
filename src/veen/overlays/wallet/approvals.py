"""m-of-n approvals of transfers (WAL §9): collected before, kept in the transfer's metadata, auditable afterwards.

Folding does not depend on metadata (WAL §10), so approvals never decide whether a transfer counts. They decide whether
the execution key sends it: `Quorum.check` before sending, `find_unapproved` when auditing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from veen.core.crypto import ed25519
from veen.core.errors import VerifyError
from veen.overlays.framework.schema import Typed
from veen.overlays.wallet.bodies import Transfer, approval_hash

METADATA_KEY: Final = "approvals"  # an array of [approver, signature]
_MAX_ATTACHED: Final = 1_024


class NotApproved(VerifyError):
    """A transfer that fewer approvers than required have signed."""

    hint = "Collect the missing approvals for exactly these fields, then send the transfer."


def digest_of(transfer: Transfer) -> bytes:
    """Return approval_hash of the transfer: source, destination, amount, time and transfer_id."""
    return approval_hash(
        wallet_id=transfer.wallet_id,
        to_wallet_id=transfer.to_wallet_id,
        amount=transfer.amount,
        ts=transfer.ts,
        transfer_id=transfer.transfer_id,
    )


@dataclass(frozen=True, slots=True, order=True)
class TransferApproval:
    """One approver's signature of one transfer."""

    approver: bytes  # Ed25519 public key
    signature: bytes

    @classmethod
    def sign(cls, key: ed25519.SigningKey, transfer: Transfer) -> Self:
        return cls(key.public, key.sign(digest_of(transfer)))

    def holds_for(self, transfer: Transfer) -> bool:
        return ed25519.verify(self.approver, digest_of(transfer), self.signature)


Approval = TransferApproval  # the name in documents of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """`threshold` of `approvers`, for transfers of at least `from_amount`."""

    threshold: int
    approvers: frozenset[bytes]
    from_amount: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= len(self.approvers):
            raise ValueError(f"{self.threshold} of {len(self.approvers)} approvers can never or always approve")

    def approvers_of(self, transfer: Transfer, approvals: Iterable[TransferApproval]) -> frozenset[bytes]:
        """Return the approvers with a valid signature."""
        approvers: set[bytes] = set()
        for approval in approvals:
            counts = approval.approver in self.approvers and approval.approver not in approvers
            if counts and approval.holds_for(transfer):
                approvers.add(approval.approver)
        return frozenset(approvers)

    def is_met(self, transfer: Transfer, approvals: Iterable[TransferApproval]) -> bool:
        if transfer.amount < self.from_amount:
            return True
        return len(self.approvers_of(transfer, approvals)) >= self.threshold

    def check(self, transfer: Transfer, approvals: Iterable[TransferApproval]) -> None:
        """Raise NotApproved unless the transfer may be sent."""
        approvals = tuple(approvals)
        if not self.is_met(transfer, approvals):
            count = len(self.approvers_of(transfer, approvals))
            raise NotApproved(f"transfer {transfer.transfer_id.hex()}: {count} of {self.threshold} approvals")


def attach(transfer: Transfer, approvals: Iterable[TransferApproval]) -> Transfer:
    """Return the transfer with its approvals in the metadata, sorted, each once. The signed fields do not change."""
    rows = [[approval.approver, approval.signature] for approval in sorted(set(approvals))]
    return replace(transfer, metadata={**(transfer.metadata or {}), METADATA_KEY: rows})


def attached(transfer: Transfer) -> tuple[TransferApproval, ...]:
    """Return the approvals in the metadata. Metadata is free-form; entries of another form are skipped."""
    rows: Any = (transfer.metadata or {}).get(METADATA_KEY)
    if type(rows) is not list:
        return ()
    return tuple(TransferApproval(row[0], row[1]) for row in rows[:_MAX_ATTACHED] if _is_pair(row))


def _is_pair(row: Any) -> bool:
    return (
        type(row) is list
        and len(row) == 2
        and all(type(part) is bytes for part in row)
        and (len(row[0]), len(row[1])) == (ed25519.PUBLIC_BYTES, ed25519.SIGNATURE_BYTES)
    )


def find_unapproved(quorum: Quorum, events: Iterable[Typed[Any]]) -> Iterator[Typed[Transfer]]:
    """Yield the transfers sent without the approvals they needed, for auditors."""
    for event in events:
        if isinstance(event.body, Transfer) and not quorum.is_met(event.body, attached(event.body)):
            yield event
