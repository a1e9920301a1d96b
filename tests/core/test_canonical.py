"""Canonical JSON: one value, one sequence of bytes (D-107)."""

import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.canonical import MAX_DEPTH, MAX_DIGITS, InvalidJson, encode, exact, parse, parse_canonical

numbers = st.one_of(
    st.integers(-(10**40), 10**40),
    st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**20), max_value=10**20).map(exact),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.req("QRY-03")
@given(values)
def test_what_is_encoded_is_parsed_to_the_same_value_and_back_to_the_same_bytes(value):
    data = encode(value)
    assert parse_canonical(data) == value
    assert encode(parse(data)) == data
    assert json.loads(data, parse_float=Decimal) == value  # and it is JSON


@given(values)
def test_the_order_of_members_does_not_matter(value):
    def turned(found):
        if isinstance(found, dict):
            return {key: turned(found[key]) for key in reversed(found)}
        return [turned(item) for item in found] if isinstance(found, list) else found

    assert encode(turned(value)) == encode(value)


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e90, max_value=1e90).filter(
        lambda x: not 0 < abs(x) < 1e-80
    )
)
def test_a_float_is_written_as_the_shortest_decimal_that_gives_it_back(number):
    text = encode(number).decode()
    assert float(text) == number
    assert "e" not in text.lower()
    assert Decimal(text) == Decimal(repr(number))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.0", "1"), ("-0", "0"), ("-0.0", "0"), ("1e3", "1000"), ("1.50", "1.5"), ("1E-2", "0.01"), ("10.00e-1", "1"),
        ('"\\u00e9\\/"', '"é/"'),
        ('"\\u0001\\u0008\\u000c\\n\\r\\t\\u001f\\u007f"', '"\\u0001\\b\\f\\n\\r\\t\\u001f\x7f"'),
        ('{"b":1, "a" :[ ]}', '{"a":[],"b":1}'), ('{"\\ud83d\\ude00":1,"\\uffff":2}', '{"\uffff":2,"😀":1}'),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
        (" [true , false,null] ", "[true,false,null]"),
    ],
)  # fmt: skip
@pytest.mark.req("QRY-03")
def test_each_value_has_one_form(text, canonical):
    """Keys by UTF-8 bytes, not by UTF-16 units; digits are kept beyond those of a double."""
    assert encode(parse(text)) == canonical.encode()
    assert parse(text) == parse(canonical)
    if text != canonical:
        with pytest.raises(InvalidJson):
            parse_canonical(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1,]", "01", "+1", ".5", "1.", "NaN", "Infinity", "-Infinity", '{"a":1,"a":1}', '{"a":{"b":1,"b":2}}',
        '"\\ud800"', '{"\\udc00":1}', '"\x01"', "1 2", "nul", "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "[" * 100_000,
        "1e999999999", "1e-999999999", "9" * (MAX_DIGITS + 1), "0." + "1" * (MAX_DIGITS + 1), "'a'", "\ufeff1",
    ],
)  # fmt: skip
def test_what_is_not_strict_json_is_refused(text):
    with pytest.raises(InvalidJson):
        parse(text)


@pytest.mark.parametrize("data", [b"\xff", b'"\xed\xa0\x80"', "1".encode("utf-16"), b"\xc0\x80"])
def test_only_utf_8_is_read(data):
    with pytest.raises(InvalidJson):
        parse(data)


def test_long_input_is_refused_before_it_is_read():
    with pytest.raises(InvalidJson, match="more than"):
        parse(b" " * 11, max_bytes=10)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("sNaN"), b"", {1: 2}, {"a": object()}, "\ud800", 10**200],
)
def test_what_json_has_no_form_for_is_refused(value):
    with pytest.raises(InvalidJson):
        encode(value)


def test_depth_is_bounded_when_written_too():
    value: list[object] = []
    for _ in range(MAX_DEPTH):
        value = [value]
    with pytest.raises(InvalidJson):
        encode(value)
    assert encode(value[0])


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_parsed_or_refused_and_nothing_else(data):
    try:
        value = parse(data)
    except InvalidJson:
        return
    assert parse(encode(value)) == value


def test_true_is_not_one():
    with pytest.raises(InvalidJson):
        exact(True)
    assert encode([True, 1]) == b"[true,1]"
