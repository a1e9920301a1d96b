"""A query service over a fixed log, with a hub in the same loop that takes its records; and the same behind HTTP."""

import asyncio
import contextlib
import threading
from hashlib import sha256

from tests.client.builders import seeded
from tests.client.hubs import client_at, hub_at, person, pin_of
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, filled

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.transport.inprocess import InProcess
from veen.io.asgi_server import ListenAddress, listening, make_server
from veen.lake.query.recording import ACCESSES, EXECUTIONS, REQUESTS, RESULTS
from veen.lake.query.store import ResultStore
from veen.products.queryservice.http import make_app
from veen.products.queryservice.principals import Principals
from veen.products.queryservice.service import QueryService, ServiceSettings
from veen.testing.hostile import HostileHub

TOKENS = {name: f"token-of-{name}" for name in ("alice", "bob", "carol", "dora")}
RECORDS = (REQUESTS, RESULTS, EXECUTIONS, ACCESSES)
RING = Keyring()
for name in RECORDS:
    RING = RING.with_keys(StreamKeys.create(name, random=seeded(name)))
for keys in KEYS.values():
    RING = RING.with_keys(keys)


def table(name, **members):
    return {
        "token_sha256": sha256(TOKENS[name].encode()).hexdigest(),
        "client_id": sha256(name.encode()).hexdigest(),
        "scopes": ["record/*"],
        **members,
    }


PRINCIPALS = Principals.of(
    {
        "principal": {
            "alice": table("alice"),
            "bob": table("bob", scopes=[STREAMS[0]], max_rows=3),
            "carol": table("carol", auditor=True),
            "dora": table("dora", evidence_min="full"),
        },
        "classes": {STREAMS[0]: "confidential", "record/*": "internal"},
    }
)
ALICE, BOB, CAROL, DORA = PRINCIPALS.members


def log_at(path, count=60):
    filled(path, count).done()
    return str(path)


class World:
    """One hub, one wire to it, one store; services come and go."""

    hub = None  # the hub that takes the records

    def __init__(self, tmp_path, data_dir, client, wire):
        self.data_dir, self.client, self.wire = data_dir, client, wire
        self.store = ResultStore(tmp_path / "store")

    def settings(self, **changes):
        values = {"data_dir": self.data_dir, "keys": KEYRING, "now": lambda: 1_700_000_100, "record_seconds": 5.0}
        return ServiceSettings(**values | changes)

    async def open(self, kind=QueryService, *, principals=PRINCIPALS, **changes):
        return await kind.open(self.client, self.store, principals, self.settings(**changes))

    async def events(self, stream):
        return [entry.event async for entry in self.client.read(stream)]


@contextlib.asynccontextmanager
async def world_at(tmp_path, data_dir, **limits):
    async with hub_at(tmp_path / "hub", **limits) as hub:
        wire = HostileHub(InProcess(hub.api))
        who = person("query-service")
        async with client_at(wire, pin_of(hub), who, tmp_path / "home", ring=RING) as client:
            world = World(tmp_path, data_dir, client, wire)
            world.hub = hub
            yield world


@contextlib.contextmanager
def served(tmp_path, data_dir, kind=QueryService, *, principals=PRINCIPALS, at=None, prepare=None, **changes):
    """The URL of a service that runs in a thread, over real HTTP on loopback; `prepare` is given the world first."""
    started, stop, box, at = threading.Event(), threading.Event(), {}, at or ListenAddress()

    async def main():
        async with world_at(tmp_path, data_dir) as world:
            if prepare is not None:
                await prepare(world)
            app = make_app(lambda: world.open(kind, principals=principals, **changes))
            async with listening(make_server(app, at), at) as (url, _):
                box["url"] = url
                started.set()
                await asyncio.to_thread(stop.wait)

    def run():
        try:
            asyncio.run(main())
        finally:
            started.set()

    thread = threading.Thread(target=run, name="query service")
    thread.start()
    try:
        assert started.wait(120)
        yield box["url"]
    finally:
        stop.set()
        thread.join(120)
