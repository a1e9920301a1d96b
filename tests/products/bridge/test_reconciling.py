"""Both zones compared: what is missing, doubled, partial, withheld or refused, and J1 … K2 (AGB-13 … AGB-16)."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.products.bridge.signer import read
from tests.products.bridge.zones import SOURCE, TARGET, crossed, phase, send_numbers

from veen.client.errors import UnknownStream
from veen.client.identity.keyring import Keyring
from veen.client.send.sealing import Draft
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.hashing import H, Ht, u64be
from veen.lake.log.slices import Slice
from veen.overlays.airgap.bodies import IMPORT, OFFLINE, ONLINE, OfflineRecord
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, Auditor
from veen.products.bridge.bundle import BridgeError, bridge_id_of
from veen.products.bridge.evidence import LINKS, links_of
from veen.products.bridge.exporting import OUTGOING, Exporter, ExportOptions
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.importing import IMPORTED
from veen.products.bridge.reconciling import (
    MAX_WRITERS,
    Arrived,
    Offline,
    Sides,
    audit_log,
    fold_imports,
    fold_slices,
    reconcile,
    sign_report,
)
from veen.products.bridge.runs import Positions, gaps_of, overlap, size, union
from veen.products.bridge.sources import Zones as ZonePlaces
from veen.products.bridge.sources import bundle_paths, identities_of, read_zones
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verifier import verify_here
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
    assert size(both.once) + size(gaps_of(both.once, 1, 30)) == 30
    assert overlap(both.once, gaps_of(both.once, 1, 30)) == ()
    assert union(both.once, gaps_of(both.once, 1, 30)) == ((1, 30),)


def keyring_of(world):
    online = world.online.keyring.entries
    offline = world.offline.keyring.entries
    return Keyring.of([*online, *offline, world.target_keys])


def compared(world, *, online=True, offline=None, trust=None, checkpoints=()):
    """What is read of both zones; of the receiving one alone, with its folders of bundles."""
    zones = ZonePlaces(
        offline=str(offline or world.tmp / "z2"),
        online=str(world.tmp / "z1") if online is True else online or None,
        folders=() if online else (world.import_files.path(IMPORTED),),
        checkpoints=checkpoints,
    )
    return read_zones(zones, keyring_of(world), trust or world.trust)


def sides_of(world, *, online=True):
    return compared(world, online=online)[1]


def arrived(world):
    return compared(world)[0]


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


@pytest.mark.req("AGB-13", "AGB-15")
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
    signed = sign_report(report, key)
    digest = Ht("veen/bridge-report", report.to_bytes())
    assert verify(key.public, digest, bytes.fromhex(signed["signature"]))
    assert json.loads(report.to_bytes()) == report.data


@pytest.mark.req("AGB-15", "AGB-19")
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


@pytest.mark.req("AGB-12")
def test_a_bundle_that_never_arrived_is_named_as_missing(tmp_path):
    """001 products §4.7: every bundle that arrived is whole, and nothing is doubled."""

    async def work(world):
        await filled(world)
        world.carry()
        world.import_files.path("incoming", sorted(world.import_files.bundles("incoming"))[2]).unlink()
        await world.importer(verify=verify_here).run()

    report = reconcile(*compared(phase(tmp_path, work)))
    (stream,) = report.data["streams"]
    assert (stream["missing_bundles"], stream["duplicates"], stream["partial"]) == ([3], [], [])
    assert (stream["exported"], stream["imported"], stream["missing_events"]) == ([[1, 12]], [[1, 8]], [[9, 12]])
    assert "bundles that did not arrive: [3]" in texts(report)
    assert json.loads(report.to_bytes())["verdict"]["value"] == "incomplete"


@pytest.mark.req("AGB-12")
def test_an_event_that_was_imported_twice_is_named_as_doubled(tmp_path):
    """001 products §4.7: nothing is missing, and every bundle is whole."""

    async def work(world):
        await filled(world)
        await bring(world)
        await write_import(world, (await crossed(world))[6].body)

    report = reconcile(*compared(phase(tmp_path, work)))
    (stream,) = report.data["streams"]
    assert (stream["missing_bundles"], stream["duplicates"], stream["partial"]) == ([], [[7, 7]], [])
    assert report.data["invariants"]["J1"]["first"]["origin_seq"] == 7
    assert json.loads(report.to_bytes())["verdict"]["value"] == "bad"


@pytest.mark.req("AGB-12")
def test_a_bundle_of_which_a_part_was_imported_is_named_as_partial(tmp_path):
    """001 products §4.7: the importer was stopped within the second bundle; nobody audits it as imported."""
    bundle_ids: list[str] = []

    async def work(world):
        await filled(world, bundles=2)
        await bring(world)
        bundle_ids.extend(dict.fromkeys(row.body.bundle_id.hex() for row in await crossed(world)))

    whole, sides = compared(phase(tmp_path, work))
    second = bytes.fromhex(bundle_ids[1])
    (key, label), (_, bundle) = (
        next(iter(whole.labels.items())),
        next(row for row in whole.bundles.items() if row[0] == second),
    )
    half = replace(
        whole,
        labels={key: replace(label, crossed=Positions(((1, 6),), ()))},
        bundles={**whole.bundles, second: replace(bundle, positions=Positions(((0, 1),), ()))},
    )
    cut = replace(sides, offline=tuple(record for record in sides.offline if record.bundle_id != second))
    report = reconcile(half, cut)
    (stream,) = report.data["streams"]
    assert stream["partial"] == [{"bundle_id": bundle_ids[1], "events": 4, "imported": 2}]
    assert (stream["missing_bundles"], stream["duplicates"]) == ([], [])
    assert "bundles of which a part arrived" in texts(report)
    assert not report.is_clean


@pytest.mark.req("AGB-12")
def test_both_zones_are_compared_up_to_a_chosen_checkpoint(tmp_path):
    """001 products §4.7: C1 takes the place of the head. What was exported and imported behind it is no finding."""
    signed = []

    async def work(world):
        await filled(world, bundles=2)
        signed.append(await world.producer.checkpoint(SOURCE))
        await filled(world, bundles=1)
        world.carry()
        world.import_files.path("incoming", sorted(world.import_files.bundles("incoming"))[2]).unlink()
        await world.importer(verify=verify_here).run()

    world = phase(tmp_path, work)
    assert reconcile(*compared(world)).data["streams"][0]["missing_bundles"] == [3]
    report = reconcile(*compared(world, checkpoints=tuple(signed)))
    assert report.is_clean, texts(report)
    (stream,) = report.data["streams"]
    assert (stream["head"], stream["stated_by"]) == (8, "a checkpoint that was given")
    assert (stream["exported"], stream["missing_bundles"], stream["gaps_beyond"]) == ([[1, 8]], [], [])
    assert stream["root_at_head_matches"] is True
    alone = reconcile(*compared(world, online=False, checkpoints=tuple(signed)))
    assert alone.is_clean, texts(alone)
    within = signed[0].issue(
        world.z1.identity.held.private[world.z1.identity.current_pk],
        label_prev=signed[0].label_prev, label_curr=signed[0].label_curr,
        upto_seq=8, mmr_root=H(b"another"), epoch=signed[0].epoch,
    )  # fmt: skip
    assert reconcile(*compared(world, checkpoints=(within,))).verdict.value == "bad"
    with pytest.raises(BridgeError, match="not signed by a source"):
        compared(world, checkpoints=(replace(signed[0], hub_sig=bytes(64)),))


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
    assert (summary.entries, summary.unread, summary.faults) == (whole.entries, whole.entries, 0)
    assert summary.first_unread == (bytes(32).hex(), 5, "the entry is missing")
    halves = [whole._replace(last=10**6), whole._replace(first=10**6 + 1)]
    parts = [fold_slices(place, Keyring.of([]), [half]) for half in halves]
    assert parts[1].merge(parts[0]) == summary


def test_an_audit_log_that_cannot_be_read_does_not_pass_as_empty(tmp_path):
    async def work(world):
        await filled(world, bundles=1)

    world = phase(tmp_path, work)
    with pytest.raises(UnknownStream):
        audit_log(str(world.tmp / "z1"), ONLINE_LOG, Keyring.of([world.target_keys]), ONLINE)


# --- true verdicts ---------------------------------------------------------------------------------------------------


def rows(report):
    return {row["log"].split(" (")[0]: (row["read"], row["head"]) for row in report.data["verdict"]["compared"]}


def texts(report):
    return " | ".join(reason["text"] for reason in report.data["verdict"]["reasons"])


def test_beside_running_hubs_the_journal_is_read_and_growth_is_beyond(tmp_path):
    """Nothing has left the journals yet; the signed report says how far it read."""

    async def work(world):
        await filled(world)
        await bring(world)
        report = await asyncio.to_thread(lambda: reconcile(*compared(world)))
        assert report.data["imported_entries"] == 12
        assert report.is_clean, texts(report)
        logs = report.data["logs"]
        assert {log["hub_id"] for log in logs["sending"]} == {world.z1.identity.held.identity.hub_id.hex()}
        assert {log["hub_id"] for log in logs["receiving"]} == {world.z2.identity.held.identity.hub_id.hex()}
        assert all(log["head"] == log["read_upto"] > 0 and log["root"] for log in logs["sending"] + logs["receiving"])
        await send_numbers(world, 13, 14)
        grown = await asyncio.to_thread(lambda: reconcile(*compared(world)))
        assert grown.verdict.value == "incomplete"
        assert grown.data["streams"][0]["gaps_beyond"] == [[13, 14]]
        assert verdicts(grown) == dict.fromkeys(("J1", "J2", "J3", "K1", "K2"), "ok")

    phase(tmp_path, work)


def test_what_is_imported_while_it_is_read_contradicts_nothing(tmp_path):
    """The audit stream of the receiving zone is read before its imports, and the sending zone last."""

    async def work(world):
        await filled(world, bundles=1)
        await bring(world)
        loop = asyncio.get_running_loop()

        def fold(place, prefix):
            async def more():
                await filled(world, bundles=1)
                await bring(world)

            asyncio.run_coroutine_threadsafe(more(), loop).result(60)
            return fold_imports(place, keyring_of(world))  # the imports as they are now

        zones = ZonePlaces(offline=str(world.tmp / "z2"), online=str(world.tmp / "z1"))
        report = await asyncio.to_thread(lambda: reconcile(*read_zones(zones, keyring_of(world), world.trust, fold)))
        assert report.verdict.value == "incomplete"
        assert set(verdicts(report).values()) == {"ok"}

    phase(tmp_path, work)


def test_nothing_exported_is_not_clean(tmp_path):
    """Clean over nothing."""

    async def work(world):
        await send_numbers(world, 1, 3)

    world = phase(tmp_path, work)
    report = reconcile(*compared(world))
    assert (report.is_clean, report.verdict.value) == (False, "incomplete")
    assert "records no bundle" in texts(report)


def test_half_of_the_bundles_and_a_foreign_hub_are_not_clean(tmp_path):
    async def work(world):
        await filled(world)
        world.carry()
        world.import_files.path("incoming", sorted(world.import_files.bundles("incoming"))[1]).unlink()
        await world.importer(verify=verify_here).run()

    world = phase(tmp_path, work)
    half = reconcile(*compared(world))
    assert half.verdict.value == "incomplete"
    assert half.data["streams"][0]["missing_bundles"] == [2, 3]
    # The third waits for the second, and is not in the folder of those that were imported.
    alone = reconcile(*compared(world, online=False))
    assert alone.verdict.value == "incomplete"
    assert alone.data["streams"][0]["missing_bundles"] == [3, 2]
    stranger = SigningKey(b"\x07" * 32).public.hex()
    strange = TrustList.from_json([world.trust.to_json()[0] | {"hub": f"ed25519:{stranger}"}])
    foreign = reconcile(*compared(world, trust=strange))
    assert foreign.verdict.value == "incomplete"
    assert "no source of the trust list names" in texts(foreign)
    assert foreign.data["unread"] == 4


def test_a_root_pin_believes_no_other_hub(tmp_path):
    """The identity of the directory must be signed by the pinned root."""

    async def work(world):
        await filled(world, bundles=1)
        await bring(world)

    world = phase(tmp_path, work)
    root = SigningKey(b"\x08" * 32).public.hex()
    by_root = TrustList.from_json([world.trust.to_json()[0] | {"hub": f"root:ed25519:{root}"}])
    assert identities_of(by_root, str(world.tmp / "z1"), []) == ()
    assert reconcile(*compared(world, trust=by_root)).verdict.value == "incomplete"
    assert len(identities_of(world.trust, str(world.tmp / "z1"), [])) == 1


def test_two_bridges_out_of_one_hub_are_compared_apart(tmp_path):
    """What one of them did not bring is not covered by the other one."""

    async def work(world):
        await filled(world, bundles=2)
        await bring(world)
        second = BridgeFiles(world.tmp / "bridge-2", (OUTGOING,))
        ring, auditor = Keyring.of([world.source_keys]), Auditor(world.online, ONLINE_LOG)
        options = ExportOptions(bridge="plant-b", operator="online-log", with_openings=True)
        await Exporter(world.exporter_client, ring, world.export_key, auditor, second, options).export(SOURCE)

    world = phase(tmp_path, work)
    report = reconcile(*compared(world))
    assert report.verdict.value == "incomplete"
    by_bridge = {stream["bridge_id"]: stream for stream in report.data["streams"]}
    first, other = by_bridge[bridge_id_of("plant-a").hex()], by_bridge[bridge_id_of("plant-b").hex()]
    assert (first["consistent_upto"]["seq"], first["missing_bundles"]) == (8, [])
    assert (other["consistent_upto"]["seq"], other["missing_bundles"]) == (0, [1])


def test_records_of_the_audit_log_that_cannot_be_read_are_named(tmp_path):
    """A record that breaks its schema is not passed by."""

    async def work(world):
        await filled(world, bundles=1)
        await bring(world)
        await world.online.send(ONLINE_LOG, b"\xa0", schema=ONLINE.id)

    report = reconcile(*compared(phase(tmp_path, work)))
    assert report.verdict.value == "incomplete"
    assert "bridge/online/log: 1 records are malformed, the first at 2" in texts(report)


def test_a_label_of_an_exported_stream_that_nobody_exported_is_in_the_report(tmp_path):
    """Expected labels come from the sending hub. A second hub key makes no difference; an epoch does."""

    async def work(world):
        await filled(world, bundles=1)
        await bring(world)

    world = phase(tmp_path, work)
    whole, sides = compared(world)
    (stream_id, _, label) = sides.expected[0]
    later = (stream_id, 1, H(label))
    report = reconcile(
        whole, replace(sides, expected=(*sides.expected, later), heads={**sides.heads, later[2]: (5, b"")})
    )
    assert report.verdict.value == "incomplete"
    assert report.data["streams"][1]["gaps_beyond"] == [[1, 5]]


def test_two_histories_are_bad_evidence_also_below_the_head(tmp_path):
    """K2 compares the root where both zones end, and ends with exit code 1."""

    async def work(world):
        await filled(world, bundles=1)
        await bring(world)
        await send_numbers(world, 5, 6)

    whole, sides = compared(phase(tmp_path, work))
    assert reconcile(whole, sides).data["streams"][0]["root_matches"] is True
    ((place, root),) = sides.roots.items()
    forked = reconcile(whole, replace(sides, roots={place: H(root)}))
    assert verdicts(forked)["K2"] == "violated"
    assert forked.verdict.value == "bad"
    assert forked.verdict.value.exit_status == 1


@given(st.integers(MAX_WRITERS - 2, MAX_WRITERS + 2), st.integers(0, MAX_WRITERS))
@settings(max_examples=20)
def test_more_writers_than_are_kept_leave_j3_open(count, cut):
    """J3 looked at 4,096 writers and said ok."""
    keys = [u64be(number) * 4 for number in range(count)]
    parts = [Arrived(writers=frozenset(part[:MAX_WRITERS])) for part in (keys[:cut], keys[cut:])]
    both = parts[0].merge(parts[1])
    assert both == parts[1].merge(parts[0])
    sides = Sides(exported=(), offline=(), online_known=True, online_writers=frozenset((b"\xff" * 32,)))
    expected = "unknown" if both.has_more_writers else "ok"
    assert reconcile(both, sides).data["invariants"]["J3"]["verdict"] == expected
    assert both.has_more_writers == (len(both.writers) < len(keys[:cut][:MAX_WRITERS]) + len(keys[cut:][:MAX_WRITERS]))
