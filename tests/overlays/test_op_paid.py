"""paid.operation.v1: the ledger, who may debit, and every reason why a payment counts for nothing (001 spec-3 §2)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.operation_builders import (
    ALICE,
    BANK,
    BOB,
    CAROL,
    ID,
    MAIN,
    SIDE,
    account,
    chain_to,
    codes,
    op_id,
    view,
)
from tests.overlays.test_operations_laws import paid_with_issuers, write_paid

from veen.core import cbor
from veen.core.errors import FormatError
from veen.overlays.operations import access, delegation
from veen.overlays.operations.common import Speakers, Speaks, account_id_of
from veen.overlays.operations.paid import PaidFold, PaidOperation, pay
from veen.testing.events import FakeLog
from veen.testing.laws import _history

ISSUER = account("alice")


def payment(payer, payee, amount, *, now=None, **fields):
    fields = {"operation_type": "t", "operation_args": {}, "currency_code": "EUR"} | fields
    return pay(
        PaidOperation(payer_account=account(payer), payee_account=account(payee), amount=amount, **fields), now=now
    )


def ledger(**kwargs):
    return PaidFold(issuing=[ISSUER], **kwargs)


def funded(amount=100):
    """Alice issues, Bob has money."""
    log = FakeLog()
    log.append(payment("alice", "bob", amount), client="alice")
    return log


@pytest.mark.req("PAID-02", "OPC-03")
def test_amounts_move_from_payer_to_payee_in_the_order_of_the_log():
    log = funded(100)
    event = log.append(payment("bob", "carol", 60), client="bob")
    state = view(ledger(), log)
    assert [state.balance(account(name), "EUR") for name in ("alice", "bob", "carol")] == [-100, 40, 60]
    assert state.operations[op_id(event)].amount == 60
    reverse = FakeLog()
    reverse.append(payment("bob", "carol", 60), client="bob")  # before the money is there
    reverse.append(payment("alice", "bob", 100), client="alice")
    assert codes(ledger(), reverse) == [(1, "PAID.FUNDS")]


@pytest.mark.req("PAID-03")
def test_no_account_goes_below_zero_but_those_that_issue():
    log = funded(100)
    log.append(payment("bob", "carol", 101), client="bob")
    log.append(payment("bob", "carol", 100), client="bob")
    log.append(payment("bob", "carol", 1), client="bob")
    assert codes(ledger(), log) == [(2, "PAID.FUNDS"), (4, "PAID.FUNDS")]
    assert codes(PaidFold(), log)[0] == (1, "PAID.FUNDS")  # nobody may issue


@pytest.mark.req("PAID-03")
def test_a_payment_to_oneself_is_checked_and_moves_nothing():
    log = funded(10)
    log.append(payment("bob", "bob", 11), client="bob")
    log.append(payment("bob", "bob", 10), client="bob")
    assert codes(ledger(), log) == [(2, "PAID.FUNDS")]
    assert view(ledger(), log).balance(account("bob"), "EUR") == 10


@pytest.mark.req("PAID-05")
def test_a_payment_without_a_currency_needs_a_default_unit():
    log = FakeLog()
    log.append(payment("alice", "bob", 5, currency_code=None), client="alice")
    assert codes(ledger(), log) == [(1, "PAID.CURRENCY")]
    assert view(ledger(default="points"), log).balance(account("bob"), "points") == 5
    assert codes(ledger(default="points", currencies=["EUR"]), log) == [(1, "PAID.CURRENCY")]
    with pytest.raises(FormatError, match=r"PAID\.CURRENCY"):
        payment("alice", "bob", 5, currency_code="")


def test_currencies_are_ledgers_of_their_own():
    log = funded(100)
    log.append(payment("bob", "carol", 1, currency_code="USD"), client="bob")
    assert codes(ledger(), log) == [(2, "PAID.FUNDS")]


def test_a_payment_that_the_hub_takes_too_late_counts_for_nothing():
    """D-90."""
    draft = payment("alice", "bob", 5, ttl_seconds=10, now=1_000)
    assert draft.expires_at == 1_010
    log = FakeLog()
    log.append(draft, client="alice", ts=1_010)
    log.append(draft, client="alice", ts=1_011)
    assert codes(ledger(), log) == [(2, "PAID.EXPIRED")]
    with pytest.raises(ValueError, match="give the time"):
        payment("alice", "bob", 5, ttl_seconds=10)


@pytest.mark.req("PAID-07")
def test_the_same_operation_with_the_same_reference_is_paid_once():
    log = FakeLog()
    log.append(payment("alice", "bob", 5, operation_reference=ID), client="alice")
    log.append(payment("alice", "bob", 5, operation_reference=ID), client="alice", stream="side")
    log.append(payment("alice", "bob", 6, operation_reference=ID), client="alice")  # another operation
    log.append(payment("alice", "bob", 5), client="alice")
    log.append(payment("alice", "bob", 5), client="alice")
    assert codes(ledger(), log) == [(1, "PAID.DUPLICATE")]
    assert view(ledger(), log).balance(account("bob"), "EUR") == 21


@pytest.mark.req("PAID-07")
def test_an_operation_is_the_same_in_whatever_order_its_arguments_stand():
    """D-03: the keys of free-form maps stand in any order, and one encoding decides."""
    sorted_draft = payment("alice", "bob", 5, operation_reference=ID, operation_args={"a": 1, "bb": [{"c": 2, "d": 3}]})
    tree = cbor.decode(sorted_draft.body)
    tree["operation_args"] = {"bb": [{"d": 3, "c": 2}], "a": 1}
    other_draft = replace(sorted_draft, body=cbor.encode(tree))
    assert other_draft.body != sorted_draft.body
    for first, second in ((sorted_draft, other_draft), (other_draft, sorted_draft)):
        log = FakeLog()
        log.append(first, client="alice")
        log.append(second, client="alice")
        assert codes(ledger(), log) == [(2, "PAID.DUPLICATE")]


@pytest.mark.req("PAID-07")
def test_every_operation_has_its_own_id_for_side_effects():
    log = FakeLog()
    events = [log.append(payment("alice", "bob", 5), client="alice") for _ in range(2)]
    assert set(view(ledger(), log).operations) == {op_id(event) for event in events}


# --- who may debit -------------------------------------------------------------------------------------------------


@pytest.mark.req("PAID-08", "OPC-04")
def test_a_stranger_cannot_debit_an_account():
    """D-138."""
    log = funded()
    log.append(payment("bob", "mallory", 1), client="mallory")
    assert codes(ledger(), log) == [(2, "PAID.RIGHTS")]
    owners = ledger(owners={account("bob"): CAROL})
    log.append(payment("bob", "mallory", 1), client="bob")
    log.append(payment("bob", "mallory", 1), client="carol")
    assert codes(owners, log) == [(2, "PAID.RIGHTS"), (3, "PAID.RIGHTS")]


@pytest.mark.req("PAID-08")
def test_a_device_debits_the_account_of_its_principal():
    log = funded()
    log.append(payment("bob", "carol", 1), client="phone")
    phone = log.all()[-1].client_id
    assert codes(ledger(), log) == [(2, "PAID.RIGHTS")]
    assert codes(ledger(speakers=Speakers.by([Speaks(phone, BOB)])), log) == []


def allow(amount, *, streams=(MAIN,), expiry=2_000, currency="EUR"):
    return access.grant(CAROL, streams, expiry_time=expiry, maximum_amount=amount, currency_code=currency)


@pytest.mark.req("PAID-08", "GRANT-06")
def test_a_grant_of_the_owner_lets_its_subject_debit_up_to_the_amount():
    log = funded()
    log.append(allow(50), client="bob")
    log.append(payment("bob", "dora", 30), client="carol")
    log.append(payment("bob", "dora", 21), client="carol")
    log.append(payment("bob", "dora", 20), client="carol")
    log.append(payment("bob", "dora", 1), client="carol")
    assert codes(ledger(), log) == [(4, "PAID.AMOUNT"), (6, "PAID.AMOUNT")]
    assert view(ledger(), log).balance(account("bob"), "EUR") == 50


@pytest.mark.req("PAID-08")
@pytest.mark.parametrize(
    ("grant", "client"),
    [
        (allow(50, expiry=1_000), "bob"),
        (allow(50, streams=(SIDE,)), "bob"),
        (allow(50, currency="USD"), "bob"),
        (allow(None, currency=None), "bob"),
        (allow(50), "mallory"),
    ],
    ids=["expired", "another stream", "another currency", "no amount", "not of the owner"],
)
def test_a_grant_that_does_not_fit_gives_no_right(grant, client):
    log = funded()
    log.append(grant, client=client)
    log.append(payment("bob", "dora", 1), client="carol")
    assert codes(ledger(), log) == [(3, "PAID.RIGHTS")]


@pytest.mark.req("PAID-08", "GRANT-04")
@pytest.mark.parametrize("by", ["subject", "operation_id", "msg_id"])
def test_a_revocation_of_the_owner_takes_the_right_back(by):
    log = funded()
    granted = log.append(allow(50), client="bob")
    target = {"subject": None, "operation_id": op_id(granted), "msg_id": granted.msg_id}[by]
    log.append(access.revoke(CAROL, target), client="mallory")  # no owner
    log.append(payment("bob", "dora", 1), client="carol")
    log.append(access.revoke(CAROL, target), client="bob")
    log.append(payment("bob", "dora", 1), client="carol")
    assert codes(ledger(), log) == [(6, "PAID.RIGHTS")]


def test_a_revocation_that_means_nothing_is_told_to_the_owner():
    log = funded()
    log.append(allow(50), client="bob")
    log.append(access.revoke(CAROL, ID), client="bob")
    assert codes(ledger(), log) == [(3, "REVOKE.UNMATCHED")]


@pytest.mark.req("DELEG-03", "PAID-08")
def test_an_agent_pays_with_the_authority_of_its_principal():
    caps, chain = chain_to(BOB)
    bank = account_id_of(BANK.public)
    body = PaidOperation(
        operation_type="t", operation_args=None, payer_account=bank, payee_account=ISSUER, amount=3, currency_code="EUR"
    )
    log = FakeLog()
    log.append(delegation.delegate(pay(body), principal=BANK.public, agent=BOB, chain=chain), client="bob")
    log.append(pay(body), client="bob")
    fold = PaidFold(issuing=[bank], caps=caps)
    assert codes(fold, log) == [(2, "PAID.RIGHTS")]
    assert view(fold, log).balance(ISSUER, "EUR") == 3


# --- conservation --------------------------------------------------------------------------------------------------


@pytest.mark.req("PAID-02", "PAID-03")
@examples(100)
@given(data=st.data())
def test_no_history_creates_or_destroys_money(data):
    """Of each currency all balances sum up to 0, and only issuing accounts are below it."""
    log = _history(data.draw, write_paid, 24)
    fold = paid_with_issuers()
    state = view(fold, log)
    assert set(state.sums().values()) <= {0}
    issuing = {account("alice"), account_id_of(BANK.public)}
    assert all(balance >= 0 for (owner, _), balance in state.balances.items() if owner not in issuing)
    moved = sum(operation.amount for operation in state.operations.values() if operation.payer != operation.payee)
    assert sum(abs(balance) for balance in state.balances.values()) <= 2 * moved


def test_settings_are_part_of_what_decides_the_state():
    folds = [ledger(), PaidFold(), ledger(default="x"), ledger(owners={ISSUER: ALICE}), ledger(currencies=["x"])]
    assert len({fold.semantics() for fold in folds}) == len(folds)
