"""D-175 … D-178, sentence by sentence: times that senders choose, copies, small readings, revoked accounts."""

from dataclasses import replace

import cbor2
import pytest
from tests.overlays.id_builders import ACME, ACME_ID, ALICE, ALICE_APP, APP, BOB_APP, DH, PHONE, SHOP, IdLog
from tests.overlays.wallet_reference import ANN, BOB, BRIDGE, CAT, DAN, DAY, OWNERS, World, opened, xfer

from veen.core.hashing import H
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.schema import Draft, Issue, decode
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.id import drafts as id_drafts
from veen.overlays.id.bodies import REVOCATION, IdRevocationRecord
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, group_id_of, org_stream, principal_stream
from veen.overlays.rpc import messages as rpc
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import OPEN, TRANSFER, wallet_stream
from veen.overlays.wallet.bridge import BridgedReferences
from veen.overlays.wallet.policy import owners_by
from veen.overlays.wallet.rules import Wallet
from veen.testing.events import FakeLog

FAR = 2**40  # a time in the far future
ANY_TIME = WalletPolicy(max_skew_sec=None)


def folded(world, fold=None):
    fold = fold or LedgerFold(mirrors=Mirrors.by([BRIDGE]))
    summary = fold.summarize(world.all())
    return fold.view(summary), [issue.code for issue in fold.issues(summary)]


def view_of(fold, log, as_of=None):
    summary = fold.summarize(log.all())
    return fold.view(summary, as_of), [issue.code for issue in fold.issues(summary)]


# --- D-175: times that senders choose ----------------------------------------------------------------------------


def test_a_handle_dated_ahead_is_corrected_by_the_next_one():
    log = IdLog()
    log.send(id_drafts.handle(APP, "ann", target_type="ctx", target_id=BOB_APP, ts=FAR), ts=1_000)
    log.send(id_drafts.handle(APP, "ann", target_type="ctx", target_id=ALICE_APP, ts=1_001), ts=1_001)
    resolved = log.state().resolve(APP, "ann", as_of=2_000)
    assert resolved is not None
    assert resolved.target_id == ALICE_APP


def test_a_handle_dated_back_still_loses_against_a_later_one():
    log = IdLog()
    log.send(id_drafts.handle(APP, "ann", target_type="ctx", target_id=ALICE_APP, ts=900), ts=1_000)
    log.send(id_drafts.handle(APP, "ann", target_type="ctx", target_id=BOB_APP, ts=800), ts=1_001)
    assert log.state().handles[APP, "ann"].target_id == ALICE_APP


def test_profiles_and_groups_dated_ahead_are_corrected():
    log = IdLog()
    log.send(id_drafts.ctx_profile(ALICE_APP, APP, display_name="wrong", updated_at=FAR), ts=1_000)
    log.send(id_drafts.ctx_profile(ALICE_APP, APP, display_name="Alice", updated_at=1_001), ts=1_001)
    log.send(id_drafts.org_profile(ACME_ID, display_name="wrong", created_at=1_000, updated_at=FAR), ts=1_000)
    log.send(id_drafts.org_profile(ACME_ID, display_name="Acme", created_at=1_000, updated_at=1_001), ts=1_001)
    log.send(id_drafts.change_group(ACME_ID, "staff", name="wrong", updated_at=FAR), ts=1_000)
    log.send(id_drafts.change_group(ACME_ID, "staff", name="Staff", updated_at=1_001), ts=1_001)
    state = log.state()
    assert state.contexts[ALICE_APP, APP].display_name == "Alice"
    assert state.orgs[ACME_ID].display_name == "Acme"
    assert state.groups[ACME_ID, group_id_of(ACME_ID, "staff")].name == "Staff"


