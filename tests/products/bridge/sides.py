"""The two sides of a bridge, each in a process that a test may kill."""

import asyncio
import os
import signal
from hashlib import shake_128
from pathlib import Path

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.verify.pin import HubPin
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, Auditor
from veen.products.bridge.exporting import OUTGOING, Exporter, ExportOptions
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.importing import FOLDERS, Importer, ImportOptions
from veen.products.bridge.trust import TrustList

SOURCE, TARGET = "record/numbers", "import/z1/numbers"
STREAMS = (SOURCE, TARGET, ONLINE_LOG, OFFLINE_LOG)


def person(root, name):
    """The same identity in every process."""
    drawn = iter(range(1, 1_000))
    return Identity.create(
        name, now=1_700_000_000, random=lambda size: shake_128(f"{root}{name}{next(drawn)}".encode()).digest(size)
    )


def keys_of(root, stream):
    return StreamKeys.create(stream, random=lambda size: shake_128(f"{root}{stream}".encode()).digest(size))


async def client(site, zone, name, *keys):
    home = Home.at(Path(site["root"]) / f"home-{name}")
    return await Client.connect(
        site[zone]["url"],
        pin=HubPin.parse(site[zone]["pin"]),
        identity=person(site["root"], name),
        keyring=Keyring.of(keys),
        home=home,
        bounds=None,
    )


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def run_side(site, started):
    """Run a side until it ends; say so to `started` when its clients are open."""
    asyncio.run(one_side(site, lambda: started.send(True)))


async def one_side(site, say_started):
    root = Path(site["root"])
    if site.get("dies_before"):
        setattr(BridgeFiles, site["dies_before"], _die)
    source, target, online, offline = (keys_of(site["root"], stream) for stream in STREAMS)
    if site["side"] == "export":
        reader = await client(site, "z1", "exporter", source)
        logger = await client(site, "z1", "online-log", online.for_writers())
        options = ExportOptions(
            bridge="b", operator="o", with_openings=True, heartbeat=False, max_events=site["per_bundle"]
        )
        key = person(site["root"], "exporter").id_sign
        files = BridgeFiles(root / "out", (OUTGOING,))
        exporter = Exporter(reader, Keyring.of([source]), key, Auditor(logger, ONLINE_LOG), files, options)
        say_started()
        await exporter.export(SOURCE)
        await reader.aclose()
    else:
        writer = await client(site, "z2", "importer", target.for_writers())
        logger = await client(site, "z2", "offline-log", offline.for_writers())
        listed = {
            "zone": "z1",
            "bridge": "b",
            "hub": site["z1"]["pin"],
            "exporters": [person(site["root"], "exporter").id_sign_pk.hex()],
        }
        files = BridgeFiles(root / "in", FOLDERS)
        trust = TrustList.from_json([listed])
        importer = Importer(writer, Auditor(logger, OFFLINE_LOG), files, trust, ImportOptions(operator="o"))
        say_started()
        await importer.run()
        await writer.aclose()
    await logger.aclose()
