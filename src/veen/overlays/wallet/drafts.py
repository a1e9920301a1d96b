"""Builders of wallet events, and the check that a producer makes before it sends one (WAL §5).

Send a draft on `wallet_stream(wallet_id)`. No draft has a parent_id: on wallet schemas that marks a copy (D-85). Times
are those of the caller, and so is the randomness behind a transfer_id.
"""

from collections.abc import Mapping
from typing import Any

from veen.overlays.framework.schema import Draft, Violation
from veen.overlays.wallet import bodies, codes
from veen.overlays.wallet.bodies import transfer_id_of, wallet_id_of
from veen.overlays.wallet.policy import WalletPolicy
from veen.overlays.wallet.rules import Changes, LedgerState, Wallet, apply


def open_wallet(*, realm_id: bytes, ctx_id: bytes, currency: str, created_at: int) -> Draft:
    wallet_id = wallet_id_of(realm_id, ctx_id, currency)
    return bodies.OPEN.draft(
        bodies.Open(wallet_id=wallet_id, realm_id=realm_id, ctx_id=ctx_id, currency=currency, created_at=created_at)
    )


def close(wallet_id: bytes, *, ts: int) -> Draft:
    return bodies.CLOSE.draft(bodies.Close(wallet_id=wallet_id, ts=ts))


def deposit(wallet_id: bytes, amount: int, *, ts: int, ref: bytes | None = None) -> Draft:
    """With a `ref`, a retry cannot count twice."""
    return bodies.DEPOSIT.draft(bodies.Deposit(wallet_id=wallet_id, amount=amount, ts=ts, ref=ref))


def withdraw(wallet_id: bytes, amount: int, *, ts: int, ref: bytes | None = None) -> Draft:
    return bodies.WITHDRAW.draft(bodies.Withdraw(wallet_id=wallet_id, amount=amount, ts=ts, ref=ref))


def transfer(
    wallet_id: bytes,
    to_wallet_id: bytes,
    amount: int,
    *,
    ts: int,
    nonce: bytes | None = None,
    transfer_id: bytes | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Draft:
    """Either `nonce`, 16 random bytes from which the default transfer_id is made (D-97), or the id itself.

    Retries must send the same transfer_id: keep the draft.
    """
    if (nonce is None) == (transfer_id is None):
        raise ValueError("a transfer needs either a nonce or a transfer_id")
    if transfer_id is None:
        assert nonce is not None  # noqa: S101 - one of the two is there
        transfer_id = transfer_id_of(wallet_id=wallet_id, to_wallet_id=to_wallet_id, amount=amount, ts=ts, nonce=nonce)
    body = bodies.Transfer(
        wallet_id=wallet_id,
        to_wallet_id=to_wallet_id,
        amount=amount,
        ts=ts,
        transfer_id=transfer_id,
        metadata=None if metadata is None else dict(metadata),
    )
    return bodies.TRANSFER.draft(body)


def adjust(wallet_id: bytes, delta: int, *, ts: int, reason: str, ref: bytes | None = None) -> Draft:
    return bodies.ADJUST.draft(bodies.Adjust(wallet_id=wallet_id, delta=delta, ts=ts, reason=reason, ref=ref))


def limit(wallet_id: bytes, daily_limit: int | None, *, ts: int) -> Draft:
    """None clears the limit."""
    return bodies.LIMIT.draft(bodies.Limit(wallet_id=wallet_id, daily_limit=daily_limit, ts=ts))


def freeze(wallet_id: bytes, *, ts: int, reason: str | None = None) -> Draft:
    return bodies.FREEZE.draft(bodies.Freeze(wallet_id=wallet_id, ts=ts, reason=reason))


def unfreeze(wallet_id: bytes, *, ts: int, reason: str | None = None) -> Draft:
    return bodies.UNFREEZE.draft(bodies.Unfreeze(wallet_id=wallet_id, ts=ts, reason=reason))


def body_of(draft: Draft) -> bodies.WalletBody:
    """Return the body that a draft was made from; KeyError if it is none of a wallet."""
    body: bodies.WalletBody = bodies.SCHEMAS[draft.schema].body.from_bytes(draft.body)
    return body


def check(
    state: LedgerState,
    draft: Draft,
    policy: WalletPolicy | None = None,
    *,
    client_id: bytes = b"",
    now: int | None = None,
) -> Changes:
    """Return what the draft would change if it were the next event, or the Violation for which it would have no effect.

    With a policy also whether the key `client_id` may send it, and with `now` whether its time is near enough.

    "Producers MUST NOT emit" such events (WAL §5). One rule is for producers only: a wallet is closed when it is empty.
    Others may write meanwhile, so this is advice, and the fold has the last word.
    """
    body = body_of(draft)
    if policy is not None:
        if now is not None:
            policy.check_time(body, now)
        policy.check_grant(body, client_id, None)
        if policy.needs_owner(body, client_id, None):
            policy.check_owner(state, body, client_id)
    changes = apply(state, body)
    wallet = state.get(body.wallet_id)
    if type(body) is bodies.Close and isinstance(wallet, Wallet) and wallet.balance:
        raise Violation(codes.BALANCE_LEFT, f"wallet {body.wallet_id.hex()} still holds {wallet.balance}")
    return changes
