"""Shaping records: nothing that a source says is dropped for its form."""

import base64
import hashlib
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cbor
from veen.lake.query.fields import payload_of
from veen.overlays.recorder import events as sdr
from veen.products.recorder.emitting import line_records
from veen.products.recorder.events import (
    Selectors,
    SourceRecord,
    draft_of,
    fit_record,
    json_line,
    seconds_of,
    to_bytes,
    value_at,
)

CLIENT = b"\x07" * 32


def record(**fields):
    options: dict[str, Any] = {
        "subject": "alice",
        "event_type": "login",
        "origin": "web",
        "time": 5,
        "payload": {},
        "position": "1",
    }
    return SourceRecord(**options | fields)


def event_of(found):
    return sdr.RecorderEvent.from_bytes(draft_of(to_bytes(found), CLIENT).body)


@pytest.mark.req("SDR-01")
def test_a_record_becomes_an_event_whose_payload_says_where_it_comes_from():
    shaped_record = fit_record(record(payload={"a": 1.5}, source_time="12:00:01.5"), adapter="file", source="app")
    event = event_of(shaped_record)
    assert (event.subject_id, event.event_type, event.origin, event.event_time) == ("alice", "login", "web", 5)
    assert event.principal_id == CLIENT
    payload = payload_of(event.payload)
    assert payload == {
        "a": Decimal("1.5"), "_src": {"adapter": "file", "id": "app", "pos": "1", "time": "12:00:01.5"},
    }  # fmt: skip


def test_bytes_that_are_not_utf_8_are_kept_byte_true():
    data = b"caf\xe9 \x1b[2J"
    payload = payload_of(event_of(fit_record(record(payload=json_line(data)), adapter="file", source="s")).payload)
    assert base64.b64decode(payload["message"]["base64"]) == data


def test_a_payload_above_the_bound_is_recorded_by_its_beginning_size_and_hash():
    line = b"x" * 1_000_000
    payload = payload_of(event_of(fit_record(record(payload=json_line(line)), adapter="f", source="s")).payload)
    cut = payload["_cut"]
    whole = b'{"message":"' + line + b'"}'
    assert cut["code"] == "SDR.OVERSIZE"
    assert (cut["bytes"], cut["sha256"]) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert cut["head"].startswith('{"message":"xxx')


def test_nesting_that_no_query_reads_is_recorded_as_cut():
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    payload = payload_of(event_of(fit_record(record(payload=deep), adapter="f", source="s")).payload)
    assert payload["_cut"]["code"] == "SDR.PAYLOAD"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.text(), st.text(), st.text(), st.integers())
def test_whatever_a_source_says_gives_an_event(payload, subject, kind, origin, when):
    shaped_record = fit_record(
        record(payload=payload, subject=subject, event_type=kind, origin=origin, time=when), adapter="f", source="s"
    )
    event = event_of(shaped_record)
    assert event.subject_id
    assert event.event_type
    assert event.origin
    assert payload_of(event.payload)["_src"]["id"] == "s"
    assert len(cbor.encode(event.to_tree())) < 1_000_000


@given(st.binary())
def test_any_line_gives_a_record(line):
    for line_record in line_records([line], Selectors(), origin="host", now=7):
        event_of(fit_record(line_record, adapter="f", source="s"))


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2026-11-16T10:00:00Z", 1_794_823_200), ("2026-11-16T10:00:00.999+00:00", 1_794_823_200),
        (1_794_823_200, 1_794_823_200), (1_794_823_200_123, 1_794_823_200), ("1794823200123456", 1_794_823_200),
        (1_794_823_200_123_456_789, 1_794_823_200), (1_794_823_200.9, 1_794_823_200), ("yesterday", None),
        ("9" * 60, None), (True, None), (-5, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_times_are_read_in_the_forms_that_sources_use(stamp, seconds):
    moment = seconds_of(stamp)
    assert (moment and moment[0]) == seconds


def test_fields_are_taken_by_paths_with_a_word_where_there_is_nothing():
    value = {"user": {"name": "alice"}, "event.name": "login"}
    assert value_at(value, ".user.name") == "alice"
    assert value_at(value, ".event.name") == "login"
    picks = Selectors(subject=".user.name|nobody", event_type=".kind|.event.name|log")
    assert picks.pick(picks.subject, value, "") == "alice"
    assert picks.pick(picks.event_type, value, "") == "login"
    assert picks.pick(".user|x", {"user": {"a": 1}}, "") == "x"
