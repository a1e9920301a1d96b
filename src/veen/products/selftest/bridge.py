"""The air-gap bridge between two hubs: export, import, reconcile, and J1 to J3 from the report (AGB-16)."""

import tempfile
from pathlib import Path
from typing import Final

from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.overlays.airgap.bodies import OfflineRecord, OnlineRecord, read_crossed
from veen.overlays.framework.schema import Typed
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, Auditor
from veen.products.bridge.exporting import OUTGOING, Exporter, ExportOptions
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.importing import FOLDERS, INCOMING, Importer, ImportOptions
from veen.products.bridge.trust import TrustList
from veen.products.selftest.suite import Suite, World, expect

_BRIDGE: Final = "selftest"
_EVENTS: Final = 100


class _Site:
    """Two zones, the four identities of a bridge, and a reader in each zone."""

    def __init__(self, world: World, root: Path) -> None:
        self._world = world
        self.source, self.online_log = StreamKeys.create("record/selftest"), StreamKeys.create(ONLINE_LOG)
        self.target, self.offline_log = StreamKeys.create("import/z1/selftest"), StreamKeys.create(OFFLINE_LOG)
        self.exporter: Identity = world.person("exporter")
        self.out = BridgeFiles(root / "out", (OUTGOING,))
        self.incoming = BridgeFiles(root / "in", FOLDERS)

    async def open(self) -> None:
        """Connect all identities to the hubs of their zones."""
        client = self._world.client
        self.producer = await client("producer", self.source.for_writers(), hub=1)
        self.auditor = await client("auditor", self.source, self.online_log, hub=1)
        self.analyst = await client("analyst", self.target, self.offline_log, hub=2)
        reader = await client(self.exporter, self.source, hub=1)
        online = await client("online-log", self.online_log.for_writers(), hub=1)
        options = ExportOptions(bridge=_BRIDGE, operator="selftest", with_openings=True, max_events=40)
        ring = Keyring.of([self.source])
        auditor = Auditor(online, ONLINE_LOG)
        self._exporter = Exporter(reader, ring, self.exporter.id_sign, auditor, self.out, options)
        source = {
            "zone": "z1",
            "bridge": _BRIDGE,
            "hub": (await self._world.hub(1)).pin.to_text(),
            "exporters": [self.exporter.id_sign_pk.hex()],
        }
        writer = await client("importer", self.target.for_writers(), hub=2)
        offline = Auditor(await client("offline-log", self.offline_log.for_writers(), hub=2), OFFLINE_LOG)
        trust = TrustList.from_json([source])
        self._importer = Importer(writer, offline, self.incoming, trust, ImportOptions(operator="selftest"))

    async def export(self) -> int:
        """Export new bundles; return their number."""
        return len(await self._exporter.export("record/selftest"))

    async def bring(self, *, damage: bool = False) -> list[str]:
        """Carry the bundles and import them; return the results."""
        for name in self.out.bundles(OUTGOING):
            path = self.out.path(OUTGOING, name)
            data = path.read_bytes()
            if not damage:
                path.unlink()
            self.incoming.path(INCOMING, name).write_bytes(data[:-1] if damage else data)
        return [outcome.result for outcome in await self._importer.run()]


async def _crosses(world: World) -> None:
    with tempfile.TemporaryDirectory(prefix="veen-selftest-bridge-") as root:
        site = _Site(world, Path(root))
        await site.open()
        await site.producer.send_many("record/selftest", [b"event %d" % number for number in range(_EVENTS)])
        expect(await site.export() == 3, "100 events make three bundles of 40")
        refused = await site.bring(damage=True)
        expect(refused == ["rejected"] * 3, "a truncated bundle is refused as a whole")
        expect(await site.bring() == ["imported"] * 3, "intact copies are imported")
        expect(await site.export() == 1, "silence makes a heartbeat")
        expect(await site.bring() == ["imported"], "a heartbeat is imported")
        await _reconcile(site)


async def _reconcile(site: _Site) -> None:
    """Check J1 to J3 with the data that each zone can read."""
    analyst, auditor = site.analyst, site.auditor
    origins = [entry.msg_id async for entry in auditor.read("record/selftest")]
    crossed, writers = [], set()
    async for entry in analyst.read("import/z1/selftest"):
        expect(entry.event is not None, f"imported entry {entry.seq} does not open: {entry.error}")
        typed = None if entry.event is None else read_crossed(entry.event)
        expect(isinstance(typed, Typed), f"imported entry {entry.seq} was not brought by a bridge")
        if isinstance(typed, Typed):
            auditor.pin.identity.verify_receipt(typed.body.receipt)
            crossed.append(typed.body.receipt.leaf_hash)
            writers.add(entry.msg.client_id)
    expect(crossed == origins, "J1: every imported event has exactly one origin, in the order of the origin")
    online = [OnlineRecord.from_bytes(entry.body) async for entry in auditor.read(ONLINE_LOG)]
    offline = [OfflineRecord.from_bytes(entry.body) async for entry in analyst.read(OFFLINE_LOG)]
    done = [record for record in offline if record.result == "imported"]
    expect(
        [record.bundle_id for record in done] == [record.bundle_id for record in online],
        "K1: both audit logs have every bundle",
    )
    expect(sum(record.count for record in done) == len(crossed), "J2: all events of imported bundles are there")
    z1_writers = {entry.msg.client_id async for entry in auditor.read("record/selftest", open=False)}
    z1_writers |= {entry.msg.client_id async for entry in auditor.read(ONLINE_LOG, open=False)}
    expect(not writers & z1_writers, "J3: no key writes in both zones")


SUITE: Final = Suite(
    name="bridge",
    about="The air-gap bridge between two hubs",
    checks={"events cross once, in order, with their evidence; J1, J2, J3 and K1 hold": _crosses},
)
