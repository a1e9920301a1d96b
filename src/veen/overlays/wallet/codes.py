"""Why an event of the wallet layer counts for nothing: stable codes (WAL §13, D-98)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "BALANCE_LEFT",
    "CLOSED",
    "DAILY_LIMIT_EXCEEDED",
    "FROZEN",
    "INSUFFICIENT_FUNDS",
    "INVALID_CURRENCY",
    "MEANINGS",
    "REF_REUSED",
    "TIME_SKEW",
    "TRANSFER_ID_REUSED",
    "UNAUTHORIZED_OPERATION",
    "UNKNOWN_WALLET",
    "WALLET_ID",
    "WRONG_STREAM",
]

# The six of the document.
INSUFFICIENT_FUNDS: Final = "WAL.INSUFFICIENT_FUNDS"
FROZEN: Final = "WAL.FROZEN"
CLOSED: Final = "WAL.CLOSED"
DAILY_LIMIT_EXCEEDED: Final = "WAL.DAILY_LIMIT_EXCEEDED"
INVALID_CURRENCY: Final = "WAL.INVALID_CURRENCY"
UNAUTHORIZED_OPERATION: Final = "WAL.UNAUTHORIZED_OPERATION"

# Ours, for cases that the document describes without naming them.
UNKNOWN_WALLET: Final = "WAL.UNKNOWN_WALLET"
WALLET_ID: Final = "WAL.WALLET_ID"
WRONG_STREAM: Final = "WAL.WRONG_STREAM"
TRANSFER_ID_REUSED: Final = "WAL.TRANSFER_ID_REUSED"
REF_REUSED: Final = "WAL.REF_REUSED"
TIME_SKEW: Final = "WAL.TIME_SKEW"
BALANCE_LEFT: Final = "WAL.BALANCE_LEFT"

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        INSUFFICIENT_FUNDS: "The balance would have gone below zero.",
        FROZEN: "The wallet is frozen: it receives, but nothing leaves it.",
        CLOSED: "The wallet is closed: nothing enters or leaves it.",
        DAILY_LIMIT_EXCEEDED: "More would have left the wallet on one day than its limit allows.",
        INVALID_CURRENCY: "The currency is not allowed here, or the two wallets of a transfer hold different ones.",
        UNAUTHORIZED_OPERATION: "The sender has no right to this operation under the policy of the reader.",
        UNKNOWN_WALLET: "The wallet has not been opened.",
        WALLET_ID: "The wallet_id is not the hash of the realm, the context and the currency.",
        WRONG_STREAM: "The event does not stand on the stream of its wallet.",
        TRANSFER_ID_REUSED: "The transfer_id already belongs to a transfer with other parties or another amount.",
        REF_REUSED: "The ref already belongs to the same operation on this wallet with another amount.",
        TIME_SKEW: "The time in the event is too far from the time of the hub.",
        BALANCE_LEFT: "The wallet still holds money: producers close only empty wallets.",
    }
)
