"""Checks of the wallet overlay: money is neither created nor lost, lines can be proven, bridges copy once."""

import os
import time
from typing import Final

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.link import send
from veen.overlays.framework.schema import Draft
from veen.overlays.id.ids import ctx_id_of, realm_id_of
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of
from veen.overlays.wallet.bridge import BridgedReferences, verify_entry
from veen.overlays.wallet.policy import owners_by
from veen.overlays.wallet.statements import statement
from veen.products.selftest.suite import Check, World, events_of, expect, fold_over, same_state

_REALM: Final = realm_id_of("selftest")


def _policy_of(*clients: Client) -> WalletPolicy:
    """Return the policy of a shared stream, which keeps order within a second (D-27); each client owns its account."""
    return WalletPolicy().on_shared_streams(
        owners_by({ctx_id_of(client.client_id, _REALM): [client.client_id] for client in clients})
    )


async def _pay(clients: tuple[Client, Client], keys: StreamKeys, now: int) -> tuple[bytes, bytes]:
    """Write two wallets with a history that includes invalid operations."""
    owners = [ctx_id_of(client.client_id, _REALM) for client in clients]
    first, second = (wallet_id_of(_REALM, owner, "EUR") for owner in owners)
    history: list[tuple[int, Draft]] = [
        *(
            (n, drafts.open_wallet(realm_id=_REALM, ctx_id=owner, currency="EUR", created_at=now))
            for n, owner in enumerate(owners)
        ),
        (0, drafts.deposit(first, 100, ts=now, ref=b"bank 1")),
        (0, drafts.deposit(first, 100, ts=now, ref=b"bank 1")),  # a retry
        (0, drafts.transfer(first, second, 60, ts=now, nonce=os.urandom(16))),
        (0, drafts.withdraw(first, 50, ts=now)),  # more than is left
        (1, drafts.freeze(second, ts=now)),
        (1, drafts.withdraw(second, 1, ts=now)),  # frozen
        (0, drafts.transfer(first, second, 10, ts=now, nonce=os.urandom(16))),  # a frozen wallet receives
        (1, drafts.unfreeze(second, ts=now)),
        (1, drafts.limit(second, 20, ts=now)),
        (1, drafts.withdraw(second, 15, ts=now)),
        (1, drafts.withdraw(second, 15, ts=now)),  # beyond the limit of the day
        (0, drafts.adjust(first, -5, ts=now, reason="fee")),
        (1, drafts.withdraw(first, 1, ts=now)),  # from a wallet of somebody else
    ]
    for writer, draft in history:
        await send(clients[writer], keys.stream_id, draft)
    return first, second


async def _ledger(world: World) -> None:
    keys = world.keys("ledger")
    alice, bob = await world.client("alice", keys), await world.client("bob", keys)
    first, second = await _pay((alice, bob), keys, int(time.time()))
    fold = LedgerFold(policy=_policy_of(alice, bob))
    ledger = await same_state(fold, keys, alice, bob)
    balances = ledger.balance(first), ledger.balance(second)
    expect(balances == (25, 55), f"balances are {balances}")
    supply = ledger.supply()["EUR"]
    expect(supply.balance == supply.deposited - supply.withdrawn + supply.adjusted == 80, f"control sums: {supply}")
    codes = [issue.code for issue in (await fold_over(bob, fold, keys)).issues]
    expected = ["WAL.INSUFFICIENT_FUNDS", "WAL.FROZEN", "WAL.DAILY_LIMIT_EXCEEDED", "WAL.UNAUTHORIZED_OPERATION"]
    expect(codes == expected, f"reported: {codes}")

    account = statement(fold, await events_of(bob, keys), second)
    account.check()
    checkpoint = await bob.checkpoint(keys)
    for line in account.lines:
        proven = await bob.proof(keys, line.stream_seq, tree_size=checkpoint.upto_seq)
        line.verify(proven.proof, checkpoint)
    expect(len(account.lines) >= 6 and account.closing == 55, "every line of a statement is proven")


async def _bridge(world: World) -> None:
    here, there = world.keys("ledger"), world.keys("copies")
    alice, bob = await world.client("alice", here), await world.client("bob", here)
    first, second = await _pay((alice, bob), here, int(time.time()))
    bridge = await world.client("bridge", there, hub=1)
    reader = await world.client("reader", there, hub=1)
    hub_pks = [key.hub_pk for key in alice.pin.keys]
    fold = LedgerFold(mirrors=Mirrors.by([bridge.client_id]), policy=_policy_of(alice, bob))
    for attempt in ("first", "second"):
        copies = BridgedReferences(fold)
        copies.note(await events_of(bridge, there))
        events = []
        async for entry in alice.read(here, with_proofs=True):
            verify_entry(entry.msg, entry.receipt, hub_pks=hub_pks, proof=entry.proof, event=entry.event)
            if entry.event is not None:
                events.append(entry.event)
        missing = list(copies.find_missing(events))
        expect(bool(missing) == (attempt == "first"), f"the {attempt} run copies {len(missing)} events")
        for _, draft in missing:
            await send(bridge, there.stream_id, draft)
    original = (await fold_over(alice, LedgerFold(policy=_policy_of(alice, bob)), here)).state
    replica = (await fold_over(reader, fold, there)).state
    for wallet_id in (first, second):
        expect(replica.wallet(wallet_id) == original.wallet(wallet_id), "a replica shows what the original does")


WALLET_CHECKS: Final[dict[str, Check]] = {
    "wallet: money neither appears nor disappears, lines are proven": _ledger,
    "wallet: a bridge copies to another hub, each event once": _bridge,
}
