"""access.grant.v1 and access.revoke.v1: who may grant what, and the tokens that follow (001 spec-3 §3)."""

import pytest
from tests.overlays.operation_builders import (
    ALICE,
    BANK,
    BOB,
    CAROL,
    ID,
    MAIN,
    MALLORY,
    ROOT,
    SIDE,
    cap,
    codes,
    op_id,
    view,
)

from veen.core.errors import FormatError
from veen.core.hashing import H, Ht
from veen.core.objects.captoken import CapToken, Rate
from veen.overlays.federation.policy import realm_policy
from veen.overlays.federation.realm import RealmState
from veen.overlays.operations.access import ACCESS_ADMIN, AccessFold, AccessGrant, grant, revoke, token_for
from veen.overlays.operations.common import Speakers, Speaks
from veen.overlays.operations.delegation import Caps
from veen.testing.events import FakeLog


def fold(**kwargs):
    return AccessFold(granters=[ALICE], **kwargs)


def admin(log, *, streams=(MAIN,), expiry=2_000, **fields):
    """Bob may grant within this."""
    return log.append(grant(BOB, [ACCESS_ADMIN, *streams], expiry_time=expiry, **fields), client="alice")


@pytest.mark.req("GRANT-06")
def test_grants_admit_until_they_expire():
    """A2."""
    log = FakeLog()
    log.append(grant(BOB, [MAIN], expiry_time=1_500), client="alice")
    state = view(fold(), log)
    assert state.admits(BOB, MAIN, 1_499)
    assert not state.admits(BOB, MAIN, 1_500)
    assert not state.admits(BOB, SIDE, 1_200)
    assert not state.admits(CAROL, MAIN, 1_200)


@pytest.mark.req("GRANT-06", "GRANT-04")
def test_bootstrap_tokens_admit_until_they_are_revoked():
    token = cap(ROOT, BOB, (MAIN,), ttl=5_000, issued_at=500)
    bootstrap = Caps([token])
    log = FakeLog()
    assert view(fold(), log).admits(BOB, MAIN, 1_000, bootstrap)
    log.append(revoke(BOB, token.token.auth_ref()), client="alice")
    state = view(fold(caps=bootstrap), log)
    assert not state.admits(BOB, MAIN, 1_000, bootstrap)
    assert state.revoked_refs == (token.token.auth_ref(),)
    log.append(revoke(CAROL), client="alice")
    later = Caps([cap(ROOT, CAROL, issued_at=900), cap(ROOT, CAROL, (MAIN, SIDE), issued_at=1_200)])
    assert not view(fold(), log).admits(CAROL, MAIN, 1_100, later)
    assert view(fold(), log).admits(CAROL, MAIN, 1_200, later)  # it was issued after the revocation


@pytest.mark.req("GRANT-05")
def test_only_granters_and_holders_of_an_admin_grant_may_grant():
    """A1, D-159."""
    assert H(b"veen/access-admin") == ACCESS_ADMIN
    log = FakeLog()
    log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="bob")
    admin(log)
    event = log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="bob")
    log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="mallory")
    assert codes(fold(), log) == [(1, "GRANT.AUTHORITY"), (4, "GRANT.AUTHORITY")]
    assert view(fold(), log).grants[op_id(event)].granter == BOB
    assert codes(AccessFold(), log) == [(seq, "GRANT.AUTHORITY") for seq in (1, 2, 3, 4)]


