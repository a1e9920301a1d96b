"""A hub under load, a stream into silver and gold, and a driver that is killed: no row lost or doubled."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.cli.hubprocess import running
from tests.client.hubs import QUICK, person, token_for
from tests.lake.hub_builders import ORDERS, RING, TRADES, settings

from veen.client.client import Client
from veen.client.home import Home
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.client.verify.pin import HubPin
from veen.lake import folds, tables
from veen.lake.log.keys import write_keys
from veen.lake.tables.manifest import TableLog
from veen.overlays import kv

pytestmark = pytest.mark.xdist_group("jvm")

DRIVER = Path(__file__).with_name("tabledriver.py")


class Load:
    """Writers that do not pause until they are told to."""

    def __init__(self, hub, home):
        self._hub, self._home = hub, home
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()))
        self.sent = 0

    async def _send(self):
        who = person("alice")
        pin = HubPin.parse(self._hub.about["hub_pk"])
        async with await Client.connect(
            self._hub.url, pin=pin, identity=who, keyring=RING, home=Home.at(self._home), retry=QUICK
        ) as client:
            await client.authorize(token_for(who.client_id, ORDERS.stream_id, TRADES.stream_id))
            while not self._enough.is_set():
                for stream in ("orders", "trades"):
                    writes = [kv.put(f"key-{number % 7}", self.sent + number) for number in range(5)]
                    drafts = [Draft(body=write.body, schema=write.schema) for write in writes]
                    for outcome in await client.send_many(stream, drafts):
                        assert isinstance(outcome, Sent)
                    self.sent += len(drafts)
                await asyncio.sleep(0.2)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._enough.set()
        self._thread.join()


@contextlib.contextmanager
def driver(*words):
    """The driver with all its processes; killed at the end, if it has not ended by then."""
    process = subprocess.Popen([sys.executable, DRIVER, *map(str, words)], start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def version(to):
    return TableLog(str(to)).state().version


def both(to):
    return tables.digest(str(to), "bronze"), tables.digest(str(to), "silver")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["python", "spark"])
def test_a_driver_that_is_killed_twice_loses_and_doubles_nothing(tmp_path, engine):
    rng = random.Random(os.urandom(8))
    keys = write_keys(tmp_path / "keys", RING.entries)
    to, events = tmp_path / "tables", tmp_path / "events"
    events.mkdir()
    with running(tmp_path / "hub", *settings(tmp_path)) as hub:
        with Load(hub, tmp_path / "home") as load:
            for _ in range(2):
                begun = version(to)
                with driver(engine, hub.data_dir, to, keys.path, events) as process:
                    while version(to) < begun + rng.randint(2, 5):
                        assert process.poll() is None
                        time.sleep(0.05)
                    time.sleep(rng.random())
        hub.stop()  # what it still held in its journal is in the chunks now
    with driver(engine, hub.data_dir, to, keys.path, events, "once") as process:
        assert process.wait(timeout=300) == 0
    whole = tmp_path / "whole"
    loaded = tables.load(str(hub.data_dir), str(whole), keys=keys, engine="python")
    assert loaded.entries == load.sent > 0
    assert tables.show(str(to)).heads == tables.show(str(whole)).heads
    assert both(to) == both(whole)
    expected = folds.run(str(hub.data_dir), "kv", keys=keys, engine="python")
    assert tables.show(str(to)).states == {"kv": expected.state_hash.hex()}
    written = b"".join(path.read_bytes() for place in (events, to) for path in place.rglob("*") if path.is_file())
    for stream in (ORDERS, TRADES):
        for secret in (stream.secret(), stream.secret().hex().encode(), stream.to_text().encode()):
            assert secret not in written