def test_a_link_dated_ahead_is_corrected():
    log = IdLog()
    for ctx_id, ts, at in ((BOB_APP, FAR, 1_000), (ALICE_APP, 1_001, 1_001)):
        message = id_drafts.external_link(APP, provider="corp", external_sub="sub", ctx_id=ctx_id, ts=ts)
        log.send(replace(message, stream_id=H(b"merged")), ts=at, client="gateway")
    fold = IdFold(merged=[H(b"merged")])
    link = fold.view(fold.summarize(log.events)).link(APP, "corp", "sub", as_of=2_000)
    assert link is not None
    assert link.ctx_id == ALICE_APP


@pytest.mark.parametrize(("off", "codes"), [(300, []), (-300, []), (301, ["WAL.SKEW"]), (-301, ["WAL.SKEW"])])
def test_by_default_the_time_of_an_event_is_at_most_300_seconds_off(off, codes):
    world = World(now=10_000)
    world.send(opened("ann", 10_000))
    world.send(drafts.deposit(ANN, 5, ts=10_000 + off))
    ledger, reported = folded(world)
    assert reported == codes
    assert ledger.balance(ANN) == (0 if codes else 5)


def test_a_copy_by_a_bridge_is_as_late_as_it_is():
    world = World(now=10_000)
    world.copy(world.send(opened("ann", 10_000)), at=20_000)
    fold = LedgerFold(mirrors=Mirrors.by([BRIDGE]))
    only = [event for event in world.all() if event.client_id == BRIDGE]
    assert fold.issues(fold.summarize(only)) == ()
    assert fold.view(fold.summarize(only)).wallet(ANN).exists


def test_a_daily_limit_is_not_reset_by_going_back_and_forth():
    """1,000 were spent under a limit of 10, one day further back each time."""
    world = World(now=200 * DAY)
    fold = LedgerFold(policy=ANY_TIME)
    world.send_all(
        opened("ann", 200 * DAY), drafts.deposit(ANN, 1_000, ts=200 * DAY), drafts.limit(ANN, 10, ts=200 * DAY)
    )
    for day in range(200, 100, -1):
        world.send_all(drafts.withdraw(ANN, 10, ts=day * DAY))
    ledger, codes = folded(world, fold)
    assert ledger.balance(ANN) == 990
    assert codes == ["WAL.DAILY_LIMIT_EXCEEDED"] * 99
    world.send_all(drafts.withdraw(ANN, 10, ts=201 * DAY))
    assert folded(world, fold)[0].balance(ANN) == 980


def test_what_may_be_spent_is_not_more_on_an_earlier_day():
    wallet = Wallet(exists=True, balance=50, daily_limit=20, pending_daily_spent=15, last_limit_reset_ts=5 * DAY)
    assert (wallet.spendable(DAY), wallet.spendable(5 * DAY), wallet.spendable(6 * DAY)) == (5, 5, 20)


def test_kv_and_lww_keep_ts_as_specified():
    log = FakeLog()
    log.extend([kv.put("k", "ahead", ts=FAR), kv.put("k", "now", ts=1_001)])
    log.extend([crdt.lww_set(b"k", b"ahead", ts=FAR), crdt.lww_set(b"k", b"now", ts=1_001)])
    assert view_of(kv.KvFold(), log)[0]["k"].value.value == "ahead"
    assert view_of(crdt.LwwFold(), log)[0][b"k"].value == b"ahead"


# --- D-176: copies -----------------------------------------------------------------------------------------------

BY_BRIDGE = Mirrors.by([H(b"bridge")])


def copied_before(draft):
    """A log in which the copy comes before its original in logical order, and something stands between them."""
    log = FakeLog()
    original = log.append(draft, stream="north", ts=1_010)
    copy = log.append(
        Draft(schema=draft.schema, body=draft.body, parent_id=original.msg_id),
        stream="south",
        client="bridge",
        ts=1_000,
    )
    return log, original, copy


