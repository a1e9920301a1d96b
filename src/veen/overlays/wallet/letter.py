"""Wallets by the letter of WAL (D-180), to compare implementations; the default fold defends against more.

Where the text and the default fold part:

- A daily counter starts again on every other day, also on an earlier one, and nothing bounds the ts of a sender (§5.7).
- Each side of a transfer is folded for itself: a destination is credited whatever became of its source, in whatever
  currency, and a transfer to itself takes the amount away (§5.5, §6). A transfer that its source cannot pay, or that is
  above its daily limit, is a policy violation and changes nothing (§5.4, §6: upstream validation).
- A transfer_id counts once for each wallet and direction, whatever the second use says (§5.5). A ref is interpreted for
  withdrawals alone (§5.3, §7).
- parent_id is the identity of an event, whoever sent it (§11.4): what names a payment and comes first voids it.

Streams, currencies, grants and owners of a `WalletPolicy` hold here as well: the text leaves them to deployments.
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from veen.core.event import Event
from veen.core.hashing import tag_prefix
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Typed, Violation
from veen.overlays.framework.speaking import Voice
from veen.overlays.wallet import bodies, codes
from veen.overlays.wallet.bodies import SCHEMAS, Transfer, WalletBody, wallet_stream
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.policy import STREAM_POLICY, WalletMirrors, WalletPolicy
from veen.overlays.wallet.rules import DAY_SEC, UNOPENED, Changes, LedgerState, Record, Wallet, apply

_MARK: Final = b"\x01"
_MARK_TAG: Final = tag_prefix("veen/wallet-letter")


@dataclass(frozen=True, slots=True)
class LetterMirrors(WalletMirrors):
    """Mirrors by the letter of §11.4: the parent_id of a wallet event names its original."""

    def identity(self, event: Event) -> bytes:
        return event.hdr.parent_id or event.leaf_hash

    def is_echo(self, event: Event, body: WalletBody) -> bool:
        return False


class LetterLedgerFold(LedgerFold):
    """Fold of all wallets by the letter. Its own state class keeps its states apart from those of the default.

    Who speaks for whom is not asked either: the text knows no such rule.
    """

    name = "wallet.ledger.letter"
    version = 1

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS, policy: WalletPolicy = STREAM_POLICY) -> None:
        super().__init__(mirrors=mirrors, policy=replace(policy, max_skew_sec=None, speaks="off"))
        self.mirrors = self.copies = LetterMirrors(mirrors.bridges, frozenset(SCHEMAS), self.policy)

    def screen(self, event: Typed[WalletBody], voice: Voice | None = None) -> bool:
        e, body = event
        mirrored = type(body) is Transfer and e.stream_id == wallet_stream(body.to_wallet_id)
        if mirrored and not self._is_trusted_copy(event):  # §5.5: into the stream of the destination as well
            self.policy.check_grant(body, e.client_id, e.auth_ref)
            return True
        return super().screen(event, voice)

    def step(self, state: Table[bytes, Record], event: Typed[Any]) -> None:
        if self.screen(event):
            sender = self.sender_to_check(event)
            if sender is not None:
                self.policy.check_owner(state, event.body, sender)
            for key, record in apply_letter(state, event.body).items():
                state[key] = record


def apply_letter(state: LedgerState, body: WalletBody) -> Changes:
    """Return what `body` changes by the pseudocode of §6, or raise the Violation of §5."""
    match body:
        case bodies.Deposit():
            wallet = _active(state, body.wallet_id)
            paid_in = wallet._replace(balance=wallet.balance + body.amount, deposited=wallet.deposited + body.amount)
            return {body.wallet_id: paid_in}
        case bodies.Adjust():
            wallet = _active(state, body.wallet_id)
            if wallet.balance + body.delta < 0:
                raise Violation(codes.INSUFFICIENT_FUNDS, f"{body.delta} to a balance of {wallet.balance}")
            return {
                body.wallet_id: wallet._replace(
                    balance=wallet.balance + body.delta, adjusted=wallet.adjusted + body.delta
                )
            }
        case bodies.Withdraw():
            mark = None if body.ref is None else _mark(b"r", body.wallet_id, body.ref)
            if mark is not None and state.get(mark) is not None:
                return {}
            wallet = _debit(_active(state, body.wallet_id), body.amount, body.ts)
            changes: Changes = {body.wallet_id: wallet._replace(withdrawn=wallet.withdrawn + body.amount)}
            return changes if mark is None else {**changes, mark: _MARK}
        case bodies.Transfer():
            return _transfer(state, body)
        case _:
            return apply(state, body)  # open, close, limit, freeze, unfreeze: as §6 has them


def _transfer(state: LedgerState, body: bodies.Transfer) -> Changes:
    changes: Changes = {}
    out, into = (
        _mark(way, wallet, body.transfer_id) for way, wallet in ((b"o", body.wallet_id), (b"i", body.to_wallet_id))
    )
    source = _wallet(state, body.wallet_id)
    if source.exists and not source.closed and not source.frozen and state.get(out) is None:
        paid = _debit(source, body.amount, body.ts)
        changes |= {body.wallet_id: paid._replace(sent=paid.sent + body.amount), out: _MARK}
    to = _wallet(state, body.to_wallet_id)
    if body.to_wallet_id != body.wallet_id and to.exists and not to.closed and state.get(into) is None:
        credited = to._replace(balance=to.balance + body.amount, received=to.received + body.amount)
        changes |= {body.to_wallet_id: credited, into: _MARK}
    return changes


def _debit(wallet: Wallet, amount: int, ts: int) -> Wallet:
    """Return the wallet without `amount`. needs_reset is true for any other day (§5.7)."""
    if wallet.frozen:
        raise Violation(codes.FROZEN, "the wallet is frozen")
    spent, reset_ts = wallet.pending_daily_spent, wallet.last_limit_reset_ts
    if wallet.daily_limit is not None:
        if ts // DAY_SEC != reset_ts // DAY_SEC:
            spent, reset_ts = 0, ts
        spent += amount
        if spent > wallet.daily_limit:
            raise Violation(codes.DAILY_LIMIT_EXCEEDED, f"{spent} that day, {wallet.daily_limit} may")
    if wallet.balance < amount:
        raise Violation(codes.INSUFFICIENT_FUNDS, f"the amount {amount} exceeds the balance {wallet.balance}")
    return wallet._replace(balance=wallet.balance - amount, pending_daily_spent=spent, last_limit_reset_ts=reset_ts)


def _wallet(state: LedgerState, wallet_id: bytes) -> Wallet:
    record = state.get(wallet_id)
    return record if type(record) is Wallet else UNOPENED


def _active(state: LedgerState, wallet_id: bytes) -> Wallet:
    wallet = _wallet(state, wallet_id)
    if not wallet.exists:
        raise Violation(codes.UNKNOWN_WALLET, f"wallet {wallet_id.hex()} has not been opened")
    if wallet.closed:
        raise Violation(codes.CLOSED, f"wallet {wallet_id.hex()} is closed")
    return wallet


def _mark(way: bytes, wallet_id: bytes, name: bytes) -> bytes:
    return way + sha256(_MARK_TAG + wallet_id + name).digest()
