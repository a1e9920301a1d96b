"""What operation profiles share: ids, key order, speakers, and delegated executions (001 spec-3 §1, §4)."""

import pickle
from dataclasses import replace

import pytest
from tests.overlays.operation_builders import (
    ALICE,
    BANK,
    BOB,
    ID,
    MAIN,
    MALLORY,
    OTHER_ID,
    ROOT,
    SIDE,
    cap,
    chain_to,
    codes,
    op_id,
    refs,
    view,
)

from veen.core import cbor
from veen.core.errors import CapabilityError, FormatError
from veen.core.hashing import H, Ht
from veen.core.labels import OPERATIONS
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.schema import Draft
from veen.overlays.id import drafts as identity
from veen.overlays.id.delegation import NewKey, rotate_device
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, device_id_of, realm_id_of
from veen.overlays.kv import put
from veen.overlays.operations import (
    access,
    agreement,
    common,
    delegation,
    mirror,
    paid,
    publication,
    queryaudit,
    recovery,
)
from veen.overlays.operations.common import Speakers, Speaks
from veen.overlays.operations.schemas import ALL
from veen.testing.events import FakeLog

BODIES = [
    paid.PaidOperation(
        operation_type="t",
        operation_args=None,
        payer_account=ID,
        payee_account=OTHER_ID,
        amount=1,
        currency_code="EUR",
        operation_reference=ID,
        parent_operation_id=ID,
        ttl_seconds=1,
        metadata={"b": 1, "a": 2},
    ),
    access.AccessGrant(
        subject_identity=ID,
        subject_label="x",
        allowed_stream_ids=(ID,),
        expiry_time=1,
        maximum_rate_per_second=1,
        maximum_burst=1,
        maximum_amount=1,
        currency_code="EUR",
        reason="x",
        parent_operation_id=ID,
    ),
    access.AccessRevoke(subject_identity=ID, target_capability_reference=ID, reason="x", parent_operation_id=ID),
    delegation.DelegatedExecution(
        principal_identity=ID,
        agent_identity=ID,
        delegation_chain=(ID,),
        operation_schema=ID,
        operation_body={"b": 1, "a": 2},
        parent_operation_id=ID,
        metadata=1,
    ),
    agreement.AgreementDefinition(
        agreement_id=ID,
        version=1,
        terms_hash=ID,
        terms_attachment_root=ID,
        parties=(ID,),
        effective_time=1,
        expiry_time=2,
        metadata=1,
    ),
    agreement.AgreementConfirmation(
        agreement_id=ID,
        version=1,
        party_identity=ID,
        decision="accept",
        decision_time=1,
        parent_operation_id=ID,
        metadata=1,
    ),
    publication.DataPublication(
        publication_id=ID,
        publisher_identity=ID,
        content_root=ID,
        content_class="model",
        version="1",
        labels=("a",),
        source_uri="u",
        metadata=1,
    ),
    recovery.RecoveryRequest(
        target_identity=ID, requested_new_identity=OTHER_ID, reason="x", request_time=1, metadata=1
    ),
    recovery.RecoveryApproval(
        target_identity=ID,
        requested_new_identity=OTHER_ID,
        approver_identity=ID,
        policy_group_id=ID,
        decision="approve",
        decision_time=1,
        parent_operation_id=ID,
        metadata=1,
    ),
    recovery.RecoveryExecution(
        target_identity=ID, new_identity=OTHER_ID, applied_time=1, approval_references=(ID,), metadata=1
    ),
    queryaudit.QueryAudit(
        requester_identity=ID,
        resource_identifier="r",
        resource_class="c",
        query_parameters={"b": 1, "a": 2},
        purpose_code="p",
        result_digest=ID,
        request_time=1,
        metadata=1,
    ),
    mirror.FederationMirror(
        source_hub_identifier=f"hub:{'ab' * 32}",
        source_label=ID,
        source_stream_seq=1,
        source_leaf_hash=ID,
        source_receipt_root=ID,
        target_label=ID,
        mirror_time=1,
        metadata=1,
    ),
]
# The keys as the document lists them.
KEYS = {
    "paid.operation.v1": "operation_type operation_args payer_account payee_account amount currency_code "
    "operation_reference parent_operation_id ttl_seconds metadata",
    "access.grant.v1": "subject_identity subject_label allowed_stream_ids expiry_time maximum_rate_per_second "
    "maximum_burst maximum_amount currency_code reason parent_operation_id",
    "access.revoke.v1": "subject_identity target_capability_reference reason parent_operation_id",
    "delegated.execution.v1": "principal_identity agent_identity delegation_chain operation_schema operation_body "
    "parent_operation_id metadata",
    "agreement.definition.v1": "agreement_id version terms_hash terms_attachment_root parties effective_time "
    "expiry_time metadata",
    "agreement.confirmation.v1": "agreement_id version party_identity decision decision_time parent_operation_id "
    "metadata",
    "data.publication.v1": "publication_id publisher_identity content_root content_class version labels source_uri "
    "metadata",
    "recovery.request.v1": "target_identity requested_new_identity reason request_time metadata",
    "recovery.approval.v1": "target_identity requested_new_identity approver_identity policy_group_id decision "
    "decision_time parent_operation_id metadata",
    "recovery.execution.v1": "target_identity new_identity applied_time approval_references metadata",
    "query.audit.v1": "requester_identity resource_identifier resource_class query_parameters purpose_code "
    "result_digest request_time metadata",
    "federation.mirror.v1": "source_hub_identifier source_label source_stream_seq source_leaf_hash "
    "source_receipt_root target_label mirror_time metadata",
}
REQUIRED = {
    "paid.operation.v1": "operation_type operation_args payer_account payee_account amount",
    "access.grant.v1": "subject_identity allowed_stream_ids expiry_time",
    "access.revoke.v1": "subject_identity",
    "delegated.execution.v1": "principal_identity agent_identity delegation_chain operation_schema operation_body",
    "agreement.definition.v1": "agreement_id version terms_hash parties",
    "agreement.confirmation.v1": "agreement_id version party_identity decision",
    "data.publication.v1": "publication_id publisher_identity content_root content_class version",
    "recovery.request.v1": "target_identity requested_new_identity",
    "recovery.approval.v1": "target_identity requested_new_identity approver_identity decision",
    "recovery.execution.v1": "target_identity new_identity approval_references",
    "query.audit.v1": "requester_identity resource_identifier resource_class",
    "federation.mirror.v1": "source_hub_identifier source_label source_stream_seq source_leaf_hash "
    "source_receipt_root target_label",
}
SHAPES = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.KIND)
SCHEMA_REQS = pytest.mark.req(
    *("PAID-01", "GRANT-01", "GRANT-02", "DELEG-01", "AGREE-01", "AGREE-02", "PUB-01", "RECOV-01", "RECOV-02"),
    *("RECOV-03", "QAUD-01", "MIRR-01", "OPC-05"),
)


