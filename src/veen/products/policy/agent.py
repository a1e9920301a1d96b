"""The policy agent: follows the streams of a realm, folds them, brings hubs in line (D-51, KEX1-08, AUTH1).

    log of the realm -> events -> RealmPolicy -> POST /tooling/policy of each hub -> in force from the next second on

The policy is a function of the log, and the hub's own journal has everything that a hub was sent. So the agent may be
killed at any moment and restarted, and any number of agents may serve the same hubs: a hub does not journal records
that it has. Each hub has its own task: one that is unreachable or refuses delays no other and is retried. A stored
state (`KeptStates`) saves reading from the first entry. It is used only if folds, settings, keys and roots of the log
are unchanged; without it the outcome is the same, unless the hub has erased entries.

Entries by authors whose records count that cannot be opened, and entries that the hub has erased, make the policy
incomplete: `gaps` lists them. Hubs get the rest.

A hub gets new records at once when a stream grows, and everything again every `resync` seconds: it may have been
restored from an older backup, and leases of devices must be extended (`policy.LEASE_SEC`).

A hub as a policy agent uses it: pinned, sent new records, asked for its records (D-51).

The hub proves journaled records by its signature. An answer that its key did not sign is an error, so no other hub can
pretend to enforce the policy.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from veen.client.errors import BadAnswer, ClientError, HubRefused, NetworkError
from veen.client.identity.keyring import StreamRef
from veen.client.read.reading import Entry
from veen.client.read.streams import ErasedRange, is_pruned
from veen.client.session import HubSession, PinnedHub
from veen.client.transport.calls import Retry, is_transient
from veen.core.errors import ApiCode
from veen.core.event import Event
from veen.core.objects.control import ControlRecord, PolicyAuthority, PolicyRevocation
from veen.core.objects.policies import MAX_POLICY_ITEMS, POLICY_BODIES, Authority, Revocation
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.core.policy_state import PolicyView
from veen.overlays.federation.policy import RealmPolicy, realm_policy
from veen.overlays.federation.realm import RealmFold
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.link import Stream
from veen.overlays.framework.ordered import LateEvent
from veen.overlays.framework.schema import Issue
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.framework.stream import RunningFold
from veen.overlays.id.fold import IdFold
from veen.overlays.operations.access import AccessFold
from veen.overlays.operations.delegation import Caps

_OPERATION: Final = "tooling/policy"
_MAX_PAGES: Final = 100_000  # of control records; a longer list is a fault of the hub

OpenHub = Callable[[], AbstractAsyncContextManager["PolicyLink"]]


@asynccontextmanager
async def policy_link(hub: PinnedHub, retry: Retry | None = None) -> AsyncIterator["PolicyLink"]:
    """Connect and check the pin."""
    async with hub.session(retry) as session:
        yield PolicyLink(session)


class PolicyNotEnforced(ClientError, code="POLICY.NOT_ENFORCED"):
    """A hub does not enforce one of the two views, so it accepts no records of it."""


@dataclass(frozen=True, slots=True)
class PushedPolicy:
    """Number of records that a hub journaled because of a push; zeros if it had them all."""

    revocations: int = 0
    authorities: int = 0

    def __add__(self, other: "PushedPolicy") -> "PushedPolicy":
        return PushedPolicy(self.revocations + other.revocations, self.authorities + other.authorities)


@dataclass(frozen=True, slots=True)
class ReportedPolicy:
    """The policy that a hub enforces, by records that it signed."""

    kex1_plus: bool
    auth1: bool
    view: PolicyView
    records: int

    def missing(self, policy: RealmPolicy, at: int) -> RealmPolicy:
        """Return the part of a policy that would be new to this hub at `at`."""
        return RealmPolicy(
            tuple(item for item in policy.authorities if self.view.is_news(item, at)),
            tuple(item for item in policy.revocations if self.view.is_news(item, at)),
            policy.unresolved,
        )


class PolicyLink:
    """An open connection to one pinned hub."""

    def __init__(self, session: HubSession) -> None:
        self._session = session

    @property
    def hub_id(self) -> bytes:
        return self._session.hub_id

    async def push(self, policy: RealmPolicy) -> PushedPolicy:
        """Send the policy, in records of at most MAX_POLICY_ITEMS; the hub does not journal again what it has.

        Revocations come first. Raise PolicyNotEnforced if the hub ignores one of the two views; the other one is sent.
        """
        pushed, refused = PushedPolicy(), []
        for batch in _batches(policy.revocations):
            try:
                pushed += await self._push(PolicyRequest(revocations=tuple(batch)))
            except PolicyNotEnforced as exc:
                refused.append(exc)
                break
        for authorities in _batches(policy.authorities):
            try:
                pushed += await self._push(PolicyRequest(authorities=tuple(authorities)))
            except PolicyNotEnforced as exc:
                refused.append(exc)
                break
        if refused:
            raise refused[0]
        return pushed

    async def _push(self, request: PolicyRequest) -> PushedPolicy:
        try:
            answer = await self._session.calls.ask(_OPERATION, request, PolicyResponse)
        except HubRefused as exc:
            if exc.code == ApiCode.CONFLICT.code:
                raise PolicyNotEnforced(str(exc)) from exc
            raise
        pushed = PushedPolicy()
        asked_revocations = set(request.revocations or ())
        asked_authorities = set(request.authorities or ())
        for record in answer.records:
            self._session.pin.check_control(record)
            body = record.body
            if isinstance(body, PolicyRevocation) and asked_revocations.issuperset(body.revocations):
                pushed += PushedPolicy(revocations=len(body.revocations))
            elif isinstance(body, PolicyAuthority) and asked_authorities.issuperset(body.authorities):
                pushed += PushedPolicy(authorities=len(body.authorities))
            else:
                raise BadAnswer(f"{_OPERATION}: a record of something else than what was handed over")
        return pushed

    async def report(self) -> ReportedPolicy:
        """Return all policy records of the hub, each verified."""
        view, count = PolicyView(), 0
        kex1_plus = auth1 = False
        async for page in self._pages():
            for record in page.records:
                self._session.pin.check_control(record)
                if not isinstance(record.body, POLICY_BODIES):
                    raise BadAnswer(f"{_OPERATION}: a record that is no policy")
                view.add(record.body, record.hub_ts)
                count += 1
            kex1_plus, auth1 = page.kex1_plus, page.auth1
        return ReportedPolicy(kex1_plus, auth1, view, count)

    async def _pages(self) -> AsyncIterator[PolicyRecordsResponse]:
        after = 0
        for _ in range(_MAX_PAGES):
            page = await self._session.calls.ask(f"{_OPERATION}?after={after}", None, PolicyRecordsResponse)
            if page.records and _seq(page.records[0]) <= after:
                raise BadAnswer(f"{_OPERATION}: records that do not ascend")
            yield page
            if not page.more:
                return
            if not page.records:
                raise BadAnswer(f"{_OPERATION}: the list goes on, and no record is listed")
            after = _seq(page.records[-1])
        raise BadAnswer(f"{_OPERATION}: the list does not end")


def _seq(record: ControlRecord) -> int:
    return record.seq


def _batches(items: Sequence[Revocation] | Sequence[Authority]) -> Iterable[Sequence]:  # type: ignore[type-arg]  # of either
    for start in range(0, len(items), MAX_POLICY_ITEMS):
        yield items[start : start + MAX_POLICY_ITEMS]


_SETTLE_SECONDS: Final = 0.02  # several records of one batch make one push

# An entry refused for another reason counts for no reader, whatever the keys.
_MAY_OPEN: Final = frozenset({"E.OPEN", "OVL.AMBIGUOUS"})

Place = tuple[bytes, int]


class PolicyReader(Protocol):
    """The part of a client that the agent needs: it reads and follows streams."""

    def follow(self, stream: Stream, *, from_seq: int | None = None) -> AsyncGenerator[Any, None]:
        """Yield the entries of the present label from `from_seq` on, then wait for more."""

    def read_kept(self, stream: Stream, *, after: Mapping[bytes, int] | None = None) -> AsyncGenerator[Any, None]:
        """Yield the entries that the hub has, label by label, and an `ErasedRange` for erased ones."""

    async def labels_of(self, stream: Stream) -> Mapping[bytes, int]:
        """Return the epoch of each label of a stream."""

    async def receipt(self, stream: Stream, seq: int, *, epoch: int | None = None) -> Receipt:
        """Return the verified receipt of an entry."""


class KeptStates(Protocol):
    """Storage for the states of the folds, bound to the read keys of the streams."""

    def load(self) -> Mapping[str, Snapshot] | None:
        """Return the saved states by the name of the fold; None if nothing usable exists."""

    def save(self, snapshots: Mapping[str, Snapshot]) -> None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PolicyGap:
    """Entries of a stream of the realm that are missing in the policy."""

    stream: str
    label: bytes
    first: int
    last: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFolds:
    """The folds that turn events into a policy, and the operator's settings."""

    realm: RealmFold
    access: AccessFold | None = None
    devices: IdFold | None = None
    principals: frozenset[bytes] = frozenset()
    caps: Caps = field(default_factory=Caps)

    def counts(self, stream: Stream, client_id: bytes) -> bool:
        """Return True unless the rules of the realm exclude records by this client key on the stream."""
        stream_id = stream if isinstance(stream, bytes) else StreamRef.parse(stream).stream_id
        return stream_id not in self.realm.admin_streams or self.realm.may_emit(stream_id, client_id)

    @property
    def present(self) -> tuple[AnyFold, ...]:
        """The configured folds."""
        return tuple(fold for fold in (self.realm, self.access, self.devices) if fold is not None)


