"""The nine bodies of ID: exact keys in exact order, and the rules a body can break by itself."""

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.overlays.id_builders import ACME_ID, ALICE, ALICE_APP, APP, DH, PHONE

from veen.overlays.framework.schema import AnySchema, Draft, InvalidBody, Issue, Typed, decode
from veen.overlays.id import bodies, drafts
from veen.overlays.id.bodies import check_handle
from veen.overlays.id.ids import device_id_of, group_id_of
from veen.testing.events import FakeLog

X32 = b"\x07" * 32
# Every body with all of its fields, in the order of the document, and which of them may be missing.
FULL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "id.principal.v1": ({"principal_pk": ALICE.public, "created_at": 1, "info": {"a": 1}}, {"info"}),
    "id.device.v1": (
        {
            "principal_pk": ALICE.public,
            "device_id": device_id_of(PHONE.public),
            "device_pk": PHONE.public,
            "dh_pk": DH,
            "label": "phone",
            "created_at": 1,
            "expires_at": 2,
            "flags": {"disabled": True},
        },
        {"label", "expires_at", "flags"},
    ),
    "id.ctx.profile.v1": (
        {
            "ctx_id": ALICE_APP,
            "realm_id": APP,
            "display_name": "Ann",
            "avatar_coid": X32,
            "prefs": {"theme": "dark"},
            "updated_at": 1,
        },
        {"display_name", "avatar_coid", "prefs"},
    ),
    "id.org.profile.v1": (
        {"org_id": ACME_ID, "display_name": "Acme", "metadata": {}, "created_at": 1, "updated_at": 2},
        {"display_name", "metadata"},
    ),
    "id.group.v1": (
        {
            "org_id": ACME_ID,
            "realm_id": APP,
            "group_id": group_id_of(ACME_ID, "eng"),
            "name": "eng",
            "members_add": [ALICE_APP],
            "members_remove": [X32],
            "updated_at": 1,
        },
        {"realm_id", "members_add", "members_remove"},
    ),
    "id.role.v1": (
        {
            "org_id": ACME_ID,
            "realm_id": APP,
            "role": "admin",
            "targets_ctx": [ALICE_APP],
            "targets_group": [X32],
            "ts": 1,
        },
        {"realm_id", "targets_ctx", "targets_group"},
    ),
    "id.handlemap.v1": (
        {"realm_id": APP, "handle": "@ann", "target_type": "ctx", "target_id": ALICE_APP, "ts": 1},
        set(),
    ),
    "id.external.v1": (
        {
            "realm_id": APP,
            "ctx_id": ALICE_APP,
            "org_id": ACME_ID,
            "provider": "corp",
            "external_sub": "1",
            "attributes": {"email": "ann@example.com"},
            "ts": 1,
        },
        {"ctx_id", "org_id", "attributes"},
    ),
    "id.revoke.v1": (
        {
            "principal_pk": ALICE.public,
            "org_id": ACME_ID,
            "device_id": X32,
            "revoked_auth_ref": X32,
            "realm_id": APP,
            "ctx_id": ALICE_APP,
            "reason": "lost",
            "ts": 1,
        },
        {"principal_pk", "org_id", "device_id", "revoked_auth_ref", "realm_id", "ctx_id", "reason"},
    ),
}
NAMES = [pytest.param(name, marks=pytest.mark.req(req)) for name, req in zip(FULL, [
    "ID-09", "ID-10", "ID-12", "ID-13", "ID-14", "ID-15", "ID-19", "ID-20", "ID-22"], strict=True)]  # fmt: skip


def schema_of(name: str) -> AnySchema:
    schema = bodies.SCHEMAS.named(name)
    assert schema is not None
    return schema


def read(name: str, tree: Any) -> Typed[Any] | Issue:
    schema = schema_of(name)
    return decode(FakeLog().append(Draft(schema=schema.id, body=cbor2.dumps(tree))), schema)


def code(name: str, tree: Any) -> str:
    result = read(name, tree)
    assert isinstance(result, Issue), "expected a fault"
    return result.code


