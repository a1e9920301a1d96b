"""recovery.*: guardians, thresholds, and what an execution must rest on (001 spec-3 §8, D-140)."""

import pytest
from tests.overlays.operation_builders import ALICE, BOB, CAROL, ID, MALLORY, OTHER_ID, codes, op_id, view

from veen.core.errors import FormatError
from veen.core.hashing import H
from veen.overlays.operations.common import Speakers
from veen.overlays.operations.recovery import Guards, RecoveryFold, approve, execute, request
from veen.testing.events import FakeLog

OLD, NEW = H(b"old"), H(b"new")
NAMES = {ALICE: "alice", BOB: "bob", CAROL: "carol", MALLORY: "mallory"}


def fold(threshold=2, **kwargs):
    return RecoveryFold(guards=Guards.of([ALICE, BOB, CAROL], threshold, **kwargs))


def decide(log, guardian, decision="approve", *, target=OLD, new=NEW):
    return log.append(approve(target, new, guardian, decision), client=NAMES[guardian])


def asked(target=OLD, new=NEW):
    log = FakeLog()
    log.append(request(target, new), client="new")
    return log


@pytest.mark.req("RECOV-04", "RECOV-05", "RECOV-06")
def test_enough_approvals_remap_the_identity():
    log = asked()
    first, second = decide(log, ALICE), decide(log, BOB)
    event = log.append(execute(OLD, NEW, [op_id(first), second.msg_id]), client="new")  # D-89: either name
    assert codes(fold(), log) == []
    state = view(fold(), log)
    assert state.current(OLD) == NEW
    assert state.remapped[OLD].guardians == tuple(sorted((ALICE, BOB)))
    assert state.remapped[OLD].executed_by == op_id(event)
    speakers = Speakers.by(state.speaks())
    assert speakers.identities(NEW, event.ts) == {NEW, OLD}
    assert speakers.identities(NEW, event.ts - 1) == {NEW}


@pytest.mark.req("RECOV-04")
def test_too_few_guardians_are_not_enough():
    log = asked()
    first = decide(log, ALICE)
    log.append(execute(OLD, NEW, [op_id(first)]))
    log.append(execute(OLD, NEW, []))
    assert codes(fold(), log) == [(3, "RECOV.THRESHOLD"), (4, "RECOV.THRESHOLD")]
    assert view(fold(), log).current(OLD) == OLD
    assert codes(RecoveryFold(), log)[0] == (2, "RECOV.GUARDIAN")  # nobody guards anyone by default
    with pytest.raises(ValueError, match="at least one"):
        Guards.of([ALICE], 0)


@pytest.mark.req("RECOV-04")
def test_guardians_are_configured_by_target_too():
    guards = Guards.of([ALICE], by_target={OLD: ([BOB], 1)})
    log = asked()
    decide(log, ALICE)
    event = decide(log, BOB)
    log.append(execute(OLD, NEW, [op_id(event)]))
    assert codes(RecoveryFold(guards=guards), log) == [(2, "RECOV.GUARDIAN")]
    assert view(RecoveryFold(guards=guards), log).current(OLD) == NEW
    assert RecoveryFold(guards=guards).semantics() != fold().semantics()


@pytest.mark.req("RECOV-02", "RECOV-04")
def test_an_approval_is_by_a_guardian_who_speaks_for_himself():
    log = asked()
    decide(log, MALLORY)
    log.append(approve(OLD, NEW, ALICE), client="mallory")
    assert codes(fold(), log) == [(2, "RECOV.GUARDIAN"), (3, "RECOV.SPEAKER")]
    with pytest.raises(FormatError, match=r"RECOV\.DECISION"):
        approve(OLD, NEW, ALICE, "perhaps")


@pytest.mark.req("RECOV-04")
def test_approvals_come_after_the_request_and_before_the_execution():
    log = FakeLog()
    early = decide(log, ALICE)
    log.append(request(OLD, NEW))
    first, second = decide(log, ALICE), decide(log, BOB)
    log.append(execute(OLD, NEW, [op_id(early), op_id(second)]))
    log.append(execute(OLD, NEW, [op_id(first), op_id(second)]))
    decide(log, CAROL)
    assert codes(fold(), log) == [(1, "RECOV.NO_REQUEST"), (5, "RECOV.REFERENCE"), (7, "RECOV.LATE")]


