"""A primary, and a replica of it, in the event loop of a test."""

import contextlib

from tests.client.hubs import OPEN, client_at, person, pin_of

from veen.client.send.sealing import Draft
from veen.client.transport.inprocess import InProcess
from veen.hub.process.config import load
from veen.hub.process.replica import ReplicaHub
from veen.products.federation.replica import ReplicaFollower, open_replica

START = 1_800_000_000  # of tests that set the clock
SMALL = {"limits__max_checkpoint_interval": "4"}  # chunks of four entries


@contextlib.asynccontextmanager
async def replica_at(path, transport, pin, *, source="http://127.0.0.1:9", **settings):
    """A replica that follows what `transport` leads to; `step` is for the test to call."""
    pin = await open_replica(path, source, pin, transport)
    flags = {"data_dir": str(path), "listen.port": "0", "log.level": "error", **OPEN}
    flags |= {key.replace("__", "."): value for key, value in settings.items()}
    async with ReplicaHub.serve(load(None, {}, flags), accept_clock=True) as hub:
        yield hub, ReplicaFollower(hub, transport, pin)


@contextlib.asynccontextmanager
async def following(path, hub, **options):
    async with replica_at(path, InProcess(hub.api), pin_of(hub).to_text(), **options) as (replica, follower):
        yield replica, follower


async def caught_up(follower):
    """Ask until the replica has all; how often it took."""
    for turn in range(1, 50):
        if await follower.step():
            return turn
    raise AssertionError("the replica does not catch up")


async def write(hub, home, count, first=1, *, name="alice", stream="orders", **options):
    who = person(name, START if "clock" in options else None)
    async with client_at(InProcess(hub.api), pin_of(hub), who, home, **options) as client:
        drafts = [Draft(body=b"order %d" % number) for number in range(first, first + count)]
        return await client.send_many(stream, drafts)


def sizes(hub):
    return {files.label: files.size for files in hub.sequencer.store.labels()}
