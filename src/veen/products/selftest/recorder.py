"""`veen selftest recorder`: emit, checkpoint, verify and replay with proofs, through an agent that is stopped half way.

The names of a recorder's streams are fixed, so the checks run on a hub of their own: on a hub that has a recorder they
would write into its streams.
"""

import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import create_identity
from veen.client.send.captokens import TokenStore
from veen.client.transport.calls import Retry
from veen.core.labels import stream_id_of
from veen.products.recorder.adapters.lines import Lines
from veen.products.recorder.agent import Agent, AgentSource, Pace
from veen.products.recorder.replay import check_edges, replay_range, replay_window
from veen.products.recorder.roles import RecorderRole, equip, record_streams
from veen.products.recorder.setup import Wanted, apply, read_chain, read_history, take
from veen.products.recorder.sink import Sinks
from veen.products.recorder.spool import Spool, spool_key
from veen.products.recorder.verify import verify
from veen.products.selftest.suite import Suite, World, expect

_PIPELINE_HUB: Final = 1  # hubs of our own, one for each check
_CRASHING_HUB: Final = 2
_RETRY: Final = Retry(seconds=2.0)  # a hub that was crashed comes back under another address
_STREAM: Final = "record/app/selftest"
_COUNT: Final = 200
_PACE: Final = Pace(heartbeat=3600.0, losses=0.1, first_pause=0.05, drain=60.0)


@dataclass(frozen=True, slots=True)
class _Recorder:
    world: World
    hub: int
    home: Home
    admin: RecorderRole
    producer: RecorderRole

    @contextlib.asynccontextmanager
    async def connect(self, identity: Identity, ring: Keyring) -> AsyncIterator[Client]:
        at = await self.world.hub(self.hub)
        client = await Client.connect(
            at.url, pin=at.pin, identity=identity, keyring=ring, home=self.home, bounds=None, retry=_RETRY
        )
        async with client:
            yield client

    def as_admin(self) -> contextlib.AbstractAsyncContextManager[Client]:
        return self.connect(self.admin.keystore.identity, self.admin.keystore.secrets.keyring)

    async def record(self, lines: bytes) -> None:
        """Run an agent once over these lines."""
        role = self.producer
        fs = PrivateFs(self.home.state / "recorder" / role.name)
        with Spool(fs, spool_key(role.keystore.identity), max_bytes=1 << 24) as spool:
            source = AgentSource(Lines("selftest", io.BufferedReader(io.BytesIO(lines))), stream_id_of(_STREAM))
            agent = Agent(role.keystore, role.tokens, Sinks(spool, "selftest"), [source], self.connect, pace=_PACE)
            await agent.run()

    async def checkpoint(self) -> None:
        async with self.as_admin() as client:
            configuration = (await read_history(client, None)).now
            last = (await read_chain(client, None)).last
            ring = self.admin.keystore.secrets.keyring
            now = int(time.time())
            await take(TokenAuthority(client, self.admin.tokens), record_streams(ring), configuration, last, now=now)


@contextlib.asynccontextmanager
async def _recorder(world: World, hub: int) -> AsyncIterator[_Recorder]:
    with tempfile.TemporaryDirectory(prefix="veen-selftest-") as root:
        home, now = Home.at(Path(root)), int(time.time())

        def role(name: str) -> RecorderRole:
            keystore = create_identity(home, name, None, now=now)
            return RecorderRole(keystore, TokenStore(home.tokens_fs(name)), lambda: home.lock(name))

        recorder = _Recorder(world, hub, home, role("admin"), role("web"))
        async with recorder.as_admin() as client:
            hub_id = client.hub_id
        equip(recorder.admin, {"web": (recorder.producer, [_STREAM])}, None, ttl=3600, hub_id=hub_id, now=now)
        producers = {recorder.producer.keystore.identity.client_id: [_STREAM]}
        async with recorder.as_admin() as client:
            ring = recorder.admin.keystore.secrets.keyring
            wanted = Wanted(producers=producers, mapping={"tick": _STREAM})
            authority = TokenAuthority(client, recorder.admin.tokens)
            await apply(authority, recorder.admin.keystore.identity, ring, wanted, now=now)
        yield recorder


def _lines(count: int) -> bytes:
    return b"".join(json.dumps({"n": n, "event": "tick"}).encode() + b"\n" for n in range(1, count + 1))


async def _pipeline(world: World) -> None:
    async with _recorder(world, _PIPELINE_HUB) as recorder:
        await recorder.record(_lines(_COUNT // 2))
        await recorder.checkpoint()
        await recorder.record(_lines(_COUNT))  # the source is read again from its start: nothing may come twice
        await recorder.checkpoint()
        async with recorder.as_admin() as client:
            streams = record_streams(recorder.admin.keystore.secrets.keyring)
            report = await verify(client, streams, admins=[client.client_id], now=int(time.time()))
            expect(report.ok, f"a sound recorder verifies: {report.to_json()}")
            expect(not report.findings, f"and nothing is to be found: {report.findings}")
            keys = recorder.admin.keystore.secrets.keyring.for_stream(_STREAM)
            rows, _ = await replay_range(client, keys, 1, _COUNT)
            numbers = [row.to_json()["payload"]["n"] async for row in rows]
            expect(numbers == list(range(1, _COUNT + 1)), "every event is there once and in order")
            proven = await client.proof(keys, _COUNT // 2, tree_size=_COUNT)
            expect(proven.receipt.stream_seq == _COUNT // 2, "an event of the middle is proven under the last root")
            count = 0
            async for part, coverage in replay_window(client, keys, 0, int(time.time()) + 60):
                check_edges(coverage, 0, int(time.time()) + 60)
                count += len([row async for row in part])
            expect(count == _COUNT, "a window of time holds all of them, with proven edges")


async def _crash(world: World) -> None:
    async with _recorder(world, _CRASHING_HUB) as recorder:
        life = asyncio.create_task(recorder.record(_lines(_COUNT)))
        await asyncio.sleep(0.2)
        await world.crash(_CRASHING_HUB)
        await life
        async with recorder.as_admin() as client:
            keys = recorder.admin.keystore.secrets.keyring.for_stream(_STREAM)
            rows, _ = await replay_range(client, keys, 1, _COUNT)
            numbers = [row.to_json()["payload"]["n"] async for row in rows]
            expect(numbers == list(range(1, _COUNT + 1)), "a hub that crashes under an agent costs nothing")


SUITE: Final = Suite(
    name="recorder",
    about="emit, checkpoint, verify and replay with proofs",
    checks={
        "recorder: every event once and in order, verified and replayed with proofs": _pipeline,
        "recorder: a hub that crashes under the agent loses and doubles nothing": _crash,
    },
)
