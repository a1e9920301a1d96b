"""What all wire objects share: field order, types, sizes, versions, and the JSON form (spec §3.1, §8.2)."""

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, MalformedError, VersionError
from veen.core.objects import recognise as objects
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest, StreamResponse, SubmitRequest, SubmitResponse
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Attached, Attachment
from veen.core.tree.proof import MmrProof
from veen.core.wire import Wire

Z32, Z64 = bytes(32), bytes(64)
MSG: list[Any] = [1, Z32, Z32, Z32, 1, 0, None, Z32, b"ct", Z64]
RECEIPT: list[Any] = [1, Z32, 1, Z32, Z32, 0, Z64]
CHECKPOINT: list[Any] = [1, Z32, Z32, 1, Z32, 0, Z64]
TOKEN: dict[int, Any] = {1: 1, 2: Z32, 3: Z32, 4: {1: [Z32], 2: 0}, 5: [Z64]}
ERROR: dict[int, Any] = {1: 1, 2: "E.FORMAT", 3: "text"}
SHAPES: dict[type[Wire], list[Any]] = {Msg: MSG, Receipt: RECEIPT, Checkpoint: CHECKPOINT}


def put(tree, key, value):
    """A copy of an array or map with one member replaced."""
    copy = tree.copy()
    copy[key] = value
    return copy


def read(cls, tree):
    return cls.from_bytes(cbor2.dumps(tree))


# --- which fault is reported --------------------------------------------------------------------------------


@pytest.mark.req("CBOR-09")
@pytest.mark.parametrize("cls", SHAPES)
def test_a_wrong_type_outranks_a_wrong_size_and_that_a_wrong_version(cls):
    """spec §8.2: CBOR_INVALID before FIELD_SIZE before VERSION, wherever in the object they are."""
    tree = SHAPES[cls]
    last, first_bytes = len(tree) - 1, 2 if cls is Checkpoint else 1
    good = read(cls, tree)
    assert good.to_tree() == tree
    version = put(tree, 0, 2)
    with pytest.raises(VersionError, match="version 2 is not supported"):
        read(cls, version)
    for place in (first_bytes, last):
        size = put(version, place, bytes(31))
        with pytest.raises(FieldSizeError, match="found 31"):
            read(cls, size)
        other = last if place == first_bytes else first_bytes
        with pytest.raises(MalformedError, match="expected a byte string, found a text string"):
            read(cls, put(size, other, "text"))
        with pytest.raises(MalformedError):
            read(cls, [*size, 0])


def test_the_first_wrong_size_is_the_one_reported():
    """spec §8.2: deterministic, and a person mends from the top."""
    with pytest.raises(FieldSizeError) as caught:
        read(Msg, put(put(MSG, 1, b"x"), 2, b"xy"))
    assert (caught.value.where, caught.value.expected, caught.value.actual) == ("MSG.profile_id", "32 bytes", 1)


@pytest.mark.parametrize(
    ("msg", "envelope_ver", "expected"),
    [
        (MSG, 2, VersionError),
        (put(MSG, 0, 2), 1, VersionError),
        (put(MSG, 9, b""), 2, FieldSizeError),
        (put(put(MSG, 9, b""), 0, 7), 2, FieldSizeError),
        (put(put(MSG, 9, 0), 1, b""), 2, MalformedError),
        ([*MSG, 0], 2, MalformedError),
    ],
)
def test_the_ranking_holds_across_nested_objects(msg, envelope_ver, expected):
    """spec §8.2"""
    with pytest.raises(FormatError) as caught:
        read(SubmitRequest, {1: envelope_ver, 2: msg})
    assert type(caught.value) is expected


def test_a_version_is_an_unsigned_integer_before_it_is_a_version():
    """spec §8.2"""
    ver: Any
    for ver in (None, True, "1", b"\x01", -1, [], {}):
        with pytest.raises(MalformedError):
            read(Receipt, put(RECEIPT, 0, ver))


