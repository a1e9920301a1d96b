"""How a log is cut into tasks."""

from hypothesis import given
from hypothesis import strategies as st

from veen.pipeline.inventory import ChunkRef
from veen.pipeline.plan import Piece, pack


def piece(number, size):
    ref = ChunkRef(
        label=bytes(32), epoch=0, stream_id=None, start_seq=number, end_seq=number, path="", kind="sealed", size=size
    )
    return Piece(ref, number, number)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 200))
def test_tasks_hold_every_piece_in_order_and_are_of_like_size(sizes, most):
    pieces = [piece(number, size) for number, size in enumerate(sizes, start=1)]
    tasks = pack(pieces, most)
    assert [one for task in tasks for one in task] == pieces
    assert all(tasks)
    count = max(1, -(-sum(sizes) // most))
    assert len(tasks) <= count
    largest = max(sizes, default=0)
    for task in tasks:
        assert sum(one.size for one in task) <= sum(sizes) / count + largest
