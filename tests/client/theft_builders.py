"""A hub, an identity whose keystore was copied, a member, and the thief."""

import contextlib
import time

from tests.client.hubs import GATED, ISSUER, OPEN, QUICK, Clock, client_at, hub_at, person, pin_of

from veen.client.generations import owning
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import create_identity
from veen.client.identity.speaking import bind_keys, end_binding
from veen.client.identity.theft import Step, secure_hub
from veen.client.send.captokens import TokenStore
from veen.client.transport.inprocess import InProcess
from veen.core.objects.captoken import CapToken
from veen.hub.api.access import Principal
from veen.overlays.framework.stream import fold_events
from veen.overlays.speaks import SpeaksFold
from veen.testing.memfs import MemFs

_TOKEN = "administrator-of-the-hub-000000"


class Administration:
    """The API of a hub for a caller with the bearer token that opens administration."""

    def __init__(self, api):
        self._api = api

    async def call(self, operation, body=b"", **options):
        return await self._api.call(operation, body, principal=Principal(bearer=_TOKEN.encode()), **options)


def judge(events):
    fold = SpeaksFold()
    return fold.view(fold_events(fold, events))


async def no_progress(step, stream):
    pass


class World:
    """Alice owns "plans", which Bob reads; Bob owns "deals", which Alice reads. Mallory has a copy of her keystore."""

    def __init__(self, hub, path, clock):
        now = clock.now
        self.hub, self.path, self.clock = hub, path, clock
        self.home = Home.at(path / "alice")
        self.keystore = create_identity(self.home, "alice", None, now=now)
        self.old = self.keystore.identity
        self.bob = person("bob", now)
        self.plans = StreamKeys.create("plans", owner_pk=self.old.id_sign_pk)
        self.deals = StreamKeys.create("deals", owner_pk=self.bob.id_sign_pk)
        self.rings = {name: Keyring.of([self.plans, self.deals]) for name in ("alice", "bob", "mallory")}
        self.tokens, self.retry = TokenStore(MemFs()), QUICK
        self.mallory = self.old.with_new_keys(now)  # what the thief makes of the copy

    @contextlib.asynccontextmanager
    async def client(self, name, who, place=None, transport=None):
        def learned(ring):
            self.rings[name] = ring

        home = self.path / (place or f"state-{name}")
        options = {"ring": self.rings[name], "keys_learned": learned, "tokens": self.tokens}
        options |= {"clock": self.clock, "retry": self.retry}
        async with client_at(transport or InProcess(self.hub.api), pin_of(self.hub), who, home, **options) as client:
            if client.session.status.capability_gating:
                for stream_id in (self.plans.stream_id, self.deals.stream_id):
                    await client.token(stream_id)
            yield client

    async def prepare(self):
        async with self.client("alice", self.old) as alice:
            await alice.send("plans", b"first")
            await bind_keys(alice, self.old, "plans", self.old.client_keys)
            await owning.hand_over(alice, self.old, "plans", [self.bob.card()])
        async with self.client("bob", self.bob) as bob:
            await bob.send("deals", b"first")
            await owning.hand_over(bob, self.bob, "deals", [self.old.card()])
        self.clock.now += 60
        self.since = self.clock.now - 30

    # --- the owner ---------------------------------------------------------------------------------------------

    async def secure(self, progress=no_progress, *, since=None, again=False, transport=None):
        if again or not self.keystore.identity.former:
            await progress(Step.KEYS, "")
            with self.home.lock("alice"):
                self.keystore.replace_keys(self.clock.now)
        new = self.keystore.identity
        transport = transport or InProcess(Administration(self.hub.api))
        async with self.client("alice", new.act_as(new.former[-1]), transport=transport) as client:
            return await secure_hub(client, new, judge, since=since, progress=progress)

    # --- the thief ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def thief(self):
        """The thief as a client, who uses the very client key that was copied."""
        async with self.client("mallory", self.old) as client:
            for stream in ("plans", "deals"):
                await client.resync(stream)
            yield client

    async def bind(self):
        mine = Identity.create("mallory", now=self.clock.now).client_key
        async with self.thief() as client:
            await bind_keys(client, self.old, "plans", [mine])
            await bind_keys(client, self.old, "deals", [mine])

    async def end(self):
        async with self.thief() as client:
            for stream in ("plans", "deals"):
                await end_binding(client, self.old, stream, ended_at=self.clock.now - 1)

    async def operation(self):
        async with self.thief() as client:
            await client.send("plans", b"by the thief")

    async def rotate(self):
        async with self.thief() as client:
            await owning.rotate(client, self.old, "plans")

    async def own(self):
        async with self.thief() as client:
            await owning.change_owner(client, self.old, "plans", self.mallory.id_sign)

    async def admit(self):
        async with self.thief() as client:
            await owning.hand_over(client, self.old, "plans", [self.mallory.card()])

    async def same(self):
        async with self.client("mallory", self.mallory.act_as(self.mallory.former[-1])) as client:
            await secure_hub(client, self.mallory, judge)

    # --- what the log says ---------------------------------------------------------------------------------------

    async def log(self, stream):
        async with self.client("bob", self.bob) as bob:
            return [entry async for entry in bob.read(stream)]

    async def bindings(self, stream):
        return judge([entry.event for entry in await self.log(stream) if entry.event is not None])

    async def overhears(self, who=None):
        """Return True if the thief opens what the member writes now."""
        async with self.client("bob", self.bob) as bob:
            sent = await bob.send("plans", b"after the theft")
        async with self.client("mallory", who or self.mallory.act_as(self.mallory.former[-1])) as client:
            entries = [entry async for entry in client.read("plans", from_seq=sent.seq)]
        return entries[0].event is not None


ACTS = ("bind", "end", "operation", "rotate", "own", "admit", "same")


@contextlib.asynccontextmanager
async def world_at(path, *, gated=False):
    token = path / "admin.token"
    token.write_text(_TOKEN)
    token.chmod(0o600)
    settings = {**(GATED if gated else OPEN), "admission.kex1_plus": "true", "auth.admin_token_files": str(token)}
    clock = Clock(int(time.time()))
    async with hub_at(path / "hub", settings=settings, clock=clock) as hub:
        world = World(hub, path, clock)
        if gated:
            for who in (world.old, world.bob):
                streams = (world.plans.stream_id, world.deals.stream_id)
                world.tokens.put(CapToken.issue(ISSUER, who.id_sign_pk, streams, ttl=10**6))
        await world.prepare()
        yield world