@pytest.mark.req("RECOV-06")
def test_references_are_standing_matching_approvals_each_once():
    """R1, R2."""
    log = asked()
    first, second = decide(log, ALICE), decide(log, BOB)
    against = decide(log, CAROL, "reject")
    log.append(request(OLD, OTHER_ID))
    other = decide(log, CAROL, new=OTHER_ID)
    for references in (
        [op_id(first), op_id(against)],  # decision is not approve
        [op_id(first), op_id(other)],  # for another new identity
        [op_id(first), op_id(second), op_id(first)],
        [op_id(first), first.msg_id],  # one approval by both of its names
        [op_id(first), op_id(second), ID],  # of no message
    ):
        log.append(execute(OLD, NEW, references))
    assert codes(fold(), log) == [(seq, "RECOV.REFERENCE") for seq in range(7, 12)]


@pytest.mark.req("RECOV-06")
def test_a_guardian_who_changed_his_mind_does_not_approve():
    """D-140: his latest decision before the execution counts."""
    log = asked()
    first, second = decide(log, ALICE), decide(log, BOB)
    decide(log, ALICE, "reject")
    log.append(execute(OLD, NEW, [op_id(first), op_id(second)]))
    again = decide(log, ALICE)
    log.append(execute(OLD, NEW, [op_id(again), op_id(second)]))
    assert codes(fold(), log) == [(5, "RECOV.REFERENCE")]


@pytest.mark.req("RECOV-07")
def test_executors_may_be_restricted():
    """R3."""
    log = asked()
    references = [op_id(decide(log, ALICE)), op_id(decide(log, BOB))]
    log.append(execute(OLD, NEW, references), client="new")
    log.append(execute(OLD, NEW, references), client="carol")
    assert codes(fold(executors=[CAROL]), log) == [(4, "RECOV.EXECUTOR")]


@pytest.mark.req("RECOV-03", "RECOV-05")
def test_a_second_execution_needs_a_new_request_and_new_approvals():
    """D-140."""
    log = asked()
    references = [op_id(decide(log, ALICE)), op_id(decide(log, BOB))]
    log.append(execute(OLD, NEW, references))
    log.append(execute(OLD, NEW, references))
    log.append(execute(OLD, OTHER_ID, references))
    log.append(request(OLD, NEW))
    log.append(execute(OLD, NEW, references))
    assert codes(fold(), log) == [(5, "RECOV.DONE"), (6, "RECOV.NO_REQUEST"), (8, "RECOV.REFERENCE")]


@pytest.mark.req("RECOV-05")
def test_an_execution_closes_all_requests_for_the_target():
    log = asked()
    log.append(request(OLD, OTHER_ID))
    rival = [op_id(decide(log, guardian, new=OTHER_ID)) for guardian in (ALICE, BOB)]
    log.append(execute(OLD, NEW, [op_id(decide(log, ALICE)), op_id(decide(log, BOB))]))
    log.append(execute(OLD, OTHER_ID, rival))
    assert codes(fold(), log) == [(8, "RECOV.DONE")]


@pytest.mark.req("RECOV-01")
def test_an_identity_does_not_replace_itself_nor_in_a_circle():
    with pytest.raises(FormatError, match=r"RECOV\.SELF"):
        request(OLD, OLD)
    log = asked()
    log.append(execute(OLD, NEW, [op_id(decide(log, ALICE)), op_id(decide(log, BOB))]))
    log.append(request(NEW, OTHER_ID))
    both = [op_id(decide(log, guardian, target=NEW, new=OTHER_ID)) for guardian in (ALICE, BOB)]
    log.append(execute(NEW, OTHER_ID, both))
    assert view(fold(), log).current(OLD) == OTHER_ID  # transitive
    log.append(request(OTHER_ID, OLD))
    assert codes(fold(), log) == [(9, "RECOV.CYCLE")]


@pytest.mark.req("RECOV-05")
def test_a_guardian_who_was_recovered_is_spoken_for_by_his_successor_alone():
    log = asked(ALICE, MALLORY)
    log.append(
        execute(
            ALICE,
            MALLORY,
            [op_id(decide(log, guardian, target=ALICE, new=MALLORY)) for guardian in (BOB, CAROL)],
        )
    )
    log.append(request(OLD, NEW), client="new")
    decide(log, ALICE)
    event = decide(log, MALLORY)
    log.append(execute(OLD, NEW, [op_id(event), op_id(decide(log, BOB))]), client="new")
    assert codes(fold(), log) == [(6, "RECOV.SUPERSEDED")]
    assert view(fold(), log).remapped[OLD].guardians == tuple(sorted((ALICE, BOB)))
