"""Suites, checks and their outcomes.

The environment of self-tests: hubs in separate processes, or given ones, and people with keys.

Clients of the suites `core` and `authority`, and calls whose refusals are the result.

Every probe is a new client with its own key. All probes of a run write to one stream: the one for which the hub trusts
the issuer of self-tests (D-147), or a new one with a random name.

Reading by several clients, and comparison of their states.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.captokens import issue
from veen.client.send.sealing import Prepared
from veen.client.send.submitting import Submitter
from veen.client.send.writing import Sent
from veen.client.session import HubSession
from veen.client.state import StateStore
from veen.client.transport.calls import NO_RETRY, Calls, Retry, Transport, refusal_of
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, Refusal
from veen.core.event import Event
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import StatusResponse
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Issue
from veen.overlays.framework.state import state_hash

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


Check = Callable[[World], Awaitable[None]]


class CheckFailed(Exception):
    """A promise is broken."""


class NotChecked(Exception):
    """A check could not be made; the text names its requirement."""


def expect(promise: bool, what: str) -> None:
    """Raise CheckFailed unless the promise holds; `what` is the promise."""
    if not promise:
        raise CheckFailed(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Checks by their titles, in order."""

    name: str
    about: str
    checks: Mapping[str, Check]
    first_decides: bool = False  # whether nothing else is tried if the first check fails


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """Result of one check; `detail` is the reason if it failed or was not made (`ok` is None)."""

    suite: str
    check: str
    ok: bool | None
    seconds: float
    detail: str | None = None


async def run(suite: Suite, *, hub: HubAt | None = None, peer: HubAt | None = None) -> AsyncIterator[CheckOutcome]:
    """Run each check in turn, in one world; a failed check does not keep the others from running."""
    async with World.create(hub, peer) as world:
        blocked_by: str | None = None
        for what, check in suite.checks.items():
            began = time.perf_counter()
            ok: bool | None = True
            detail: str | None = None
            try:
                if blocked_by is not None:
                    raise NotChecked(f"not checked: {blocked_by!r} failed")
                async with world.part():
                    await check(world)
            except NotChecked as exc:
                ok, detail = None, str(exc)
            except Exception as exc:  # any error is a failed check
                ok, detail = False, str(exc) if isinstance(exc, CheckFailed) else f"{type(exc).__name__}: {exc}"
                if suite.first_decides and what == next(iter(suite.checks)):
                    blocked_by = what
            seconds = time.perf_counter() - began
            yield CheckOutcome(suite=suite.name, check=what, ok=ok, seconds=seconds, detail=detail)


_TOKEN_TTL_SEC: Final = 3600
_TOKEN_RATE: Final = Rate(per_sec=50, burst=50)
_CLOCK_POLLS: Final = 600
_CLOCK_PAUSE_SEC: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProbe:
    """One new client at the hub."""

    at: HubAt
    identity: Identity
    keys: StreamKeys
    client: Client  # verifies, repeats
    session: HubSession  # verifies; says at once what the hub refuses

    def token(self, *, ttl: int = _TOKEN_TTL_SEC, rate: Rate | None = _TOKEN_RATE) -> CapToken:
        """Return a capability of the issuer for this client and the stream of the run."""
        return issue(self.issuer, self.identity.client_id, [self.keys.stream_id], ttl=ttl, rate=rate)

    @property
    def issuer(self) -> SigningKey:
        """The issuer whose tokens the hub accepts."""
        if self.at.issuer is None:
            raise CheckFailed("the hub asks for capabilities, and there is no key to issue one: give --issuer-key FILE")
        return self.at.issuer

    async def message(self, body: bytes, auth_ref: bytes | None = None) -> Msg:
        """Return a sealed and signed message with the next number of this client; it is not sent."""
        (prepared,) = await self.client.prepare(self.keys, [body], auth_ref=auth_ref)
        await self.client.withdraw_prepared(self.keys)
        return prepared.msg

    def sign(self, msg: Msg, *, label: bytes | None = None, client_seq: int | None = None) -> Msg:
        """Return the message with other fields, signed again by this client."""
        return Msg.compose(
            self.identity.client_key.key,
            profile_id=msg.profile_id,
            label=msg.label if label is None else label,
            client_seq=msg.client_seq if client_seq is None else client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            ciphertext=msg.ciphertext,
        )

    async def submit(self, msg: Msg) -> Receipt | HubRefused:
        """Return the hub's answer to a message; retry only while the hub is unavailable."""
        answer: Receipt | HubRefused | None = None
        async for _ in Retry(seconds=self.at.wait_seconds).pauses():
            try:
                delivered = await Submitter(self.session).deliver([Prepared.of(msg.to_bytes())], batched=False)
                answer = delivered.answers[0]
            except HubRefused as exc:
                answer = exc
            if not (isinstance(answer, HubRefused) and answer.code == ApiCode.UNAVAILABLE.code):
                break
        if answer is None:
            raise CheckFailed("the hub neither admitted nor refused a message")
        return answer

    async def send(self, count: int, what: str) -> list[Sent]:
        """Send messages of one label; the client verifies each."""
        for _ in range(2):  # a label may end between two of them, but not twice
            outcomes = await self.client.send_many(self.keys, [b"%s %d" % (what.encode(), n) for n in range(count)])
            sent = [outcome for outcome in outcomes if isinstance(outcome, Sent)]
            for outcome in outcomes:
                if not isinstance(outcome, Sent):
                    raise outcome
            if len({message.msg.label for message in sent}) == 1:
                return sent
        raise CheckFailed(f"{count} messages do not fit into one epoch of the hub")

    def epoch_of(self, sent: Sent) -> int:
        """Return the epoch of the label of a message."""
        now = self.session.epoch_now()
        for epoch in range(max(now - self.session.window - 1, 0), now + self.session.window + 2):
            if self.session.label(self.keys.stream_id, epoch) == sent.msg.label:
                return epoch
        raise CheckFailed("a message stands in a label that is none of its stream")

    async def after(self, second: int) -> None:
        """Wait until the hub's clock is past a second."""
        for _ in range(_CLOCK_POLLS):
            if (await self.session.refresh_status()).hub_ts > second:
                return
            await asyncio.sleep(_CLOCK_PAUSE_SEC)
        raise CheckFailed(f"the clock of the hub stands still: it is not past {second}")