def test_of_kv_and_lww_the_original_keeps_its_place_where_its_copy_came_first():
    for fold, draft, between, key in (
        (kv.KvFold(mirrors=BY_BRIDGE), kv.put("k", "a"), kv.put("k", "b"), "k"),
        (crdt.LwwFold(mirrors=BY_BRIDGE), crdt.lww_set(b"k", b"a", ts=5), crdt.lww_set(b"k", b"b", ts=5), b"k"),
    ):
        log, original, _ = copied_before(draft)
        log.append(between, stream="middle", ts=1_005)
        assert view_of(fold, log)[0][key].msg_id == original.msg_id


def test_of_id_the_original_keeps_its_place():
    log = IdLog()
    message = id_drafts.device(ALICE.public, device_pk=PHONE.public, dh_pk=DH, label="new", created_at=1)
    original = log.send(message, ts=1_010)
    log.send(
        replace(message, draft=replace(message.draft, parent_id=original.msg_id)), ts=1_000, client="bridge", hub="b"
    )
    between = id_drafts.device(ALICE.public, device_pk=PHONE.public, dh_pk=DH, label="old", created_at=1)
    log.send(between, ts=1_005, hub="c")
    device = log.state(mirrors=BY_BRIDGE).device(ALICE.public, PHONE.public)
    assert device is not None
    assert device.label == "new"


def test_of_ordered_folds_the_first_in_logical_order_counts():
    log, _, copy = copied_before(queue.enqueue("item"))
    view, _ = view_of(queue.QueueFold(mirrors=BY_BRIDGE), log)
    assert [item.order for item in view.items.values()] == [copy.order]
    log, _, copy = copied_before(crud.create("user", "1", {"name": "x"}))
    records, codes = view_of(crud.CrudFold(mirrors=BY_BRIDGE), log)
    assert (records["user"]["1"].msg_id, codes) == (copy.msg_id, [])


def paid(**copy):
    """Ann has 100 and pays 10 in without a ref; what came back as a copy of that counts or not."""
    world = World()
    world.send_all(opened("ann", 1_000), drafts.deposit(ANN, 100, ts=1_000))
    original = world.send(drafts.deposit(ANN, 10, ts=1_000), at=world.now + 1)
    world.copy(original, at=world.now + 1, **copy)
    return folded(world)


def test_a_copy_of_a_payment_counts_as_its_original_from_a_registered_bridge_only():
    assert paid(hub="B", stream_id=H(b"replica"))[0].balance(ANN) == 110
    for sender in (H(b"mallory"), H(b"device of " + wallet_stream(ANN))):
        ledger, codes = paid(hub="A", client=sender)
        assert (ledger.balance(ANN), codes) == (120, []), "no copy: an event of its own"


def test_a_bridge_that_changes_schema_or_body_has_made_no_copy():
    world = World()
    world.send_all(opened("ann", 1_000))
    original = world.send(drafts.deposit(ANN, 10, ts=1_000))
    for forged in (drafts.deposit(ANN, 11, ts=1_000), drafts.withdraw(ANN, 10, ts=1_000)):
        world.send(replace(forged, parent_id=original.msg_id), client=BRIDGE, hub="B", at=world.now + 1)
    assert folded(world)[0].balance(ANN) == 10 + 11 - 10


def test_nobody_but_a_bridge_voids_a_payment_by_coming_first_with_its_body():
    """A copy by a device of the owner comes first in logical order: the original still counts by itself."""
    world = World()
    world.send_all(opened("ann", 1_000))
    original = world.send(drafts.deposit(ANN, 10, ts=1_000), at=1_100)
    world.copy(original, hub="C", client=H(b"someone"), at=1_050)
    fold = LedgerFold(mirrors=Mirrors.by([BRIDGE]))
    assert fold.mirrors.identity(world.all()[-1]) != fold.mirrors.identity(world.all()[-2])


# --- D-177: small readings ---------------------------------------------------------------------------------------


def expiring(draft, expires_at=1_005):
    return replace(draft, expires_at=expires_at)


