"""An agent against a hub in this process, with crashes at chosen boundaries."""

import asyncio
import contextlib
import io
import json

from tests.products.recorder.recorders import ADMIN

from veen.client.home import PrivateFs
from veen.client.transport.inprocess import InProcess
from veen.core.labels import stream_id_of
from veen.products.recorder.adapters.lines import Lines
from veen.products.recorder.agent import Agent, AgentSource, Pace
from veen.products.recorder.events import payload_json
from veen.products.recorder.sink import Sinks
from veen.products.recorder.spool import Spool, spool_key

WEB = "record/app/web"
FAST = Pace(heartbeat=3600.0, losses=0.05, first_pause=0.01, longest_pause=0.05, drain=60.0)


class Killed(BaseException):
    """The process is gone at this point."""


class Boundary:
    """Ends the process at the crossing with the number `at`, or at the second one of the name `at`."""

    def __init__(self, at=None):
        self.at, self.crossed, self.names = at, 0, []

    def cross(self, name):
        self.crossed += 1
        self.names.append(name)
        if self.crossed == self.at or (name == self.at and self.names.count(name) == 2):
            raise Killed(name)


class KilledSpool(Spool):
    """A spool whose process may end before and after each of its transactions."""

    boundary = Boundary()

    def append(self, records, *, force=False):
        self.boundary.cross("read")
        numbers = super().append(records, force=force)
        self.boundary.cross("spooled")
        return numbers

    def fly(self, flight):
        self.boundary.cross("sealed")
        super().fly(flight)
        self.boundary.cross("written down")

    def mark_sent(self, numbers):
        self.boundary.cross("receipted")
        super().mark_sent(numbers)
        self.boundary.cross("landed")


class KilledWire:
    """A transport whose process may end before a message is sent and after the hub has committed it."""

    def __init__(self, inner, boundary):
        self._inner, self._boundary = inner, boundary

    async def call(self, operation, body, **options):
        sending = operation in ("v1/submit", "tooling/submit_batch")
        if sending:
            self._boundary.cross("sending")
        answer = await self._inner.call(operation, body, **options)
        if sending:
            self._boundary.cross("committed")
        return answer

    async def aclose(self):
        await self._inner.aclose()


def numbered(count):
    return b"".join(json.dumps({"n": n, "user": "u", "event": "tick"}).encode() + b"\n" for n in range(1, count + 1))


def spool_of(world, name, *, cls=Spool, **options):
    role = world.role(name)
    fs = PrivateFs(world.home.state / "recorder" / name)
    return cls(fs, spool_key(role.keystore.identity), **{"max_bytes": 1 << 20, **options})


def connector(world, wire=None, **options):
    @contextlib.asynccontextmanager
    async def connect(identity, ring):
        from tests.client.hubs import QUICK, pin_of

        from veen.client.client import Client
        from veen.client.state import StateStore

        transport = wire() if wire else InProcess(world.hub.api)
        with StateStore.open(world.home, identity.name) as state:
            more = {"retry": QUICK, "bounds": None, **options}
            async with Client(transport, pin_of(world.hub), identity, ring, state, **more) as client:
                await client.open()
                yield client

    return connect


async def run_agent(
    world, sources, *, name="web", spool=None, wire=None, pace=FAST, stop=None, client_options=None, **options
):
    """One life of an agent, from start to the end of its sources."""
    role = world.role(name)
    opened = spool or spool_of(world, name)
    try:
        shared = Sinks(opened, "test-host", **options)
        agent = Agent(
            role.keystore, role.tokens, shared, sources, connector(world, wire, **(client_options or {})), pace=pace
        )
        await agent.run(stop)
        return agent
    finally:
        opened.close()


def lines_source(data, *, stream=WEB, id="stdin", **options):
    return AgentSource(Lines(id, io.BufferedReader(io.BytesIO(data))), stream_id_of(stream), **options)


async def recorded(world, stream=WEB):
    """The events of a stream as (event, payload), read by the admin and verified."""
    from veen.overlays.framework.schema import Typed
    from veen.overlays.recorder import events as sdr

    result = []
    async with world.client(ADMIN) as client:
        async for entry in client.read(stream):
            typed = sdr.read(entry.event)
            assert isinstance(typed, Typed), typed
            result.append((typed.body, payload_json(typed.body)))
    return result


async def numbers(world, stream=WEB):
    return [payload["n"] for _, payload in await recorded(world, stream)]


async def until_killed(work):
    """Run one life; whether it was killed. Nothing of it goes on afterwards."""
    task = asyncio.create_task(work)
    try:
        await task
    except Killed:
        return True
    return False
