"""The fold of ID: who wins, who counts, and what does not (001 ID §6 … §12)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.damage import flipped
from tests.overlays.id_builders import (
    ACME_ID,
    ALICE,
    ALICE_APP,
    APP,
    BOB,
    BOB_APP,
    BRIDGE,
    DH,
    LAPTOP,
    PHONE,
    SHOP,
    IdLog,
)

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.id import bodies, drafts
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import (
    ctx_id_of,
    ctx_stream,
    device_id_of,
    group_id_of,
    org_stream,
    principal_stream,
    scoped_org_id_of,
)
from veen.overlays.id.state import DeviceStatus

ENG = group_id_of(ACME_ID, "eng")
SCOPED = scoped_org_id_of(ACME_ID, APP)


def phone(**changes):
    fields: dict[str, Any] = {"device_pk": PHONE.public, "dh_pk": DH, "created_at": 1} | changes
    return drafts.device(ALICE.public, **fields)


# --- principals and devices ---------------------------------------------------------------------------------


@pytest.mark.req("ID-09")
def test_later_principal_records_override_info_and_nothing_else():
    log = IdLog()
    log.send(drafts.principal(ALICE.public, created_at=5, info={"v": 1}))
    log.send(drafts.principal(ALICE.public, created_at=9, info={"v": 2}))
    last = log.send(drafts.principal(ALICE.public, created_at=10))  # says nothing about info
    principal = log.state().principals[ALICE.public]
    assert principal.created_at == 5
    assert principal.info is not None
    assert principal.info.value == {"v": 2}
    assert principal.msg_id != last.msg_id


@pytest.mark.req("ID-09", "ID-10")
@pytest.mark.parametrize("message", [drafts.principal(ALICE.public, created_at=1), phone()])
def test_a_principal_speaks_only_in_its_own_stream(message):
    log = IdLog()
    log.send(message, stream_id=principal_stream(BOB.public))
    assert log.codes() == ["ID.STREAM"]
    assert not log.state().principals
    assert not log.state().devices


@pytest.mark.req("ID-11")
def test_the_last_record_of_a_device_decides():
    """§6.2: the place in the log counts, not created_at."""
    log = IdLog()
    log.send(phone(created_at=50))
    log.send(phone(created_at=1, disabled=True))
    assert log.state().devices_of(ALICE.public)[0].status(0) is DeviceStatus.DISABLED
    log.send(phone(created_at=1, disabled=False, label="new"))
    (device,) = log.state().devices_of(ALICE.public)
    assert (device.status(0), device.label) == (DeviceStatus.ACTIVE, "new")


@pytest.mark.req("ID-11")
@pytest.mark.parametrize(
    ("changes", "as_of", "status"),
    [
        ({}, 10**9, DeviceStatus.ACTIVE),
        ({"disabled": False}, 0, DeviceStatus.ACTIVE),
        ({"disabled": True}, 0, DeviceStatus.DISABLED),
        ({"expires_at": 2_000}, 2_000, DeviceStatus.ACTIVE),
        ({"expires_at": 2_000}, 2_001, DeviceStatus.EXPIRED),
        ({"expires_at": 2_000, "disabled": True}, 2_001, DeviceStatus.DISABLED),
    ],
)
def test_a_device_is_active_unless_disabled_or_expired(changes, as_of, status):
    """now <= expires_at is still ACTIVE; now comes from the caller or the log, never from a clock (D-80)."""
    log = IdLog()
    log.send(phone(**changes))
    (device,) = log.state().devices.values()
    assert device.status(as_of) is status
    assert device.is_active(as_of) == (status is DeviceStatus.ACTIVE)


@pytest.mark.req("ID-23")
def test_a_revoked_device_is_inactive_whatever_its_records_say():
    log = IdLog()
    log.send(phone())
    log.send(drafts.revoke_by_principal(ALICE.public, device_id=device_id_of(PHONE.public), ts=1_500), ts=1_510)
    log.send(phone(disabled=False), ts=1_600)
    (device,) = log.state().devices.values()
    assert device.status(1_499) is DeviceStatus.ACTIVE
    assert device.status(1_500) is DeviceStatus.REVOKED
    assert device.status(10**9) is DeviceStatus.REVOKED


def test_a_revocation_dated_ahead_counts_from_its_place_in_the_log():
    log = IdLog()
    log.send(phone())
    log.send(drafts.revoke_by_principal(ALICE.public, device_id=device_id_of(PHONE.public), ts=10**9), ts=1_500)
    (device,) = log.state().devices.values()
    assert device.status(1_500) is DeviceStatus.REVOKED


@pytest.mark.req("ID-23")
def test_nobody_revokes_the_device_of_another():
    """Bob writes into his own stream, with and without claiming to be Alice."""
    log = IdLog()
    log.send(phone())
    device_id = device_id_of(PHONE.public)
    log.send(drafts.revoke_by_principal(BOB.public, device_id=device_id, ts=1))
    bare = bodies.REVOCATION.draft(bodies.IdRevocationRecord(device_id=device_id, ts=1))
    log.send(drafts.Addressed(stream_id=principal_stream(BOB.public), draft=bare))
    log.send(
        drafts.revoke_by_principal(ALICE.public, device_id=device_id, ts=1), stream_id=principal_stream(BOB.public)
    )
    assert log.codes() == ["ID.STREAM"]
    (device,) = log.state().devices.values()
    assert device.is_active(10**9)
    log.send(drafts.Addressed(stream_id=principal_stream(ALICE.public), draft=bare))  # in her own stream it counts
    assert not next(iter(log.state().devices.values())).is_active(10**9)


# --- contexts and organizations -----------------------------------------------------------------------------


@pytest.mark.req("ID-12")
def test_the_newest_profile_of_an_account_wins():
    """§7.1: maximum (updated_at, stream_seq); names are not unique."""
    log = IdLog()
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=7, display_name="Ann", prefs={"a": 1}))
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=6, display_name="older"))
    log.send(drafts.ctx_profile(BOB_APP, APP, updated_at=1, display_name="Ann"))
    state = log.state()
    assert [context.display_name for context in state.contexts.values()] == ["Ann", "Ann"]
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=7, display_name="tie"))
    assert log.state().contexts[ALICE_APP, APP].display_name == "tie"
    assert log.state().contexts[ALICE_APP, APP].prefs is None


@pytest.mark.req("ID-12")
def test_a_profile_stands_in_the_stream_of_its_account_and_realm():
    log = IdLog()
    message = drafts.ctx_profile(ALICE_APP, APP, updated_at=7)
    log.send(message, stream_id=ctx_stream(ALICE_APP, SHOP))
    log.send(message, stream_id=ctx_stream(BOB_APP, APP))
    assert log.codes() == ["ID.STREAM", "ID.STREAM"]
    assert not log.state().contexts


@pytest.mark.req("ID-13")
def test_the_newest_profile_of_an_organization_wins():
    log = IdLog()
    log.send(drafts.org_profile(ACME_ID, created_at=1, updated_at=9, display_name="Acme", metadata={"n": 1}))
    log.send(drafts.org_profile(ACME_ID, created_at=1, updated_at=8, display_name="old"))
    log.send(drafts.org_profile(ACME_ID, created_at=1, updated_at=99), stream_id=org_stream(SCOPED))
    assert log.codes() == ["ID.STREAM"]
    org = log.state().orgs[ACME_ID]
    assert (org.display_name, org.updated_at) == ("Acme", 9)


# --- groups and roles ---------------------------------------------------------------------------------------


def members(log, as_of=None):
    return set(log.state(as_of).groups[ACME_ID, ENG].members)


@pytest.mark.req("ID-14")
def test_a_removal_cancels_every_earlier_addition_and_no_later_one():
    """D-95: earlier and later in logical order; updated_at has no say."""
    log = IdLog()
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP, BOB_APP], updated_at=9))
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=9))
    log.send(drafts.change_group(ACME_ID, "eng", remove=[ALICE_APP], updated_at=1))
    assert members(log) == {BOB_APP}
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=0))
    assert members(log) == {ALICE_APP, BOB_APP}


@pytest.mark.req("ID-14")
def test_within_one_event_removals_come_before_additions():
    log = IdLog()
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], remove=[ALICE_APP], updated_at=1))
    assert members(log) == {ALICE_APP}


@pytest.mark.req("ID-14", "ID-06")
def test_a_group_may_be_renamed_and_stays_the_same():
    log = IdLog()
    log.send(drafts.change_group(ACME_ID, "eng", name="Engineers", add=[ALICE_APP], updated_at=5))
    log.send(drafts.change_group(ACME_ID, "eng", name="older", updated_at=4))
    group = log.state().groups[ACME_ID, ENG]
    assert (group.name, set(group.members)) == ("Engineers", {ALICE_APP})


def test_a_membership_ends_with_its_message_unless_another_outlives_it():
    """D-80: payload_hdr.expires_at."""
    log = IdLog()
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=1, expires_at=3_000), ts=1_000)
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP, BOB_APP], updated_at=1, expires_at=2_000), ts=1_001)
    assert members(log, 2_000) == {ALICE_APP, BOB_APP}
    assert members(log, 2_001) == {ALICE_APP}
    assert members(log, 3_001) == set()
    assert log.state().groups[ACME_ID, ENG].members == {ALICE_APP: 3_000, BOB_APP: 2_000}


def roles(log, ctx_id=ALICE_APP, as_of=10**9):
    return log.state(as_of).roles_of(ctx_id, org_id=ACME_ID, realm_id=APP, as_of=as_of)


@pytest.mark.req("ID-15")
def test_roles_add_up_directly_and_through_groups():
    log = IdLog()
    log.send(drafts.bind_role(ACME_ID, "reader", ctx=[ALICE_APP], ts=1))
    log.send(drafts.bind_role(ACME_ID, "editor", groups=[ENG], ts=1))
    log.send(drafts.bind_role(ACME_ID, "reader", ctx=[BOB_APP], ts=1))  # takes nothing away from Alice
    log.send(drafts.bind_role(ACME_ID, "shopper", realm_id=SHOP, ctx=[ALICE_APP], ts=1))  # counts in another realm
    assert roles(log) == {"reader"}
    log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=1))
    assert roles(log) == {"reader", "editor"}
    assert roles(log, BOB_APP) == {"reader"}
    why = log.state().why_role("editor", ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=0)
    assert why == "bound through group 'eng'"
    log.send(drafts.change_group(ACME_ID, "eng", remove=[ALICE_APP], updated_at=1))
    assert roles(log) == {"reader"}


def test_a_role_may_end_and_the_longest_binding_counts():
    log = IdLog()
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP], ts=1, expires_at=2_000))
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP], ts=1, expires_at=1_500))
    assert roles(log, as_of=2_000) == {"admin"}
    assert roles(log, as_of=2_001) == set()
    early = log.state(1_000)  # one state answers for every later moment
    assert early.roles_of(ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=2_001) == set()


@pytest.mark.req("ID-05")
def test_where_the_scoped_organization_is_used_bindings_go_by_it():
    """§3.5: bindings by the bare id count for nothing in that realm then, and are shown as a conflict."""
    log = IdLog()
    log.send(drafts.bind_role(ACME_ID, "bare", realm_id=APP, ctx=[ALICE_APP], ts=1))
    assert roles(log) == {"bare"}
    assert log.state().conflicts() == ()
    log.send(drafts.bind_role(SCOPED, "scoped", realm_id=APP, ctx=[ALICE_APP], ts=1))
    assert roles(log) == {"scoped"}
    assert [conflict.code for conflict in log.state().conflicts()] == ["ID.ORG_SCOPE"]


@pytest.mark.req("ID-05")
def test_the_stream_of_a_scoped_organization_refuses_the_bare_id():
    log = IdLog()
    stream = org_stream(SCOPED)
    log.send(drafts.bind_role(ACME_ID, "admin", realm_id=APP, ctx=[ALICE_APP], ts=1), stream_id=stream)
    log.send(drafts.change_group(ACME_ID, "eng", realm_id=APP, add=[ALICE_APP], updated_at=1), stream_id=stream)
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP], ts=1), stream_id=stream)  # no realm: simply elsewhere
    assert log.codes() == ["ID.ORG_SCOPE", "ID.ORG_SCOPE", "ID.STREAM"]
    assert not log.state().roles
    assert not log.state().groups


# --- handles and links --------------------------------------------------------------------------------------


@pytest.mark.req("ID-19", "ID-27")
def test_a_handle_means_one_identity_per_realm_and_may_move():
    log = IdLog()
    log.send(drafts.handle(APP, "@ann", target_type="ctx", target_id=ALICE_APP, ts=5))
    log.send(drafts.handle(APP, "@ann", target_type="ctx", target_id=BOB_APP, ts=4))
    state = log.state()
    target = state.resolve(APP, "@ann", as_of=0)
    assert target is not None
    assert target.target_id == ALICE_APP
    assert state.resolve(SHOP, "@ann", as_of=0) is None
    assert state.resolve(APP, "@Ann", as_of=0) is None
    log.send(drafts.handle(APP, "@ann", target_type="org", target_id=ACME_ID, ts=5))
    moved = log.state().resolve(APP, "@ann", as_of=0)
    assert moved is not None
    assert (moved.target_type, moved.target_id) == ("org", ACME_ID)


@pytest.mark.req("ID-19")
def test_a_handle_stands_in_the_stream_of_its_realm():
    log = IdLog()
    message = drafts.handle(APP, "@ann", target_type="ctx", target_id=ALICE_APP, ts=5)
    log.send(message, stream_id=ctx_stream(ALICE_APP, APP))
    assert log.codes() == ["ID.STREAM"]


def test_a_handle_of_a_revoked_identity_means_nobody():
    log = IdLog()
    log.send(drafts.handle(APP, "@ann", target_type="ctx", target_id=ALICE_APP, ts=5))
    log.send(drafts.handle(APP, "acme", target_type="org", target_id=ACME_ID, ts=5))
    log.send(drafts.handle(APP, "brief", target_type="org", target_id=H(b"x"), ts=5, expires_at=1_400))
    log.send(drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, realm_id=APP, ts=1_500), ts=1_500)
    log.send(drafts.revoke_by_org(ACME_ID, ts=1_500))
    state = log.state(0)
    for handle in ("@ann", "acme"):
        assert state.resolve(APP, handle, as_of=1_499) is not None
        assert state.resolve(APP, handle, as_of=1_500) is None
    assert state.resolve(APP, "brief", as_of=1_400) is not None
    assert state.resolve(APP, "brief", as_of=1_401) is None


def google(ctx_id=ALICE_APP, **changes):
    fields: dict[str, Any] = {"provider": "google", "external_sub": "42", "ts": 5, "ctx_id": ctx_id} | changes
    return drafts.external_link(APP, **fields)


@pytest.mark.req("ID-20")
def test_one_link_of_an_external_account_is_active_and_rivals_are_shown():
    log = IdLog()
    log.send(google(ts=5))
    log.send(google(ts=7, attributes={"email": "ann@example.com"}))
    assert log.state().conflicts() == ()
    log.send(google(BOB_APP, ts=9), client="mallory")
    state = log.state()
    newest = state.link(APP, "google", "42", as_of=0)
    assert newest is not None
    assert newest.ctx_id == BOB_APP
    assert [conflict.code for conflict in state.conflicts()] == ["ID.LINK_CONFLICT"]
    believed = state.link(APP, "google", "42", as_of=0, writers=[H(b"someone")])
    assert believed is not None
    assert (believed.ctx_id, believed.ts) == (ALICE_APP, 7)
    assert state.link(APP, "google", "42", as_of=0, writers=[]) is None
    assert state.link(SHOP, "google", "42", as_of=0) is None


@pytest.mark.req("ID-20")
def test_a_link_stands_with_its_account_or_its_organization():
    log = IdLog()
    log.send(google())
    log.send(google(None, org_id=ACME_ID, external_sub="43"))
    log.send(google(ALICE_APP, org_id=ACME_ID, external_sub="44"), stream_id=org_stream(ACME_ID))
    assert log.codes() == []
    log.send(google(), stream_id=ctx_stream(BOB_APP, APP))
    assert log.codes() == ["ID.STREAM"]


# --- revocation ---------------------------------------------------------------------------------------------


@pytest.mark.req("ID-23")
def test_a_revoked_account_is_disabled_in_its_realm():
    log = IdLog()
    log.send(drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, realm_id=APP, reason="left", ts=1_500))
    state = log.state()
    revocation = state.ctx_revocation(ALICE_APP, APP, 1_500)
    assert revocation is not None
    assert revocation.reason == "left"
    assert state.ctx_revocation(ALICE_APP, APP, 0) is None
    assert state.ctx_revocation(BOB_APP, APP, 10**9) is None


def test_a_principal_revokes_only_its_own_accounts():
    log = IdLog()
    log.send(drafts.revoke_by_principal(BOB.public, ctx_id=ALICE_APP, realm_id=APP, ts=1))
    log.send(
        drafts.revoke_by_principal(
            BOB.public, ctx_id=ALICE_APP, realm_id=APP, device_id=device_id_of(PHONE.public), ts=1
        )
    )
    assert log.codes() == ["ID.CTX_OWNER", "ID.CTX_OWNER"]
    assert not log.state().revocations  # what is refused, is refused as a whole
    log.send(drafts.revoke_by_principal(BOB.public, ctx_id=ALICE_APP, ts=1))  # leaves out the realm
    assert log.state().ctx_revocation(ALICE_APP, APP, 10**9) is None
    log.send(drafts.principal(BOB.public, created_at=1))
    assert log.state().ctx_revocation(ALICE_APP, APP, 10**9) is None
    log.send(drafts.principal(ALICE.public, created_at=1))
    log.send(drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, ts=1))
    assert log.state().ctx_revocation(ALICE_APP, APP, 10**9) is not None


def test_an_organization_revokes_accounts_for_itself_unless_the_realm_trusts_it():
    log = IdLog()
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP, BOB_APP], ts=1))
    log.send(drafts.revoke_by_org(ACME_ID, ctx_id=ALICE_APP, realm_id=APP, ts=1))
    assert roles(log) == set()
    assert roles(log, BOB_APP) == {"admin"}
    state = log.state()
    assert state.ctx_revocation(ALICE_APP, APP, 10**9) is None
    assert state.ctx_revocation(ALICE_APP, APP, 10**9, trusted_orgs=[ACME_ID]) is not None
    assert state.org_revocation(ACME_ID, 10**9) is None  # org_id beside a target says who revokes


def test_a_revoked_organization_gives_no_roles():
    log = IdLog()
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP], ts=1))
    log.send(drafts.revoke_by_org(ACME_ID, ts=1_500), ts=1_600)
    assert roles(log, as_of=1_499) == {"admin"}
    assert roles(log, as_of=1_500) == set()


def test_a_revocation_in_the_name_of_another_organization_counts_for_nothing():
    log = IdLog()
    log.send(drafts.revoke_by_org(ACME_ID, ts=1), stream_id=org_stream(SCOPED))
    assert log.codes() == ["ID.STREAM"]


# --- the reader's configuration -----------------------------------------------------------------------------


@pytest.mark.req("ID-07")
def test_streams_may_be_merged():
    """§4.1. In a merged stream a revocation without a name speaks for everybody."""
    stream = H(b"identities")
    log = IdLog()
    for message in (
        drafts.principal(ALICE.public, created_at=1),
        phone(),
        drafts.device(BOB.public, device_pk=LAPTOP.public, dh_pk=DH, created_at=1),
        drafts.ctx_profile(ALICE_APP, APP, updated_at=1),
        drafts.bind_role(ACME_ID, "admin", ctx=[ALICE_APP], ts=1),
        drafts.revoke_by_principal(BOB.public, device_id=device_id_of(PHONE.public), ts=1),  # not his
    ):
        log.send(message, stream_id=stream)
    revocation = bodies.IdRevocationRecord(device_id=device_id_of(LAPTOP.public), ctx_id=ALICE_APP, ts=1)
    log.send(drafts.Addressed(stream_id=stream, draft=bodies.REVOCATION.draft(revocation)))
    assert set(log.codes()) == {"ID.STREAM"}
    fold = IdFold(merged=[stream])
    assert log.codes(fold) == []
    state = fold.view(fold.summarize(log.events))
    assert [device.is_active(10**9) for device in state.devices.values()] == [True, False]
    assert state.ctx_revocation(ALICE_APP, APP, 10**9) is not None


def test_the_writers_of_a_stream_may_be_named():
    log = IdLog()
    gateway = H(b"gateway")
    stream = org_stream(ACME_ID)
    binding = log.send(drafts.bind_role(ACME_ID, "reader", ctx=[ALICE_APP], ts=1), client="gateway")
    log.send(drafts.bind_role(ACME_ID, "admin", ctx=[BOB_APP], ts=1), client="mallory")
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=1), client="mallory")  # a stream that names no writers
    fold = IdFold(authors={stream: [gateway]}, mirrors=Mirrors.by([BRIDGE]))
    assert log.codes(fold) == ["ID.AUTHOR"]
    copy = IdLog()
    copy.send(drafts.mirrored(binding), client="bridge")
    assert copy.codes(fold) == []
    assert fold.view(fold.summarize(copy.events)).roles


def test_a_snapshot_is_bound_to_the_configuration_of_its_reader():
    log = IdLog()
    event = log.send(phone())
    fold = IdFold(merged=[H(b"identities")])
    cut = Cut(label=event.label, upto_seq=1, mmr_root=H(b"root"))
    snapshot = Snapshot.take(fold, fold.summarize(log.events), [cut])
    assert fold.view(snapshot.restore(fold, lambda *_: H(b"root"))) == log.state()
    for other in (IdFold(), IdFold(merged=[H(b"identities")], authors={event.stream_id: []})):
        with pytest.raises(SnapshotRefused) as refused:
            snapshot.restore(other, lambda *_: H(b"root"))
        assert isinstance(refused.value, VerifyError)


def test_a_snapshot_with_a_damaged_body_is_refused():
    log = IdLog()
    event = log.send(phone())
    fold = IdFold()
    snapshot = Snapshot.take(fold, fold.summarize(log.events), [])
    assert snapshot.summary.count(event.body) == 1
    for bad in (flipped(event.body), event.body.replace(b"device_id", b"device_ix")):
        damaged = replace(snapshot, summary=snapshot.summary.replace(event.body, bad))
        with pytest.raises(SnapshotRefused):
            damaged.restore(fold, lambda *_: None)


@pytest.mark.req("ID-27")
def test_only_the_principal_leads_from_one_realm_to_another():
    log = IdLog()
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=1))
    log.send(drafts.ctx_profile(ctx_id_of(ALICE.public, SHOP), SHOP, updated_at=1))
    assert log.state().principal_of(ALICE_APP, APP) is None
    log.send(phone())
    assert log.state().principal_of(ALICE_APP, APP) == ALICE.public


@pytest.mark.req("ID-26")
def test_a_mirrored_event_counts_once_and_an_unregistered_copy_is_an_event_of_its_own():
    """D-85: identity by parent_id only when the sender is a registered bridge."""
    log = IdLog()
    original = log.send(drafts.change_group(ACME_ID, "eng", add=[ALICE_APP], updated_at=1), ts=1_000)
    log.send(drafts.change_group(ACME_ID, "eng", remove=[ALICE_APP], updated_at=2), ts=1_001)
    log.send(drafts.mirrored(original), ts=1_002, hub="b", client="bridge")
    mirrored = log.state(mirrors=Mirrors.by([BRIDGE]))
    assert set(mirrored.groups[ACME_ID, ENG].members) == set()
    assert set(log.state().groups[ACME_ID, ENG].members) == {ALICE_APP}
