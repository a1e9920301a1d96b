"""Aggregates are exact, and do not depend on how the log was cut (QRY-10, D-120)."""

import random
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import canonical
from veen.core.event import Event
from veen.core.objects.payload_hdr import PayloadHdr
from veen.lake.query.aggregate import AVG_DIGITS, GroupReceipts, Partial, group_key, row_of, total_ignored
from veen.lake.query.descriptor import Aggregate, Metric
from veen.lake.query.fields import FieldPath, RecordedEvent, payload_of
from veen.overlays.recorder.events import EVENT, RecorderEvent


def record(payload, number=1, hub_ts=0):
    body = RecorderEvent(
        subject_id="s", principal_id=bytes(32), event_type="t", event_time=number, origin="o", payload=payload
    )
    event = Event(
        stream_id=bytes(32), label=bytes(32), epoch=0, stream_seq=number, leaf_hash=bytes(32), client_id=bytes(32),
        auth_ref=None, hub_ts=hub_ts, ts=0, hdr=PayloadHdr(schema=EVENT.id), body=b"",
    )  # fmt: skip
    return RecordedEvent(stream="x", event=event, body=body)


def with_value(value):
    """A record whose payload.v is any JSON value: decimals travel as JSON."""
    return record(canonical.encode({"v": value}))


METRICS = tuple(
    Metric.of(text) for text in ("avg(payload.v)", "count", "max(payload.v)", "min(payload.v)", "sum(payload.v)")
)
AGGREGATE = Aggregate(group_by=(), metrics=METRICS)

numbers: st.SearchStrategy[Any] = st.integers(-(10**25), 10**25) | st.decimals(
    allow_nan=False, allow_infinity=False, places=15, min_value=-(10**12), max_value=10**12
).map(canonical.exact)
anything: st.SearchStrategy[Any] = (
    numbers | st.none() | st.booleans() | st.text("abé", max_size=3) | st.just([]) | st.just({"a": 1})
)


def folded(values):
    partial = Partial.empty(AGGREGATE)
    for value in values:
        partial.add(AGGREGATE, with_value(value))
    return partial


def shown(partial):
    return row_of(AGGREGATE, b"[]", partial, None)


@pytest.mark.req("QRY-10")
@given(st.lists(anything, max_size=30), st.randoms())
def test_any_cut_and_any_order_of_parts_gives_the_same_row(values, rng):
    whole = folded(values)
    parts, rest = [], list(values)
    while rest:
        size = rng.randint(1, len(rest))
        parts.append(Partial.from_bytes(folded(rest[:size]).to_bytes()))
        del rest[:size]
    rng.shuffle(parts)
    merged = Partial.empty(AGGREGATE)
    for part in parts:
        merged.absorb(AGGREGATE, part)
    assert shown(merged) == shown(whole)
    assert merged.count_ignored(AGGREGATE) == whole.count_ignored(AGGREGATE)
    assert canonical.encode(shown(merged)) == canonical.encode(shown(whole))


@pytest.mark.req("QRY-10")
@given(st.lists(numbers, min_size=1, max_size=20))
def test_sums_and_averages_are_those_of_fractions(values):
    row = shown(folded(values))
    total = sum(map(Fraction, values), Fraction())
    assert Fraction(row["sum(payload.v)"]) == total
    assert row["count"] == len(values)
    assert row["min(payload.v)"] == min(values)
    assert row["max(payload.v)"] == max(values)
    mean, off = total / len(values), Fraction(1, 2 * 10**AVG_DIGITS)
    assert abs(Fraction(row["avg(payload.v)"]) - mean) <= off
    if (mean * 10**AVG_DIGITS).denominator == 1:
        assert Fraction(row["avg(payload.v)"]) == mean


@pytest.mark.parametrize(
    ("values", "avg"),
    [
        ([1, 2], "1.5"), ([1, 1, 2], "1.333333333333333333"), ([2, 2, 1], "1.666666666666666667"),
        ([-1, -1, -2], "-1.333333333333333333"),
        ([Decimal("0.000000000000000001"), 0], "0"), ([Decimal("0.000000000000000003"), 0], "0.000000000000000002"),
        ([1, -1], "0"), ([10**30, 1], "500000000000000000000000000000.5"),
    ],
)  # fmt: skip
def test_an_average_without_a_finite_form_is_rounded_half_to_even(values, avg):
    assert canonical.encode(shown(folded(values))["avg(payload.v)"]) == avg.encode()


def test_the_context_of_the_caller_does_not_matter():
    values = [Decimal("12345678901234567890.123456789"), 1, Decimal("0.000000001")]
    expected = shown(folded(values))
    with localcontext() as context:
        context.prec = 3
        assert shown(folded(values)) == expected


