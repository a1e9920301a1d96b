"""veen.label.class.v1 and veen.meta.schema.v1: hints about labels, and a registry of schemas (001 spec-2 §6, §7)."""

import pytest
from tests.overlays.operation_builders import ALICE, BOB, ID, MAIN, OTHER_ID, codes, view

from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.hashing import H, Ht
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.overlays.naming.label_class import LABEL_CLASS, LabelClassFold, advise, classify
from veen.overlays.naming.schema_registry import META_SCHEMA, SchemaRegistryFold, register
from veen.testing.events import FakeLog

NAME = "example.thing.v1"


def classes(**kwargs):
    return LabelClassFold(stream_id=MAIN, any_emitter="emitters" not in kwargs, **kwargs)


@pytest.mark.req("LCL-01")
def test_a_class_record_has_the_keys_and_the_stream_of_the_document():
    draft = classify(ID, "user", sensitivity="high", retention_hint=60)
    assert draft.schema == LABEL_CLASS.id == H(b"veen.label.class.v1")
    assert list(cbor.decode(draft.body)) == ["label", "class", "sensitivity", "retention_hint"]
    assert list(cbor.decode(classify(ID, "user").body)) == ["label", "class"]
    assert admin_streams().label_class == Ht("veen/label-class", DEFAULT_REALM)
    log = FakeLog()
    log.append(draft, stream="elsewhere")
    assert codes(classes(), log) == [(1, "LCLASS.STREAM")]
    with pytest.raises(FormatError, match=r"LCLASS\.CLASS"):
        classify(ID, "")


@pytest.mark.req("LCL-01")
def test_the_last_record_of_a_label_counts_and_emitters_may_be_restricted():
    """D-155."""
    log = FakeLog()
    log.append(classify(ID, "user"))
    log.append(classify(ID, "bulk"), client="mallory")
    assert view(classes(), log).labels[ID].class_name == "bulk"
    restricted = classes(emitters=[ALICE])
    assert view(restricted, log).labels[ID].class_name == "user"
    assert codes(restricted, log) == [(2, "LCLASS.EMITTER")]


@pytest.mark.req("LCL-02")
def test_a_class_counts_for_all_labels_of_its_stream_unless_one_has_its_own():
    log = FakeLog()
    log.append(classify(ID, "user", retention_hint=60))
    log.append(classify(OTHER_ID, "bulk"))
    state = view(classes(), log)
    siblings = [ID, MAIN]
    assert state.class_of(MAIN, siblings).class_name == "user"
    assert state.class_of(OTHER_ID, siblings).class_name == "bulk"
    assert state.advice(MAIN, siblings).retention_sec == 60


@pytest.mark.req("LCL-02")
@pytest.mark.parametrize(
    ("name", "pad_blocks", "rate"),
    [
        ("user", (256, 1024), "default"),
        ("wallet", (256, 1024), "default"),
        ("log", (0,), "default"),
        ("metric", (0,), "default"),
        ("admin", (), "higher"),
        ("control", (), "higher"),
        ("bulk", (), "tighter"),
        ("something else", (), "default"),
    ],
)
def test_a_class_advises_as_the_document_says(name, pad_blocks, rate):
    assert advise(name, 5) == (pad_blocks, rate, 5)


@pytest.mark.req("LCL-03")
def test_a_label_without_a_class_is_no_fault():
    state = view(classes(), FakeLog())
    assert state.class_of(ID) is None
    assert state.advice(ID) == ((), "default", None)


# --- schemas ---------------------------------------------------------------------------------------------------


def schemas(**kwargs):
    return SchemaRegistryFold(stream_id=MAIN, any_emitter="emitters" not in kwargs, **kwargs)


@pytest.mark.req("META-01")
def test_a_schema_record_has_the_keys_and_the_stream_of_the_document():
    draft = register(ID, NAME, "v1", doc_url="u", owner=ALICE, ts=5)
    assert draft.schema == META_SCHEMA.id == H(b"veen.meta.schema.v1")
    assert list(cbor.decode(draft.body)) == ["schema_id", "name", "version", "doc_url", "owner", "ts"]
    assert admin_streams().schema_meta == Ht("veen/meta-schema", DEFAULT_REALM)
    log = FakeLog()
    log.append(draft, stream="elsewhere")
    log.append(draft, client="mallory")
    assert {code for _, code in codes(schemas(emitters=[ALICE]), log)} == {"META.STREAM", "META.EMITTER"}
    for name, version in (("", "v1"), (NAME, "")):
        with pytest.raises(FormatError, match=r"META\.NAME"):
            register(ID, name, version, ts=1)


@pytest.mark.req("META-03")
def test_the_latest_record_counts_and_one_dated_ahead_pins_nothing():
    """D-103, D-175."""
    log = FakeLog(now=1_000)
    log.append(register(ID, NAME, "v1", ts=2**40))
    log.append(register(ID, NAME, "v2", ts=900), ts=1_001)
    assert view(schemas(), log).schemas[ID].version == "v1"
    log.append(register(ID, NAME, "v3", doc_url="u", owner=BOB, ts=1_002), ts=1_002)
    schema = view(schemas(), log).schemas[ID]
    assert (schema.name, schema.version, schema.owner, schema.doc_url) == (NAME, "v3", BOB, "u")


@pytest.mark.req("META-02")
def test_ids_that_do_not_follow_from_the_name_are_shown_as_unbound_and_unregistered_ones_are_listed():
    """D-156."""
    log = FakeLog()
    log.append(register(H(NAME.encode()), NAME, "v1", ts=1))
    log.append(register(H(b"veen/schema:paid.operation.v1"), "paid.operation.v1", "v1", ts=1))
    log.append(register(ID, NAME, "v1", ts=1))
    registry = view(schemas(), log)
    assert [schema_id for schema_id, schema in registry.schemas.items() if schema.unbound] == [ID]
    assert registry.find_unregistered([ID, OTHER_ID, H(NAME.encode())]) == [OTHER_ID]


@pytest.mark.req("META-03")
def test_an_owner_that_another_sender_changed_is_contested():
    """D-156."""
    log = FakeLog()
    log.append(register(ID, NAME, "v1", owner=ALICE, ts=1), client="alice")
    log.append(register(ID, NAME, "v2", owner=BOB, ts=2), client="alice")
    assert not view(schemas(), log).schemas[ID].contested
    log.append(register(ID, NAME, "v2", owner=MAIN, ts=3), client="mallory")
    assert view(schemas(), log).schemas[ID].contested
