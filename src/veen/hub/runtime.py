"""A running hub: everything put together, kept in order, and taken apart again.

    start     lock · identity · limits · store · pipeline · API · transport
    run       watch the disk, empty the journal when it is quiet, read old chunks again, answer signals
    stop      stop listening · finish what was taken in · leave the directory at rest · unlock

`Hub` is what the API calls `Services`. One hub is one process in production; tests and programs run it inside their
own event loop by `Hub.running`.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Final

from veen import __version__
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord, LimitsSet
from veen.core.evidence import Equivocation
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.hub.about import About
from veen.hub.access import Access
from veen.hub.anchoring import Anchoring
from veen.hub.api import Api
from veen.hub.authority import AuthorityWatch
from veen.hub.calls import Services
from veen.hub.config import ConfigError, HubConfig
from veen.hub.housekeeping import Housekeeping
from veen.hub.labelorder import LabelOrder
from veen.hub.logs import Log
from veen.hub.metrics import Value
from veen.hub.observe import HubObserver
from veen.hub.opening import Sealing, check_index, data_fs, finish_rotations, open_identity, save_limits, wanted_limits
from veen.hub.pipeline import Pipeline
from veen.hub.policies import Policies
from veen.hub.policy import Policy
from veen.hub.resolver import Resolver
from veen.hub.rotation import HeldClock, Rotation
from veen.hub.server import HttpServer, HttpSettings
from veen.hub.tail import Tails
from veen.hub.tls import Tls
from veen.hub.tooling import Tooling
from veen.storage import identity as identities
from veen.storage import layout
from veen.storage.anchors import NONCE_BYTES, AnchorBackend, AnchorError, AnchorFile
from veen.storage.attachments import AttachmentFiles
from veen.storage.errors import LockedError
from veen.storage.fs import OsFs
from veen.storage.identity import HubKeys
from veen.storage.index import Index
from veen.storage.labelfiles import LabelFiles
from veen.storage.outcomes import ForkOrigin, read_fork_origin
from veen.storage.store import Store

__all__ = ["Hub"]

_WATCH_SECONDS: Final = 1.0
_LOCK_RETRY_SECONDS: Final = 0.2
_MAX_EVIDENCE: Final = 64


class Hub:
    """One running hub."""

    def __init__(self, config: HubConfig, *, log: Log | None = None, clock: Callable[[], float] = time.time) -> None:
        self.config, self._clock = config, clock
        self._hub_clock = HeldClock(clock)  # what hub_ts is taken from
        self.log = log or Log(config)
        self.observer = HubObserver(self.log)
        self.server_version = __version__
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.started_at = clock()
        self._stack = contextlib.AsyncExitStack()
        self._draining = False
        self._low_disk: str | None = None
        self._free_bytes = 0
        self._retired_upto = 0
        self._tls: Tls | None = None
        self._authority = AuthorityWatch(config.authority_url if config.role == "tenant" else "")
        # Set by `start`, in this order.
        self.fs: OsFs
        self.identity: Sealing
        self.policy: Policy
        self.access: Access
        self.resolver: Resolver
        self.pipeline: Pipeline
        self.anchors: AnchorBackend
        self.attachments: AttachmentFiles
        self.fork_origin: ForkOrigin | None
        self.api: Api
        self.url: str

    # --- life ------------------------------------------------------------------------------------------

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, config: HubConfig, *, log: Log | None = None, clock: Callable[[], float] = time.time
    ) -> AsyncIterator["Hub"]:
        """A hub inside the present event loop: `async with Hub.running(config) as hub: … hub.url`."""
        hub = cls(config, log=log, clock=clock)
        await hub.start()
        try:
            yield hub
        finally:
            await hub.stop()

    async def start(self) -> None:
        """Open the directory and listen; whatever was begun is undone if it fails."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            self.log.close()
            raise

    async def _start(self) -> None:
        config = self.config
        self.fs = data_fs(config.data_dir, config.keys_dir)
        await self._lock()
        keys = open_identity(self.fs, config, int(self._clock()))
        self.policy = config.policy(keys.identity.hub_id)
        self.access = self._read_access(config)
        self.identity = Sealing(keys)
        limits = wanted_limits(self.fs, config)
        check_index(self.fs)
        new = not self.fs.exists(layout.INDEX)
        store = Store.open(self.fs, limits, self._seal_chunk)
        try:
            self.pipeline = self._build(store, keys, limits)
        except BaseException:
            store.abandon()
            raise
        self._stack.push_async_callback(self._close_pipeline)
        self._rotation = Rotation(
            self.fs,
            self.pipeline,
            self.identity,
            self._hub_clock,
            failed=self._failed,
            given_keys=config.keys_dir is not None,
        )
        self._stack.push_async_callback(self._rotation.finish)
        if new or store.state.limits != limits:
            await self.pipeline.control(lambda _: LimitsSet(limits=limits.to_json()), new_second=True)
        save_limits(self.fs, limits)
        self._watch_disk()
        self.api = api_of(self)
        await self._listen()
        self._note_holder()
        self.house = Housekeeping(self.fs, self.pipeline, self.log, self.observer)
        if config.scrub.bytes_per_second:
            scrubber = self.house.scrubber(config.scrub.bytes_per_second)
            scrubber.start()
            self._stack.callback(scrubber.stop)
        keeping = self.house.run(lambda: self.config.retention)
        anchoring = Anchoring(self.api).run(lambda: self.config.anchor.every)
        for task in (self._watch(), self._retire_when_quiet(), self._authority.run(), keeping, anchoring):
            self._stack.push_async_callback(_cancel, asyncio.create_task(task))
        self.log.event(
            "info", "start", "ready", url=self.url, hub_pk=self.identity.current_pk.hex(), version=__version__
        )

    def _build(self, store: Store, keys: HubKeys, limits: Limits) -> Pipeline:
        self.identity.replace(finish_rotations(self.fs, keys, store))
        self.resolver = Resolver(self.identity.routing_key, self.policy.epoch_sec, limits.max_epoch_skew_sec)
        self.anchors = AnchorFile(self.fs)
        self.attachments = AttachmentFiles(self.fs, self.config.engine.min_free_bytes)
        self.fork_origin = read_fork_origin(self.fs, tuple(key.hub_pk for key in self.identity.keys))
        return Pipeline(
            store,
            self.identity,
            self.policy,
            self.resolver,
            workers=self.config.worker_count(),
            max_queue=self.config.engine.max_queue,
            clock=self._hub_clock,
            not_before=min(key.valid_from for key in self.identity.keys),
            failed=self._failed,
            reopen=lambda: Store.open(self.fs, limits, self._seal_chunk),
            observer=self.observer,
        )

    async def _listen(self) -> None:
        config = self.config
        settings = HttpSettings(
            max_connections=config.listen.max_connections, denied_networks=config.listen.denied_networks
        )
        self._server = HttpServer(self.api, settings)
        if config.tls.cert is not None and config.tls.key is not None:
            self._tls = Tls(config.tls.cert, config.tls.key, config.tls.client_ca)
        try:
            host, port = await self._server.listen(
                config.listen.host, config.listen.port, tls=self._tls, force_plain=config.force_plain_http
            )
        except OSError as exc:
            where = f"{config.listen.host}, port {config.listen.port}"
            raise ConfigError(
                config.origins.get("listen.port", "default"),
                "listen",
                f"cannot listen on {where}: {exc.strerror}",
                "Choose another port (0 takes a free one), or stop what listens there.",
            ) from exc
        self._stack.push_async_callback(self._server.stop)
        host = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{port}"

    async def _lock(self) -> None:
        """A command that looks whether a hub runs holds the lock for a moment; that must not stop a start."""
        try:
            self._stack.enter_context(self.fs.lock())
        except LockedError:
            await asyncio.sleep(_LOCK_RETRY_SECONDS)
            self._stack.enter_context(self.fs.lock())

    def _note_holder(self) -> None:
        """Beside the process, tell where it listens: a second start and `veen hub status` read it."""
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
            read_names=config.auth.read_names,
            admin_names=config.auth.admin_names,
            read_bytes_per_second=config.auth.read_bytes_per_second,
        )

    async def stop(self) -> None:
        """Finish what was taken in and leave the directory at rest."""
        self._draining = True
        self.log.event("info", "stop", "draining", queue_depth=self.pipeline.depth)
        try:
            await self._stack.aclose()
        finally:
            self.log.event("info", "stop", "stopped")
            self.log.close()

    async def _close_pipeline(self) -> None:
        await self.pipeline.close()
        if not self.failure.done():
            self._write_binding()

    def _write_binding(self) -> None:
        index = Index(self.fs)
        try:
            identities.write_binding(self.fs, self.identity.held.identity, index)
        finally:
            index.close()

    def _failed(self, error: BaseException) -> None:
        """The pipeline stopped: nothing can be promised any more, so the process must end."""
        self.log.event("error", "fail", f"the hub cannot go on: {error}")
        if not self.failure.done():
            self.failure.set_result(error)

    # --- Services --------------------------------------------------------------------------------------

    @property
    def not_admitting(self) -> str | None:
        return "the hub is stopping" if self._draining else self._low_disk

    def not_ready(self) -> str | None:
        if self.failure.done():
            return "the hub has failed"
        if not self.fs.exists(layout.IDENTITY) or not self.fs.exists(layout.INDEX):
            return "the data directory is not accessible"
        return self.not_admitting or self._authority.fault()

    def seal(self, files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        return self.identity.seal(files, upto_seq, mmr_root, hub_ts)

    def _seal_chunk(self, files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        self.observer.sealed(upto_seq - files.active_start + 1)
        return self.seal(files, upto_seq, mmr_root, hub_ts)

    async def rotate_key(self, overlap_seconds: int) -> ControlRecord:
        record = await self._rotation.rotate(overlap_seconds)
        new = self.identity.held.identity.current
        self.log.event("info", "rotate", "a new key", hub_pk=new.hub_pk.hex(), valid_from=new.valid_from)
        return record

    def metrics_text(self) -> bytes:
        return self.observer.render(self.gauges())

    def keep_evidence(self, evidence: Equivocation) -> None:
        """Proof that this hub contradicted itself: kept for its operator, bounded because anyone may send it."""
        data = evidence.to_bytes()
        self.log.event("error", "equivocation", "somebody proved that this hub signed two different histories")
        self.fs.make_dir(layout.EVIDENCE)
        path = layout.evidence(H(data))
        if self.fs.exists(path) or len(self.fs.list(layout.EVIDENCE)) >= _MAX_EVIDENCE:
            return
        self.fs.replace(path, data)
        try:  # somebody outside should remember it, lest it vanish with this machine (AUTH1 §3.4)
            self.anchors.publish(H(data), 0, self.pipeline.now(), os.urandom(NONCE_BYTES))
        except (AnchorError, OSError) as exc:
            self.log.event("error", "equivocation", f"the proof could not be anchored: {exc}")

    # --- watching --------------------------------------------------------------------------------------

    def gauges(self) -> Mapping[str, Value]:
        """What `GAUGES` names, read now."""
        store = self.pipeline.store
        now = self._clock()
        revoked, multi_primary = store.state.policies.counts(self.pipeline.now())
        return {
            "veen_queue_depth": self.pipeline.depth,
            "veen_free_bytes": self._free_bytes,
            "veen_journal_bytes": store.journal.offset,
            "veen_labels": len(store.state.labels),
            "veen_entries": sum(files.size for files in store.labels()),
            "veen_capabilities": len(store.state.caps),
            "veen_revocations": revoked,
            "veen_multi_primary_streams": multi_primary,
            "veen_ready": int(self.not_ready() is None),
            "veen_clock_behind_seconds": max(0, store.state.hub_ts - int(now)),
        }

    def summary(self) -> dict[str, Value | str]:
        """A hub in a few numbers, for the log (SIGUSR1)."""
        short = {name.removeprefix("veen_"): value for name, value in self.gauges().items()}
        return {"url": self.url, "uptime_seconds": int(self._clock() - self.started_at), **short}

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self._watch_disk()

    def _watch_disk(self) -> None:
        """Refuse new messages before the disk is full; what was taken in still has room (DESIGN §3)."""
        try:
            self._free_bytes = self.fs.free_bytes()
        except OSError as exc:
            self._failed(exc)
            return
        low = self._free_bytes < self.config.engine.min_free_bytes
        if low != (self._low_disk is not None):
            self._low_disk = "too little free space on the hub's disk" if low else None
            level, message = ("warning", "too little free space: refusing submits") if low else ("info", "space again")
            self.log.event(level, "disk", message, free_bytes=self._free_bytes)

    async def _retire_when_quiet(self) -> None:
        """Leave little in the journal of a quiet hub, so that a restart has little to read."""
        while True:
            await asyncio.sleep(self.config.engine.retire_seconds or _WATCH_SECONDS)
            applied = self._applied_state()
            if self.config.engine.retire_seconds and applied != self._retired_upto and self.pipeline.retire_idle():
                self._retired_upto = applied

    def _applied_state(self) -> int:
        """A number that changes whenever something was applied."""
        store = self.pipeline.store
        control = store.state.control
        return sum(files.size for files in store.labels()) + (control.seq if control else 0)

    # --- reloading -------------------------------------------------------------------------------------

    def reload(self, config: HubConfig) -> list[str]:
        """Take over what may change while the hub runs; what would need a restart is named."""
        policy = config.policy(self.identity.hub_id)
        access = self._read_access(config)
        late = [key for key in _FIXED if config.value_of(key) != self.config.value_of(key)]
        if config.limits != self.config.limits:
            late.append("limits")  # fixed for the life of a process (spec §14.1)
        fixed = replace(
            policy,
            profiles=self.policy.profiles,
            stream_scope=self.policy.stream_scope,
            capability_gating=policy.capability_gating,
        )
        if self._tls is not None:
            self._tls.reload()
        self.policy = self.pipeline.policy = fixed
        self.access = access
        self.resolver.add(fixed.streams)
        for token in fixed.preloaded.values():
            self.resolver.add(token.allow.stream_ids)
        self.log.configure(config)
        kept = {name: getattr(self.config, name) for name in ("data_dir", "keys_dir", "listen", "limits", "role")}
        self.config = replace(config, **kept)
        self.log.event("info", "reload", "configuration taken over", needs_restart=",".join(late) or "nothing")
        return late


_FIXED: Final = (
    "data_dir",
    "keys_dir",
    "role",
    "listen.host",
    "listen.port",
    "tls.cert",
    "tls.key",
    "tls.client_ca",
    "admission.profiles",
    "admission.stream_scope",
    "engine.workers",
    "engine.max_queue",
)


def api_of(services: Services) -> Api:
    """The data plane and everything beside it."""
    api = Api(services)
    order, tails = LabelOrder(api.context), Tails(api.context)
    api.add(Tooling(api, order, tails).operations())
    api.add(About(api, order).operations())
    api.add(Policies(api).operations())
    api.add(Anchoring(api).operations())
    return api


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
