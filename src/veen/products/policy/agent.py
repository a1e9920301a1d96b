"""The policy agent: follows the streams of a realm, folds them, keeps hubs at the outcome (D-51, KEX1-08, AUTH1).

    log of the realm -> events -> RealmPolicy -> POST /tooling/policy of each hub -> in force from the next second on

The agent keeps nothing on disk: the policy is a function of the log, and what a hub was told stands in the hub's own
journal. So it may be killed at any moment and started again, and any number of agents may serve the same hubs; what a
hub knows already it does not journal twice. Each hub has a task of its own: one that cannot be reached, or refuses,
delays no other and is tried again.

A hub is told at once when a stream grows, and everything once more every `resync` seconds: for a hub that was
restored from an older backup, and because spans of devices must be extended (`policy.LEASE_SEC`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from veen.client.errors import BadAnswer, HubRefused, NetworkError
from veen.client.transport.calls import is_transient
from veen.core.event import Event
from veen.overlays.federation.policy import RealmPolicy, realm_policy
from veen.overlays.federation.realm import RealmFold
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.link import Follower, Stream
from veen.overlays.id.fold import IdFold
from veen.overlays.operations.access import AccessFold
from veen.overlays.operations.delegation import Caps
from veen.products.policy.hubs import OpenHub, PolicyLink, PolicyNotEnforced, PushedPolicy

_SETTLE_SECONDS: Final = 0.02  # several records of one batch make one push

Place = tuple[bytes, int]


class PolicyReader(Follower, Protocol):
    """What the agent needs of a client: to read and to follow streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFolds:
    """How events become a policy: which folds, and what the operator decided."""

    realm: RealmFold
    access: AccessFold | None = None
    devices: IdFold | None = None
    principals: frozenset[bytes] = frozenset()
    caps: Caps = field(default_factory=Caps)

    def policy(self, events: Iterable[Event], as_of: int) -> RealmPolicy:
        batch = sorted(events, key=lambda event: event.order)

        def state(fold: Any) -> Any:
            return None if fold is None else fold.view(fold.summarize(batch), as_of)

        return realm_policy(
            state(self.realm),
            access=state(self.access),
            devices=state(self.devices),
            principals=self.principals,
            caps=self.caps,
            as_of=as_of,
        )

    def issues(self, events: Iterable[Event]) -> tuple[Issue, ...]:
        """Everything of the realm's streams that has no effect, and why."""
        batch = sorted(events, key=lambda event: event.order)
        folds = [fold for fold in (self.realm, self.access, self.devices) if fold is not None]
        return tuple(sorted({issue for fold in folds for issue in _issues(fold, batch)}))


def _issues(fold: Any, events: Sequence[Event]) -> tuple[Issue, ...]:
    issues: tuple[Issue, ...] = fold.issues(fold.summarize(events))
    return issues


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPace:
    """How often and how long, in seconds."""

    resync: float = 300.0  # between two times at which a hub is told everything
    first_pause: float = 0.2  # before a hub that failed is tried again
    longest_pause: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReport:
    """One attempt to bring a hub up to date."""

    hub: str
    pushed: PushedPolicy = field(default_factory=PushedPolicy)
    trouble: str | None = None  # why the hub is not up to date
    seconds: float | None = None  # from the moment at which the agent saw the newest record


@dataclass(slots=True)
class _HubState:
    """Of one hub; belongs to the event loop of the agent."""

    acknowledged: set[Any] = field(default_factory=set)  # items that the hub has acknowledged since the last resync
    version: int = -1  # of the events that it was told about
    resync_at: float = 0.0


