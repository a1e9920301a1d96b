"""Copies of a running hub: the entries of its directory, fetched once, whatever the hub makes up."""

from pathlib import Path

import pytest
from tests.lake.hub_builders import ORDERS, hub_with_entries, write
from tests.lake.test_remote import LIES, listening, place_of

from veen.client.transport.calls import Answer
from veen.core.errors import VeenError
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest
from veen.core.verdict import Outcome, StatedBy
from veen.io.local import OsFs
from veen.lake.log import hub_copy
from veen.lake.log.columns import ENTRIES
from veen.lake.log.entries import DirectorySource, ReadSpec
from veen.lake.log.hub_copy import CopyIncomplete, check_copy, fetch
from veen.lake.log.remote import HubDiverged, HubFailed
from veen.lake.log.slices import Selection
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


@pytest.mark.parametrize("name", [name for name in LIES if name != "erased"])
def test_a_bad_answer_is_refused_and_the_copy_is_whole_when_the_hub_answers_rightly(tmp_path, name):
    """What the hub did not give once was missing in the copy for good."""
    lie, bad, _ = LIES[name]

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        wire.lies.append(lie)
        with pytest.raises(VeenError):
            fetch(address, tmp_path / "copies")
        copies = list((tmp_path / "copies").iterdir()) if (tmp_path / "copies").exists() else []
        before = [row for copy in copies for row in rows_of(copy)]
        wire.lies.clear()
        copy = fetch(address, tmp_path / "copies")
        assert check_copy(address, tmp_path / "copies").verdict.is_good
        return before, rows_of(copy)

    before, rows = listening(tmp_path, work)
    assert all(row["ok"] for row in before)  # nothing that the hub did not sign was kept
    assert [row["stream_seq"] for row in before] == list(range(1, min(bad)))[: len(before)]
    assert [row["stream_seq"] for row in rows] == list(range(1, 8))
    assert all(row["ok"] for row in rows)


def test_one_bad_answer_is_asked_for_again(tmp_path):
    """One bad answer, and the entry is missing."""

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        lies: list[bytes] = []

        def once(operation, body, answer):
            if operation != "v1/stream" or lies:
                return answer
            lies.append(body)
            return LIES["drops"][0](operation, body, answer)

        wire.lies.append(once)
        copy = fetch(address, tmp_path / "copies")
        return lies, rows_of(copy)

    lies, rows = listening(tmp_path, work)
    assert len(lies) == 1
    assert [row["ok"] for row in rows] == [True] * 7


def test_what_the_hub_has_erased_is_left_out_and_written_down_as_such(tmp_path):
    """It is asked for once: a pruned beginning is a state to start from."""

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        asked = []

        def counting(operation, body, answer):
            if operation == "v1/stream" and StreamRequest.from_bytes(body).from_seq in (2, 3):
                asked.append(body)
            return LIES["erased"][0](operation, body, answer)

        wire.lies.append(counting)
        copy = fetch(address, tmp_path / "copies")
        first = len(asked)
        fetch(address, tmp_path / "copies")
        return copy, first, len(asked) - first, check_copy(address, tmp_path / "copies")

    copy, first, again, check = listening(tmp_path, work)
    (label_pin,) = pin(copy).labels.values()
    assert (label_pin.gaps, label_pin.erased, label_pin.holes) == (((1, 3),), ((1, 3),), ())
    assert (label_pin.first_payload, label_pin.read_upto) == (4, 7)
    assert first > again == 0
    assert check.verdict.is_good
    assert {row.stated_by for row in check.verdict.compared} == {StatedBy.HUB}


def test_holes_and_damage_in_a_copy_of_an_earlier_version_are_found_and_repaired(tmp_path, monkeypatch):
    """A command finds what is missing, and asks the hub for it."""
    monkeypatch.setattr(hub_copy, "_CHUNK_BYTES", 1)  # a file for each entry

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub
        copy = fetch(address, tmp_path / "copies")
        files = sorted(Path(copy, "log").iterdir())
        assert len(files) == 7
        files[2].unlink()
        files[4].write_bytes(files[4].read_bytes()[:-1] + b"\0")
        before = check_copy(address, tmp_path / "copies")
        wire.lies.append(LIES["drops"][0])
        still = check_copy(address, tmp_path / "copies", repair=True)
        wire.lies.clear()
        repaired = check_copy(address, tmp_path / "copies", repair=True)
        return before, still, repaired, rows_of(copy)

    before, still, repaired, rows = listening(tmp_path, work)
    assert list(before.holes.values()) == [((3, 3),)]
    assert [reason.split(":")[0] for reason in before.damaged.values()] == ["entry 5"]
    assert before.verdict.value is still.verdict.value is Outcome.INCOMPLETE
    assert [spans[0] for spans in still.holes.values()] == [(3, 3)]
    assert repaired.verdict.is_good
    assert [row["stream_seq"] for row in rows if row["ok"]] == list(range(1, 8))


def test_a_hub_that_claims_that_all_is_erased_and_shows_no_receipt_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_copy, "_MAX_UNPROVEN", 2)

    def work(url, key, wire):
        address = place_of(url, hubKey=key)[1].hub

        def erased(operation, body, answer):
            if operation not in ("v1/stream", "v1/receipt"):
                return answer
            refusal = ErrorEnvelope(code="E.NOT_FOUND", message="gone", detail={"reason": "pruned", "stream_seq": 1})
            return Answer(404, refusal.to_bytes())

        wire.lies.append(erased)
        with pytest.raises(CopyIncomplete, match="in a row are erased"):
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