def test_expires_at_never_voids_a_removal_or_a_counter():
    log = FakeLog()
    log.extend([kv.put("k", 1), expiring(kv.delete("k"))])
    log.extend([crdt.orset_add(b"e", add_id=H(b"1")), expiring(crdt.orset_remove([H(b"1")]))])
    log.extend([crud.create("user", "1", {}), expiring(crud.delete("user", "1"))])
    (item,) = log.extend([queue.enqueue("item")])
    log.extend([expiring(queue.ack(item.msg_id)), expiring(crdt.counter_add(H(b"shard"), 7))])
    late = 9_999
    assert view_of(kv.KvFold(), log, late)[0] == {}
    assert view_of(crdt.OrSetFold(), log, late)[0] == {}
    assert view_of(crud.CrudFold(), log, late)[0] == {}
    assert view_of(queue.QueueFold(), log, late)[0].pending() == []
    assert crdt.counter_value(view_of(crdt.CounterFold(), log, late)[0]) == 7


def test_a_membership_and_a_revocation_that_expire_stay_taken_back():
    log = IdLog()
    log.send(id_drafts.change_group(ACME_ID, "staff", add=[ALICE_APP], updated_at=1_000), ts=1_000)
    gone = id_drafts.change_group(ACME_ID, "staff", remove=[ALICE_APP], updated_at=1_001)
    log.send(replace(gone, draft=expiring(gone.draft)), ts=1_001)
    assert log.state(9_999).groups[ACME_ID, group_id_of(ACME_ID, "staff")].members == {}


def test_a_create_after_the_record_expired_makes_a_new_one_and_revisions_go_on():
    log = FakeLog()
    log.append(expiring(crud.create("user", "1", {"name": "old", "age": 9}), 1_005), ts=1_000)
    log.append(crud.create("user", "1", {"name": "early"}), ts=1_005)  # still there in its last second
    log.append(crud.create("user", "1", {"name": "new"}), ts=1_006)
    records, codes = view_of(crud.CrudFold(), log)
    assert codes == ["CRUD.EXISTS"]
    assert (records["user"]["1"].rev, records["user"]["1"].fields.value) == (2, {"name": "new"})


def test_whether_a_record_exists_for_a_create_is_judged_at_hub_ts_and_not_at_ts_star():
    """The clock of the hub went back: ts* stays at 2,000, but the second create was taken at 1,004."""
    log = FakeLog()
    log.append(expiring(crud.create("user", "1", {"name": "old"}), 1_005), ts=1_000)
    log.append(kv.put("k", 1), ts=2_000)
    late = log.append(crud.create("user", "1", {"name": "new"}), ts=1_004)
    assert (late.hub_ts, late.ts) == (1_004, 2_000)
    assert view_of(crud.CrudFold(), log)[1] == ["CRUD.EXISTS"]


def test_a_delete_that_expires_does_not_bring_the_record_back():
    log = FakeLog()
    log.extend([crud.create("user", "1", {"name": "x"}), expiring(crud.delete("user", "1"))])
    log.append(crud.update("user", "1", {"name": "y"}), ts=2_000)
    assert view_of(crud.CrudFold(), log)[1] == ["CRUD.MISSING"]


def pay(amount, number=1, *, source=ANN, to=BOB):
    return drafts.transfer(source, to, amount, ts=1_000, transfer_id=xfer(number))


def rich(*several, names=("ann", "bob", "dan")):
    world = World()
    world.send_all(*(opened(name, 1_000) for name in names), drafts.deposit(ANN, 100, ts=1_000), *several)
    return folded(world)


def test_a_transfer_id_is_global():
    ledger, codes = rich(pay(10), drafts.deposit(BOB, 5, ts=1_000), pay(5, source=BOB, to=ANN))
    assert codes == ["WAL.TRANSFER_ID_REUSED"]
    assert ledger.balance(ANN) == 90


