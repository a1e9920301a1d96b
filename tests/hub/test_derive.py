"""Tokens that a principal derives for its client keys (D-179): what a hub takes, what it refuses, and who pays."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.servers import ADMIN, LiveHub, detail_of
from tests.hub.test_tooling import ADMIN_HEADER, FORMS, error

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS, MAX_DERIVED_PER_DAY
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import CapAuthorize, CapDerive, ControlRecord
from veen.core.objects.envelopes import SubmitRequest, SubmitResponse
from veen.core.objects.identity import HubIdentity
from veen.core.objects.policies import Revocation
from veen.core.objects.tooling import (
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    DeriveRequest,
    PolicyRequest,
    PolicyResponse,
    StatusResponse,
    VersionRequest,
)
from veen.hub.admission.policy import Kex1
from veen.hub.api.access import Access
from veen.hub.api.tooling import DerivedCount
from veen.io.local import OsFs
from veen.storage.control_state import ControlFold
from veen.storage.maintenance.rebuild import rebuild_index
from veen.verify.audit.context import AuditOptions
from veen.verify.audit.run import audit
from veen.verify.directory import verify_data

PRINCIPAL, PHONE, LAPTOP = (SigningKey(bytes([number]) * 32) for number in (21, 22, 23))
T0 = CapToken.issue(w.ISSUER, PRINCIPAL.public, [w.STREAM, w.OTHER_STREAM], ttl=1_000, rate=Rate(per_sec=1, burst=4))


def derived(key=PHONE, *, issuer=PRINCIPAL, streams=(w.STREAM,), ttl=600, rate=None):
    return CapToken.issue(issuer, key.public, streams, ttl=ttl, rate=rate)


T1 = derived()


class Clock:
    now = w.NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def start(tmp_path, clock):
    def begin(**changes):
        policy = w.policy(kex1=Kex1(), **changes)
        return LiveHub(tmp_path, policy=policy, access=Access.of(admin_tokens=[ADMIN]), clock=clock)

    return begin


@pytest.fixture
def hub(start):
    with start() as live:
        yield live


def authorize(hub, token=T0):
    return hub.call("/tooling/authorize", token, AuthorizeResponse)


def derive(hub, token=T1, parent=T0, **options):
    request = DeriveRequest(token=token, parent_ref=parent.auth_ref())
    return hub.call("/tooling/derive", request, AuthorizeResponse, **options)


def refusal(hub, token=T1, parent=T0):
    status, envelope = error(hub, "/tooling/derive", DeriveRequest(token=token, parent_ref=parent.auth_ref()))
    assert status in (400, 403, 429), envelope
    return envelope.detail["detail_enum"], envelope.detail.get("field")


def send(hub, key=PHONE, token=T1, seq=1):
    return hub.call("/v1/submit", SubmitRequest(msg=w.msg(key, token=token, seq=seq)), SubmitResponse).receipt


def refused(hub, key=PHONE, token=T1, seq=1):
    status, envelope = error(hub, "/v1/submit", SubmitRequest(msg=w.msg(key, token=token, seq=seq)))
    assert status in (400, 403, 429), envelope
    return envelope.detail["detail_enum"]


def revoke(hub, kind, target):
    revocation = Revocation(kind=kind, target=target, ts=w.NOW)
    hub.call("/tooling/policy", PolicyRequest(revocations=(revocation,)), PolicyResponse, headers=ADMIN_HEADER)


@pytest.mark.parametrize("form", FORMS)
def test_the_subject_of_a_trusted_token_lets_its_client_key_write(hub, form):
    """PRODUCTS-2 §4.4: the record says from which token it follows."""
    authorize(hub)
    answer = derive(hub, form=form)
    answer.record.verify(w.HUB.public)
    assert answer.record.body == CapDerive.from_parent(T1, T0.auth_ref())
    assert answer.expires_at == w.NOW + 600
    assert send(hub).stream_seq == 1
    status = hub.call("/tooling/cap_status", CapStatusRequest(auth_ref=T1.auth_ref()), CapStatusResponse)
    assert (status.token, status.expires_at) == (T1.to_bytes(), w.NOW + 600)


def test_deriving_again_returns_the_first_record(hub, clock):
    authorize(hub)
    first = derive(hub)
    clock.now += 50
    assert derive(hub) == first
    assert authorize(hub).record.hub_ts == w.NOW


def test_several_that_derive_at_once_get_one_record(hub):
    authorize(hub)

    async def together():
        body = DeriveRequest(token=T1, parent_ref=T0.auth_ref()).to_bytes()
        return await asyncio.gather(*(hub.api.call("derive", body) for _ in range(5)))

    assert len({reply.body for reply in hub.run(together())}) == 1


def test_a_derived_token_ends_with_its_parent(hub, clock):
    authorize(hub)
    clock.now += 900
    assert derive(hub).expires_at == w.NOW + 1_000
    clock.now = w.NOW + 1_000
    send(hub)
    clock.now += 1
    assert refused(hub, seq=2) == "CAP_TTL"


def test_a_derived_token_ends_by_its_own_ttl(hub, clock):
    authorize(hub)
    derive(hub, derived(ttl=10))
    clock.now += 11
    assert refused(hub, token=derived(ttl=10)) == "CAP_TTL"


@pytest.mark.parametrize(
    ("token", "parent", "expected"),
    [
        (derived(issuer=w.STRANGER), T0, ("CAP_INVALID", "issuer_pk")),
        (derived(issuer=w.ISSUER), T0, ("CAP_INVALID", "issuer_pk")),
        (derived(streams=[w.STREAM, bytes(32)]), T0, ("CAP_SCOPE", "stream_ids")),
        (w.forged(T1), T0, ("CAP_INVALID", "sig_chain")),
        (T1, w.TOKEN, ("CAP_MISSING", "parent_ref")),
    ],
    ids=["foreign issuer", "issued by the issuer of the parent", "wider streams", "forged", "unknown parent"],
)
def test_a_token_that_does_not_follow_from_its_parent_is_refused(hub, token, parent, expected):
    authorize(hub)
    assert refusal(hub, token, parent) == expected
    assert refused(hub, token=token) == "CAP_MISSING"


def test_nothing_is_derived_from_a_derived_token(hub):
    """One step only: the client key of T1 lets nobody else write."""
    authorize(hub)
    derive(hub)
    second = derived(LAPTOP, issuer=PHONE)
    assert refusal(hub, second, T1) == ("CAP_INVALID", "parent_ref")
    assert refusal(hub, second, T0) == ("CAP_INVALID", "issuer_pk")


def test_nothing_is_derived_from_an_expired_parent(hub, clock):
    authorize(hub)
    clock.now += 1_001
    assert refusal(hub)[0] == "CAP_TTL"


def test_a_parent_of_an_issuer_that_is_not_configured_is_no_parent(tmp_path):
    """Also when the configuration changes after the token was derived."""
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        authorize(hub)
        derive(hub)
        send(hub)
    with LiveHub(tmp_path, policy=w.policy(trusted_issuers={w.BOB.public: None})) as hub:
        assert refusal(hub, derived(LAPTOP)) == ("CAP_INVALID", "parent_ref")
        assert refused(hub, seq=2) == "CAP_INVALID"


def test_a_hub_without_the_option_takes_no_derived_token(tmp_path):
    """Nor one that it took before the option was switched off."""
    with LiveHub(tmp_path, policy=w.policy()) as hub:
        authorize(hub)
        derive(hub)
    with LiveHub(tmp_path, policy=w.policy(principal_grants=False)) as hub:
        status, envelope = error(hub, "/tooling/derive", DeriveRequest(token=T1, parent_ref=T0.auth_ref()))
        assert (status, envelope.code) == (409, "E.CONFLICT")
        assert envelope.detail["setting"] == "admission.principal_grants"
        assert refused(hub) == "CAP_INVALID"


@pytest.mark.req("KEX1-08")
@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("auth-ref", T0.auth_ref(), "CAP_REVOKED"),
        ("cap-token", H(T0.to_bytes()), "CAP_REVOKED"),
        ("auth-ref", T1.auth_ref(), "CAP_REVOKED"),
        ("client-id", PRINCIPAL.public, "CLIENT_REVOKED"),
        ("client-id", PHONE.public, "CLIENT_REVOKED"),
    ],
    ids=["parent", "bytes of the parent", "the token", "principal", "client key"],
)
def test_a_revocation_between_derive_and_message_counts(hub, clock, kind, target, expected):
    authorize(hub)
    derive(hub)
    revoke(hub, kind, target)
    clock.now += 1
    assert refused(hub) == expected
    laptop = derived(LAPTOP)
    if target in (T1.auth_ref(), PHONE.public):  # the principal goes on with another key
        derive(hub, laptop)
        send(hub, LAPTOP, laptop)
    else:
        assert refusal(hub, laptop)[0] == expected


def test_more_keys_never_mean_more_messages(hub, clock):
    """T0 allows four at once and one a second: for all keys of the principal together."""
    authorize(hub)
    laptop = derived(LAPTOP)
    derive(hub)
    derive(hub, laptop)
    for seq in (1, 2):
        send(hub, PHONE, T1, seq)
        send(hub, LAPTOP, laptop, seq)
    assert refused(hub, PHONE, T1, 3) == "CAP_RATE"
    assert refused(hub, LAPTOP, laptop, 3) == "CAP_RATE"
    clock.now += 1
    send(hub, PHONE, T1, 3)
    assert refused(hub, LAPTOP, laptop, 3) == "CAP_RATE"


def test_a_rate_of_its_own_is_charged_too(hub):
    authorize(hub)
    slow = derived(rate=Rate(per_sec=1, burst=1))
    derive(hub, slow)
    send(hub, token=slow)
    assert refused(hub, token=slow, seq=2) == "CAP_RATE"
    derive(hub, derived(LAPTOP))
    for seq in (1, 2, 3):
        send(hub, LAPTOP, derived(LAPTOP), seq)
    assert refused(hub, LAPTOP, derived(LAPTOP), 4) == "CAP_RATE"


def test_a_parent_leads_to_a_bounded_number_of_tokens_a_day():
    """A record stays for good, so whoever holds one token must not write without end."""
    count = DerivedCount(2)
    assert [count.take(b"a", 0), count.take(b"a", 1), count.take(b"a", 86_399), count.take(b"b", 2)] == [
        True,
        True,
        False,
        True,
    ]
    assert count.take(b"a", 86_400)
    assert not count.take(b"a", 86_400)


def test_the_hub_refuses_the_token_after_the_last_one_of_the_day(hub, monkeypatch):
    monkeypatch.setattr("veen.hub.api.tooling.DerivedCount.take", lambda *_: False)
    authorize(hub)
    assert refusal(hub) == ("CAP_RATE", "parent_ref")


def test_a_preloaded_parent_is_authorised_by_the_first_token_derived_from_it(start):
    with start(preloaded={T0.auth_ref(): T0}) as hub:
        record = derive(hub).record
        assert record.seq == 2
        send(hub)


def test_status_states_the_bounds_of_client_keys(start):
    with start() as hub:
        limits = hub.call("/tooling/status", VersionRequest(), StatusResponse).limits
    assert limits["max_client_id_lifetime_sec"] == 86_400
    assert limits["max_msgs_per_client_id_per_label"] == 65_536
    assert limits["max_derived_per_day"] == MAX_DERIVED_PER_DAY
    with start(principal_grants=False) as hub:
        assert "max_derived_per_day" not in hub.call("/tooling/status", VersionRequest(), StatusResponse).limits


# --- replay -----------------------------------------------------------------------------------------------


def write_log(hub, clock):
    authorize(hub)
    derive(hub)
    laptop = derived(LAPTOP, rate=Rate(per_sec=3, burst=3))
    derive(hub, laptop)
    for seq in range(1, 5):
        clock.now += 1
        send(hub, PHONE, T1, seq)
        if seq % 2:
            send(hub, LAPTOP, laptop, seq // 2 + 1)
    return laptop


def test_a_hub_that_starts_again_decides_alike(start, clock, tmp_path):
    """The parent of a token and the buckets of both are in the log and the index."""
    with start() as hub:
        laptop = write_log(hub, clock)
        before = {token: vars_of(hub, token) for token in (T0, T1, laptop)}
    with start() as hub:
        assert {token: vars_of(hub, token) for token in before} == before
        while refused_after(hub, laptop, clock) is None:
            pass
        assert refused_after(hub, laptop, clock) == "CAP_RATE"
    identity = HubIdentity.first(w.HUB.public, valid_from=0)
    assert verify_data(OsFs(tmp_path), identity=identity).findings == ()
    rebuild_index(OsFs(tmp_path), DEFAULT_LIMITS)
    assert verify_data(OsFs(tmp_path), identity=identity).findings == ()
    assert audit(str(tmp_path), AuditOptions(identity=identity)).findings == ()
    with start() as hub:
        assert refused_after(hub, laptop, clock) == "CAP_RATE"


def refused_after(hub, laptop, clock):
    """Send the next message of the laptop; why it was refused, or None."""
    store = hub.api.context.store
    label = store.state.labels[w.LABEL]
    cursor = store.state.client(label, LAPTOP.public)
    status, _, data = hub.request(
        "POST", "/v1/submit", SubmitRequest(msg=w.msg(LAPTOP, token=laptop, seq=cursor.client_seq + 1)).to_bytes()
    )
    return None if status == 200 else detail_of(data)["detail_enum"]


def vars_of(hub, token):
    cap = hub.api.context.store.state.caps[token.auth_ref()]
    return cap.issued_at, cap.tokens, cap.bucket_ts, cap.parent_ref


def record_of(body, previous=None, hub_ts=w.NOW):
    return ControlRecord.issue(w.HUB, previous, body, hub_ts=hub_ts)


@pytest.mark.parametrize(
    "bodies",
    [
        [CapDerive.from_parent(T1, T0.auth_ref())],
        [CapAuthorize.of(T0), CapDerive.from_parent(derived(issuer=w.STRANGER), T0.auth_ref())],
        [CapAuthorize.of(T0), CapDerive.from_parent(derived(streams=[bytes(32)]), T0.auth_ref())],
        [
            CapAuthorize.of(T0),
            CapDerive.from_parent(T1, T0.auth_ref()),
            CapDerive.from_parent(derived(LAPTOP, issuer=PHONE), T1.auth_ref()),
        ],
    ],
    ids=["no parent", "foreign issuer", "wider streams", "a chain of two"],
)
def test_a_journal_with_a_token_that_nobody_may_derive_does_not_verify(bodies):
    fold, last = ControlFold(), None
    records = []
    for body in bodies:
        last = record_of(body, last)
        records.append(last)
    for record in records[:-1]:
        fold.add(record)
    with pytest.raises(VerifyError):
        fold.add(records[-1])


def test_the_first_record_of_a_token_counts():
    fold = ControlFold()
    first = record_of(CapAuthorize.of(T0))
    second = record_of(CapDerive.from_parent(T1, T0.auth_ref()), first)
    third = record_of(CapAuthorize.of(T1), second, w.NOW + 5)
    for record in (first, second, third):
        fold.add(record)
    grant = fold.caps[T1.auth_ref()]
    assert (grant.issued_at, grant.parent, fold.derived) == (
        w.NOW,
        fold.caps[T0.auth_ref()],
        {T0.auth_ref(): [T1.auth_ref()]},
    )


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_of_a_stranger_are_refused_by_name(hub_of_strangers, data):
    """Nothing but a format or a refusal comes out, and nothing is journaled."""
    before = hub_of_strangers.api.context.store.state.control
    status, _, _ = hub_of_strangers.request("POST", "/tooling/derive", data)
    assert status in (400, 403, 413)
    assert hub_of_strangers.api.context.store.state.control == before


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8 * len(DeriveRequest(token=T1, parent_ref=T0.auth_ref()).to_bytes()) - 1))
def test_one_flipped_bit_is_refused(hub_of_strangers, bit):
    data = bytearray(DeriveRequest(token=T1, parent_ref=T0.auth_ref()).to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    status, _, _ = hub_of_strangers.request("POST", "/tooling/derive", bytes(data))
    assert status in (400, 403, 413)


@pytest.fixture(scope="module")
def hub_of_strangers(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("derive"), policy=w.policy(kex1=Kex1())) as live:
        authorize(live)
        yield live


def test_a_changed_token_in_the_record_does_not_verify():
    body = CapDerive.from_parent(T1, T0.auth_ref())
    with pytest.raises(VerifyError):
        replace(body, token=derived(LAPTOP).to_bytes()).check()
