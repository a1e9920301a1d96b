"""The rules of the ledger, one by one, and the policy of its reader."""

from dataclasses import replace

import pytest
from tests.overlays.wallet_reference import (
    ANN,
    ANY_TIME,
    BOB,
    BRIDGE,
    CAT,
    DAN,
    DAY,
    OWNERS,
    REALM,
    World,
    opened,
    xfer,
)

from veen.core.hashing import H
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.schema import Draft, Violation
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.wallet import LedgerFold, WalletGrant, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream
from veen.overlays.wallet.policy import END_USER, INSTITUTION
from veen.overlays.wallet.rules import UNOPENED, Wallet, WalletOwner

BY_BRIDGE = Mirrors.by([BRIDGE])
TRUSTING = WalletPolicy(own_streams=False, trust_every_writer=True, max_skew_sec=None)


def folded(world, *, policy=ANY_TIME):
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=policy)
    summary = fold.summarize(world.all())
    return fold.view(summary), [issue.code for issue in fold.issues(summary)]


def after(*several):
    """The ledger and the codes after these, sent one second apart to Ann (100), Bob (0) and Dan (0, JPY)."""
    world = World()
    world.send_all(opened("ann"), opened("bob"), opened("dan"), drafts.deposit(ANN, 100, ts=0), *several)
    return folded(world)


def pay(amount, number=1, *, source=ANN, to=BOB, ts=0):
    return drafts.transfer(source, to, amount, ts=ts, transfer_id=xfer(number))


@pytest.mark.req("WAL-05", "WAL-06")
def test_open_initialises_the_state_once():
    ledger, codes = after(drafts.limit(ANN, 7, ts=5), opened("ann", 99))
    assert codes == []
    assert ledger.wallet(ANN) == Wallet(
        exists=True,
        balance=100,
        daily_limit=7,
        deposited=100,
        last_limit_reset_ts=5,
        currency="USD",
        owner=WalletOwner(REALM, OWNERS["ann"]),
    )
    assert ledger.wallet(CAT) == UNOPENED


@pytest.mark.req("WAL-06", "WAL-07")
def test_a_second_open_is_a_no_op_also_after_close():
    """D-99"""
    ledger, codes = after(drafts.close(ANN, ts=1), opened("ann", 50), drafts.close(ANN, ts=2))
    assert codes == []
    assert ledger.wallet(ANN).closed
    assert ledger.balance(ANN) == 100