@pytest.mark.parametrize("name", NAMES)
def test_a_body_has_exactly_the_listed_keys_in_the_listed_order(name):
    """D-02: unknown, repeated, missing or misplaced keys are a decode error."""
    tree, optional = FULL[name]
    typed = read(name, tree)
    assert isinstance(typed, Typed)
    assert typed.body.to_bytes() == cbor2.dumps(tree)
    assert code(name, {**tree, "more": 1}) == "OVL.BODY"
    assert code(name, dict(reversed(tree.items()))) == "OVL.BODY"
    for key in tree:
        without = {k: v for k, v in tree.items() if k != key}
        if key in optional:
            assert isinstance(read(name, without), Typed), key
            assert isinstance(read(name, {**tree, key: None}), Typed), key  # D-04: null is absence
        else:
            assert code(name, without) == "OVL.BODY", key
            assert code(name, {**tree, key: None}) == "OVL.BODY", key


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_another_type_or_size_is_refused(name):
    tree, _ = FULL[name]
    for key, value in tree.items():
        assert code(name, {**tree, key: 1.5}) == "OVL.CBOR"
        assert code(name, {**tree, key: True}) == "OVL.BODY", key
        if type(value) is bytes:
            assert code(name, {**tree, key: value + b"\x00"}) == "OVL.SIZE", key
        if type(value) is int:
            assert code(name, {**tree, key: -1}) == "OVL.BODY", key


def test_free_form_maps_are_read_in_any_order_and_written_sorted():
    """D-03."""
    tree, _ = FULL["id.principal.v1"]
    typed = read("id.principal.v1", {**tree, "info": {"bb": 1, "a": 2}})
    assert isinstance(typed, Typed)
    assert typed.body.to_bytes() == cbor2.dumps({**tree, "info": {"a": 2, "bb": 1}})


@pytest.mark.req("ID-10")
def test_a_device_id_belongs_to_its_key():
    tree, _ = FULL["id.device.v1"]
    assert code("id.device.v1", {**tree, "device_id": X32}) == "ID.DEVICE_ID"
    assert code("id.device.v1", {**tree, "device_pk": ALICE.public}) == "ID.DEVICE_ID"


def test_flags_know_one_key():
    tree, _ = FULL["id.device.v1"]
    assert isinstance(read("id.device.v1", {**tree, "flags": {}}), Typed)
    assert code("id.device.v1", {**tree, "flags": {"disabled": 1}}) == "OVL.BODY"
    assert code("id.device.v1", {**tree, "flags": {"admin": True}}) == "OVL.BODY"


@pytest.mark.req("ID-19")
@pytest.mark.parametrize(
    "handle",
    ["", "x" * 256, "ж" * 128, "a b", "a\tb", "a\n", "\x00", "a\x7f", "a\u00a0b", "a\u200bb", "a\u202eb", "\ufeffa"],
)
def test_a_handle_has_1_to_255_bytes_and_neither_space_nor_control_characters(handle):
    """D-95."""
    tree, _ = FULL["id.handlemap.v1"]
    assert code("id.handlemap.v1", {**tree, "handle": handle}) == "ID.HANDLE"
    with pytest.raises(InvalidBody):
        drafts.handle(APP, handle, target_type="ctx", target_id=ALICE_APP, ts=1)


@pytest.mark.parametrize("handle", ["@user", "user@example.com", "x" * 255, "ж" * 127, "名前", "👩\u200d🚀"])
def test_other_handles_are_welcome(handle):
    check_handle(handle)


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_a_handle_without_white_space_in_ascii_or_latin_is_judged_by_its_length_only(text):
    plain = "".join(c for c in text if c.isalnum())
    legal = 1 <= len(plain.encode()) <= 255
    try:
        check_handle(plain)
    except InvalidBody:
        assert not legal
    else:
        assert legal


@pytest.mark.req("ID-19")
def test_a_handle_means_a_ctx_or_an_org():
    tree, _ = FULL["id.handlemap.v1"]
    assert isinstance(read("id.handlemap.v1", {**tree, "target_type": "org"}), Typed)
    assert code("id.handlemap.v1", {**tree, "target_type": "group"}) == "OVL.BODY"


@pytest.mark.req("ID-20")
def test_a_link_needs_a_ctx_or_an_org():
    tree, _ = FULL["id.external.v1"]
    assert code("id.external.v1", {k: v for k, v in tree.items() if k not in ("ctx_id", "org_id")}) == "ID.LINK_TARGET"
    with pytest.raises(InvalidBody):
        drafts.external_link(APP, provider="corp", external_sub="1", ts=1)


@pytest.mark.req("ID-22")
def test_a_revocation_needs_a_target():
    """principal_pk and realm_id say who and where, but not what."""
    assert code("id.revoke.v1", {"ts": 1}) == "ID.REVOKE_TARGET"
    assert code("id.revoke.v1", {"principal_pk": ALICE.public, "realm_id": APP, "ts": 1}) == "ID.REVOKE_TARGET"
    for target in ("org_id", "device_id", "revoked_auth_ref", "ctx_id"):
        assert isinstance(read("id.revoke.v1", {target: X32, "ts": 1}), Typed)
    with pytest.raises(InvalidBody):
        drafts.revoke_by_principal(ALICE.public, ts=1)
