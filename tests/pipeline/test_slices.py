"""How a log is divided into tasks."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.log import slices
from veen.log.slices import Selection, Slice, pack
from veen.storage.pinned import ChunkRef, LabelPin
from veen.testing.memfs import MemFs


def part(number, size):
    ref = ChunkRef(
        label=bytes(32), epoch=0, stream_id=None, start_seq=number, end_seq=number, path="", kind="sealed", size=size
    )
    return Slice.whole(ref)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200))
def test_tasks_hold_every_slice_in_order_and_are_of_similar_size(sizes, most):
    parts = [part(number, size) for number, size in enumerate(sizes, start=1)]
    tasks = pack(parts, most)
    assert [each for task in tasks for each in task] == parts
    assert all(tasks)
    count = max(1, -(-sum(sizes) // most))
    assert len(tasks) <= count
    largest = max(sizes, default=0)
    for task in tasks:
        assert sum(each.size for each in task) <= sum(sizes) / count + largest


# --- by time --------------------------------------------------------------------------------------------------------


def timed(monkeypatch, begins, **selected):
    """The numbers of the chunks that a selection by time leaves, and how many were asked for their first time."""
    chunks = tuple(part(number, 1).chunk for number in range(1, len(begins) + 1))
    asked = []

    def first_ts(_, chunk):
        asked.append(chunk.start_seq)
        return begins[chunk.start_seq - 1]

    monkeypatch.setattr(slices, "first_ts", first_ts)
    label_pin = LabelPin(label=bytes(32), epoch=0, stream_id=None, chunks=chunks)
    left = [each.first for each in slices.label_slices(MemFs(), label_pin, Selection(**selected))]
    return left, asked


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40),
    st.none() | st.integers(0, 90),
    st.none() | st.integers(0, 90),
)
def test_a_time_leaves_every_chunk_that_may_have_it_and_few_others(steps, first, last):
    """The last chunk, and those that cannot tell when they begin, may have any later time."""
    times = list(accumulate(step for step, _ in steps))
    begins = [time if tells else None for time, (_, tells) in zip(times, steps, strict=True)]
    with pytest.MonkeyPatch.context() as patched:
        left, _ = timed(patched, begins, first_ts=first, last_ts=last)
    assert left == list(range(left[0], left[-1] + 1)) if left else True
    for number, begin in enumerate(times, start=1):
        end = times[number] if number < len(times) else 10**6
        if (last is None or begin <= last) and (first is None or end >= first):
            assert number in left
    for number in left:  # neither ends before the time nor begins after it, by what the chunks tell
        if begins[number - 1] is not None and last is not None:
            assert begins[number - 1] <= last
        if begins[number - 1] is not None and first is not None and number < len(begins) and begins[number] is not None:
            assert begins[number] >= first


def test_a_time_is_found_by_bisection(monkeypatch):
    begins = [10 * number for number in range(10_000)]
    left, asked = timed(monkeypatch, begins, first_ts=50_000, last_ts=50_009)
    assert left == [5000, 5001]
    assert len(set(asked)) <= 32