@pytest.mark.req("WAL-07", "WAL-08", "WAL-09", "WAL-10", "WAL-12", "WAL-20")
@pytest.mark.parametrize(
    "draft",
    [
        drafts.deposit(ANN, 1, ts=0),
        drafts.withdraw(ANN, 1, ts=0),
        pay(1),
        pay(0, source=BOB, to=ANN),
        drafts.adjust(ANN, 1, ts=0, reason=""),
    ],
)
def test_nothing_enters_or_leaves_a_closed_wallet(draft):
    ledger, codes = after(drafts.close(ANN, ts=0), draft)
    assert codes == ["WAL.CLOSED"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (100, 0)


@pytest.mark.req("WAL-14", "WAL-20")
def test_a_frozen_wallet_receives_and_pays_nothing_out():
    """D-99"""
    ledger, codes = after(
        drafts.deposit(BOB, 10, ts=0),
        drafts.freeze(ANN, ts=0, reason="inquiry"),
        drafts.withdraw(ANN, 1, ts=0),
        pay(1),
        drafts.deposit(ANN, 5, ts=0),
        pay(3, 2, source=BOB, to=ANN),
        drafts.adjust(ANN, -8, ts=0, reason="fix"),
    )
    assert codes == ["WAL.FROZEN", "WAL.FROZEN"]
    assert ledger.wallet(ANN).frozen
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (100, 7)
    ledger, codes = after(drafts.freeze(ANN, ts=0), drafts.unfreeze(ANN, ts=0), pay(1))
    assert codes == []
    assert not ledger.wallet(ANN).frozen


@pytest.mark.req("WAL-07", "WAL-14", "WAL-20")
@pytest.mark.parametrize(
    "draft",
    [
        drafts.close(CAT, ts=0),
        drafts.freeze(CAT, ts=0),
        drafts.unfreeze(CAT, ts=0),
        drafts.deposit(CAT, 1, ts=0),
        drafts.withdraw(CAT, 0, ts=0),
        drafts.adjust(CAT, 1, ts=0, reason=""),
        pay(1, to=CAT),
        pay(0, source=CAT),
    ],
)
def test_what_was_never_opened_cannot_be_used(draft):
    ledger, codes = after(draft)
    assert codes == ["WAL.UNKNOWN_WALLET"]
    assert CAT not in ledger.wallets
    assert ledger.balance(ANN) == 100


@pytest.mark.req("WAL-09", "WAL-15", "WAL-20")
@pytest.mark.parametrize("draft", [drafts.withdraw(ANN, 101, ts=0), pay(101), pay(2**64 - 1)])
def test_no_balance_goes_below_zero(draft):
    """D-98: the event changes nothing and is reported."""
    ledger, codes = after(draft)
    assert codes == ["WAL.INSUFFICIENT_FUNDS"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (100, 0)


@pytest.mark.req("WAL-12")
def test_adjust_corrects_in_both_directions_but_never_below_zero_and_leaves_the_limit_alone():
    ledger, codes = after(
        drafts.limit(ANN, 10, ts=0),
        drafts.adjust(ANN, -60, ts=0, reason="fix"),
        drafts.adjust(ANN, -41, ts=0, reason="fix"),
        drafts.adjust(ANN, 2, ts=0, reason="fix"),
    )
    assert codes == ["WAL.INSUFFICIENT_FUNDS"]
    assert (ledger.balance(ANN), ledger.wallet(ANN).pending_daily_spent) == (42, 0)
    assert ledger.supply()["USD"].adjusted == -58


@pytest.mark.req("WAL-10")
def test_a_transfer_debits_and_credits_at_once_without_touching_the_limit_of_the_destination():
    """D-100"""
    ledger, codes = after(drafts.limit(ANN, 50, ts=0), drafts.limit(BOB, 5, ts=0), pay(40))
    assert codes == []
    assert (ledger.balance(ANN), ledger.wallet(ANN).pending_daily_spent) == (60, 40)
    assert (ledger.balance(BOB), ledger.wallet(BOB).pending_daily_spent) == (40, 0)


@pytest.mark.req("WAL-10", "WAL-15")
def test_a_transfer_to_oneself_changes_nothing_but_must_be_possible():
    """D-99"""
    ledger, codes = after(drafts.limit(ANN, 100, ts=0), pay(70, to=ANN), pay(101, 2, to=ANN))
    assert codes == ["WAL.DAILY_LIMIT_EXCEEDED"]
    assert (ledger.balance(ANN), ledger.wallet(ANN).pending_daily_spent) == (100, 0)


@pytest.mark.req("WAL-11")
def test_a_transfer_to_oneself_uses_up_its_id():
    ledger, codes = after(pay(70, to=ANN), pay(70, to=ANN), pay(70))
    assert codes == ["WAL.TRANSFER_ID_REUSED"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (100, 0)


@pytest.mark.req("WAL-10", "WAL-20")
def test_money_does_not_change_its_currency():
    ledger, codes = after(pay(1, to=DAN))
    assert codes == ["WAL.INVALID_CURRENCY"]
    assert {code: supply.balance for code, supply in ledger.supply().items()} == {"JPY": 0, "USD": 100}


@pytest.mark.req("WAL-13", "WAL-20")
def test_a_limit_counts_what_leaves_in_one_day():
    ledger, codes = after(
        drafts.limit(ANN, 30, ts=0),
        drafts.withdraw(ANN, 20, ts=DAY - 1),
        pay(11, ts=DAY - 1),  # 31 of 30
        pay(10, 2, ts=DAY - 1),
        drafts.withdraw(ANN, 30, ts=DAY),  # the next day
        drafts.withdraw(ANN, 1, ts=DAY + 1),
    )
    assert codes == ["WAL.DAILY_LIMIT_EXCEEDED", "WAL.DAILY_LIMIT_EXCEEDED"]
    wallet = ledger.wallet(ANN)
    assert (wallet.balance, wallet.pending_daily_spent, wallet.last_limit_reset_ts) == (40, 30, DAY)
    assert wallet.spendable(DAY + 5) == 0
    assert wallet.spendable(2 * DAY) == 30


@pytest.mark.req("WAL-13")
def test_a_refused_event_does_not_begin_a_new_day():
    """D-98: changes nothing, also not the counter."""
    ledger, _ = after(drafts.limit(ANN, 30, ts=0), drafts.withdraw(ANN, 20, ts=1), drafts.withdraw(ANN, 31, ts=DAY))
    assert ledger.wallet(ANN).pending_daily_spent == 20


@pytest.mark.req("WAL-13")
def test_clearing_a_limit_keeps_the_counter_and_counts_nothing_meanwhile():
    """D-99"""
    ledger, codes = after(
        drafts.limit(ANN, 30, ts=0),
        drafts.withdraw(ANN, 20, ts=1),
        drafts.limit(ANN, None, ts=1),
        drafts.withdraw(ANN, 50, ts=2),
        drafts.limit(ANN, 25, ts=2),
        drafts.withdraw(ANN, 6, ts=2),
    )
    assert codes == ["WAL.DAILY_LIMIT_EXCEEDED"]
    assert ledger.wallet(ANN).pending_daily_spent == 20


@pytest.mark.req("WAL-13")
def test_a_limit_before_open_is_forgotten_by_open():
    """WAL §6, literally."""
    world = World()
    world.send_all(drafts.limit(ANN, 5, ts=77))
    ledger, codes = folded(world)
    assert codes == []
    assert ledger.wallet(ANN) == Wallet(daily_limit=5, last_limit_reset_ts=77)
    world.send_all(opened("ann", 3))
    assert folded(world)[0].wallet(ANN).daily_limit is None


@pytest.mark.req("WAL-11", "WAL-16")
def test_a_retry_counts_once_and_another_use_of_its_id_is_reported():
    ledger, codes = after(pay(10), pay(10, ts=50), pay(10, source=BOB, to=ANN), pay(11))
    assert codes == ["WAL.TRANSFER_ID_REUSED", "WAL.TRANSFER_ID_REUSED"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (90, 10)


@pytest.mark.req("WAL-16")
def test_a_ref_counts_once_for_each_wallet_and_operation():
    ledger, codes = after(
        drafts.deposit(ANN, 7, ts=0, ref=b"tx1"),
        drafts.deposit(ANN, 7, ts=9, ref=b"tx1"),  # a retry
        drafts.deposit(BOB, 7, ts=0, ref=b"tx1"),
        drafts.withdraw(ANN, 7, ts=0, ref=b"tx1"),
        drafts.adjust(ANN, 7, ts=0, reason="", ref=b"tx1"),
        drafts.deposit(ANN, 8, ts=0, ref=b"tx1"),
    )
    assert codes == ["WAL.REF_REUSED"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (107, 7)


@pytest.mark.req("WAL-11", "WAL-16")
def test_a_refused_transfer_may_be_sent_again():
    ledger, codes = after(pay(150), drafts.deposit(ANN, 50, ts=0), pay(150))
    assert codes == ["WAL.INSUFFICIENT_FUNDS"]
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (0, 150)


# --- streams, senders, currencies ------------------------------------------------------------------------------------


@pytest.mark.req("WAL-02", "WAL-20")
def test_nobody_spends_another_wallet_from_their_own_stream():
    world = World()
    world.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 100, ts=0))
    world.send(pay(60), stream_id=wallet_stream(BOB), at=2_000)
    world.send(drafts.withdraw(ANN, 60, ts=0), stream_id=wallet_stream(BOB))
    ledger, codes = folded(world)
    assert codes == ["WAL.WRONG_STREAM", "WAL.WRONG_STREAM"]
    assert ledger.balance(ANN) == 100
    assert folded(world, policy=TRUSTING)[0].balance(ANN) == 40  # other layouts are possible (§3.1)


@pytest.mark.req("WAL-10", "WALBR-03")
def test_a_transfer_mirrored_onto_the_stream_of_its_destination_is_passed_over():
    """WAL §5.5, D-100"""
    world = World()
    world.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 100, ts=0))
    sent = world.send(pay(60), at=2_000)
    for client in (H(b"some application"), BRIDGE):
        world.copy(sent, hub="A", stream_id=wallet_stream(BOB), client=client, at=3_000)
    ledger, codes = folded(world)
    assert codes == []
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (40, 60)


@pytest.mark.req("WALBR-03")
def test_a_refused_event_does_not_count_as_its_copy_either():
    """D-85: one event, wherever it stands; the first in logical order decides."""
    world = World()
    world.send_all(opened("ann"), opened("bob"))
    refused = world.send(drafts.withdraw(ANN, 10, ts=0), at=2_000)
    world.send(drafts.deposit(ANN, 10, ts=0), at=3_000)
    world.copy(refused, at=4_000)
    ledger, codes = folded(world)
    assert codes == ["WAL.INSUFFICIENT_FUNDS"]
    assert ledger.balance(ANN) == 10


@pytest.mark.req("WALBR-03")
@pytest.mark.parametrize("body", ["other", "same"])
def test_nobody_voids_a_payment_by_naming_it_as_parent_first(body):
    """The forged copy comes first in logical order: it must not take the place of the original."""
    world = World()
    world.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 100, ts=0))
    draft = drafts.withdraw(BOB, 0, ts=0) if body == "other" else pay(60)
    payment = world.send(pay(60), at=2_000)
    forged = replace(draft, parent_id=payment.msg_id)
    world.send(forged, stream_id=wallet_stream(BOB), client=H(b"mallory"), at=1_999)
    ledger, _ = folded(world)
    assert (ledger.balance(ANN), ledger.balance(BOB)) == (40, 60)


