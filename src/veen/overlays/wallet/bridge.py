"""WALBR0, the pure part of a bridge: verify, copy, skip (WAL §11, D-85).

A bridge reads wallet streams of hub A with proofs and sends copies to hub B. A copy has the schema and the very bytes
of the body; its parent_id is the msg_id of the original, also when what was read is itself a copy: so a chain or a ring
of bridges carries every event once. wallet_id and currency stand in the body, and nothing here can change them.

The state on B follows the order on B. Within one stream that is the order of sending; across streams of one second it
is not (D-27). A replica that must show the balances of A in every case takes all copies on one stream, sent in logical
order, from a key that readers register as a bridge. Such a key is trusted with everything, because the copy no longer
shows who sent the original: so a bridge carries only what counts under the policy of A.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from veen.core.errors import SignatureError, VeenError, VerifyError
from veen.core.event import Event
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof
from veen.overlays.framework.fold import copy_draft
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, Issue, Violation, decode
from veen.overlays.wallet.bodies import SCHEMAS, Open
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.policy import WalletMirrors
from veen.overlays.wallet.rules import Record, apply


def verify_entry(
    msg: Msg, receipt: Receipt, *, hub_pks: Iterable[bytes], proof: MmrProof | None = None, event: Event | None = None
) -> None:
    """Raise VerifyError unless `msg` is signed, the receipt is its own and the hub's, and the proof leads to its root.

    `event` is what was opened from `msg`: it must be of this entry, and what it says is then as good as the receipt.
    """
    msg.verify()
    leaf_hash = msg.leaf_hash()
    if receipt.label != msg.label or receipt.leaf_hash != leaf_hash:
        raise VerifyError("the RECEIPT is for another message: its leaf_hash is not that of this MSG (I2)")
    _check_hub_sig(receipt, hub_pks)
    if proof is not None:
        proof.verify(leaf_hash=leaf_hash, stream_seq=receipt.stream_seq, expected_root=receipt.mmr_root)
    if event is not None:
        place = (receipt.label, receipt.stream_seq, leaf_hash, msg.client_id)
        if (event.label, event.stream_seq, event.leaf_hash, event.client_id) != place:
            raise VerifyError("the event was not opened from this message")


def _check_hub_sig(receipt: Receipt, hub_pks: Iterable[bytes]) -> None:
    for hub_pk in hub_pks:
        try:
            receipt.verify(hub_pk)
        except SignatureError:
            continue
        return
    raise SignatureError(f"RECEIPT {receipt.stream_seq}: hub_sig does not verify under any key of the hub")


def copy_of(event: Event, mirrors: WalletMirrors, hub_id: bytes | None = None) -> Draft:
    """Return the copy of `event` that a bridge sends: its schema, the body byte for byte, and the original as parent.

    `mirrors` is that of the ledger on hub A: it tells whether the event is a copy itself. `hub_id` is that of hub A;
    with it the copy states its origin, so that limits and expiry are judged at the times of hub A (D-193).
    """
    if hub_id is not None:
        return copy_draft(event, hub_id=hub_id, mirrors=mirrors)
    parent_id = mirrors.original_of(event) or event.msg_id
    return Draft(schema=event.hdr.schema, body=event.body, parent_id=parent_id, expires_at=event.hdr.expires_at)


@dataclass(slots=True)
class BridgedReferences:
    """Events on hub B, as originals or copies. Read B first: then a restart sends nothing twice.

    `fold` is the ledger of hub A, with its policy and with the bridges of both hubs.
    """

    fold: LedgerFold
    identities: set[bytes] = field(default_factory=set)
    opened: dict[bytes, Record] = field(default_factory=dict)  # by wallet_id: whose it is, from the events of hub A
    speaking: Table[Any, Any] = field(default_factory=Table)  # for whom the keys of hub A speak
    hub_id: bytes | None = None  # of hub A: copies then state where they come from (D-193)

    def note(self, events: Iterable[Event]) -> None:
        """Add events that are on B."""
        self.identities.update(self.fold.mirrors.identity(event) for event in events if event.hdr.schema in SCHEMAS)

    def find_missing(self, events: Iterable[Event]) -> Iterator[tuple[Event, Draft]]:
        """Yield the wallet events of A that B lacks, in logical order, each once, with its copy.

        What the policy of A refuses stays on A: under the bridge's key it would count on B. Where that policy names
        owners, `events` must begin with those that opened the wallets and bound the keys of their owners. A copy counts
        as seen only when it is noted: what fails on the way to B is missing again the next time.
        """
        references: set[bytes] = set()
        for event in sorted(events, key=lambda e: e.order):
            if not self._may_cross(event):
                continue
            identity = self.fold.mirrors.identity(event)
            if identity not in self.identities and identity not in references:
                references.add(identity)
                yield event, copy_of(event, self.fold.copies, self.hub_id)

    def _may_cross(self, event: Event) -> bool:
        schema = self.fold.schemas.get(event.hdr.schema)
        typed = None if schema is None else decode(self.fold.mirrors.with_origin_times(event), schema)
        if typed is None or isinstance(typed, Issue):
            return False
        try:
            if self.fold.take_statement(self.speaking, typed) or not self.fold.admit(self.speaking, typed, self.opened):
                return False
        except Violation:
            return False
        if isinstance(typed.body, Open) and typed.body.wallet_id not in self.opened:
            self.opened.update(apply(self.opened, typed.body))
        return True


Seen = BridgedReferences  # the name in documents of earlier versions


class NotAuthoritative(VeenError):
    """A wallet over which another hub has the authority; this hub has copies only."""

    hint = "Send the event to the authoritative hub; a bridge brings the copy here."

    def __init__(self, wallet_id: bytes, authority: bytes) -> None:
        super().__init__(wallet_id, authority)
        self.wallet_id, self.authority = wallet_id, authority

    def __str__(self) -> str:
        return f"wallet {self.wallet_id.hex()}: changes are made on hub {self.authority.hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Hubs that may originate changes of wallets (WAL §11.2): by wallet, else by realm, else one for all."""

    by_wallet: Mapping[bytes, bytes] = field(default_factory=dict)  # hub_id by wallet_id
    by_realm: Mapping[bytes, bytes] = field(default_factory=dict)
    default: bytes | None = None  # None: any hub

    def of(self, wallet_id: bytes, realm_id: bytes | None = None) -> bytes | None:
        by_realm = None if realm_id is None else self.by_realm.get(realm_id)
        return self.by_wallet.get(wallet_id) or by_realm or self.default

    def check(self, hub_id: bytes, wallet_id: bytes, realm_id: bytes | None = None) -> None:
        """Raise NotAuthoritative unless `hub_id` may originate changes of the wallet. Producers call it."""
        authority = self.of(wallet_id, realm_id)
        if authority is not None and authority != hub_id:
            raise NotAuthoritative(wallet_id, authority)
