"""What hubs shall enforce, as a function of a realm's streams (D-51, D-91, D-96)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.overlays.id_builders import IdLog
from tests.overlays.test_realm import GIVEN, STREAMS, Log

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.captoken import CapToken
from veen.core.objects.policies import Revocation
from veen.overlays.federation import realm
from veen.overlays.federation.policy import LEASE_SEC, RealmPolicy, realm_policy
from veen.overlays.federation.realm import RealmFold, RealmState
from veen.overlays.id import drafts
from veen.overlays.id.state import Device, IdState
from veen.overlays.operations import access
from veen.overlays.operations.access import AccessFold
from veen.overlays.operations.common import operation_id_of
from veen.overlays.operations.delegation import Caps, KnownCap
from veen.testing.events import FakeLog

NOTHING = RealmState((), ())
PRINCIPAL = H(b"principal")
GRANTER, BOB = SigningKey(b"\x21" * 32), H(b"bob")
STREAM = H(b"orders")


class TestAccess:
    """Revocations of grants, which name operations, as revocations of tokens, which hubs know."""

    def log(self):
        log = FakeLog()
        grant = log.append(access.grant(BOB, [STREAM], expiry_time=9_000), client="granter")
        return log, grant

    def token(self, *, ttl=5_000, streams=(STREAM,)):
        return CapToken.issue(GRANTER, BOB, streams, ttl=ttl)

    def policy(self, log, *caps):
        token_caps = Caps(caps)
        fold = AccessFold(granters=[H(b"granter")], caps=token_caps)
        state = fold.view(fold.summarize(log.all()))
        # The granter of the log is a name, the issuer of a token a key: they are one person here.
        grants = {key: replace(grant, granter=GRANTER.public) for key, grant in state.grants.items()}
        return realm_policy(NOTHING, access=replace(state, grants=grants), caps=token_caps, as_of=2_000)

    def test_a_reference_that_is_an_auth_ref_is_revoked_as_it_stands(self):
        log, _ = self.log()
        log.append(access.revoke(BOB, H(b"some token")), client="granter", ts=1_500)
        assert self.policy(log).revocations == (Revocation(kind="auth-ref", target=H(b"some token"), ts=1_500),)

    @pytest.mark.parametrize("named", ["operation_id", "msg_id"])
    def test_a_grant_ends_with_the_tokens_that_stand_for_it(self, named):
        log, grant = self.log()
        target = operation_id_of(grant.msg_id) if named == "operation_id" else grant.msg_id
        log.append(access.revoke(BOB, target), client="granter", ts=1_500)
        ours, other = self.token(), self.token(streams=[H(b"another")])
        later = self.token(ttl=6_000)
        caps = KnownCap(ours, 1_100), KnownCap(other, 1_100), KnownCap(later, 1_600)
        assert self.policy(log, *caps).revocations == (Revocation(kind="auth-ref", target=ours.auth_ref(), ts=1_500),)

    def test_a_revocation_of_a_grant_whose_token_nobody_knows_is_reported(self):
        log, grant = self.log()
        log.append(access.revoke(BOB, grant.msg_id), client="granter", ts=1_500)
        policy = self.policy(log)
        assert policy.revocations == ()
        assert [item.subject for item in policy.unresolved] == [BOB]

    def test_everything_of_a_subject_ends_and_what_is_granted_later_does_not(self):
        log, _ = self.log()
        log.append(access.revoke(BOB), client="granter", ts=1_500)
        before, after = self.token(streams=[H(b"another")]), self.token(ttl=6_000)
        policy = self.policy(log, KnownCap(before, 1_500), KnownCap(after, 1_501))
        assert [item.target for item in policy.revocations] == [before.auth_ref()]

    def test_a_stranger_revokes_nothing(self):
        log, grant = self.log()
        log.append(access.revoke(BOB, grant.msg_id), client="mallory", ts=1_500)
        assert self.policy(log, KnownCap(self.token(), 1_100)) == RealmPolicy((), ())


class TestDevices:
    """Client keys by their device records (D-96)."""

    def device(self, name, **changes):
        fields = {
            "principal_pk": PRINCIPAL,
            "device_id": H(b"id" + name),
            "device_pk": H(name),
            "dh_pk": bytes(32),
            "label": None,
            "created_at": 0,
            "expires_at": None,
            "disabled": False,
            "revoked_since": None,
            "msg_id": bytes(32),
        }
        return Device(**{**fields, **changes})

    def policy(self, *devices, as_of=10_000, principals=(PRINCIPAL,)):
        by_key = {(device.principal_pk, device.device_id): device for device in devices}
        nothing: Any = {}
        others = ("principals", "contexts", "orgs", "groups", "roles", "handles", "links", "revocations")
        state = IdState(devices=by_key, **dict.fromkeys(others, nothing))
        return realm_policy(NOTHING, devices=state, principals=principals, as_of=as_of)

    @pytest.mark.req("KEX1-03")
    def test_keys_past_their_end_disabled_or_revoked_are_refused_and_others_are_not(self):
        policy = self.policy(
            self.device(b"fresh", expires_at=10_000),
            self.device(b"old", expires_at=9_999),
            self.device(b"off", disabled=True),
            self.device(b"lost", revoked_since=10_000),
            self.device(b"later", revoked_since=10_001),
        )
        assert {item.target for item in policy.revocations} == {H(b"old"), H(b"off"), H(b"lost")}

    @pytest.mark.req("ID-23")
    def test_tokens_that_their_issuer_took_back_are_refused_where_the_agent_knows_them(self):
        issuer, thief = SigningKey(b"\x31" * 32), SigningKey(b"\x32" * 32)
        token, other = (CapToken.issue(key, BOB, [STREAM], ttl=600) for key in (issuer, thief))
        log = IdLog()
        for ref in (token.auth_ref(), other.auth_ref(), H(b"unknown")):
            log.send(drafts.revoke_by_principal(issuer.public, auth_ref=ref, ts=1_500), ts=1_500)
        caps = Caps([KnownCap(token, 1_000), KnownCap(other, 1_000)])
        policy = realm_policy(NOTHING, devices=log.state(), caps=caps, as_of=2_000)
        assert policy.revocations == (Revocation(kind="auth-ref", target=token.auth_ref(), ts=1_500),)

    def test_a_device_is_refused_for_a_span_that_is_extended_so_that_it_can_be_enabled_again(self):
        off = self.device(b"off", disabled=True)
        (first,), (second,) = (self.policy(off, as_of=at).revocations for at in (10_000, 10_000 + LEASE_SEC))
        assert first.ts <= 10_000 < second.ts < first.until < second.until
        assert self.policy(off, as_of=10_001).revocations == (first,)

    def test_only_principals_that_the_operator_names_count(self):
        """A device record is not signed by the device: anyone could shut out any key."""
        attack = self.device(b"victim", principal_pk=H(b"mallory"), disabled=True)
        assert self.policy(attack).revocations == ()
        registered = self.device(b"victim")
        assert self.policy(attack, registered, principals=(PRINCIPAL, H(b"mallory"))).revocations == ()


@pytest.mark.req("FED-06", "KEX1-07")
def test_what_has_ended_is_left_out_and_equal_logs_give_equal_policies():
    log = Log()
    log.say(realm.assign(GIVEN), STREAMS.fed_admin)
    log.say(realm.assign(GIVEN), STREAMS.fed_admin)
    log.say(realm.revoke("client-id", BOB, ts=100, ttl=20), STREAMS.revocation)
    log.say(realm.revoke("auth-ref", BOB, ts=90), STREAMS.revocation)
    fold = RealmFold(any_emitter=True)

    def policy(events):
        return realm_policy(fold.view(fold.summarize(events)), as_of=100)

    whole = policy(log.all())
    assert whole == policy(list(reversed(log.all())))
    assert [item.kind for item in whole.revocations] == ["auth-ref", "client-id"]
    assert [item.kind for item in whole.in_force(120).revocations] == ["auth-ref"]
    assert whole.in_force(149).authorities == (GIVEN,)
    assert whole.in_force(150).authorities == ()