def needs_token(status: StatusResponse) -> bool:
    """Return True if a message of a new stream needs a capability."""
    return status.capability_gating or status.stream_scope != "open"


async def stream_of(world: World) -> StreamKeys:
    """Return the stream that this run writes to."""
    at = await world.hub()
    return world.private_keys(at.stream or f"veen/selftest/{world.suffix}")


async def open_probe(world: World, name: str = "probe", *, authorized: bool = True) -> HubProbe:
    """Connect a new client, with a capability if the hub needs one, unless `authorized` is False."""
    at, identity, keys = await world.hub(), world.person(name), await stream_of(world)
    client = await world.client(identity, keys)
    session = HubSession(Calls(await world.transport(at.token_file), NO_RETRY), client.pin)
    await session.open()
    probe = HubProbe(at=at, identity=identity, keys=keys, client=client, session=session)
    if authorized and needs_token(session.status):
        await client.authorize(probe.token())
    return probe


def expect_refusal(answer: Receipt | HubRefused, expected: Refusal, what: str) -> HubRefused:
    """Raise CheckFailed unless the hub refused for this reason."""
    if isinstance(answer, Receipt):
        raise CheckFailed(f"{what}: the hub admitted it as entry {answer.stream_seq}")
    reason = answer.detail_enum or answer.code
    expect(refusal_of(answer) is expected, f"{what}: expected {expected.name}, the hub answered {reason}")
    return answer


class FoldedState(NamedTuple):
    """A state and the events without effect."""

    state: Any
    issues: tuple[Issue, ...]


async def events_of(client: Client, *streams: StreamKeys | bytes) -> list[Event]:
    """Return the events of some streams, read and verified; all of them must open."""
    events = []
    for stream in streams:
        async for entry in client.read(stream):
            expect(entry.event is not None, f"entry {entry.seq} does not open: {entry.error}")
            if entry.event is not None:
                events.append(entry.event)
    return events


async def fold_over(client: Client, fold: AnyFold, *streams: StreamKeys | bytes) -> FoldedState:
    summary = fold.summarize(await events_of(client, *streams))
    return FoldedState(fold.view(summary), fold.issues(summary))


async def same_state(fold: AnyFold, streams: StreamKeys | list[StreamKeys], *readers: Client) -> Any:
    """Return the state, after checking that all readers have the same one."""
    named = streams if isinstance(streams, list) else [streams]
    states = [(await fold_over(reader, fold, *named)).state for reader in readers]
    hashes = {state_hash(fold.name, state) for state in states}
    expect(len(hashes) == 1, f"{len(readers)} readers hold {len(hashes)} states")
    return states[0]
