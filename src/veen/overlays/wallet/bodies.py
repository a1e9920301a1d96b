"""The nine bodies of the wallet layer, keys in the order of the document (WAL §5, D-02 … D-05).

Names of wallets, streams, transfers and approvals (WAL §2.3, §3.1, §5.5, §9).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from veen.core.errors import FieldSizeError
from veen.core.hashing import Ht, u64be
from veen.core.wire import NULL, Bytes32, Integer, TextMap, Uint
from veen.overlays.framework.schema import Body, InvalidBody, Schema, SchemaSet
from veen.overlays.wallet.codes import INVALID_CURRENCY, WALLET_ID

NONCE_BYTES: Final = 16


def check_currency(currency: str) -> None:
    """Check that a currency code is printable ASCII and not empty (D-94). Policy decides which are in use (WAL-03)."""
    if not currency or not currency.isascii() or not currency.isprintable():
        raise InvalidBody(INVALID_CURRENCY, "a currency code is a printable ASCII text")


def wallet_id_of(realm_id: bytes, ctx_id: bytes, currency: str) -> bytes:
    """Return the wallet_id of an owner and a currency. Both ids have 32 bytes, so the concatenation is unambiguous."""
    check_currency(currency)
    for name, value in (("realm_id", realm_id), ("ctx_id", ctx_id)):
        if len(value) != 32:
            raise FieldSizeError(name, "32 bytes", len(value))
    return Ht("wallet/id", realm_id + ctx_id + currency.encode("ascii"))


@lru_cache(maxsize=65_536)  # folds ask for every event, and wallets are few
def wallet_stream(wallet_id: bytes) -> bytes:
    """Return the stream_id of the events that change the wallet."""
    return Ht("wallet/stream", wallet_id)


def transfer_id_of(*, wallet_id: bytes, to_wallet_id: bytes, amount: int, ts: int, nonce: bytes) -> bytes:
    """Return the default transfer_id (D-97). `nonce` is 16 random bytes; retries keep the id, and nobody recomputes it.

    The document's Ht("wallet/xfer", msg_id) cannot be computed: the id is part of the message that msg_id hashes.
    """
    if len(nonce) != NONCE_BYTES:
        raise FieldSizeError("nonce", f"{NONCE_BYTES} bytes", len(nonce))
    return Ht("wallet/xfer", wallet_id + to_wallet_id + u64be(amount) + u64be(ts) + nonce)


def approval_hash(*, wallet_id: bytes, to_wallet_id: bytes, amount: int, ts: int, transfer_id: bytes) -> bytes:
    """Return the hash that approvers of a transfer sign (WAL §9); ts as u64be (D-100)."""
    return Ht("wallet/approval", wallet_id + to_wallet_id + u64be(amount) + u64be(ts) + transfer_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Body, kind="wallet.open.v1"):
    """Opening of a wallet."""

    wallet_id: Bytes32
    realm_id: Bytes32
    ctx_id: Bytes32
    currency: str
    created_at: Uint

    def _check(self) -> None:
        # An id of another size is a fault that `f` reports by itself.
        sized = len(self.wallet_id) == len(self.realm_id) == len(self.ctx_id) == 32
        if sized and self.wallet_id != wallet_id_of(self.realm_id, self.ctx_id, self.currency):
            raise InvalidBody(WALLET_ID, "wallet_id is not the hash of realm_id, ctx_id and currency")

    @property
    def ts(self) -> int:
        """The time of the event, by the name that the other eight bodies use."""
        return self.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Body, kind="wallet.close.v1"):
    """Closing of a wallet: nothing enters or leaves it any more."""

    wallet_id: Bytes32
    ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payment(Body):
    """Base of deposit and withdraw."""

    wallet_id: Bytes32
    amount: Uint  # in the smallest unit of the currency
    ts: Uint
    ref: bytes | None = None  # an external reference, such as the id of a bank transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposit(_Payment, kind="wallet.deposit.v1"):
    """Deposit of money from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(_Payment, kind="wallet.withdraw.v1"):
    """Withdrawal of money."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Body, kind="wallet.transfer.v1"):
    """Transfer from one wallet to another, sent on the stream of the source."""

    wallet_id: Bytes32
    to_wallet_id: Bytes32
    amount: Uint
    ts: Uint
    transfer_id: Bytes32
    metadata: TextMap | None = None  # free-form; no balance depends on it (WAL §10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjust(Body, kind="wallet.adjust.v1"):
    """A correction of the balance."""

    wallet_id: Bytes32
    delta: Integer  # may be negative
    ts: Uint
    reason: str
    ref: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Body, kind="wallet.limit.v1"):
    """Daily limit of outgoing money; None clears it and is written as null (D-04)."""

    wallet_id: Bytes32
    daily_limit: Uint | None
    ts: Uint

    def _write(self) -> dict[str, Any]:
        fields = super(Limit, self)._write()
        return {**fields, "daily_limit": NULL} if self.daily_limit is None else fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold(Body):
    """Base of freeze and unfreeze."""

    wallet_id: Bytes32
    ts: Uint
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(_Hold, kind="wallet.freeze.v1"):
    """Freeze of a wallet: nothing leaves it; it still receives (D-99)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfreeze(_Hold, kind="wallet.unfreeze.v1"):
    """End of a freeze."""


WalletBody = Open | Close | Deposit | Withdraw | Transfer | Adjust | Limit | Freeze | Unfreeze

OPEN: Final = Schema(Open.KIND, Open)
CLOSE: Final = Schema(Close.KIND, Close)
DEPOSIT: Final = Schema(Deposit.KIND, Deposit)
WITHDRAW: Final = Schema(Withdraw.KIND, Withdraw)
TRANSFER: Final = Schema(Transfer.KIND, Transfer)
ADJUST: Final = Schema(Adjust.KIND, Adjust)
LIMIT: Final = Schema(Limit.KIND, Limit)
FREEZE: Final = Schema(Freeze.KIND, Freeze)
UNFREEZE: Final = Schema(Unfreeze.KIND, Unfreeze)

SCHEMAS: Final = SchemaSet([OPEN, CLOSE, DEPOSIT, WITHDRAW, TRANSFER, ADJUST, LIMIT, FREEZE, UNFREEZE])

# The operations by the word that policies and statements use for them.
OPERATIONS: Final[Mapping[type[Body], str]] = MappingProxyType(
    {schema.body: schema.family.removeprefix("wallet.") for schema in SCHEMAS.values()}
)
