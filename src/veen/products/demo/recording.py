"""The recorder in the demo: a service logs, a line of its log is changed at the hub, and verification names it."""

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import create_identity
from veen.client.send.captokens import TokenStore
from veen.client.verify.pin import HubPin
from veen.core.labels import stream_id_of
from veen.hub.process.runtime import Hub
from veen.products.demo.story import Story, expect, flip, place_of, run_hub
from veen.products.recorder.adapters.tail import TailSource
from veen.products.recorder.agent import Agent, AgentSource, Connect
from veen.products.recorder.events import Selectors
from veen.products.recorder.roles import RecorderRole, equip, record_streams
from veen.products.recorder.setup import Wanted, apply, read_history, take
from veen.products.recorder.sink import Sinks
from veen.products.recorder.spool import Spool, spool_key
from veen.products.recorder.verify import RecorderReport, verify

SHOP: Final = "record/app/shop"
LINES: Final = 40
TARGET: Final = 23  # the line that is changed at the hub
_ADMIN, _PRIVACY, _SERVICE = "admin", "privacy", "shop"
_SPOOL_BYTES: Final = 1 << 20


async def record_and_tamper(story: Story, number: int) -> None:
    """Run one step: a recorder with roles and its own hub, both removed afterwards."""
    root = story.root / "recorder"
    home = Home.at(root / "home")
    try:
        async with run_hub(root / "hub") as hub:
            roles, ciphertext = await record_lines(hub, root, home)
            before = await _verify(roles[_ADMIN], _connector(hub.url, hub.identity.current_pk, home))
        expect(before.ok and not before.findings, "the recorder does not verify")
        periods = sum(len(stream.periods) for stream in before.streams)
        story.step(number, "service", f"writes {LINES} log lines; an agent records them, a checkpoint covers them")
        story.more(f"recorder verify: {periods} of {periods} periods valid")
        path, offset = place_of(root / "hub", ciphertext)
        flip(path, offset + len(ciphertext) // 2)
        logging.getLogger("veen.hub").addHandler(logging.NullHandler())  # it says the same in its own words
        async with run_hub(root / "hub") as hub:
            after = await _verify(roles[_ADMIN], _connector(hub.url, hub.identity.current_pk, home))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bad = [(stream, period) for stream in after.streams for period in stream.periods if period.state != "valid"]
    expect(len(bad) == 1 and not after.ok, "the changed line was not noticed")
    stream, period = bad[0]
    expect(stream.stream == SHOP and f"entry {TARGET}" in (period.why or ""), "another line was named")
    story.more(f"one bit of line {TARGET} is changed in the hub's files; recorder verify:")
    story.more(f"{stream.stream} {period.from_seq} to {period.to_seq}: {period.state}, {period.why}")
    story.facts["recorder"] = {
        "lines": LINES,
        "periods": periods,
        "tampered": TARGET,
        "stream": stream.stream,
        "state": period.state,
        "why": period.why,
    }


async def record_lines(hub: Hub, root: Path, home: Home) -> tuple[dict[str, RecorderRole], bytes]:
    """Set up a recorder with roles, configuration, lines and a checkpoint; return roles and the ciphertext of one
    line.
    """
    roles = {name: await asyncio.to_thread(_role, home, name) for name in (_ADMIN, _PRIVACY, _SERVICE)}
    (root / "shop.log").write_text(
        "".join(f'{{"user":"u{n % 5}","event":"order","n":{n}}}\n' for n in range(1, LINES + 1))
    )
    connect = _connector(hub.url, hub.identity.current_pk, home)
    await _set_up(roles, connect, hub.identity.hub_id)
    return roles, await _record(roles, connect, root, home)


def _role(home: Home, name: str) -> RecorderRole:
    keystore = create_identity(home, name, None, now=int(time.time()))  # for a minute, in a directory that goes
    return RecorderRole(keystore, TokenStore(home.tokens_fs(name)), lambda: home.lock(name))


def _connector(url: str, hub_pk: bytes, home: Home) -> Connect:
    @asynccontextmanager
    async def connect(identity: Identity, keyring: Keyring) -> AsyncIterator[Client]:
        pin = HubPin.of_key(hub_pk)
        async with await Client.connect(url, pin=pin, identity=identity, keyring=keyring, home=home) as client:
            yield client

    return connect


async def _set_up(roles: dict[str, RecorderRole], connect: Connect, hub_id: bytes) -> None:
    admin, service, now = roles[_ADMIN], roles[_SERVICE], int(time.time())
    equip(admin, {_SERVICE: (service, [SHOP])}, roles[_PRIVACY], ttl=3600, hub_id=hub_id, now=now)
    ring = admin.keystore.secrets.keyring
    wanted = Wanted(producers={service.keystore.identity.client_id: [SHOP]}, mapping={})
    async with connect(admin.keystore.identity, ring) as client:
        await apply(TokenAuthority(client, admin.tokens), admin.keystore.identity, ring, wanted, now=now)


async def _record(roles: dict[str, RecorderRole], connect: Connect, root: Path, home: Home) -> bytes:
    """Run the agent and write a checkpoint; return the ciphertext of the line that will be changed."""
    service, admin = roles[_SERVICE], roles[_ADMIN]
    source = TailSource("shop.log", root / "shop.log", Selectors(subject=".user", event_type=".event"), follow=False)
    with Spool(PrivateFs(home.state / "spool"), spool_key(service.keystore.identity), max_bytes=_SPOOL_BYTES) as spool:
        agent = Agent(
            service.keystore, service.tokens, Sinks(spool, "demo"), [AgentSource(source, stream_id_of(SHOP))], connect
        )
        await agent.run()
    ring = admin.keystore.secrets.keyring
    async with connect(admin.keystore.identity, ring) as client:
        configuration = (await read_history(client, None)).now
        await take(
            TokenAuthority(client, admin.tokens), record_streams(ring), configuration, None, now=int(time.time())
        )
        entries = [entry async for entry in client.read(SHOP)]
    expect(len(entries) == LINES, "the agent recorded another number of lines")
    return entries[TARGET - 1].msg.ciphertext


async def _verify(admin: RecorderRole, connect: Connect) -> RecorderReport:
    identity, ring = admin.keystore.identity, admin.keystore.secrets.keyring
    async with connect(identity, ring) as client:
        return await verify(client, record_streams(ring), admins=[identity.client_id], now=int(time.time()))
