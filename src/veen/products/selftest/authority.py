"""`veen selftest authority`: the rights to write that a hub enforces, and their duration (001 spec-4 §8, K8S-14).

A hub that admits messages without a capability fails. Checks that need an administrator are skipped and reported
without an administrator's token. All capabilities are for keys of the run, and expire within the hour.
"""

import os
from typing import Final

from veen.client.errors import BadAnswer, HubRefused
from veen.client.send.captokens import issue
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls, read
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, Refusal
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import Rate
from veen.core.objects.control import PolicyAuthority, PolicyRevocation
from veen.core.objects.policies import SINGLE_PRIMARY, Authority, Revocation
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.overlays.federation.realm import RealmState
from veen.products.selftest.core import identity
from veen.products.selftest.suite import (
    CheckFailed,
    HubProbe,
    NotChecked,
    Suite,
    World,
    expect,
    expect_refusal,
    open_probe,
)

_POLICY: Final = "tooling/policy"
_NO_ADMIN: Final = "not checked: no admin token (--admin-token-file FILE)"
_REVOKED_SEC: Final = 3600  # longer than any capability of the run
_MAX_PAGES: Final = 10_000
_CLOSED: Final = frozenset((ApiCode.UNAUTHORIZED.code, ApiCode.FORBIDDEN.code))


