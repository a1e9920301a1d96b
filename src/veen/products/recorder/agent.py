"""The agent: moves records from sources to the spool and from the spool to the hub, each record exactly once.

    read -> sealed in the spool -> MSG written down -> sent -> committed by the hub -> receipt verified -> removed

A crash between any two steps loses nothing and duplicates nothing: a record and its source's position reach the disk in
one transaction, and a MSG is written down before it is sent. After a crash its identical bytes are sent again, and the
hub answers with their place in the log (D-09, D-56, D-161, D-162).

Sources run even if the hub cannot be reached. While the spool is full, sources that can wait do so; records of the
others are counted, and the count becomes a recorder.loss event. recorder.heartbeat reports every minute the number of
records received, sent and lost, so silence is visible. A source that fails is restarted; heartbeats report the number
of restarts and the last failure.

The configuration of an agent: a TOML file with [agent] and one [[source]] for each source.

[agent]
spool_bytes = 268435456
heartbeat = 60
redact = [".password"]

[[source]]
id = "access-log"
kind = "file"
stream = "record/app/http"
path = "/var/log/nginx/access.log"
"""

import asyncio
import contextlib
import logging
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from veen import __version__
from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.errors import HubRefused, LocalError, NetworkError, TokenExpired, TokenMissing
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.identity.rotation import RotationBounds, RotationReason, make_binding, needs_rotation
from veen.client.send.captokens import TokenStore
from veen.client.send.sealing import Draft, Prepared
from veen.client.send.writing import KEY_ENDED, Outcome, Sent
from veen.client.transport.calls import is_transient, refusal_of
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import LimitError, Refusal, VeenError
from veen.core.labels import stream_id_of
from veen.core.objects.speaking import SPEAKS_SCHEMA
from veen.overlays.recorder.config import Configuration
from veen.products.recorder import events
from veen.products.recorder.adapters.logfiles import Place
from veen.products.recorder.adapters.registry import SourceConfig, SourceInvalid, adapter_of
from veen.products.recorder.events import MAX_PAYLOAD
from veen.products.recorder.redaction import Redactor
from veen.products.recorder.roles import next_seed
from veen.products.recorder.rules import RecorderRules, find_mapping_fault
from veen.products.recorder.sink import Adapter, Sinks, SpoolSink
from veen.products.recorder.spool import Flight, InFlight, Loss, SpoolItem, Waiting

_BATCH: Final = 64  # messages in one flight
_BATCH_BYTES: Final = 2 * 1024 * 1024
_ORDER: Final = frozenset((Refusal.DUPLICATE, Refusal.CLIENT_SEQ, Refusal.PREV_ACK))
_MAX_TOLD: Final = 300  # characters of a failure
_MAX_RESYNCS: Final = 3  # in a row, before another process must be using the key

_log: Final = logging.getLogger(__name__)

AnyTask = asyncio.Task[Any]
Connect = Callable[[Identity, Keyring], AbstractAsyncContextManager[Client]]


class _KeyEnded(Exception):
    """The hub no longer accepts a client key."""


class KeyShared(LocalError, code="SDR.KEY_SHARED"):
    """Another process sends with the producer's client key."""


