"""The life of a message inside the hub: verified in parallel, ordered in one place, durable before answered.

    submit      structure checked at once; signature to the verifiers, in order
    sequence    verdicts come back in order: decide, State.admit, sign, frame, join the open group
    commit      one group at a time in the writer thread; the next one collects meanwhile
    answer      after the sync: apply to the files, tell those who wait

Everything but the sync and the verification runs on the event loop's thread; there are no locks.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, Protocol

from veen.core.control import ControlRecord
from veen.core.ed25519 import SigningKey
from veen.core.errors import Refusal, VeenError
from veen.core.msg import Msg
from veen.core.receipt import signed_bytes
from veen.core.wire import Wire
from veen.hub.admission import Refuse, check_structure, decide
from veen.hub.observe import NullObserver, Observer
from veen.hub.policy import Policy
from veen.hub.resolver import Resolver
from veen.hub.verifier import InlineVerifier, WorkerVerifier
from veen.storage.errors import NoSpaceError, StorageError
from veen.storage.state import Admitted, Label
from veen.storage.store import Group, Retirement, Store

__all__ = ["Done", "Outcome", "Overloaded", "Pipeline", "Signer", "Stopped"]

_log: Final = logging.getLogger(__name__)

# While others are being verified, a group waits for this many: a sync for fewer costs more than it gains. The wait is
# bounded by as many verifications, a millisecond or two, and ends when there is nobody left to wait for.
_GROUP: Final = 64


class Signer(Protocol):
    """Gives the key that signs at a time (D-41)."""

    def signing_key_at(self, hub_ts: int) -> SigningKey: ...


class Overloaded(VeenError):
    """The hub will not start on another message now; nothing was decided about it (D-58)."""

    hint = "Send again after a moment."

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Stopped(VeenError):
    """The hub stopped before this message became durable; whether it did is for a resync to find out."""

    hint = "Connect again when the hub is back and resync: the message may or may not be in the log."

    def __str__(self) -> str:
        return "the hub stopped before the message was acknowledged"


Outcome = bytes | Refuse  # the RECEIPT, or why not
Done = Callable[[Outcome | None], None]  # who waits; None: the message never became durable


class _Job:
    """One message on its way."""

    __slots__ = ("done", "msg", "raw", "started", "verified")

    def __init__(self, raw: bytes, msg: Msg, done: Done, started: float) -> None:
        self.raw, self.msg, self.done = raw, msg, done
        self.started = self.verified = started


@dataclass(slots=True)
class _OpenGroup:
    group: Group = field(default_factory=Group)
    answers: list[tuple[_Job, Admitted, bytes]] = field(default_factory=list)
    controls: list[tuple[asyncio.Future[ControlRecord], ControlRecord]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.group.done)


class Pipeline:
    """Owns the store's write side. Create it inside a running event loop."""

    def __init__(
        self,
        store: Store,
        signer: Signer,
        policy: Policy,
        resolver: Resolver,
        *,
        workers: int = 1,
        max_queue: int = 4096,
        clock: Callable[[], float] = time.time,
        not_before: int = 0,
        failed: Callable[[BaseException], None] | None = None,
        reopen: Callable[[], Store] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.observer: Observer = observer or NullObserver()
        self.store, self._signer, self.policy, self._resolver = store, signer, policy, resolver
        self._not_before = not_before
        self._clock, self._max_queue, self._failed, self._reopen = clock, max_queue, failed, reopen
        self._profiles = frozenset(profile.profile_id() for profile in policy.profiles)
        self._loop = asyncio.get_running_loop()
        self.depth = 0  # messages that were taken in and not answered yet
        self._verifying: deque[_Job] = deque()
        self._open = _OpenGroup()
        self._writing: _OpenGroup | None = None
        self._retired = asyncio.Event()  # clear while a retirement is on its way to the disk
        self._retired.set()
        self._stopped: BaseException | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._listeners: list[Callable[[Sequence[bytes]], None]] = []
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="veen-writer", daemon=True)
        self._writer.start()
        self._keeper_tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._keeper = threading.Thread(target=self._keep_loop, name="veen-keeper", daemon=True)
        self._keeper.start()
        self._verifier: InlineVerifier | WorkerVerifier = (
            WorkerVerifier(self._loop, workers, self._verified, self._verifier_died)
            if workers
            else InlineVerifier(self._verified)
        )
        for label in store.state.labels.values():
            if label.stream_id:
                resolver.add((label.stream_id,))
        for cap in store.state.caps.values():
            resolver.add(cap.token.allow.stream_ids)
        for token in policy.preloaded.values():
            resolver.add(token.allow.stream_ids)
        resolver.add(policy.streams)

    # --- in ----------------------------------------------------------------------------------------------

    def admit(self, raw: bytes, done: Done) -> Refuse | None:
        """Take in one MSG; `done` is told what became of it, or the answer is a refusal at once.

        Overloaded or Stopped are raised before anything is decided. A callback and not a future: a future costs more
        than everything else a message causes on this thread but its signature.
        """
        if self._stopped is not None:
            raise Stopped
        if self.depth >= self._max_queue:
            raise Overloaded("too many messages are waiting")
        limits, started = self.store.state.limits, time.perf_counter()
        checked: Msg | Refuse
        if len(raw) > limits.max_msg_bytes:
            checked = Refuse(Refusal.SIZE_PREFILTER, {"actual": len(raw), "max_allowed": limits.max_msg_bytes})
        else:
            checked = check_structure(raw, self._profiles, limits)
        if type(checked) is Refuse:
            self.observer.refused(checked.refusal, len(raw), total_s=time.perf_counter() - started)
            return checked
        assert type(checked) is Msg  # noqa: S101 - for mypy
        if not self.depth:
            self._idle.clear()
        self.depth += 1
        self._verifying.append(_Job(raw, checked, done, started))
        self._verifier.submit(checked.sig + Msg.digest_of(raw) + checked.client_id)
        return None

    def submit(self, raw: bytes) -> "asyncio.Future[Outcome]":
        """`admit` with a future, which is cancelled if the message never became durable."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()

        def done(outcome: Outcome | None) -> None:
            if outcome is None:
                answer.cancel()
            elif not answer.done():  # whoever waited may have gone
                answer.set_result(outcome)

        refuse = self.admit(raw, done)
        if refuse is not None:
            answer.set_result(refuse)
        return answer

    async def control(self, make: Callable[[int], Wire | None], *, new_second: bool = False) -> ControlRecord | None:
        """Append a control record, made by `make(hub_ts)` at its turn; None if `make` sees no need for one.

        With `new_second` no entry before it has its hub_ts: what it changes then counts by the second alone, as
        those who read the log without the journal's order must be able to tell.
        """
        if self._stopped is not None:
            raise Stopped
        hub_ts = max(self._now(), self.store.state.hub_ts + 1) if new_second else self._now()
        body = make(hub_ts)
        if body is None:
            return None
        done: asyncio.Future[ControlRecord] = self._loop.create_future()
        self._open.controls.append((done, self._stage_control(body, hub_ts)))
        self._idle.clear()
        self._commit()
        return await done

    def on_applied(self, listener: Callable[[Sequence[bytes]], None]) -> None:
        """Call `listener` with the labels of each group, in commit order, once readers can see its entries."""
        self._listeners.append(listener)

    @property
    def has_room(self) -> bool:
        """Whether it is worth asking those again who were turned away."""
        return self.depth <= self._max_queue // 2

    def now(self) -> int:
        """The hub_ts that a message would get now."""
        return self._now()

    # --- order -------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """hub_ts: the clock, but never before what was given out already, nor before the hub's first key (D-28)."""
        return max(int(self._clock()), self.store.state.hub_ts, self._not_before)

    def _verified(self, verdicts: bytes) -> None:
        """One byte each, in the order of submission; 1 is a good signature."""
        now, hub_ts = time.perf_counter(), self._now()
        key = self._signer.signing_key_at(hub_ts)
        for verdict in verdicts:
            job = self._verifying.popleft()
            job.verified = now
            if self._stopped is not None:
                self._tell(job, None)
            elif verdict == 1:
                self._sequence(job, hub_ts, key)
            else:
                self._refuse(job, Refuse(Refusal.SIG_INVALID, {"field": "sig"}))
        self._commit()

    def _sequence(self, job: _Job, hub_ts: int, key: SigningKey) -> None:
        """The one place where order is made."""
        msg, state, opened = job.msg, self.store.state, self._open
        decision = decide(state, self.policy, self._resolver, msg, hub_ts, self._find_entry)
        if isinstance(decision, Refuse):
            self._refuse(job, decision)
            return
        for body in decision.records:
            self._stage_control(body, hub_ts)
        admitted = state.admit(
            state.labels[msg.label],
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            leaf_hash=msg.leaf_hash(),
            hub_ts=hub_ts,
        )
        stream_seq = admitted.stream_seq
        receipt = signed_bytes(key, msg.label, stream_seq, admitted.leaf_hash, admitted.mmr_root, hub_ts)
        opened.group.add_entry(admitted, job.raw, receipt)
        opened.answers.append((job, admitted, receipt))

    def _refuse(self, job: _Job, refuse: Refuse) -> None:
        self._tell(job, refuse)
        msg, verify_s, total_s = job.msg, job.verified - job.started, time.perf_counter() - job.started
        self.observer.refused(refuse.refusal, len(job.raw), verify_s, total_s, msg.label, msg.client_id)

    def _stage_control(self, body: Wire, hub_ts: int) -> ControlRecord:
        record = ControlRecord.issue(self._signer.signing_key_at(hub_ts), self.store.state.control, body, hub_ts=hub_ts)
        self.store.stage_control(record)
        self._open.group.add_control(record)
        return record

    def _find_entry(self, label: Label, client_row: int, client_seq: int) -> tuple[int, bytes] | None:
        stream_seq = self.store.stream_seq_of(client_row, client_seq)
        files = self.store.files(label.label)
        if stream_seq is None or files is None or stream_seq > files.size:
            return None
        return stream_seq, files.node_at(0, stream_seq - 1)

    # --- durable -----------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Start writing the open group if the writer is free."""
        if self._writing is not None or self._stopped is not None:
            return
        if len(self._open) < min(_GROUP, len(self._verifying)):
            return  # more is about to join; its verdict brings us back here
        if not len(self._open):
            self._idle.set()
            return
        writing, self._open = self._open, _OpenGroup()
        self._writing = writing
        payload = writing.group.payload()
        roll = self.store.journal_is_full and self._retired.is_set()
        self._tasks.put(lambda: self._write(payload, roll))

    def _write(self, payload: bytes, roll: bool) -> None:
        """In the writer thread: the only place that waits for the disk before an answer."""
        error: BaseException | None = None
        started = time.perf_counter()
        try:
            if roll:
                self.store.journal.roll()
            self.store.journal.write(payload)
        except BaseException as exc:
            error = exc
        self._loop.call_soon_threadsafe(self._written, error, roll, time.perf_counter() - started)

    def _written(self, error: BaseException | None, rolled: bool, sync_s: float) -> None:
        writing, self._writing = self._writing, None
        assert writing is not None  # noqa: S101 - one group is written at a time
        if error is not None:
            self._fail(error, writing)
            return
        try:
            if rolled:
                self._retire()  # before this group is applied: it belongs to the new segment
            self.store.apply(writing.group)
        except Exception as exc:  # durable, but the files behind it are damaged: stop before anything is answered
            self._fail(exc, writing)
            return
        for job, _, receipt in writing.answers:
            self._tell(job, receipt)
        if self._listeners:
            labels = [admitted.label.label for _, admitted, _ in writing.answers]
            for listener in self._listeners:
                listener(labels)
        if len(writing):
            self.observer.group(len(writing), sync_s)
        now = time.perf_counter()
        for job, admitted, receipt in writing.answers:
            self.observer.accepted(
                len(job.raw), len(receipt), job.verified - job.started, now - job.verified, now - job.started, admitted
            )
        for done, record in writing.controls:
            if not done.done():
                done.set_result(record)
        self._commit()

    def retire_idle(self) -> bool:
        """Start emptying the journal into the chunks if nothing else is being written; whether it was started."""
        if self._stopped is not None or self._writing is not None or len(self._open) or not self._retired.is_set():
            return False
        self._writing = _OpenGroup()  # keeps others off the journal while it rolls
        self._idle.clear()
        self._tasks.put(lambda: self._write(b"", True))
        return True

    def _retire(self) -> None:
        self._retired.clear()
        retirement = self.store.capture()
        self._keeper_tasks.put(lambda: self._persist(retirement))

    def _persist(self, retirement: Retirement) -> None:
        error: BaseException | None = None
        started = time.perf_counter()
        try:
            self.store.persist(retirement)
        except BaseException as exc:
            error = exc
        self._loop.call_soon_threadsafe(self._persisted, error, time.perf_counter() - started)

    def _persisted(self, error: BaseException | None, seconds: float) -> None:
        self._retired.set()
        self.observer.retired(seconds)
        if error is not None:
            self._fail(error, None)
        elif self._stopped is None:
            self.store.retired()

    def _fail(self, error: BaseException, writing: _OpenGroup | None) -> None:
        """Answer nothing that is not durable. A full disk may recover; anything else stops the hub."""
        for group in (writing, self._open):
            if group is not None:
                for job, _, _ in group.answers:
                    self._tell(job, None)
                for done, _ in group.controls:
                    done.cancel()
        self._open = _OpenGroup()
        if isinstance(error, NoSpaceError) and self._reopen is not None and self._retired.is_set():
            self.store.abandon()
            self.store = self._reopen()  # back to the last durable point
            self._commit()
            return
        self._stopped = error
        self._idle.set()
        if self._failed is not None:
            self._failed(error)

    def _verifier_died(self) -> None:
        if self._stopped is None:
            self._fail(StorageError("a verifier process ended unexpectedly"), self._writing)

    def _tell(self, job: _Job, outcome: Outcome | None) -> None:
        self.depth -= 1
        try:
            job.done(outcome)
        except Exception:  # a defect of whoever waits must not keep the others of its group waiting
            _log.exception("an answer could not be delivered")

    # --- threads -----------------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _keep_loop(self) -> None:
        while (task := self._keeper_tasks.get()) is not None:
            task()

    async def drain(self) -> None:
        """Wait until everything that was taken in is answered."""
        await self._idle.wait()

    async def abort(self) -> None:
        """Stop at once and leave the directory to recovery; for tests, and for a hub that must not go on."""
        self._stopped = self._stopped or Stopped()
        self._idle.set()
        await self.close()

    async def close(self) -> None:
        """Drain, leave the directory at rest, stop the helpers."""
        await self.drain()
        await self._retired.wait()
        self._verifier.close()
        self._tasks.put(None)
        self._keeper_tasks.put(None)
        await self._loop.run_in_executor(None, self._writer.join)
        await self._loop.run_in_executor(None, self._keeper.join)
        if self._stopped is None:
            self.store.close()
        else:
            self.store.abandon()
