"""How a log is divided into tasks."""

from hypothesis import given
from hypothesis import strategies as st

from veen.log.slices import Slice, pack
from veen.storage.pinned import ChunkRef


def part(number, size):
    ref = ChunkRef(
        label=bytes(32), epoch=0, stream_id=None, start_seq=number, end_seq=number, path="", kind="sealed", size=size
    )
    return Slice.whole(ref)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200))
def test_tasks_hold_every_slice_in_order_and_are_of_similar_size(sizes, most):
    slices = [part(number, size) for number, size in enumerate(sizes, start=1)]
    tasks = pack(slices, most)
    assert [each for task in tasks for each in task] == slices
    assert all(tasks)
    count = max(1, -(-sum(sizes) // most))
    assert len(tasks) <= count
    largest = max(sizes, default=0)
    for task in tasks:
        assert sum(each.size for each in task) <= sum(sizes) / count + largest
