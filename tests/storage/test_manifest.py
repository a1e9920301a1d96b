"""The manifest tells what is missing without a look into any segment."""

import pytest
from tests.storage.builders import World
from tests.storage.test_scrub import filled, one_round

from veen.storage import layout
from veen.storage.index import Index
from veen.storage.maintenance.scrub import check_manifest
from veen.testing.memfs import MemFs


class Closed(MemFs):
    """A disk on which no segment can be opened."""

    shut = False

    def open(self, path, *, create=False):
        assert not (self.shut and layout.chunk_of(path.rpartition("/")[2])), path
        return super().open(path, create=create)


@pytest.fixture
def world():
    world = filled(Closed(), count=30)
    yield world
    world.fs.shut = False
    world.store.close()


def found(world):
    world.fs.shut = True
    return [finding.message.partition(": ")[2] for finding in check_manifest(Index(world.fs))]


@pytest.mark.req("STOR-19")
def test_a_complete_log_has_a_complete_manifest(world):
    assert found(world) == []
    assert found(World(Closed())) == []


@pytest.mark.req("STOR-19")
def test_a_missing_or_doubled_range_is_named_without_opening_a_segment(world):
    database = world.fs.database(layout.INDEX)
    rows = database.execute("SELECT * FROM chunks WHERE label_row = 1 ORDER BY start_seq").fetchall()
    assert len(rows) >= 3
    starts = [row[1] for row in rows]
    for number, start in enumerate(starts):
        database.execute("DELETE FROM chunks WHERE label_row = 1 AND start_seq = ?", (start,))
        assert found(world) == [f"entries {start} to {rows[number][2]} are in no chunk"]
        marks = ", ".join("?" * len(rows[number]))
        database.execute(f"INSERT INTO chunks VALUES ({marks})", rows[number])  # noqa: S608 - our own names
    database.execute("UPDATE chunks SET end_seq = end_seq + 1 WHERE label_row = 1 AND start_seq = ?", (starts[0],))
    assert found(world) == [f"entry {starts[1]} is in two chunks"]
    database.execute("DELETE FROM chunks")
    assert len(found(world)) == 2  # nothing is sealed, say the rows; the labels know better


@pytest.mark.req("STOR-19")
def test_the_manifest_is_read_by_its_key_alone(world):
    asked: list[str] = []
    database = world.fs.database(layout.INDEX)
    database.set_trace_callback(asked.append)
    assert found(world) == []
    database.set_trace_callback(None)
    (plan,) = [
        [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}")] for query in asked if "LEFT JOIN" in query
    ]
    assert any("COVERING INDEX chunks_by_epoch" in step for step in plan)


def test_a_round_of_the_scrubber_begins_with_it(world):
    world.fs.database(layout.INDEX).execute("DELETE FROM chunks WHERE label_row = 1 AND start_seq = 1")
    for budget in (100, 10**9):
        _, findings, _ = one_round(world.fs, budget)
        assert [(finding.path, finding.code) for finding in findings] == [(layout.INDEX, "gap")]
