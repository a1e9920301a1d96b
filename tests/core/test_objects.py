"""The laws of every wire object, and recognising one of them (I10, D-62)."""

import json

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies
from tests.core.strategies import VALID
from tests.examples import examples, spread

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, MalformedError, VersionError
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.envelopes import ErrorEnvelope, ProofRequest, ReceiptRequest
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.recognise import KINDS, parse_json, recognise
from veen.core.tree.proof import MmrProof

ANY = st.one_of(*(VALID[kind] for kind in KINDS))
DETERMINISTIC = {Msg, Receipt, Checkpoint, MmrProof, CapToken}  # those that TS0.1 names

JSON_SCRAPS = (b"", b"0", b"-", b".5", b"e9", b'"', b"[", b"}", b",null", b"A", b" ", b"\\ud800", b"\xff")

CLASSES = [
    pytest.param(cls, id=cls.__name__, marks=[pytest.mark.req("TS0-02")] if cls in DETERMINISTIC else [])
    for cls in VALID
]


def test_every_kind_has_a_strategy():
    """A kind that is added without one would escape the laws below."""
    assert set(KINDS) <= set(VALID)
    assert len({kind.KIND for kind in KINDS}) == len(KINDS)


@pytest.mark.req("CBOR-07")
@pytest.mark.parametrize("cls", CLASSES)
@examples(5)
@given(data=st.data())
def test_an_object_is_an_array_where_the_spec_lists_items_and_a_map_where_it_lists_keys(cls, data):
    """D-01, D-02: arrays for MSG, RECEIPT, CHECKPOINT and journal records; text keys for bodies only."""
    major = data.draw(VALID[cls]).to_bytes()[0] >> 5
    tree = cbor2.loads(data.draw(VALID[cls]).to_bytes())
    if cls in (Msg, Receipt, Checkpoint, ControlRecord):
        assert major == 4
    else:
        assert major == 5
        assert {type(key) for key in tree} == ({str} if cls.FORM == "body" else {int})


# --- laws ---------------------------------------------------------------------------------------------------


@pytest.mark.req("INV-10")
@pytest.mark.parametrize("cls", CLASSES)
@examples(40)
@given(data=st.data())
def test_an_object_comes_back_from_its_bytes_and_from_its_json(cls, data):
    """I10: one canonical encoding; D-62: an equivalent JSON form."""
    obj = data.draw(VALID[cls])
    encoded = obj.to_bytes()
    assert encoded == cbor2.dumps(obj.to_tree())
    assert cls.from_bytes(encoded) == obj
    assert cls.from_bytes(encoded).to_bytes() == encoded
    text = json.dumps(obj.to_json())
    assert cls.from_json(json.loads(text)) == obj
    assert cls.from_json(parse_json(text.encode())) == obj
    assert cls.from_json(parse_json(json.dumps(obj.to_json(), ensure_ascii=False, indent=1).encode())) == obj


@pytest.mark.req("INV-10", "TS0-05")
@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
@examples(40)
@given(data=st.data())
def test_damaged_bytes_end_in_the_object_they_encode_or_in_a_format_error(cls, data):
    """I10: no other exception, and nothing that is accepted has a second encoding."""
    damaged = data.draw(strategies.mutated(VALID[cls].map(lambda obj: obj.to_bytes())))
    try:
        obj = cls.from_bytes(damaged)
    except FormatError:
        return
    assert obj.to_bytes() == damaged


@pytest.mark.parametrize("cls", spread(KINDS, 8), ids=lambda cls: cls.__name__)
@examples(25)
@given(data=st.data())
def test_damaged_json_ends_in_an_object_or_in_a_format_error(cls, data):
    """D-62: what is accepted has canonical bytes."""
    text = json.dumps(data.draw(VALID[cls]).to_json()).encode()
    place, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 2))
    inserted = data.draw(st.sampled_from(JSON_SCRAPS))
    damaged = text[:place] + inserted + text[place + length :]
    try:
        obj = cls.from_json(parse_json(damaged))
    except FormatError:
        return
    assert cls.from_bytes(obj.to_bytes()) == obj


@examples(150)
@given(strategies.mutated(ANY.map(lambda obj: obj.to_bytes())) | st.binary(max_size=80))
def test_any_bytes_given_to_any_kind_end_in_an_object_or_a_format_error(data):
    """I10: the encoding of one kind is also the natural attack on another."""
    for cls in KINDS:
        try:
            obj = cls.from_bytes(data)
        except FormatError:
            continue
        assert obj.to_bytes() == data