def test_a_wrong_type_outranks_a_wrong_size_inside_a_list():
    """spec §8.2: also behind the longest length that is allowed."""
    chain: list[Any]
    for chain in ([b"short", "text"], ["text", b"short"], [Z64] * 8 + ["text"], [Z64] * 20 + [0]):
        with pytest.raises(MalformedError):
            read(CapToken, put(TOKEN, 5, chain))
    for chain in ([b"short"], [Z64, b""], [], [Z64] * 9):
        with pytest.raises(FieldSizeError):
            read(CapToken, put(TOKEN, 5, chain))


def test_a_fault_says_where_it_is():
    """spec §10.6: `field` is part of a useful answer."""
    for tree, where in (
        (put(TOKEN, 2, 0), "cap_token.issuer_pk"),
        (put(TOKEN, 4, {1: [Z32], 2: -1}), "cap_token.allow.ttl"),
        (put(TOKEN, 4, {1: [Z32], 2: 0, 3: {1: 0}}), "cap_token.allow.rate.burst"),
        (put(TOKEN, 4, {1: [0], 2: 0}), "cap_token.allow.stream_ids"),
    ):
        with pytest.raises(MalformedError, match=where):
            read(CapToken, tree)


# --- shape --------------------------------------------------------------------------------------------------


@pytest.mark.req("CBOR-01", "CBOR-07")
@pytest.mark.parametrize("cls", SHAPES)
def test_an_array_has_its_items_in_order_and_no_others(cls):
    """spec §3.1: fixed field order."""
    tree = SHAPES[cls]
    for index in range(len(tree)):
        with pytest.raises(MalformedError):
            read(cls, tree[:index] + tree[index + 1 :])
    wrong: Any
    for wrong in ([*tree, 0], [*tree, *tree], [], dict(enumerate(tree, start=1)), None, 1, b"", "MSG"):
        with pytest.raises(MalformedError):
            read(cls, wrong)


@pytest.mark.req("CBOR-06", "CBOR-08")
@pytest.mark.parametrize(
    ("cls", "tree"),
    [
        (CapToken, TOKEN),
        (PayloadHdr, {1: Z32, 2: Z32, 3: Z32, 4: Z32, 5: 0}),
        (MmrProof, {1: 1, 2: Z32, 3: [{1: 0, 2: Z32}], 4: []}),
        (StreamRequest, {1: 1, 2: Z32, 3: 0, 4: 1, 5: 1, 6: 1, 7: True, 8: False}),
        (SubmitResponse, {1: 1, 2: RECEIPT, 3: "0.0.1"}),
        (ErrorEnvelope, {**ERROR, 4: {"stage": "auth"}, 5: 1, 6: "id"}),
    ],
)
def test_a_map_has_ascending_integer_keys_and_no_unknown_ones(cls, tree):
    """spec §3.1"""
    assert read(cls, tree).to_tree() == tree
    keys = list(tree)
    for index in range(len(keys) - 1):
        swapped = [*keys[:index], keys[index + 1], keys[index], *keys[index + 2 :]]
        with pytest.raises(MalformedError, match=r"misplaced"):
            read(cls, {key: tree[key] for key in swapped})
    for unknown in (0, max(keys) + 1, 99, -1, "ver", b"\x01"):
        with pytest.raises(MalformedError):
            read(cls, {**tree, unknown: 0})
        with pytest.raises(MalformedError):
            read(cls, {unknown: 0, **tree})
    for wrong in ({str(key): tree[key] for key in keys}, list(tree.values()), {}, None, 1):
        with pytest.raises(MalformedError):
            read(cls, wrong)


@pytest.mark.req("CBOR-10")
def test_a_repeated_key_is_refused_even_with_the_same_value():
    """D-02, D-06"""
    data = cbor2.dumps({1: Z32, 5: 0})
    assert PayloadHdr.from_bytes(data).expires_at == 0
    with pytest.raises(MalformedError, match="Duplicate"):
        PayloadHdr.from_bytes(b"\xa3" + data[1:] + b"\x05\x00")