SERVICE, TOKEN = H(b"service"), H(b"token")
STRICT = WalletPolicy.institutional(services=[SERVICE], auth_refs=[TOKEN], currencies=["USD"], max_skew_sec=2_000)


@pytest.mark.req("WAL-17", "WAL-20")
@pytest.mark.parametrize(
    "draft",
    [
        drafts.deposit(ANN, 1, ts=1_000),
        drafts.adjust(ANN, 1, ts=1_000, reason="gift"),
        drafts.limit(ANN, None, ts=1_000),
        drafts.freeze(ANN, ts=1_000),
        drafts.unfreeze(ANN, ts=1_000),
    ],
)
def test_what_makes_or_stops_money_needs_a_grant(draft):
    world = World()
    world.send_all(opened("ann", 1_000))
    world.send(draft)
    ledger, codes = folded(world, policy=STRICT)
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"]
    assert ledger.wallet(ANN) == folded(World(by_label={k: v[:1] for k, v in world.by_label.items()}))[0].wallet(ANN)
    for client, auth_ref in ((SERVICE, None), (None, TOKEN)):
        granted = World()
        granted.send_all(opened("ann", 1_000))
        granted.send(draft, client=client, auth_ref=auth_ref)
        assert folded(granted, policy=STRICT)[1] == []


