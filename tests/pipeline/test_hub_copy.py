"""Copies of a running hub: the entries of its directory, fetched once, whatever the hub makes up."""

import pytest
from tests.pipeline.hub_builders import ORDERS, hub_with_entries, write
from tests.pipeline.test_remote import LIES, listening, place_of

from veen.core.errors import VeenError
from veen.fs.local import OsFs
from veen.log import hub_copy
from veen.log.columns import ENTRIES
from veen.log.entries import ReadSpec
from veen.log.hub_copy import fetch
from veen.log.hub_link import HubDiverged, HubFailed
from veen.log.slices import Selection
from veen.log.sources import DirectorySource
from veen.storage.pinned import pin

FILES = ("path", "frame_offset", "stream_id", "epoch")  # where an entry lies; whose it is, its label proves


def rows_of(directory, labels=None):
    source = DirectorySource(str(directory))
    pinned = source.pin(Selection(labels=labels))
    slices = list(source.slices(pinned, Selection(labels=labels)))
    batches = source.read(slices, ReadSpec(columns=ENTRIES, level="full", identity=pinned.identity))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if name not in FILES} for row in rows]


def address_of(hub):
    options = place_of(hub.url, hubKey=hub.about["hub_pk"])[1]
    assert options.hub is not None
    return options.hub


def test_a_copy_has_the_entries_of_the_directory_and_grows(tmp_path):
    with hub_with_entries(tmp_path, 25) as hub:
        address = address_of(hub)
        copy = fetch(address, tmp_path / "copies")
        chunks = sorted(OsFs(tmp_path / "copies" / copy.rpartition("/")[2]).list("log"))
        assert sum(pin(copy).heads.values()) == 25
        assert fetch(address, tmp_path / "copies") == copy
        assert sorted(OsFs(tmp_path / "copies" / copy.rpartition("/")[2]).list("log")) == chunks  # nothing new
        write(hub, tmp_path / "home", 6, name="bob")
        fetch(address, tmp_path / "copies")
        assert sum(pin(copy).heads.values()) == 31
        assert set(chunks) < set(OsFs(tmp_path / "copies" / copy.rpartition("/")[2]).list("log"))
        orders = fetch(address, tmp_path / "orders", streams=[ORDERS.stream_id])
        assert len(pin(orders).labels) == 1
        assert rows_of(orders) == rows_of(copy, frozenset(pin(orders).labels))
        hub.stop()
        assert rows_of(copy) == rows_of(hub.data_dir)
        assert pin(copy).identity == pin(str(hub.data_dir)).identity


@pytest.mark.parametrize("name", LIES)
def test_what_a_hub_makes_up_is_missing_or_fails_its_checks(tmp_path, name):
    lie, bad, _ = LIES[name]

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        wire.lies.append(lie)
        try:
            copy = fetch(address, tmp_path / "copies")
        except VeenError as exc:  # a lie that shows in the greeting already
            return str(exc), None
        return copy, rows_of(copy)

    copy, rows = listening(tmp_path, work)
    if rows is None:
        assert copy
        return
    assert {row["stream_seq"] for row in rows if row["ok"]} == set(range(1, 8)) - bad


def test_an_entry_that_was_withheld_is_asked_for_again_if_nothing_came_behind_it(tmp_path):
    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        wire.lies.append(LIES["truncates"][0])
        copy = fetch(address, tmp_path / "copies")
        before = sum(pin(copy).heads.values())
        wire.lies.clear()
        fetch(address, tmp_path / "copies")
        return before, sum(pin(copy).heads.values())

    assert listening(tmp_path, work) == (4, 7)


def test_a_hub_that_claims_entries_and_gives_none_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_copy, "_MAX_WITHHELD", 5)

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        wire.lies.append(LIES["talks nonsense"][0])
        with pytest.raises(HubFailed, match="gives none of 7 in a row"):
            fetch(address, tmp_path / "copies")

    listening(tmp_path, work)


def test_another_hub_than_the_pinned_one_is_not_copied(tmp_path):
    def work(url, key, wire):
        address = place_of(url, hubKey=f"ed25519:{'11' * 32}")[1].hub
        with pytest.raises((HubDiverged, HubFailed)):
            fetch(address, tmp_path / "copies")

    listening(tmp_path, work)
    assert not (tmp_path / "copies").exists()


def test_two_processes_do_not_write_one_copy(tmp_path):
    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        copy = fetch(address, tmp_path / "copies")
        with OsFs(tmp_path / "copies" / copy.rpartition("/")[2]).lock(), pytest.raises(VeenError, match=r"lock|use"):
            fetch(address, tmp_path / "copies")

    listening(tmp_path, work)
