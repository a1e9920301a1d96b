"""The rows of the admission table that policy views and client bounds add: AUTH1, KEX1+ (decisions §7)."""

from dataclasses import replace

import pytest
from tests.hub import builders as w
from tests.hub.test_admission import admit, judge, why

from veen.core.errors import Refusal
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import CapAuthorize, PolicyAuthority, PolicyRevocation
from veen.core.objects.msg import Msg
from veen.core.objects.policies import Authority, Revocation, realm_id_of
from veen.core.objects.profile import PRESETS
from veen.hub.admission.decide import Accept, Refuse, decide
from veen.hub.admission.policy import Auth1, Kex1
from veen.storage.state import Cap

HUB_ID, OTHER_HUB = hub_id_of(w.HUB.public), hub_id_of(w.BOB.public)
REALM = realm_id_of("default")
AUTH1 = Auth1(hub_id=HUB_ID, realm_id=REALM)
KEX1 = Kex1(max_client_id_lifetime_sec=100, max_msgs_per_client_id_per_label=3)
LATER = w.NOW + 1  # policy records of `w.NOW` count from here on

ELSEWHERE = Authority(
    realm_id=REALM,
    stream_id=w.STREAM,
    primary_hub=OTHER_HUB,
    replica_hubs=(HUB_ID,),
    policy="single-primary",
    ts=w.NOW,
    ttl=60,
)


def state_with(*items, state=None):
    current = state or w.state()
    for item in items:
        if isinstance(item, Revocation):
            current.policies.add(PolicyRevocation(revocations=(item,)), w.NOW)
        else:
            current.policies.add(PolicyAuthority(authorities=(item,)), w.NOW)
    return current


def revoked(kind, target, ts=w.NOW, ttl=None):
    return Revocation(kind=kind, target=target, ts=ts, ttl=ttl)


EVERY_REVOCATION = {
    "client-id": w.ALICE.public,
    "auth-ref": w.TOKEN.auth_ref(),
    "cap-token": H(w.TOKEN.to_bytes()),
}


# --- off by default --------------------------------------------------------------------------------------


@pytest.mark.req("CAP-14")
def test_the_core_hub_holds_nobody_to_any_of_it():
    """D-51: off by default, whatever the journal says."""
    state = state_with(ELSEWHERE, *(revoked(kind, target) for kind, target in EVERY_REVOCATION.items()))
    for seq in range(1, 6):
        assert not isinstance(admit(state, w.msg(seq=seq), LATER + 200 * (seq > 3)), Refuse)
    assert isinstance(judge(w.msg(seq=6), state, now=LATER + 300), Accept)


# --- AUTH1 -----------------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-02", "AUTH-03")
def test_only_the_primary_of_a_stream_admits_to_it():
    policy = w.policy(auth1=AUTH1)
    decision = judge(w.msg(), state_with(ELSEWHERE), policy=policy, now=LATER)
    detail = {"policy": "single-primary", "primary_hub": OTHER_HUB.hex()}
    assert decision == Refuse(Refusal.NOT_PRIMARY, detail)
    here = replace(ELSEWHERE, primary_hub=HUB_ID)
    assert isinstance(judge(w.msg(), state_with(here), policy=policy, now=LATER), Accept)
    assert isinstance(judge(w.msg(), state_with(ELSEWHERE), policy=policy, now=w.NOW + 60), Accept)


@pytest.mark.req("AUTH-04")
def test_of_several_primaries_each_admits():
    multi = replace(ELSEWHERE, policy="multi-primary")
    assert isinstance(judge(w.msg(), state_with(multi), policy=w.policy(auth1=AUTH1), now=LATER), Accept)


@pytest.mark.req("AUTH-05", "FED-06")
def test_a_stream_nobody_speaks_about_follows_the_configuration():
    """D-101: accepted locally unless configured otherwise."""
    strict = w.policy(auth1=replace(AUTH1, accept_unspecified=False))
    for record in (replace(ELSEWHERE, stream_id=w.OTHER_STREAM), replace(ELSEWHERE, realm_id=realm_id_of("another"))):
        state = state_with(record)
        assert isinstance(judge(w.msg(), state, policy=w.policy(auth1=AUTH1), now=LATER), Accept)
        assert judge(w.msg(), state, policy=strict, now=LATER) == Refuse(Refusal.NOT_PRIMARY, {"policy": "unspecified"})


