"""Every operation profile, the label classes and the schema registry keep the laws of folds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.operation_builders import ALICE, BANK, BOB, MAIN, ROOT, SIDE, account, cap, refs

from veen.core.hashing import H
from veen.overlays.framework.schema import Draft
from veen.overlays.naming import label_class as labelclass
from veen.overlays.naming import schema_registry as schemaregistry
from veen.overlays.operations import access, agreement, delegation, mirror, paid, publication, queryaudit, recovery
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.testing.laws import MakeFold, Writer, check_laws

NORTH, SOUTH = H(b"north"), H(b"south")  # the streams of the histories
PEOPLE = st.sampled_from([ALICE, BOB])
IDS = st.sampled_from([bytes([n]) * 32 for n in range(2)])
_TOKENS = cap(ROOT, BANK.public, (NORTH, SOUTH)), cap(BANK, ALICE, (NORTH,))
TOKENS, LINKS = delegation.Caps(_TOKENS), refs(*_TOKENS)


def delegated(draw, draft: Draft) -> Draft:
    """Sometimes the operation is done by an agent, with a chain that holds or does not."""
    if draw(st.integers(0, 3)):
        return draft
    chain = draw(st.sampled_from([LINKS, LINKS[:1], LINKS[::-1], [bytes(32)]]))
    return delegation.delegate(draft, principal=BANK.public, agent=draw(PEOPLE), chain=chain)


def reference(draw, log):
    events = log.all()
    if not events:
        return bytes(32)
    msg_id = draw(st.sampled_from([event.msg_id for event in events]))
    return operation_id_of(msg_id) if draw(st.booleans()) else msg_id


ACCOUNTS = st.sampled_from([account("alice"), account("bob"), account_id_of(BANK.public)])


def write_paid(draw, log):
    kind = draw(st.integers(0, 5))
    if kind == 0:
        amount = draw(st.none() | st.integers(0, 30))
        streams = draw(st.sampled_from([[NORTH], [NORTH, SOUTH]]))
        draft = access.grant(
            draw(PEOPLE), streams, expiry_time=draw(st.integers(1_000, 1_030)), maximum_amount=amount, currency_code="c"
        )
    elif kind == 1:
        draft = access.revoke(draw(PEOPLE), draw(st.none() | st.just(reference(draw, log))))
    else:
        body = paid.PaidOperation(
            operation_type="t",
            operation_args=draw(st.sampled_from([None, {"b": 1, "a": 2}])),
            payer_account=draw(ACCOUNTS),
            payee_account=draw(ACCOUNTS),
            amount=draw(st.integers(0, 12)),
            currency_code=draw(st.sampled_from([None, "c", "d"])),
            operation_reference=draw(st.none() | IDS),
            ttl_seconds=draw(st.none() | st.integers(0, 5)),
        )
        draft = paid.pay(body, now=1_000)
    return delegated(draw, draft)


def paid_with_issuers(**kwargs):
    issuing = [account("alice"), account_id_of(BANK.public)]
    return paid.PaidFold(issuing=issuing, default="c", caps=TOKENS, **kwargs)


def write_access(draw, log):
    if draw(st.integers(0, 2)) == 0:
        return delegated(draw, access.revoke(draw(PEOPLE), draw(st.none() | st.just(reference(draw, log)))))
    streams = draw(st.sampled_from([[NORTH], [access.ACCESS_ADMIN, NORTH], [access.ACCESS_ADMIN]]))
    rate = draw(st.sampled_from([{}, {"maximum_rate_per_second": 1, "maximum_burst": 2}]))
    return delegated(draw, access.grant(draw(PEOPLE), streams, expiry_time=draw(st.integers(999, 1_030)), **rate))


def access_of_alice(**kwargs):
    return access.AccessFold(granters=[ALICE], caps=TOKENS, **kwargs)


def write_delegated(draw, log):
    return delegation.delegate(
        access.revoke(draw(PEOPLE)),
        principal=BANK.public,
        agent=draw(PEOPLE),
        chain=draw(st.sampled_from([LINKS, LINKS[:1], [bytes(32)]])),
    )


def delegations(**kwargs):
    return delegation.DelegationFold(caps=TOKENS, **kwargs)


def write_agreement(draw, log):
    if draw(st.integers(0, 2)) == 0:
        parties = draw(st.sampled_from([(ALICE,), (ALICE, BOB), (BANK.public,)]))
        expiry = draw(st.none() | st.integers(1, 1_030))
        return delegated(
            draw,
            agreement.define(draw(IDS), draw(st.integers(0, 3)), terms_hash=MAIN, parties=parties, expiry_time=expiry),
        )
    party = draw(st.sampled_from([ALICE, BOB, BANK.public]))
    decision = draw(st.sampled_from(agreement.DECISIONS))
    return delegated(draw, agreement.confirm(draw(IDS), draw(st.integers(0, 3)), party, decision))


def agreements(**kwargs):
    return agreement.AgreementFold(caps=TOKENS, **kwargs)


def write_publication(draw, log):
    publisher = draw(st.sampled_from([ALICE, BOB, BANK.public]))
    version = draw(st.sampled_from(["1", "v1.2.0"]))
    return delegated(
        draw,
        publication.publish(
            draw(IDS), publisher, content_root=MAIN, content_form="list", content_class="model", version=version
        ),
    )


def publications(**kwargs):
    return publication.PublicationFold(caps=TOKENS, **kwargs)


def write_recovery(draw, log):
    target, new = draw(st.permutations([ALICE, BOB, MAIN]))[:2]
    match draw(st.integers(0, 3)):
        case 0:
            return recovery.request(target, new)
        case 1 | 2:
            approver = draw(st.sampled_from([ALICE, BOB]))
            return recovery.approve(target, new, approver, draw(st.sampled_from(["approve", "reject"])))
        case _:
            return delegated(draw, recovery.execute(target, new, [reference(draw, log)]))


def recoveries(**kwargs):
    return recovery.RecoveryFold(guards=recovery.Guards.of([ALICE, BOB], 1), caps=TOKENS, **kwargs)


def write_audit(draw, log):
    parameters = draw(st.sampled_from([None, {"b": 1, "a": 2}]))
    return queryaudit.audit(draw(PEOPLE), draw(st.sampled_from("ab")), "personal-data", query_parameters=parameters)


def audits_of_alice(**kwargs):
    return queryaudit.QueryAuditFold(services=[ALICE, H(b"bridge")], **kwargs)


def write_mirror(draw, log):
    leaf = draw(IDS)
    body = mirror.FederationMirror(
        source_hub_identifier=mirror.hub_identifier(MAIN),
        source_label=SIDE,
        source_stream_seq=draw(st.integers(1, 3)),
        source_leaf_hash=leaf,
        source_receipt_root=draw(IDS),
        target_label=draw(IDS),
    )
    return mirror.MIRROR.draft(body, parent_id=draw(st.sampled_from([leaf, leaf, MAIN])))


def write_class(draw, log):
    name = draw(st.sampled_from(["user", "bulk", "other"]))
    return labelclass.classify(draw(IDS), name, retention_hint=draw(st.none() | st.integers(0, 2)))


def classes_on_north(**kwargs):
    return labelclass.LabelClassFold(stream_id=NORTH, emitters=[ALICE, H(b"bridge")], **kwargs)


def write_schema(draw, log):
    owner = draw(st.none() | PEOPLE)
    name = draw(st.sampled_from(["a.v1", "b.v1"]))
    return schemaregistry.register(H(b"a.v1"), name, "v1", owner=owner, ts=draw(st.integers(998, 1_005)))


def schemas_on_north(**kwargs):
    return schemaregistry.SchemaRegistryFold(stream_id=NORTH, any_emitter=True, **kwargs)


OVERLAYS: dict[str, tuple[MakeFold, Writer]] = {
    "paid": (paid_with_issuers, write_paid),
    "access": (access_of_alice, write_access),
    "delegated": (delegations, write_delegated),
    "references": (delegation.ReferencesFold, write_delegated),
    "agreement": (agreements, write_agreement),
    "publication": (publications, write_publication),
    "recovery": (recoveries, write_recovery),
    "query audit": (audits_of_alice, write_audit),
    "mirror": (mirror.MirrorFold, write_mirror),
    "label classes": (classes_on_north, write_class),
    "schema registry": (schemas_on_north, write_schema),
}


@pytest.mark.req("OVL-01", "OVL-02", "OVL-09", "PAID-02", "PAID-06", "AGREE-04")
@pytest.mark.parametrize("name", OVERLAYS)
@examples(60)
@given(data=st.data())
def test_any_cut_any_association_replays_copies_and_interleaving_give_the_same_state(name, data):
    """spec §11.1, §11.3; P1: a replayed position changes nothing."""
    make, write = OVERLAYS[name]
    check_laws(data, make, write)