def test_every_profile_of_the_document_is_here_with_a_body():
    assert {body.KIND for body in BODIES} == set(KEYS) == OPERATIONS - {"state.checkpoint.v1"}
    assert {schema.name for schema in ALL.values()} == set(KEYS)


@SCHEMA_REQS
@SHAPES
def test_keys_stand_in_the_order_of_the_document_and_what_is_read_is_what_was_written(body):
    tree = cbor.decode(body.to_bytes())
    assert list(tree) == KEYS[body.KIND].split()
    assert type(body).from_bytes(body.to_bytes()).to_bytes() == body.to_bytes()
    needed = {name: tree[name] for name in REQUIRED[body.KIND].split()}
    assert type(body).from_tree(needed).to_tree() == needed


@SCHEMA_REQS
@SHAPES
def test_a_missing_an_unknown_or_a_misplaced_key_is_refused(body):
    tree = cbor.decode(body.to_bytes())
    for name in REQUIRED[body.KIND].split():
        with pytest.raises(FormatError):
            type(body).from_tree({key: value for key, value in tree.items() if key != name})
    with pytest.raises(FormatError, match="unknown"):
        type(body).from_tree({**tree, "more": 1})
    with pytest.raises(FormatError):
        type(body).from_tree(dict(reversed(tree.items())))


