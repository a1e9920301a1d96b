"""Schemas by id and name under both id rules (D-83), and overlays that other packages bring (outcome Interpret)."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from veen.core.hashing import H
from veen.overlays import crdt, kv
from veen.overlays.framework.registry import BUILTIN, Overlay, Registry, discover
from veen.overlays.framework.schema import Schema, SchemaClash, SchemaSet
from veen.overlays.rpc import messages as rpc

OLD, NEW = Schema("test.thing.v2", kv.Kv), Schema("test.thing.v10", kv.Kv)


@pytest.mark.req("RPC-01", "RPC-03", "CRDT-01", "CRDT-02", "CRDT-03")
@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (rpc.CALL, b"rpc.v1"),
        (rpc.REPLY, b"rpc.res.v1"),
        (crdt.LWW, b"crdt.lww.v1"),
        (crdt.ORSET, b"crdt.orset.v1"),
        (crdt.GCNT, b"crdt.gcnt.v1"),
    ],
)
def test_schema_ids_are_hashes_of_the_names_that_the_document_gives(schema, name):
    assert schema.id == H(name)


def test_both_id_rules_give_the_published_values():
    """decisions §18."""
    assert rpc.CALL.id.hex() == "e540b27949990e8a4a957b0b9e40d6331f14243a9a92046f40c7bb78c361cf39"
    paid = Schema("paid.operation.v1", kv.Kv)
    assert paid.id.hex() == "e7ca17e7da0f5539e02fb89a234c58e8808d84e832a97e7c70d95fa4376469a5"


@pytest.mark.req("PHDR-07")
def test_versions_are_schemas_of_their_own_in_the_order_of_their_numbers():
    schemas = SchemaSet([NEW, OLD])
    assert schemas.versions("test.thing") == [OLD, NEW]
    assert schemas.named("test.thing.v2") is OLD
    assert schemas.named("test.thing.v3") is None
    assert (OLD.family, OLD.version) == ("test.thing", 2)


@pytest.mark.parametrize("name", ["", "v1", "a.v0", "A.v1", "a.v1.", "a..b.v1", "a.v1\n", "ключ.v1"])
def test_a_name_without_family_and_version_is_refused(name):
    with pytest.raises(ValueError, match="not a schema name"):
        Schema(name, kv.Kv)


def test_one_name_or_id_cannot_mean_two_things():
    with pytest.raises(SchemaClash, match=r"veen\.kv\.v1 is defined twice"):
        SchemaSet([kv.KV, Schema("veen.kv.v1", rpc.RpcRequest)])
    assert len(SchemaSet([kv.KV]) | SchemaSet([kv.KV, rpc.CALL])) == 2


@pytest.mark.req("OVL-14")
def test_all_built_in_folds_can_be_made_and_read_only_declared_schemas():
    for name, make in BUILTIN.folds.items():
        fold = make()
        assert fold.name == name
        assert set(fold.schemas) <= set(BUILTIN.schemas)
    assert len(BUILTIN) == len(list(BUILTIN))


@pytest.fixture
def plugins(monkeypatch):
    module = ModuleType("veen_test_plugins")
    module.GOOD = Overlay(name="thing", about="things", schemas=(OLD, NEW), folds={})  # type: ignore[attr-defined]
    module.CLASH = Overlay(  # type: ignore[attr-defined]
        name="other", about="", schemas=(Schema("veen.kv.v1", rpc.RpcRequest),), folds={}
    )
    module.AGAIN = Overlay(name="kv", about="", schemas=(), folds={})  # type: ignore[attr-defined]
    module.WRONG = "no overlay"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "veen_test_plugins", module)
    names = ["GOOD", "CLASH", "AGAIN", "WRONG", "MISSING"]
    return [EntryPoint(name.lower(), f"veen_test_plugins:{name}", "veen.overlays") for name in names]


@pytest.mark.req("OVL-03")
def test_overlays_come_by_entry_points_and_a_broken_one_harms_no_other(plugins):
    registry = BUILTIN.with_installed(plugins)
    assert registry["thing"].schemas == (OLD, NEW)
    assert registry.schemas.named("test.thing.v10") is NEW
    assert set(BUILTIN) < set(registry)
    reasons = {broken.name: broken.reason for broken in registry.broken}
    assert reasons.keys() == {"other", "kv", "wrong", "missing"}
    assert "defined twice" in reasons["other"]
    assert "is no Overlay" in reasons["wrong"]
    assert "AttributeError" in reasons["missing"]


def test_what_is_installed_is_looked_up_by_default():
    assert isinstance(BUILTIN.with_installed(), Registry)
    assert discover([]) == ([], [])


@pytest.mark.req("OVL-12")
@pytest.mark.parametrize(
    ("kind", "schemas"),
    [
        ("identity", {"id.principal.v1", "id.device.v1", "id.role.v1"}),
        ("wallet", {"wallet.open.v1", "wallet.transfer.v1", "wallet.limit.v1"}),
        ("authorization and revocation", {"access.grant.v1", "access.revoke.v1", "veen.revocation.v1"}),
        ("query", {"query.audit.v1"}),
        ("products", {"sdr.event.v1", "sdr.checkpoint.v1"}),
    ],
)
def test_every_class_of_overlay_that_the_specification_names_is_there(kind, schemas):
    known_schemas = {schema.name for name in BUILTIN for schema in BUILTIN[name].schemas}
    assert schemas <= known_schemas, f"{kind}: {schemas - known_schemas}"
