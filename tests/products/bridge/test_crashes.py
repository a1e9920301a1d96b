"""Crashes at every step of exporter and importer: each event arrives once, in order, each bundle is audited once."""

import contextlib

import pytest
from tests.client.hubs import client_at, person, pin_of, run
from tests.products.bridge.zones import SOURCE, TARGET, crossed, send_numbers, zones

from veen.client.identity.keyring import Keyring
from veen.client.transport.inprocess import InProcess
from veen.overlays.airgap.bodies import OfflineRecord, OnlineRecord
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, Auditor
from veen.products.bridge.exporting import Exporter, ExportOptions
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.importing import Importer, ImportOptions
from veen.products.bridge.verifier import verify_here


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


class Fuse:
    """Burns at the given step; a step is the moment before or after something lasting."""

    def __init__(self, steps):
        self.left = steps

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Crash


class Wire(InProcess):
    def __init__(self, handler, fuse):
        super().__init__(handler)
        self._fuse = fuse

    async def call(self, *args, **kwargs):
        self._fuse.step()
        answer = await super().call(*args, **kwargs)
        self._fuse.step()
        return answer


class Files(BridgeFiles):
    def __init__(self, root, folders, fuse):
        super().__init__(root, folders)
        self._fuse = fuse

    def _around(self, action, *args):
        self._fuse.step()
        action(*args)
        self._fuse.step()

    def save(self, state):
        self._around(super().save, state)

    def move(self, *args):
        self._around(super().move, *args)

    def publish(self, *args):
        self._around(super().publish, *args)


@contextlib.asynccontextmanager
async def process(world, hub, names, fuse):
    """Two clients of one process that may end at any step; their states stay on disk."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for name, *keys in names:
            wire = Wire(hub.api, fuse)
            opened = client_at(wire, pin_of(hub), person(name), world.tmp / name, ring=Keyring.of(keys), bounds=None)
            clients.append(await stack.enter_async_context(opened))
        yield clients


async def export_with(world, fuse):
    online = world.online.keyring.entries[0]
    names = [("exporter2", world.source_keys), ("online2", online)]
    async with process(world, world.z1, names, fuse) as (reader, writer):
        files = Files(world.export_files.root, ("outgoing",), fuse)
        options = ExportOptions(bridge="plant-a", operator="online-log", with_openings=True, heartbeat=False)
        ring = Keyring.of([world.source_keys])
        exporter = Exporter(reader, ring, world.export_key, Auditor(writer, ONLINE_LOG), files, options)
        await exporter.export(SOURCE)


async def import_with(world, fuse):
    offline = world.offline.keyring.entries[0]
    names = [("importer2", world.target_keys.for_writers()), ("offline2", offline)]
    async with process(world, world.z2, names, fuse) as (writer, logger):
        files = Files(world.import_files.root, (), fuse)
        options = ImportOptions(operator="offline-log", verify=verify_here)
        return await Importer(writer, Auditor(logger, OFFLINE_LOG), files, world.trust, options).run()


async def crashed(work, world, steps):
    """Whether the fuse burned before the work was done; afterwards the work is done to its end."""
    try:
        await work(world, Fuse(steps))
    except Crash:
        await work(world, Fuse(0))
        return True
    return False


@pytest.mark.req("AGB-09", "AGB-13", "AGB-19")
@pytest.mark.long
@pytest.mark.parametrize("side", ["export", "import"])
def test_a_crash_at_any_step_loses_and_doubles_nothing(tmp_path, side):
    async def work():
        async with zones(tmp_path) as world:
            steps, sent, burned = 1, 0, True
            while burned:
                await send_numbers(world, sent + 1, sent + 3)
                sent += 3
                if side == "export":
                    burned = await crashed(export_with, world, steps)
                    world.carry()
                    await import_with(world, Fuse(0))
                else:
                    await export_with(world, Fuse(0))
                    world.carry()
                    burned = await crashed(import_with, world, steps)
                steps += 1
            assert steps > 20
            assert [row.body.origin_body for row in await crossed(world)] == [
                b"event %d" % n for n in range(1, sent + 1)
            ]
            online = [OnlineRecord.from_bytes(entry.body) async for entry in world.online.read(ONLINE_LOG)]
            offline = [OfflineRecord.from_bytes(entry.body) async for entry in world.reader.read(OFFLINE_LOG)]
            assert [record.seq_to for record in online] == [3 * number for number in range(1, steps)]
            assert [record.bundle_id for record in offline] == [record.bundle_id for record in online]
            assert {record.result for record in offline} <= {"imported", "resumed"}
            assert TARGET.startswith("import/")

    run(work())


def test_a_verifier_that_outlives_its_importer_does_not_write_into_the_next_one_s_events(tmp_path):
    """SIGKILL ends the importer, not its child: the next importer verifies while the old child still writes."""
    from tests.products.bridge.signer import SmallLog

    from veen.products.bridge.verifier import crossings, verify_apart

    log, bundle, spool = SmallLog(3), tmp_path / "one.veenb", tmp_path / "spool"
    bundle.write_bytes(log.bundle())
    with spool.open("w+b") as orphan:
        verify_apart(bundle, spool, log.trust(), {})
        orphan.write(b"what the old child wrote" * 1000)
        orphan.flush()
        assert [crossing.position for crossing in crossings(spool)] == [0, 1, 2]