def test_a_refused_event_uses_up_neither_transfer_id_nor_ref():
    refused = (pay(1_000), drafts.withdraw(ANN, 1_000, ts=1_000, ref=b"r"))
    ledger, codes = rich(*refused, pay(10), drafts.withdraw(ANN, 10, ts=1_000, ref=b"r"))
    assert codes == ["WAL.INSUFFICIENT_FUNDS"] * 2
    assert ledger.balance(ANN) == 80


def test_a_transfer_to_oneself_is_checked_like_any_other_and_moves_nothing():
    ledger, codes = rich(pay(101, to=ANN), pay(100, 2, to=ANN), drafts.limit(ANN, 5, ts=1_000), pay(6, 3, to=ANN))
    assert codes == ["WAL.INSUFFICIENT_FUNDS", "WAL.DAILY_LIMIT_EXCEEDED"]
    wallet = ledger.wallet(ANN)
    assert (wallet.balance, wallet.sent, wallet.received, wallet.pending_daily_spent) == (100, 0, 0, 0)


@pytest.mark.parametrize(
    ("to", "before", "code"),
    [
        (CAT, (), "WAL.UNKNOWN_WALLET"),
        (BOB, (drafts.close(BOB, ts=1_000),), "WAL.CLOSED"),
        (DAN, (), "WAL.INVALID_CURRENCY"),
    ],
)
def test_a_transfer_to_a_wallet_that_cannot_take_it_is_refused_whole(to, before, code):
    ledger, codes = rich(*before, pay(10, to=to))
    assert codes == [code]
    assert (ledger.balance(ANN), ledger.balance(to)) == (100, 0)


def test_a_ref_also_covers_deposit_and_adjust():
    twice = [drafts.deposit(ANN, 7, ts=1_000, ref=b"r"), drafts.adjust(ANN, -3, ts=1_000, reason="fee", ref=b"r")] * 2
    ledger, codes = rich(*twice, drafts.deposit(ANN, 8, ts=1_000, ref=b"r"))
    assert ledger.balance(ANN) == 104
    assert codes == ["WAL.REF_REUSED"]


def test_the_keys_of_metadata_are_text():
    sent = pay(10)
    body = cbor2.dumps({**cbor2.loads(sent.body), "metadata": {1: "x"}})
    assert read(TRANSFER, body) == "OVL.BODY"
    assert read(TRANSFER, cbor2.dumps({**cbor2.loads(sent.body), "metadata": {"1": "x"}})) == "read"


def read(schema, body, parent_id=None):
    event = FakeLog().append(Draft(schema=schema.id, body=body, parent_id=parent_id))
    outcome = decode(event, schema)
    return outcome.code if isinstance(outcome, Issue) else "read"


def test_of_several_faults_the_decoders_is_reported_first():
    """Each of these also breaks the rule of its schema."""
    unknown = cbor2.dumps({"op": "put", "key": "k", "more": 1})
    assert read(kv.KV, unknown) == "OVL.BODY"
    short = {"wallet_id": bytes(32), "realm_id": bytes(31), "ctx_id": bytes(32), "currency": "EUR", "created_at": 1}
    assert read(OPEN, cbor2.dumps(short)) == "OVL.SIZE"
    assert read(OPEN, cbor2.dumps({**short, "realm_id": bytes(32), "more": 1})) == "OVL.BODY"
    assert read(OPEN, cbor2.dumps({**short, "currency": "é", "more": 1})) == "OVL.BODY"
    assert read(OPEN, cbor2.dumps({**short, "realm_id": bytes(32)})) == "WAL.WALLET_ID"
    assert read(rpc.REPLY, cbor2.dumps({"ok": True})) == "OVL.PARENT"
    assert read(rpc.REPLY, cbor2.dumps({"ok": True}), parent_id=bytes(32)) == "RPC.REPLY"


