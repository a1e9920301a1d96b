"""What sites differ in: gated hubs, labels that rotate, derived export, one-way link by command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.hubs import GATED, ISSUER, run
from tests.products.bridge.signer import SmallLog
from tests.products.bridge.zones import SOURCE, TARGET, crossed, phase, send_numbers, zones

from veen.client.errors import HubRefused
from veen.client.send.captokens import issue
from veen.core.errors import VeenError
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.bundle import BridgeError
from veen.products.bridge.exporting import Selector
from veen.products.bridge.verifier import verify_here

VEEN = Path(sys.executable).with_name("veen")


async def authorized(world):
    """A token for each role that writes, for its streams and no others."""
    for client, stream in (
        (world.producer, SOURCE), (world.online, ONLINE_LOG), (world.importer_client, TARGET),
        (world.offline, OFFLINE_LOG),
    ):  # fmt: skip
        await client.authorize(issue(ISSUER, client.client_id, [stream], ttl=10**6))


@pytest.mark.req("AGB-02")
def test_gated_hubs_let_each_role_write_its_own_streams_and_nothing_else(tmp_path):
    """The exporter has no token and cannot write; the importer's token is for import streams alone."""

    async def work():
        async with zones(tmp_path, settings=GATED) as world:
            await authorized(world)
            await send_numbers(world, 1, 5)
            await world.exporter().export(SOURCE)
            world.carry()
            outcomes = await world.importer(verify=verify_here).run()
            assert [outcome.result for outcome in outcomes] == ["imported"]
            assert len(await crossed(world)) == 5
            with pytest.raises(HubRefused):
                await world.exporter_client.send(SOURCE, b"written by the exporter")
            with pytest.raises(VeenError):
                await world.importer_client.send(world.offline.keyring.entries[0], b"not its stream")

    run(work())


@pytest.mark.req("AGB-09")
def test_labels_that_rotate_in_both_zones(tmp_path):
    """Each label of the source has its own chain, and imports go to the label of their time (D-128)."""

    async def work():
        now = [1_700_000_000.0]

        def clock():
            return now[0]

        settings = {**GATED, "admission.profiles": "rotating"}
        async with zones(tmp_path, settings=settings, clock=clock) as world:
            await authorized(world)
            for step in range(3):
                await send_numbers(world, step * 2 + 1, step * 2 + 2)
                await world.exporter(clock=clock, heartbeat=False).export(SOURCE)
                now[0] += 3_000  # of an epoch of 3,600 seconds: some steps begin a new label
                world.carry()
                outcomes = await world.importer(verify=verify_here, clock=clock).run()
                assert [outcome.result for outcome in outcomes] == ["imported"]
            rows = await crossed(world)
            assert [row.body.origin_body for row in rows] == [b"event %d" % number for number in range(1, 7)]
            assert len({row.body.receipt.label for row in rows}) > 1
            assert len({row.event.label for row in rows}) > 1

    run(work())


@pytest.mark.parametrize("ahead", [-20_000, 20_000])
def test_an_importer_whose_clock_is_epochs_away_imports_each_event_once(tmp_path, ahead):
    """The cursors that are kept are those of the hub's epoch; here a crash comes before the audit."""

    async def work():
        now = 1_700_000_000.0
        settings = {**GATED, "admission.profiles": "rotating"}
        async with zones(tmp_path, settings=settings, clock=lambda: now) as world:
            await authorized(world)
            await send_numbers(world, 1, 3)
            await world.exporter(clock=lambda: now, heartbeat=False).export(SOURCE)
            world.carry()

            def importer():
                return world.importer(verify=verify_here, clock=lambda: now + ahead)

            cut = importer()

            async def lost(target):
                raise ConnectionError

            cut._targets = lost  # all events are sent, and nothing is written down of it
            with pytest.raises(ConnectionError):
                await cut.run()
            assert [outcome.result for outcome in await importer().run()] == ["resumed"]
            assert [row.body.origin_body for row in await crossed(world)] == [b"event %d" % n for n in (1, 2, 3)]

    run(work())


