"""Two zones in one process: real hubs, the four identities of a bridge, and bundles between them."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.client.builders import seeded
from tests.client.hubs import OPEN, client_at, hub_at, person, pin_of

from veen.client.client import Client
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.writing import Sent
from veen.client.transport.inprocess import InProcess
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, Auditor
from veen.products.bridge.exporting import OUTGOING, Exporter, ExportOptions
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.importing import FOLDERS, INCOMING, Importer, ImportOptions
from veen.products.bridge.trust import TrustList

SOURCE = "record/security/auth"
TARGET = "import/z1/security/auth"
BRIDGE = "plant-a"


@dataclass
class Zones:
    """What a test needs of both zones."""

    tmp: Path
    z1: Any
    z2: Any
    producer: Client
    exporter_client: Client
    online: Client
    importer_client: Client
    offline: Client
    reader: Client  # of the offline zone: opens import streams, which the importer cannot
    source_keys: StreamKeys
    target_keys: StreamKeys
    trust: TrustList
    export_key: Any
    export_files: BridgeFiles
    import_files: BridgeFiles
    options: dict[str, Any] = field(default_factory=dict)

    def exporter(self, **options: Any) -> Exporter:
        chosen = {"bridge": BRIDGE, "operator": "online-log", "with_openings": True, **options}
        ring = Keyring.of([self.source_keys])
        auditor = Auditor(self.online, ONLINE_LOG)
        return Exporter(
            self.exporter_client, ring, self.export_key, auditor, self.export_files, ExportOptions(**chosen)
        )

    def importer(self, **options: Any) -> Importer:
        auditor = Auditor(self.offline, OFFLINE_LOG)
        chosen = ImportOptions(operator="offline-log", **options)
        return Importer(self.importer_client, auditor, self.import_files, self.trust, chosen)

    def carry(self) -> list[str]:
        """The walk with the stick: everything in `outgoing` to `incoming`."""
        names = self.export_files.bundles(OUTGOING)
        for name in names:
            self.export_files.path(OUTGOING, name).rename(self.import_files.path(INCOMING, name))
        return names


@contextlib.asynccontextmanager
async def zones(tmp: Path, *, source=SOURCE, target=TARGET, settings=OPEN, clock=None, **more):
    names = (source, target, ONLINE_LOG, OFFLINE_LOG)
    source_keys, target_keys, online_keys, offline_keys = (
        StreamKeys.create(name, random=seeded(f"{tmp}{name}")) for name in names
    )
    async with contextlib.AsyncExitStack() as stack:
        z1 = await stack.enter_async_context(hub_at(tmp / "z1", settings=settings, clock=clock, **more))
        z2 = await stack.enter_async_context(hub_at(tmp / "z2", settings=settings, clock=clock, **more))

        async def client(hub, name, *keys):
            who = person(name)
            ring = Keyring.of(keys)
            wire = InProcess(hub.api)
            timed = {} if clock is None else {"clock": clock}
            opened = client_at(wire, pin_of(hub), who, tmp / name, ring=ring, bounds=None, **timed)
            return await stack.enter_async_context(opened)

        exporter = person("exporter")
        trust = TrustList.from_json(
            [
                {
                    "zone": "z1",
                    "bridge": BRIDGE,
                    "hub": f"ed25519:{z1.identity.current_pk.hex()}",
                    "exporters": [exporter.id_sign_pk.hex()],
                }
            ]
        )
        yield Zones(
            tmp=tmp,
            z1=z1,
            z2=z2,
            producer=await client(z1, "producer", source_keys.for_writers()),
            exporter_client=await client(z1, "exporter", source_keys),
            online=await client(z1, "online-log", online_keys),
            importer_client=await client(z2, "importer", target_keys.for_writers()),
            offline=await client(z2, "offline-log", offline_keys),
            reader=await client(z2, "analyst", target_keys, offline_keys),
            source_keys=source_keys,
            target_keys=target_keys,
            trust=trust,
            export_key=exporter.id_sign,
            export_files=BridgeFiles(tmp / "bridge-z1", (OUTGOING,)),
            import_files=BridgeFiles(tmp / "bridge-z2", FOLDERS),
        )


def phase(tmp: Path, work: Any, **options: Any) -> Zones:
    """Do some work in both zones, then stop the hubs: their directories have all of it. May be repeated."""

    async def whole() -> Zones:
        world: Zones
        async with zones(tmp, **options) as world:
            await work(world)
        return world

    return asyncio.run(whole())


async def send_numbers(world: Zones, first: int, last: int) -> None:
    outcomes = await world.producer.send_many(SOURCE, [b"event %d" % number for number in range(first, last + 1)])
    assert all(isinstance(outcome, Sent) for outcome in outcomes)


async def crossed(world: Zones) -> list[Any]:
    """What the offline zone has: decoded imports in the order of their stream."""
    from veen.overlays.airgap.bodies import read_crossed

    return [read_crossed(entry.event) async for entry in world.reader.read(TARGET) if entry.event is not None]