@pytest.mark.req("AUTH-01")
def test_the_authority_of_a_label_is_that_of_its_stream_in_every_epoch():
    """D-23, D-56a: one resolution serves all; a label that has entries is known for ever."""
    resolver = w.resolver(w.STREAM, epoch_sec=3600)
    epoch = LATER // 3600
    policy = w.policy(auth1=AUTH1)
    for shift in (-1, 0, 1):
        label = label_of(w.ROUTING_KEY, w.STREAM, epoch + shift)
        message = w.msg(label=label, profile=PRESETS["rotating"])
        assert why(judge(message, state_with(ELSEWHERE), policy=policy, resolver=resolver, now=LATER)) is (
            Refusal.NOT_PRIMARY
        )
    state = w.state()
    admit(state, w.msg(), policy=policy)
    state_with(ELSEWHERE, state=state)
    assert why(judge(w.msg(seq=2), state, policy=policy, now=LATER)) is Refusal.NOT_PRIMARY


def test_a_label_without_a_known_stream_has_no_authority():
    """D-24: open scope cannot look it up; a label nobody can resolve is out of scope as before."""
    policy = w.policy(auth1=AUTH1, stream_scope="open", capability_gating=False)
    assert isinstance(
        judge(w.msg(label=b"x" * 32, token=None), state_with(ELSEWHERE), policy=policy, now=LATER), Accept
    )
    scoped = w.policy(auth1=replace(AUTH1, accept_unspecified=False))
    assert why(judge(w.msg(label=b"x" * 32), state_with(ELSEWHERE), policy=scoped, now=LATER)) is Refusal.CAP_SCOPE


# --- KEX1+: revocation -----------------------------------------------------------------------------------


@pytest.mark.req("KEX1-08", "KEX0-06")
@pytest.mark.parametrize(
    ("kind", "refusal", "field"),
    [
        ("client-id", Refusal.CLIENT_REVOKED, "client_id"),
        ("auth-ref", Refusal.CAP_REVOKED, "auth_ref"),
        ("cap-token", Refusal.CAP_REVOKED, "auth_ref"),
    ],
)
def test_what_is_revoked_is_refused_for_as_long_as_a_record_says(kind, refusal, field):
    policy, target = w.policy(kex1=Kex1()), EVERY_REVOCATION[kind]
    state = state_with(revoked(kind, target, ts=w.NOW + 5, ttl=10))
    answers = {ts: judge(w.msg(), state, policy=policy, now=ts) for ts in range(w.NOW, w.NOW + 20)}
    assert [ts for ts, answer in answers.items() if isinstance(answer, Refuse)] == list(range(w.NOW + 5, w.NOW + 15))
    assert answers[w.NOW + 5] == Refuse(refusal, {"field": field, "revoked_until": w.NOW + 15})
    for_ever = judge(w.msg(), state_with(revoked(kind, target)), policy=policy, now=w.NOW + 600)
    assert for_ever == Refuse(refusal, {"field": field})
    assert isinstance(judge(w.msg(), state_with(revoked(kind, b"\xff" * 32)), policy=policy, now=LATER), Accept)


@pytest.mark.req("KEX1-08")
def test_a_revoked_reference_stays_revoked_whatever_is_said_about_other_tokens():
    policy = w.policy(kex1=Kex1())
    first, another = revoked("auth-ref", w.TOKEN.auth_ref()), revoked("cap-token", H(b"another token"))
    for items in ((first, another), (another, first)):
        assert why(judge(w.msg(), state_with(*items), policy=policy, now=LATER)) is Refusal.CAP_REVOKED
    assert isinstance(judge(w.msg(), state_with(another), policy=policy, now=LATER), Accept)


def test_a_client_is_revoked_also_without_a_capability():
    policy = w.policy(kex1=Kex1(), capability_gating=False)
    state = state_with(revoked("client-id", w.ALICE.public))
    assert why(judge(w.msg(token=None), state, policy=policy, now=LATER)) is Refusal.CLIENT_REVOKED
    assert isinstance(judge(w.msg(w.BOB, token=None), state, policy=policy, now=LATER), Accept)