@pytest.mark.req("CBOR-05")
def test_null_stands_only_where_an_array_has_an_optional_field():
    """spec §3.1, D-04: MSG.auth_ref and nothing else."""
    for index in range(len(MSG)):
        if index == 6:
            assert read(Msg, put(MSG, index, None)).auth_ref is None
        else:
            with pytest.raises(MalformedError):
                read(Msg, put(MSG, index, None))
    cls: type[Wire]
    tree: Any
    for cls, tree in ((Receipt, RECEIPT), (Checkpoint, CHECKPOINT), (CapToken, TOKEN), (ErrorEnvelope, ERROR)):
        for key in range(len(tree)) if isinstance(tree, list) else tree:
            with pytest.raises(MalformedError):
                read(cls, put(tree, key, None))
    for cls, tree in (  # absent is absent
        (Checkpoint, [*CHECKPOINT, None]),
        (PayloadHdr, {1: Z32, 2: None}),
        (CapToken, put(TOKEN, 4, {1: [Z32], 2: 0, 3: None})),
        (ErrorEnvelope, {**ERROR, 4: None}),
        (StreamRequest, {1: 1, 2: Z32, 3: 0, 4: None}),
    ):
        with pytest.raises(MalformedError):
            read(cls, tree)


def test_the_body_of_a_typed_payload_may_write_null_for_absent():
    """D-02, D-04: read as absent, written by omission; order and key set stay exact."""
    full = {"coid": Z32, "size": 1, "name": "a", "media_type": "b"}
    assert read(Attachment, full) == Attachment(coid=Z32, size=1, name="a", media_type="b")
    bare = Attachment(coid=Z32, size=1)
    assert read(Attachment, {"coid": Z32, "size": 1, "name": None, "media_type": None}) == bare
    assert cbor.decode(bare.to_bytes()) == {"coid": Z32, "size": 1}
    for wrong in (
        {"size": 1, "coid": Z32},
        {**full, "extra": 0},
        {"coid": Z32, "size": 1, "media_type": "b", "name": "a"},
        {"coid": None, "size": 1},
        {"coid": Z32, "size": None},
        {1: Z32, 2: 1},
    ):
        with pytest.raises(MalformedError):
            read(Attachment, wrong)
        if 1 not in wrong:
            with pytest.raises(MalformedError):
                read(Attached, {"body": b"", "attachments": [wrong]})


@pytest.mark.parametrize("value", [True, False, -1, None, "1", b"\x01", [], {}])
def test_an_unsigned_integer_is_nothing_else(value):
    """D-05, D-07"""
    with pytest.raises(MalformedError):
        read(Receipt, put(RECEIPT, 2, value))


@pytest.mark.parametrize("value", [0, 1, None, "true", []])
def test_a_flag_is_true_or_false(value):
    """D-05"""
    with pytest.raises(MalformedError):
        read(StreamRequest, {1: 1, 2: Z32, 3: 0, 7: value})


@pytest.mark.parametrize(
    "detail",
    [
        {"b": 0, "a": 0},  # not sorted
        {"aa": 0, "b": 0},  # sorted as text, but not by encoded key
        {"a": {"b": 0, "a": 0}},
        {"a": [{"b": 0, "a": 0}]},
        {1: 0},
        {"a": b""},
        {"a": None},
        {"a": [b""]},
        [],
        "text",
    ],
)
def test_a_free_form_map_is_sorted_and_has_a_json_form(detail):
    """D-03, D-57: detail is a text-key map sorted by encoded key."""
    with pytest.raises(MalformedError, match=r"error\.detail"):
        read(ErrorEnvelope, {**ERROR, 4: detail})


def test_a_free_form_map_is_written_sorted_from_any_order():
    """D-03"""
    sample, other = ({"b": 0, "aa": {"y": 1, "x": 2}}, {"aa": {"x": 2, "y": 1}, "b": 0})
    first = ErrorEnvelope(code="c", message="m", detail=sample)
    assert first.to_bytes() == ErrorEnvelope(code="c", message="m", detail=other).to_bytes()
    assert ErrorEnvelope.from_bytes(first.to_bytes()) == first


# --- writing ------------------------------------------------------------------------------------------------


