"""agreement.definition.v1 and agreement.confirmation.v1: which version is active, at any position (001 spec-3 §5)."""

import pytest
from tests.overlays.operation_builders import ALICE, BANK, BOB, CAROL, ID, MAIN, OTHER_ID, SIDE, chain_to, codes, view

from veen.core.errors import FormatError
from veen.overlays.framework.runner import Runner
from veen.overlays.operations import delegation
from veen.overlays.operations.agreement import MAX_STEP, AgreementFold, confirm, define
from veen.testing.events import FakeLog, label_of

BOTH = (ALICE, BOB)
CLIENTS = {ALICE: "alice", BOB: "bob", CAROL: "carol"}


def defined(version=1, *, parties=BOTH, **fields):
    return define(ID, version, terms_hash=OTHER_ID, parties=parties, **fields)


def decide(log, party, decision="accept", version=1, **where):
    return log.append(confirm(ID, version, party, decision), client=CLIENTS[party], **where)


@pytest.mark.req("AGREE-04")
def test_a_version_is_active_when_all_its_parties_accept():
    log = FakeLog()
    log.append(defined())
    decide(log, ALICE)
    assert view(AgreementFold(), log).active == {}
    decide(log, BOB)
    assert view(AgreementFold(), log).active == {ID: 1}
    assert codes(AgreementFold(), log) == []


@pytest.mark.req("AGREE-04")
def test_the_state_at_every_position_follows_from_the_log():
    """D-158."""
    log = FakeLog()
    log.append(defined())
    decide(log, ALICE)
    decide(log, BOB)
    log.append(defined(2))
    decide(log, ALICE, version=2)
    decide(log, BOB, version=2)
    decide(log, BOB, "withdraw", version=2)
    decide(log, BOB, "reject")
    runner = Runner(AgreementFold(), log)
    label = label_of("main")
    active = [runner.view({label: seq}).active.get(ID) for seq in range(9)]
    assert active == [None, None, None, 1, 1, 1, 2, 1, None]


@pytest.mark.req("AGREE-05")
def test_the_latest_decision_of_a_party_counts_by_the_order_of_the_log():
    """M1; decision_time is the sender's word and decides nothing."""
    log = FakeLog()
    log.append(defined(parties=(ALICE,)))
    decide(log, ALICE)
    log.append(confirm(ID, 1, ALICE, "reject", decision_time=1), client="alice")
    assert view(AgreementFold(), log).active == {}
    decide(log, ALICE)
    assert view(AgreementFold(), log).active == {ID: 1}


@pytest.mark.req("AGREE-04")
def test_no_party_ends_an_agreement_by_defining_the_last_version():
    log = FakeLog()
    log.append(defined(), client="alice")
    log.append(defined((1 << 64) - 1), client="bob")
    log.append(defined(2), client="alice")
    log.append(defined(2 + MAX_STEP), client="bob")
    assert codes(AgreementFold(), log) == [(2, "AGREE.VERSION")]


def test_times_of_a_version_bound_it():
    log = FakeLog()
    log.append(defined(parties=(ALICE,), effective_time=2_000, expiry_time=3_000))
    decide(log, ALICE)
    state = view(AgreementFold(), log)
    assert [state.active_version(ID, at) for at in (1_999, 2_000, 2_999, 3_000)] == [None, 1, 1, None]
    assert view(AgreementFold(), log, 2_500).active == {ID: 1}
    for fields in ({"effective_time": 5, "expiry_time": 5}, {"expiry_time": 0}):
        with pytest.raises(FormatError, match=r"AGREE\.TIMES"):
            defined(**fields)


@pytest.mark.req("AGREE-03")
def test_versions_rise_and_the_first_definition_of_one_counts():
    log = FakeLog()
    log.append(defined(3))
    log.append(defined(3, parties=(ALICE,)))
    log.append(defined(2))
    log.append(defined(4))
    assert codes(AgreementFold(), log) == [(2, "AGREE.DUPLICATE"), (3, "AGREE.VERSION")]
    assert view(AgreementFold(), log).definitions[ID, 3].parties == BOTH


@pytest.mark.req("AGREE-03")
def test_a_decision_is_one_of_three_words():
    with pytest.raises(FormatError, match=r"AGREE\.DECISION"):
        confirm(ID, 1, ALICE, "perhaps")


def test_a_stranger_cannot_take_over_an_agreement_by_a_new_version():
    """A hijacked id: otherwise the hijacker would be the only party, and accept."""
    log = FakeLog()
    log.append(defined(), client="carol")  # defines it and is no party
    log.append(defined(2, parties=(ALICE,)), client="mallory")
    log.append(defined(2), client="bob")  # a party may
    log.append(defined(3, parties=(BOB,)), client="carol")  # neither defined nor is a party of version 2
    assert codes(AgreementFold(), log) == [(2, "AGREE.OWNER"), (4, "AGREE.OWNER")]


@pytest.mark.req("AGREE-02")
def test_nobody_decides_for_another_party():
    """D-137."""
    log = FakeLog()
    log.append(confirm(ID, 1, ALICE, "accept"), client="alice")
    log.append(defined())
    log.append(confirm(ID, 1, BOB, "accept"), client="alice")
    log.append(confirm(ID, 1, CAROL, "accept"), client="carol")
    log.append(confirm(ID, 2, BOB, "accept"), client="bob")
    assert codes(AgreementFold(), log) == [
        (1, "AGREE.UNKNOWN"),
        (3, "AGREE.SPEAKER"),
        (4, "AGREE.PARTY"),
        (5, "AGREE.UNKNOWN"),
    ]


@pytest.mark.req("DELEG-03", "AGREE-02")
def test_an_agent_decides_for_its_principal():
    caps, chain = chain_to(BOB)
    log = FakeLog()
    log.append(define(ID, 1, terms_hash=MAIN, parties=[BANK.public]))
    draft = confirm(ID, 1, BANK.public, "accept")
    log.append(delegation.delegate(draft, principal=BANK.public, agent=BOB, chain=chain), client="bob")
    assert view(AgreementFold(caps=caps), log).active == {ID: 1}
    assert codes(AgreementFold(), log) == [(2, "DELEG.UNRESOLVED")]


@pytest.mark.req("AGREE-01")
def test_parties_and_attached_terms_are_checked():
    for parties in ((), (ALICE, ALICE)):
        with pytest.raises(FormatError, match=r"AGREE\.PARTIES"):
            defined(parties=parties)
    log = FakeLog()
    log.append(defined(terms_attachment_root=SIDE), att_root=MAIN)
    log.append(defined(terms_attachment_root=MAIN), att_root=MAIN)
    assert codes(AgreementFold(), log) == [(1, "AGREE.TERMS")]