def test_what_the_decoder_refuses_is_not_judged_by_the_policy():
    world = World(now=10_000)
    sent = drafts.deposit(ANN, 1, ts=1)  # far off, on a foreign stream, and with a field too many
    body = cbor2.dumps({**cbor2.loads(sent.body), "more": 1})
    world.send(replace(sent, body=body), stream_id=H(b"elsewhere"))
    assert folded(world)[1] == ["OVL.BODY"]


def test_kv_without_ts_uses_ts_star():
    log = FakeLog()
    log.append(kv.put("other", 1), ts=1_010)
    log.append(kv.put("k", "hub"), ts=1_005)  # the clock went back: hub_ts 1,005, ts* 1,010
    log.append(kv.put("k", "sender", ts=1_007), ts=1_011)
    entry = view_of(kv.KvFold(), log)[0]["k"]
    assert (entry.value.value, entry.ts) == ("hub", 1_010)


@pytest.mark.parametrize(
    "character",
    [
        "\u200b",
        "\u2060",
        "\ufeff",
        "\u00ad",
        "\u034f",
        "\u3164",
        "\U000e0041",
        "\u2800",
        "\u200e",
        "\u200f",
        "\u061c",
        "\u202a",
        "\u202e",
        "\u2066",
        "\u2069",
    ],
)
def test_handles_refuse_invisible_and_directional_characters(character):
    log = IdLog()
    body = {"realm_id": APP, "handle": f"an{character}n", "target_type": "ctx", "target_id": ALICE_APP, "ts": 1}
    plain = id_drafts.handle(APP, "ann", target_type="ctx", target_id=ALICE_APP, ts=1)
    log.send(replace(plain, draft=replace(plain.draft, body=cbor2.dumps(body))))
    assert log.codes() == ["ID.HANDLE"]
    assert log.state().handles == {}


def device_world():
    log = IdLog()
    log.send(id_drafts.device(ALICE.public, device_pk=PHONE.public, dh_pk=DH, created_at=1_000), ts=1_000)
    (device_id,) = (device_id for _, device_id in log.state().devices)
    return log, device_id


def test_an_organization_cannot_revoke_a_device_of_a_principal_and_that_is_reported():
    log, device_id = device_world()
    log.send(id_drafts.revoke_by_org(ACME_ID, device_id=device_id, ts=1_001), ts=1_001)
    state = log.state()
    device = state.device(ALICE.public, PHONE.public)
    assert device is not None
    assert device.is_active(9_999)
    assert [conflict.code for conflict in state.conflicts()] == ["ID.DEVICE_OWNER"]
    log.send(id_drafts.revoke_by_principal(ALICE.public, device_id=device_id, ts=1_002), ts=1_002)
    device = log.state().device(ALICE.public, PHONE.public)
    assert device is not None
    assert not device.is_active(9_999)


def test_an_organization_that_names_the_principal_is_told_so_at_once():
    log, device_id = device_world()
    body = IdRevocationRecord(principal_pk=ALICE.public, org_id=ACME_ID, device_id=device_id, ts=1_001)
    log.send(Addressed(stream_id=org_stream(ACME_ID), draft=REVOCATION.draft(body)), ts=1_001)
    assert log.codes() == ["ID.DEVICE_OWNER"]
    assert log.state().revocations == {}
    log.send(Addressed(stream_id=principal_stream(ALICE.public), draft=REVOCATION.draft(body)), ts=1_002)
    assert log.codes() == ["ID.DEVICE_OWNER"], "the principal may name an organization beside itself"
    device = log.state().device(ALICE.public, PHONE.public)
    assert device is not None
    assert not device.is_active(9_999)


# --- D-178: revoked accounts have no roles ------------------------------------------------------------------------