@pytest.mark.req("CBOR-09")
@pytest.mark.parametrize(
    ("obj", "fault"),
    [
        (PayloadHdr(schema=b"short"), FieldSizeError),
        (PayloadHdr(schema=Z32, expires_at=-1), MalformedError),
        (PayloadHdr(schema=Z32, expires_at=2**64), MalformedError),
        (PayloadHdr(schema="text"), MalformedError),  # type: ignore[arg-type]  # the mistake under test
        (ErrorEnvelope(code="c", message="m", detail={"a": b""}), MalformedError),
        (ErrorEnvelope(code="c", message="m", detail={"a": 1.5}), MalformedError),
        (ErrorEnvelope(code="c", message="m", detail={"a": 2**64}), MalformedError),
        (ErrorEnvelope(code="\ud800", message="m"), MalformedError),
        (MmrProof(leaf_hash=Z32, path=(), peaks_after=(Z32,) * 65), FieldSizeError),
    ],
)
def test_what_would_not_be_accepted_is_not_written(obj, fault):
    """I10: to_bytes gives canonical bytes or a FormatError."""
    with pytest.raises(fault):
        obj.to_bytes()


def test_a_tree_too_deep_to_be_read_is_not_written():
    """D-06, I10: to_bytes never gives what from_bytes refuses."""
    for depth in (20, 28, 29, 30, 31, 32, 33, 40):
        detail: dict[str, Any] = {}
        for _ in range(depth):
            detail = {"a": detail}
        envelope = ErrorEnvelope(code="c", message="m", detail=detail)
        try:
            data = envelope.to_bytes()
        except FormatError:
            assert depth > 30
        else:
            assert ErrorEnvelope.from_bytes(data) == envelope


def test_wire_objects_are_values():
    """House rule: frozen, compared by content."""
    sample, other = read(Msg, MSG), read(Msg, MSG)
    assert sample == other
    assert hash(sample) == hash(other)
    with pytest.raises(AttributeError):
        sample.label = Z32


# --- JSON ---------------------------------------------------------------------------------------------------

HDR = {"schema": "ab" * 32}
SCHEMA = '{"schema":"' + "ab" * 32 + '"'


@pytest.mark.parametrize(
    "digits",
    ["AB" * 32, "ab" * 31 + "aB", " " + "ab" * 32, "ab " * 32, "ab" * 31 + "a\n", "0x" + "ab" * 31, "ab" * 31 + "a",
     "é" * 64, "xy" * 32, "\uff11" * 64, None, 1, 1.0, True, [], {}],
)  # fmt: skip
def test_bytes_in_json_are_lower_case_hex_and_nothing_else(digits):
    """D-62"""
    assert PayloadHdr.from_json(HDR).schema == b"\xab" * 32
    with pytest.raises(MalformedError, match=r"payload_hdr\.schema: expected a byte string in lower-case hex"):
        PayloadHdr.from_json({"schema": digits})


@pytest.mark.parametrize("number", [1.0, 0.5, True, False, "1", None, -1, 2**64, [], {}])
def test_integers_in_json_are_unsigned_integers_and_nothing_else(number):
    """D-62, D-07"""
    assert PayloadHdr.from_json({**HDR, "expires_at": 2**64 - 1}).expires_at == 2**64 - 1
    with pytest.raises(MalformedError, match=r"payload_hdr\.expires_at"):
        PayloadHdr.from_json({**HDR, "expires_at": number})


def test_json_names_are_exact_but_in_any_order():
    """D-62: JSON objects have no order; unknown, missing and null members are refused as in CBOR."""
    assert PayloadHdr.from_json({"expires_at": 1, **HDR}) == PayloadHdr.from_json({**HDR, "expires_at": 1})
    for wrong in (
        {},
        {"Schema": "ab" * 32},
        {1: "ab" * 32},
        {"1": "ab" * 32},
        {**HDR, "extra": 1},
        {**HDR, "ver": 1},
        {**HDR, "parent_id": None},
        ["ab" * 32],
        None,
        "ab",
    ):
        with pytest.raises(MalformedError):
            PayloadHdr.from_json(wrong)


def test_sizes_and_versions_are_ranked_in_json_as_in_cbor():
    """D-62: the same rules."""
    receipt = Receipt.from_tree(RECEIPT).to_json()
    assert Receipt.from_json(receipt).to_tree() == RECEIPT
    with pytest.raises(VersionError):
        Receipt.from_json([2, *receipt[1:]])
    with pytest.raises(FieldSizeError):
        Receipt.from_json([2, "ab", *receipt[2:]])
    with pytest.raises(MalformedError):
        Receipt.from_json([2, "ab", *receipt[2:-1], "AB"])