@pytest.mark.req("WAL-17")
def test_a_grant_may_be_for_some_wallets_and_operations_only():
    grant = WalletGrant(operations=frozenset(["deposit"]), clients=frozenset([SERVICE]), wallets=frozenset([ANN]))
    policy = WalletPolicy(reserved=INSTITUTION - END_USER, grants=(grant,), max_skew_sec=None)
    world = World()
    world.send_all(opened("ann"), opened("bob"))
    for draft in (drafts.deposit(ANN, 1, ts=0), drafts.deposit(BOB, 1, ts=0), drafts.freeze(ANN, ts=0)):
        world.send(draft, client=SERVICE, at=world.now + 1)
    ledger, codes = folded(world, policy=policy)
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"] * 2
    assert (ledger.balance(ANN), ledger.balance(BOB), ledger.wallet(ANN).frozen) == (1, 0, False)
    with pytest.raises(ValueError, match="mint"):
        WalletPolicy(reserved=frozenset(["mint"]))


@pytest.mark.req("WAL-17")
def test_an_unauthorized_event_uses_up_neither_its_ref_nor_its_place_as_a_copy():
    world = World()
    world.send_all(opened("ann", 1_000))
    world.send(drafts.deposit(ANN, 5, ts=1_000, ref=b"tx"))
    real = world.send(drafts.deposit(ANN, 5, ts=1_000, ref=b"tx"), client=SERVICE)
    world.copy(real, client=H(b"mallory"), hub="A")
    ledger, codes = folded(world, policy=STRICT)
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"] * 2
    assert ledger.balance(ANN) == 5


