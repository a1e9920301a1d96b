"""query.audit.v1 and federation.mirror.v1 (001 spec-3 §9, §10)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli import objects as world
from tests.overlays.operation_builders import ALICE, BOB, ID, MAIN, OTHER_ID, SIDE, codes, view

from veen.core import cbor
from veen.core.errors import FormatError, VeenError
from veen.core.hashing import Ht
from veen.core.tree.proof import prove_inclusion
from veen.overlays.operations.mirror import (
    MIRROR,
    FederationMirror,
    Mirrored,
    MirrorFold,
    attest,
    differences,
    hub_identifier,
)
from veen.overlays.operations.queryaudit import AuditedAccess, QueryAuditFold, audit, missing, result_digest_of
from veen.testing.events import FakeLog

# --- query audit -----------------------------------------------------------------------------------------------


@pytest.mark.req("QAUD-02")
def test_an_auditor_sees_who_read_what_in_the_order_of_the_log():
    log = FakeLog()
    log.append(audit(BOB, "patient:1", "personal-data", purpose_code="billing"), client="alice")
    log.append(audit(ALICE, "patient:2", "personal-data", query_parameters={"b": 1, "a": 2}), client="alice")
    accesses = list(view(QueryAuditFold(), log).values())
    assert [(access.requester, access.resource, access.purpose_code) for access in accesses] == [
        (BOB, "patient:1", "billing"),
        (ALICE, "patient:2", None),
    ]


@pytest.mark.req("QAUD-02")
def test_only_registered_services_write_the_audit_log():
    log = FakeLog()
    log.append(audit(BOB, "patient:1", "personal-data"), client="mallory")
    log.append(audit(BOB, "patient:1", "personal-data"), client="alice")
    assert codes(QueryAuditFold(services=[ALICE]), log) == [(1, "QAUD.SERVICE")]
    assert codes(QueryAuditFold(), log) == []
    for fields in (("", "c"), ("r", "")):
        with pytest.raises(FormatError, match=r"QAUD\.EMPTY"):
            audit(BOB, *fields)
    with pytest.raises(FormatError, match=r"QAUD\.EMPTY"):
        audit(BOB, "r", "c", purpose_code="")


@pytest.mark.req("QAUD-03")
def test_the_digest_of_a_result_does_not_depend_on_the_order_of_keys():
    expected = Ht("veen/query-result", bytes.fromhex("a2616101616202"))
    assert result_digest_of({"b": 2, "a": 1}) == result_digest_of({"a": 1, "b": 2}) == expected
    assert result_digest_of([{"a": 1}]) != expected


@pytest.mark.req("QAUD-04")
def test_accesses_without_an_audit_message_are_found():
    """Q1: a message accounts for one access."""
    log = FakeLog()
    log.append(audit(BOB, "r", "c", request_time=5))
    audited = view(QueryAuditFold(), log).values()
    access = AuditedAccess(BOB, "r")
    assert missing([access], audited) == []
    assert missing([access, access], audited) == [access]
    assert missing([AuditedAccess(BOB, "r", 5)], audited) == []
    others = [AuditedAccess(ALICE, "r"), AuditedAccess(BOB, "q"), AuditedAccess(BOB, "r", 6)]
    assert missing(others, audited) == others


# --- federation mirror -----------------------------------------------------------------------------------------

HUB_ID = b"h" * 32


def statement(seq=1, *, leaf=ID, root=MAIN, target=SIDE, parent=None, source=None):
    body = FederationMirror(
        source_hub_identifier=source or hub_identifier(HUB_ID),
        source_label=OTHER_ID,
        source_stream_seq=seq,
        source_leaf_hash=leaf,
        source_receipt_root=root,
        target_label=target,
    )
    return MIRROR.draft(body, parent_id=parent or leaf)


@pytest.mark.req("MIRR-04")
def test_a_position_is_stated_once_for_each_target():
    """F2."""
    log = FakeLog()
    log.append(statement(1))
    log.append(statement(1))
    log.append(statement(1, target=MAIN))
    log.append(statement(3))
    log.append(statement(6))
    assert codes(MirrorFold(), log) == [(2, "MIRR.DUPLICATE")]
    (source,) = view(MirrorFold(), log).values()
    assert source.upto == 6
    assert source.gaps() == [(2, 2), (4, 5)]
    assert source.positions[1].target_labels == tuple(sorted((MAIN, SIDE)))


@pytest.mark.req("MIRR-04")
def test_two_statements_that_contradict_each_other_are_evidence():
    log = FakeLog()
    first = log.append(statement(1))
    log.append(statement(1, root=ID, target=MAIN))
    log.append(statement(1, leaf=MAIN))
    issues = MirrorFold().issues(MirrorFold().summarize(log.all()))
    assert [issue.code for issue in issues] == ["MIRR.CONTRADICTION"] * 2
    assert first.msg_id.hex() in issues[0].what


def test_only_those_who_may_state_fix_a_position():
    """Whoever wrote first fixed a position."""
    log = FakeLog()
    log.append(statement(1, root=ID), client="mallory")
    log.append(statement(1), client="alice")
    assert codes(MirrorFold(), log) == [(2, "MIRR.CONTRADICTION")]
    named = MirrorFold(authors=[ALICE])
    assert codes(named, log) == [(1, "MIRR.AUTHOR")]
    (source,) = view(named, log).values()
    assert source.positions[1].root == MAIN
    assert named.semantics() != MirrorFold().semantics()


_statements = st.builds(
    statement, st.integers(1, 3), leaf=st.sampled_from((ID, MAIN)), target=st.sampled_from((MAIN, SIDE))
)


@given(st.lists(_statements, min_size=1, max_size=5))
def test_a_statement_that_is_repeated_at_any_later_position_by_anybody_changes_nothing(drafts):
    """Class 3 of REVIEW part 4."""
    for end in range(1, len(drafts) + 1):
        for again in drafts[:end]:
            log = FakeLog()
            for draft in drafts[:end]:
                log.append(draft, client="alice")
            before = view(MirrorFold(), log)
            log.append(again, client="mallory")
            assert view(MirrorFold(), log) == before


@pytest.mark.req("MIRR-02")
def test_a_statement_names_the_message_that_it_is_about():
    log = FakeLog()
    log.append(statement(1, parent=MAIN))
    draft = statement(1)
    log.append(replace(draft, parent_id=None))
    assert codes(MirrorFold(), log) == [(1, "MIRR.PARENT"), (2, "OVL.PARENT")]


@pytest.mark.req("MIRR-01")
@pytest.mark.parametrize("source", ["hub", "hub:" + "AB" * 32, "hub:" + "ab" * 31, "http://a", "vesn:" + "ab" * 33])
def test_a_source_has_a_form(source):
    """D-149."""
    with pytest.raises(FormatError, match=r"MIRR\.FORM"):
        statement(source=source)
    with pytest.raises(FormatError, match=r"MIRR\.FORM"):
        statement(0)


def attested(msg=world.MSGS[1], receipt=world.RECEIPTS[1], **fields):
    fields = {"hub_id": HUB_ID, "hub_pks": [world.HUB.public], "target_label": SIDE} | fields
    return attest(msg, receipt, **fields)


@pytest.mark.req("MIRR-02")
def test_an_entry_is_verified_before_it_is_stated():
    """F1."""
    draft = attested()
    body = FederationMirror.from_bytes(draft.body)
    receipt = world.RECEIPTS[1]
    assert draft.parent_id == receipt.leaf_hash == body.source_leaf_hash
    assert (body.source_stream_seq, body.source_receipt_root) == (receipt.stream_seq, receipt.mmr_root)
    log = FakeLog()
    log.append(draft)
    assert codes(MirrorFold(), log) == []
    for changed in (
        {"hub_pks": [world.ALICE.public]},
        {"receipt": world.RECEIPTS[2]},
        {"receipt": replace(receipt, mmr_root=MAIN)},
        {"msg": replace(world.MSGS[1], client_seq=9)},
    ):
        with pytest.raises(VeenError):
            attested(**changed)


@pytest.mark.req("MIRR-02")
def test_a_proof_must_lead_to_the_trusted_root():
    proof = prove_inclusion(world.TREE.node_at, 2, 5)
    attested(proof=proof, root=world.TREE.root(), tree_size=5)
    with pytest.raises(VeenError):
        attested(proof=proof, root=MAIN, tree_size=5)
    with pytest.raises(VeenError, match="give root and tree_size"):
        attested(proof=proof)


@pytest.mark.req("MIRR-03")
def test_a_statement_is_compared_with_the_receipt_of_the_source():
    receipt = world.RECEIPTS[1]
    stated = Mirrored(msg_id=ID, client_id=ALICE, leaf_hash=receipt.leaf_hash, root=receipt.mmr_root, target_labels=())
    assert differences(stated, receipt) == []
    assert "mmr_root" in differences(replace(stated, root=MAIN), receipt)[0]
    assert "leaf_hash" in differences(replace(stated, leaf_hash=MAIN), receipt)[0]
    assert cbor.decode(attested().body)["source_label"] == receipt.label
