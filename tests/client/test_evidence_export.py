"""Evidence files from a real hub: what a client exports is what an outsider can check, without hub and without keys."""

import pytest
from tests.client.hubs import GATED, ORDERS, Clock, client_at, connected, hub_at, person, pin_of, run, token_for

from veen.client.errors import LocalError
from veen.client.evidence_file import NoEntries, TooMuch, verify_evidence
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.core.evidence_file import EvidenceFault
from veen.core.objects.trusted_root import TrustedKeys
from veen.hub.api.rotation import rotate_at_rest
from veen.io.local import OsFs

ROTATING = {**GATED, "admission.profiles": "rotating"}


def trusted(hub):
    return TrustedKeys(hub_pks=(hub.identity.current_pk,))


@pytest.mark.parametrize("contents", ["sealed", "openings", "plaintext"])
@pytest.mark.parametrize(("first", "last"), [(None, None), (1, 1), (3, 7), (9, 9)])
def test_a_range_is_exported_and_verified_by_a_stranger(tmp_path, contents, first, last):
    async def story():
        async with connected(tmp_path) as (hub, _, client):
            await client.send_many("orders", [b"order %d" % n for n in range(1, 10)])
            file = await client.evidence("orders", from_seq=first, to_seq=last, contents=contents)
            return file.to_file(), trusted(hub)

    data, keys = run(story())
    report = verify_evidence(data, keys)
    numbers = range(first or 1, (last or 9) + 1)
    assert [entry.seq for entry in report.entries] == list(numbers)
    assert report.stream_name == "orders"
    assert ORDERS.secret() not in data
    if contents != "sealed":
        assert [entry.body for entry in report.entries] == [b"order %d" % n for n in numbers]


def test_a_log_that_grew_gives_the_same_bytes_for_the_same_range(tmp_path):
    async def story():
        async with connected(tmp_path) as (_, _, client):
            await client.send_many("orders", [b"a", b"b", b"c"])
            before = (await client.evidence("orders", from_seq=1, to_seq=2, contents="openings")).to_file()
            await client.send("orders", b"d")
            after = (await client.evidence("orders", from_seq=1, to_seq=2, contents="openings")).to_file()
            with_head = await client.evidence("orders", from_seq=1, to_seq=2, with_head=True)
            return before, after, with_head, client.pin

    before, after, with_head, pin = run(story())
    assert before == after
    report = verify_evidence(with_head.to_file(), TrustedKeys(hub_pks=(pin.keys[0].hub_pk,)))
    assert (report.logs[0].checkpoint.upto_seq, report.logs[0].latest.upto_seq) == (2, 4)


def test_a_selection_leaves_entries_out_and_says_so(tmp_path):
    async def story():
        async with connected(tmp_path) as (hub, _, client):
            await client.send_many("orders", [b"%d" % n for n in range(8)])
            label = client.label("orders")
            file = await client.evidence("orders", selection=[(label, 7), (label, 2), (label, 3), (label, 2)])
            with pytest.raises(LocalError, match="not one of the stream's"):
                await client.evidence("orders", selection=[(b"x" * 32, 1)])
            return file, trusted(hub)

    file, keys = run(story())
    report = verify_evidence(file.to_file(), keys)
    assert report.logs[0].runs == ((2, 3), (7, 7))


def test_a_time_takes_the_entries_of_that_time_from_all_labels(tmp_path):
    async def story():
        clock = Clock()
        async with connected(tmp_path, clock=clock, settings=ROTATING) as (hub, _, client):
            await client.authorize(token_for(client.client_id))
            begin = clock.now
            for number in range(6):
                await client.send("orders", b"%d" % number)
                clock.now += 1800
            file = await client.evidence("orders", since=begin + 1800, until=begin + 4 * 1800, contents="openings")
            return file, trusted(hub)

    file, keys = run(story())
    report = verify_evidence(file.to_file(), keys)
    assert sorted(entry.body or b"" for entry in report.entries) == [b"1", b"2", b"3", b"4"]
    assert len(report.logs) > 1
    assert any("epochs that are not listed" in line for line in report.limits())


def test_after_a_rotation_the_first_key_and_the_new_key_with_its_hub_id_lead_to_the_entries(tmp_path):
    async def story():
        clock, who, home = Clock(), person("alice", 1_800_000_000), tmp_path / "home"
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            first = hub.identity.current_pk
            async with client_at(InProcess(hub.api), pin_of(hub), who, home, clock=clock) as client:
                await client.send("orders", b"before")
        clock.now += 100
        rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 0)
        clock.now += 100
        async with (
            hub_at(tmp_path / "hub", clock=clock) as hub,
            client_at(InProcess(hub.api), HubPin.of_key(first), who, home, clock=clock) as client,
        ):
            await client.send("orders", b"after")
            file = await client.evidence("orders")
            return file.to_file(), first, hub.identity.current_pk, client.hub_id

    data, first, newest, hub_id = run(story())
    assert first != newest
    report = verify_evidence(data, TrustedKeys(hub_pks=(first,)))
    assert [entry.hub_pk for entry in report.entries] == [first, newest]
    assert verify_evidence(data, TrustedKeys(hub_pks=(newest,), hub_id=hub_id)).pinned
    with pytest.raises(EvidenceFault, match="does not lead"):
        verify_evidence(data, TrustedKeys(hub_pks=(newest,)))


def test_what_is_not_there_or_does_not_fit_is_refused(tmp_path, monkeypatch):
    async def story():
        async with connected(tmp_path) as (_, _, client):
            with pytest.raises(NoEntries):
                await client.evidence("orders")
            await client.send_many("orders", [b"a", b"b", b"c"])
            monkeypatch.setattr("veen.client.evidence_file.MAX_ENTRIES", 2)
            with pytest.raises(TooMuch):
                await client.evidence("orders")

    run(story())


def test_entries_that_the_exporter_cannot_open_stay_sealed(tmp_path):
    async def story():
        async with connected(tmp_path) as (hub, _, client):
            await client.send("orders", b"mine")
            return (await client.evidence(f"label:{client.label('orders').hex()}")).to_file(), trusted(hub)

    data, keys = run(story())
    report = verify_evidence(data, keys)
    assert report.contents() == {"sealed": 1, "opened": 0, "stated": 0}
