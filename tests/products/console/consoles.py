"""Consoles over a hub in the same loop: asked as ASGI, or by a browser over loopback."""

import asyncio
import contextlib
import threading
import time

import httpx2
import uvicorn
from tests.client.builders import seeded
from tests.client.hubs import OPEN, QUICK, client_at, hub_at, person, pin_of

from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.captokens import TokenStore
from veen.client.transport.inprocess import InProcess
from veen.lake.query.recording import REQUESTS
from veen.overlays.recorder import events as sdr
from veen.products.console.app import make_app
from veen.products.console.guard import BrowserAdmission
from veen.products.console.views import Console, LocalFiles
from veen.products.demo.filling import fill_overlays
from veen.products.recorder.events import CHANGES_STREAM, CHECKPOINTS_STREAM
from veen.testing.hostile import HostileHub

ORDERS = StreamKeys.create("orders", random=seeded("orders"))
EMPTY = StreamKeys.create("empty", random=seeded("empty"))
HOSTILE_NAME = '"><script>alert(1)</script>\u202eevil\x1b[31m'
HOSTILE = StreamKeys.create(HOSTILE_NAME, random=seeded("hostile"))
BLIND = StreamKeys.create("blind", random=seeded("blind"))
SHOP = "record/app/shop"
HOSTILE_TEXT = '"><script>alert(1)</script>\u202e'
HOSTILE_BODIES = (
    b"<script>alert(1)</script>",
    b"</pre><img src=x onerror=alert(1)>",
    "{{ 7*7 }} ${7*7} \u202e\u2066 \u0000 \x1b]0;title\x07".encode(),
    b'" onmouseover="alert(1)',
    bytes(range(256)),
)
RING = Keyring()
for keys in (HOSTILE, EMPTY, ORDERS):
    RING = RING.with_keys(keys)


class ClientWriter:
    """Writes through a client that is open already; the command opens one for each write."""

    def __init__(self, client):
        self._client = client

    async def send(self, keys, body):
        return await self._client.send(keys, body, once=True)

    async def anchor(self, keys):
        return await self._client.anchor(keys)

    async def revoke(self, revocations):
        return await self._client.revoke(revocations)


class World:
    """A hub, a wire that may lie, a console, and a browser that has shown the token."""

    def __init__(self, hub, wire, client, console, admission, app):
        self.hub, self.wire, self.client, self.console = hub, wire, client, console
        self.admission, self.app = admission, app
        self.token = admission.token
        self.loop: asyncio.AbstractEventLoop | None = None  # of a console that is served in a thread
        self.browser = self.visitor()

    def visitor(self, base="http://127.0.0.1:8448", address="127.0.0.1"):
        transport = httpx2.ASGITransport(app=self.app, client=(address, 4711))
        return httpx2.AsyncClient(transport=transport, base_url=base)

    def do(self, work):
        """Something for the loop of a console that is served in a thread."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)

    async def enter(self):
        answer = await self.browser.get(f"/?token={self.token}")
        assert answer.status_code == 200, answer.text

    async def page(self, path, status=200):
        answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def twin(self, path, status=200):
        answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        return answer.json()


async def fill(client, count=7):
    for number in range(count):
        await client.send("orders", b'{"order":%d}' % number)


@contextlib.asynccontextmanager
async def world_at(
    tmp_path,
    *,
    count=7,
    ring=RING,
    entered=True,
    settings=OPEN,
    clock=None,
    retry=QUICK,
    writes=False,
    admission=None,
    local=None,
    **client_options,
):
    async with hub_at(tmp_path / "hub", settings=settings, clock=clock) as hub:
        wire = HostileHub(InProcess(hub.api))
        more = client_options if clock is None else {"clock": clock, **client_options}
        who = person("alice", None if clock is None else int(clock()))
        async with client_at(wire, pin_of(hub), who, tmp_path / "home", ring=ring, retry=retry, **more) as client:
            await fill(client, count)
            console = Console(
                client, ring, url="http://hub.example:8443", identity="alice", local=local,
                writer=ClientWriter(client) if writes else None,
            )  # fmt: skip
            admission = admission or BrowserAdmission()
            world = World(hub, wire, client, console, admission, make_app(console, admission))
            async with world.browser:
                if entered:
                    await world.enter()
                yield world


@contextlib.asynccontextmanager
async def filled(tmp_path, *, entered=True, orders=1, root_path="", writes=False):
    """A console over a hub with events of every overlay, written by one person."""
    bob = person("bob")
    settings = {**OPEN, "admission.trusted_issuers": bob.id_sign_pk.hex()}
    ring = Keyring().with_keys(ORDERS)
    ring = ring.with_keys(HOSTILE)
    for name in (SHOP, REQUESTS, CHANGES_STREAM, CHECKPOINTS_STREAM):
        ring = ring.with_keys(StreamKeys.create(name, random=seeded(name)))
    async with hub_at(tmp_path / "hub", settings=settings) as hub:
        wire = HostileHub(InProcess(hub.api))
        async with client_at(wire, pin_of(hub), bob, tmp_path / "home", ring=ring) as client:
            await client.send_many("orders", [b'{"order":%d}' % number for number in range(orders)])
            tokens = TokenStore(Home.at(tmp_path / "home").tokens_fs("bob"))
            await fill_overlays(client, bob, hub.url, now=int(time.time()), anchored="orders", tokens=tokens)
            for body in HOSTILE_BODIES:
                await client.send(HOSTILE, body)
            for number in range(5):
                await record(client, SHOP, "order" if number else HOSTILE_TEXT, {"n": number})
            local = LocalFiles(tokens=tokens, data_dir=tmp_path / "hub")
            writer = ClientWriter(client) if writes else None
            console = Console(client, client.keyring, url=hub.url, identity="bob", local=local, writer=writer)
            for _ in range(2):
                await console.rates.sample()  # so that the overview has its picture
            admission = BrowserAdmission(root_path=root_path)
            world = World(hub, wire, client, console, admission, make_app(console, admission))
            async with world.browser:
                if entered:
                    await world.enter()
                yield world


async def record(client, stream, kind, payload):
    draft = sdr.event(
        subject_id="u1", principal_id=client.client_id, event_type=kind, event_time=int(time.time()),
        origin="shop", payload=payload,
    )  # fmt: skip
    await client.send(stream, draft.body, schema=draft.schema)


@contextlib.contextmanager
def served(tmp_path, prepare=None, world_of=world_at, **options):
    """The URL of a console that runs in a thread, over real HTTP on loopback, and its world."""
    started, stop, box = threading.Event(), threading.Event(), {}

    async def main():
        async with world_of(tmp_path, entered=False, **options) as world:
            if prepare is not None:
                await prepare(world)
            server = uvicorn.Server(uvicorn.Config(world.app, port=0, log_level="error", access_log=False, ws="none"))
            serving = asyncio.create_task(server.serve())
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn sets a flag and tells nobody
                await asyncio.sleep(0.01)
            box["url"] = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            box["world"] = world
            world.loop = asyncio.get_running_loop()
            started.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving

    def run():
        try:
            asyncio.run(main())
        finally:
            started.set()

    thread = threading.Thread(target=run, name="console")
    thread.start()
    try:
        assert started.wait(120)
        yield box["url"], box["world"]
    finally:
        stop.set()
        thread.join(120)
