"""The law of growth: twice the data costs at most about twice the work. What is counted are operations, never seconds.

Each row of `ROWS` is a reader: its name, what it reads at a size, and the work. Calls of functions are counted. A
reader that looks at all items for each item has a factor of four.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.hub import builders as w
from tests.lake.audit_builders import dump, log, run
from tests.products.policy.test_agent import FOLDS, NAMES, revoke, say
from tests.storage.builders import World
from tests.waiting import eventually
from veen.core.objects.control import LabelOpen
from veen.io.local import OsFs
from veen.lake.tables.manifest import DataFile
from veen.lake.tables.reading import _by_hour
from veen.overlays.framework import fold
from veen.overlays.framework import schema as decode
from veen.products.policy.agent import PolicyAgent
from veen.products.recorder.integrity import SequenceNumbers
from veen.storage.pinned import pin
from veen.testing.links import FakeHub
from veen.verify.audit.equivocation import compare
from veen.verify.directory import verify_data

FACTOR = 2.5


def policy_agent(size, monkeypatch):
    """Bodies that the policy agent decodes while it follows a stream and is asked for the policy after every record."""
    count = 0
    decode_once = decode.decode

    def counted(event, schema):
        nonlocal count
        count += 1
        return decode_once(event, schema)

    monkeypatch.setattr(fold, "decode", counted)

    async def scenario():
        source = FakeHub()
        await say(source, revoke(0))
        agent = PolicyAgent(FOLDS, NAMES, {}, clock=lambda: w.NOW)
        following = asyncio.create_task(agent.run(source.link("agent")))
        for number in range(1, size):
            await say(source, revoke(number))
            await asyncio.sleep(0)
            agent.policy()
        await eventually(lambda: len(agent.policy().revocations) == size)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(scenario())
    return count


class Row(NamedTuple):
    name: str
    build: Callable[[int, Path], Any]  # not counted
    operation: Callable[[Any], object]


def hub_directory(entries, path):
    """A directory at rest with two labels; a chunk has at most three entries, so files grow with entries."""
    return dump(log(entries).fs, path)


def hub_of_labels(labels, path):
    """A directory with one entry for each of many labels."""
    fs = OsFs(path)
    world = World(fs)
    for number in range(labels):
        label = number.to_bytes(32, "big")
        world.control(LabelOpen(label=label, epoch=0, stream_id=None))
    world.store.close()
    return path


class Time(int):
    """A time whose comparisons are calls that count."""

    def __le__(self, other):
        return int(self) <= int(other)

    def __ge__(self, other):
        return int(self) >= int(other)

    __hash__ = int.__hash__


def files_by_day(days, _path):
    """A file of a table for each day; the reader goes through hours."""
    return [
        DataFile(f"silver/{day}", 1, 1, "", "", Time(day * 86_400), Time(day * 86_400 + 86_399)) for day in range(days)
    ]


def numbers_with_gaps(count, _path):
    """The numbers of one writer, of which every second one is missing."""
    return range(2, 2 * count, 2)


def follow_numbers(numbers):
    sequence = SequenceNumbers(0)
    for number in numbers:
        sequence.add(number)


ROWS = [
    Row("tables, hours and files (L2-5)", files_by_day, lambda files: list(_by_hour(files))),
    Row("recorder, numbers with gaps (P2-19)", numbers_with_gaps, follow_numbers),
    Row("verify-data, files", hub_directory, lambda path: verify_data(OsFs(path), level="structure")),
    Row("audit, files", hub_directory, lambda path: run(path, level="structure")),
    Row("audit diff, files", hub_directory, lambda path: compare(str(path), str(path))),
    Row("pin, files", hub_directory, lambda path: pin(str(path))),
    Row("verify-data, labels", hub_of_labels, lambda path: verify_data(OsFs(path), level="structure")),
    Row("audit, labels", hub_of_labels, lambda path: run(path, level="structure")),
    Row("pin, labels", hub_of_labels, lambda path: pin(str(path))),
]


def calls_of(work):
    """The number of functions, in Python and in C, that some work calls."""
    count = 0

    def counted(_frame, event, _function):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_reader_of_twice_as_much_does_about_twice_the_work(row, tmp_path):
    counts: list[int] = []
    for size in (60, 60, 120):  # the first time, imports and caches are counted as well
        path = tmp_path / str(len(counts))
        path.mkdir()
        source = row.build(size, path)
        counts.append(calls_of(lambda source=source: row.operation(source)))
    _, small, large = counts
    assert small < large <= FACTOR * small, f"{small} calls, then {large}"


def test_the_law_finds_work_that_looks_at_all_items_for_each_item():
    items = range(60), range(120)
    small, large = (calls_of(lambda part=part: [abs(item) for item in part for _ in part]) for part in items)
    assert large > FACTOR * small


def test_the_policy_agent_decodes_each_record_once(monkeypatch):
    """It follows two tasks at a time, so the records are counted, not the calls."""
    with monkeypatch.context() as patched:
        small = policy_agent(40, patched)
    with monkeypatch.context() as patched:
        large = policy_agent(80, patched)
    assert 0 < large <= FACTOR * small, f"{small} operations, then {large}"