@pytest.mark.req("OPC-01")
@SHAPES
def test_schema_ids_have_the_prefix_of_operations(body):
    schema = BUILTIN.schemas.named(body.KIND)
    assert schema is not None
    assert schema.body is type(body)
    assert schema.id == H(b"veen/schema:" + body.KIND.encode())


@pytest.mark.req("OPC-02")
def test_an_operation_is_named_by_the_hash_of_its_message():
    assert common.operation_id_of(ID) == Ht("veen/operation-id", ID)
    assert common.account_id_of(ID) == Ht("veen/account", ID)


def test_free_form_parts_are_written_sorted():
    """D-03."""
    tree = cbor.decode(BODIES[0].to_bytes())
    assert list(tree["metadata"]) == ["a", "b"]
    assert tree["operation_args"] is None


# --- who speaks for whom -------------------------------------------------------------------------------------------


def test_a_key_speaks_for_itself_and_within_its_time_for_others():
    """D-137."""
    speakers = Speakers.by([Speaks(ALICE, ID, 100, 200)])
    assert speakers.identities(ALICE, 99) == {ALICE}
    assert speakers.identities(ALICE, 100) == speakers.identities(ALICE, 200) == {ALICE, ID}
    assert speakers.identities(ALICE, 201) == {ALICE}
    assert speakers.identities(BOB, 150) == {BOB}
    assert pickle.loads(pickle.dumps(speakers)) == speakers  # noqa: S301 - our own bytes


def test_devices_of_an_id_view_speak_for_their_principal_until_they_are_revoked():
    """D-137: the ID layer as input."""
    realm_id, log = realm_id_of("shop"), FakeLog(now=10)
    fold = IdFold(merged=[H(b"ids")])
    device = identity.device(BANK.public, device_pk=ALICE, dh_pk=ID, created_at=20)
    log.append(device.draft, stream="ids", client="x", ts=20)
    speakers = Speakers.of(view(fold, log), [realm_id])
    account = ctx_id_of(BANK.public, realm_id)
    assert speakers.identities(ALICE, 19) == {ALICE}
    assert speakers.identities(ALICE, 25) == {ALICE, BANK.public, account}
    log.append(
        identity.revoke_by_principal(BANK.public, device_id=device_id_of(ALICE), ts=30).draft,
        stream="ids",
        client="x",
        ts=30,
    )
    speakers = Speakers.of(view(fold, log), [realm_id])
    assert speakers.identities(ALICE, 29) == {ALICE, BANK.public, account}
    assert speakers.identities(ALICE, 30) == {ALICE}


def test_a_device_that_was_replaced_spoke_for_its_principal_before():
    """The end of a device is a time."""
    log = FakeLog(now=10)
    fold = IdFold(merged=[H(b"ids")])
    first = identity.device(BANK.public, device_pk=ALICE, dh_pk=ID, created_at=20)
    log.append(first.draft, stream="ids", client="x", ts=20)
    (old,) = view(fold, log).devices.values()
    for message in rotate_device(old, NewKey(device_pk=BOB, dh_pk=ID), now=30):
        log.append(message.draft, stream="ids", client="x", ts=30)
    speakers = Speakers.of(view(fold, log))
    assert speakers.identities(ALICE, 29) == {ALICE, BANK.public}
    assert speakers.identities(ALICE, 30) == {ALICE}
    assert speakers.identities(BOB, 30) == {BOB, BANK.public}
    off = identity.device(BANK.public, device_pk=BOB, dh_pk=ID, created_at=30, disabled=True)
    log.append(off.draft, stream="ids", client="x", ts=40)
    speakers = Speakers.of(view(fold, log))
    assert speakers.identities(BOB, 39) == {BOB, BANK.public}
    assert speakers.identities(BOB, 40) == {BOB}


# --- delegated executions ------------------------------------------------------------------------------------------