@pytest.mark.req("WAL-03", "WAL-20")
def test_only_the_currencies_of_the_deployment_can_be_opened():
    world = World()
    world.send_all(opened("ann", 1_000), opened("dan", 1_000))
    world.copy(world.all()[-1], hub="A", stream_id=H(b"replica"))  # a bridge cannot bring one in either
    ledger, codes = folded(world, policy=STRICT)
    assert codes == ["WAL.INVALID_CURRENCY"]
    assert not ledger.wallet(DAN).exists


def test_a_policy_may_bound_how_far_a_sender_shifts_the_day():
    world = World()
    world.send_all(opened("ann", 1_000))
    world.send(drafts.withdraw(ANN, 0, ts=5_000))
    assert folded(world, policy=STRICT)[1] == ["WAL.SKEW"]
    assert folded(world)[1] == []


def test_a_snapshot_of_another_policy_is_refused():
    world = World()
    world.send_all(opened("ann"), drafts.deposit(ANN, 5, ts=0))
    fold = LedgerFold(policy=ANY_TIME)
    cuts = [Cut(label=label, upto_seq=len(e), mmr_root=H(label)) for label, e in world.by_label.items()]
    snapshot = Snapshot.take(fold, fold.summarize(world.all()), cuts)
    assert fold.view(snapshot.restore(fold, lambda label, _: H(label))).balance(ANN) == 5
    with pytest.raises(SnapshotRefused):
        snapshot.restore(LedgerFold(policy=STRICT), lambda label, _: H(label))


# --- producers ---


@pytest.mark.req("WAL-07", "WAL-09")
def test_producers_learn_beforehand_what_would_count_for_nothing():
    ledger, _ = after()
    assert drafts.check(ledger, pay(100))[BOB] == ledger.wallet(BOB)._replace(balance=100, received=100)
    for draft, code in ((pay(101), "WAL.INSUFFICIENT_FUNDS"), (drafts.close(ANN, ts=0), "WAL.BALANCE_LEFT")):
        with pytest.raises(Violation) as caught:
            drafts.check(ledger, draft)
        assert caught.value.code == code
    assert drafts.check(ledger, drafts.close(BOB, ts=0))[BOB] == ledger.wallet(BOB)._replace(closed=True)
    with pytest.raises(KeyError):
        drafts.check(ledger, Draft(schema=H(b"else"), body=b""))


def test_what_may_be_spent_follows_state_and_day():
    assert UNOPENED.spendable(0) == 0
    wallet = Wallet(exists=True, balance=50, daily_limit=20, pending_daily_spent=15, last_limit_reset_ts=0)
    assert (wallet.spendable(1), wallet.spendable(DAY)) == (5, 20)
    assert wallet._replace(frozen=True).spendable(DAY) == wallet._replace(closed=True).spendable(DAY) == 0
    assert wallet._replace(daily_limit=None).spendable(0) == 50
    assert wallet._replace(daily_limit=3).spendable(1) == 0


def test_sums_have_no_upper_bound():
    """D-07"""
    most = 2**64 - 1
    wallet_id = wallet_id_of(REALM, OWNERS["ann"], "USD")
    ledger, codes = after(drafts.deposit(wallet_id, most, ts=0), drafts.deposit(wallet_id, most, ts=1))
    assert codes == []
    assert ledger.balance(ANN) == 2 * most + 100
