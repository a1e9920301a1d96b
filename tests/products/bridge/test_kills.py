"""Numbered events through the bridge while exporter and importer are killed: each once, in order (AGB-09, AGB-19)."""

import asyncio
import random
import shutil
import signal

import pytest
from tests.cli.hubprocess import DEV, running
from tests.processes import FORKED
from tests.products.bridge.sides import SOURCE, STREAMS, TARGET, client, keys_of, run_side

from veen.client.send.writing import Sent
from veen.overlays.airgap.bodies import ImportedEvent, OfflineRecord, OnlineRecord
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.files import is_bundle_name


def attempt(site, side, kill_after):
    """One process; True if it came to its end before it was killed."""
    heard, says = FORKED.Pipe(duplex=False)
    child = FORKED.Process(target=run_side, args=({**site, "side": side}, says))
    child.start()
    says.close()
    with heard:
        assert heard.recv()
    child.join(kill_after)
    if child.exitcode is None:
        child.kill()
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode == 0


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


@pytest.mark.slow
@pytest.mark.req("AGB-09", "AGB-13", "AGB-19")
def test_a_sample_of_events_survives_kills(tmp_path):
    assert through(tmp_path, 150, 60, seed=1, growth=2.0) > 0


@pytest.mark.slow
@pytest.mark.req("AGB-09", "AGB-19")
def test_a_bundle_that_has_no_name_yet_is_not_carried_away(tmp_path):
    """The exporter dies when it has kept the head of the chain, just before the bundle gets its name."""
    assert through(tmp_path, 20, 15, seed=3, growth=4.0, first_lives=[("export", "publish"), ("import", "move")]) >= 2


@pytest.mark.req("AGB-09", "AGB-13", "AGB-19")
@pytest.mark.slow
def test_ten_thousand_events_survive_kills(tmp_path):
    assert through(tmp_path, 10_000, 500, seed=2, growth=1.2) > 0