# --- recognise ----------------------------------------------------------------------------------------------


@examples(150)
@given(ANY)
def test_an_object_is_recognised_in_both_forms(obj):
    """Every kind that fits is named, the object's own among them."""
    for data, encoding in ((obj.to_bytes(), "cbor"), (b" \n" + json.dumps(obj.to_json()).encode(), "json")):
        recognised = recognise(data)
        assert recognised.encoding == encoding
        assert obj.KIND in (recognised.obj.KIND, *recognised.also)
        assert recognised.obj.to_bytes() == obj.to_bytes()


@examples(150)
@given(st.binary(max_size=40) | strategies.mutated(ANY.map(lambda obj: obj.to_bytes())))
def test_recognising_ends_in_an_object_or_a_format_error(data):
    """I10"""
    try:
        recognised = recognise(data)
    except FormatError:
        return
    if recognised.encoding == "cbor":
        assert recognised.obj.to_bytes() == data


def test_kinds_of_one_shape_are_all_named():
    """spec §10.4: four requests look the same in CBOR; in JSON their names tell some of them apart."""
    request = ReceiptRequest(label=bytes(32), stream_seq=1)
    recognised = recognise(request.to_bytes())
    names = {recognised.obj.KIND, *recognised.also}
    assert names == {"stream request", "receipt request", "proof request", "checkpoint request"}
    recognised = recognise(json.dumps(request.to_json()).encode())
    assert (recognised.obj, recognised.also) == (request, (ProofRequest.KIND,))


def test_the_nearest_miss_is_told():
    """A size or version fault means that the shape was right."""
    receipt = [1, bytes(32), 1, bytes(32), bytes(32), 0, bytes(64)]
    assert isinstance(recognise(cbor2.dumps(receipt)).obj, Receipt)
    with pytest.raises(VersionError, match="RECEIPT"):
        recognise(cbor2.dumps([2, *receipt[1:]]))
    with pytest.raises(FieldSizeError, match=r"RECEIPT\.hub_sig"):
        recognise(cbor2.dumps([*receipt[:6], b""]))
    with pytest.raises(MalformedError, match="not one of the known objects"):
        recognise(cbor2.dumps(["nothing", "we", "know"]))
    with pytest.raises(MalformedError):
        recognise(b"")


# --- JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'[{"a":{"b":1,"b":2}}]',
        b"[1.0]",
        b"[1e2]",
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b"[01]",
        b"[+1]",
        b"[1,]",
        b"{'a':1}",
        b"[1]]",
        b'["\xff"]',
        b'["\x00"]',
        b"\xef\xbb\xbf[1]",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" + b"9" * 500_000 + b"]",
        b"[-" + b"9" * 500_000 + b"]",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_json_that_is_not_the_form_of_an_object_is_refused(text):
    """D-62"""
    with pytest.raises(MalformedError, match="JSON"):
        parse_json(text)


def test_json_is_bounded_in_size():
    """D-06, D-62"""
    with pytest.raises(FieldSizeError, match="JSON"):
        parse_json(b" " * (cbor.MAX_ITEM_BYTES + 1))


@pytest.mark.parametrize("depth", [33, 400, 900, 3_000])
def test_deeply_nested_json_is_refused_by_recognise(depth):
    """D-06: with our error, never with a RecursionError."""
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        nested = opening * depth + b"1" + closing * depth
        for text in (nested, b'{"ver":1,"code":"c","message":"m","detail":{"a":' + nested + b"}}"):
            with pytest.raises(FormatError):
                recognise(text)


def test_hex_of_a_large_object_is_read():
    """D-62: a MSG of a megabyte doubles in hex and is still within the bound."""
    msg = Msg.from_tree([1, *[bytes(32)] * 3, 1, 0, None, bytes(32), bytes(1_000_000), bytes(64)])
    assert recognise(json.dumps(msg.to_json()).encode()).obj == msg


def test_an_error_envelope_is_recognised():
    """spec §10.6"""
    envelope = ErrorEnvelope(code="E.SIG", message="words", detail={"stage": "auth"})
    assert recognise(envelope.to_bytes()).obj == envelope
