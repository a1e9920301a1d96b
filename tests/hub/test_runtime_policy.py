"""Policy views and anchors in a whole hub, from its configuration to its data directory."""

import pytest
from tests.hub import builders as w
from tests.hub.test_runtime import assert_whole, configured, fs_of, get, run, running, submit
from tests.waiting import eventually

from veen.core.errors import Refusal
from veen.core.objects.control import PolicyRevocation
from veen.core.objects.policies import Revocation, realm_id_of
from veen.hub.admission.decide import Refuse
from veen.hub.admission.policy import Auth1, Kex1
from veen.hub.process.config import load
from veen.storage import layout

POLICY_FLAGS = {"admission__kex1_plus": "true", "admission__auth1": "true", "engine__max_clock_step": "0"}


class Clock:
    now = float(w.NOW)

    def __call__(self):
        return self.now


@pytest.mark.req("KEX1-01", "AUTH-01")
def test_the_configuration_says_what_is_enforced_and_how():
    assert load(None, {}, {"data_dir": "d"}).policy(b"h" * 32).kex1 is None
    assert load(None, {}, {"data_dir": "d"}).policy(b"h" * 32).auth1 is None
    flags = {
        "data_dir": "d",
        "admission.kex1_plus": "true",
        "admission.max_client_id_lifetime_sec": "3600",
        "admission.max_msgs_per_client_id_per_label": "256",
        "admission.auth1": "true",
        "admission.realm": "factory",
        "admission.unspecified_authority": "refuse",
    }
    policy = load(None, {}, flags).policy(b"h" * 32)
    assert policy.kex1 == Kex1(max_client_id_lifetime_sec=3600, max_msgs_per_client_id_per_label=256)
    assert policy.auth1 == Auth1(hub_id=b"h" * 32, realm_id=realm_id_of("factory"), accept_unspecified=False)
    by_id = load(None, {}, {**flags, "admission.realm": "0B" * 32}).policy().auth1
    assert by_id is not None
    assert by_id.realm_id == b"\x0b" * 32
    for key, value in (
        ("admission.max_client_id_lifetime_sec", "86401"),
        ("admission.max_msgs_per_client_id_per_label", "65537"),
        ("admission.realm", ""),
    ):
        with pytest.raises(Exception, match=key):
            load(None, {}, {**flags, key: value})


@pytest.mark.req("KEX1-08", "KEX1-03")
def test_a_revocation_and_the_age_of_a_key_hold_through_reloads_and_restarts(tmp_path):
    clock = Clock()
    revoked = PolicyRevocation(revocations=(Revocation(kind="client-id", target=w.ALICE.public, ts=w.NOW, ttl=50),))

    async def begin():
        async with running(tmp_path, clock=clock, **POLICY_FLAGS) as hub:
            assert hub.policy.auth1 is not None
            assert hub.policy.auth1.hub_id == hub.identity.hub_id
            await submit(hub, 2)
            await hub.sequencer.control(lambda _: revoked)
            clock.now += 1
            assert await refusal(hub, 3) is Refusal.CLIENT_REVOKED
            assert b"\nveen_revocations 1\n" in (await get(hub, "/metrics"))[1]
            hub.reload(configured(tmp_path))  # switched off
            await submit(hub, 1, first=3)
            hub.reload(configured(tmp_path, **POLICY_FLAGS))
            assert await refusal(hub, 4) is Refusal.CLIENT_REVOKED

    async def after():
        async with running(tmp_path, clock=clock, **POLICY_FLAGS) as hub:
            assert await refusal(hub, 4) is Refusal.CLIENT_REVOKED
            clock.now = w.NOW + 60
            await submit(hub, 1, first=4)
            clock.now = w.NOW + 10_000
            hub.reload(configured(tmp_path, **POLICY_FLAGS, admission__max_client_id_lifetime_sec="9999"))
            assert await refusal(hub, 5) is Refusal.CLIENT_LIFETIME
            assert b"\nveen_revocations 0\n" in (await get(hub, "/metrics"))[1]

    run(begin())
    run(after())
    assert_whole(tmp_path)


async def refusal(hub, seq):
    outcome = await hub.sequencer.submit(w.msg(seq=seq, token=None).to_bytes())
    assert isinstance(outcome, Refuse)
    return outcome.refusal


@pytest.mark.req("ANC-03", "ANC-04")
def test_a_hub_anchors_at_its_own_cadence(tmp_path):
    async def scenario():
        async with running(tmp_path, anchor__every="1s") as hub:
            await submit(hub, 3)
            await eventually(lambda: hub.api.context.control.last_anchored_seq(w.LABEL))
            (record,) = hub.api.context.control.anchors(w.LABEL, 0)
            assert hub.anchors.verify(record.body.mmr_root, record.body.anchor_ref)

    run(scenario())
    assert fs_of(tmp_path).exists(layout.ANCHORS)
    assert not assert_whole(tmp_path).findings
