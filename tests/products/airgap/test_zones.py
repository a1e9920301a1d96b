"""What sites differ in: gated hubs, labels that rotate, derived export, one-way link by command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.client.hubs import GATED, ISSUER, run
from tests.products.airgap.signer import SmallLog
from tests.products.airgap.zones import SOURCE, TARGET, crossed, send_numbers, zones

from veen.client.errors import HubRefused
from veen.client.send.captokens import issue
from veen.core.errors import VeenError
from veen.products.airgap.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.airgap.selecting import Selector
from veen.products.airgap.verifier import verify_here

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
