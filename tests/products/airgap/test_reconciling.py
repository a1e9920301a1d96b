"""Both zones compared: what is missing, doubled, partial, withheld or refused, and J1 … K2 (AGB-12 … AGB-16)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.products.airgap.signer import read
from tests.products.airgap.zones import SOURCE, TARGET, crossed, phase, send_numbers

from veen.client.errors import UnknownStream
from veen.client.identity.keyring import Keyring
from veen.client.send.sealing import Draft
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.hashing import Ht
from veen.log.slices import Slice
from veen.overlays.airgap.bodies import IMPORT, OFFLINE, OfflineRecord
from veen.products.airgap.audit import OFFLINE_LOG
from veen.products.airgap.errors import BridgeError
from veen.products.airgap.evidence import LINKS, links_of
from veen.products.airgap.importing import IMPORTED
from veen.products.airgap.reconciling import (
    Arrived,
    Offline,
    Sides,
    arrived_in,
    fold_slices,
    offline_side,
    online_side,
    reconcile,
    signed_report,
)
from veen.products.airgap.runs import Positions, joined, missing, overlap, size
from veen.products.airgap.sources import bundle_paths, bundle_side, heads_of, identities_of
from veen.products.airgap.verifier import verify_here
from veen.storage.pinned import ChunkRef

positions = st.lists(st.integers(1, 30), max_size=30)


@given(positions, positions)
def test_positions_are_a_multiset_in_runs(left, right):
    both = Positions.of(left).merge(Positions.of(right))
    assert both == Positions.of(left + right) == Positions.of(right).merge(Positions.of(left))
    covered = {number for first, last in both.once for number in range(first, last + 1)}
    assert covered == set(left + right)
    doubled = {number for first, last in both.twice for number in range(first, last + 1)}
    assert doubled == {number for number in covered if (left + right).count(number) > 1}
    assert size(both.once) + size(missing(both.once, 1, 30)) == 30
    assert overlap(both.once, missing(both.once, 1, 30)) == ()
    assert joined(both.once, missing(both.once, 1, 30)) == ((1, 30),)


def keyring_of(world):
    online = world.online.keyring.entries
    offline = world.offline.keyring.entries
    return Keyring.of([*online, *offline, world.target_keys])


def sides_of(world, *, online=True):
    ring = keyring_of(world)
    z1 = str(world.tmp / "z1")
    records, offline_writers = offline_side(str(world.tmp / "z2"), ring)
    if not online:
        exported = bundle_side([world.import_files.path(IMPORTED)], world.trust)
        return Sides(exported=exported, offline=records, online_known=False)
    exported, online_writers = online_side(z1, ring)
    return Sides(
        exported=exported,
        offline=records,
        online_known=True,
        online_writers=online_writers,
        offline_writers=offline_writers,
        heads=heads_of(z1, {bundle.label for bundle in exported}),
    )


def arrived(world):
    identities = identities_of(world.trust, str(world.tmp / "z1"), [])
    return arrived_in(Offline(uri=str(world.tmp / "z2"), identities=identities), keyring_of(world))


def verdicts(report):
    return {name: row["verdict"] for name, row in report.data["invariants"].items()}


async def filled(world, *, bundles=3, withhold=None):
    for number in range(bundles):
        await send_numbers(world, number * 4 + 1, number * 4 + 4)
        await world.exporter(**({} if withhold is None else {"withhold": withhold})).export(SOURCE)


async def bring(world):
    """Carry and import what there is."""
    world.carry()
    await world.importer(verify=verify_here).run()


@pytest.mark.req("AGB-12", "AGB-13", "AGB-15")
def test_a_bridge_that_worked_is_clean_and_every_invariant_holds(tmp_path):
    async def work(world):
        await filled(world, withhold=lambda entry, opened: "private" if entry.seq == 6 else None)
        await bring(world)

    world = phase(tmp_path, work)
    report = reconcile(arrived(world), sides_of(world))
    assert report.is_clean
    assert verdicts(report) == dict.fromkeys(("J1", "J2", "J3", "K1", "K2"), "ok")
    (stream,) = report.data["streams"]
    assert stream["exported"] == stream["imported"] == [[1, 12]]
    assert stream["withheld"] == [[6, 6]]
    assert stream["consistent_upto"]["seq"] == 12
    assert stream["root_at_head_matches"] is True
    alone = reconcile(arrived(world), sides_of(world, online=False))
    assert alone.is_clean
    assert verdicts(alone) == {"J1": "ok", "J2": "ok", "J3": "unknown", "K1": "unknown", "K2": "ok"}
    key = SigningKey(b"\x21" * 32)
    signed = signed_report(report, key)
    digest = Ht("veen/bridge-report", report.to_bytes())
    assert verify(key.public, digest, bytes.fromhex(signed["signature"]))
    assert json.loads(report.to_bytes()) == report.data


@pytest.mark.req("AGB-12", "AGB-15", "AGB-19")
def test_missing_and_refused_bundles_are_listed(tmp_path):
    intact = {}

    async def damage(world):
        await filled(world, bundles=4)
        name = world.carry()[1]
        path = world.import_files.path("incoming", name)
        intact[path] = path.read_bytes()
        path.write_bytes(intact[path][:-1])
        await world.importer(verify=verify_here).run()

    async def mend(world):
        for path, data in intact.items():
            path.write_bytes(data)
        await world.importer(verify=verify_here).run()

    async def more(world):
        await send_numbers(world, 17, 18)

    world = phase(tmp_path, damage)
    report = reconcile(arrived(world), sides_of(world))
    assert not report.is_clean
    (stream,) = report.data["streams"]
    assert stream["missing_bundles"] == [2, 3, 4]
    assert stream["missing_events"] == [[5, 16]]
    assert stream["consistent_upto"]["seq"] == 4
    (refused,) = report.data["rejected"]
    assert refused["code"] == "AGB.FORMAT"
    assert verdicts(report)["J2"] == "ok"
    world = phase(tmp_path, mend)
    assert reconcile(arrived(world), sides_of(world)).is_clean
    world = phase(tmp_path, more)
    (later,) = reconcile(arrived(world), sides_of(world)).data["streams"]
    assert later["gaps_beyond"] == [[17, 18]]


async def write_import(world, body):
    """Write an event under the importer's key, as a faulty importer would."""
    draft = Draft(body=body.to_bytes(), schema=IMPORT.id, parent=body.origin_msg_id)
    await world.importer_client.send_many(TARGET, [draft])


