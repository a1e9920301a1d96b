"""Names of wallets, streams, transfers and approvals (WAL §2.3, §3.1, §5.5, §9)."""

from functools import lru_cache
from typing import Final

from veen.core.errors import FieldSizeError
from veen.core.hashing import Ht, u64be
from veen.overlays.framework.body import InvalidBody
from veen.overlays.wallet.codes import INVALID_CURRENCY

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
