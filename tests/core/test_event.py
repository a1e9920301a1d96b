"""Events: what overlays see of a log."""

from dataclasses import replace

import pytest

from veen.core.event import Event
from veen.core.objects.payload_hdr import PayloadHdr

EVENT = Event(
    stream_id=b"s" * 32,
    label=b"l" * 32,
    epoch=0,
    stream_seq=1,
    leaf_hash=b"h" * 32,
    client_id=b"c" * 32,
    auth_ref=None,
    hub_ts=7,
    ts=7,
    hdr=PayloadHdr(schema=b"x" * 32),
    body=b"",
)


@pytest.mark.req("OVL-05", "OVL-15")
def test_events_are_ordered_by_time_stream_epoch_and_position():
    """D-27, in this order; nothing else of an event decides before them."""
    later = [
        replace(EVENT, stream_seq=2),
        replace(EVENT, epoch=1),
        replace(EVENT, stream_id=b"t" * 32),
        replace(EVENT, ts=8),
    ]
    orders = [EVENT.order, *(event.order for event in later)]
    assert orders == sorted(orders)


@pytest.mark.req("OVL-15")
def test_two_hubs_never_tie():
    """One stream at two hubs: the same epoch, position and second, and still one order."""
    other = replace(EVENT, label=b"m" * 32, leaf_hash=b"i" * 32)
    assert EVENT.order < other.order
    assert EVENT.msg_id == EVENT.leaf_hash
