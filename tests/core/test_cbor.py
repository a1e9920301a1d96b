"""Strict deterministic CBOR: RFC 8949, spec §3.1, D-01 … D-07."""

import ast
import json
import tracemalloc
from collections import Counter
from contextlib import suppress
from functools import cmp_to_key
from pathlib import Path

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import every
from tests.core import strategies, strict_cbor
from tests.examples import examples

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, MalformedError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "cbor-rfc8949.json").read_text("utf-8"))

# What VEEN says about each class of RFC 8949 items that it does not allow.
REASONS = {
    "float": "type float is not allowed",
    "simple": "is not allowed",
    "tag": "tags are not allowed",
    "indefinite": "indefinite",
}

ENCODED = strategies.ITEMS.map(cbor2.dumps)


def class_of(vector):
    """To which class a well-formed vector belongs, read off its diagnostic notation and first byte."""
    first = bytes.fromhex(vector["hex"])[0]
    if "_ " in vector["diagnostic"]:
        return "indefinite"
    if first >> 5 == 6:
        return "tag"
    if first in (0xF9, 0xFA, 0xFB):
        return "float"
    if first in (0xF0, 0xF7, 0xF8):
        return "simple"
    return "accepted"


def value_of(diagnostic):
    if diagnostic.startswith("h'"):
        return bytes.fromhex(diagnostic[2:-1])
    try:
        return json.loads(diagnostic)
    except ValueError:
        return ast.literal_eval(diagnostic)  # maps with integer keys


def judged(data):
    """(value,) from the oracle, or None where it refuses."""
    try:
        return (strict_cbor.decode(data),)
    except strict_cbor.RefusedError:
        return None


def decoded(data):
    try:
        return (cbor.decode(data),)
    except FormatError:
        return None


# --- laws ---------------------------------------------------------------------------------------------------


@pytest.mark.req("INV-10", "CBOR-10")
@given(st.binary(max_size=64))
@example(b"")
@example(b"\xa2\x01\x00\x01\x00")
@example(b"\x81" * 32 + b"\x00")
def test_arbitrary_bytes_are_judged_as_the_oracle_judges_them(data):
    """D-06: one reading of every input; nothing but a FormatError ever comes out."""
    assert strict_cbor.same(decoded(data), judged(data))


@pytest.mark.req("INV-10", "TS0-05", "CBOR-02", "CBOR-03", "CBOR-04", "CBOR-10")
@examples(500)
@given(strategies.mutated(ENCODED))
def test_damaged_encodings_are_judged_as_the_oracle_judges_them(data):
    """D-06, TS0.3: flipped, cut, extended, widened, tagged, indefinite, reordered."""
    assert strict_cbor.same(decoded(data), judged(data))


@given(strategies.ITEMS)
def test_an_item_comes_back_from_its_encoding(item):
    """spec §3.1: and the encoding is what the oracle reads as the same item."""
    data = cbor.encode(item)
    assert strict_cbor.same(cbor.decode(data), item)
    assert strict_cbor.same(strict_cbor.decode(data), item)


@pytest.mark.req("CBOR-02")
@given(strategies.INT)
def test_each_integer_has_exactly_one_accepted_encoding(value):
    """spec §3.1: minimal-length integers."""
    major, argument = (0, value) if value >= 0 else (1, -1 - value)
    accepted = []
    if argument < 24:
        accepted.append(bytes((major << 5 | argument,)))
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument >> 8 * width == 0:
            accepted.append(bytes((major << 5 | info,)) + argument.to_bytes(width, "big"))
    assert [data for data in accepted if decoded(data) is not None] == [cbor.encode(value)] == accepted[:1]


@pytest.mark.req("CBOR-02")
@pytest.mark.parametrize("major", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256])
def test_each_length_has_exactly_one_accepted_encoding(major, length):
    """D-06: shortest lengths, for strings and containers alike."""
    content = {
        2: bytes(length),
        3: bytes(length),
        4: bytes(length),
        5: b"".join(cbor.encode(key) + b"\x00" for key in range(length)),
    }[major]
    good = bytes((cbor.encode(length)[0] | major << 5,)) + cbor.encode(length)[1:]
    assert decoded(good + content) is not None
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if length >> 8 * width == 0:
            head = bytes((major << 5 | info,)) + length.to_bytes(width, "big")
            assert (decoded(head + content) is None) == (head != good)


@given(strategies.mutated(ENCODED) | st.binary(max_size=64))
def test_the_end_of_an_item_is_where_decode_says(data):
    """RFC 8742: `item_end` follows structure only, but never contradicts `decode`."""
    if decoded(data) is not None:
        assert cbor.item_end(data) == len(data)
        assert cbor.item_end(data + b"\xff\x00") == len(data)
        assert cbor.item_end(b"\x18" + data, 1) == len(data) + 1
        return
    with suppress(MalformedError):
        assert 0 < cbor.item_end(data) <= len(data)


@pytest.mark.req("CBOR-13")
@given(st.lists(ENCODED, max_size=5))
def test_a_sequence_falls_apart_into_its_items(items):
    """RFC 8742: concatenation, nothing in between, possibly empty."""
    assert list(cbor.sequence(b"".join(items))) == items