def revocation(chain, *, agent=ALICE, principal=BANK.public, inner=None):
    return delegation.delegate(inner or access.revoke(BOB), principal=principal, agent=agent, chain=chain)


def judged(caps, draft, *, client="alice", stream="main", ts=1_000, **kwargs):
    log = FakeLog()
    log.append(draft, client=client, stream=stream, ts=ts)
    fold = delegation.DelegationFold(caps=caps, **kwargs)
    return [code for _, code in codes(fold, log)]


def test_a_chain_begins_with_an_issuer_whom_the_reader_trusts():
    caps, chain = chain_to(ALICE)
    root = caps[chain[0]].token.issuer_pk
    assert judged(delegation.Caps(caps.values(), issuers=[root]), revocation(chain)) == []
    assert judged(delegation.Caps(caps.values(), issuers=[BANK.public]), revocation(chain)) == ["DELEG.CHAIN"]
    assert (
        delegation.Caps(caps.values(), issuers=[root]).settings()
        != caps.settings()
        == delegation.Caps(caps.values()).settings()
    )


@pytest.mark.req("DELEG-02", "DELEG-04")
def test_a_valid_chain_counts_and_stays_whole_in_the_state():
    caps, chain = chain_to(ALICE)
    log = FakeLog()
    event = log.append(revocation(chain), client="alice")
    (key, execution), *rest = view(delegation.DelegationFold(caps=caps), log).items()
    assert not rest
    assert key == op_id(event)
    assert execution.chain == tuple(chain)
    assert (execution.principal, execution.agent, execution.client_id) == (BANK.public, ALICE, ALICE)


@pytest.mark.req("DELEG-02", "DELEG-04")
@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({"issued_at": 900, "ttl": 99}, "DELEG.EXPIRED"),
        ({"issued_at": 900, "ttl": 100}, None),
        ({"issued_at": 1_001}, "DELEG.EXPIRED"),
        ({"revoked_at": 1_000}, "DELEG.REVOKED"),
        ({"revoked_at": 1_001}, None),
        ({"streams": (SIDE,)}, "DELEG.CHAIN"),
        ({"streams": (ID, MAIN)}, "DELEG.CHAIN"),
    ],
    ids=["expired", "last second", "not yet", "revoked", "revoked later", "another stream", "wider streams"],
)
def test_one_bad_link_voids_the_operation(second, code):
    """D2, D-92."""
    if "streams" in second:
        second["streams"] = tuple(sorted(second["streams"]))
    caps, chain = chain_to(ALICE, **second)
    assert judged(caps, revocation(chain)) == ([code] if code else [])


@pytest.mark.req("DELEG-02", "DELEG-04")
def test_a_chain_that_does_not_lead_from_the_principal_to_the_sender_is_void():
    caps, chain = chain_to(ALICE)
    assert judged(caps, revocation(chain, principal=ROOT.public)) == ["DELEG.CHAIN"]
    assert judged(caps, revocation(chain[:1])) == ["DELEG.CHAIN"]
    assert judged(caps, revocation(chain[1:])) == ["DELEG.CHAIN"]
    assert judged(caps, revocation([*reversed(chain)])) == ["DELEG.CHAIN"]
    forked = cap(ROOT, BANK.public), cap(ROOT, ALICE)  # the second by another issuer than the first subject
    assert judged(delegation.Caps(forked), revocation(refs(*forked))) == ["DELEG.CHAIN"]
    assert judged(caps, revocation(chain, agent=MALLORY), client="mallory") == ["DELEG.CHAIN"]


@pytest.mark.req("DELEG-02")
def test_a_stranger_cannot_act_under_the_name_of_the_agent():
    caps, chain = chain_to(ALICE)
    assert judged(caps, revocation(chain), client="mallory") == ["DELEG.SPEAKER"]
    speakers = Speakers.by([Speaks(MALLORY, ALICE)])
    assert judged(caps, revocation(chain), client="mallory", speakers=speakers) == []


