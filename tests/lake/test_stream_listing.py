"""A stream looks at what is new: files that were read before cost it their names, and what is lost is noticed."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.lake.query_builders import STREAMS, Recorder
from tests.lake.table_builders import grow, made

from veen.core.limits import Limits
from veen.io.errors import LinkError
from veen.io.local import OsFs
from veen.lake.log.columns import ENTRIES
from veen.lake.log.entries import DirectorySource
from veen.lake.log.options import Options
from veen.lake.spark.source import DataLoss, EntryStream
from veen.storage.pinned import pin


@pytest.mark.parametrize("seed", range(3))
def test_a_pin_after_some_positions_is_the_end_of_a_whole_one(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "hub"
    world = made(path, 60, seed)
    world.store.retire()
    lost = rng.choice(sorted((path / "log").glob("chunk-*.log")))
    if seed:
        lost.unlink()
    whole = pin(str(path))
    for _ in range(20):
        after = {label: rng.randint(0, label_pin.size + 2) for label, label_pin in whole.labels.items()}
        rest = pin(str(path), after=after)
        assert rest.heads == whole.heads
        for label, label_pin in whole.labels.items():
            new = tuple(chunk for chunk in label_pin.chunks if chunk.end_seq > after[label] or chunk.kind == "active")
            assert rest.labels[label].chunks == new
            begin = rest.labels[label].left_out
            assert rest.labels[label].gaps == tuple(gap for gap in label_pin.gaps if gap[0] > begin)
            assert begin <= after[label]
    world.done()


def test_names_that_only_look_like_chunks_are_no_files_of_a_label(tmp_path):
    path = tmp_path / "hub"
    world = made(path, 30)
    world.store.retire()
    whole = pin(str(path))
    label = next(iter(whole.labels))
    for name in (
        "chunk-",
        f"chunk-{label.hex()}",
        f"chunk-{label.hex()}-1-2.log",
        f"heads-{label.hex()}-{'x' * 41}.log",
    ):
        (path / "log" / name).touch()
    assert pin(str(path)).labels == whole.labels
    assert pin(str(path), after=dict.fromkeys(whole.labels, 5)).heads == whole.heads
    world.done()


@dataclass(frozen=True)
class Watched(DirectorySource):
    """Counts looks, and the chunks that each has given."""

    looks: list[int] = field(default_factory=list)

    def pin(self, selection, after=None):
        pinned = super().pin(selection, after)
        self.looks.append(sum(len(label_pin.chunks) for label_pin in pinned.labels.values()))
        return pinned


def stream_of(path, **options):
    stream = EntryStream(Options.of({"path": str(path), **options}), ENTRIES)
    stream._source = Watched(str(path))
    return stream


def read(stream, at, limit):
    """The positions of one batch, and where it ends."""
    end = stream.latestOffset(at, limit)
    slices = [part for partition in stream.partitions(at, end) for part in partition.value[0]]
    return [(part.label, seq) for part in slices for seq in range(part.first, part.last + 1)], end


@pytest.mark.parametrize("limit", [None, 1, 7])
def test_a_growing_log_is_read_once_with_one_look_for_each_batch(tmp_path, limit):
    rng = random.Random(limit)
    world = Recorder(tmp_path, limits=Limits(max_checkpoint_interval=4))
    stream, positions, batches = stream_of(tmp_path), [], 0
    at: dict[str, Any] = {"heads": {}}
    for _ in range(6):
        grow(world, 8, rng)
        if rng.random() < 0.7:
            world.store.retire()
        while True:
            more, end = read(stream, at, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
            batches += 1
            if end == at:
                break
            positions += more
            at = end
            if rng.random() < 0.3:
                stream = stream_of(tmp_path)  # a restart: nothing is remembered but the offsets
                batches = 0
    assert len(stream._source.looks) <= batches
    world.store.retire()
    more, at = read(stream, at, ReadAllAvailable())
    positions += more
    whole = pin(str(tmp_path))
    assert sorted(positions) == sorted(
        (label, seq) for label, head in whole.heads.items() for seq in range(1, head + 1)
    )
    assert at["heads"] == {label.hex(): head for label, head in whole.heads.items()}
    read(stream, at, ReadAllAvailable())
    assert stream._source.looks[-1] <= len(whole.labels)  # at most the chunk that grows, of each label
    world.done()


def test_a_label_that_lost_its_end_is_noticed_although_its_files_were_read(tmp_path):
    world = Recorder(tmp_path, limits=Limits(max_checkpoint_interval=4))
    for _ in range(12):
        world.emit(STREAMS[0])
    world.store.retire()
    stream = stream_of(tmp_path)
    _, at = read(stream, {"heads": {}}, ReadAllAvailable())
    for file in sorted((tmp_path / "log").glob("*.log"))[-2:]:
        file.unlink()
    with pytest.raises(DataLoss, match="was read up to 12"):
        stream.latestOffset(at, ReadAllAvailable())
    relaxed = stream_of(tmp_path, failOnDataLoss="false")
    assert relaxed.latestOffset(at, ReadAllAvailable()) == at


def test_options_that_choose_positions_choose_the_same_after_a_look(tmp_path):
    world = Recorder(tmp_path, limits=Limits(max_checkpoint_interval=4))
    for _ in range(10):
        world.emit(STREAMS[0])
    world.store.retire()
    stream = stream_of(tmp_path, fromSeq="3", toSeq="6")
    positions, at = read(stream, {"heads": {}}, ReadMaxRows(5))
    while (more := read(stream, at, ReadMaxRows(5)))[1] != at:
        positions, at = positions + more[0], more[1]
    assert [seq for _, seq in positions] == [3, 4, 5, 6]
    world.done()


def test_sizes_of_many_files_come_from_one_listing_and_links_are_refused_as_ever(tmp_path):
    world = Recorder(tmp_path, limits=Limits(max_checkpoint_interval=1))
    for _ in range(70):
        world.emit(STREAMS[0])
    world.done()
    (label_pin,) = pin(str(tmp_path)).labels.values()
    assert len(label_pin.chunks) == 70
    assert [chunk.size for chunk in label_pin.chunks] == [
        (tmp_path / chunk.path).stat().st_size for chunk in label_pin.chunks
    ]
    assert OsFs(tmp_path).sizes("nowhere") == {}
    path = tmp_path / label_pin.chunks[3].path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError):
        pin(str(tmp_path))