@pytest.mark.req("AGB-13", "AGB-19")
def test_a_doubled_import_breaks_j1_and_is_named(tmp_path):
    async def work(world):
        await filled(world, bundles=1)
        await bring(world)
        await write_import(world, (await crossed(world))[2].body)

    world = phase(tmp_path, work)
    report = reconcile(arrived(world), sides_of(world))
    assert report.data["invariants"]["J1"]["first"]["origin_seq"] == 3
    assert report.has_bad_evidence
    (stream,) = report.data["streams"]
    assert stream["duplicates"] == [[3, 3]]


@pytest.mark.req("AGB-13", "AGB-19")
def test_events_without_an_origin_and_unrecorded_imports_break_their_invariants(tmp_path):
    async def work(world):
        await filled(world, bundles=1)
        await bring(world)
        row = (await crossed(world))[0].body
        await world.importer_client.send(TARGET, b"made up here")
        forged = row.origin_receipt[:-1] + bytes((row.origin_receipt[-1] ^ 1,))
        await write_import(world, replace(row, origin_receipt=forged))
        await write_import(world, replace(row, bundle_id=bytes(32)))

    world = phase(tmp_path, work)
    report = reconcile(arrived(world), sides_of(world))
    assert report.data["faults"] == 2
    assert report.data["invariants"]["J1"]["first"]["stream_seq"] == 5
    assert verdicts(report)["K1"] == "violated"
    assert report.data["unknown_bundles"] == ["00" * 32]