@pytest.mark.req("GRANT-05")
@pytest.mark.parametrize(
    ("asked", "streams", "expiry"),
    [
        ({}, [SIDE], 1_500),
        ({}, [MAIN], 2_001),
        ({"maximum_rate_per_second": 11, "maximum_burst": 5}, [MAIN], 1_500),
        ({"maximum_rate_per_second": 10, "maximum_burst": 6}, [MAIN], 1_500),
        ({"maximum_amount": 101, "currency_code": "EUR"}, [MAIN], 1_500),
        ({"maximum_amount": 100, "currency_code": "USD"}, [MAIN], 1_500),
    ],
    ids=["streams", "time", "rate", "burst", "amount", "currency"],
)
def test_an_admin_grants_nothing_beyond_his_own(asked, streams, expiry):
    """D-159."""
    limits = {"maximum_rate_per_second": 10, "maximum_burst": 5, "maximum_amount": 100, "currency_code": "EUR"}
    log = FakeLog()
    admin(log, **limits)
    log.append(grant(CAROL, streams, expiry_time=expiry, **(limits | asked)), client="bob")
    log.append(grant(CAROL, [MAIN], expiry_time=2_000, **limits), client="bob")
    log.append(grant(CAROL, [MAIN], expiry_time=2_000), client="bob")  # without a rate: unlimited
    refused = [(2, "GRANT.BEYOND"), (4, "GRANT.BEYOND")]
    assert codes(fold(), log) == refused
    without = FakeLog()
    admin(without)
    without.append(grant(CAROL, [MAIN], expiry_time=1_500, maximum_amount=1), client="bob")
    assert codes(fold(), without) == [(2, "GRANT.BEYOND")]


@pytest.mark.req("GRANT-05")
def test_an_admin_whose_grant_has_ended_grants_no_more():
    log = FakeLog()
    admin(log, expiry=1_100)
    log.append(grant(CAROL, [MAIN], expiry_time=1_100), client="bob", ts=1_099)
    log.append(grant(CAROL, [MAIN], expiry_time=1_101), client="bob", ts=1_100)
    admin(log, expiry=3_000)
    log.append(revoke(BOB), client="alice")
    log.append(grant(CAROL, [MAIN], expiry_time=2_000), client="bob")
    assert codes(fold(), log) == [(3, "GRANT.AUTHORITY"), (6, "GRANT.AUTHORITY")]


def test_a_grant_that_had_expired_when_the_hub_took_it_counts_for_nothing():
    log = FakeLog(now=1_000)
    log.append(grant(BOB, [MAIN], expiry_time=1_000), client="alice")
    assert codes(fold(), log) == [(1, "GRANT.EXPIRY")]


def test_streams_and_rates_that_say_nothing_cannot_be_drafted():
    with pytest.raises(FormatError, match=r"GRANT\.STREAMS"):
        grant(BOB, [], expiry_time=1)
    for streams in ((MAIN, MAIN), tuple(sorted((MAIN, SIDE), reverse=True))):
        with pytest.raises(FormatError, match=r"GRANT\.STREAMS"):
            AccessGrant(subject_identity=BOB, allowed_stream_ids=streams, expiry_time=1).to_bytes()
    with pytest.raises(FormatError, match=r"GRANT\.RATE"):
        grant(BOB, [MAIN], expiry_time=1, maximum_burst=1)


@pytest.mark.req("GRANT-03")
def test_a_grant_maps_to_a_token_of_the_granter():
    """D-91, D-159: real signatures, auth_ref as in the core, ttl to the second."""
    body = AccessGrant(
        subject_identity=BOB,
        allowed_stream_ids=(MAIN,),
        expiry_time=1_500,
        maximum_rate_per_second=3,
        maximum_burst=4,
    )
    token = token_for(body, BANK, now=1_200)
    token.verify()
    assert (token.issuer_pk, token.subject_pk) == (BANK.public, BOB)
    assert (token.allow.stream_ids, token.allow.ttl, token.allow.rate) == ((MAIN,), 300, Rate(per_sec=3, burst=4))
    assert token.auth_ref() == Ht("veen/cap", token.to_bytes())
    assert token_for(body, BANK, now=1_501).allow.ttl == 0
    assert CapToken.from_bytes(token.to_bytes()) == token


