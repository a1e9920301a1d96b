"""Growing files and what is kept of them in memory."""

from dataclasses import replace

import pytest

from veen.core.limits import DEFAULT_LIMITS
from veen.core.tree.mmr import Mmr
from veen.storage import layout
from veen.storage.label_files import HASH_BYTES, AppendFile, FileCache, LabelFiles, PieceCache
from veen.testing.memfs import MemFs

LABEL = bytes(32)


def test_file_and_tail_read_as_one():
    cache = FileCache(MemFs())
    file = AppendFile(cache, "file", 0)
    data = bytes(range(256)) * 300
    for start in range(0, len(data), 1000):
        file.append(data[start : start + 1000])
    assert file.size == len(data)
    assert file.read(0, len(data)) == data
    for offset in (0, 1, 65_535, 65_536, 66_000, len(data) - 1):
        assert file.read(offset, 10) == data[offset : offset + 10]


def test_the_least_recently_used_file_is_closed_first():
    fs = MemFs({name: name.encode() for name in "abc"})
    cache = FileCache(fs, capacity=2)
    first = cache.get("a")
    cache.get("b")
    assert cache.get("a") is first
    cache.get("c")
    assert cache.get("a") is first


@pytest.mark.req("GEN-26")
def test_what_is_kept_is_bounded():
    pieces = PieceCache(capacity=100)
    for number in range(1000):
        name = "abc"[number % 3]
        pieces.put(name, number, b"%d" % number)
        assert pieces.get((name, number)) == b"%d" % number
    present = [number for number in range(1000) for name in "abc" if pieces.get((name, number)) is not None]
    assert 0 < len(present) <= 100


@pytest.mark.req("GEN-26")
def test_high_nodes_are_read_once_and_are_the_same():
    """Nodes never change, so one that was read need not be read again."""
    mmr, nodes = Mmr(), []
    for number in range(3000):
        nodes += mmr.append(number.to_bytes(32, "big"))
    fs = MemFs({layout.nodes(LABEL): b"".join(nodes)})
    row = LabelFiles.first_row(1, LABEL, 0, None, DEFAULT_LIMITS)
    row = replace(row, size=3000, active_start=3001, peaks=b"".join(mmr.peaks()))
    files = LabelFiles(fs, FileCache(fs), row, {})
    wanted = [(height, index) for height in range(12) for index in range(3000 >> height)]
    first = [files.node_at(*node) for node in wanted]
    assert set(first) == set(nodes)
    file = fs.open(layout.nodes(LABEL))
    file.write_at(0, bytes(len(nodes) * HASH_BYTES))
    again = [files.node_at(*node) for node in wanted]
    assert [(height, a == b) for (height, _), a, b in zip(wanted, first, again, strict=True) if height >= 10] == [
        (10, True),
        (10, True),
        (11, True),
    ]


@pytest.mark.parametrize("offset", [3, 10])
def test_reading_behind_the_end_gives_what_there_is(offset):
    file = AppendFile(FileCache(MemFs()), "file", 0)
    file.append(b"abcde")
    assert file.read(offset, 10) == b"abcde"[offset:]