def test_a_preloaded_token_can_be_revoked_before_its_first_message():
    policy = w.policy(kex1=Kex1(), preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    for kind, target in (("auth-ref", w.FREE_TOKEN.auth_ref()), ("cap-token", H(w.FREE_TOKEN.to_bytes()))):
        state = state_with(revoked(kind, target))
        assert why(judge(w.msg(token=w.FREE_TOKEN), state, policy=policy, now=LATER)) is Refusal.CAP_REVOKED


@pytest.mark.req("KEX1-08", "CAP-14")
def test_a_revoked_link_ends_every_token_whose_chain_holds_it():
    """D-173: renewals follow the link; a token of another chain, also of the same issuer for the same key, does not."""
    policy = w.policy(kex1=Kex1())
    renewed = w.TOKEN.renew(w.ISSUER)
    other = CapToken.issue(w.ISSUER, w.ALICE.public, w.TOKEN.allow.stream_ids, ttl=w.TOKEN.allow.ttl + 1)
    tokens = (w.TOKEN, renewed, other)
    for number, ended in ((1, (True, True, False)), (2, (False, True, False))):
        state = state_with(revoked("cap-token", H(renewed.sig_chain[number - 1])), state=w.state(*tokens))
        answers = [judge(w.msg(token=token), state, policy=policy, now=LATER) for token in tokens]
        assert tuple(isinstance(answer, Refuse) for answer in answers) == ended
        assert why(answers[1]) is Refusal.CAP_REVOKED


# --- KEX1+: bounds ---------------------------------------------------------------------------------------


@pytest.mark.req("KEX1-03")
def test_a_client_key_lives_from_its_first_message_on_any_label():
    """§4.1, D-102: refused once now − first > max, not before."""
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM, w.OTHER_STREAM], ttl=10**6)
    state, resolver = w.state(token), w.resolver(w.STREAM, w.OTHER_STREAM)
    policy = w.policy(kex1=KEX1)
    knobs = {"policy": policy, "resolver": resolver}
    assert not isinstance(admit(state, w.msg(token=token), w.NOW, **knobs), Refuse)
    assert not isinstance(admit(state, w.msg(token=token, label=other), w.NOW + 90, **knobs), Refuse)
    assert not isinstance(admit(state, w.msg(token=token, label=other, seq=2), w.NOW + 100, **knobs), Refuse)
    late = judge(w.msg(token=token, label=other, seq=3), state, now=w.NOW + 101, **knobs)
    assert late == Refuse(
        Refusal.CLIENT_LIFETIME, {"field": "client_id", "expected": w.NOW + 100, "actual": w.NOW + 101}
    )
    fresh = CapToken.issue(w.ISSUER, w.BOB.public, [w.STREAM], ttl=10**6)
    state.caps[fresh.auth_ref()] = Cap.begin(fresh, state.limits, w.NOW)
    assert isinstance(judge(w.msg(w.BOB, token=fresh), state, now=w.NOW + 101, **knobs), Accept)


@pytest.mark.req("KEX1-03")
def test_a_client_key_may_send_so_many_messages_to_each_label():
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM, w.OTHER_STREAM], ttl=10**6)
    state = w.state(token)
    knobs = {"policy": w.policy(kex1=KEX1), "resolver": w.resolver(w.STREAM, w.OTHER_STREAM)}
    for seq in (1, 2, 3):
        assert not isinstance(admit(state, w.msg(token=token, seq=seq), **knobs), Refuse)
    full = judge(w.msg(token=token, seq=4), state, **knobs)
    assert full == Refuse(Refusal.CLIENT_QUOTA, {"field": "client_id", "max_allowed": 3})
    assert isinstance(judge(w.msg(token=token, label=other), state, **knobs), Accept)


# --- order and replay ------------------------------------------------------------------------------------


