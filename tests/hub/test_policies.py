"""Handing a policy view to a hub, over a real socket (D-51, D-101)."""

import json
from dataclasses import replace

import pytest
from tests.hub import builders as w
from tests.hub.servers import ADMIN, LiveHub, detail_of
from tests.hub.test_tooling import ADMIN_HEADER, FORMS, error, message, submit

from veen.core.hashing import H
from veen.core.labels import hub_id_of
from veen.core.objects.control import ControlRecord, PolicyAuthority, PolicyBounds, PolicyRevocation
from veen.core.objects.envelopes import SubmitRequest
from veen.core.objects.identity import HubIdentity
from veen.core.objects.policies import MAX_POLICY_ITEMS, Authority, Revocation, SizeBound, realm_id_of
from veen.core.objects.tooling import AttachmentGrant, PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.core.policy_state import PolicyView
from veen.hub.admission.policy import Auth1, Kex1
from veen.hub.api.access import Access
from veen.hub.api.attachments import GRANT_HEADER
from veen.io.local import OsFs
from veen.verify.directory import verify_data

REALM = realm_id_of("default")
AUTH1 = Auth1(hub_id=hub_id_of(w.HUB.public), realm_id=REALM)
ELSEWHERE = Authority(
    realm_id=REALM,
    stream_id=w.STREAM,
    primary_hub=hub_id_of(w.BOB.public),
    replica_hubs=(),
    policy="single-primary",
    ts=w.NOW,
    ttl=100,
)
ALICE = Revocation(kind="client-id", target=w.ALICE.public, ts=w.NOW, ttl=100)


class Clock:
    now = w.NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def enforcing(tmp_path, clock):
    """Starts hubs on one directory that look at both views."""

    def start(**changes):
        knobs = {"kex1": Kex1(), "auth1": AUTH1, "preloaded": {w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN}, **changes}
        return LiveHub(tmp_path, policy=w.policy(**knobs), access=Access.of(admin_tokens=[ADMIN]), clock=clock)

    return start


def push(hub, *, form="cbor", **given):
    return hub.call("/tooling/policy", PolicyRequest(**given), PolicyResponse, form=form, headers=ADMIN_HEADER).records


def listed(hub, after=0):
    status, _, data = hub.request("GET", f"/tooling/policy?after={after}", headers=ADMIN_HEADER)
    assert status == 200
    return PolicyRecordsResponse.from_json(json.loads(data))


def refusal(hub, msg):
    data = hub.call("/v1/submit", SubmitRequest(msg=msg), status=403)
    return detail_of(data)["detail_enum"]


@pytest.mark.req("KEX1-08", "KEX0-06")
@pytest.mark.parametrize("form", FORMS)
def test_a_revocation_is_journaled_and_enforced_until_it_ends(enforcing, clock, form):
    with enforcing() as hub:
        submit(hub, message(1))
        (record,) = push(hub, form=form, revocations=(ALICE,))
        record.verify(w.HUB.public)
        assert record.body == PolicyRevocation(revocations=(ALICE,))
        clock.now = w.NOW + 1
        assert refusal(hub, message(2)) == "CLIENT_REVOKED"
        clock.now = w.NOW + 100
        submit(hub, message(2))


@pytest.mark.req("KEX1-08")
def test_a_token_with_a_revoked_link_is_not_authorised_and_no_signature_of_it_is_verified(enforcing, clock):
    """D-173"""
    renewed = w.FREE_TOKEN.renew(w.ISSUER)
    link = Revocation(kind="cap-token", target=H(w.FREE_TOKEN.sig_chain[0]), ts=w.NOW)
    forged = replace(renewed, sig_chain=(renewed.sig_chain[0], bytes(64)))
    with enforcing() as hub:
        assert detail_of(hub.call("/tooling/authorize", forged, status=403))["detail_enum"] == "CAP_INVALID"
        push(hub, revocations=(link,))
        clock.now = w.NOW + 1
        for token in (renewed, forged):
            data = hub.call("/tooling/authorize", token, status=403)
            assert detail_of(data)["detail_enum"] == "CAP_REVOKED"


@pytest.mark.req("AUTH-03", "FED-06")
def test_an_authority_record_sends_writers_to_the_primary(enforcing, clock):
    with enforcing() as hub:
        (record,) = push(hub, authorities=(ELSEWHERE,))
        assert record.body == PolicyAuthority(authorities=(ELSEWHERE,))
        clock.now = w.NOW + 1
        data = hub.call("/v1/submit", SubmitRequest(msg=message(1)), status=403)
        detail = detail_of(data)
        assert (detail["detail_enum"], detail["primary_hub"]) == ("NOT_PRIMARY", ELSEWHERE.primary_hub.hex())
        # A record with an earlier ts takes precedence: how a stream is brought here while the other is active.
        push(hub, authorities=(replace(ELSEWHERE, primary_hub=AUTH1.hub_id, ts=w.NOW - 1),))
        clock.now = w.NOW + 2
        submit(hub, message(1))