def test_derived_export_copies_chosen_events_once(tmp_path):
    """D-132: a selector of its own writes the export stream; a second run and a crash in between copy nothing twice."""
    export = "export/z1/auth"

    async def work():
        from tests.client.hubs import client_at, person, pin_of

        from veen.client.identity.keyring import Keyring, StreamKeys
        from veen.client.transport.inprocess import InProcess

        async with zones(tmp_path) as world:
            keys = StreamKeys.create(export)
            ring = Keyring.of([world.source_keys, keys])
            wire = InProcess(world.z1.api)

            def odd(entry, opened):
                return None if int(opened.body.split()[1]) % 2 else "even"

            async with client_at(
                wire, pin_of(world.z1), person("selector"), tmp_path / "selector", ring=ring
            ) as client:
                await send_numbers(world, 1, 6)
                assert await Selector(client, tmp_path / "select", odd).copy(SOURCE, export) == 3
                assert await Selector(client, tmp_path / "select", odd).copy(SOURCE, export) == 0
                await send_numbers(world, 7, 9)
                (tmp_path / "select" / "selected.json").unlink()  # lost: the hub's cursor knows
                assert await Selector(client, tmp_path / "select", odd).copy(SOURCE, export) == 2
                copies = [entry async for entry in client.read(export)]
                originals = [entry async for entry in client.read(SOURCE)]
            assert [entry.body for entry in copies] == [b"event %d" % number for number in (1, 3, 5, 7, 9)]
            assert [entry.event.hdr.parent_id for entry in copies if entry.event] == [
                originals[number - 1].msg_id for number in (1, 3, 5, 7, 9)
            ]

    run(work())


def test_two_sources_of_one_target_are_copied_whole(tmp_path):
    """The law that resumed equals from the start: whatever is cut off, lost or of before."""
    export, other = "export/z1/auth", "record/security/door"

    async def work():
        from tests.client.hubs import client_at, person, pin_of

        from veen.client.identity.keyring import Keyring, StreamKeys
        from veen.client.transport.inprocess import InProcess

        async with zones(tmp_path) as world:
            keys, others = StreamKeys.create(export), StreamKeys.create(other)
            ring, wire = Keyring.of([world.source_keys, keys, others]), InProcess(world.z1.api)
            at = pin_of(world.z1)
            async with (
                client_at(wire, at, person("producer2"), tmp_path / "p2", ring=ring) as producer,
                client_at(wire, at, person("selector"), tmp_path / "selector", ring=ring) as client,
            ):

                async def written(*numbers):
                    await producer.send_many(other, [b"door %d" % number for number in numbers])

                async def copied():
                    return sorted([entry.body async for entry in client.read(export)])

                def selector():
                    return Selector(client, tmp_path / "select", lambda entry, opened: None)

                await send_numbers(world, 1, 3)
                await written(1, 2, 3, 4, 5)
                assert await selector().copy(SOURCE, export) == 3
                assert await selector().copy(other, export) == 5
                await written(6)
                # Cut off behind the hub's answer, and before the state is written; then the other source comes first.
                cut = selector()
                plain = cut.send

                async def lost(*args):
                    await plain(*args)
                    raise ConnectionError

                cut.send = lost
                with pytest.raises(ConnectionError):
                    await cut.copy(other, export)
                await send_numbers(world, 4, 4)
                assert await selector().copy(SOURCE, export) == 1
                assert await selector().copy(other, export) == 0
                whole = [b"door %d" % n for n in range(1, 7)] + [b"event %d" % n for n in range(1, 5)]
                assert await copied() == whole
                # What an earlier version wrote down: two of the second source were taken for copies of the first.
                state = {f"{SOURCE} {export}": {"seq": 4, "copies": 4}, f"{other} {export}": {"seq": 9, "copies": 12}}
                (tmp_path / "select" / "selected.json").write_text(json.dumps(state))
                await written(7)
                done = await selector().select(other, export)
                assert (done.copied, done.left_out) == (1, 0)
                assert await selector().copy(SOURCE, export) == 0
                assert await copied() == sorted([*whole, b"door 7"])

    run(work())