class PolicyAgent:
    """One realm, any number of hubs. All fields belong to the event loop that runs it."""

    def __init__(
        self,
        folds: PolicyFolds,
        streams: Sequence[Stream],
        hubs: Mapping[str, OpenHub],
        *,
        pace: PolicyPace | None = None,
        clock: Callable[[], float] = time.time,
        report: Callable[[HubReport], None] = lambda report: None,
    ) -> None:
        self._folds, self._streams, self._hubs = folds, streams, hubs
        self._pace, self._clock, self._report = pace or PolicyPace(), clock, report
        self._events: dict[Place, Event] = {}
        self._version = 0  # grows with the events
        self._newest = 0.0  # when the newest event came, in the time of the loop
        self._grown = asyncio.Condition()
        self._unread = set(range(len(streams)))  # streams that have not been read to their end yet
        self._tally: tuple[int, int, RealmPolicy] | None = None  # version, second, policy

    # --- once ------------------------------------------------------------------------------------------------

    async def read(self, reader: PolicyReader) -> RealmPolicy:
        """The policy as the streams have it now."""
        for stream in self._streams:
            async with contextlib.aclosing(reader.read(stream)) as entries:
                async for entry in entries:
                    self._add(entry.event)
        return self.policy()

    async def push(self) -> list[HubReport]:
        """Tell every hub everything, once."""
        policy = self.policy()
        return [await self._attempt(name, open_hub, policy) for name, open_hub in self._hubs.items()]

    async def _attempt(self, name: str, open_hub: OpenHub, policy: RealmPolicy) -> HubReport:
        try:
            async with open_hub() as hub:
                return HubReport(hub=name, pushed=await hub.push(policy))
        except (NetworkError, HubRefused, PolicyNotEnforced) as exc:
            return HubReport(hub=name, trouble=str(exc))

    def policy(self) -> RealmPolicy:
        """Of the events read so far, at this second."""
        now = int(self._clock())
        if self._tally is None or self._tally[:2] != (self._version, now):
            self._tally = self._version, now, self._folds.policy(self._events.values(), now).in_force(now)
        return self._tally[2]

    def issues(self) -> tuple[Issue, ...]:
        return self._folds.issues(self._events.values())

    # --- for ever --------------------------------------------------------------------------------------------

    async def run(self, reader: PolicyReader) -> None:
        """Until cancelled. An error of the source ends it: what cannot be verified is not pushed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, stream in enumerate(self._streams):
                    tasks.create_task(self._watch(reader, number, stream))
                for name, open_hub in self._hubs.items():
                    tasks.create_task(self._serve(name, open_hub))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _watch(self, reader: PolicyReader, number: int, stream: Stream) -> None:
        async with contextlib.aclosing(reader.read(stream)) as entries:
            async for entry in entries:
                self._add(entry.event)
        async with self._grown:
            self._unread.discard(number)
            self._grown.notify_all()
        # From the beginning of the present label: what was read already is recognised by its place.
        async with contextlib.aclosing(reader.follow(stream, from_seq=1)) as entries:
            async for entry in entries:
                if self._add(entry.event):
                    async with self._grown:
                        self._grown.notify_all()

    def _add(self, event: Event | None) -> bool:
        if event is None or (event.label, event.stream_seq) in self._events:
            return False
        self._events[event.label, event.stream_seq] = event
        self._version += 1
        self._newest = asyncio.get_running_loop().time()
        return True

    async def _serve(self, name: str, open_hub: OpenHub) -> None:
        state, pause = _HubState(), self._pace.first_pause
        while True:
            try:
                async with open_hub() as hub:
                    async for _ in self._turns(state):
                        await self._bring_up(name, hub, state)
                        pause = self._pace.first_pause
            except (NetworkError, HubRefused, PolicyNotEnforced, BadAnswer) as exc:
                self._report(HubReport(hub=name, trouble=str(exc)))
                if isinstance(exc, PolicyNotEnforced) or not is_transient(exc):
                    pause = self._pace.longest_pause  # somebody has to do something: no need to hurry
            state.acknowledged.clear()
            state.version = -1
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._pace.longest_pause)

    async def _turns(self, state: _HubState) -> AsyncIterator[None]:
        """One turn each time there is something to tell this hub."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._grown:
                wait = max(state.resync_at - loop.time(), 0)
                with contextlib.suppress(TimeoutError):
                    await _within(
                        self._grown.wait_for(lambda: not self._unread and state.version != self._version), wait
                    )
            if self._unread:
                await asyncio.sleep(_SETTLE_SECONDS)
                continue
            if state.version != self._version:
                await asyncio.sleep(_SETTLE_SECONDS)
            yield

    async def _bring_up(self, name: str, hub: PolicyLink, state: _HubState) -> None:
        loop = asyncio.get_running_loop()
        is_news = state.version != self._version
        version, newest = self._version, self._newest
        if loop.time() >= state.resync_at:
            state.acknowledged.clear()
            state.resync_at = loop.time() + self._pace.resync
        policy = self.policy()
        left = RealmPolicy(
            tuple(item for item in policy.authorities if item not in state.acknowledged),
            tuple(item for item in policy.revocations if item not in state.acknowledged),
            policy.unresolved,
        )
        pushed = await hub.push(left)
        state.acknowledged.update(left.authorities, left.revocations)
        state.version = version
        if is_news or pushed != PushedPolicy():
            self._report(HubReport(hub=name, pushed=pushed, seconds=loop.time() - newest if is_news else None))


async def _within(waiting: Awaitable[Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await waiting