async def _authorize(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    token = probe.token()
    grant = await probe.client.authorize(token)  # the record is verified under the pin
    again = await probe.client.authorize(token)
    expect(again.issued_at == grant.issued_at, "showing a token again moves the time from which it counts")
    status = await probe.client.cap_status(token.auth_ref())
    expect(
        (status.token, status.issued_at, status.expires_at) == (token, grant.issued_at, grant.expires_at),
        "the hub tells something else about the token than the record that it signed",
    )
    sent = await probe.client.send(probe.keys, b"authorized")
    expect(sent.msg.auth_ref == token.auth_ref(), "the message does not name its capability")


async def _check_missing(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    answer = await probe.submit(await probe.message(b"without a capability"))
    expect_refusal(answer, Refusal.CAP_MISSING, "a message without a capability")
    never_shown = issue(SigningKey(os.urandom(32)), probe.identity.client_id, [probe.keys.stream_id], ttl=60)
    answer = await probe.submit(await probe.message(b"unknown capability", never_shown.auth_ref()))
    expect_refusal(answer, Refusal.CAP_MISSING, "a message under a capability that the hub was not shown")


async def _unknown_issuer(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    stranger = SigningKey(os.urandom(32))
    token = issue(stranger, probe.identity.client_id, [probe.keys.stream_id], ttl=60)
    await _expect_not_authorized(probe, token.to_bytes(), "a capability of an issuer that nobody trusts")


async def _expect_not_authorized(probe: HubProbe, token: bytes, what: str) -> None:
    try:
        await probe.session.calls.send("tooling/authorize", token, again=False)
    except HubRefused as exc:
        expect_refusal(exc, Refusal.CAP_INVALID, what)
    else:
        raise CheckFailed(f"{what} was authorised")


async def _check_forged(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    token = probe.token(ttl=60)
    longer = issue(SigningKey(os.urandom(32)), probe.identity.client_id, [probe.keys.stream_id], ttl=61)
    forged = type(token)(
        issuer_pk=token.issuer_pk, subject_pk=token.subject_pk, allow=longer.allow, sig_chain=token.sig_chain
    )
    await _expect_not_authorized(probe, forged.to_bytes(), "a capability that was changed after it was signed")


async def _subject(world: World) -> None:
    owner, thief = await open_probe(world, "owner"), await open_probe(world, "thief", authorized=False)
    auth_ref = await owner.client.grants.auth_ref(owner.keys.stream_id)
    answer = await thief.submit(await thief.message(b"stolen capability", auth_ref or owner.token().auth_ref()))
    expect_refusal(answer, Refusal.AUTH_REF, "a message under the capability of another client key")


async def _scope(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    grant = await probe.client.authorize(probe.token())
    msg = await probe.message(b"other stream", grant.auth_ref)
    label = probe.session.label(_other_stream(world), probe.session.epoch_now())
    answer = await probe.submit(probe.sign(msg, label=label))
    expect_refusal(answer, Refusal.CAP_SCOPE, "a message to a stream that its capability does not list")


async def _issuer_scope(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    if probe.at.stream is None:
        raise NotChecked("not checked: without --stream the hub is expected to trust the issuer for every stream")
    token = issue(probe.issuer, probe.identity.client_id, [_other_stream(world)], ttl=60)
    await _expect_not_authorized(
        probe, token.to_bytes(), "a capability for a stream that the issuer may not give away (--stream names its own)"
    )


def _other_stream(world: World) -> bytes:
    return stream_id_of(f"veen/selftest/{world.suffix}/other")


async def _expiry(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    grant = await probe.client.authorize(probe.token(ttl=0))
    expect(grant.expires_at == grant.issued_at, "a capability of 0 s lasts longer than the second it was issued in")
    msg = await probe.message(b"too late", grant.auth_ref)
    await probe.after(grant.expires_at)
    expect_refusal(await probe.submit(msg), Refusal.CAP_TTL, "a message under an expired capability")


async def _rate(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    grant = await probe.client.authorize(probe.token(rate=Rate(per_sec=0, burst=1)))
    msg = await probe.message(b"within the rate", grant.auth_ref)
    answer = await probe.submit(msg)
    if isinstance(answer, HubRefused):
        raise answer
    answer = await probe.submit(probe.sign(msg, client_seq=2))
    expect_refusal(answer, Refusal.CAP_RATE, "a second message under a capability for one")


async def _check_closed(world: World) -> None:
    await world.client("probe")
    calls = Calls(await world.transport(), NO_RETRY)
    try:
        await calls.send(_POLICY, PolicyRequest().to_bytes(), again=False)
    except HubRefused as exc:
        expect(exc.code in _CLOSED, f"a stranger who asks for administration: the hub answered {exc.code}")
    else:
        raise CheckFailed("a stranger may change the policy of the hub")


async def _admin(world: World, probe: HubProbe) -> HubSession:
    if probe.at.admin_token_file is None:
        raise NotChecked(_NO_ADMIN)
    session = HubSession(Calls(await world.transport(probe.at.admin_token_file), NO_RETRY), probe.client.pin)
    await session.open()
    return session


async def _revocation(world: World) -> None:
    probe = await open_probe(world, authorized=False)
    admin = await _admin(world, probe)
    if not (await _policy_page(admin, 0)).kex1_plus:
        raise NotChecked("not checked: the hub enforces no revocations (admission.kex1_plus)")
    grant = await probe.client.authorize(probe.token())
    (sent,) = await probe.send(1, "before the revocation")
    now = (await admin.refresh_status()).hub_ts
    revocation = Revocation(kind="auth-ref", target=grant.auth_ref, ts=now, ttl=_REVOKED_SEC)
    response = await admin.calls.ask(_POLICY, PolicyRequest(revocations=(revocation,)), PolicyResponse, again=False)
    for record in response.records:
        probe.client.pin.check_control(record)
    expect(
        [record.body for record in response.records] == [PolicyRevocation(revocations=(revocation,))],
        "the record about a revocation tells something else",
    )
    await probe.after(response.records[0].hub_ts)
    msg = await probe.message(b"after the revocation", grant.auth_ref)
    answer = await probe.submit(msg)
    expect_refusal(answer, Refusal.CAP_REVOKED, f"a message under a revoked capability, after entry {sent.seq}")


async def _policy_page(admin: HubSession, after: int) -> PolicyRecordsResponse:
    answer = await admin.calls.send(f"{_POLICY}?after={after}", b"", again=False)
    return read(_POLICY, answer.body, PolicyRecordsResponse)


async def _realm(world: World) -> None:
    """Check the records of the control journal, folded as an agent folds the streams of the realm."""
    probe = await open_probe(world, authorized=False)
    admin = await _admin(world, probe)
    authorities: set[Authority] = set()
    revocations: set[Revocation] = set()
    last, is_enforced = 0, False
    for _ in range(_MAX_PAGES):
        page = await _policy_page(admin, last)
        is_enforced = page.auth1
        for record in page.records:
            probe.client.pin.check_control(record)
            expect(record.seq > last, f"policy record {record.seq} follows record {last}")
            last = record.seq
            if isinstance(record.body, PolicyAuthority):
                authorities.update(record.body.authorities)
            elif isinstance(record.body, PolicyRevocation):
                revocations.update(record.body.revocations)
        if not page.more:
            break
        expect(bool(page.records), "the list of policy records goes on, and nothing is listed")
    else:
        raise BadAnswer(f"{_POLICY}: a list without an end")
    if not is_enforced:
        raise NotChecked("not checked: the hub serves no realm (admission.auth1); its policy records verify")
    state = RealmState(
        tuple(sorted(authorities, key=lambda item: (item.ts, item.to_bytes()))),
        tuple(sorted(revocations, key=lambda item: (item.ts, item.to_bytes()))),
    )
    grant = await probe.client.authorize(probe.token())
    answer = await probe.submit(await probe.message(b"authority of the stream", grant.auth_ref))
    active = state.authority(probe.keys.stream_id, (await admin.refresh_status()).hub_ts)
    if active is not None and active.policy == SINGLE_PRIMARY and active.primary_hub != probe.client.hub_id:
        expect_refusal(answer, Refusal.NOT_PRIMARY, "a message to a stream of another primary")
    elif active is not None:
        expect(isinstance(answer, Receipt), "the hub is the primary of the stream and refuses a message")


SUITE: Final = Suite(
    name="authority",
    about="Who may write where, and how long",
    checks={
        "identity: the pinned hub answers, and its identity is signed": identity,
        "capability: a token of the issuer counts once it is shown, from one time on": _authorize,
        "capability: a message without one that the hub knows is refused": _check_missing,
        "capability: an issuer that nobody trusts is refused": _unknown_issuer,
        "capability: a token that was changed is refused": _check_forged,
        "capability: it serves its own client key alone": _subject,
        "capability: it serves its own streams alone": _scope,
        "capability: an issuer gives away its own streams alone": _issuer_scope,
        "capability: it ends": _expiry,
        "capability: its rate is a bound": _rate,
        "policy: strangers may not change it": _check_closed,
        "policy: a revoked capability is refused": _revocation,
        "policy: its records are signed and in order, and the realm's authority holds": _realm,
    },
    first_decides=True,
)
