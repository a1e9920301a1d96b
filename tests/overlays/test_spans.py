"""Sums over ranges that overlap (spec §11.1)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.overlays import crdt, kv
from veen.testing.events import FakeLog, label_of

SHARDS = [bytes([n]) * 32 for n in range(3)]


def make_log(count: int) -> FakeLog:
    log = FakeLog()
    for n in range(count):
        log.append(kv.put("x", n) if n % 5 == 4 else crdt.counter_add(SHARDS[n % 3], n))
    return log


@pytest.mark.req("OVL-04", "OVL-09", "CRDT-03")
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20)), min_size=1, max_size=8))
def test_overlapping_ranges_count_every_event_once(ranges):
    log, fold = make_log(60), crdt.CounterFold()
    merged = fold.combine(fold.summarize(log.events(label_of("main"), a, a + n)) for a, n in ranges)
    covered = {seq for a, n in ranges for seq in range(a, a + n + 1)}
    expected: Counter[bytes] = Counter()
    for event in log.all():
        if event.stream_seq in covered and event.hdr.schema == crdt.GCNT.id:
            expected[crdt.CounterDelta.from_bytes(event.body).shard] += event.stream_seq - 1
    assert {shard: n for shard, n in fold.view(merged).items() if n} == {s: n for s, n in expected.items() if n}


def test_a_contiguous_range_takes_few_spans_however_it_was_put_together():
    log, fold = make_log(1_000), crdt.CounterFold()
    events = log.all()
    straight = fold.summarize(events)
    evens, odds = fold.summarize(events[::2]), fold.summarize(events[1::2])
    merged = fold.merge(odds, evens)
    assert merged.state == straight.state
    (spans,) = straight.state.values()
    assert len(spans) <= 10
    assert fold.summarize(events[::-1]).state == straight.state


def test_counters_have_no_bound():
    log, fold = FakeLog(), crdt.CounterFold()
    log.extend(crdt.counter_add(SHARDS[0], 2**64 - 1) for _ in range(3))
    assert crdt.counter_value(fold.view(fold.summarize(log.all()))) == 3 * (2**64 - 1)
