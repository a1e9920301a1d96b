"""A recorder in one process: a hub that asks for tokens, an admin, producers, and a disclosure role."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.client.hubs import OPEN, QUICK, hub_at, pin_of

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.keystore import create_identity, open_identity
from veen.client.send.captokens import TokenStore
from veen.client.state import StateStore
from veen.client.transport.inprocess import InProcess
from veen.products.recorder.roles import RecorderRole, equip
from veen.products.recorder.setup import Wanted, apply

ADMIN, DISCLOSURE = "admin", "privacy"
STREAMS = {"web": ("record/app/web",), "gate": ("record/security/gate", "record/app/audit")}


@dataclass
class Recorder:
    """What the tests share: the hub, the home of all identities, and clients of them."""

    hub: Any
    home: Home
    lines: list[str] = field(default_factory=list)
    clock: Any = None

    def role(self, name: str) -> RecorderRole:
        keystore = open_identity(self.home, name, None)
        return RecorderRole(keystore, TokenStore(self.home.tokens_fs(name)), lambda: self.home.lock(name))

    @contextlib.asynccontextmanager
    async def client(self, name: str, *, transport=None, **options):
        role = self.role(name)
        with StateStore.open(self.home, name) as state:
            keystore = role.keystore
            wire = transport or InProcess(self.hub.api)
            options = {"retry": QUICK, **({"clock": self.clock} if self.clock else {}), **options}
            async with Client(
                wire, pin_of(self.hub), keystore.identity, keystore.secrets.keyring, state, **options
            ) as client:
                await client.open()
                yield client

    @contextlib.asynccontextmanager
    async def authority(self, name: str, **options):
        async with self.client(name, **options) as client:
            yield TokenAuthority(client, self.role(name).tokens)

    async def set_up(self, streams=STREAMS, *, keys_ahead=0, **wanted) -> list[str]:
        """As `veen recorder init` does it; safe to repeat."""
        now = int(time.time())
        producers = {name: (self.role(name), names) for name, names in streams.items()}
        admin = self.role(ADMIN)
        hub_id = self.hub.identity.hub_id
        equip(admin, producers, self.role(DISCLOSURE), ttl=86_400, hub_id=hub_id, now=now, keys_ahead=keys_ahead)
        ids = {role.keystore.identity.client_id: names for role, names in producers.values()}
        options = {"mapping": {}, **wanted}
        async with self.authority(ADMIN) as authority:
            ring = self.role(ADMIN).keystore.secrets.keyring
            who = self.role(ADMIN).keystore.identity
            self.lines = await apply(authority, who, ring, Wanted(producers=ids, **options), now=now)
        return self.lines


@contextlib.asynccontextmanager
async def recorder_at(path: Path, *, streams=STREAMS, gated=True, settings=None, clock=None, **wanted):
    home = Home.at(path / "home")
    for name in (ADMIN, DISCLOSURE, *streams):
        if not home.has_identity(name):
            create_identity(home, name, None, now=int(time.time()))
    issuer = open_identity(home, ADMIN, None).identity.id_sign_pk
    admission = {"admission.trusted_issuers": issuer.hex()} if gated else OPEN
    async with hub_at(path / "hub", settings={**admission, **(settings or {})}, clock=clock) as hub:
        world = Recorder(hub, home, clock=clock)
        await world.set_up(streams, **wanted)
        yield world
