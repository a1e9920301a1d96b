"""Numbered events through the bridge while exporter and importer are killed: each once, in order (AGB-09, AGB-19)."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.hubprocess import DEV, running

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.writing import Sent
from veen.client.verify.pin import HubPin
from veen.overlays.airgap.bodies import ImportedEvent, OfflineRecord, OnlineRecord
from veen.products.airgap.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.airgap.files import BridgeFiles, is_bundle_name

SOURCE, TARGET = "record/numbers", "import/z1/numbers"
STREAMS = (SOURCE, TARGET, ONLINE_LOG, OFFLINE_LOG)

# One run of a side, in a process that the test may kill. It says "working" when its clients are open.
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from tests.products.airgap.test_kills import one_side
asyncio.run(one_side(json.loads(sys.argv[1])))
"""


def person(root, name):
    """The same identity in every process."""
    from hashlib import shake_128

    drawn = iter(range(1, 1_000))
    return Identity.create(
        name, now=1_700_000_000, random=lambda size: shake_128(f"{root}{name}{next(drawn)}".encode()).digest(size)
    )


def keys_of(root, stream):
    from hashlib import shake_128

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


async def one_side(site):
    from veen.products.airgap.audit import Auditor
    from veen.products.airgap.exporting import OUTGOING, Exporter, ExportOptions
    from veen.products.airgap.importing import FOLDERS, Importer, ImportOptions
    from veen.products.airgap.trust import TrustList

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
        print("working", flush=True)
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
        print("working", flush=True)
        await importer.run()
        await writer.aclose()
    await logger.aclose()


def attempt(site, side, kill_after):
    """One process; True if it came to its end before it was killed."""
    repository = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{repository}:{repository / 'src'}"}
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps({**site, "side": side})], stdout=subprocess.PIPE, env=env, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "working\n"
        try:
            child.wait(timeout=kill_after)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
    assert child.returncode in (0, -signal.SIGKILL)
    return child.returncode == 0


def carried(root):
    """The walk with the stick: copied, then renamed, so that a half-copied file is never taken."""
    (root / "in" / "incoming").mkdir(parents=True, exist_ok=True)
    for path in sorted((root / "out" / "outgoing").iterdir()):
        if not is_bundle_name(path.name):  # one that has no name yet is the exporter's: it goes on with it
            continue
        hidden = root / "in" / "incoming" / f".{path.name}"
        shutil.copy(path, hidden)
        hidden.rename(hidden.with_name(path.name))
        path.unlink()


def through(tmp_path, count, per_bundle, seed, growth, first_lives=()):
    """`first_lives`: (side, function of BridgeFiles before which the first process of that side dies)."""
    rng = random.Random(seed)
    with running(tmp_path / "z1", *DEV) as z1, running(tmp_path / "z2", *DEV) as z2:
        site = {
            "root": str(tmp_path),
            "z1": {"url": z1.url, "pin": z1.about["hub_pk"]},
            "z2": {"url": z2.url, "pin": z2.about["hub_pk"]},
            "per_bundle": per_bundle,
        }
        source, target, online, offline = (keys_of(str(tmp_path), stream) for stream in STREAMS)

        async def send():
            async with await client(site, "z1", "producer", source.for_writers()) as producer:
                bodies = [b"%d" % number for number in range(count)]
                for first in range(0, count, per_bundle):
                    outcomes = await producer.send_many(SOURCE, bodies[first : first + per_bundle])
                    assert all(isinstance(outcome, Sent) for outcome in outcomes), outcomes

        asyncio.run(send())
        killed = 0
        for side in ("export", "import"):
            # Ever longer lives, from none at all: every part of the work is hit, and the work is done in the end.
            life = 0.0
            for name in (name for of, name in first_lives if of == side):
                assert not attempt({**site, "dies_before": name}, side, 600.0)
                killed += 1
                carried(tmp_path)
            while not attempt(site, side, life + rng.random() * 0.2):
                killed += 1
                life = life * growth + 0.1
                carried(tmp_path)
            carried(tmp_path)

        async def check():
            reader = await client(site, "z2", "analyst", target, offline)
            auditor = await client(site, "z1", "auditor", online)
            async with reader, auditor:
                bodies = [ImportedEvent.from_bytes(entry.body) async for entry in reader.read(TARGET)]
                bundles = [OnlineRecord.from_bytes(entry.body) async for entry in auditor.read(ONLINE_LOG)]
                done = [OfflineRecord.from_bytes(entry.body) async for entry in reader.read(OFFLINE_LOG)]
            assert [int(body.origin_body or b"") for body in bodies] == list(range(count))
            assert [record.bundle_id for record in done] == [record.bundle_id for record in bundles]
            assert sum(record.count for record in done) == count

        asyncio.run(check())
    return killed


@pytest.mark.req("AGB-09", "AGB-13", "AGB-19")
def test_a_sample_of_events_survives_kills(tmp_path):
    assert through(tmp_path, 150, 60, seed=1, growth=2.0) > 0


@pytest.mark.req("AGB-09", "AGB-19")
def test_a_bundle_that_has_no_name_yet_is_not_carried_away(tmp_path):
    """The exporter dies when it has kept the head of the chain, just before the bundle gets its name."""
    assert through(tmp_path, 20, 15, seed=3, growth=4.0, first_lives=[("export", "publish"), ("import", "move")]) >= 2


@pytest.mark.req("AGB-09", "AGB-13", "AGB-19")
@pytest.mark.slow
def test_ten_thousand_events_survive_kills(tmp_path):
    assert through(tmp_path, 10_000, 500, seed=2, growth=1.2) > 0
