"""Bodies: text keys in listed order, nothing else (D-02 … D-05), and total decoding of them (D-81)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.wire import NULL, Fields
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Issue, Schema, Typed, decode
from veen.overlays.rpc import messages as rpc
from veen.testing.events import FakeLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Body):
    """One field of each kind."""

    KIND: ClassVar[str] = "test.sample.v1"

    word: str
    number: int
    names: tuple[str, ...]
    free: Any
    info: dict[str, Any] | None = None
    limit: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            word=f.choice("word", ("yes", "no")),
            number=f.integer("number"),
            names=f.texts("names", at_most=2),
            free=f.anything("free"),
            info=f.optional(f.mapping, "info"),
            limit=f.optional(f.uint, "limit"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "word": self.word,
            "number": self.number,
            "names": self.names,
            "free": NULL if self.free is None else cbor.sort_keys(self.free),
            "info": cbor.sort_keys(self.info),
            "limit": self.limit,
        }


SAMPLE = Schema("test.sample.v1", Sample)
GOOD: dict[str, Any] = {"word": "yes", "number": -3, "names": ["a"], "free": None, "info": {"b": 1}, "limit": 7}


def decoded(body: bytes, schema: Schema[Any] = SAMPLE, parent_id: bytes | None = None) -> Typed[Any] | Issue:
    return decode(FakeLog().append(Draft(schema=schema.id, body=body, parent_id=parent_id)), schema)


def code_of(tree: Any) -> str:
    result = decoded(cbor2.dumps(tree))
    assert isinstance(result, Issue)
    assert (result.stream_seq, len(result.label)) == (1, 32)
    return result.code


@pytest.mark.req("OVL-08")
def test_a_good_body_is_read_and_written_as_it_was():
    result = decoded(cbor2.dumps(GOOD))
    assert isinstance(result, Typed)
    assert result.body == Sample(word="yes", number=-3, names=("a",), free=None, info={"b": 1}, limit=7)
    assert result.body.to_bytes() == cbor2.dumps(GOOD)


@pytest.mark.req("OVL-08", "PHDR-06")
@pytest.mark.parametrize(
    ("tree", "code"),
    [
        ({**GOOD, "more": 1}, "OVL.BODY"),
        ({key: GOOD[key] for key in reversed(GOOD)}, "OVL.BODY"),
        ({key: value for key, value in GOOD.items() if key != "number"}, "OVL.BODY"),
        ({**GOOD, "word": "maybe"}, "OVL.BODY"),
        ({**GOOD, "number": "3"}, "OVL.BODY"),
        ({**GOOD, "number": True}, "OVL.BODY"),
        ({**GOOD, "limit": -1}, "OVL.BODY"),
        ({**GOOD, "names": [1]}, "OVL.BODY"),
        ({**GOOD, "names": ["a", "b", "c"]}, "OVL.SIZE"),
        ({**GOOD, "info": [1]}, "OVL.BODY"),
        ({**GOOD, "info": {1: 1}}, "OVL.BODY"),
        ({**GOOD, "free": 1.5}, "OVL.CBOR"),
        ({**GOOD, "free": cbor2.undefined}, "OVL.CBOR"),
        ([1, 2], "OVL.BODY"),
        (7, "OVL.BODY"),
    ],
)
def test_every_fault_has_a_stable_code_at_its_place(tree, code):
    """D-02 … D-05, D-81: no coercion, no guess."""
    assert code_of(tree) == code


@pytest.mark.req("OVL-08")
@pytest.mark.parametrize("body", [b"", b"\xa0\x00", b"\xbf\xff", b"\xa1\x61a", cbor2.dumps(GOOD)[:-1]])
def test_bytes_that_are_no_single_deterministic_item_are_ovl_cbor(body):
    result = decoded(body)
    assert isinstance(result, Issue)
    assert result.code == "OVL.CBOR"


def test_null_on_an_optional_field_is_absence_and_is_never_written():
    """D-04."""
    result = decoded(cbor2.dumps({**GOOD, "info": None, "limit": None}))
    assert isinstance(result, Typed)
    assert (result.body.info, result.body.limit) == (None, None)
    assert list(result.body.to_tree()) == ["word", "number", "names", "free"]


@pytest.mark.req("CBOR-12")
def test_free_form_parts_are_read_in_any_order_and_written_sorted():
    """D-03; the raw body stays for hashing."""
    tree = {**GOOD, "free": {"b": {"d": 1, "c": 2}, "a": True}}
    result = decoded(cbor2.dumps(tree))
    assert isinstance(result, Typed)
    assert list(result.body.to_tree()["free"]) == ["a", "b"]
    assert list(result.body.to_tree()["free"]["b"]) == ["c", "d"]
    assert result.event.body == cbor2.dumps(tree)


def test_the_json_form_says_the_same():
    body = Sample(word="no", number=-1, names=("x",), free={b"\x01": None, "k": b"\xff"})
    assert body.to_json()["free"] == {"01": None, "k": "ff"}
    assert Sample.from_json({**GOOD, "free": [1, None]}).free == [1, None]
    with pytest.raises(MalformedError):
        Sample.from_json({**GOOD, "free": 1.5})


def test_a_schema_that_needs_a_parent_says_so():
    reply = rpc.answer(bytes(32), 1)
    assert isinstance(decoded(reply.body, rpc.REPLY, bytes(32)), Typed)
    result = decoded(reply.body, rpc.REPLY)
    assert isinstance(result, Issue)
    assert result.code == "OVL.PARENT"
    with pytest.raises(ValueError, match="needs a parent_id"):
        rpc.REPLY.draft(rpc.RpcReply(ok=True, result=1))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: kv.KV.draft(kv.Kv(op="put", key="a")), "KV.VALUE"),
        (lambda: kv.KV.draft(kv.Kv(op="del", key="a", value=1)), "KV.VALUE"),
        (lambda: crud.CRUD.draft(crud.Crud(op="create", entity="a", id="1")), "CRUD.FIELDS"),
        (lambda: crud.CRUD.draft(crud.Crud(op="delete", entity="a", id="1", fields={})), "CRUD.FIELDS"),
        (lambda: queue.QUEUE.draft(queue.Queue(op="enqueue", item=1, group="a")), "QUEUE.SHAPE"),
        (lambda: queue.QUEUE.draft(queue.Queue(op="ack", item=1, ref=bytes(32))), "QUEUE.SHAPE"),
        (lambda: queue.QUEUE.draft(queue.Queue(op="nack")), "QUEUE.SHAPE"),
        (lambda: crdt.ORSET.draft(crdt.OrSetOp(id=bytes(32))), "CRDT.ORSET"),
        (lambda: crdt.ORSET.draft(crdt.OrSetOp(id=bytes(32), elem=b"", tomb=())), "CRDT.ORSET"),
        (lambda: rpc.REPLY.draft(rpc.RpcReply(ok=False), parent_id=bytes(32)), "RPC.REPLY"),
        (
            lambda: rpc.REPLY.draft(rpc.RpcReply(ok=True, result=1, error=rpc.RpcFault(code="x")), parent_id=bytes(32)),
            "RPC.REPLY",
        ),
    ],
)
def test_what_cannot_be_read_cannot_be_drafted(make, code):
    with pytest.raises(InvalidBody) as caught:
        make()
    assert caught.value.code == code
    assert code in str(caught.value)


ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.req("OVL-08", "PHDR-06")
@given(st.sampled_from(sorted(BUILTIN.schemas)), st.binary(max_size=60) | ITEMS.map(cbor2.dumps))
def test_decoding_is_total_for_every_schema(schema_id, body):
    """spec §4.7: a typed event or a deterministic error, whatever the bytes are."""
    schema = BUILTIN.schemas[schema_id]
    first, again = (decoded(body, schema, bytes(32)) for _ in range(2))
    assert first == again
    if isinstance(first, Typed):
        assert schema.body.from_bytes(first.body.to_bytes()) == first.body