@pytest.mark.req("CBOR-13")
@given(st.lists(ENCODED, max_size=3), ENCODED.filter(lambda data: len(data) > 1))
def test_a_sequence_with_a_cut_last_item_gives_the_whole_ones_and_then_an_error(items, last):
    """RFC 8742 §2: a truncated item is not well formed."""
    stream = cbor.sequence(b"".join(items) + last[:-1])
    assert [next(stream) for _ in items] == items
    with pytest.raises(MalformedError, match=r"sequence: .*ends in the middle"):
        list(stream)


def precedes(one, other):
    """spec §3.3, word for word: unsigned from left to right, shorter prefixes first."""
    for a, b in zip(one, other, strict=False):
        if a != b:
            return -1 if a < b else 1
    return len(one) - len(other)


@pytest.mark.req("CBOR-14")
@given(st.dictionaries(strategies.INT | strategies.TEXT | strategies.BLOB, strategies.FREE, max_size=6))
def test_free_form_maps_are_sorted_bytewise_by_encoded_key(item):
    """D-03, spec §3.3"""
    in_order = cbor.sort_keys(item)
    assert in_order == item
    keys = [cbor.encode(key) for key in in_order]
    assert keys == sorted(keys, key=cmp_to_key(precedes))
    assert cbor.encode_sorted(item) == cbor.encode(in_order)
    assert cbor.is_sorted(in_order)
    assert cbor.is_sorted([in_order, 1])
    backwards = dict(reversed(in_order.items()))
    assert cbor.is_sorted(backwards) == (len(item) < 2)
    assert cbor.is_sorted([backwards]) == cbor.is_sorted({0: backwards}) == (len(item) < 2)


@given(strategies.UINT)
def test_pieces_for_hot_paths_equal_the_general_encoding(value):
    """spec §3.1"""
    assert cbor.uint(value) == cbor2.dumps(value)


@given(st.integers(0, 70_000))
def test_the_head_of_a_byte_string_is_that_of_the_general_encoding(length):
    """spec §3.1"""
    assert cbor.bstr_head(length) == cbor2.dumps(bytes(length))[: -length or None]


# --- RFC 8949 -----------------------------------------------------------------------------------------------


def test_all_vectors_of_rfc_8949_are_there():
    """Appendices A and F.1; a file cut short would make the tests below say less than they seem to."""
    assert Counter(map(class_of, VECTORS["well_formed"])) == {
        "accepted": 37,
        "float": 22,
        "indefinite": 11,
        "tag": 8,
        "simple": 3,
    }
    assert len(VECTORS["not_well_formed"]) == 94


@pytest.mark.req("CBOR-01", "CBOR-03", "CBOR-04")
@every(VECTORS["well_formed"])
def test_well_formed_items_are_accepted_or_refused_by_their_class(vector):
    """spec §3.1, D-05: no floats, tags, indefinite lengths or simple values but false, true and null."""
    data, kind = bytes.fromhex(vector["hex"]), class_of(vector)
    if kind == "accepted":
        value = value_of(vector["diagnostic"])
        assert strict_cbor.same(cbor.decode(data), value)
        assert cbor.encode(value) == data
        return
    with pytest.raises(MalformedError, match=REASONS[kind]):
        cbor.decode(data)
    with pytest.raises(strict_cbor.RefusedError, match=f"^{kind}$"):
        strict_cbor.decode(data)


@pytest.mark.req("CBOR-10")
@every(VECTORS["not_well_formed"])
def test_items_that_are_not_well_formed_are_refused(vector):
    """RFC 8949 F.1"""
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(MalformedError):
        cbor.decode(data)
    with pytest.raises(strict_cbor.RefusedError):
        strict_cbor.decode(data)


# --- awkward cases ------------------------------------------------------------------------------------------


def tag_head(number):
    head = cbor.uint(number)
    return bytes((head[0] | 0xC0,)) + head[1:]


@pytest.mark.req("CBOR-04")
@pytest.mark.parametrize("content", ["00", "20", "40", "4101", "60", "6161", "80", "820102", "a0", "f6"])
def test_every_tag_is_refused_whatever_it_encloses(content):
    """spec §3.1: no tags. Some would compile regular expressions, share references or build huge numbers."""
    for number in (*range(301), 1004, 43000, 55799, 2**32, 2**64 - 1):
        for prefix in (b"", b"\x81", b"\xa1\x01"):
            with pytest.raises(MalformedError, match="tags are not allowed"):
                cbor.decode(prefix + tag_head(number) + bytes.fromhex(content))
        with pytest.raises(MalformedError, match="tags are not allowed"):
            cbor.item_end(tag_head(number) + bytes.fromhex(content))


@pytest.mark.req("CBOR-10")
@pytest.mark.parametrize("container", [b"\x81", b"\xa1\x01"], ids=["array", "map"])
def test_an_item_may_lie_in_32_containers_and_not_in_33(container):
    """D-06: depth <= 32."""
    for inner in (b"\x00", b"\x80", b"\xa0", b"\x41\x00"):
        good, bad = container * 32 + inner, container * 33 + inner
        assert cbor.item_end(good) == len(good)
        assert strict_cbor.same(cbor.decode(good), strict_cbor.decode(good))
        for read in (cbor.decode, cbor.item_end):
            with pytest.raises(MalformedError, match=r"32|deep"):
                read(bad)


