"""A running hub: its parts put together, watched, and taken apart again.

    start     lock · identity · limits · store · sequencer · API · transport
    run       watch the disk, empty the journal when the hub is quiet, check old chunks, handle signals
    stop      stop listening · finish accepted work · leave the directory clean · unlock

`Hub` implements `Services` of the API. One hub is one process in production; tests and programs run it inside their
own event loop by `Hub.serve`.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Self

from veen import __version__, native
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, LimitsSet
from veen.core.objects.evidence import Equivocation
from veen.hub.admission.decide import Resolver
from veen.hub.admission.policy import Policy
from veen.hub.api.about import About
from veen.hub.api.access import Access
from veen.hub.api.anchoring import Anchoring
from veen.hub.api.attachments import AttachmentOperations
from veen.hub.api.calls import LabelOrder, Services
from veen.hub.api.operations import Api
from veen.hub.api.outer import OuterOperations, ServedOuter
from veen.hub.api.pages import Tails
from veen.hub.api.policies import Policies
from veen.hub.api.replication import Replication
from veen.hub.api.reply import CLOCK_STEP
from veen.hub.api.rotation import Rotation
from veen.hub.api.tooling import Tooling
from veen.hub.http.server import HttpServer, HttpSettings
from veen.hub.process.config import AttachmentPolicy, ConfigError, HubConfig, Reload
from veen.hub.process.housekeeping import Housekeeping, in_thread
from veen.hub.process.local_socket import LocalSocket
from veen.hub.process.logs import EventLog, LogSink
from veen.hub.process.observe import HubObserver
from veen.hub.process.outer import OuterLog, read_policy
from veen.hub.process.startup import (
    Sealing,
    anchor_backend,
    check_index,
    data_fs,
    finish_rotations,
    open_identity,
    read_limits,
    save_limits,
)
from veen.hub.process.supervisor import Supervisor
from veen.hub.process.watches import AuthorityWatch, ReplicaWatch, check_writer
from veen.hub.sequencer.clock import HubClock, monotonic, read_clock, write_clock
from veen.hub.sequencer.sequencer import NotPrimary, Sequencer
from veen.hub.transports.all import Transports
from veen.io.descriptors import limit, max_connections
from veen.io.errors import LockedError, is_disk_full
from veen.io.local import OsFs
from veen.io.metrics_text import Value
from veen.io.tls import Tls, check_plain
from veen.storage import layout
from veen.storage.anchors import NONCE_BYTES, AnchorBackend, AnchorError
from veen.storage.attachments import AttachmentFiles
from veen.storage.copies.copying import ForkOrigin, read_fork_origin
from veen.storage.index import Index
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys
from veen.storage.label_files import LabelFiles, LabelHead
from veen.storage.state import Capacity
from veen.storage.store import Store

_WATCH_SECONDS: Final = 1.0
_LOCK_RETRY_SECONDS: Final = 0.2
_LIVE_EVERY: Final = 60  # rounds of watching
_MAX_EVIDENCE: Final = 64


class Hub:
    """One running hub."""

    is_replica: ClassVar[bool] = False  # True: it only writes what another hub has decided (`process.replica`)

    def __init__(
        self,
        config: HubConfig,
        *,
        log: EventLog | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = monotonic,
        accept_clock: bool = False,
    ) -> None:
        """Prepare a hub. `accept_clock`: the operator confirms the clock, however far it is ahead of the log
        (D-167)."""
        self.config, self._clock, self._accept_clock = config, clock, accept_clock
        # What hub_ts is taken from.
        self._hub_clock = HubClock(clock, ticks, max_step=config.engine.max_clock_step)
        self._clock_step: str | None = None  # reason for refusals while the clock is not trusted
        self.log = log or EventLog(config)
        self.observer = HubObserver(self.log, config.metrics.streams)
        self.background = Supervisor(self.log)
        self.observer.background = lambda: self.background.states
        self.server_version = __version__
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.started_at = clock()
        self._stack = contextlib.AsyncExitStack()
        self._draining = False
        self._low_disk: str | None = None
        self._full = False  # True if the sequencer had no room at the last look
        self._free_bytes = self._used_bytes = 0
        self._retired_upto = 0
        self._tls: Tls | None = None
        self.outer: OuterLog | None = None  # set by `start` where it is configured
        self._witness_policy = read_policy(config.outer.policy)
        self._authority = AuthorityWatch(_authority_to_watch(config))
        # Set by `start`, in this order.
        self.fs: OsFs
        self._local: LocalSocket
        self.identity: Sealing
        self.policy: Policy
        self.access: Access
        self.resolver: Resolver
        self.sequencer: Sequencer
        self.anchors: AnchorBackend
        self.attachments: AttachmentFiles
        self.fork_origin: ForkOrigin | None
        self.api: Api
        self.url: str

    # --- life ------------------------------------------------------------------------------------------

    @classmethod
    @contextlib.asynccontextmanager
    async def serve(
        cls,
        config: HubConfig,
        *,
        log: EventLog | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = monotonic,
        accept_clock: bool = False,
    ) -> AsyncIterator[Self]:
        """Run a hub inside the present event loop: `async with Hub.serve(config) as hub: … hub.url`."""
        hub = cls(config, log=log, clock=clock, ticks=ticks, accept_clock=accept_clock)
        await hub.start()
        try:
            yield hub
        finally:
            await hub.stop()

    async def start(self) -> None:
        """Open the directory and listen. After a failure everything begun is undone."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            self.log.close()
            raise

    async def _start(self) -> None:
        config = self.config
        given_keys = config.keys_dir if config.identity == "durable" else None  # ephemeral: it has only the root key
        self.fs = data_fs(config.data_dir, given_keys)
        await self._lock()
        self._local = LocalSocket(self.fs)
        keys = self._open_keys()
        self.policy = config.policy(keys.identity.hub_id)
        self.access = self._read_access(config)
        self.identity = self._make_sealing(keys)
        limits = read_limits(self.fs, config)
        check_index(self.fs)
        new = not self.fs.exists(layout.INDEX)
        store = self._open_store(limits)
        try:
            self._hub_clock.begin(store.state.hub_ts, read_clock(self.fs), accept=self._accept_clock)
            self.sequencer = self._build(store, keys, limits)
        except BaseException:
            store.abandon()
            raise
        self._stack.push_async_callback(self._close_pipeline)
        self._rotation = Rotation(
            self.fs,
            self.sequencer,
            self.identity,
            self._hub_clock,
            failed=self._on_failure,
            given_keys=given_keys is not None,
        )
        self._stack.push_async_callback(self._rotation.finish)
        if not self.is_replica and not store.state.fenced and (new or store.state.limits != limits):
            await self.sequencer.control(lambda _: LimitsSet(limits=limits.to_json()), new_second=True)
        if not self.is_replica:  # a replica saves the limits of its primary
            save_limits(self.fs, limits)
        self._watch_disk()
        self._replicas = ReplicaWatch(self.fs, self.sequencer, lambda: self.identity.held.identity, self.log)
        await self._replicas.ask(*self._replicas_to_watch())
        await self._open_outer()
        self.api = api_of(self, max_event_stream_sec=config.listen.max_event_stream_seconds)
        self._stack.push_async_callback(self.api.finish)
        self.api.add(OuterOperations(self.api, self._outer_to_serve).operations())
        self._add_operations()
        await self._listen()
        self._note_holder()
        self.house = Housekeeping(self.fs, self.sequencer, self.log, self.observer, self.attachments)
        self.scrubber = self.house.scrubber(config.scrub.bytes_per_second)
        self._supervise()
        if native.LOADED.status == "unfit":
            self.log.event("warning", "start", f"signatures: {native.LOADED.what}")
        self.log.event(
            "info",
            "start",
            "ready",
            url=self.url,
            hub_pk=self.identity.current_pk.hex(),
            version=__version__,
            signatures=native.LOADED.what,
        )

    def _supervise(self) -> None:
        """Start everything that runs beside the log."""
        self._stack.push_async_callback(self.background.stop)
        start, anchoring = self.background.start, Anchoring(self.api)
        start("watch", self._watch)
        start("retirement", self._retire_when_quiet)
        start("authority", self._authority.run)
        start("scrubber", partial(self.house.scrub, self.scrubber))
        start("housekeeping", lambda: self.house.run(lambda: self.config.retention))
        start("anchoring", lambda: anchoring.run(lambda: self.config.anchor.every))
        start("replicas", lambda: self._replicas.run(self._replicas_to_watch))
        if (outer := self.outer) is not None:
            seal = self.api.context.latest_checkpoint
            start("outer log", lambda: outer.run(lambda: self.config.outer, seal, lambda: self._witness_policy))

    def _replicas_to_watch(self) -> tuple[Sequence[str], Path | None]:
        return self.config.replicas, self.config.replicas_ca_file

    def _open_keys(self) -> HubKeys:
        check_writer(self.fs)
        if not identities.exists(self.fs):
            self._check_first_start()
        return open_identity(self.fs, self.config, int(self._clock()))

    def _make_sealing(self, keys: HubKeys) -> Sealing:
        return Sealing(keys)

    def _add_operations(self) -> None:
        """Add operations that another kind of hub answers differently."""

    def _outer_to_serve(self) -> ServedOuter | None:
        """Return the outer log for readers."""
        return self.outer

    async def _open_outer(self) -> None:
        outer = self.config.outer
        if not outer.origin:
            return
        identity = self.identity.held.identity.to_bytes()
        self.outer = OuterLog(self.fs, self.sequencer, self.log, outer.origin, identity)
        self._stack.callback(self.outer.close)
        await self.outer.begin(self._witness_policy, float(outer.witness_timeout))

    def _check_first_start(self) -> None:
        """Check the configuration before the directory gets its identity.

        A start that fails leaves no identity behind, so the next one may begin with another key.
        """
        config = self.config
        config.policy(bytes(32))
        self._read_access(config)
        read_limits(self.fs, config)
        if _tls_of(config) is None and not config.force_plain_http:
            check_plain(config.listen.host)
        if config.listen.port:
            try:
                for family, address in _addresses(config.listen.host, config.listen.port):
                    socket.create_server(address, family=family).close()
            except OSError as exc:
                raise self._cannot_listen(exc) from exc

    def _cannot_listen(self, exc: OSError) -> ConfigError:
        listen = self.config.listen
        return ConfigError(
            self.config.origins.get("listen.port", "default"),
            "listen",
            f"cannot listen on {listen.host}, port {listen.port}: {exc.strerror}",
            "Choose another port (0 takes a free one), or stop what listens there.",
        )

    def _open_store(self, limits: Limits) -> Store:
        engine = self.config.engine
        capacity = Capacity(labels=engine.cached_labels, clients=engine.cached_clients, caps=engine.cached_labels)
        return Store.open(self.fs, limits, self._seal_chunk, capacity=capacity)

    def _build(self, store: Store, keys: HubKeys, limits: Limits) -> Sequencer:
        if not self.is_replica:
            self.identity.replace(finish_rotations(self.fs, keys, store))
        self.resolver = Resolver(self.identity.routing_key, self.policy.epoch_sec, limits.max_epoch_skew_sec)
        self.anchors = anchor_backend(self.config.anchor, self.fs)
        self.attachments = AttachmentFiles(self.fs, self.config.engine.min_free_bytes)
        self._stack.callback(self.attachments.close)
        self.fork_origin = read_fork_origin(self.fs, tuple(key.hub_pk for key in self.identity.keys))
        return Sequencer(
            store,
            self.identity,
            self.policy,
            self.resolver,
            workers=0 if self.is_replica else self.config.worker_count(),
            replica=self.is_replica,
            max_queue=self.config.engine.max_queue,
            clock=self._hub_clock,
            not_before=min(key.valid_from for key in self.identity.keys),
            failed=self._on_failure,
            reopen=lambda: self._open_store(limits),
            observer=self.observer,
        )

    def _http_settings(self, config: HubConfig, settings: HttpSettings) -> HttpSettings:
        """Return the settings for connections, within the file descriptors of the process."""
        descriptors, wanted = limit(), config.listen.max_connections
        connections = min(wanted, max_connections(descriptors, config.worker_count()))
        if connections < wanted:
            message = "fewer connections than configured: raise the limit of open files (RLIMIT_NOFILE)"
            self.log.event("warning", "start", message, max_connections=connections, max_open_files=descriptors)
        return replace(
            settings,
            max_connections=connections,
            address_percent=config.listen.address_percent,
            max_answer_bytes=config.listen.max_answer_bytes,
            denied_networks=config.listen.denied_networks,
            loopback_only=config.dev,
        )

    async def _listen(self) -> None:
        config = self.config
        self._server = HttpServer(self.api, self._http_settings(config, HttpSettings()))
        self._transports = Transports(self.api, self._server, self.log.event, self.background)
        self._stack.push_async_callback(self._transports.stop)  # after HTTP has stopped: then nobody waits any longer
        self._tls = _tls_of(config)
        try:
            host, port = await self._server.listen(
                config.listen.host, config.listen.port, tls=self._tls, force_plain=config.force_plain_http
            )
        except OSError as exc:
            raise self._cannot_listen(exc) from exc
        self._stack.push_async_callback(self._server.stop)
        self._stack.push_async_callback(self._local.close)
        try:
            await self._local.open(self._server)
        except OSError as exc:
            self.log.event("warning", "start", f"no local socket, commands must use the URL: {exc.strerror or exc}")
        host = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"
        self._stack.push_async_callback(self._transports.drain)
        await self._transports.start(config, self.identity.hub_id)

    @property
    def transport_urls(self) -> tuple[str, ...]:
        """Addresses of the hub beside `url`."""
        return self._transports.urls

    async def _lock(self) -> None:
        """Lock the directory, with one retry: a command that checks if a hub runs holds the lock for a moment."""
        try:
            self._stack.enter_context(self.fs.lock())
        except LockedError:
            await asyncio.sleep(_LOCK_RETRY_SECONDS)
            self._stack.enter_context(self.fs.lock())

    def _note_holder(self) -> None:
        """Write the process id and the URL to the lock file, for a second start and `veen hub status`."""
        file = self.fs.open(layout.LOCK)
        try:
            file.truncate(0)
            file.write_at(0, f"pid {os.getpid()} {self.url}\n".encode())
        finally:
            file.close()

    def _read_access(self, config: HubConfig) -> Access:
        return Access.of(
            read_tokens=config.tokens("read_token_files"),
            admin_tokens=config.tokens("admin_token_files"),
            metrics_tokens=config.tokens("metrics_token_files"),
            read_names=config.auth.read_names,
            admin_names=config.auth.admin_names,
            metrics_names=config.auth.metrics_names,
            open_status=config.auth.open_status,
            read_bytes_per_second=config.auth.read_bytes_per_second,
        )

    def hurry(self) -> None:
        """Stop waiting for clients, after a second request to stop. Accepted work is still finished."""
        if self._draining:
            self._server.hurry()

    async def stop(self) -> None:
        """Finish accepted work and leave the directory clean."""
        self._draining = True
        self.log.event("info", "stop", "draining", queue_depth=self.sequencer.depth)
        try:
            await self._stack.aclose()
        finally:
            self.log.event("info", "stop", "stopped")
            self.log.close()

    async def _close_pipeline(self) -> None:
        await self.sequencer.close()
        if self.failure.done():
            return
        try:
            self._write_binding()
            self._live()
        except Exception as exc:
            if not is_disk_full(exc):
                raise
            self.log.event("warning", "disk", "too little free space: checkpoint-binding.json is not up to date")

    def _write_binding(self) -> None:
        index = Index(self.fs)
        try:
            identities.write_binding(self.fs, self.identity.held.identity, index)
        finally:
            index.close()

    def _on_failure(self, error: BaseException) -> None:
        """Log the failure of the sequencer and end the process: nothing can be promised any more."""
        self.log.event("error", "fail", f"the hub stops after a failure: {error}")
        if not self.failure.done():
            self.failure.set_result(error)

    # --- Services --------------------------------------------------------------------------------------

    @property
    def not_admitting(self) -> str | None:
        if self._draining:
            return "the hub is stopping"
        self._watch_clock()
        return self._low_disk or self.sequencer.no_space or self._clock_step

    @property
    def attachment_policy(self) -> AttachmentPolicy:
        return self.config.attachments  # read on each call: a reload may change it

    def not_ready(self) -> str | None:
        if self.failure.done():
            return "the hub has failed"
        if not self.fs.exists(layout.IDENTITY) or not self.fs.exists(layout.INDEX):
            return "the data directory is not accessible"
        if not self.is_replica and (policy := self.sequencer.not_primary) is not None:
            return str(NotPrimary(policy))
        halted = None if self.outer is None or self.outer.halted is None else "the outer log has been halted"
        unknown = self._replicas.fault() if self.config.replicas_required else None
        return self.not_admitting or self._authority.fault() or halted or unknown

    def seal(self, files: LabelFiles | LabelHead, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        return self.identity.seal(files, upto_seq, mmr_root, hub_ts)

    def _seal_chunk(self, files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        self.observer.on_sealed(upto_seq - files.active_start + 1)
        return self.seal(files, upto_seq, mmr_root, hub_ts)

    async def rotate_key(self, overlap_seconds: int, request_id: bytes | None = None) -> ControlRecord:
        if (policy := self.sequencer.not_primary) is not None:  # checked before a key is written
            raise NotPrimary(policy)
        record = await self._rotation.rotate(overlap_seconds, request_id)
        new = self.identity.held.identity.current
        self.log.event("info", "rotate", "a new key", hub_pk=new.hub_pk.hex(), valid_from=new.valid_from)
        return record

    def metrics_text(self) -> bytes:
        return self.observer.render(self.gauges())

    def keep_evidence(self, evidence: Equivocation) -> None:
        """Store a proof that this hub contradicted itself, for its operator. Bounded, because anyone may send one."""
        data = evidence.to_bytes()
        self.observer.equivocation_reports += 1
        self.log.event("error", "equivocation", "somebody proved that this hub signed two different histories")
        self.fs.make_dir(layout.EVIDENCE)
        path = layout.evidence(H(data))
        if self.fs.exists(path) or len(self.fs.list(layout.EVIDENCE)) >= _MAX_EVIDENCE:
            return
        self.fs.replace(path, data)
        try:  # also recorded outside, so that it does not vanish with this machine (AUTH1 §3.4)
            self.anchors.publish(H(data), 0, self.sequencer.now(), os.urandom(NONCE_BYTES))
        except (AnchorError, OSError) as exc:
            self.log.event("error", "equivocation", f"the proof could not be anchored: {exc}")

    # --- watching --------------------------------------------------------------------------------------

    def gauges(self) -> Mapping[str, Value]:
        """Return the present value of each name in `GAUGES`."""
        store = self.sequencer.store
        now = self._clock()
        revoked, multi_primary = store.state.policies.counts(self.sequencer.now())
        return {
            "veen_connections": self._server.connections,
            "veen_max_connections": self._server.settings.max_connections,
            "veen_unread_answer_bytes": self._server.answers.in_use,
            "veen_queue_depth": self.sequencer.depth,
            "veen_free_bytes": self._free_bytes,
            "veen_used_bytes": self._used_bytes,
            "veen_journal_bytes": store.journal.offset,
            "veen_labels": store.label_count,
            "veen_entries": store.entry_count,
            "veen_capabilities": store.cap_count,
            "veen_cached_labels": len(store.state.labels),
            "veen_cached_clients": len(store.state.clients),
            "veen_cached_capabilities": len(store.state.caps),
            "veen_revocations": revoked,
            "veen_multi_primary_streams": multi_primary,
            "veen_ready": int(self.not_ready() is None),
            **self._evidence_gauges(),
            "veen_clock_behind_seconds": max(0, store.state.hub_ts - int(now)),
            "veen_clock_step_seconds": int(self._hub_clock.step),
            "veen_outer_leaves": 0 if self.outer is None else self.outer.files.signed_size,
            "veen_outer_cosignatures": 0 if self.outer is None else self.outer.cosignatures,
            "veen_outer_witness_failures": 0 if self.outer is None else self.outer.failures,
            "veen_outer_halted": int(self.outer is not None and self.outer.halted is not None),
            "veen_primary": int(self.sequencer.not_primary is None),
            "veen_replicas_unknown": len(self._replicas.unknown),
            **self._replica_gauges(),
        }

    def _replica_gauges(self) -> Mapping[str, Value]:
        return {"veen_replica_lag_entries": 0, "veen_replica_lag_seconds": 0, "veen_replica_attachments_missing": 0}

    def _evidence_gauges(self) -> Mapping[str, Value]:
        """Return the age of evidence that others can check, and the number of proofs against this hub."""
        observer, now = self.observer, time.monotonic()
        has_entries = self.sequencer.store.entry_count > 0
        return {
            "veen_checkpoint_age_seconds": int(now - observer.last_checkpoint) if has_entries else 0,
            "veen_scrub_round_age_seconds": int(now - observer.last_scrub_round),
            "veen_anchor_age_seconds": int(now - observer.last_anchor) if self.config.anchor.every else 0,
            "veen_evidence_files": len(self.fs.list(layout.EVIDENCE)),
        }

    def summary(self) -> dict[str, Value | str]:
        """Return the state of the hub in a few numbers, for the log (SIGUSR1)."""
        short = {name.removeprefix("veen_"): value for name, value in self.gauges().items()}
        return {"url": self.url, "uptime_seconds": int(self._clock() - self.started_at), **short}

    async def _watch(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._watch_disk()
            self.log.log_suppressed()
            self._watch_clock()
            if turn % _LIVE_EVERY == 0:
                await in_thread(self._live)
            turn += 1

    def _watch_clock(self) -> None:
        """Admit nothing while the wall clock is too far ahead to be trusted (D-167)."""
        self._hub_clock()
        step = self._hub_clock.step
        if bool(step) == (self._clock_step is not None):
            return
        if step:
            self._clock_step = CLOCK_STEP
            self.log.event("error", "clock", "the clock jumped forward: refusing submits", step_seconds=int(step))
        else:
            self._clock_step = None
            self.log.event("info", "clock", "the clock is back")

    def _live(self) -> None:
        """Write the time of this sign of life, so that a quiet hub may start again without a question about its
        clock."""
        if not self._hub_clock.step:
            with contextlib.suppress(OSError):
                write_clock(self.fs, int(self._clock()))

    def _watch_disk(self) -> None:
        """Refuse new messages before the disk is full; accepted messages still have room (DESIGN §3)."""
        try:
            self._free_bytes, self._used_bytes = self.fs.free_bytes(), self.fs.bytes_in_use()
        except OSError as exc:
            self._on_failure(exc)
            return
        low = self._free_bytes < self.config.engine.min_free_bytes
        if low != (self._low_disk is not None):
            self._low_disk = "too little free space on the hub's disk" if low else None
            level, message = ("warning", "too little free space: refusing submits") if low else ("info", "space again")
            self.log.event(level, "disk", message, free_bytes=self._free_bytes)
        full = self.sequencer.no_space is not None
        if full:
            self.sequencer.resume(reopen=not low)
        elif self._full:
            self.log.event("info", "disk", "space again: the journal was emptied", free_bytes=self._free_bytes)
        self._full = full

    async def _retire_when_quiet(self) -> None:
        """Empty the journal of a quiet hub, so that a restart has little to read."""
        while True:
            await asyncio.sleep(self.config.engine.retire_seconds or _WATCH_SECONDS)
            applied = self._count_applied()
            if not self.config.engine.retire_seconds or applied == self._retired_upto:
                continue
            await self.sequencer.flush_idle()
            if self.sequencer.retire_idle():
                self._retired_upto = applied

    def _count_applied(self) -> int:
        """Return a number that changes with each applied entry or record."""
        store = self.sequencer.store
        control = store.state.control
        return store.entry_count + (control.seq if control else 0)

    # --- reloading -------------------------------------------------------------------------------------

    def reload(self, config: HubConfig) -> Reload:
        """Apply the keys that may change while the hub runs. The others are named and wait for a restart.

        Every file is read before anything changes: a configuration that cannot be used changes nothing.
        """
        reload = self.config.take_over(config)
        new = reload.config
        policy = new.policy(self.identity.hub_id)
        access = self._read_access(new)
        tls = _tls_of(new)
        witness_policy = read_policy(new.outer.policy)
        use_files = self._transports.prepare(new)
        sink = LogSink.open(new)
        trust_removed = self._tls is not None and tls is not None and not tls.trusts_all_of(self._tls)
        self.config = new
        self.policy = self.sequencer.policy = policy
        self.access, self._tls, self._witness_policy = access, tls, witness_policy
        self.resolver.add(policy.streams)
        for token in policy.preloaded.values():
            self.resolver.add(token.allow.stream_ids)
        self.attachments.min_free_bytes = new.engine.min_free_bytes
        self._authority.watch(_authority_to_watch(new))
        self.scrubber.rate = new.scrub.bytes_per_second
        self.log.configure(new, sink)
        use_files()
        self._server.reload(self._http_settings(new, self._server.settings), tls, trust_removed=trust_removed)
        self.api.notify_reload()
        self._watch_disk()
        self.log.event(
            "info",
            "reload",
            "the configuration and the files it names were read again",
            applied=",".join(reload.applied) or "nothing changed",
            needs_restart=",".join(reload.late) or "nothing",
            reconnect="all clients" if trust_removed else "nobody",
        )
        self._local.note_reload(applied=reload.applied, needs_restart=reload.late)
        return reload

    def on_reload_failed(self, error: BaseException) -> None:
        """Log that a configuration was not applied; the one before stays in force."""
        self.log.event("error", "reload", f"the configuration was not applied: {error}")
        self._local.note_reload(error=str(error))


def _authority_to_watch(config: HubConfig) -> str:
    return config.authority_url if config.role == "tenant" else ""


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    """Return the addresses that the listener will bind to."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((int(info[0]), (str(info[4][0]), int(info[4][1]))) for info in infos))


def _tls_of(config: HubConfig) -> Tls | None:
    """Return the TLS settings, read from the files as they are now."""
    if config.tls.cert is None or config.tls.key is None:
        return None
    return Tls(config.tls.cert, config.tls.key, config.tls.client_ca)


def api_of(services: Services, *, max_event_stream_sec: float = 0.0) -> Api:
    """Return the API with the operations of the data plane and of all tooling."""
    api = Api(services)
    order, tails = LabelOrder(api.context), Tails(api.context, max_age_sec=max_event_stream_sec)
    api.add(Tooling(api, order, tails).operations())
    api.add(About(api, order).operations())
    api.add(AttachmentOperations(api).operations())
    api.add(Policies(api).operations())
    api.add(Anchoring(api).operations())
    api.add(Replication(api).operations())
    return api