def with_role(*revocations):
    log = IdLog()
    log.send(id_drafts.bind_role(ACME_ID, "clerk", ctx=[ALICE_APP], ts=1_000), ts=1_000)
    for revocation in revocations:
        log.send(revocation, ts=1_010)
    state = log.state()
    roles = state.roles_of(ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=1_020)
    before = state.roles_of(ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=1_005)
    why = state.why_role("clerk", ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=1_020)
    return roles, why, before


def test_an_account_that_its_principal_revoked_has_no_roles():
    """The log has no other record of the principal."""
    assert with_role() == ({"clerk"}, "bound directly", {"clerk"})
    revoked = id_drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, realm_id=APP, ts=1_010)
    assert with_role(revoked) == (frozenset(), None, {"clerk"})


def test_a_revocation_that_names_its_principal_and_no_realm_counts_without_another_record():
    body = IdRevocationRecord(principal_pk=ALICE.public, ctx_id=ALICE_APP, ts=1_010)
    revoked = Addressed(stream_id=principal_stream(ALICE.public), draft=REVOCATION.draft(body))
    assert with_role(revoked) == (frozenset(), None, {"clerk"})
    nameless = IdRevocationRecord(ctx_id=ALICE_APP, ts=1_010)
    revoked = Addressed(stream_id=principal_stream(ALICE.public), draft=REVOCATION.draft(nameless))
    assert with_role(revoked)[0] == {"clerk"}, "nothing says whose stream this is"


def test_a_principal_takes_no_roles_from_the_account_of_somebody_else():
    body = IdRevocationRecord(principal_pk=ACME.public, ctx_id=ALICE_APP, ts=1_010)
    revoked = Addressed(stream_id=principal_stream(ACME.public), draft=REVOCATION.draft(body))
    assert with_role(revoked)[0] == {"clerk"}
    other_realm = id_drafts.revoke_by_principal(
        ALICE.public, ctx_id=ctx_id_of(ALICE.public, SHOP), realm_id=SHOP, ts=1_010
    )
    assert with_role(other_realm)[0] == {"clerk"}


def test_a_principal_known_by_a_revocation_alone_survives_merge_and_snapshot():
    log = IdLog()
    log.send(id_drafts.bind_role(ACME_ID, "clerk", ctx=[ALICE_APP], ts=1_000), ts=1_000)
    body = IdRevocationRecord(principal_pk=ALICE.public, ctx_id=ALICE_APP, ts=1_010)
    log.send(Addressed(stream_id=principal_stream(ALICE.public), draft=REVOCATION.draft(body)), ts=1_010)
    fold = IdFold()
    merged = fold.merge(*(fold.lift(event) for event in log.events))
    again = fold.load(fold.dump(merged))
    state = fold.view(again)
    assert state == log.state()
    assert state.roles_of(ALICE_APP, org_id=ACME_ID, realm_id=APP, as_of=2_000) == frozenset()


# --- owners of wallets that share a stream --------------------------------------------------------------------------

SERVICE, MALLORY = H(b"service"), H(b"mallory")
KEY_OF = {name: H(b"key of " + name.encode()) for name in OWNERS}
SHARED = H(b"bank")
BANK = WalletPolicy.institutional(services=[SERVICE]).on_shared_streams(
    owners_by({OWNERS[name]: [KEY_OF[name]] for name in ("ann", "bob")})
)


def bank(*sent, policy=BANK):
    world = World()
    for client, draft in (
        (KEY_OF["ann"], opened("ann", 1_000)),
        (KEY_OF["bob"], opened("bob", 1_000)),
        (SERVICE, drafts.deposit(ANN, 100, ts=1_000)),
        *sent,
    ):
        world.send(draft, client=client, stream_id=SHARED, at=world.now + 1)
    return folded(world, LedgerFold(policy=policy)), world


