"""Money never appears or disappears: the laws of the ledger over random histories."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.wallet_reference import ANY_TIME, BRIDGE, STATE0, Reference, World, drafts_of_wallets, worlds

from veen.core.hashing import H
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.runner import MemorySource, Runner
from veen.overlays.framework.schema import Violation
from veen.overlays.framework.state import state_bytes
from veen.overlays.wallet import LedgerFold, WalletPolicy, flows
from veen.overlays.wallet.bodies import Adjust, Deposit, Transfer, WalletBody, Withdraw
from veen.overlays.wallet.rules import UNOPENED, Record, Wallet, apply
from veen.testing.laws import check_laws, outcome

pytestmark = pytest.mark.long

BY_BRIDGE = Mirrors.by([BRIDGE])


def check_conservation(ledger):
    """Per currency: what came in less what went out is what is there, and transfers move without making."""
    for supply in ledger.supply().values():
        assert supply.balance == supply.deposited - supply.withdrawn + supply.adjusted
    for wallet in ledger.wallets.values():
        assert wallet.balance >= 0
        flow = wallet.deposited - wallet.withdrawn + wallet.adjusted + wallet.received - wallet.sent
        assert wallet.balance == flow
    by_currency: dict[str | None, int] = {}
    for wallet in ledger.wallets.values():
        by_currency[wallet.currency] = by_currency.get(wallet.currency, 0) + wallet.received - wallet.sent
    assert not any(by_currency.values())


@pytest.mark.req("WAL-05", "WAL-10", "WAL-11", "WAL-15")
@examples(300)
@given(worlds(), st.data())
def test_money_never_appears_or_disappears_in_any_cut_and_association(world, data):
    """Closed, frozen and self transfers, other currencies, copies, replays, forgeries, several labels per stream."""
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    events = world.all()
    check_conservation(fold.view(fold.summarize(events)))
    for cut in range(len(events) + 1):  # at every moment, not only at the end
        ledger = fold.view(fold.summarize(events[:cut]))
        check_conservation(ledger)
    replayed = data.draw(st.permutations(events + events[: len(events) // 2]))
    cut = data.draw(st.integers(0, len(replayed)))
    parts = [fold.summarize(replayed[:cut]), fold.summarize(replayed[cut:])]
    assert outcome(fold, fold.merge(*parts)) == outcome(fold, fold.summarize(events))
    assert outcome(fold, fold.merge(*reversed(parts))) == outcome(fold, fold.summarize(events))


@pytest.mark.req("WAL-05", "WAL-06", "WAL-07", "WAL-08", "WAL-09", "WAL-10", "WAL-12", "WAL-13", "WAL-14", "WAL-15")
@examples(400)
@given(worlds())
def test_the_ledger_agrees_with_the_reference_algorithm(world):
    """WAL §6 with D-98 … D-100, written a second time without any of our code."""
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    summary = fold.summarize(world.all())
    reference = Reference().fold(world.all())
    ledger = fold.view(summary)
    ours = {
        wallet_id: {name: getattr(wallet, name) for name in STATE0}
        for wallet_id, wallet in ledger.wallets.items()
        if wallet != UNOPENED
    }
    assert ours == reference.touched()
    assert [(i.label, i.stream_seq, i.code) for i in fold.issues(summary)] == sorted(reference.codes)
    totals = {code: supply.balance for code, supply in ledger.supply().items()}
    assert {code: total for code, total in totals.items() if total} == {
        code: total for code, total in reference.outside.items() if total
    }


def wallets_anywhere(**kwargs):
    return LedgerFold(policy=WalletPolicy(own_streams=False, trust_every_writer=True, max_skew_sec=None), **kwargs)


@pytest.mark.req("OVL-15", "WAL-15")
@examples(150)
@given(data=st.data())
def test_the_ledger_keeps_the_laws_of_folds(data):
    """spec §11.1, §11.3; several wallets on one stream, as WAL §3.1 permits."""
    check_laws(data, wallets_anywhere, lambda draw, log: draw(drafts_of_wallets()))


@pytest.mark.req("WALBR-03")
@examples(150)
@given(worlds(hostile=False), st.data())
def test_copies_by_a_bridge_change_nothing_wherever_they_stand(world, data):
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    before = state_bytes(fold.view(fold.summarize(world.all())))
    world.now = max(event.ts for event in world.all()) + 1
    for event in data.draw(st.lists(st.sampled_from(world.all()), max_size=8)):
        world.copy(event, stream_id=data.draw(st.sampled_from([event.stream_id, H(b"replica")])))
    assert state_bytes(fold.view(fold.summarize(world.all()))) == before


@pytest.mark.req("WALBR-03")
@examples(150)
@given(worlds(hostile=False, max_events=20))
def test_a_replica_on_one_stream_shows_the_same_balances(world):
    """WAL §11.2: hub B holds copies only, sent in logical order."""
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    replica = World(now=99_000)
    for event in world.all():
        replica.copy(event, stream_id=H(b"replica"))
    ours, theirs = (fold.view(fold.summarize(w.all())) for w in (world, replica))
    assert theirs == ours


@pytest.mark.req("WAL-19")
@examples(100)
@given(worlds(hostile=False))
def test_neither_metadata_nor_attachments_nor_expiry_decide_anything(world):
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    expected = outcome(fold, fold.summarize(world.all()))
    dressed = [
        dataclasses.replace(event, hdr=dataclasses.replace(event.hdr, att_root=H(b"invoice"), expires_at=1))
        for event in world.all()
    ]
    assert outcome(fold, fold.summarize(dressed)) == expected


@examples(300)
@given(worlds(max_events=40), st.lists(st.integers(0, 50), max_size=4), st.integers(0, 50))
def test_settling_windows_in_parallel_gives_the_state_of_folding_one_by_one(world, cuts, start):
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    summary = fold.summarize(world.all())
    ordered = sorted(summary.segment.values(), key=lambda typed: typed.order)
    expected = fold.advance(None, ordered)

    identities: set[bytes] = set()
    screened = []
    for typed in ordered:
        identity = fold.mirrors.identity(typed.event)
        if identity not in identities and not _is_refused(fold, typed):
            screened.append(typed.body)
        identities.add(identity)
    state: Table[bytes, Record] = Table()
    for body in screened[:start]:
        _apply(state, body)
    rest = screened[start:]
    bounds = [0, *sorted(min(cut, len(rest)) for cut in cuts), len(rest)]
    window = flows.Window()
    for a, b in itertools.pairwise(bounds):
        window = window.then(flows.summarize(rest[a:b]))
    assert window == flows.summarize(rest)
    settled = flows.settle(state, window)
    for key, record in settled.changes.items():
        state[key] = record
    for body in rest:
        if not settled.is_done(body):
            _apply(state, body)
    assert dict(state.items()) == dict(expected.table.items())


def _is_refused(fold, typed):
    try:
        return not fold.screen(typed)
    except Violation:
        return True


def _apply(state, body):
    try:
        changes = apply(state, body)
    except Violation:
        return
    for key, record in changes.items():
        state[key] = record


PEOPLE = [bytes([n]) * 32 for n in range(5)]


@st.composite
def payments(draw) -> list[WalletBody]:
    """What a busy day looks like: many ordinary payments, few of them too large, hardly anything else."""
    bodies: list[WalletBody] = []
    for number in range(draw(st.integers(0, 25))):
        who, to = draw(st.permutations(PEOPLE))[:2]
        amount = draw(st.integers(0, 6))
        match draw(st.integers(0, 9)):
            case 0 | 1:
                bodies.append(Deposit(wallet_id=who, amount=amount, ts=0))
            case 2 | 3:
                bodies.append(Withdraw(wallet_id=who, amount=amount, ts=0))
            case 4:
                bodies.append(Adjust(wallet_id=who, delta=amount - 3, ts=0, reason=""))
            case _:
                transfer_id = bytes([number % 20]) * 32
                bodies.append(Transfer(wallet_id=who, to_wallet_id=to, amount=amount, ts=0, transfer_id=transfer_id))
    return bodies


STATES = st.fixed_dictionaries(
    {
        person: st.builds(
            Wallet,
            exists=st.just(True),
            balance=st.integers(0, 12),
            daily_limit=st.sampled_from([None] * 15 + [8]),
            frozen=st.sampled_from([False] * 15 + [True]),
            currency=st.sampled_from(["USD"] * 15 + ["JPY"]),
        )
        for person in PEOPLE
    }
)


@examples(500)
@given(STATES, payments(), st.integers(0, 25))
def test_what_addition_settles_is_what_one_by_one_gives(before, bodies, cut):
    one_by_one = dict(before)
    for body in bodies:
        _apply(one_by_one, body)
    window = flows.summarize(bodies[:cut]).then(flows.summarize(bodies[cut:]))
    settled = flows.settle(before, window)
    state = {**before, **settled.changes}
    for body in bodies:
        if not settled.is_done(body):
            _apply(state, body)
    assert state == one_by_one


@given(payments())
def test_nothing_is_replayed_where_nothing_can_be_refused(bodies):
    unique = {getattr(body, "transfer_id", number): body for number, body in enumerate(bodies)}
    rich = {person: Wallet(exists=True, balance=1_000, currency="USD") for person in PEOPLE}
    settled = flows.settle(rich, flows.summarize(unique.values()))
    assert settled.replay == frozenset()
    assert sum(w.balance for w in {**rich, **settled.changes}.values() if isinstance(w, Wallet)) == 5_000 + sum(
        flow.net for flow in flows.summarize(unique.values()).flows.values()
    )


def test_a_doubtful_wallet_draws_in_only_those_it_trades_with():
    a, b, c, d, e = PEOPLE
    rich = {person: Wallet(exists=True, balance=10, currency="USD") for person in PEOPLE}
    pay = [
        Transfer(wallet_id=a, to_wallet_id=b, amount=11, ts=0, transfer_id=bytes(32)),
        Transfer(wallet_id=c, to_wallet_id=b, amount=1, ts=0, transfer_id=b"1" * 32),
        Transfer(wallet_id=d, to_wallet_id=e, amount=1, ts=0, transfer_id=b"2" * 32),
    ]
    settled = flows.settle(rich, flows.summarize(pay))
    assert settled.replay == {a, b, c}
    assert [settled.is_done(body) for body in pay] == [False, False, True]


def test_how_low_a_wallet_gets_counts_what_left_before():
    """6 and 6 of 10: neither window alone is doubtful."""
    twice = [Withdraw(wallet_id=PEOPLE[0], amount=6, ts=0)] * 2
    window = flows.summarize(twice[:1]).then(flows.summarize(twice[1:]))
    assert window.flows[PEOPLE[0]].low == -12
    state = {PEOPLE[0]: Wallet(exists=True, balance=10)}
    assert flows.settle(state, window).replay == {PEOPLE[0]}
    assert flows.settle({PEOPLE[0]: Wallet(exists=True, balance=12)}, window).replay == frozenset()


def test_another_currency_and_a_used_id_are_doubtful():
    a, b = PEOPLE[:2]
    pay = Transfer(wallet_id=a, to_wallet_id=b, amount=1, ts=0, transfer_id=bytes(32))
    state: dict[bytes, Record] = {person: Wallet(exists=True, balance=9, currency="USD") for person in (a, b)}
    assert flows.settle(state, flows.summarize([pay])).replay == frozenset()
    assert flows.settle({**state, b: Wallet(exists=True, currency="JPY")}, flows.summarize([pay])).replay == {a, b}
    assert flows.settle({**state, **apply(state, pay)}, flows.summarize([pay])).replay == {a, b}
    again = flows.summarize([pay])
    assert again.then(again).uneasy == {a}


@pytest.mark.req("WAL-21")
@examples(60)
@given(worlds(), st.integers(1, 5), st.data())
def test_a_runner_shows_the_ledger_as_of_any_moment(world, interval, data):
    fold = LedgerFold(mirrors=BY_BRIDGE, policy=ANY_TIME)
    runner = Runner(fold, MemorySource(world.all()), interval=interval, fanout=2)
    ts = data.draw(st.integers(999, world.now + 1))
    assert runner.view_at(ts) == fold.view(fold.summarize([event for event in world.all() if event.ts <= ts]))
    assert runner.issues() == fold.issues(fold.summarize(world.all()))
