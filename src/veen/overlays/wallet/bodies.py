"""The nine bodies of the wallet layer, keys in the order of the document (WAL §5, D-02 … D-05)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.wire import NULL, Fields
from veen.overlays.body import Body, InvalidBody
from veen.overlays.schema import Schema, SchemaSet
from veen.overlays.wallet.codes import WALLET_ID
from veen.overlays.wallet.ids import wallet_id_of

__all__ = [
    "ADJUST",
    "CLOSE",
    "DEPOSIT",
    "FREEZE",
    "LIMIT",
    "OPEN",
    "OPERATIONS",
    "SCHEMAS",
    "TRANSFER",
    "UNFREEZE",
    "WITHDRAW",
    "Adjust",
    "Close",
    "Deposit",
    "Freeze",
    "Limit",
    "Open",
    "Transfer",
    "Unfreeze",
    "WalletBody",
    "Withdraw",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Body):
    """wallet.open.v1: the wallet exists from here on."""

    KIND: ClassVar[str] = "wallet.open.v1"

    wallet_id: bytes
    realm_id: bytes
    ctx_id: bytes
    currency: str
    created_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            wallet_id=f.bstr("wallet_id", 32),
            realm_id=f.bstr("realm_id", 32),
            ctx_id=f.bstr("ctx_id", 32),
            currency=f.text("currency"),
            created_at=f.uint("created_at"),
        )
        # An id of another size is a fault that `f` reports by itself.
        if len(body.wallet_id) == 32 and body.wallet_id != wallet_id_of(body.realm_id, body.ctx_id, body.currency):
            raise InvalidBody(WALLET_ID, "wallet_id is not the hash of realm_id, ctx_id and currency")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "wallet_id": self.wallet_id,
            "realm_id": self.realm_id,
            "ctx_id": self.ctx_id,
            "currency": self.currency,
            "created_at": self.created_at,
        }

    @property
    def ts(self) -> int:
        """The time of the event under the name that the other eight have for it."""
        return self.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Body):
    """wallet.close.v1: nothing enters or leaves the wallet any more."""

    KIND: ClassVar[str] = "wallet.close.v1"

    wallet_id: bytes
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(wallet_id=f.bstr("wallet_id", 32), ts=f.uint("ts"))

    def _write(self) -> dict[str, Any]:
        return {"wallet_id": self.wallet_id, "ts": self.ts}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payment(Body):
    """What deposit and withdraw have in common."""

    wallet_id: bytes
    amount: int  # in the smallest unit of the currency
    ts: int
    ref: bytes | None = None  # an external reference, such as the id of a bank transaction

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            wallet_id=f.bstr("wallet_id", 32),
            amount=f.uint("amount"),
            ts=f.uint("ts"),
            ref=f.optional(f.blob, "ref"),
        )

    def _write(self) -> dict[str, Any]:
        return {"wallet_id": self.wallet_id, "amount": self.amount, "ts": self.ts, "ref": self.ref}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposit(_Payment):
    """wallet.deposit.v1: money comes in from outside."""

    KIND: ClassVar[str] = "wallet.deposit.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw(_Payment):
    """wallet.withdraw.v1: money goes out."""

    KIND: ClassVar[str] = "wallet.withdraw.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Body):
    """wallet.transfer.v1: money goes from one wallet to another, sent on the stream of the source."""

    KIND: ClassVar[str] = "wallet.transfer.v1"

    wallet_id: bytes
    to_wallet_id: bytes
    amount: int
    ts: int
    transfer_id: bytes
    metadata: Mapping[str, Any] | None = None  # free-form; no balance depends on it (WAL §10)

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            wallet_id=f.bstr("wallet_id", 32),
            to_wallet_id=f.bstr("to_wallet_id", 32),
            amount=f.uint("amount"),
            ts=f.uint("ts"),
            transfer_id=f.bstr("transfer_id", 32),
            metadata=f.optional(f.mapping, "metadata"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "wallet_id": self.wallet_id,
            "to_wallet_id": self.to_wallet_id,
            "amount": self.amount,
            "ts": self.ts,
            "transfer_id": self.transfer_id,
            "metadata": cbor.sort_keys(self.metadata),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjust(Body):
    """wallet.adjust.v1: a correction by whoever keeps the books."""

    KIND: ClassVar[str] = "wallet.adjust.v1"

    wallet_id: bytes
    delta: int  # may be negative
    ts: int
    reason: str
    ref: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            wallet_id=f.bstr("wallet_id", 32),
            delta=f.integer("delta"),
            ts=f.uint("ts"),
            reason=f.text("reason"),
            ref=f.optional(f.blob, "ref"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "wallet_id": self.wallet_id,
            "delta": self.delta,
            "ts": self.ts,
            "reason": self.reason,
            "ref": self.ref,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Body):
    """wallet.limit.v1: how much may leave the wallet in a day; None clears the limit and is written as null (D-04)."""

    KIND: ClassVar[str] = "wallet.limit.v1"

    wallet_id: bytes
    daily_limit: int | None
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(wallet_id=f.bstr("wallet_id", 32), daily_limit=f.optional(f.uint, "daily_limit"), ts=f.uint("ts"))

    def _write(self) -> dict[str, Any]:
        limit = NULL if self.daily_limit is None else self.daily_limit
        return {"wallet_id": self.wallet_id, "daily_limit": limit, "ts": self.ts}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hold(Body):
    """What freeze and unfreeze have in common."""

    wallet_id: bytes
    ts: int
    reason: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(wallet_id=f.bstr("wallet_id", 32), ts=f.uint("ts"), reason=f.optional(f.text, "reason"))

    def _write(self) -> dict[str, Any]:
        return {"wallet_id": self.wallet_id, "ts": self.ts, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(_Hold):
    """wallet.freeze.v1: nothing leaves the wallet; it still receives (D-99)."""

    KIND: ClassVar[str] = "wallet.freeze.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfreeze(_Hold):
    """wallet.unfreeze.v1: the freeze is over."""

    KIND: ClassVar[str] = "wallet.unfreeze.v1"


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
