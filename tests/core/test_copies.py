"""Copies that state their origin: D-85, D-187, D-193."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cbor
from veen.core.errors import FormatError, MalformedError
from veen.core.event import (
    COPY_SCHEMA,
    CopiedEvent,
    Origin,
    copy_body,
    encode_stored_header,
    open_copy,
    origin_passed_on,
    read_stored_header,
)
from veen.core.objects.payload_hdr import PayloadHdr

A, B, C, MSG, SCHEMA = (bytes((n,)) * 32 for n in range(1, 6))
ids = st.binary(min_size=32, max_size=32)
origins = st.builds(
    lambda hub_id, msg_id, hub_ts, ahead, via: Origin(
        hub_id=hub_id, msg_id=msg_id, hub_ts=hub_ts, ts=hub_ts + ahead, via=tuple(via)
    ),
    ids,
    ids,
    st.integers(0, 1 << 40),
    st.integers(0, 3),
    st.lists(ids, max_size=3),
)


def header(origin, **more):
    return PayloadHdr(schema=COPY_SCHEMA, parent_id=origin.msg_id, **more)


@given(origins, st.binary(max_size=40), st.none() | st.integers(0, 1 << 40))
def test_a_copy_opens_to_the_schema_and_body_of_its_original(origin, body, expires_at):
    hdr = header(origin, expires_at=expires_at)
    opened, inner, stated = open_copy(hdr, copy_body(SCHEMA, body, origin))
    assert (opened, inner, stated) == (replace(hdr, schema=SCHEMA), body, origin)
    assert read_stored_header(encode_stored_header(opened, origin)) == (opened, origin)
    assert read_stored_header(encode_stored_header(opened, None)) == (opened, None)  # tables of before read as before


def test_what_is_no_copy_stays_what_it_is():
    """A copy as bridges made them before, and messages of the schema without a parent or with another body."""
    body = copy_body(SCHEMA, b"x", Origin(hub_id=A, msg_id=MSG, hub_ts=7, ts=7))
    for hdr, data in (
        (PayloadHdr(schema=SCHEMA, parent_id=MSG), b"x"),
        (PayloadHdr(schema=COPY_SCHEMA), body),
        (PayloadHdr(schema=COPY_SCHEMA, parent_id=MSG), b"\xa0"),
        (PayloadHdr(schema=COPY_SCHEMA, parent_id=MSG), body + b"\x00"),
    ):
        assert open_copy(hdr, data) == (hdr, data, None)


def test_a_copy_of_a_copy_and_a_time_that_goes_back_are_refused():
    with pytest.raises(MalformedError):
        CopiedEvent.from_bytes(copy_body(COPY_SCHEMA, b"", Origin(hub_id=A, msg_id=MSG, hub_ts=7, ts=7)))
    with pytest.raises(MalformedError):
        CopiedEvent.from_bytes(
            CopiedEvent(origin_hub_id=A, origin_hub_ts=7, origin_ts=6, schema=SCHEMA, body=b"").to_bytes()
        )


@pytest.mark.parametrize("tree", [[], [b"", A, 1, 1, []], [PayloadHdr(schema=SCHEMA).to_bytes(), A, 1, 1, []], 7])
def test_a_stored_header_that_is_none_is_refused(tree):
    with pytest.raises(FormatError):
        read_stored_header(cbor.encode(tree))


def test_the_first_origin_is_kept_if_a_bridge_states_it_and_the_way_is_kept_in_every_case():
    """D-187: a stranger states an origin in vain; the way that it states keeps back its own message alone."""
    first = Origin(hub_id=A, msg_id=MSG, hub_ts=7, ts=8)
    place: dict[str, Any] = {"hub_id": B, "msg_id": SCHEMA, "hub_ts": 20, "ts": 20}
    believed = origin_passed_on(first, **place, is_bridge=True)
    assert (believed.hub_id, believed.msg_id, believed.hub_ts, believed.ts) == (A, MSG, 7, 8)
    stranger = origin_passed_on(first, **place, is_bridge=False)
    assert (stranger.hub_id, stranger.msg_id, stranger.hub_ts) == (B, SCHEMA, 20)
    assert believed.hubs == stranger.hubs == {A, B}
    third = origin_passed_on(believed, **(place | {"hub_id": C}), is_bridge=True)
    assert (third.hub_id, third.via) == (A, (B, C))
    assert origin_passed_on(None, **place, is_bridge=True).hubs == {B}
