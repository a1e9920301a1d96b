"""Identifiers and streams of ID are the hashes that 001 ID §3 and §4 write down."""

from hashlib import sha256

import pytest
from tests.overlays.id_builders import ALICE, BOB

from veen.core.errors import FieldSizeError
from veen.overlays.id import bodies, ids
from veen.overlays.id.compliance import ComplianceLevel, Feature, claimable

PK, REALM = ALICE.public, sha256(b"id/realm\x00app").digest()


def tagged(tag: str, data: bytes) -> bytes:
    return sha256(tag.encode("ascii") + b"\x00" + data).digest()


@pytest.mark.req("ID-01")
def test_a_realm_is_the_hash_of_its_name_in_utf8():
    """D-94: names are UTF-8, and the realm of those who choose none is `default`."""
    assert ids.realm_id_of("app") == REALM
    assert ids.realm_id_of("приложение") == tagged("id/realm", "приложение".encode())
    assert ids.DEFAULT_REALM == "default"


@pytest.mark.req("ID-02")
def test_a_principal_has_a_reference():
    assert ids.principal_id_of(PK) == tagged("id/principal", PK)


@pytest.mark.req("ID-03", "ID-27")
def test_one_principal_has_another_account_in_every_realm():
    """§3.3, §13: stable within a realm, unlinkable across realms without the principal's key."""
    other = ids.realm_id_of("shop")
    assert ids.ctx_id_of(PK, REALM) == tagged("id/ctx", PK + REALM)
    assert len({ids.ctx_id_of(pk, realm) for pk in (PK, BOB.public) for realm in (REALM, other)}) == 4


@pytest.mark.req("ID-04")
def test_a_device_has_an_id_of_its_own():
    assert ids.device_id_of(PK) == tagged("id/device", PK)


@pytest.mark.req("ID-05")
def test_an_organization_has_an_id_and_one_for_every_realm():
    org_id = ids.org_id_of(PK)
    assert org_id == tagged("id/org", PK)
    assert ids.scoped_org_id_of(org_id, REALM) == tagged("id/org/realm", org_id + REALM)


@pytest.mark.req("ID-06")
def test_a_group_is_named_within_its_organization():
    org_id = ids.org_id_of(PK)
    assert ids.group_id_of(org_id, "größen") == tagged("id/group", org_id + "größen".encode())


@pytest.mark.req("ID-07")
def test_every_identity_has_its_stream():
    ctx_id, org_id = ids.ctx_id_of(PK, REALM), ids.org_id_of(PK)
    assert ids.principal_stream(PK) == tagged("id/stream/principal", PK)
    assert ids.ctx_stream(ctx_id, REALM) == tagged("id/stream/ctx", ctx_id + REALM)
    assert ids.org_stream(org_id) == tagged("id/stream/org", org_id)
    assert ids.handle_stream(REALM) == tagged("id/stream/handle", REALM)


def test_parts_of_another_size_are_refused():
    """Concatenations are unambiguous only while every part has its size."""
    for make in (ids.ctx_id_of, ids.scoped_org_id_of, ids.ctx_stream):
        with pytest.raises(FieldSizeError):
            make(PK[:31], REALM + b"\x00")
    with pytest.raises(FieldSizeError):
        ids.device_id_of(b"")


@pytest.mark.req("ID-08")
def test_the_nine_schemas_have_the_ids_of_the_document():
    names = ["principal", "device", "ctx.profile", "org.profile", "group", "role", "handlemap", "external", "revoke"]
    assert [schema.name for schema in bodies.SCHEMAS.values()] == [f"id.{name}.v1" for name in names]
    for schema in bodies.SCHEMAS.values():
        assert schema.id == sha256(schema.name.encode()).digest()


@pytest.mark.req("ID-28")
def test_levels_are_claimed_by_what_is_there():
    """§14: Core first; every other level adds to it."""
    everything = set(Feature)
    assert claimable(bodies.SCHEMAS, everything) == tuple(ComplianceLevel)
    assert claimable(bodies.SCHEMAS, everything - {Feature.AUTHENTICATION}) == ()
    assert ComplianceLevel.EXTERNAL not in claimable(bodies.SCHEMAS, everything - {Feature.GATEWAY})
    assert ComplianceLevel.BRIDGE not in claimable(bodies.SCHEMAS, everything - {Feature.MIRRORING})
    core = {bodies.CTX_PROFILE.id, bodies.DEVICE.id}
    assert claimable(core, {Feature.DERIVATION, Feature.AUTHENTICATION}) == (ComplianceLevel.CORE,)
    assert claimable(core | {bodies.GROUP.id}, everything) == (ComplianceLevel.CORE, ComplianceLevel.BRIDGE)