@pytest.mark.req("KEX1-07", "STOR-22")
def test_both_views_and_the_age_of_keys_survive_a_restart(enforcing, clock, tmp_path):
    bounds = Kex1(max_client_id_lifetime_sec=50)
    with enforcing(kex1=bounds) as hub:
        submit(hub, message(1))
        push(hub, revocations=(replace(ALICE, ttl=10),), authorities=(replace(ELSEWHERE, ts=w.NOW + 20, ttl=10),))
    clock.now = w.NOW + 1
    for name, at in (("CLIENT_REVOKED", 9), ("NOT_PRIMARY", 25), ("CLIENT_LIFETIME", 51)):
        with enforcing(kex1=bounds) as hub:
            clock.now = w.NOW + at
            assert refusal(hub, message(2)) == name
    clock.now = w.NOW + 52
    with enforcing(kex1=replace(bounds, max_client_id_lifetime_sec=52)) as hub:
        submit(hub, message(2))
    report = verify_data(OsFs(tmp_path), identity=HubIdentity.first(w.HUB.public, valid_from=0))
    assert report.ok, report.errors


@pytest.mark.req("GEN-10")
def test_a_change_of_policy_leaves_the_log_as_it_would_have_been(tmp_path, clock):
    """Control and data are apart: other rules decide who may write, never what is written for those who may."""
    knobs = {"kex1": Kex1(), "auth1": AUTH1, "preloaded": {w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN}}
    others = tuple(replace(ALICE, target=bytes([number]) * 32) for number in range(9))
    receipts = []
    for name, rules, views in (
        ("plain", w.policy(preloaded=knobs["preloaded"]), False),
        ("ruled", w.policy(**knobs), True),
    ):
        clock.now = w.NOW
        with LiveHub(tmp_path / name, policy=rules, access=Access.of(admin_tokens=[ADMIN]), clock=clock) as hub:
            records = []
            for seq in range(1, 7):
                if views and seq == 3:
                    push(hub, revocations=others, authorities=(replace(ELSEWHERE, stream_id=w.OTHER_STREAM),))
                clock.now += 3  # each policy record begins a new second
                records.append(submit(hub, message(seq)).to_bytes())
            receipts.append(records)
    assert receipts[0] == receipts[1]


def test_the_same_view_again_adds_nothing(enforcing, clock):
    with enforcing() as hub:
        assert len(push(hub, revocations=(ALICE, ALICE), authorities=(ELSEWHERE,))) == 2
        clock.now = w.NOW + 3
        assert push(hub, revocations=(ALICE,), authorities=(ELSEWHERE,)) == ()
        longer, over = replace(ALICE, ttl=200), replace(ALICE, target=b"\x0d" * 32, ttl=2)
        (record,) = push(hub, revocations=(ALICE, longer, over))
        assert record.body == PolicyRevocation(revocations=(longer,))
        assert push(hub, revocations=()) == ()


def test_what_is_not_enforced_is_not_taken(enforcing):
    """Nobody shall believe a key to be revoked that is not."""
    requests = {
        "revocations": PolicyRequest(revocations=(ALICE,)),
        "authorities": PolicyRequest(authorities=(ELSEWHERE,)),
    }
    with enforcing(kex1=None, auth1=None) as hub:
        for name, setting in (("revocations", "admission.kex1_plus"), ("authorities", "admission.auth1")):
            status, envelope = error(hub, "/tooling/policy", requests[name], headers=ADMIN_HEADER)
            assert (status, envelope.code) == (409, "E.CONFLICT")
            assert envelope.detail == {"field": name, "setting": setting}
        shown = listed(hub)
        assert (shown.kex1_plus, shown.auth1, shown.records) == (False, False, ())


@pytest.mark.req("AUTH-01")
def test_an_authority_of_another_realm_is_refused(enforcing):
    with enforcing() as hub:
        request = PolicyRequest(authorities=(replace(ELSEWHERE, realm_id=realm_id_of("other")),))
        status, envelope = error(hub, "/tooling/policy", request, headers=ADMIN_HEADER)
        assert (status, envelope.detail) == (400, {"field": "realm_id", "expected": REALM.hex()})