@pytest.mark.parametrize(
    "text",
    [
        SCHEMA + "," + SCHEMA[1:] + "}",
        SCHEMA + ',"expires_at":1.0}',
        SCHEMA + ',"expires_at":1e3}',
        SCHEMA + ',"expires_at":NaN}',
        SCHEMA + ',"expires_at":-Infinity}',
        SCHEMA + ',"expires_at":18446744073709551616}',
        SCHEMA + ',"expires_at":' + "9" * 100_000 + "}",
        SCHEMA + ',"expires_at":01}',
        SCHEMA + "}x",
        SCHEMA + ",}",
        "\ufeff" + SCHEMA + "}",
        "",
        "{",
    ],
)
def test_json_text_is_read_strictly(text):
    """D-62: no duplicate names, fractions, exponents, huge numbers or bytes around the object."""
    assert PayloadHdr.from_json(objects.parse_json(f"{SCHEMA}}}".encode())) == PayloadHdr.from_json(HDR)
    with pytest.raises(FormatError):
        PayloadHdr.from_json(objects.parse_json(text.encode()))


def detail_text(inner):
    return b'{"ver":1,"code":"c","message":"m","detail":{"a":' + inner + b"}}"


@pytest.mark.parametrize("depth", [29, 30, 31, 32, 33, 40, 100, 400, 900, 5_000, 100_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_json_is_bounded_in_depth_as_cbor_is(depth, brackets):
    """D-06, D-62: what has no CBOR form is refused, and refused with our error."""
    opening, closing = brackets
    text = detail_text(opening * depth + b"1" + closing * depth)
    try:
        envelope = ErrorEnvelope.from_json(objects.parse_json(text))
    except FormatError:
        assert depth > 30
    else:
        assert ErrorEnvelope.from_bytes(envelope.to_bytes()) == envelope


@pytest.mark.parametrize("number", [2**64, 10**20 - 1, -(2**64) - 1])
def test_json_integers_are_bounded_in_free_form_maps_too(number):
    """D-07: a value that could not be written in CBOR is not accepted in JSON."""
    with pytest.raises(MalformedError):
        ErrorEnvelope.from_json(objects.parse_json(detail_text(str(number).encode())))


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), -(2**64)])
def test_json_integers_of_64_bits_are_understood(number):
    """D-07, D-62: what CBOR can say, JSON can say."""
    envelope = ErrorEnvelope.from_json(objects.parse_json(detail_text(str(number).encode())))
    assert envelope.detail == {"a": number}
    assert ErrorEnvelope.from_bytes(envelope.to_bytes()) == envelope


@pytest.mark.parametrize("place", ["code", "message", "request_id"])
def test_json_text_must_be_unicode(place):
    """D-06: half of a surrogate pair has no UTF-8 form, so no CBOR form."""
    fields = {"ver": 1, "code": "c", "message": "m", place: "\ud800"}
    with pytest.raises(MalformedError):
        ErrorEnvelope.from_json(fields)


@pytest.mark.parametrize("detail", [{"a": "\ud800"}, {"\udfff": 1}, {"a": ["\udc80"]}])
def test_json_text_in_free_form_maps_must_be_unicode(detail):
    """D-06, D-62"""
    with pytest.raises(MalformedError):
        ErrorEnvelope.from_json({"ver": 1, "code": "c", "message": "m", "detail": detail})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.just("00" * 32),
    lambda inner: st.lists(inner, max_size=10) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_any_json_value_ends_in_an_object_or_a_format_error(value):
    """D-62: and an object that was accepted has a canonical CBOR form."""
    for cls in (Msg, CapToken, ErrorEnvelope, Equivocation, StreamResponse, PayloadHdr):
        try:
            obj = cls.from_json(value)
        except FormatError:
            continue
        assert cls.from_bytes(obj.to_bytes()) == obj


@given(strategies.PAYLOAD_HDR)
def test_the_json_form_uses_names_and_hex(hdr):
    """D-62"""
    shown = hdr.to_json()
    assert shown["schema"] == hdr.schema.hex()
    assert ("parent_id" in shown) == (hdr.parent_id is not None)
    assert list(shown) == [name for name in PayloadHdr.__slots__ if getattr(hdr, name) is not None]