@pytest.mark.req("AGB-13")
def test_an_audit_record_that_claims_too_much_breaks_j2(tmp_path):
    lost = {}

    async def work(world):
        await filled(world, bundles=2)
        names = world.carry()
        path = world.import_files.path("incoming", names[1])
        lost["id"] = read(path.read_bytes())[2].bundle_id
        path.rename(tmp_path / "lost")
        await world.importer(verify=verify_here).run()
        claim = OfflineRecord(
            bundle_id=lost["id"], bundle_hash=bytes(32), result="imported", count=4, operator="liar", ts=1
        )
        await world.offline.send(OFFLINE_LOG, claim.to_bytes(), schema=OFFLINE.id)

    world = phase(tmp_path, work)
    report = reconcile(arrived(world), sides_of(world))
    assert report.data["invariants"]["J2"]["first"] == {"bundle_id": lost["id"].hex(), "position": 0}


@pytest.mark.req("AGB-02", "AGB-13")
def test_a_key_that_writes_in_both_zones_breaks_j3(tmp_path):
    async def work(world):
        await filled(world, bundles=1)
        await bring(world)

    world = phase(tmp_path, work)
    sides = sides_of(world)
    importer = world.importer_client.client_id
    report = reconcile(arrived(world), replace(sides, online_writers=sides.online_writers | {importer}))
    assert report.data["invariants"]["J3"]["first"] == {"client_id": importer.hex()}


@pytest.mark.req("AGB-15")
def test_one_event_has_seven_links(tmp_path):
    ids = []

    async def work(world):
        await filled(world, bundles=2)
        await bring(world)
        ids.append((await crossed(world))[5].body.origin_msg_id)

    world = phase(tmp_path, work)
    inputs = {
        "bundles": list(bundle_paths([world.import_files.path(IMPORTED)])),
        "trust": world.trust,
        "offline": str(tmp_path / "z2"),
        "keyring": keyring_of(world),
    }
    links = links_of(ids[0], online=str(tmp_path / "z1"), **inputs)
    assert tuple(link.name for link in links) == LINKS
    assert [link.holds for link in links] == [True] * 7
    assert links[-1].facts["stream_seq"] == 6
    unseen = links_of(ids[0], online=None, **inputs)
    assert [link.holds for link in unseen] == [True, True, True, True, None, True, True]
    with pytest.raises(BridgeError, match="no bundle has the event"):
        links_of(bytes(32), online=None, **inputs)


def test_an_empty_summary_is_the_unit_of_merging(tmp_path):
    async def work(world):
        await filled(world, bundles=1)
        await bring(world)

    whole = arrived(phase(tmp_path, work))
    assert whole.entries == 4
    assert whole.merge(Arrived()) == Arrived().merge(whole) == whole
    assert Arrived.from_bytes(whole.to_bytes()) == whole


def test_entries_that_no_file_has_are_faults_however_many_a_name_claims(tmp_path):
    gap = ChunkRef(
        label=bytes(32), epoch=1, stream_id=None, start_seq=5, end_seq=10**12, path="", kind="missing", size=0
    )
    whole, place = Slice.whole(gap), Offline(uri=str(tmp_path), identities=())
    summary = fold_slices(place, Keyring.of([]), [whole])
    assert (summary.entries, summary.faults) == (whole.entries, whole.entries)
    assert summary.first_fault == (bytes(32).hex(), 5, "the entry is missing")
    halves = [whole._replace(last=10**6), whole._replace(first=10**6 + 1)]
    parts = [fold_slices(place, Keyring.of([]), [half]) for half in halves]
    assert parts[1].merge(parts[0]) == summary


def test_an_audit_log_that_cannot_be_read_does_not_pass_as_empty(tmp_path):
    async def work(world):
        await filled(world, bundles=1)

    world = phase(tmp_path, work)
    with pytest.raises(UnknownStream):
        online_side(str(world.tmp / "z1"), Keyring.of([world.target_keys]))
