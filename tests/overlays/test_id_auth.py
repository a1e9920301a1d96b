"""Delegation, the authentication path of 001 ID §9.2 with its reasons, rotation and revocation at hubs."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.overlays.id_builders import (
    ACME,
    ACME_ID,
    ALICE,
    ALICE_APP,
    APP,
    BOB,
    BOB_APP,
    DH,
    LAPTOP,
    PHONE,
    SHOP,
    TABLET,
    IdLog,
)

from veen.core.errors import CapabilityError
from veen.core.hashing import H
from veen.core.labels import label_of
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.msg import Msg
from veen.overlays.id import drafts
from veen.overlays.id.auth import (
    IssuerKind,
    MessageFacts,
    NotAuthenticated,
    Outcome,
    RoleNeed,
    authenticate,
)
from veen.overlays.id.delegation import (
    DelegationRefused,
    NewKey,
    delegate,
    delegate_by_org,
    hub_revocations,
    rotate_device,
)
from veen.overlays.id.ids import ctx_id_of, ctx_stream, device_id_of, group_id_of, principal_stream, scoped_org_id_of
from veen.overlays.id.state import DeviceStatus

CHAT = H(b"chat")
NOW = 5_000
ADMIN = RoleNeed(org_id=ACME_ID, role="admin")


def world() -> IdLog:
    """Alice with a phone, Acme with Alice as an admin through a group."""
    log = IdLog()
    log.send(drafts.principal(ALICE.public, created_at=1))
    log.send(drafts.device(ALICE.public, device_pk=PHONE.public, dh_pk=DH, created_at=1, expires_at=9_000))
    log.send(drafts.org_profile(ACME_ID, created_at=1, updated_at=1))
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=1))
    log.send(drafts.bind_role(ACME_ID, "admin", groups=[group_id_of(ACME_ID, "eng")], ts=1))
    return log


STATE = world().state()
TOKEN = delegate(ALICE, PHONE.public, state=STATE, as_of=NOW, ttl=600, realms=[APP], streams=[CHAT])


def facts(token: CapToken = TOKEN, **changes) -> MessageFacts:
    fields: dict[str, Any] = {
        "client_id": PHONE.public,
        "auth_ref": token.auth_ref(),
        "stream_id": CHAT,
        "signed": True,
        "at": NOW,
        "issued_at": NOW - 100,
    } | changes
    return MessageFacts(**fields)


def failures(state=STATE, token=TOKEN, message=None, **asked) -> list[str]:
    verdict = authenticate(state, token, message or facts(), realm_id=asked.pop("realm_id", APP), **asked)
    assert verdict.ok == (not verdict.failed)
    assert (verdict.ctx_id is None and verdict.org_id is None) or verdict.ok  # no identity without a good verdict
    return [check.code for check in verdict.failed]


@pytest.mark.req("ID-16", "ID-17", "ID-18")
def test_a_device_with_its_token_is_the_account_of_its_principal():
    verdict = authenticate(STATE, TOKEN, facts(), realm_id=APP, ctx_id=ALICE_APP, roles=[ADMIN]).require()
    assert verdict.ok
    assert (verdict.ctx_id, verdict.org_id) == (ALICE_APP, None)
    assert verdict.device_id == device_id_of(PHONE.public)
    assert [check.code.removeprefix("ID.AUTH_") for check in verdict.checks] == [
        "SIGNATURE", "TOKEN", "CHAIN", "SUBJECT", "STREAMS", "TTL", "RATE", "REVOKED", "ISSUER", "DEVICE", "CTX", "ROLE"
    ]  # fmt: skip
    assert all(check.outcome is Outcome.PASS and check.why for check in verdict.checks)
    assert verdict.checks[-1].why == "role 'admin', bound through group 'eng'"


@pytest.mark.req("ID-03", "ID-17")
def test_the_account_is_another_one_in_another_realm():
    verdict = authenticate(STATE, TOKEN, facts(), realm_id=SHOP)
    assert verdict.ctx_id == ctx_id_of(ALICE.public, SHOP)


FORGED = replace(TOKEN, sig_chain=(BOB.sign(b"x"),))
REPEATED = replace(TOKEN, sig_chain=TOKEN.sig_chain * 2)


RATED = delegate(ALICE, PHONE.public, state=STATE, as_of=NOW, ttl=600, streams=[CHAT], rate=Rate(per_sec=1, burst=2))
STRANGER = CapToken.issue(BOB, PHONE.public, [CHAT], ttl=600)
TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a message that is not signed": ({"message": facts(signed=False)}, ["SIGNATURE"]),
    "no auth_ref": ({"message": facts(auth_ref=None)}, ["TOKEN"]),
    "no auth_ref and no token": ({"token": None, "message": facts(auth_ref=None)}, ["TOKEN"]),
    "a token that nobody has": ({"token": None}, ["TOKEN"]),
    "another token": ({"token": RATED, "message": facts(uses=(NOW,))}, ["TOKEN"]),
    "a forged chain": ({"token": FORGED, "message": facts(FORGED)}, ["CHAIN"]),
    "a link that is there twice": ({"token": REPEATED, "message": facts(REPEATED)}, ["CHAIN"]),
    "another key with the token": ({"message": facts(client_id=LAPTOP.public)}, ["SUBJECT", "DEVICE"]),
    "another stream": ({"message": facts(stream_id=H(b"secrets"))}, ["STREAMS"]),
    "a further stream": ({"streams": [ctx_stream(ALICE_APP, APP), H(b"secrets")]}, ["STREAMS"]),
    "the last second of the token": ({"message": facts(issued_at=NOW - 600)}, []),
    "a token that ended": ({"message": facts(issued_at=NOW - 601)}, ["TTL"]),
    "a token of unknown age": ({"message": facts(issued_at=None)}, ["TTL"]),
    "a token of unknown age that a hub admitted": ({"message": facts(issued_at=None, admitted=True)}, []),
    "uses that nobody counted": ({"token": RATED, "message": facts(RATED)}, ["RATE"]),
    "uses that a hub counted": ({"token": RATED, "message": facts(RATED, admitted=True)}, []),
    "uses within the burst": ({"token": RATED, "message": facts(RATED, uses=(NOW, NOW))}, []),
    "uses above the burst": ({"token": RATED, "message": facts(RATED, uses=(NOW, NOW, NOW))}, ["RATE"]),
    "uses above the burst, a second on": ({"token": RATED, "message": facts(RATED, uses=(NOW - 1, NOW - 1, NOW))}, []),
    "a principal nobody knows": ({"token": STRANGER, "message": facts(STRANGER)}, ["ISSUER", "DEVICE"]),
    "a device that expired": ({"as_of": 9_001, "message": facts(issued_at=9_000)}, ["DEVICE"]),
    "a device in its last second": ({"as_of": 9_000, "message": facts(issued_at=9_000)}, []),
    "a claim to be another": ({"ctx_id": BOB_APP}, ["CTX"]),
    "a role that is missing": ({"roles": [ADMIN, RoleNeed(org_id=ACME_ID, role="owner")]}, ["ROLE"]),
    "a role elsewhere": ({"roles": [RoleNeed(org_id=H(b"other"), role="admin")]}, ["ROLE"]),
    "everything wrong": (
        {"message": facts(signed=False, client_id=LAPTOP.public, stream_id=H(b"x"), issued_at=0), "ctx_id": BOB_APP},
        ["SIGNATURE", "SUBJECT", "STREAMS", "TTL", "DEVICE", "CTX"],
    ),
}  # fmt: skip


@pytest.mark.req("ID-17", "ID-18")
@pytest.mark.parametrize("case", TABLE)
def test_a_verdict_names_every_reason(case):
    asked, expected = TABLE[case]
    assert failures(**asked) == [f"ID.AUTH_{code}" for code in expected]


def after(*messages, ts: int = 2_000):
    log = world()
    log.send_all(messages, ts=ts)
    return log.state()


@pytest.mark.req("ID-18", "ID-23", "CAP-14")
@pytest.mark.parametrize(
    ("message", "codes"),
    [
        (drafts.revoke_by_principal(ALICE.public, device_id=device_id_of(PHONE.public), ts=2_000), "DEVICE"),
        (drafts.device(ALICE.public, device_pk=PHONE.public, dh_pk=DH, created_at=1, disabled=True), "DEVICE"),
        (drafts.revoke_by_principal(ALICE.public, auth_ref=TOKEN.auth_ref(), reason="lost", ts=2_000), "REVOKED"),
        (drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, realm_id=APP, ts=2_000), "CTX ROLE"),
        (drafts.change_group(ACME_ID, "eng", remove=[ALICE_APP], updated_at=2), "ROLE"),
        (drafts.revoke_by_org(ACME_ID, ctx_id=ALICE_APP, ts=2_000), "ROLE"),
        (drafts.revoke_by_org(ACME_ID, ts=2_000), "ROLE"),
        (drafts.bind_role(scoped_org_id_of(ACME_ID, APP), "reader", realm_id=APP, ctx=[ALICE_APP], ts=1), "ROLE"),
    ],
)
def test_what_was_taken_back_does_not_authenticate(message, codes):
    assert failures(after(message), roles=[ADMIN]) == [f"ID.AUTH_{code}" for code in codes.split()]


@pytest.mark.req("ID-23")
def test_what_others_say_takes_nothing_from_alice():
    others = [
        drafts.revoke_by_principal(BOB.public, device_id=device_id_of(PHONE.public), ts=1),
        drafts.revoke_by_principal(BOB.public, auth_ref=TOKEN.auth_ref(), ts=1),
        drafts.revoke_by_principal(BOB.public, ctx_id=ALICE_APP, realm_id=APP, ts=1),
        drafts.revoke_by_org(H(b"other org"), ctx_id=ALICE_APP, device_id=device_id_of(PHONE.public), ts=1),
        drafts.revoke_by_org(H(b"other org"), auth_ref=TOKEN.auth_ref(), ts=1),
        drafts.device(BOB.public, device_pk=PHONE.public, dh_pk=DH, created_at=1, disabled=True),
    ]
    assert failures(after(*others), roles=[ADMIN]) == []
    trusted = after(drafts.revoke_by_org(H(b"realm owner"), ctx_id=ALICE_APP, ts=1))
    assert failures(trusted, trusted_orgs=[H(b"realm owner")]) == ["ID.AUTH_CTX"]


def test_a_verdict_tells_why_it_was_taken_back():
    state = after(drafts.revoke_by_principal(ALICE.public, auth_ref=TOKEN.auth_ref(), reason="lost", ts=1_999))
    with pytest.raises(NotAuthenticated, match=r"^ID\.AUTH_REVOKED: revoked since 1999: lost$"):
        authenticate(state, TOKEN, facts(), realm_id=APP).require()
    assert failures(state, as_of=1_998, message=facts(issued_at=1_900)) == []  # as of before (D-80)


@pytest.mark.req("ID-16")
def test_an_organization_delegates_to_any_key():
    service = CapToken.issue(ACME, TABLET.public, [CHAT], ttl=600)
    token = delegate_by_org(ACME, TABLET.public, ttl=600, streams=[CHAT])
    assert token == service
    message = facts(token, client_id=TABLET.public)
    verdict = authenticate(STATE, token, message, realm_id=APP, issuer=IssuerKind.ORG).require()
    assert (verdict.org_id, verdict.ctx_id) == (ACME_ID, None)
    assert [check.outcome for check in verdict.checks if check.code == "ID.AUTH_CTX"] == [Outcome.SKIP]
    asked = {"token": token, "message": message, "issuer": IssuerKind.ORG}
    assert failures(**asked, ctx_id=ALICE_APP, roles=[ADMIN]) == ["ID.AUTH_CTX", "ID.AUTH_ROLE"]
    assert failures(token=token, message=message) == ["ID.AUTH_ISSUER", "ID.AUTH_DEVICE"]  # taken for a principal's
    assert failures(message=facts(), issuer=IssuerKind.ORG) == ["ID.AUTH_ISSUER"]  # and the other way round
    gone = after(drafts.revoke_by_org(ACME_ID, ts=2_000))
    assert failures(gone, **asked) == ["ID.AUTH_ISSUER"]
    barred = after(drafts.revoke_by_org(ACME_ID, device_id=device_id_of(TABLET.public), ts=2_000))
    assert failures(barred, **asked) == ["ID.AUTH_DEVICE"]
    undone = after(drafts.revoke_by_org(ACME_ID, auth_ref=token.auth_ref(), ts=2_000))
    assert failures(undone, **asked) == ["ID.AUTH_REVOKED"]


@pytest.mark.req("ID-17")
def test_a_message_speaks_for_the_stream_it_was_signed_for():
    """MSG.client_id is device_pk, and its signature covers the label."""
    routing_key = H(b"routing")
    msg = Msg.compose(
        PHONE,
        profile_id=H(b"profile"),
        label=label_of(routing_key, CHAT, 0),
        client_seq=1,
        prev_ack=0,
        auth_ref=TOKEN.auth_ref(),
        ciphertext=b"sealed",
    )

    def judge(message: Msg, stream_id: bytes = CHAT) -> list[str]:
        msg_facts = MessageFacts.of_msg(
            message, stream_id=stream_id, epoch=0, routing_key=routing_key, at=NOW, issued_at=NOW, uses=[NOW]
        )
        return failures(message=msg_facts)

    assert judge(msg) == []
    assert judge(replace(msg, client_seq=2)) == ["ID.AUTH_SIGNATURE"]
    assert judge(replace(msg, ciphertext=b"forged")) == ["ID.AUTH_SIGNATURE"]
    assert judge(msg, ctx_stream(ALICE_APP, APP)) == ["ID.AUTH_SIGNATURE"]  # allowed, but not what was signed


def test_an_entry_of_a_log_was_held_to_ttl_and_rate_by_its_hub():
    log = world()
    event = log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=1), ts=NOW)
    event = replace(event, client_id=PHONE.public, auth_ref=TOKEN.auth_ref())
    assert failures(message=MessageFacts.of_event(event)) == []
    assert failures(message=MessageFacts.of_event(event, issued_at=NOW - 601)) == ["ID.AUTH_TTL"]
    assert MessageFacts.of_event(event, uses=[NOW]).uses == (NOW,)


@pytest.mark.req("ID-16")
def test_a_principal_delegates_only_to_an_active_device_of_its_own():
    assert set(TOKEN.allow.stream_ids) == {principal_stream(ALICE.public), ctx_stream(ALICE_APP, APP), CHAT}
    assert (TOKEN.issuer_pk, TOKEN.subject_pk) == (ALICE.public, PHONE.public)
    with pytest.raises(DelegationRefused, match="not that of a device"):
        delegate(ALICE, LAPTOP.public, state=STATE, as_of=NOW, ttl=1)
    with pytest.raises(DelegationRefused, match="expired") as refused:
        delegate(ALICE, PHONE.public, state=STATE, as_of=9_001, ttl=1)
    assert isinstance(refused.value, CapabilityError)


@pytest.mark.req("ID-24")
@pytest.mark.parametrize("disable", [True, False])
def test_a_rotated_device_takes_over_and_the_old_one_is_out(disable):
    """§11.2; D-96: a rotated client key is a device whose record expires with it."""
    log = world()
    old = log.state().devices_of(ALICE.public)[0]
    new = NewKey(device_pk=TABLET.public, dh_pk=DH, expires_at=NOW + 86_400)
    messages = rotate_device(old, new, now=NOW, auth_refs=[TOKEN.auth_ref()], disable=disable)
    assert len(messages) == 3 + disable
    for message in messages:  # at no point is the principal without a device
        log.send(message, ts=NOW)
        assert any(device.is_active(NOW) for device in log.state().devices_of(ALICE.public))
    state = log.state()
    status = {device.device_pk: device.status(NOW) for device in state.devices_of(ALICE.public)}
    assert status == {PHONE.public: DeviceStatus.REVOKED, TABLET.public: DeviceStatus.ACTIVE}
    assert state.devices_of(ALICE.public)[0].disabled == disable
    assert failures(state) == ["ID.AUTH_REVOKED", "ID.AUTH_DEVICE"]
    token = delegate(ALICE, TABLET.public, state=state, as_of=NOW, ttl=600, streams=[CHAT])
    fresh = facts(token, client_id=TABLET.public)
    assert authenticate(state, token, fresh, realm_id=APP).ctx_id == ALICE_APP
    late = facts(token, client_id=TABLET.public, at=NOW + 86_401, issued_at=NOW + 86_400)
    assert failures(state, token, late) == ["ID.AUTH_DEVICE"]


@pytest.mark.req("ID-25")
def test_roots_are_not_replaced():
    """§11.3: no message of ID moves an account to another principal; a new root is a new account."""
    assert ctx_id_of(BOB.public, APP) != ALICE_APP
    state = after(drafts.principal(BOB.public, created_at=9, info={"replaces": ALICE.public.hex()}))
    bobs = CapToken.issue(BOB, PHONE.public, [CHAT], ttl=600)
    assert "ID.AUTH_CTX" in failures(state, bobs, facts(bobs), ctx_id=ALICE_APP)


@pytest.mark.req("ID-23")
def test_hubs_are_told_of_tokens_that_their_own_issuers_took_back():
    """D-51: an agent reports; nobody can report the token of another."""
    other = delegate(ALICE, PHONE.public, state=STATE, as_of=NOW, ttl=9)
    service = delegate_by_org(ACME, TABLET.public, ttl=9, streams=[CHAT])
    tokens = [TOKEN, other, service]
    assert hub_revocations(STATE, tokens) == ()
    hostile = after(
        drafts.revoke_by_principal(BOB.public, auth_ref=TOKEN.auth_ref(), ts=1),
        drafts.device(BOB.public, device_pk=PHONE.public, dh_pk=DH, created_at=1),
        drafts.revoke_by_principal(BOB.public, device_id=device_id_of(PHONE.public), ts=1),
    )
    assert hub_revocations(hostile, tokens) == ()
    (revocation,) = hub_revocations(
        after(drafts.revoke_by_principal(ALICE.public, auth_ref=TOKEN.auth_ref(), ts=1_900)), tokens
    )
    assert (revocation.kind, revocation.target, revocation.ts) == ("auth-ref", TOKEN.auth_ref(), 1_900)
    lost = after(drafts.revoke_by_principal(ALICE.public, device_id=device_id_of(PHONE.public), ts=1_900))
    assert {item.target for item in hub_revocations(lost, tokens)} == {TOKEN.auth_ref(), other.auth_ref()}
    barred = after(drafts.revoke_by_org(ACME_ID, device_id=device_id_of(TABLET.public), ts=1_900))
    assert [item.target for item in hub_revocations(barred, tokens)] == [service.auth_ref()]


@given(st.lists(st.integers(0, 20), max_size=30).map(sorted), st.integers(0, 3), st.integers(0, 4))
def test_the_rate_is_a_bucket_that_refills_each_second(times, per_sec, burst):
    """D-50, against a bucket that is refilled second by second."""
    rate = Rate(per_sec=per_sec, burst=burst)
    token = CapToken.issue(ALICE, PHONE.public, [CHAT], ttl=600, rate=rate)
    tokens, clock = burst, times[0] if times else 0
    granted = True
    for time in times:
        while clock < time:
            tokens, clock = min(burst, tokens + per_sec), clock + 1
        granted = tokens > 0
        tokens -= int(granted)
    codes = failures(token=token, message=facts(token, uses=tuple(times)))
    assert codes == ([] if granted else ["ID.AUTH_RATE"])