@pytest.mark.req("ADM-01", "ADM-06")
def test_the_first_row_of_the_table_that_fails_is_the_answer():
    """Everything is wrong at once; each step mends what was told and finds the next row."""
    stranger = CapToken.issue(w.STRANGER, w.ALICE.public, [w.OTHER_STREAM], ttl=1, rate=Rate(per_sec=1, burst=1))
    for_bob = CapToken.issue(w.ISSUER, w.BOB.public, [w.OTHER_STREAM], ttl=1, rate=Rate(per_sec=1, burst=1))
    elsewhere = CapToken.issue(w.ISSUER, w.ALICE.public, [w.OTHER_STREAM], ttl=1, rate=Rate(per_sec=1, burst=1))
    expired = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=1, rate=Rate(per_sec=0, burst=1))
    empty = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=10**6, rate=Rate(per_sec=0, burst=0))
    good = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=10**6)
    tokens = (stranger, for_bob, elsewhere, expired, empty, good)
    state = w.state(*tokens)
    loose = w.policy()
    for seq in (1, 2, 3):
        assert not isinstance(admit(state, w.msg(token=good, seq=seq), policy=loose), Refuse)
    tight = w.policy(auth1=AUTH1, kex1=KEX1)
    now = w.NOW + 101

    def refusal(token, *items, policy=tight, at=now, ack=99):
        view = w.state(*tokens)
        view.labels, view.clients, view.writers, view.caps = state.labels, state.clients, state.writers, state.caps
        return why(judge(w.msg(token=token, seq=9, ack=ack), state_with(*items, state=view), policy=policy, now=at))

    everything = (replace(ELSEWHERE, ttl=10**6), *(revoked("cap-token", H(token.to_bytes())) for token in tokens))
    everything += (revoked("client-id", w.ALICE.public),)
    unknown = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=2)
    young = w.policy(auth1=AUTH1, kex1=replace(KEX1, max_client_id_lifetime_sec=10**6))
    steps = [
        refusal(unknown, *everything),
        refusal(unknown, *everything[1:]),
        refusal(stranger, *everything[1:]),
        refusal(for_bob, *everything[1:]),
        refusal(elsewhere, *everything[1:]),
        refusal(expired, *everything[1:]),
        refusal(expired, everything[-1]),
        refusal(expired),
        refusal(empty),
        refusal(good),
        refusal(good, policy=young),
        refusal(good, policy=loose),
    ]
    assert steps == [
        Refusal.NOT_PRIMARY,
        Refusal.CAP_MISSING,
        Refusal.CAP_INVALID,
        Refusal.AUTH_REF,
        Refusal.CAP_SCOPE,
        Refusal.CAP_REVOKED,
        Refusal.CLIENT_REVOKED,
        Refusal.CAP_TTL,
        Refusal.CAP_RATE,
        Refusal.CLIENT_LIFETIME,
        Refusal.CLIENT_QUOTA,
        Refusal.PREV_ACK,
    ]
    assert steps == sorted(steps, key=list(Refusal).index)


@pytest.mark.req("INV-13")
def test_replaying_what_was_accepted_accepts_it_again_although_all_of_it_was_revoked_since():
    """D-60: the whole control journal is read first, then the entries with the hub_ts of their receipts."""
    policy, resolver, token = w.policy(kex1=Kex1(), auth1=AUTH1), w.resolver(), w.FREE_TOKEN
    live, accepted = w.state(token), list[tuple[Msg, int]]()
    records = {
        3: revoked("client-id", w.ALICE.public, ts=0, ttl=w.NOW + 6),  # back-dated, and over again after a while
        7: replace(ELSEWHERE, ts=w.NOW + 9, ttl=2),
    }
    for second in range(14):
        now = w.NOW + second
        for turn in range(3):
            if turn == 1 and (item := records.get(second)) is not None:
                body = (
                    PolicyRevocation(revocations=(item,))
                    if isinstance(item, Revocation)
                    else PolicyAuthority(authorities=(item,))
                )
                live.policies.add(body, now)
            message = w.msg(token=token, seq=len(accepted) + 1)
            if not isinstance(admit(live, message, now, policy=policy, resolver=resolver), Refuse):
                accepted.append((message, now))
    refused_seconds = set(range(14)) - {now - w.NOW for _, now in accepted}
    assert refused_seconds == {4, 5, 9, 10}
    replayed = w.state(token)
    replayed.policies = live.policies
    for message, now in accepted:
        decision = decide(replayed, policy, resolver, message, now, lambda *_: None)
        assert isinstance(decision, Accept), (decision, now)
        assert not any(isinstance(body, CapAuthorize) for body in decision.records)
        admit(replayed, message, now, policy=policy, resolver=resolver)