def test_events_that_an_earlier_version_left_out_are_found_and_copied(tmp_path):
    """Two sources and one target gave 3 of 3, then 2 of 5."""
    export, other = "export/z1/auth", "record/security/door"

    async def work():
        from tests.client.hubs import client_at, person, pin_of

        from veen.client.identity.keyring import Keyring, StreamKeys
        from veen.client.send.sealing import Draft
        from veen.client.transport.inprocess import InProcess

        async with zones(tmp_path) as world:
            keys, others = StreamKeys.create(export), StreamKeys.create(other)
            ring, wire = Keyring.of([world.source_keys, keys, others]), InProcess(world.z1.api)
            async with client_at(wire, pin_of(world.z1), person("selector"), tmp_path / "s", ring=ring) as client:
                async with client_at(wire, pin_of(world.z1), person("p2"), tmp_path / "p2", ring=ring) as producer:
                    await producer.send_many(other, [b"door %d" % number for number in range(1, 6)])
                entries = [entry async for entry in client.read(other)]
                drafts = [Draft(body=e.body, schema=e.event.hdr.schema, parent=e.msg_id) for e in entries[3:]]
                await client.send_many(export, drafts)  # as it was left
                blind = Keyring.of([world.source_keys, keys.for_writers(), others])
                async with client_at(wire, pin_of(world.z1), person("selector"), tmp_path / "b", ring=blind) as writer:
                    with pytest.raises(BridgeError, match="no key here can read them"):
                        await Selector(writer, tmp_path / "x", lambda entry, opened: None).copy(other, export)
                done = await Selector(client, tmp_path / "x", lambda entry, opened: None).select(other, export)
                assert (done.copied, done.left_out) == (3, 3)
                assert len([entry async for entry in client.read(export)]) == 5

    run(work())


def test_a_bundle_that_comes_twice_is_already_imported_and_one_that_waits_is_in_the_progress(tmp_path):
    """Those that wait are not verified before the one before them is there."""

    async def work(world):
        for number in range(4):
            await send_numbers(world, number * 2 + 1, number * 2 + 2)
            await world.exporter().export(SOURCE)
        names = world.carry()
        incoming = world.import_files.path("incoming")
        copies = {name: (incoming / name).read_bytes() for name in names}
        (incoming / names[1]).unlink()
        verified = []

        def verify(path, *args):
            verified.append(path.name)
            return verify_here(path, *args)

        importer = world.importer(verify=verify)
        results = [outcome.result for outcome in await importer.run()]
        assert results == ["imported", "waiting", "waiting"]
        (chain,) = importer.progress()
        assert (chain.imported, chain.stated, chain.waiting) == (2, 8, 2)
        verified.clear()
        assert await world.importer(verify=verify).run() == []
        assert verified == []  # nothing of those that wait was read but the header
        (incoming / f"again-{names[0]}").write_bytes(copies[names[0]])
        changed = bytearray(copies[names[0]])
        changed[-1] ^= 1
        (incoming / f"other-{names[0]}").write_bytes(changed)
        by_name = {outcome.name: outcome.result for outcome in await world.importer(verify=verify).run()}
        assert by_name == {f"again-{names[0]}": "already imported", f"other-{names[0]}": "rejected"}
        (incoming / names[1]).write_bytes(copies[names[1]])
        importer = world.importer(verify=verify)
        assert [outcome.result for outcome in await importer.run()] == ["imported"] * 3
        assert [(chain.imported, chain.stated, chain.waiting) for chain in importer.progress()] == [(8, 8, 0)]
        assert len(await crossed(world)) == 8

    phase(tmp_path, work)


@pytest.mark.req("AGB-03")
def test_bundles_go_over_udp_by_command(tmp_path):
    data = SmallLog(30).bundle()
    (tmp_path / "out" / "outgoing").mkdir(parents=True)
    (tmp_path / "out" / "outgoing" / "b-1.veenb").write_bytes(data)
    env = {**os.environ, "VEEN_HOME": str(tmp_path / "home")}
    receiver = subprocess.Popen(
        [str(VEEN), "bridge", "receive", "--dir", str(tmp_path / "in"), "--udp", "127.0.0.1:0", "--wait", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert receiver.stderr is not None
    line = receiver.stderr.readline()
    address = line.split()[-1]
    send = [str(VEEN), "bridge", "send", "--dir", str(tmp_path / "out"), "--udp", address, "--rate", "20"]
    subprocess.run(send, check=True, capture_output=True, env=env)
    out, errors = receiver.communicate(timeout=60)
    assert receiver.returncode == 0, errors
    (path,) = (tmp_path / "in" / "incoming").glob("*.veenb")
    assert path.read_bytes() == data
    assert path.name in out
    assert [path.name for path in (tmp_path / "out" / "sent").iterdir()] == ["b-1.veenb"]
