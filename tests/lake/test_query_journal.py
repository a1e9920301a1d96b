"""The newest entries of a running hub: those that only its journal has are part of an answer, and stay so."""

import pytest
from tests.lake.query_builders import KEYRING, STREAMS, Recorder, descriptor

from veen.lake.query import api
from veen.storage.pinned import pin


@pytest.fixture
def world(tmp_path):
    world = Recorder(tmp_path / "hub")
    yield world
    world.store.close()


def numbers(path, **changed):
    asked = descriptor(scope=[STREAMS[0]], projection=["payload.n", "receipt_id"], **changed)
    result = api.run(str(path), asked, keys=KEYRING, result_id="r-1", now=lambda: 1)
    return [row["payload.n"] for row in result.rows()], result


@pytest.mark.parametrize("mode", ["none", "full"])
def test_entries_of_the_journal_are_rows_and_verify_when_they_are_in_chunks(world, mode):
    for _ in range(4):  # three are a chunk
        world.emit()
    world.store.retire()
    world.emit()
    assert [chunk.kind for chunk in pin(str(world.path)).chunks()][-1] == "journal"
    rows, result = numbers(world.path, evidence={"mode": mode}, query_id="q-1")
    assert rows == list(range(5))
    world.store.retire()
    world.emit()
    assert api.verify(str(world.path), result, keys=KEYRING).ok
    assert numbers(world.path)[0] == list(range(6))


def test_a_stream_that_only_the_journal_knows_is_answered(world):
    world.emit()
    assert [chunk.kind for chunk in pin(str(world.path)).chunks()] == ["journal"]
    assert numbers(world.path)[0] == [0]
    assert numbers(world.path, filter={"time": {"from": "2100-01-01T00:00:00Z"}})[0] == []


def test_a_torn_write_at_the_end_of_the_journal_ends_the_pin_before_it(world):
    world.emit()
    world.emit()
    (segment,) = sorted((world.path / "journal").iterdir())[-1:]
    data = segment.read_bytes()
    for cut in (1, 40, 200):
        segment.write_bytes(data[:-cut])
        assert numbers(world.path)[0] == [0]
    segment.write_bytes(data)
    assert numbers(world.path)[0] == [0, 1]


def test_a_damaged_journal_adds_nothing_behind_the_damage(world):
    world.emit()
    world.emit()
    (segment,) = sorted((world.path / "journal").iterdir())[-1:]
    data = bytearray(segment.read_bytes())
    data[-10] ^= 1
    segment.write_bytes(data)
    assert numbers(world.path)[0] == [0]
    data[-10] ^= 1
    segment.write_bytes(data)


def test_entries_of_the_journal_follow_those_of_files(world):
    world.emit()
    world.store.retire()
    assert [chunk.kind for chunk in pin(str(world.path)).chunks()] == ["active"]
    world.emit()
    assert [chunk.kind for chunk in pin(str(world.path)).chunks()] == ["active", "journal"]
    assert "data" not in repr(list(pin(str(world.path)).chunks()))