def test_a_view_as_large_as_may_be_is_one_record(enforcing):
    many = tuple(replace(ALICE, target=H(bytes([n // 256, n % 256]))) for n in range(MAX_POLICY_ITEMS))
    with enforcing() as hub:
        for form in FORMS:
            items = tuple(replace(item, kind={"cbor": "auth-ref", "json": "cap-token"}[form]) for item in many)
            (record,) = push(hub, form=form, revocations=items)
            assert isinstance(record.body, PolicyRevocation)
            assert len(record.body.revocations) == MAX_POLICY_ITEMS
        too_many = json.dumps({"ver": 1, "revocations": [ALICE.to_json()] * (MAX_POLICY_ITEMS + 1)}).encode()
        headers = {"Content-Type": "application/json", **ADMIN_HEADER}
        assert hub.request("POST", "/tooling/policy", too_many, headers)[0] == 400


def test_only_administrators_push_and_read_a_view(enforcing, tmp_path):
    with enforcing() as hub:
        status, envelope = error(hub, "/tooling/policy", PolicyRequest(revocations=(ALICE,)))
        assert (status, envelope.code) == (401, "E.UNAUTHORIZED")
        assert hub.request("GET", "/tooling/policy")[0] == 401
    with LiveHub(tmp_path / "closed", policy=w.policy(kex1=Kex1())) as hub:
        assert error(hub, "/tooling/policy", PolicyRequest(revocations=(ALICE,)))[0] == 403


@pytest.mark.req("KEX1-10")
def test_the_records_are_listed_for_whoever_audits_them(enforcing):
    """A signed chain that nobody can shorten unseen; all of it, in pages."""
    with enforcing() as hub:
        submit(hub, message(1))
        records = []
        for n in range(40):
            many = tuple(replace(ALICE, target=H(bytes([n, m]))) for m in range(MAX_POLICY_ITEMS))
            records += push(hub, revocations=many)
        journaled: list[ControlRecord] = []
        more = True
        pages = 0
        while more:
            page = listed(hub, journaled[-1].seq if journaled else 0)
            journaled, more, pages = [*journaled, *page.records], page.more, pages + 1
        assert journaled == records
        assert pages > 1
        assert hub.request("GET", "/tooling/policy?after=x", headers=ADMIN_HEADER)[0] == 400


@pytest.mark.req("KEX1-08")
def test_a_revoked_capability_vouches_for_no_attachment(enforcing, clock):
    with enforcing() as hub:
        submit(hub, message(1))
        data = b"an attachment"
        grant = AttachmentGrant.issue(w.ALICE, w.FREE_TOKEN.auth_ref(), H(data)).to_bytes().hex()
        path, headers = f"/tooling/attachment/{H(data).hex()}", {GRANT_HEADER: grant}
        revoked = Revocation(kind="cap-token", target=H(w.FREE_TOKEN.to_bytes()), ts=w.NOW, ttl=10)
        push(hub, revocations=(revoked,))
        clock.now = w.NOW + 1
        status, _, answer = hub.request("PUT", path, data, headers)
        assert (status, detail_of(answer)["detail_enum"]) == (403, "CAP_REVOKED")
        clock.now = w.NOW + 10
        assert hub.request("PUT", path, data, headers)[0] == 201


# --- bounds of size (D-127) ------------------------------------------------------------------------------------------


@pytest.mark.req("SDR-03")
@pytest.mark.parametrize("form", FORMS)
def test_a_bound_of_a_stream_refuses_larger_messages_whoever_sends_them(enforcing, clock, form):
    """001 products §3.2.2: from the second after the record on; the hub sees sizes of ciphertext and nothing else."""
    small, large = message(1), message(2, ciphertext=w.CIPHERTEXT + bytes(4_000))
    limit = len(small.to_bytes()) + 500
    bound = SizeBound(kind="stream", target=w.STREAM, max_msg_bytes=limit)
    with enforcing(kex1=None, auth1=None) as hub:
        (record,) = push(hub, form=form, bounds=(bound,))
        record.verify(w.HUB.public)
        assert record.body == PolicyBounds(bounds=(bound,))
        assert push(hub, bounds=(bound,)) == ()  # known already
        clock.now = w.NOW + 1
        submit(hub, small)
        data = hub.call("/v1/submit", SubmitRequest(msg=large), status=413)
        detail = detail_of(data)
        assert (detail["detail_enum"], detail["field"]) == ("FIELD_SIZE", "msg")
        assert (detail["actual"], detail["max_allowed"]) == (len(large.to_bytes()), limit)
        assert [item.body for item in listed(hub).records] == [record.body]
    with enforcing(kex1=None, auth1=None) as hub:  # after a restart, from the journal
        assert detail_of(hub.call("/v1/submit", SubmitRequest(msg=large), status=413))["detail_enum"] == "FIELD_SIZE"
        push(hub, bounds=(replace(bound, max_msg_bytes=0),))
        clock.now = w.NOW + 3
        submit(hub, large)


@pytest.mark.req("SDR-03")
def test_the_smaller_bound_of_a_label_and_its_stream_counts_from_the_next_second_on():
    view = PolicyView()
    label, stream = b"\x01" * 32, b"\x02" * 32
    assert view.max_msg_bytes(label, stream, 10) == 0
    view.add(PolicyBounds(bounds=(SizeBound(kind="stream", target=stream, max_msg_bytes=900),)), 10)
    view.add(PolicyBounds(bounds=(SizeBound(kind="label", target=label, max_msg_bytes=700),)), 12)
    assert [view.max_msg_bytes(label, stream, ts) for ts in (10, 11, 12, 13)] == [0, 900, 900, 700]
    assert view.max_msg_bytes(bytes(32), stream, 13) == 900
    for largest in (500, 600):  # of one second: the last one counts
        view.add(PolicyBounds(bounds=(SizeBound(kind="label", target=label, max_msg_bytes=largest),)), 20)
    assert [view.max_msg_bytes(label, stream, ts) for ts in (20, 21)] == [700, 600]
    assert list(view.in_force(20)) == [("label", label, 21, 600), ("stream", stream, 21, 900)]
    assert not view.is_news(SizeBound(kind="label", target=label, max_msg_bytes=600), 21)