def test_null_and_missing_do_not_count_and_what_cannot_be_taken_is_told():
    partial = folded([1, None, "text", True, [1], {"a": 1}, Decimal("0.5")])
    partial.add(AGGREGATE, record({}))
    row = shown(partial)
    assert row["count"] == 8
    assert (row["sum(payload.v)"], row["avg(payload.v)"]) == (Decimal("1.5"), Decimal("0.75"))
    assert (row["min(payload.v)"], row["max(payload.v)"]) == (True, "text")
    assert partial.count_ignored(AGGREGATE) == {
        "sum(payload.v)": 4, "avg(payload.v)": 4, "min(payload.v)": 2, "max(payload.v)": 2,
    }  # fmt: skip
    assert total_ignored(AGGREGATE, {b"a": partial, b"b": partial})["sum(payload.v)"] == 8


def test_a_group_of_nothing_counts_zero_and_knows_no_more():
    assert shown(Partial.empty(AGGREGATE)) == {
        "count": 0, "sum(payload.v)": None, "avg(payload.v)": None, "min(payload.v)": None, "max(payload.v)": None,
    }  # fmt: skip


def test_no_writer_can_make_a_sum_that_cannot_be_written():
    """Payloads hold numbers of at most 100 digits; larger ones are bytes like any others."""
    largest = 10**100 - 1
    partial = folded([largest] * 20)
    assert shown(partial)["sum(payload.v)"] == 20 * largest
    partial.cells[4].value *= 2**64
    assert canonical.encode(shown(Partial.from_bytes(partial.to_bytes())))
    assert payload_of(canonical.encode({"v": largest + 1})) == canonical.encode({"v": largest + 1}).hex()


def test_no_writer_can_make_a_row_that_is_nested_too_deep():
    deep = payload_of(b"[" * 64 + b"]" * 64)
    assert isinstance(deep, list)
    assert canonical.encode({"payload": deep})
    assert payload_of(b"[" * 65 + b"]" * 65) == (b"[" * 65 + b"]" * 65).hex()


@pytest.mark.req("QRY-10")
def test_times_have_a_least_and_a_greatest():
    aggregate = Aggregate(group_by=(), metrics=(Metric.of("max(event_time)"), Metric.of("min(event_time)")))
    partial = Partial.empty(aggregate)
    for number in (86_400, 5, 99):
        partial.add(aggregate, record(None, number))
    row = row_of(aggregate, b"[]", partial, None)
    assert row == {"max(event_time)": "1970-01-02T00:00:00Z", "min(event_time)": "1970-01-01T00:00:05Z"}


def test_group_keys_are_canonical_and_receipts_follow_the_order():
    fields = (FieldPath.of("origin"), FieldPath.of("payload.v"))
    assert group_key(fields, with_value({"b": 1, "a": Decimal("1.0")})) == b'["o",{"a":1,"b":1}]'
    assert group_key(fields, record(None)) == b'["o",null]'
    left, other = GroupReceipts(), GroupReceipts()
    for leaf in (b"a" * 32, b"b" * 32):
        left.add(b"k", leaf)
    for leaf in (b"b" * 32, b"a" * 32):
        other.add(b"k", leaf)
    assert left.receipt_id(b"k") != other.receipt_id(b"k")
    assert len(left.receipt_id(b"k")) == len("rcpt-") + 64
    assert left.receipt_id(b"none") == GroupReceipts().receipt_id(b"none")


@pytest.mark.req("QRY-08")
def test_paths_lead_into_maps_and_lists_and_end_in_null():
    event = record({"a": {"b": [{"c": 7}, 8]}, "raw": b"\xff", "json": b'{"x":1}'})
    values = {
        "payload.a.b.0.c": 7, "payload.a.b.1": 8, "payload.a.b.2": None, "payload.a.b.-1": None, "payload.a.b.c": None,
        "payload.a.x.y": None, "payload.raw": "ff", "payload.raw.0": None, "payload.json.x": 1,
        "payload.a.b.\u0660": None,
        "subject_id": "s", "principal_id": "00" * 32, "event_time": "1970-01-01T00:00:01Z",
    }  # fmt: skip
    assert {name: FieldPath.of(name).value(event) for name in values} == values


def test_a_payload_of_bytes_is_json_only_if_it_is_canonical():
    assert payload_of(b'{"a":1}') == {"a": 1}
    assert payload_of(b'{"a": 1}') == b'{"a": 1}'.hex()
    assert payload_of(b"12") == "3132"
    assert payload_of(b"[0.5]") == [Decimal("0.5")]
    assert payload_of([b"\x00", None, True]) == ["00", None, True]


def test_a_time_of_the_hub_that_no_calendar_has_is_a_number():
    assert FieldPath.of("hub_commit_time").value(record(None, hub_ts=2**62)) == 2**62


def test_shuffled_groups_merge_alike():
    rng = random.Random(5)
    values = [rng.randrange(100) for _ in range(50)]
    assert shown(folded(values)) == shown(folded(sorted(values)))