def test_wallets_on_a_shared_stream_are_not_folded_where_no_key_could_act_for_them():
    """D-179: without owners keys act by their bindings; where those are not read either, no wallet could change."""
    assert WalletPolicy(own_streams=False).reads_bindings
    with pytest.raises(ValueError, match="owners"):
        WalletPolicy(own_streams=False, speaks="off")
    with pytest.raises(ValueError, match="owners"):
        WalletPolicy(own_streams=False, owners={}, trust_every_writer=True)


@pytest.mark.parametrize(
    "draft",
    [pay(100), drafts.withdraw(ANN, 1, ts=1_000), drafts.close(ANN, ts=1_000), drafts.deposit(ANN, 1, ts=1_000)],
)
def test_no_other_writer_moves_or_closes_a_wallet(draft):
    for sender in (MALLORY, KEY_OF["bob"]):
        (ledger, codes), _ = bank((sender, draft))
        assert codes == ["WAL.UNAUTHORIZED_OPERATION"]
        assert (ledger.balance(ANN), ledger.wallet(ANN).closed) == (100, False)


def test_owners_and_services_act_as_before():
    (ledger, codes), _ = bank((KEY_OF["ann"], pay(30)), (SERVICE, drafts.freeze(BOB, ts=1_000)))
    assert codes == []
    assert (ledger.balance(ANN), ledger.balance(BOB), ledger.wallet(BOB).frozen) == (70, 30, True)


def test_nobody_opens_the_wallet_of_another_and_nobody_acts_for_an_unknown_owner():
    (_, codes), _ = bank((MALLORY, opened("cat", 1_000)), (KEY_OF["cat"], opened("cat", 1_000)))
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"] * 2
    (_, codes), _ = bank((KEY_OF["ann"], drafts.withdraw(CAT, 1, ts=1_000)))
    assert codes == ["WAL.UNKNOWN_WALLET"]


def test_without_services_only_the_owner_changes_a_wallet():
    policy = WalletPolicy().on_shared_streams(owners_by({OWNERS["ann"]: [KEY_OF["ann"]]}))
    for draft in (
        drafts.adjust(ANN, 50, ts=1_000, reason="x"),
        drafts.freeze(ANN, ts=1_000),
        drafts.limit(ANN, 0, ts=1_000),
    ):
        (_, codes), _ = bank((MALLORY, draft), policy=policy)
        assert codes[-1] == "WAL.UNAUTHORIZED_OPERATION"
        (_, codes), _ = bank((KEY_OF["ann"], draft), policy=policy)
        assert len(codes) == 2, "those of Bob's open and of the service's deposit, whose keys this reader does not know"


def test_what_a_thief_sent_takes_no_transfer_id_with_it():
    (ledger, codes), _ = bank((MALLORY, pay(100)), (KEY_OF["ann"], pay(100)))
    assert codes == ["WAL.UNAUTHORIZED_OPERATION"]
    assert ledger.balance(BOB) == 100


def test_a_bridge_leaves_behind_what_is_not_from_the_owner():
    _, world = bank((MALLORY, pay(100)), (KEY_OF["ann"], pay(10, 2)))
    references = BridgedReferences(LedgerFold(policy=BANK, mirrors=Mirrors.by([BRIDGE])))
    crossing = [event.client_id for event, _ in references.find_missing(world.all())]
    assert crossing == [KEY_OF["ann"], KEY_OF["bob"], SERVICE, KEY_OF["ann"]]


# --- other semantics are not mixed in -------------------------------------------------------------------------------


def test_a_snapshot_of_another_version_of_the_fold_is_refused():
    class Older(crud.CrudFold):
        version = crud.CrudFold.version - 1

    log = FakeLog()
    log.append(crud.create("user", "1", {}))
    (label,) = log.heads()
    cuts = [Cut(label=label, upto_seq=1, mmr_root=bytes(32))]
    snapshot = Snapshot.take(Older(), Older().summarize(log.all()), cuts)
    with pytest.raises(SnapshotRefused, match="settings"):
        snapshot.restore(crud.CrudFold(), lambda *_: bytes(32))
