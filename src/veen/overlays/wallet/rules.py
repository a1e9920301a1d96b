"""The rules of one wallet event: a pure function of the state before it (WAL §5, §6; D-97 … D-100).

`apply` returns what the event changes, as records by key, or raises a Violation: then it changes nothing (D-98). It
knows neither senders nor streams; `veen.overlays.wallet.policy` judges those. Producers ask it before they send.

- A transfer debits and credits at once, at the event of its source, or not at all (D-100). So money cannot vanish into
  a closed wallet, nor into one of another currency.
- A retry is told by its transfer_id or ref (WAL §7). An equal one has no effect silently; one with other parties
  or another amount is reported. Only what was applied is remembered: a refused transfer may be sent again.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from veen.core.hashing import tag_prefix, u64be
from veen.overlays.framework.schema import Violation
from veen.overlays.wallet import bodies, codes

DAY_SEC: Final = 86_400


class WalletOwner(NamedTuple):
    """The owner of a wallet (WAL §2.1)."""

    realm_id: bytes
    ctx_id: bytes


class Wallet(NamedTuple):
    """The state of one wallet (WAL §4), with the sources and uses of its money.

    A tuple, because a ledger makes two of them for every transfer. In the canonical form it is a list in this order.
    balance = deposited - withdrawn + adjusted + received - sent, always.
    """

    exists: bool = False
    closed: bool = False
    balance: int = 0
    frozen: bool = False
    daily_limit: int | None = None
    pending_daily_spent: int = 0
    last_limit_reset_ts: int = 0
    currency: str | None = None
    owner: WalletOwner | None = None
    deposited: int = 0
    withdrawn: int = 0
    adjusted: int = 0  # may be negative
    received: int = 0
    sent: int = 0

    def spendable(self, ts: int) -> int:
        """Return the amount that may leave the wallet at `ts`."""
        if not self.exists or self.closed or self.frozen:
            return 0
        if self.daily_limit is None:
            return self.balance
        spent = 0 if _is_later_day(self.last_limit_reset_ts, ts) else self.pending_daily_spent
        return max(0, min(self.balance, self.daily_limit - spent))


UNOPENED: Final = Wallet()

# A wallet by its wallet_id of 32 bytes, or the mark that a transfer_id or ref leaves behind, under a key of 33 bytes.
Record = Wallet | bytes
Changes = dict[bytes, Record]


class LedgerState(Protocol):
    """Protocol of a state for the rules: a Table, or a dict."""

    def get(self, key: bytes, /) -> Record | None: ...


def apply(state: LedgerState, body: bodies.WalletBody) -> Changes:
    """Return the records that `body` changes. Raise Violation if it has no effect."""
    return _RULES[type(body)](state, body)


def _wallet(state: LedgerState, wallet_id: bytes) -> Wallet:
    record = state.get(wallet_id)
    if type(record) is not Wallet:
        return UNOPENED
    return record


def _get_existing(state: LedgerState, wallet_id: bytes) -> Wallet:
    wallet = _wallet(state, wallet_id)
    if not wallet.exists:
        raise Violation(codes.UNKNOWN_WALLET, f"wallet {wallet_id.hex()} has not been opened")
    return wallet


def _get_open(state: LedgerState, wallet_id: bytes) -> Wallet:
    record = state.get(wallet_id)
    if type(record) is Wallet and record.exists and not record.closed:
        return record
    _get_existing(state, wallet_id)
    raise Violation(codes.CLOSED, f"wallet {wallet_id.hex()} is closed")


def _is_later_day(last_ts: int, ts: int) -> bool:
    """Return needs_reset of WAL §5.7 (D-99). An earlier day resets nothing: senders choose ts (D-175)."""
    return ts // DAY_SEC > last_ts // DAY_SEC


def _spend(wallet: Wallet, amount: int, ts: int) -> tuple[int, int]:
    """Return pending_daily_spent and last_limit_reset_ts after a debit. Raise Violation if it is not allowed."""
    if wallet.frozen:
        raise Violation(codes.FROZEN, "the wallet is frozen")
    spent, reset_ts = wallet.pending_daily_spent, wallet.last_limit_reset_ts
    if wallet.daily_limit is not None:
        if _is_later_day(reset_ts, ts):
            spent, reset_ts = 0, ts
        spent += amount
        if spent > wallet.daily_limit:
            raise Violation(
                codes.DAILY_LIMIT_EXCEEDED, f"{spent} would leave the wallet that day, {wallet.daily_limit} may"
            )
    if wallet.balance < amount:
        raise Violation(codes.INSUFFICIENT_FUNDS, f"the amount {amount} exceeds the balance {wallet.balance}")
    return spent, reset_ts


# --- retries ---------------------------------------------------------------------------------------------------

_REF_TAG: Final = tag_prefix("veen/wallet-ref")


def mark_of(body: bodies.WalletBody) -> tuple[bytes, bytes] | None:
    """Return the key of the mark of an event and the value that tells a retry from another use; None without a mark.

    A transfer_id is unique over all wallets (WAL §5.5); a ref belongs to one wallet and one operation. A ref is hashed:
    it has any length, and who holds the state should not have to hold it.
    """
    if type(body) is bodies.Transfer:
        # The heads of the ids suffice: no money depends on it, only whether the second use is reported.
        return b"t" + body.transfer_id, body.wallet_id[:8] + body.to_wallet_id[:8] + u64be(body.amount)
    if not isinstance(body, (bodies.Deposit, bodies.Withdraw, bodies.Adjust)) or body.ref is None:
        return None
    name = bodies.OPERATIONS[type(body)].encode() + b"\x00" + body.wallet_id + body.ref
    amount = body.delta if isinstance(body, bodies.Adjust) else body.amount
    return b"r" + sha256(_REF_TAG + name).digest(), amount.to_bytes(9, "big", signed=True)


def _first(state: LedgerState, body: bodies.WalletBody) -> Changes | None:
    """Return the mark that the event leaves; None if an equal one exists."""
    mark = mark_of(body)
    if mark is None:
        return {}
    key, use = mark
    previous = state.get(key)
    if previous is None:
        return {key: use}
    if previous != use:
        what, code = ("transfer_id", codes.TRANSFER_ID_REUSED) if key[:1] == b"t" else ("ref", codes.REF_REUSED)
        raise Violation(code, f"the {what} was used for something else before")
    return None


# --- the nine rules --------------------------------------------------------------------------------------------


def _open(state: LedgerState, body: bodies.Open) -> Changes:
    if _wallet(state, body.wallet_id).exists:
        return {}  # also after close (D-99)
    owner = WalletOwner(body.realm_id, body.ctx_id)
    wallet = Wallet(exists=True, last_limit_reset_ts=body.created_at, currency=body.currency, owner=owner)
    return {body.wallet_id: wallet}


def _close(state: LedgerState, body: bodies.Close) -> Changes:
    wallet = _get_existing(state, body.wallet_id)
    return {} if wallet.closed else {body.wallet_id: wallet._replace(closed=True)}


def _deposit(state: LedgerState, body: bodies.Deposit) -> Changes:
    changes = _first(state, body)
    if changes is None:
        return {}
    wallet = _get_open(state, body.wallet_id)
    changes[body.wallet_id] = wallet._replace(
        balance=wallet.balance + body.amount, deposited=wallet.deposited + body.amount
    )
    return changes


def _withdraw(state: LedgerState, body: bodies.Withdraw) -> Changes:
    changes = _first(state, body)
    if changes is None:
        return {}
    wallet = _get_open(state, body.wallet_id)
    spent, reset_ts = _spend(wallet, body.amount, body.ts)
    changes[body.wallet_id] = wallet._replace(
        balance=wallet.balance - body.amount,
        pending_daily_spent=spent,
        last_limit_reset_ts=reset_ts,
        withdrawn=wallet.withdrawn + body.amount,
    )
    return changes


def _transfer(state: LedgerState, body: bodies.Transfer) -> Changes:
    changes = _first(state, body)
    if changes is None:
        return {}
    source = _get_open(state, body.wallet_id)
    spent, reset_ts = _spend(source, body.amount, body.ts)
    if body.to_wallet_id == body.wallet_id:
        return changes  # changes no wallet (D-99)
    to = _get_open(state, body.to_wallet_id)  # may be frozen (D-99)
    if to.currency != source.currency:
        raise Violation(
            codes.INVALID_CURRENCY, f"the source has the currency {source.currency}, the destination {to.currency}"
        )
    # Transfers are most of what a ledger does, and `_replace` takes three times as long.
    exists, closed, balance, frozen, limit, _, _, currency, owner, deposited, withdrawn, adjusted, received, sent = (
        source
    )
    changes[body.wallet_id] = Wallet(
        exists,
        closed,
        balance - body.amount,
        frozen,
        limit,
        spent,
        reset_ts,
        currency,
        owner,
        deposited,
        withdrawn,
        adjusted,
        received,
        sent + body.amount,
    )
    (
        exists,
        closed,
        balance,
        frozen,
        limit,
        spent,
        reset_ts,
        _,
        owner,
        deposited,
        withdrawn,
        adjusted,
        received,
        sent,
    ) = to
    changes[body.to_wallet_id] = Wallet(
        exists,
        closed,
        balance + body.amount,
        frozen,
        limit,
        spent,
        reset_ts,
        currency,
        owner,
        deposited,
        withdrawn,
        adjusted,
        received + body.amount,
        sent,
    )
    return changes


def _adjust(state: LedgerState, body: bodies.Adjust) -> Changes:
    changes = _first(state, body)
    if changes is None:
        return {}
    wallet = _get_open(state, body.wallet_id)
    balance = wallet.balance + body.delta
    if balance < 0:
        raise Violation(codes.INSUFFICIENT_FUNDS, f"{body.delta} to a balance of {wallet.balance}")
    changes[body.wallet_id] = wallet._replace(balance=balance, adjusted=wallet.adjusted + body.delta)
    return changes


def _limit(state: LedgerState, body: bodies.Limit) -> Changes:
    """Apply a limit, as the pseudocode does: no open wallet is needed, and clearing keeps the counter (D-99)."""
    wallet = _wallet(state, body.wallet_id)
    reset_ts = wallet.last_limit_reset_ts
    if body.daily_limit is not None and reset_ts == 0:
        reset_ts = body.ts
    return {body.wallet_id: wallet._replace(daily_limit=body.daily_limit, last_limit_reset_ts=reset_ts)}


def _freeze(state: LedgerState, body: bodies.Freeze) -> Changes:
    return {body.wallet_id: _get_existing(state, body.wallet_id)._replace(frozen=True)}


def _unfreeze(state: LedgerState, body: bodies.Unfreeze) -> Changes:
    return {body.wallet_id: _get_existing(state, body.wallet_id)._replace(frozen=False)}


_RULES: Final[Mapping[type, Callable[[LedgerState, Any], Changes]]] = MappingProxyType(
    {
        bodies.Open: _open,
        bodies.Close: _close,
        bodies.Deposit: _deposit,
        bodies.Withdraw: _withdraw,
        bodies.Transfer: _transfer,
        bodies.Adjust: _adjust,
        bodies.Limit: _limit,
        bodies.Freeze: _freeze,
        bodies.Unfreeze: _unfreeze,
    }
)