@pytest.mark.req("GRANT-04")
@pytest.mark.parametrize("by", ["operation_id", "msg_id", "auth_ref"])
def test_a_revocation_ends_the_grant_it_names_and_no_other(by):
    log = FakeLog()
    fold_ = AccessFold(granters=[BANK.public], caps=Caps([cap(BANK, BOB, (MAIN,))]), speakers=speakers_for_bank())
    named = log.append(grant(BOB, [MAIN], expiry_time=2_000), client="alice")
    log.append(grant(BOB, [SIDE], expiry_time=2_000), client="alice")
    target = {
        "operation_id": op_id(named),
        "msg_id": named.msg_id,
        "auth_ref": cap(BANK, BOB, (MAIN,)).token.auth_ref(),
    }[by]
    log.append(revoke(BOB, target), client="alice")
    state = view(fold_, log)
    assert not state.admits(BOB, MAIN, 1_100)
    assert state.admits(BOB, SIDE, 1_100)
    assert [revocation.code for revocation in state.revocations.values()] == [None]


def speakers_for_bank():
    return Speakers.by([Speaks(ALICE, BANK.public)])


@pytest.mark.req("GRANT-04")
def test_a_revocation_without_a_target_ends_all_of_the_subject():
    log = FakeLog()
    log.append(grant(BOB, [MAIN], expiry_time=2_000), client="alice")
    log.append(grant(BOB, [SIDE], expiry_time=2_000), client="alice")
    log.append(revoke(BOB), client="alice")
    assert view(fold(), log).live(BOB, 1_100) == ()


@pytest.mark.req("GRANT-04", "GRANT-05")
def test_only_granters_revoke_what_others_granted():
    log = FakeLog()
    admin(log)
    mine = log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="bob")
    theirs = log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="alice")
    log.append(revoke(CAROL), client="mallory")
    log.append(revoke(CAROL, op_id(theirs)), client="bob")
    log.append(revoke(CAROL), client="bob")
    assert codes(fold(), log) == [(4, "REVOKE.AUTHORITY"), (5, "REVOKE.AUTHORITY")]
    state = view(fold(), log)
    assert state.grants[op_id(mine)].revoked_by is not None
    assert state.grants[op_id(theirs)].revoked_by is None
    log.append(revoke(CAROL), client="alice")
    assert view(fold(), log).live(CAROL, 1_100) == ()


def test_the_holder_of_a_grant_ends_his_own_grants_and_nobody_elses_token():
    """Bob may grant MAIN, grants it to Alice, and revokes "everything" of hers."""
    root, small = cap(ROOT, CAROL, (MAIN, SIDE), issued_at=500), cap(BANK, CAROL, (MAIN,), issued_at=1_000)
    bootstrap = Caps([root, small])
    speakers = Speakers.by([Speaks(BOB, BANK.public)])
    configured = AccessFold(granters=[ALICE], caps=bootstrap, speakers=speakers)
    log = FakeLog()
    log.append(grant(BANK.public, [ACCESS_ADMIN, MAIN], expiry_time=2_000), client="alice")
    own = log.append(grant(CAROL, [MAIN], expiry_time=1_500), client="bob")
    log.append(revoke(CAROL), client="bob")
    state = view(configured, log)
    assert state.admits(CAROL, SIDE, 1_100, bootstrap)
    assert not state.admits(CAROL, MAIN, 1_100, Caps([small]))
    assert [entry.ended for entry in state.revocations.values()] == [(op_id(own),)]
    refused = realm_policy(RealmState((), ()), access=state, caps=bootstrap, as_of=1_100).revocations
    assert [entry.target for entry in refused] == [small.token.auth_ref()]
    log.append(revoke(CAROL), client="alice")  # a configured granter ends everything
    state = view(configured, log)
    assert not state.admits(CAROL, SIDE, 1_100, bootstrap)
    refused = realm_policy(RealmState((), ()), access=state, caps=bootstrap, as_of=1_100).revocations
    assert {entry.target for entry in refused} == {root.token.auth_ref(), small.token.auth_ref()}


def test_a_reference_that_means_nothing_is_revoked_all_the_same_and_shown_as_unmatched():
    """A token may be known to hubs and not to the reader: its revocation must reach them."""
    log = FakeLog()
    log.append(revoke(MALLORY, ID), client="alice")
    state = view(fold(), log)
    assert [revocation.code for revocation in state.revocations.values()] == ["REVOKE.UNMATCHED"]
    assert state.revoked_refs == (ID,)
