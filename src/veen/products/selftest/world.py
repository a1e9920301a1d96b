"""The environment of self-tests: hubs in separate processes, or given ones, and people with keys."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.state import StateStore
from veen.client.transport.base import Transport
from veen.client.transport.calls import NO_RETRY, Retry
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAt:
    """A hub to connect to, with its pin and the operator's settings for the self-test."""

    url: str
    pin: HubPin
    ca_file: Path | None = None
    token_file: Path | None = None
    insecure_http: bool = False
    wait_seconds: float = 60.0  # in which a call without an answer is repeated
    issuer: SigningKey | None = None  # whose capability tokens the hub takes
    stream: str | None = None  # the one stream that the hub trusts `issuer` for; None: any
    admin_token_file: Path | None = None

    def transport(self, token_file: Path | None = None) -> Transport:
        """Open a connection that presents `token_file`, and no other credentials."""
        return open_transport(self.url, ca_file=self.ca_file, token_file=token_file, insecure_http=self.insecure_http)


class HubProcessFailed(Exception):
    """A hub process did not start."""


def _environment_of_own_hubs() -> dict[str, str]:
    """Return the environment without settings of hubs: VEEN_ROLE=selftest, for example, is the caller's role."""
    from veen.hub.process.config import SETTINGS

    ours = {setting.variable for setting in SETTINGS}
    return {name: value for name, value in os.environ.items() if name not in ours}


class _OwnHub:
    """A hub started by the run: a process and its data directory."""

    def __init__(self, data_dir: Path, settings: tuple[str, ...]) -> None:
        self._data_dir, self._settings = data_dir, settings
        self._process: asyncio.subprocess.Process | None = None
        self.at = HubAt(url="", pin=HubPin.of_key(bytes(32)))

    async def start(self) -> None:
        command = [sys.executable, "-m", "veen", "hub", "start", "--dev", "--data-dir", str(self._data_dir), "--json"]
        for setting in self._settings:
            command += ["--set", setting]
        log = self._data_dir.with_suffix(".log")
        with log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                stdin=asyncio.subprocess.DEVNULL,
                env=_environment_of_own_hubs(),
            )
        try:
            async with asyncio.timeout(_START_SECONDS):
                about = await self._greeting()
        except (TimeoutError, ValueError) as exc:
            await self.stop(kill=True)
            raise HubProcessFailed(f"the hub did not start: {log.read_text(errors='replace')[-500:]}") from exc
        self.at = HubAt(url=about["url"], pin=HubPin.parse(about["hub_pk"]))

    async def _greeting(self) -> dict[str, str]:
        """Read the JSON object that a hub prints once it listens."""
        assert self._process is not None  # noqa: S101 - `start` has made it
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        said = b""
        while not said.rstrip().endswith(b"}"):
            line = await self._process.stdout.readline()
            if not line:
                raise ValueError("it ended")
            said += line
        answer: dict[str, str] = json.loads(said)
        return answer

    async def stop(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill() if kill else process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def crash(self) -> None:
        """Kill the hub as a power failure would, and start it again on the same data."""
        await self.stop(kill=True)
        await self.start()


class World:
    """Hubs by number, and people. Streams get a new suffix in each run: a hub may see many runs."""

    def __init__(self, root: Path, hub: HubAt | None, peer: HubAt | None = None) -> None:
        self._root = root
        self._named = {number: at for number, at in enumerate((hub, peer)) if at is not None}
        self._hubs: dict[int, _OwnHub] = {}
        self._parts = self._homes = 0
        self._open = contextlib.AsyncExitStack()
        self._suffix = os.urandom(6).hex()
        self._stream_keys: dict[str, StreamKeys] = {}  # by name; grows only

    @classmethod
    @contextlib.asynccontextmanager
    async def create(cls, hub: HubAt | None, peer: HubAt | None = None) -> AsyncIterator[Self]:
        """Create a world in a temporary directory, removed at the end."""
        root = Path(tempfile.mkdtemp(prefix="veen-selftest-"))
        world = cls(root, hub, peer)
        try:
            yield world
        finally:
            for own in world._hubs.values():
                await own.stop()
            shutil.rmtree(root, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def part(self) -> AsyncIterator[None]:
        """Run one check: its clients are closed at its end."""
        self._parts += 1
        async with contextlib.AsyncExitStack() as opened:
            self._open = opened
            yield

    @property
    def owns_hubs(self) -> bool:
        """True if the first hub belongs to the run, so that it may be crashed."""
        return not self._named

    async def hub(self, number: int = 0, *settings: str) -> HubAt:
        """Return the hub with this number: a given one (0 and 1), or one of ours, started with `settings`."""
        if number in self._named:
            return self._named[number]
        own = self._hubs.get(number)
        if own is None:
            own = self._hubs[number] = _OwnHub(self._root / f"hub-{number}", settings)
            await own.start()
        return own.at

    async def crash(self, number: int = 0) -> None:
        await self.hub(number)
        await self._hubs[number].crash()

    def keys(self, stream: str) -> StreamKeys:
        """Return keys of a new stream."""
        return StreamKeys.create(f"selftest/{self._suffix}/{self._parts}/{stream}")

    def private_keys(self, name: str) -> StreamKeys:
        """Return keys of this run for a stream that may exist already."""
        keys = self._stream_keys.get(name)
        if keys is None:
            keys = self._stream_keys[name] = StreamKeys.create(name)
        return keys

    @property
    def root(self) -> Path:
        """Directory of this run."""
        return self._root

    @property
    def suffix(self) -> str:
        """Random suffix of this run."""
        return self._suffix

    def person(self, name: str) -> Identity:
        """Create an identity."""
        return Identity.create(name, now=int(time.time()))

    async def client(self, who: Identity | str, *keys: StreamKeys, hub: int = 0) -> Client:
        """Connect a client of a person, new or existing, with keys of streams; it is closed at the end of the check."""
        identity = self.person(who) if isinstance(who, str) else who
        at = await self.hub(hub)
        home = Home.at(self._root / f"part-{self._parts}" / f"{identity.name}-at-{hub}")
        client = await Client.connect(
            at.url,
            pin=at.pin,
            identity=identity,
            keyring=Keyring.of(keys),
            home=home,
            ca_file=at.ca_file,
            token_file=at.token_file,
            insecure_http=at.insecure_http,
            retry=Retry(seconds=at.wait_seconds),
        )
        return await self._open.enter_async_context(client)

    async def client_over(self, transport: Transport, pin: HubPin, identity: Identity, keys: StreamKeys) -> Client:
        """Connect a client without state over a transport of the caller; it is closed at the end of the check."""
        self._homes += 1
        home = Home.at(self._root / f"part-{self._parts}" / f"home-{self._homes}")
        state = self._open.enter_context(StateStore.open(home, identity.name))
        client = Client(transport, pin, identity, Keyring.of([keys]), state, retry=NO_RETRY)
        await self._open.enter_async_context(client)
        return await client.open()

    async def transport(self, token_file: Path | None = None) -> Transport:
        """Open a connection to the first hub without a client; it is closed at the end of the check."""
        transport = (await self.hub()).transport(token_file)
        self._open.push_async_callback(transport.aclose)
        return transport
