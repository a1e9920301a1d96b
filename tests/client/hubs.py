"""Real hubs inside the test's event loop, people with keys, and clients between them."""

import asyncio
import contextlib
import shutil
import time

from tests.client.builders import seeded

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.state import StateStore
from veen.client.transport.calls import Retry
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.captoken import CapToken
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub
from veen.testing.hostile import HostileHub

ISSUER = SigningKey(b"\x09" * 32)
OPEN = {"admission.capability_gating": "false", "admission.stream_scope": "open"}
GATED = {"admission.trusted_issuers": ISSUER.public.hex()}
QUICK = Retry(seconds=10.0, first_pause=0.01, longest_pause=0.1)
IMPATIENT = Retry(seconds=0.0)
ORDERS = StreamKeys.create("orders", random=seeded("orders"))
RING = Keyring().with_keys(ORDERS)


def run(work):
    return asyncio.run(work)


def person(name, now=None):
    return Identity.create(name, now=int(time.time()) if now is None else now, random=seeded(name))


@contextlib.asynccontextmanager
async def hub_at(path, *, clock=None, settings=OPEN, **more):
    flags = {
        "data_dir": str(path),
        "listen.port": "0",
        "engine.workers": "0",
        "log.level": "error",
        "engine.max_clock_step": "0" if clock else "1h",  # a test sets its clock as it likes
        **settings,
        **{key.replace("__", "."): str(value) for key, value in more.items()},
    }
    options = {} if clock is None else {"clock": clock}
    async with Hub.serve(load(None, {}, flags), **options) as hub:
        yield hub


def copy_of(path, to):
    """The data directory of a hub at rest, keys included: what a backup would hold."""
    shutil.copytree(path, to)
    return to


def pin_of(hub):
    return HubPin.of_key(hub.identity.current_pk)


def token_for(client_id, *stream_ids, ttl=10**6):
    return CapToken.issue(ISSUER, client_id, stream_ids or (ORDERS.stream_id,), ttl=ttl)


@contextlib.asynccontextmanager
async def client_at(transport, pin, who, home, *, ring=RING, retry=QUICK, **options):
    """A client with its state below `home`."""
    with StateStore.open(Home.at(home), who.name) as state:
        async with Client(transport, pin, who, ring, state, retry=retry, **options) as client:
            await client.open()
            yield client


@contextlib.asynccontextmanager
async def connected(tmp_path, *, name="alice", clock=None, settings=OPEN, **options):
    """A hub, a hostile wire to it that tells no lie yet, and a client."""
    async with hub_at(tmp_path / "hub", clock=clock, settings=settings) as hub:
        wire = HostileHub(InProcess(hub.api))
        more = {} if clock is None else {"clock": clock}
        who = person(name, None if clock is None else int(clock()))
        async with client_at(wire, pin_of(hub), who, tmp_path / "home", **more, **options) as client:
            yield hub, wire, client


async def all_of(entries):
    return [entry async for entry in entries]


async def bodies(client, stream="orders", **options):
    return [entry.body async for entry in client.read(stream, **options)]


class Clock:
    """A clock that tests set."""

    def __init__(self, now=1_800_000_000):
        self.now = now

    def __call__(self):
        return float(self.now)


@contextlib.asynccontextmanager
async def visiting(path, who, home, **options):
    """A client at a hub that runs for just as long, with the state it has from earlier visits."""
    async with hub_at(path) as hub, client_at(InProcess(hub.api), pin_of(hub), who, home, **options) as client:
        yield client
