"""How a log is divided into tasks."""

import pickle
import random
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.receipt import Receipt
from veen.lake.log import slices
from veen.lake.log.slices import Selection, Slice, pack
from veen.storage import frame, layout
from veen.storage.pinned import ChunkRef, LabelPin, first_ts
from veen.testing.memfs import MemFs

KEY = SigningKey(b"\x01" * 32)


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

    def begin_of(_, chunk):
        asked.append(chunk.start_seq)
        return begins[chunk.start_seq - 1]

    monkeypatch.setattr(slices, "first_ts", begin_of)
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


# --- on the way to tasks ----------------------------------------------------------------------------------------------


def test_a_chunk_travels_whole_and_without_a_name_that_follows_from_the_rest():
    label = b"\x07" * 32
    sealed = replace(part(1, 5).chunk, label=label, path=layout.chunk(label, 1, 1))
    for chunk in (
        sealed,
        replace(sealed, path="log/elsewhere"),
        replace(sealed, kind="missing", path=""),
        replace(sealed, kind="active", path=layout.active(label, 1)),
        replace(sealed, kind="journal", path="journal", data=b"frames"),
    ):
        assert pickle.loads(pickle.dumps(chunk)) == chunk  # noqa: S301 - as Spark does to tasks
    many = [
        replace(sealed, start_seq=n, end_seq=n + 1023, path=layout.chunk(label, n, n + 1023))
        for n in range(1, 1 << 20, 1024)
    ]
    assert len(pickle.dumps(many)) / len(many) < 64


def test_slices_that_a_task_takes_whole_are_not_copied():
    parts = [part(number, 1) for number in range(1, 101)]
    assert [id(each) for task in slices.divide(parts, 10) for each in task] == [id(each) for each in parts]


@pytest.mark.slow
def test_the_benchmark_of_the_planner_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "planner.py"
    done = subprocess.run([sys.executable, script, "2000"], capture_output=True, text=True, check=True)
    assert "| 2000 |" in done.stdout


@given(st.integers(0, 5000), st.integers(1, 9), st.booleans())
def test_a_compressed_chunk_tells_its_first_time_as_a_plain_one_does(size, level, is_cut):
    label, rng = b"\x07" * 32, random.Random(size)
    frames = b""
    for seq in (1, 2):
        receipt = Receipt.issue(
            KEY, label=label, stream_seq=seq, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=1_700_000_000 + seq
        )
        frames += frame.encode(label, seq, rng.randbytes(size), receipt.to_bytes()).to_bytes()
    packed = zlib.compress(frames, level)
    fs = MemFs()
    fs.make_dir("log")
    fs.replace("log/plain", frames)
    fs.replace("log/packed", packed[: len(packed) // 3] if is_cut and size > 3000 else packed)
    fs.replace("log/nonsense", b"\x78\x9c" + rng.randbytes(40))
    ref = replace(part(1, 5).chunk, label=label, end_seq=2)
    assert first_ts(fs, replace(ref, path="log/plain")) == 1_700_000_001
    expected = None if is_cut and size > 3000 else 1_700_000_001
    assert first_ts(fs, replace(ref, path="log/packed")) == expected
    assert first_ts(fs, replace(ref, path="log/nonsense")) is None