@dataclass(frozen=True, slots=True)
class AgentSource:
    """An adapter and the stream that its records go to."""

    adapter: Adapter
    stream_id: bytes
    redactor: Redactor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals and timeouts of the agent, in seconds."""

    heartbeat: float = 60.0
    losses: float = 1.0  # between two looks at the counts of losses
    first_pause: float = 0.2  # before the hub is tried again
    longest_pause: float = 15.0
    drain: float = 30.0  # at the end: after a stop in all, otherwise without a record that the hub takes
    bounds: RotationBounds = field(default_factory=RotationBounds)


class Agent:
    """One producer's agent. All fields belong to the event loop that runs `run`."""

    def __init__(
        self,
        keystore: Keystore,
        tokens: TokenStore,
        shared: Sinks,
        sources: Sequence[AgentSource],
        connect: Connect,
        *,
        pace: Pace | None = None,
    ) -> None:
        self._keystore, self._tokens, self._shared, self._sources = keystore, tokens, shared, sources
        self._connect, self._pace = connect, pace or Pace()
        self._spool = shared.spool
        self._counts: dict[bytes, int] = {}  # label -> messages that the present client key has signed
        self._ending = False  # no more records come: the sender ends when the spool is empty
        self._batch = _BATCH  # records in the next flight
        self._resyncs = 0  # in a row
        self._rules = RecorderRules()
        self._failures: dict[str, str] = {}  # source -> why it failed last
        self._working: set[str] = set()  # sources that worked at least once
        self.restarts: dict[str, int] = {}  # source -> how often it was started again
        self.trouble: str | None = None  # why the hub takes nothing at present
        self.rotation_due = False  # the client key is past its bounds, and there is no token for another

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until every source has ended or `stop` is set, then until the spool is drained (`_drain`)."""
        stop = stop or asyncio.Event()
        await self._report_start()
        background: list[AnyTask] = [
            asyncio.create_task(work) for work in (self._deliver(), self._watch(), self._beat())
        ]
        sources: list[AnyTask] = [asyncio.create_task(self._read(source)) for source in self._sources]
        stopped: AnyTask = asyncio.create_task(stop.wait())
        try:
            await self._until_over(sources, background, stopped)
            await _cancel(*sources)
            await self._report_stop()
            # Set only now, so that the sender does not end before recorder.stop is in the spool.
            self._ending = True
            self._shared.changed.set()
            await self._drain(background[0], stopped)
            # A crash on any line above leaves "yes", and the next recorder.start says "killed".
            await asyncio.to_thread(self._spool.set_note, "running", "no")
        finally:
            await _cancel(stopped, *sources, *background)

    async def _drain(self, sender: AnyTask, stopped: AnyTask) -> None:
        """Wait for the sender to empty the spool.

        If all sources have ended, wait as long as the hub accepts records; give up when it accepted none for the drain
        time. After a stop, wait for the drain time in total.
        """
        while True:
            was_stopped = stopped.done()
            sent = (await asyncio.to_thread(self._spool.counts))["sent"]
            await asyncio.wait(
                [sender] if was_stopped else [sender, stopped],
                timeout=self._pace.drain,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if sender.done():
                sender.result()
                return
            if was_stopped:
                return
            if not stopped.done() and (await asyncio.to_thread(self._spool.counts))["sent"] == sent:
                return

    @staticmethod
    async def _until_over(sources: list[AnyTask], background: list[AnyTask], stopped: AnyTask) -> None:
        """Return when all sources have ended or `stop` is set; raise the error of a source or of a background task."""
        left: set[AnyTask] = set(sources)
        while left and not stopped.done():
            waiting = [*left, *background, stopped]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
            left -= done

    # --- what the agent says about itself --------------------------------------------------------------------

    async def _report_start(self) -> None:
        """Record recorder.start, with the end of the previous run: first, killed or stopped."""
        was = await asyncio.to_thread(self._spool.note, "running")
        await asyncio.to_thread(self._spool.set_note, "running", "yes")
        await self._shared.add_own(
            events.START,
            {
                "version": __version__,
                "previous": {None: "first", "yes": "killed"}.get(was, "stopped"),
                "waiting": self._spool.counts()["waiting"],
                "sources": [source.adapter.id for source in self._sources],
            },
        )

    async def _report_stop(self) -> None:
        await self._report_losses()
        await self._shared.add_own(events.STOP, dict(self._spool.counts()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._pace.heartbeat)
            await self.heartbeat()

    async def heartbeat(self) -> None:
        """Record recorder.heartbeat: counters, positions of sources, and trouble if there is any."""
        counts: dict[str, object] = dict(await asyncio.to_thread(self._spool.counts))
        counts["every"] = int(self._pace.heartbeat)
        positions = await asyncio.to_thread(self._spool.positions)
        counts["positions"] = {source: _without_fingerprints(position) for source, position in positions.items()}
        if self.trouble:
            counts["trouble"] = self.trouble
        if self.rotation_due:
            counts["rotation_due"] = True
        if self.restarts:
            counts["restarts"] = dict(self.restarts)
            counts["failures"] = {name: why for name, why in self._failures.items() if name in self.restarts}
        await self._shared.add_own(events.HEARTBEAT, counts)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._pace.losses)
            await self._report_losses()

    async def _report_losses(self) -> int:
        """Turn the counted losses into recorder.loss events; return the number of events."""

        def event_of(loss: Loss) -> SpoolItem:
            payload = {"source": loss.source, "reason": loss.reason, "count": loss.count}
            return self._shared.own_record(events.LOSS, {**payload, "first": loss.first, "last": loss.last})

        count = await asyncio.to_thread(self._spool.report, event_of)
        if count:
            self._shared.changed.set()
        return count

    # --- in --------------------------------------------------------------------------------------------------

    async def _read(self, source: AgentSource) -> None:
        """Run a source until it ends. Restart it after a failure, with a pause that doubles.

        A failure ends the agent only if no source ever worked: then the configuration is probably wrong.
        """
        name, pause = source.adapter.id, self._pace.first_pause
        while True:
            sink = SpoolSink(self._shared, source.adapter, source.stream_id, source.redactor)
            try:
                await source.adapter.run(sink)
            except Exception as exc:  # an adapter of another package may raise anything
                self._failures[name] = _describe_failure(exc)
                if sink.has_worked or _is_ready(source.adapter):
                    self._working.add(name)
                if not self._working and len(self._failures) == len(self._sources):
                    raise
            else:
                self._failures.pop(name, None)
                self._working.add(name)
                return
            pause = self._pace.first_pause if sink.has_worked else min(pause * 2, self._pace.longest_pause)
            self.restarts[name] = self.restarts.get(name, 0) + 1
            _log.warning("source %s is started again in %.1f s: %s", name, pause, self._failures[name])
            await asyncio.sleep(pause)

    # --- out -------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        """Send until the agent ends. Retry while the hub is unreachable or refuses for a reason that may pass."""
        pause = self._pace.first_pause
        while True:
            try:
                async with self._client() as authority:
                    while await self._send_next(authority):
                        self.trouble, pause = None, self._pace.first_pause
                if self._ending and not (await asyncio.to_thread(self._spool.counts))["waiting"]:
                    return
                continue  # the client key was replaced
            except (NetworkError, TokenMissing, TokenExpired) as exc:
                self.trouble = str(exc)
            except HubRefused as exc:
                self.trouble = str(exc)
                if not is_transient(exc) and not exc.code.startswith(("E.CAP", "E.TIME", "E.RATE", "E.AUTH")):
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._pace.longest_pause)

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[TokenAuthority]:
        """Connect with the current key; before that, settle with an earlier key whatever it left unfinished."""
        identity, ring = self._keystore.identity, self._keystore.secrets.keyring
        last = await asyncio.to_thread(self._spool.note, "principal")
        is_new = last is not None and last != identity.client_id.hex()
        record = self._shared.own_record(events.ROTATE, {"previous": last, "next": identity.client_id.hex()})
        is_named = True
        if last is not None and is_new:
            is_named = await self._close_key(identity, ring, bytes.fromhex(last), record)
        self._counts.clear()
        async with self._connect(identity, ring) as client:
            authority = TokenAuthority(client, self._tokens, clock=self._shared.clock)
            self._rules = RecorderRules()
            if not is_named:
                await self._bind(authority, identity)
            if is_new:
                await authority.send(record.stream_id, events.draft_of(record.data, client.client_id))
            # Stored last: a crash before this line repeats the change of keys (decision 191), and nothing is skipped.
            await asyncio.to_thread(self._spool.set_note, "principal", identity.client_id.hex())
            yield authority

    async def _close_key(self, identity: Identity, ring: Keyring, last: bytes, record: SpoolItem) -> bool:
        """Settle the flight of the earlier key and record its successor, which names the earlier key in turn (I3).

        Return False if the hub no longer accepts the earlier key, so that it could not name a successor. A crash before
        the new principal is noted repeats this: recorder.rotate may appear twice in the log, records do not.
        """
        cut = next((at for at, key in enumerate(identity.client_keys, start=1) if key.client_id == last), None)
        if cut is not None:
            earlier = replace(identity, client_keys=identity.client_keys[:cut])
            try:
                async with self._connect(earlier, ring) as client:
                    authority = TokenAuthority(client, self._tokens, clock=self._shared.clock)
                    await self._name_successor(authority, earlier, record)
            except _KeyEnded:
                cut = None
        await asyncio.to_thread(self._spool.ground)
        return cut is not None

    async def _bind(self, authority: TokenAuthority, identity: Identity) -> None:
        """Bind the client key to the identity in each stream: `recorder init` named that as a producer (D-179)."""
        for stream_id in self._streams():
            body = make_binding(identity, stream_id, identity.client_key.created_at).to_bytes()
            capability = await authority.capability(stream_id)
            await authority.client.send(self._keys(stream_id), body, schema=SPEAKS_SCHEMA, capability=capability)

    async def _name_successor(self, authority: TokenAuthority, earlier: Identity, record: SpoolItem) -> None:
        """Finish the flight and write recorder.rotate with the earlier key.

        Raise _KeyEnded if the hub no longer accepts that key: its records are then sealed again with the next one.
        """
        try:
            if (flight := await asyncio.to_thread(self._spool.flight)) is not None:
                await self._finish(authority, flight)
            now, stated = int(self._shared.clock()), RotationBounds().at_hub(authority.client.session)
            is_bounded = RotationReason.LIFETIME.value in authority.client.session.status.limits
            if is_bounded and needs_rotation(earlier, {}, now, stated) is not None:
                raise _KeyEnded
            await authority.send(record.stream_id, events.draft_of(record.data, authority.client.client_id))
        except HubRefused as exc:
            if refusal_of(exc) in KEY_ENDED:
                raise _KeyEnded from exc
            raise
        except (TokenMissing, TokenExpired) as exc:
            raise _KeyEnded from exc

    async def _send_next(self, authority: TokenAuthority) -> bool:
        """Send one flight; return False if the agent ends or the client key was replaced.

        Wait while the spool is empty.
        """
        flight = await asyncio.to_thread(self._spool.flight)
        if flight is None:
            if await self._rotate_if_due(authority):
                return False
            flight = await self._prepare_flight(authority)
        if flight is not None:
            await self._finish(authority, flight)
            return True
        if self._ending:  # what was refused meanwhile is reported before the end
            return await self._report_losses() > 0
        # Cleared before the spool is counted: a record that arrives in between sets the event again.
        self._shared.changed.clear()
        if (await asyncio.to_thread(self._spool.counts))["waiting"] == 0 and not self._ending:
            await self._shared.changed.wait()
        return True

    async def _prepare_flight(self, authority: TokenAuthority) -> Flight | None:
        """Seal the next batch of records and store the MSGs before any of them is sent (D-09)."""
        batch = await asyncio.to_thread(self._spool.next_batch, self._batch, _BATCH_BYTES)
        if batch is None:
            return None
        stream_id, records = batch
        client, keys = authority.client, self._keys(stream_id)
        configuration = await self._rules.configuration(client)
        if configuration is not None:
            records = await self._select_allowed(configuration, stream_id, records)
            if not records:
                return await self._prepare_flight(authority)
        drafts = [events.draft_of(record.data, client.client_id) for record in records]
        capability = await authority.capability(stream_id)
        try:
            sealed = await client.prepare(
                keys, [Draft(body=draft.body, schema=draft.schema) for draft in drafts], capability=capability
            )
        except LimitError as exc:  # of the hub: lower than what the agent was told
            await client.withdraw_prepared(keys)
            if len(records) == 1:
                await asyncio.to_thread(self._spool.refuse, records[0].n, exc.code, int(self._shared.clock()))
            self._batch = 1  # one by one until the record that is too large is found
            return await self._prepare_flight(authority)
        self._batch = _BATCH
        messages = tuple(
            InFlight(record.n, message.client_seq, message.raw) for record, message in zip(records, sealed, strict=True)
        )
        flight = Flight(stream_id, await self._epoch(client, keys, sealed[0].label), messages)
        self._counts[sealed[0].label] = sealed[-1].client_seq
        # It is written to disk before anything is sent: after a crash the hub must get the same bytes (D-09, D-56).
        await asyncio.to_thread(self._spool.fly, flight)
        return flight

    async def _select_allowed(
        self, configuration: Configuration, stream_id: bytes, records: Sequence[Waiting]
    ) -> list[Waiting]:
        """Return the records that the configuration allows. The others are set aside and count as lost (SDR.MAPPING).

        A payload above the limit is recorded by its beginning, its size and its hash.
        """
        allowed = []
        for record in records:
            if find_mapping_fault(configuration, events.event_type_of(record.data), stream_id) is not None:
                await asyncio.to_thread(self._spool.refuse, record.n, "SDR.MAPPING", int(self._shared.clock()))
            elif configuration.max_payload:
                allowed.append(Waiting(record.n, events.within_bound(record.data, configuration.max_payload)))
            else:
                allowed.append(record)
        return allowed

    def _keys(self, stream_id: bytes) -> StreamKeys:
        return self._keystore.secrets.keyring.for_stream(stream_id)

    @staticmethod
    async def _epoch(client: Client, keys: StreamKeys, label: bytes) -> int:
        """Return the epoch of a label: 0 for a label without epochs, else the one near the hub's epoch that gives this
        label.
        """
        if client.label(keys, 0) == label:
            return 0
        now = (await client.status()).epoch
        return next((epoch for epoch in (now, now - 1, now + 1) if client.label(keys, epoch) == label), now)

    async def _finish(self, authority: TokenAuthority, flight: Flight) -> None:
        """Send the identical bytes until each message has a receipt or is known not to be in the log."""
        client, keys = authority.client, self._keys(flight.stream_id)
        prepared = [Prepared.of(message.msg) for message in flight.messages]
        try:
            outcomes: list[Outcome] = await client.submit_prepared(keys, prepared, batch=_BATCH)
        except NetworkError:
            raise
        except LocalError as exc:  # its label is of an epoch that has passed: the hub would refuse it
            outcomes = [exc] * len(prepared)
        sent, refusal = [], None
        for message, ready, outcome in zip(flight.messages, prepared, outcomes, strict=True):
            if isinstance(outcome, Sent) or await self._is_in_log(client, keys, flight.epoch, ready):
                sent.append(message.n)
            elif refusal is None:
                refusal = (message, outcome)
        # Also with a refusal: the verified receipts of the other messages must not get lost with it.
        await asyncio.to_thread(self._spool.mark_sent, sent)
        async with self._shared.freed:
            self._shared.freed.notify_all()
        if refusal is None:
            self._resyncs = 0
            return
        await self._on_refused(client, keys, *refusal)

    @staticmethod
    async def _is_in_log(client: Client, keys: StreamKeys, epoch: int, message: Prepared) -> bool:
        """Return True if a refused message is in the log: an earlier answer may have been lost (D-162)."""
        place = await client.cursor(keys, message.client_seq, epoch=epoch)
        if place is None or place.stream_seq is None or place.leaf != message.leaf_hash:
            return False
        receipt = await client.receipt(keys, place.stream_seq, epoch=epoch)
        return receipt.leaf_hash == message.leaf_hash

    async def _on_refused(self, client: Client, keys: StreamKeys, message: InFlight, outcome: Outcome) -> None:
        """Handle a message that is not in the log: seal its record again, or set it aside if no hub would ever accept
        it.
        """
        # First the spool, then the client: a crash in between loses numbers of the key, which resync finds again.
        await asyncio.to_thread(self._spool.ground)
        await client.withdraw_prepared(keys)
        reason = refusal_of(outcome) if isinstance(outcome, HubRefused) else None
        if reason in _ORDER:
            self._resyncs += 1
            if self._resyncs > _MAX_RESYNCS:
                raise KeyShared(
                    f"another process sends under the client key {client.client_id.hex()[:16]}…: stop it, or give it an"
                    " identity of its own"
                )
            await client.resync(keys)
        elif isinstance(outcome, HubRefused) and outcome.code in ("E.SIZE", "E.FORMAT", "E.SIG"):
            await asyncio.to_thread(self._spool.refuse, message.n, outcome.code, int(self._shared.clock()))
        elif isinstance(outcome, HubRefused) and reason is not Refusal.EPOCH:
            raise outcome  # the token, the role of the hub: it may be mended, so the record waits

    # --- keys ------------------------------------------------------------------------------------------------

    async def _rotate_if_due(self, authority: TokenAuthority) -> bool:
        """Replace the client key if it is past its limits (KEX1+) and nothing is in flight; return True if it was
        replaced.

        A hub that requires tokens must know the next key: by a token derived from that of the identity, or, at an older
        hub, by one that the admin issued in advance (decision 191). Without it the agent keeps the old key and reports
        that in every heartbeat: evidence is worth more than a fresh key (decision 121).
        """
        identity = self._keystore.identity
        bounds = self._pace.bounds.at_hub(authority.client.session).early()
        due = needs_rotation(identity, self._counts, int(self._shared.clock()), bounds)
        if due is None:
            self.rotation_due = False
            return False
        seed = next_seed(identity)
        if await authority.is_gated() and not await authority.may_follow(self._streams()):
            next_id = SigningKey(seed).public
            if not await asyncio.to_thread(authority.may_write, next_id, self._streams()):
                self.rotation_due = True
                return False
        await asyncio.to_thread(self._keystore.rotate, int(self._shared.clock()), seed=seed)
        return True

    def _streams(self) -> list[bytes]:
        """Return all streams that this agent may write to."""
        ring = self._keystore.secrets.keyring
        openings = stream_id_of(events.OPENINGS_STREAM)
        optional = [openings] if any(keys.stream_id == openings for keys in ring.entries) else []
        return [stream_id_of(events.OWN_STREAM), *optional, *(source.stream_id for source in self._sources)]


def _describe_failure(exc: Exception) -> str:
    """Return the text of a failure. Of a foreign exception only the type: its message may contain records."""
    is_ours = isinstance(exc, (VeenError, OSError))
    return f"{type(exc).__name__}: {exc}"[:_MAX_TOLD] if is_ours else type(exc).__name__


def _is_ready(adapter: object) -> bool:
    ready = getattr(adapter, "ready", None)
    return isinstance(ready, asyncio.Event) and ready.is_set()


def _without_fingerprints(position: str) -> str:
    """Return a position without the fingerprints of lines: redaction rules may hide those lines."""
    place = Place.parse(position)
    return position if place is None else place.shown


async def _cancel(*tasks: AnyTask) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_SPOOL_BYTES: Final = 256 * 1024 * 1024
_AGENT_KEYS: Final = ("spool_bytes", "heartbeat", "max_payload", "redact", "drain")
_MAX_FILE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent, from its configuration file."""

    sources: tuple[tuple[SourceConfig, str, Redactor | None], ...]  # with the stream of each
    spool_bytes: int = _SPOOL_BYTES
    max_payload: int = MAX_PAYLOAD
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file. Raise SourceInvalid, which names the source and the error."""
        with path.open("rb") as file:
            data = file.read(_MAX_FILE)
        try:
            return cls.of(tomllib.loads(data.decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise SourceInvalid(f"{path}: {exc}") from exc

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build the configuration from the tables of the file."""
        unknown = set(table) - {"agent", "source"}
        agent = table.get("agent", {})
        if unknown or not isinstance(agent, dict) or set(agent) - set(_AGENT_KEYS):
            wrong = ", ".join(sorted(unknown or set(agent) - set(_AGENT_KEYS)))
            raise SourceInvalid(
                f"unknown key {wrong}: [agent] has {', '.join(_AGENT_KEYS)}, and sources are [[source]]"
            )
        common = _rules(agent.get("redact", []))
        sources = tuple(_source(entry, common) for entry in table.get("source", []))
        if len({config.id for config, _, _ in sources}) < len(sources):
            raise SourceInvalid("two sources have the same id")
        return cls(
            sources=sources,
            spool_bytes=_number(agent, "spool_bytes", _SPOOL_BYTES),
            max_payload=min(_number(agent, "max_payload", MAX_PAYLOAD), MAX_PAYLOAD * 3),
            pace=Pace(heartbeat=float(_number(agent, "heartbeat", 60)), drain=float(_number(agent, "drain", 30))),
        )

    def open_sources(self, ring: Keyring) -> list[AgentSource]:
        """Return the sources with their adapters. Raise UnknownStream if the producer has no key of a stream."""
        return [
            AgentSource(adapter_of(config), ring.for_stream(stream).stream_id, redactor)
            for config, stream, redactor in self.sources
        ]


def _rules(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(rule, str) for rule in value):
        raise SourceInvalid("redact is a list of rules such as .password or re:PATTERN")
    return value


def _source(entry: Any, common: Sequence[str]) -> tuple[SourceConfig, str, Redactor | None]:
    if not isinstance(entry, dict):
        raise SourceInvalid("a source is a table [[source]]")
    options = dict(entry)
    for name in ("id", "kind", "stream"):
        if not isinstance(options.get(name), str) or not options[name]:
            raise SourceInvalid(f"source {options.get('id', '?')!r}: {name} is missing")
    rules = [*common, *_rules(options.pop("redact", []))]
    config_id, kind, stream = options.pop("id"), options.pop("kind"), options.pop("stream")
    return SourceConfig(config_id, kind, options), stream, Redactor.of(rules) if rules else None


def _number(table: Mapping[str, Any], name: str, default: int) -> int:
    value = table.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SourceInvalid(f"[agent] {name} is a whole number above 0")
    return value
