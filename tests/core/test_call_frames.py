"""Frames of calls: one encoding, bounded before any work, and never anything but a FormatError for bad bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cbor
from veen.core.call_frames import (
    MAX_HEAD_BYTES,
    MAX_HEADERS_BYTES,
    RequestFrame,
    ResponseFrame,
    request_head,
)
from veen.core.errors import FieldSizeError, FormatError, MalformedError, VersionError

operations = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
names = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz-"), min_size=1, max_size=20)
headers = st.dictionaries(names, texts, max_size=8)
bodies = st.binary(max_size=400)


@given(operations, bodies, headers)
def test_a_request_comes_back_as_it_was_sent(operation, body, fields):
    frame = RequestFrame(operation, body, fields)
    assert RequestFrame.from_bytes(frame.to_bytes()) == frame


@given(st.integers(100, 599), bodies, headers)
def test_a_response_comes_back_as_it_was_sent(status, body, fields):
    frame = ResponseFrame(status, body, fields)
    assert ResponseFrame.from_bytes(frame.to_bytes()) == frame


@given(operations, bodies, headers)
def test_a_frame_is_the_array_that_the_decisions_name(operation, body, fields):
    """D-113: CBOR [1, operation, request], D-148: and an optional map of headers."""
    expected = [1, operation, body, *([dict(cbor.sort_keys(fields))] if fields else [])]
    assert cbor.decode(RequestFrame(operation, body, fields).to_bytes()) == expected


@given(operations, bodies, headers)
def test_the_head_is_known_from_each_prefix_that_holds_it_and_from_none_that_does_not(operation, body, fields):
    data = RequestFrame(operation, body, fields).to_bytes()
    head = request_head(data)
    assert head is not None
    assert (head.operation, head.body_bytes, head.has_headers) == (operation, len(body), bool(fields))
    for size in range(head.body_start):
        assert request_head(data[:size]) is None
    assert request_head(data[: head.body_start]) == head
    assert head.body_start <= MAX_HEAD_BYTES


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_format_error(data):
    for kind in (RequestFrame, ResponseFrame):
        try:
            frame = kind.from_bytes(data)
        except FormatError:
            continue
        assert frame.to_bytes() == data


@given(operations, bodies, headers, st.data())
def test_a_frame_with_one_byte_changed_is_another_frame_or_a_format_error(operation, body, fields, data):
    good = RequestFrame(operation, body, fields).to_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes((good[place] ^ data.draw(st.integers(1, 255)),)) + good[place + 1 :]
    try:
        frame = RequestFrame.from_bytes(bad)
    except FormatError:
        return
    assert frame.to_bytes() == bad


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedError),
        (b"\x83\x02\x61a\x40", VersionError),
        (b"\x83\x18\x61a\x40", MalformedError),
        (b"\x82\x01\x61a", MalformedError),
        (b"\x83\x01\x61a\x40\x00", MalformedError),  # a byte behind
        (b"\x83\x01\x61a\x41", MalformedError),  # cut in the body
        (b"\x83\x01\x61a\x60", MalformedError),  # text for a body
        (b"\x83\x01\x78\x01a\x40", MalformedError),  # not the shortest length
        (b"\x83\x01\x60\x40", MalformedError),  # no operation
        (b"\x83\x01\x61 \x40", MalformedError),
        (b"\x83\x01\x79\x08\x01" + b"a" * 2049 + b"\x40", FieldSizeError),
        (b"\x83\x01\x7b" + b"\xff" * 8, FieldSizeError),  # a length that no memory has
        (b"\x84\x01\x61a\x40\xa0", MalformedError),  # headers that say nothing
        (b"\x84\x01\x61a\x40\xa1\x61A\x60", MalformedError),  # not in lower case
        (b"\x84\x01\x61a\x40\xa1\x61a\x01", MalformedError),
        (b"\x84\x01\x61a\x40\xa2\x61b\x60\x61a\x60", MalformedError),  # not sorted
        (b"\x84\x01\x61a\x40\xa1\x61a\x61\x0a", MalformedError),  # a line feed would end a header
        (b"\x84\x01\x61a\x40" + b"\x80" * (MAX_HEADERS_BYTES + 1), FieldSizeError),
    ],
)
def test_a_request_that_is_none_is_named(data, error):
    with pytest.raises(error):
        RequestFrame.from_bytes(data)


def test_a_body_of_any_length_is_known_before_it_arrives():
    """A head that announces 2^63 bytes costs nothing: whoever asked is refused by the number."""
    head = request_head(b"\x83\x01\x61a\x5b" + (1 << 63).to_bytes(8, "big"))
    assert head is not None
    assert head.body_bytes == 1 << 63


def test_a_status_outside_http_and_too_many_headers_are_refused():
    with pytest.raises(MalformedError):
        ResponseFrame.from_bytes(b"\x83\x01\x18\x63\x40")
    with pytest.raises(FieldSizeError):
        ResponseFrame(200, b"", {f"a{number}": "" for number in range(17)}).to_bytes()