@pytest.mark.parametrize("read", [cbor.decode, cbor.item_end])
def test_nesting_without_end_is_refused_and_not_followed(read):
    """D-06: whoever sends 100,000 brackets does not exhaust the stack."""
    for container in (b"\x81", b"\xa1\x01", b"\xa1", b"\xd8\x1c\x81"):
        with pytest.raises(MalformedError):
            read(container * 100_000)


@pytest.mark.req("CBOR-10")
@pytest.mark.parametrize("major", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [2**31 - 1, 2**32, 2**62, 2**63, 2**64 - 1])
def test_a_huge_declared_length_is_refused_at_once(major, length):
    """D-06: before anything is allocated for it."""
    data = bytes((major << 5 | 27,)) + length.to_bytes(8, "big") + b"\x00"
    tracemalloc.start()
    try:
        for read in (cbor.decode, cbor.item_end):
            with pytest.raises(MalformedError):
                read(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends in the middle"),
        ("0000", "bytes follow the item"),
        ("f6f6", "bytes follow the item"),
        ("1817", "not the shortest encoding"),
        ("a201000100", "Duplicate map key"),
        ("a2616100616100", "Duplicate map key"),
        ("a1f500", "map key of type bool"),
        ("a1f600", "map key of type NoneType"),
        ("a18000", "map key of type tuple"),
        ("a1a000", "map key of type"),
        ("61ff", "utf-8"),
        ("62c080", "utf-8"),  # an overlong NUL
        ("63eda080", "utf-8"),  # half of a surrogate pair
        ("64f4908080", "utf-8"),  # beyond U+10FFFF
        ("f800", "not"),
        ("f818", "not"),
    ],
)
@pytest.mark.req("CBOR-10")
def test_each_fault_is_named(text, reason):
    """D-06"""
    with pytest.raises(MalformedError, match=rf"^probe: .*{reason}"):
        cbor.decode(bytes.fromhex(text), what="probe")


def test_text_is_not_normalised():
    """D-06: two spellings of é stay two texts."""
    composed, decomposed = "é", "e\u0301"
    assert cbor.decode(cbor.encode([composed, decomposed])) == [composed, decomposed]
    assert cbor.decode(cbor.encode({composed: 1, decomposed: 2})) == {composed: 1, decomposed: 2}


def test_a_size_bound_is_checked_before_reading():
    """D-06: over-long items are refused by size alone."""
    assert cbor.decode(cbor.encode(bytes(8)), max_bytes=9) == bytes(8)
    with pytest.raises(FieldSizeError, match="probe: expected at most 9 bytes, found 10"):
        cbor.decode(b"\xff" * 10, what="probe", max_bytes=9)


@pytest.mark.parametrize("item", [1.0, (1,), {1.5: 0}, {None: 0}, {True: 0}, {(): 0}, 2**64, -(2**64) - 1, object()])
@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [item], lambda item: {1: [item]}])
def test_what_could_not_be_read_back_is_not_written(item, wrap):
    """D-05, D-07"""
    with pytest.raises(MalformedError):
        cbor.encode(wrap(item))


def test_text_that_is_not_unicode_is_not_written():
    """D-06: a lone surrogate has no UTF-8 form."""
    for item in ("\ud800", ["\udc80"], {"\udfff": 0}):
        with pytest.raises(MalformedError):
            cbor.encode(item)


def test_what_is_nested_too_deep_to_be_read_is_not_written():
    """D-06: the writer never makes what the reader refuses."""
    item: list[object] = []
    for _ in range(32):
        item = [item]
    assert strict_cbor.same(cbor.decode(cbor.encode(item)), item)
    with pytest.raises(MalformedError):
        cbor.encode([item])


@pytest.mark.parametrize("value", [-1, 2**64])
def test_an_integer_outside_64_bits_has_no_piece(value):
    """D-07"""
    with pytest.raises(MalformedError):
        cbor.uint(value)


@pytest.mark.parametrize("info", range(28, 32))
@pytest.mark.parametrize("major", range(8))
def test_the_end_of_an_item_with_a_reserved_head_is_not_guessed(major, info):
    """RFC 8949 §3: 28 to 30 are reserved, 31 is indefinite; there may be enough bytes behind either."""
    with pytest.raises(MalformedError, match="reserved"):
        cbor.item_end(bytes((major << 5 | info,)) + bytes(300))


def test_a_map_too_large_for_any_object_is_refused_before_it_is_built():
    for entries, accepted in ((cbor.MAX_MAP_ENTRIES, True), (cbor.MAX_MAP_ENTRIES + 1, False)):
        data = cbor2.dumps({f"{number:05}": bytes(8) for number in range(entries)})
        if accepted:
            assert len(cbor.decode(data)) == entries
        else:
            with pytest.raises(MalformedError, match="map of more than"):
                cbor.decode(data)