class _RunningFolds:
    """The folds of a realm, advanced with every event. Belongs to the event loop of the agent."""

    def __init__(self, folds: PolicyFolds, bases: Mapping[str, Any]) -> None:
        self._folds = folds
        self._running = {fold.name: RunningFold(fold, bases.get(fold.name)) for fold in folds.present}

    def add(self, event: Event) -> None:
        for running in self._running.values():
            running.add(event)

    def policy(self, as_of: int) -> RealmPolicy:
        folds = self._folds

        def state(fold: AnyFold | None) -> Any:
            return None if fold is None else self._running[fold.name].view(as_of)

        return realm_policy(
            state(folds.realm),
            access=state(folds.access),
            devices=state(folds.devices),
            principals=folds.principals,
            caps=folds.caps,
            as_of=as_of,
        )

    def issues(self) -> tuple[Issue, ...]:
        """Return everything of the realm's streams that has no effect, and why."""
        return tuple(sorted({issue for running in self._running.values() for issue in running.issues()}))

    def snapshots(self, cuts: Sequence[Cut]) -> dict[str, Snapshot]:
        return {name: Snapshot.take(running.fold, running.summary(), cuts) for name, running in self._running.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPace:
    """Intervals and timeouts, in seconds."""

    resync: float = 300.0  # between two complete pushes to a hub
    first_pause: float = 0.2  # before a hub that failed is tried again
    longest_pause: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReport:
    """One attempt to bring a hub up to date."""

    hub: str
    pushed: PushedPolicy = field(default_factory=PushedPolicy)
    trouble: str | None = None  # why the hub is not up to date
    gaps: int = 0  # entries that the policy was made without
    seconds: float | None = None  # from the moment at which the agent saw the newest record


@dataclass(slots=True)
class _HubState:
    """State of one hub; belongs to the event loop of the agent."""

    acknowledged: set[Any] = field(default_factory=set)  # items that the hub has acknowledged since the last resync
    version: int = -1  # version of the events last sent to it
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
        kept: KeptStates | None = None,
    ) -> None:
        self._folds, self._streams, self._hubs = folds, streams, hubs
        self._pace, self._clock, self._report, self._kept = pace or PolicyPace(), clock, report, kept
        self._grown = asyncio.Condition()
        self._version = 0  # grows with the events
        self._newest = 0.0  # when the newest event came, in the time of the loop
        self._reset({}, {})

    def _reset(self, bases: Mapping[str, Any], cuts: Mapping[bytes, Cut]) -> None:
        self._running = _RunningFolds(self._folds, bases)
        self._cuts = dict(cuts)  # by label: how far it is folded
        self._saved = dict(cuts)  # the same, of the stored state
        self._missing: dict[Place, PolicyGap] = {}  # by label and first position
        self._refused: list[Issue] = []  # entries that could not be opened and count for no reader
        self._unread = set(range(len(self._streams)))  # streams that have not been read to their end yet
        self._tally: tuple[int, int, RealmPolicy] | None = None  # version, second, policy
        self._version += 1

    # --- once ------------------------------------------------------------------------------------------------

    async def read(self, reader: PolicyReader) -> RealmPolicy:
        """Return the policy as the streams have it now."""
        await self._start(reader)
        try:
            for number, stream in enumerate(self._streams):
                await self._read(reader, number, stream)
            policy = self.policy()
        except LateEvent:  # an event belongs before the state that was kept
            self._forget()
            return await self.read(reader)
        self._keep()
        return policy

    async def _start(self, reader: PolicyReader) -> None:
        """Start from the stored state, if the same folds made it from this log."""
        self._reset({}, {})
        if self._kept is None or (snapshots := self._kept.load()) is None:
            return
        cuts = {cut.label: cut for snapshot in snapshots.values() for cut in snapshot.cuts}
        roots = {}
        for stream in self._streams:
            for label, epoch in (await reader.labels_of(stream)).items():
                if (cut := cuts.get(label)) is not None:
                    with contextlib.suppress(HubRefused):  # it has no such entry: then it is another log
                        receipt = await reader.receipt(stream, cut.upto_seq, epoch=epoch)
                        roots[label, cut.upto_seq] = receipt.mmr_root
        try:
            bases = {
                fold.name: snapshots[fold.name].restore(fold, lambda label, seq: roots.get((label, seq)))
                for fold in self._folds.present
            }
        except (SnapshotRefused, KeyError):
            self._forget()
            return
        self._reset(bases, cuts)

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.forget()

    def _keep(self) -> None:
        """Keep the states if they are those of the whole log."""
        if self._kept is None or self._unread or self._missing or self._cuts == self._saved:
            return
        self._kept.save(self._running.snapshots(tuple(self._cuts.values())))
        self._saved = dict(self._cuts)

    async def _read(self, reader: PolicyReader, number: int, stream: Stream) -> None:
        """Read a stream to its end, behind the entries folded already and those that the hub has erased."""
        after = {label: cut.upto_seq for label, cut in self._cuts.items()}
        async with contextlib.aclosing(reader.read_kept(stream, after=after)) as items:
            async for item in items:
                if isinstance(item, ErasedRange):
                    why = "the hub has erased the payloads"
                    self._miss(PolicyGap(str(stream), item.label, item.first, item.last, why))
                    self._cuts[item.label] = Cut(label=item.label, upto_seq=item.last, mmr_root=bytes(32))
                else:
                    self._add(stream, item)
        self._unread.discard(number)

    async def push(self) -> list[HubReport]:
        """Send everything to every hub, once."""
        policy = self.policy()
        return [await self._attempt(name, open_hub, policy) for name, open_hub in self._hubs.items()]

    async def _attempt(self, name: str, open_hub: OpenHub, policy: RealmPolicy) -> HubReport:
        try:
            async with open_hub() as hub:
                return HubReport(hub=name, pushed=await hub.push(policy), gaps=self.missing_count)
        except (NetworkError, HubRefused, PolicyNotEnforced) as exc:
            return HubReport(hub=name, trouble=str(exc))

    def policy(self) -> RealmPolicy:
        """Return the policy of the events read so far, at this second."""
        now = int(self._clock())
        if self._tally is None or self._tally[:2] != (self._version, now):
            self._tally = self._version, now, self._running.policy(now).in_force(now)
        return self._tally[2]

    def issues(self) -> tuple[Issue, ...]:
        return tuple(sorted({*self._running.issues(), *self._refused}))

    def gaps(self) -> tuple[PolicyGap, ...]:
        """Return the entries missing in the policy, by label and position; empty if it covers the whole log."""
        return tuple(self._missing[place] for place in sorted(self._missing))

    @property
    def missing_count(self) -> int:
        """Number of entries missing in the policy."""
        return sum(gap.last - gap.first + 1 for gap in self._missing.values())

    # --- service ---------------------------------------------------------------------------------------------

    async def run(self, reader: PolicyReader) -> None:
        """Run until cancelled. An error of the source ends it: unverified records are never pushed."""
        while True:
            await self._start(reader)
            try:
                async with asyncio.TaskGroup() as tasks:
                    for number, stream in enumerate(self._streams):
                        tasks.create_task(self._watch(reader, number, stream))
                    for name, open_hub in self._hubs.items():
                        tasks.create_task(self._serve(name, open_hub))
                    if self._kept is not None:
                        tasks.create_task(self._keep_now_and_then())
            except BaseExceptionGroup as group:
                if not isinstance(group.exceptions[0], LateEvent):
                    raise group.exceptions[0] from None
                self._forget()

    async def _keep_now_and_then(self) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: not self._unread)
        while True:
            self._keep()
            await asyncio.sleep(self._pace.resync)

    async def _watch(self, reader: PolicyReader, number: int, stream: Stream) -> None:
        while True:
            await self._read(reader, number, stream)
            async with self._grown:
                self._grown.notify_all()
            try:
                await self._follow(reader, stream)
            except HubRefused as exc:
                if not is_pruned(exc):
                    raise
                await asyncio.sleep(self._pace.longest_pause)  # the rest is read in the next round

    async def _follow(self, reader: PolicyReader, stream: Stream) -> None:
        labels = await reader.labels_of(stream)
        first = 1  # of the label of the current epoch, which may have changed by then: known entries are skipped
        if set(labels.values()) <= {0}:  # labels of this hub never change
            first = max((self._cuts[label].upto_seq for label in labels if label in self._cuts), default=0) + 1
        async with contextlib.aclosing(reader.follow(stream, from_seq=first)) as entries:
            async for entry in entries:
                if self._add(stream, entry):
                    async with self._grown:
                        self._grown.notify_all()

    def _add(self, stream: Stream, entry: Entry) -> bool:
        """Add an entry; return True if it is new."""
        label, seq = entry.receipt.label, entry.seq
        before = self._cuts.get(label)
        if before is not None and seq <= before.upto_seq:
            return False
        self._cuts[label] = Cut(label=label, upto_seq=seq, mmr_root=entry.receipt.mmr_root)
        if entry.event is not None:
            self._running.add(entry.event)
        elif self._folds.counts(stream, entry.msg.client_id):
            code, _, what = (entry.error or "E.OPEN: sealed").partition(": ")
            if code in _MAY_OPEN:
                self._miss(PolicyGap(str(stream), label, seq, seq, f"{code}: {what}"))
            else:
                self._refused.append(Issue(label, seq, code, what))
        self._version += 1
        self._newest = asyncio.get_running_loop().time()
        return True

    def _miss(self, gap: PolicyGap) -> None:
        self._missing[gap.label, gap.first] = gap
        self._version += 1

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
                    pause = self._pace.longest_pause  # an operator must act: a short pause would not help
            state.acknowledged.clear()
            state.version = -1
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._pace.longest_pause)

    async def _turns(self, state: _HubState) -> AsyncIterator[None]:
        """Yield each time there is something to send to this hub."""
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
            seconds = loop.time() - newest if is_news else None
            self._report(HubReport(hub=name, pushed=pushed, gaps=self.missing_count, seconds=seconds))


async def _within(waiting: Awaitable[Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await waiting
