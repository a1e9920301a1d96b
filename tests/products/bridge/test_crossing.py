"""From hub to hub: exported, carried, verified apart, imported once, audited on both sides (AGB-01 … AGB-11)."""

import socket
import subprocess
import sys

import pytest
from tests.client.hubs import run
from tests.products.bridge.signer import SmallLog
from tests.products.bridge.zones import SOURCE, TARGET, crossed, send_numbers, zones

from veen.client.errors import NoReaderKey
from veen.core.hashing import H
from veen.core.labels import stream_id_of
from veen.overlays.airgap.bodies import (
    OFFLINE,
    ONLINE,
    ImportedEvent,
    OfflineRecord,
    OnlineRecord,
    WithheldEvent,
    origin_event,
)
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.bundle import BridgeError
from veen.products.bridge.exporting import OUTGOING
from veen.products.bridge.importing import IMPORTED, INCOMING, REJECTED, WAITING
from veen.products.bridge.verifier import BundleRefusal, crossings, verify_apart
from veen.products.bridge.verify import BundleVerdict


async def online_records(world):
    return [OnlineRecord.from_bytes(entry.body) async for entry in world.online.read(ONLINE_LOG)]


async def offline_records(world):
    return [OfflineRecord.from_bytes(entry.body) async for entry in world.reader.read(OFFLINE_LOG)]


@pytest.mark.req("AGB-01", "AGB-08", "AGB-09", "AGB-11")
def test_events_cross_once_in_order_with_their_evidence(tmp_path):
    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 150)
            written = await world.exporter(max_events=64).export(SOURCE)
            assert [bundle.trailer.count for bundle in written] == [64, 64, 22]
            names = world.carry()
            hashes = [H(world.import_files.path(INCOMING, name).read_bytes()) for name in names]
            outcomes = await world.importer().run()
            assert [outcome.result for outcome in outcomes] == ["imported"] * 3
            assert world.import_files.bundles(IMPORTED) == names
            rows = await crossed(world)
            assert [row.body.origin_body for row in rows] == [b"event %d" % n for n in range(1, 151)]
            for row in rows:
                body = row.body
                assert body.receipt.leaf_hash == body.origin_msg_id == row.event.hdr.parent_id
                assert body.origin_hub_id == world.z1.identity.hub_id
                world.exporter_client.pin.identity.verify_receipt(body.receipt)
            origin = origin_event(rows[0].body, 0)
            assert origin is not None
            assert (origin.stream_seq, origin.body) == (1, b"event 1")
            online, offline = await online_records(world), await offline_records(world)
            assert [record.bundle_id for record in online] == [bundle.trailer.bundle_id for bundle in written]
            assert [record.bundle_id for record in offline] == [record.bundle_id for record in online]
            assert [record.bundle_hash for record in online] == [record.bundle_hash for record in offline] == hashes
            assert {record.export_stream_id for record in online} == {stream_id_of(SOURCE)}
            assert [(record.seq_from, record.seq_to, record.count) for record in online] == [
                (1, 64, 64), (65, 128, 64), (129, 150, 22),
            ]  # fmt: skip
            assert [[(t.seq_from, t.seq_to) for t in record.targets] for record in offline] == [
                [(1, 64)], [(65, 128)], [(129, 150)],
            ]  # fmt: skip
            assert {record.operator for record in offline} == {"offline-log"}

    run(work())


@pytest.mark.req("AGB-02")
def test_the_importer_cannot_read_what_it_writes(tmp_path):
    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 3)
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer().run()
            with pytest.raises(NoReaderKey):
                await anext(world.importer_client.read(TARGET))

    run(work())


@pytest.mark.req("AGB-13")
def test_withheld_and_sealed_events_arrive_as_what_they_are(tmp_path):
    def withhold(entry, opened):
        return "not for the other zone" if opened is not None and opened.body == b"event 2" else None

    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 3)
            await world.exporter(withhold=withhold).export(SOURCE)
            await send_numbers(world, 4, 4)
            await world.exporter(with_openings=False).export(SOURCE)
            world.carry()
            assert [outcome.result for outcome in await world.importer().run()] == ["imported", "imported"]
            rows = [row.body for row in await crossed(world)]
            assert [type(row) for row in rows] == [ImportedEvent, WithheldEvent, ImportedEvent, ImportedEvent]
            assert rows[1].reason == "not for the other zone"
            assert [getattr(row, "is_opened", None) for row in rows] == [True, None, True, False]

    run(work())


@pytest.mark.req("AGB-19")
def test_dropped_doubled_and_reordered_bundles(tmp_path):
    async def work():
        async with zones(tmp_path) as world:
            for number in range(1, 5):
                await send_numbers(world, number, number)
                await world.exporter().export(SOURCE)
            files = world.import_files
            names = world.export_files.bundles(OUTGOING)
            copies = {name: world.export_files.path(OUTGOING, name).read_bytes() for name in names}

            def deliver(name, to=None):
                files.path(INCOMING, to or name).write_bytes(copies[name])

            deliver(names[2])
            deliver(names[3])
            outcomes = await world.importer().run()
            assert [outcome.result for outcome in outcomes] == ["waiting", "waiting"]
            assert files.bundles(WAITING) == names[2:]
            deliver(names[0])
            assert [outcome.result for outcome in await world.importer().run()] == ["imported"]
            deliver(names[0], "again" + names[0])
            (again,) = await world.importer().run()
            assert (again.result, again.code) == ("already imported", None)
            deliver(names[1])
            assert [outcome.result for outcome in await world.importer().run()] == ["imported"] * 3
            assert [row.body.origin_body for row in await crossed(world)] == [b"event %d" % n for n in range(1, 5)]
            results = [record.result for record in await offline_records(world)]
            assert results == ["imported"] * 4  # nothing became of the one that came again

    run(work())


