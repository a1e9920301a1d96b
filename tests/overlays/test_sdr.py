"""sdr.event.v1: the events of the recorder (D-105)."""

from typing import Any

import pytest

from veen.core import cbor
from veen.core.event import Event
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.schema import InvalidBody, Issue, Typed
from veen.overlays.recorder import events as sdr

CLIENT = b"\x07" * 32
FIELDS: dict[str, Any] = {
    "subject_id": "user:1",
    "principal_id": CLIENT,
    "event_type": "login",
    "event_time": 1_700_000_000,
    "origin": "gw-1",
    "payload": {"status": 401, "path": "/login"},
}


def event(body):
    return Event(
        stream_id=bytes(32), label=bytes(32), epoch=0, stream_seq=1, leaf_hash=bytes(32), client_id=CLIENT,
        auth_ref=None,
        hub_ts=5, ts=5, hdr=PayloadHdr(schema=sdr.EVENT.id), body=body,
    )  # fmt: skip


@pytest.mark.req("SDR-01")
def test_an_event_has_the_fields_of_the_recorder_in_their_order():
    draft = sdr.event(**FIELDS)
    assert draft.schema == sdr.EVENT.id
    tree = cbor.decode(draft.body)
    assert list(tree) == ["subject_id", "principal_id", "event_type", "event_time", "origin", "payload"]
    typed = sdr.read(event(draft.body))
    assert isinstance(typed, Typed)
    assert typed.body == sdr.RecorderEvent(**FIELDS)


@pytest.mark.parametrize("payload", [None, b"{}", "text", [1, {"a": None}], {"b": 1, "a": {"d": 1, "c": 2}}, -5, True])
def test_a_payload_is_free_form(payload):
    typed = sdr.read(event(sdr.event(**FIELDS | {"payload": payload}).body))
    assert isinstance(typed, Typed)
    assert typed.body.payload == payload


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"subject_id": ""}, "SDR.EMPTY"), ({"event_type": ""}, "SDR.EMPTY"), ({"origin": ""}, "SDR.EMPTY"),
        ({"event_time": sdr.MAX_TIME + 1}, "SDR.TIME"), ({"payload": {1: 2}}, "SDR.PAYLOAD"),
        ({"payload": [{"a": {b"k": 1}}]}, "SDR.PAYLOAD"),
    ],
)  # fmt: skip
def test_what_the_schema_does_not_allow_cannot_be_written_and_counts_for_nothing(changed, code):
    with pytest.raises(InvalidBody) as caught:
        sdr.event(**FIELDS | changed)
    assert caught.value.code == code
    typed = sdr.read(event(cbor.encode(FIELDS | changed)))
    assert isinstance(typed, Issue)
    assert typed.code == code


@pytest.mark.req("SDR-12")
def test_nobody_records_in_the_name_of_another_client():
    """SDR0 I3."""
    typed = sdr.read(event(sdr.event(**FIELDS | {"principal_id": bytes(32)}).body))
    assert isinstance(typed, Issue)
    assert typed.code == "SDR.PRINCIPAL"


@pytest.mark.parametrize("body", [b"", b"\xff", cbor.encode({}), cbor.encode(FIELDS | {"more": 1}), cbor.encode([1])])
def test_other_bodies_are_issues(body):
    assert isinstance(sdr.read(event(body)), Issue)