@pytest.mark.req("DELEG-04")
def test_an_empty_chain_and_a_nested_delegation_cannot_be_drafted_and_count_for_nothing():
    """D1; D-139."""
    with pytest.raises(FormatError, match=r"DELEG\.EMPTY"):
        revocation([])
    _, chain = chain_to(ALICE)
    with pytest.raises(FormatError, match=r"DELEG\.NESTED"):
        revocation(chain, inner=revocation(chain))
    tree = cbor.decode(revocation(chain).body)
    caps, _ = chain_to(ALICE)
    for change, code in (
        ({"delegation_chain": []}, "DELEG.EMPTY"),
        ({"operation_schema": delegation.DELEGATED.id}, "DELEG.NESTED"),
        ({"delegation_chain": [ID] * 9}, "OVL.SIZE"),
    ):
        draft = Draft(schema=delegation.DELEGATED.id, body=cbor.encode({**tree, **change}))
        assert judged(caps, draft) == [code]


@pytest.mark.req("DELEG-02")
def test_tokens_that_are_not_known_leave_the_operation_open_and_forged_ones_are_refused():
    """D-139: evaluated again when the tokens are there; the set of them is part of what decides the state."""
    caps, chain = chain_to(ALICE)
    assert judged(delegation.NO_CAPS, revocation(chain)) == ["DELEG.UNRESOLVED"]
    assert judged(caps, revocation(chain)) == []
    folds = delegation.DelegationFold(), delegation.DelegationFold(caps=caps)
    assert folds[0].semantics() != folds[1].semantics()
    honest = cap(ROOT, BANK.public)
    forged = replace(honest.token, subject_pk=MALLORY)
    with pytest.raises(CapabilityError):
        delegation.Caps([honest._replace(token=forged)])


@pytest.mark.req("DELEG-03")
def test_the_embedded_operation_is_read_by_its_schema_in_any_order_of_keys():
    caps, chain = chain_to(ALICE)
    assert judged(caps, revocation(chain, inner=put("a", 1))) == ["DELEG.INNER"]
    broken = Draft(schema=access.REVOKE.id, body=cbor.encode({"subject_identity": b"short"}))
    assert judged(caps, revocation(chain, inner=broken)) == ["DELEG.INNER"]
    unknown = Draft(schema=access.REVOKE.id, body=cbor.encode({"subject_identity": ID, "x": 1}))
    assert judged(caps, revocation(chain, inner=unknown)) == ["DELEG.INNER"]
    inner = access.grant(BOB, [ID], expiry_time=2_000, reason="x")
    draft = revocation(chain, inner=inner)
    sorted_keys = list(cbor.decode(draft.body)["operation_body"])
    assert sorted_keys != list(cbor.decode(inner.body))  # free-form parts are written sorted (D-03)
    assert judged(caps, draft) == []


@pytest.mark.req("DELEG-03")
def test_the_embedded_operation_has_the_authority_of_the_principal_and_no_more():
    caps, chain = chain_to(ALICE)
    log = FakeLog()
    event = log.append(revocation(chain, inner=access.grant(BOB, [MAIN], expiry_time=2_000)), client="alice")
    fold = access.AccessFold(granters=[BANK.public], caps=caps)
    assert codes(fold, log) == []
    assert view(fold, log).grants[op_id(event)].granter == BANK.public
    of_the_agent = access.AccessFold(granters=[ALICE], caps=caps)
    assert codes(of_the_agent, log) == [(1, "GRANT.AUTHORITY")]
    assert codes(access.AccessFold(granters=[BANK.public]), log) == [(1, "DELEG.UNRESOLVED")]


def test_a_fold_passes_over_embedded_operations_of_other_profiles():
    caps, chain = chain_to(ALICE)
    log = FakeLog()
    log.append(revocation(chain), client="mallory")
    assert codes(publication.PublicationFold(caps=caps), log) == []


def test_the_references_of_a_log_can_be_listed_before_tokens_are_known():
    _, chain = chain_to(ALICE)
    log = FakeLog()
    log.append(revocation(chain), client="alice")
    assert view(delegation.ReferencesFold(), log) == frozenset(chain)