@pytest.mark.req("AGB-10", "AGB-19")
def test_a_refused_bundle_imports_nothing_is_audited_and_an_intact_copy_is_taken(tmp_path):
    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 3)
            await world.exporter().export(SOURCE)
            (name,) = world.carry()
            path = world.import_files.path(INCOMING, name)
            good = path.read_bytes()
            path.write_bytes(good[:700] + bytes((good[700] ^ 1,)) + good[701:])
            (outcome,) = await world.importer().run()
            assert outcome.result == "rejected"
            assert world.import_files.bundles(REJECTED) == [name]
            assert await crossed(world) == []
            (record,) = await offline_records(world)
            assert (record.result, record.code, record.count) == ("rejected", outcome.code, 0)
            path.write_bytes(good)
            assert [outcome.result for outcome in await world.importer().run()] == ["imported"]
            assert len(await crossed(world)) == 3

    run(work())


@pytest.mark.req("AGB-05")
def test_a_large_event_is_withheld_by_name_and_not_lost(tmp_path):
    async def work():
        async with zones(tmp_path) as world:
            await world.producer.send(SOURCE, b"x" * 1_046_000)
            await world.exporter().export(SOURCE)
            world.carry()
            await world.importer().run()
            (row,) = await crossed(world)
            assert row.body.reason.startswith("size: 1046000 bytes")

    run(work())


def test_a_hub_that_rotates_its_key_stays_trusted(tmp_path):
    """The header carries the records by which the old key introduced the new one."""

    async def work():
        async with zones(tmp_path) as world:
            await send_numbers(world, 1, 2)
            await world.exporter().export(SOURCE)
            await world.z1.rotate_key(0)
            await send_numbers(world, 3, 4)
            await world.exporter().export(SOURCE)
            world.carry()
            assert [outcome.result for outcome in await world.importer().run()] == ["imported", "imported"]

    run(work())


# --- the verifier's process ----------------------------------------------------------------------------------------


@pytest.mark.req("AGB-07")
def test_the_verifier_in_its_own_process_gives_the_same_verdict(tmp_path):
    log = SmallLog(3)
    bundle, spool = tmp_path / "b.veenb", tmp_path / "spool"
    bundle.write_bytes(log.bundle())
    verdict = verify_apart(bundle, spool, log.trust(), {})
    assert isinstance(verdict, BundleVerdict)
    bodies = [crossing.origin_body for crossing in crossings(spool) if isinstance(crossing, ImportedEvent)]
    assert bodies == [b"body 1", b"body 2", b"body 3"]
    bundle.write_bytes(log.bundle()[:-1])
    refusal = verify_apart(bundle, spool, log.trust(), {})
    assert isinstance(refusal, BundleRefusal)
    assert (refusal.code, refusal.bundle_id) == ("AGB.FORMAT", None)


def test_the_verifier_can_open_nothing():
    """No file and no socket, once its doors are closed."""
    code = (
        "import socket; from veen.products.bridge.verifier import close_doors\n"
        "close_doors()\n"
        "for attempt in (lambda: open('/etc/hostname'), lambda: socket.socket(), lambda: socket.socketpair()):\n"
        "    try: attempt()\n"
        "    except OSError as exc: print(exc.errno)\n"
        "    else: print('opened')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["24", "24", "24"]
    with socket.socket() as ours:
        assert ours.fileno() > 0


def test_the_verifier_inherits_nothing(tmp_path, monkeypatch):
    """Neither the environment nor an open descriptor of the importer."""
    from veen.products.bridge import verifier

    monkeypatch.setenv("VEEN_PASSPHRASE_FILE", "/secret")
    secret = (tmp_path / "secret").open("w")
    listing = tmp_path / "listing"
    program = (
        "import os, sys, json; sys.path[:] = sys.argv[3:]\n"
        f"open({str(listing)!r}, 'w').write(json.dumps([dict(os.environ), sorted(os.listdir('/proc/self/fd'))]))\n"
        "from veen.products.bridge.verifier import main; main()\n"
    )
    monkeypatch.setattr(verifier, "_PROGRAM", program)
    log = SmallLog(1)
    bundle = tmp_path / "b.veenb"
    bundle.write_bytes(log.bundle())
    assert isinstance(verify_apart(bundle, tmp_path / "spool", log.trust(), {}), BundleVerdict)
    import json

    environment, descriptors = json.loads(listing.read_text())
    assert "VEEN_PASSPHRASE_FILE" not in environment
    assert str(secret.fileno()) not in descriptors
    secret.close()


def test_a_verifier_that_dies_imports_nothing(tmp_path, monkeypatch):
    from veen.products.bridge import verifier

    monkeypatch.setattr(verifier, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    log = SmallLog(1)
    bundle = tmp_path / "b.veenb"
    bundle.write_bytes(log.bundle())
    with pytest.raises(BridgeError, match="status -9"):
        verify_apart(bundle, tmp_path / "spool", log.trust(), {})


def test_the_audit_schemas_have_their_ids():
    assert ONLINE.id != OFFLINE.id
