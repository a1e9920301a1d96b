"""The sequencer, the life of a message inside the hub: verified in parallel, ordered once, durable before answered.

    submit      structure checked at once; signature to the verifiers, in order
    sequence    verdicts come back in order: decide, State.admit, sign, frame, join the open group
    commit      one group at a time in the writer thread; the next one collects meanwhile
    answer      after the sync: apply to the files, call back those who wait

Everything but the sync and the verification runs on the event loop's thread; there are no locks. Other threads get
what they work on through a queue and report back with `call_soon_threadsafe`. Where `veen_native` is
built (docs/native.md), its threads check structure and signature, sign and frame; the writer thread waits for them.
What is decided, what is refused and how, order and durability are the same code either way.
"""

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from veen import native
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.entry import read_claimed_client
from veen.core.errors import Refusal, VeenError
from veen.core.limits import Limits
from veen.core.objects.control import (
    ControlRecord,
    HubFence,
    RequestDone,
    root_of_heads,
)
from veen.core.objects.msg import Msg
from veen.core.objects.policies import POLICY_BODIES
from veen.core.objects.receipt import Receipt, issue_bytes
from veen.core.wire import Wire
from veen.hub.admission.decide import Refuse, check_structure, decide, located
from veen.hub.admission.policy import Policy
from veen.hub.admission.resolver import Resolver
from veen.hub.process.observe import NullObserver, Observer
from veen.hub.sequencer.clock import HubClock
from veen.hub.sequencer.native_pool import NativePool, Verdict
from veen.hub.sequencer.verifier import InlineVerifier, WorkerVerifier
from veen.io.descriptors import patiently
from veen.io.errors import StorageError, UnsyncedError, is_disk_full
from veen.storage.state import Admitted, Label
from veen.storage.store import Group, Retirement, Store

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# While others are being verified, a group waits for this many: a sync for fewer costs more than it gains. The wait is
# bounded by as many verifications, a millisecond or two, and ends when there is nobody left to wait for.
_GROUP: Final = 64
_NO_SPACE: Final = "the hub's disk is full"
_IDLE_LABELS: Final = 32  # whose files a quiet hub writes between two looks at its connections
_HEADS_AT_ONCE: Final = 256  # labels that `fence` reads between two turns of the event loop
_STEP_PAUSE: Final = 0.002  # seconds between two steps of reading the keys of the index


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


class NotDurable(VeenError):
    """The hub could not make a message or record durable; `Sequencer.settled` tells when it is certain that it is not.

    It is an error and never a cancelled future: a cancelled future looks like a caller who went away.
    """

    hint = "Send again when the hub has room. What was sent may be in the log: look before you send something new."

    def __str__(self) -> str:
        return "the hub could not make the record durable"


class NotPrimary(VeenError):
    """Another hub writes this log: this one is a replica, is fenced, or was replaced (D-78)."""

    code = Refusal.NOT_PRIMARY.code

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        self.policy = policy

    def __str__(self) -> str:
        return f"this hub does not write its log now ({self.policy})"

    def refuse(self) -> Refuse:
        return Refuse(Refusal.NOT_PRIMARY, {"policy": self.policy})


@dataclass(frozen=True, slots=True)
class CopiedEntry:
    """An entry of a primary, verified: the bytes as they came, and what they say."""

    raw: bytes
    msg: Msg
    receipt_raw: bytes
    receipt: Receipt


Outcome = bytes | Refuse  # the RECEIPT, or why not
Done = Callable[[Outcome | None], None]  # who waits; None: the message never became durable


class _Job:
    """One message on its way. Owned by the event loop's thread; `done` is called exactly once (`_tell`)."""

    __slots__ = ("address", "done", "limits", "msg", "raw", "started", "verified")

    def __init__(
        self, raw: bytes, msg: Msg | native.Checked | None, done: Done, started: float, address: str, limits: Limits
    ) -> None:
        # `msg` is None while threads of the native module check it, under the limits that counted when it came.
        self.raw, self.msg, self.done, self.address, self.limits = raw, msg, done, address, limits
        self.started = self.verified = started


@dataclass(slots=True)
class _OpenGroup:
    """What one sync makes durable.

    While it is `Sequencer._open`, the event loop's thread owns and fills it. While it is `Sequencer._writing`, the
    writer thread owns `group` and `receipts` (`finish`); the event loop's thread reads `entries` and adds to
    `refusals`, which the writer does not use. In `_written` all of it belongs to the event loop's thread again.
    """

    sealed: native.SealedGroup | None = None  # where the native module signs and frames; then `group` is filled last
    decided: list[Admitted | ControlRecord] = field(default_factory=list)
    group: Group = field(default_factory=Group)
    answers: list[tuple[_Job, Admitted]] = field(default_factory=list)
    receipts: list[bytes] = field(default_factory=list)  # in step with `answers` once the group is finished
    # Entries of `answers` by (row of the client, client_seq): what a copy is compared with that arrives meanwhile.
    entries: dict[tuple[int, int], Admitted] = field(default_factory=dict)
    # Refusals that name an entry of this group: told once it is durable, never before (D-165).
    refusals: list[tuple[_Job, Refuse]] = field(default_factory=list)
    controls: list[tuple[asyncio.Future[ControlRecord], ControlRecord]] = field(default_factory=list)
    copied: list[tuple[asyncio.Future[None], list[bytes]]] = field(default_factory=list)  # with their labels

    def __len__(self) -> int:
        return len(self.decided)

    def finish(self) -> bytes:
        """What goes to the journal. Waits for those who sign, if others do."""
        if self.sealed is not None:
            parts = self.sealed.parts()
            self.group.fill(self.decided, [(data, entry_hash) for data, entry_hash, _ in parts])
            self.receipts += [receipt for _, _, receipt in parts if receipt is not None]
        return self.group.payload()


class Sequencer:
    """Owns the store's write side. Create it inside a running event loop.

    Every field belongs to the event loop's thread, but for the two task queues, which any thread may use, and
    `store.journal`, which the writer thread owns while `_writing` is set. Legal together:

        - `_writing` is a group: the writer works, and nothing else touches the journal.
        - `_retired` is clear: a retirement is on its way to the keeper or waits for room (then `_unretired` has it).
        - `_unretired` is set: `_retired` is clear, `_full` is set, `_closing` is not.
        - `_reopening`: what was decided is ahead of the journal, so nothing is sequenced and `_settled` is clear, until
          the store is opened anew. `_unretired` is None: the journal has what it would have saved.
        - `is_recovering`: `_reopening` or `_stopped` is set, and the keeper thread opens the store anew. It writes the
          files that `store` reads, so nobody reads through `store` meanwhile.
        - `_stopped` is set by a failure, and never cleared: `_settled` and `_idle` are set, `_reopening` is not;
          nothing is taken in.
        - `depth` counts the jobs in `_verifying`, `_open` and `_writing`, answers and refusals alike.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer,
        policy: Policy,
        resolver: Resolver,
        *,
        workers: int = 1,
        max_queue: int = 4096,
        clock: HubClock | Callable[[], float] = time.time,
        not_before: int = 0,
        failed: Callable[[BaseException], None] | None = None,
        reopen: Callable[[], Store] | None = None,
        observer: Observer | None = None,
        module: native.Module | None = native.LOADED.module,
        replica: bool = False,
    ) -> None:
        """`workers` is the number of threads of the native `module`, or of verifier processes where there is none; with
        0 everything is done by this thread and in Python. A `replica` decides and signs nothing: it writes what
        `replicate` is given."""
        self.observer: Observer = observer or NullObserver()
        self.store, self._signer, self.policy, self._resolver = store, signer, policy, resolver
        self._not_before = not_before
        self._replica = replica
        self.replaced = False  # whether a replica was promoted in the place of this hub
        self._fencing = False  # `fence` has begun: nothing more is taken in
        self._clock = clock if isinstance(clock, HubClock) else HubClock(clock)
        if not self._clock.begun:
            self._clock.begin(store.state.hub_ts)
        if store.state.control is not None:
            self._new_second_after(store.state.control)
        self._max_queue, self._failed, self._reopen = max_queue, failed, reopen
        self._profiles = frozenset(profile.profile_id() for profile in policy.profiles)
        self._loop = asyncio.get_running_loop()
        self.depth = 0  # messages that were taken in and not answered yet
        self._verifying: deque[_Job] = deque()  # in the order of submission, which is that of the verdicts
        self._pool: NativePool | None = None
        self._verifier: InlineVerifier | WorkerVerifier | None = None  # where there is no pool
        if module is not None and workers:
            limits = store.state.limits
            self._pool = NativePool(
                module, self._loop, workers, self._profiles, limits, self._checked, self._verifier_died
            )
        elif workers:
            self._verifier = WorkerVerifier(self._loop, workers, self._verified, self._verifier_died)
        else:
            self._verifier = InlineVerifier(self._verified)
        self._open = self._new_group()  # collects what is decided
        self._writing: _OpenGroup | None = None  # is being made durable; None: the writer is free
        self._retired = asyncio.Event()  # no retirement (the journal's way into the chunks) is under way
        self._retired.set()
        self._unretired: Retirement | None = None  # waits for `resume`
        self._full = False  # the last retirement met a full disk
        self._reopening = False  # a write met a full disk: `resume` opens the store anew
        self.is_recovering = False  # the keeper thread is doing so
        self._settled = asyncio.Event()  # not `_reopening`
        self._settled.set()
        self._closing = False  # `close` has begun
        self._stopped: BaseException | None = None  # why nothing goes on
        self._idle = asyncio.Event()  # everything that was taken in is answered
        self._idle.set()
        self._listeners: list[Callable[[Sequence[bytes]], None]] = []
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="veen-writer", daemon=True)
        self._writer.start()
        self._keeper_tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._keeper = threading.Thread(target=self._keep_loop, name="veen-keeper", daemon=True)
        self._keeper.start()
        resolver.add(policy.streams)
        self._learn(store.learn_keys())

    def _learn(self, steps: Iterator[None]) -> None:
        """Have the keeper thread do the steps one by one, so that a retirement can come in between."""

        def step() -> None:
            for _ in steps:
                time.sleep(_STEP_PAUSE)  # let other threads have the interpreter
                self._keeper_tasks.put(step)
                return

        self._keeper_tasks.put(step)

    # --- in ----------------------------------------------------------------------------------------------

    def admit(self, raw: bytes, done: Done, address: str = "") -> Refuse | None:
        """Take in one MSG. Returns a refusal, or None and calls `done` later with the outcome. `address` is for the
        observer; it decides nothing.

        Overloaded or Stopped are raised before anything is decided. The outcome comes through a callback, not a future,
        because a future costs more than all other work for a message on this thread, its signature apart.
        """
        if self._stopped is not None:
            raise Stopped
        if (policy := self.not_primary) is not None:
            refuse = NotPrimary(policy).refuse()
            self.observer.refused(refuse, len(raw), client_id=read_claimed_client(raw), address=address)
            return refuse
        if self.depth >= self._max_queue:
            raise Overloaded("too many messages are waiting")
        if (reason := self.no_space) is not None:
            raise Overloaded(reason)
        limits, started = self.store.state.limits, time.perf_counter()
        checked: Msg | Refuse | None
        if len(raw) > limits.max_msg_bytes:
            checked = Refuse(Refusal.SIZE_PREFILTER, {"actual": len(raw), "max_allowed": limits.max_msg_bytes})
        elif self._pool is not None and self._pool.submit(raw, limits):
            checked = None
        else:
            checked = check_structure(raw, self._profiles, limits)
        if isinstance(checked, Refuse):
            self._count_malformed(checked, raw, started, address)
            return checked
        if not self.depth:
            self._idle.clear()
        self.depth += 1
        self._verifying.append(_Job(raw, checked, done, started, address, limits))
        if checked is not None:
            assert self._verifier is not None  # noqa: S101 - or the pool took it: the two agree on what is malformed
            self._verifier.submit(checked.sig + Msg.digest_of(raw) + checked.client_id)
        return None

    def _count_malformed(self, refuse: Refuse, raw: bytes, started: float, address: str) -> None:
        total_s, client_id = time.perf_counter() - started, read_claimed_client(raw)
        self.observer.refused(refuse, len(raw), total_s=total_s, client_id=client_id, address=address)

    def submit(self, raw: bytes) -> "asyncio.Future[Outcome]":
        """`admit` with a future; NotDurable if the message never became durable."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()

        def done(outcome: Outcome | None) -> None:
            if answer.done():  # whoever waited has gone
                return
            if outcome is None:
                answer.set_exception(NotDurable())
            else:
                answer.set_result(outcome)

        refuse = self.admit(raw, done)
        if refuse is not None:
            answer.set_result(refuse)
        return answer

    async def control(
        self, make: Callable[[int], Wire | None], *, new_second: bool = False, request_id: bytes | None = None
    ) -> ControlRecord | None:
        """Append a control record, made by `make(hub_ts)` at its turn; None if `make` sees no need for one.

        With `new_second` no entry before it has its hub_ts: what it changes then counts by the second alone, as
        those who read the log without the journal's order must be able to tell.

        With `request_id` a request.done record follows it in the same group: a retry finds the outcome.

        NotDurable if it was made and the disk did not take it. Any other error was raised before it was made.
        """
        if (policy := self.not_primary) is not None:
            raise NotPrimary(policy)
        return await self._append_record(make, new_second=new_second, request_id=request_id)

    async def _append_record(
        self, make: Callable[[int], Wire | None], *, new_second: bool, request_id: bytes | None = None
    ) -> ControlRecord | None:
        if self._stopped is not None:
            raise Stopped
        if (reason := self.no_space) is not None:
            raise Overloaded(reason)
        hub_ts = max(self._now(), self.store.state.hub_ts + 1) if new_second else self._now()
        body = make(hub_ts)
        if body is None:
            return None
        done: asyncio.Future[ControlRecord] = self._loop.create_future()
        record = self._stage_control(body, hub_ts)
        if request_id is not None:
            self._stage_control(RequestDone(request_id=request_id, record=record.seq), hub_ts)
        self._open.controls.append((done, record))
        self._idle.clear()
        self._commit()
        return await done

    @property
    def not_primary(self) -> str | None:
        """Why this hub does not write its log: replica, replaced or fenced; None if it does."""
        if self._replica:
            return "replica"
        if self.replaced:
            return "replaced"
        return "fenced" if self._fencing or self.store.state.fenced else None

    async def fence(self) -> ControlRecord:
        """Admit nothing from now on, and say so in the control journal, once all that was taken in is answered.

        The record names how much there is, so a replica that has it and as much knows that nothing is missing (D-78).
        """
        if self.not_primary is not None:
            raise NotPrimary(self.not_primary)
        self._fencing = True
        try:
            await self.drain()
            await self.settled()

            body = await self._fence_body()
            record = await self._append_record(lambda _: body, new_second=True)
        finally:
            self._fencing = False  # from here on the record counts, if there is one
        assert record is not None  # noqa: S101 - `body` always makes one
        return record

    async def _fence_body(self) -> HubFence:
        """Collect the heads of all labels, a page at a time: nothing is admitted meanwhile, and readers are served."""
        while True:
            store, heads = self.store, list[tuple[bytes, int, bytes]]()
            page = store.heads(0, None, _HEADS_AT_ONCE)
            while page:
                heads += [(head.label, head.size, head.root()) for head in page if head.size]
                await asyncio.sleep(0)
                if self._reopening or self.store is not store:
                    break
                page = store.heads(page[-1].epoch, page[-1].label, _HEADS_AT_ONCE)
            await self.settled()
            if self.store is store:  # otherwise it was opened anew meanwhile: a full disk
                return HubFence(upto=store.entry_count, root=root_of_heads(heads))

    async def replicate(self, items: Sequence[CopiedEntry | ControlRecord]) -> None:
        """Append what a primary has decided, byte by byte; durable and readable when it returns.

        The caller has verified every item. What does not continue this log all the same is a StorageError, and the hub
        stops: the store is ahead of the disk then.
        """
        if self._stopped is not None:
            raise Stopped
        if (reason := self.no_space) is not None:
            raise Overloaded(reason)
        state, opened = self.store.state, self._open
        assert self._replica and opened.sealed is None  # noqa: S101, PT018 - a replica has no threads that sign
        labels: list[bytes] = []
        try:
            for item in items:
                if isinstance(item, ControlRecord):
                    item.check_follows(state.control)
                    self.store.stage_control(item)
                    opened.group.add_control(item)
                    opened.decided.append(item)
                    continue
                admitted = self._copy(item)
                opened.group.add_entry(admitted, item.raw, item.receipt_raw)
                opened.decided.append(admitted)
                labels.append(admitted.label.label)
        except Exception as exc:
            self._fail(exc, None)
            raise
        done: asyncio.Future[None] = self._loop.create_future()
        opened.copied.append((done, labels))
        self._idle.clear()
        self._commit()
        try:
            await done
        except NotDurable:
            if self._stopped is not None:
                raise Stopped from None
            raise Overloaded(_NO_SPACE) from None  # nothing of it is there

    def _copy(self, item: CopiedEntry) -> Admitted:
        state, msg, receipt = self.store.state, item.msg, item.receipt
        label = state.labels.get(msg.label)
        if label is None or (msg.auth_ref is not None and msg.auth_ref not in state.caps):
            raise StorageError(f"entry {receipt.stream_seq} of label {msg.label.hex()}: a control record is missing")
        admitted = state.admit(
            label,
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            leaf_hash=msg.leaf_hash(),
            hub_ts=receipt.hub_ts,
        )
        if (admitted.stream_seq, admitted.mmr_root) != (receipt.stream_seq, receipt.mmr_root):
            raise StorageError(f"entry {receipt.stream_seq} of label {msg.label.hex()}: it does not continue the log")
        return admitted

    def on_applied(self, listener: Callable[[Sequence[bytes]], None]) -> None:
        """Call `listener` with the labels of each group, in commit order, once readers can see its entries."""
        self._listeners.append(listener)

    @property
    def has_room(self) -> bool:
        """Whether clients that were turned away may send again."""
        return self.depth <= self._max_queue // 2

    def now(self) -> int:
        """The hub_ts that a message would get now."""
        return self._now()

    # --- order -------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """hub_ts: the clock, but never before what was given out already, nor before the hub's first key (D-28).

        While the wall clock is behind that, `HubClock` goes on with the monotonic one (D-167).
        """
        return max(int(self._clock()), self.store.state.hub_ts, self._not_before)

    def _verified(self, verdicts: bytes) -> None:
        """One byte each, in the order of submission; 1 is a good signature."""
        now, hub_ts = time.perf_counter(), self._now()
        key = self._signer.signing_key_at(hub_ts)
        for verdict in verdicts:
            job = self._verifying.popleft()
            job.verified = now
            self._on_verdict(job, verdict == 1, hub_ts, key)
        self._commit()

    def _checked(self, verdicts: Sequence[Verdict]) -> None:
        """Of the native module, in the order of submission."""
        now, hub_ts = time.perf_counter(), self._now()
        key = self._signer.signing_key_at(hub_ts)
        for verdict in verdicts:
            job = self._verifying.popleft()
            if verdict:
                job.verified, job.msg = now, verdict
                self._on_verdict(job, True, hub_ts, key)
                continue
            checked = check_structure(job.raw, self._profiles, job.limits)
            if isinstance(checked, Refuse):
                self._tell(job, checked)
                self._count_malformed(checked, job.raw, job.started, job.address)
                continue
            job.verified, job.msg = now, checked
            good = verdict is None and verify(checked.client_id, Msg.digest_of(job.raw), checked.sig)
            self._on_verdict(job, good, hub_ts, key)
        self._commit()

    def _on_verdict(self, job: _Job, good: bool, hub_ts: int, key: SigningKey) -> None:
        assert job.msg is not None  # noqa: S101 - its structure was checked
        if self._stopped is not None or self._reopening:
            self._tell(job, None)
        elif good:
            self._sequence(job, job.msg, hub_ts, key)
        else:
            refuse = Refuse(Refusal.SIG_INVALID, {"field": "sig"})
            self._refuse(job, job.msg, located(self.store.state, job.msg, refuse, self._find_entry))

    def _sequence(self, job: _Job, msg: Msg | native.Checked, hub_ts: int, key: SigningKey) -> None:
        """Decide about a message and give it its place in the log: the only function that does."""
        state, opened = self.store.state, self._open
        decision = decide(state, self.policy, self._resolver, msg, hub_ts, self._find_entry, size=len(job.raw))
        if self.replaced or state.fenced:  # since it was taken in
            decision = NotPrimary(self.not_primary or "").refuse()
        if isinstance(decision, Refuse):
            self._refuse(job, msg, decision)
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
        if opened.sealed is not None:
            assert self._pool is not None  # noqa: S101 - who begins such a group
            self._pool.seal(opened.sealed, key, job.raw, admitted)
        else:
            receipt = issue_bytes(key, msg.label, admitted.stream_seq, admitted.leaf_hash, admitted.mmr_root, hub_ts)
            opened.group.add_entry(admitted, job.raw, receipt)
            opened.receipts.append(receipt)
        opened.decided.append(admitted)
        opened.answers.append((job, admitted))
        opened.entries[admitted.client_row, admitted.client_seq] = admitted

    def _refuse(self, job: _Job, msg: Msg | native.Checked, refuse: Refuse) -> None:
        """Answer at once, or, if the refusal names an entry that is not durable yet, together with that entry."""
        if "stream_seq" in refuse.detail:
            state = self.store.state
            cursor = state.client(state.labels[msg.label], msg.client_id)
            for group in (self._writing, self._open):
                if cursor is not None and group is not None and (cursor.row, msg.client_seq) in group.entries:
                    group.refusals.append((job, refuse))
                    return
        self._tell_refused(job, refuse)

    def _tell_refused(self, job: _Job, refuse: Refuse) -> None:
        self._tell(job, refuse)
        msg, verify_s, total_s = job.msg, job.verified - job.started, time.perf_counter() - job.started
        assert msg is not None  # noqa: S101 - its structure was checked
        self.observer.refused(refuse, len(job.raw), verify_s, total_s, msg.label, msg.client_id, job.address)

    def _stage_control(self, body: Wire, hub_ts: int) -> ControlRecord:
        record = ControlRecord.issue(self._signer.signing_key_at(hub_ts), self.store.state.control, body, hub_ts=hub_ts)
        self.store.stage_control(record)
        opened = self._open
        if opened.sealed is not None:
            opened.sealed.add_record(record.to_bytes())
        else:
            opened.group.add_control(record)
        opened.decided.append(record)
        self._new_second_after(record)
        return record

    def _new_second_after(self, record: ControlRecord) -> None:
        """A policy record counts from the second after its own on (D-101): that second begins at once (D-167)."""
        if isinstance(record.body, POLICY_BODIES):
            self._clock.at_least(record.hub_ts + 1)

    def _find_entry(self, label: Label, client_row: int, client_seq: int) -> tuple[int, bytes] | None:
        """Where a message of a client stands, and its leaf, be it durable or still on its way to the disk."""
        for group in (self._writing, self._open):
            if group is not None and (admitted := group.entries.get((client_row, client_seq))) is not None:
                return admitted.stream_seq, admitted.leaf_hash
        return self.store.find_applied_entry(label.label, client_row, client_seq)

    # --- durable -----------------------------------------------------------------------------------------

    def _new_group(self) -> _OpenGroup:
        return _OpenGroup(self._pool.begin_group() if self._pool is not None else None)

    def _commit(self) -> None:
        """Start writing the open group if the writer is free."""
        if self._writing is not None or self._stopped is not None:
            return
        if self._reopening:
            if not self._verifying:
                self._idle.set()
            return
        if len(self._open) < min(_GROUP, len(self._verifying)):
            return  # more is about to join; its verdict brings us back here
        if not len(self._open):
            self._idle.set()
            return
        writing, self._open = self._open, self._new_group()
        self._writing = writing
        roll = self.store.can_retire and self._retired.is_set()
        self._tasks.put(lambda: self._write(writing, roll))

    def _write(self, writing: _OpenGroup, roll: bool) -> None:
        """In the writer thread: the only place that waits for the disk before an answer."""
        error: BaseException | None = None
        started = time.perf_counter()
        try:
            payload = writing.finish()
            started = time.perf_counter()
            if roll:
                patiently(self.store.journal.roll)
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
        answers = list(zip(writing.answers, writing.receipts, strict=True))
        for (job, _), receipt in answers:
            self._tell(job, receipt)
        for job, refuse in writing.refusals:
            self._tell_refused(job, refuse)
        if self._listeners:
            labels = [admitted.label.label for _, admitted in writing.answers]
            labels += [label for _, copied in writing.copied for label in copied]
            for listener in self._listeners:
                listener(labels)
        if len(writing):
            self.observer.group(len(writing), sync_s)
        now = time.perf_counter()
        for (job, admitted), receipt in answers:
            self.observer.accepted(
                len(job.raw), len(receipt), job.verified - job.started, now - job.verified, now - job.started, admitted
            )
        for done, record in writing.controls:
            if not done.done():
                done.set_result(record)
        for copying, _ in writing.copied:
            if not copying.done():
                copying.set_result(None)
        if self.store.journal_is_full:
            self._flush(2 * len(writing) + 16)  # more labels than a group can bring
        self._commit()

    def _flush(self, labels: int) -> bool:
        """Write ahead of a retirement what it would write at once; whether there is more."""
        try:
            return self.store.flush_some(labels)
        except Exception as exc:
            self._fail(exc, None)
            return False

    async def flush_idle(self) -> None:
        """The same for a hub that is quiet, in small steps."""
        more = True
        while more and self._stopped is None and not self._reopening:
            more = self._flush(_IDLE_LABELS)
            await asyncio.sleep(0)

    def retire_idle(self) -> bool:
        """Start emptying the journal into the chunks if nothing else is being written; whether it was started."""
        busy = self._writing is not None or len(self._open) or not self._retired.is_set()
        if self._stopped is not None or self._reopening or busy:
            return False
        writing = self._writing = _OpenGroup()  # keeps others off the journal while it rolls
        self._idle.clear()
        self._tasks.put(lambda: self._write(writing, True))
        return True

    def _retire(self) -> None:
        retirement = self.store.capture()
        self._retired.clear()
        self._keeper_tasks.put(lambda: self._persist(retirement))

    def _persist(self, retirement: Retirement) -> None:
        error: BaseException | None = None
        started = time.perf_counter()
        try:
            self.store.persist(retirement)
        except BaseException as exc:
            error = exc
        self._loop.call_soon_threadsafe(self._persisted, retirement, error, time.perf_counter() - started)

    def _persisted(self, retirement: Retirement, error: BaseException | None, seconds: float) -> None:
        if error is not None and is_disk_full(error) and not isinstance(error, UnsyncedError) and not self._reopening:
            if not self._full:
                _log.warning("the disk is full: the journal cannot be emptied (%s); refusing submits", error)
            self._full = True
            if self._closing:
                self._retired.set()
            else:  # `_retired` stays clear until `resume` has tried again, and nothing comes in
                self._unretired = retirement
            return
        self._full = False
        self._retired.set()
        self.observer.retired(seconds)
        if self._reopening:
            self.resume()  # it waited for the files; whatever the retirement met, the journal has all of it
        elif error is not None:
            self._fail(error, None)
        elif self._stopped is None:
            self.store.finish_retirement()

    def _fail(self, error: BaseException, writing: _OpenGroup | None) -> None:
        """Answer nothing that is not durable. A full disk may recover; anything else stops the hub."""
        for group in (writing, self._open):
            if group is not None:
                for job, _ in group.answers:
                    self._tell(job, None)
                for job, _ in group.refusals:
                    self._tell(job, None)
                waiting: list[asyncio.Future[Any]] = [done for done, _ in group.controls]
                waiting += [copying for copying, _ in group.copied]
                for future in waiting:
                    if not future.done():  # whoever waited may have gone
                        future.set_exception(NotDurable())
        self._open = self._new_group()
        if is_disk_full(error) and self._reopen is not None and self._stopped is None:
            self._reopening = True
            self._settled.clear()
            if self._unretired is not None:  # the journal has what it would have saved
                self._unretired, self._full = None, False
                self._retired.set()
            self.resume()
            return
        self._stop(error)

    def _stop(self, error: BaseException) -> None:
        self._take_nothing_in(error)
        if self._failed is not None:
            self._failed(error)

    def _take_nothing_in(self, error: BaseException) -> None:
        self._stopped, self._reopening = error, False
        self._settled.set()
        self._idle.set()

    @property
    def no_space(self) -> str | None:
        """Why nothing is taken in, if the disk was full at the last attempt; `resume` tries again."""
        return _NO_SPACE if self._reopening or self._full else None

    def resume(self, *, reopen: bool = True) -> None:
        """Try again what the disk had no room for. Opening the store anew reads the journal, so it can be left out."""
        if self._stopped is not None:
            return
        if self._unretired is not None:
            retirement, self._unretired = self._unretired, None
            self._keeper_tasks.put(lambda: self._persist(retirement))
        elif self._reopening and reopen and self._retired.is_set() and self._writing is None and not self.is_recovering:
            self.is_recovering = True
            self._keeper_tasks.put(self._recover)

    def _recover(self) -> None:
        """Open the store anew, in the keeper thread: reading the journal may take seconds."""
        assert self._reopen is not None  # noqa: S101 - or nothing would be waiting for it
        opened: Store | BaseException
        try:
            opened = self._reopen()  # back to the last durable point
        except BaseException as exc:
            opened = exc
        self._loop.call_soon_threadsafe(self._recovered, opened)

    def _recovered(self, opened: Store | BaseException) -> None:
        self.is_recovering = False
        if isinstance(opened, Store) and (self._stopped is not None or self._closing):
            opened.abandon()
        elif isinstance(opened, Store):
            self.store.abandon()
            self.store, self._reopening = opened, False
            self._learn(opened.learn_keys())
            self._settled.set()
            self._commit()
        elif is_disk_full(opened):
            self._commit()
        elif self._stopped is None:
            self._stop(opened)

    @property
    def is_stopped(self) -> bool:
        """True once a failure stopped the hub: what became durable shows at the next start."""
        return self._stopped is not None

    async def settled(self) -> None:
        """Wait until it is certain what of the decided became durable: until the store is open again, or never will."""
        await self._settled.wait()

    def _verifier_died(self, what: str = "a verifier process ended unexpectedly") -> None:
        """What is being written becomes durable or fails by itself, and is answered then."""
        if self._stopped is None:
            self._fail(StorageError(what), None)

    def _tell(self, job: _Job, outcome: Outcome | None) -> None:
        self.depth -= 1
        try:
            job.done(outcome)
        except Exception:  # a defect of one callback must not keep the other messages of its group waiting
            _log.exception("an answer could not be delivered")

    # --- threads -----------------------------------------------------------------------------------------

    async def between_retirements(self, work: Callable[[], T]) -> T:
        """Run blocking work in the thread that retires, so that no retirement removes a file meanwhile.

        When cancelled, wait for it: nothing may go on after the directory is unlocked.
        """
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def task() -> None:
            try:
                done.set_result(work())
            except BaseException as exc:
                done.set_exception(exc)

        self._keeper_tasks.put(task)
        waiting = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await asyncio.wait((waiting,))
            raise

    def _write_loop(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _keep_loop(self) -> None:
        while (task := self._keeper_tasks.get()) is not None:
            try:
                task()
            except Exception:  # retirements must go on; `_persist` reports its own errors
                _log.exception("work beside the log failed")

    async def drain(self) -> None:
        """Wait until everything that was taken in is answered."""
        await self._idle.wait()

    async def abort(self) -> None:
        """Stop at once and leave the directory to recovery; for tests, and for a hub that must not go on."""
        self._take_nothing_in(self._stopped or Stopped())
        await self.close()

    async def close(self) -> None:
        """Drain, leave the directory at rest, stop the helpers. On a full disk the rest is left to recovery."""
        await self.drain()
        self._closing = True
        unfinished = self.no_space is not None
        if self._unretired is not None:
            self._unretired = None
            self._retired.set()
        await self._retired.wait()
        if self._verifier is not None:
            self._verifier.close()
        self._tasks.put(None)
        self._keeper_tasks.put(None)
        await self._loop.run_in_executor(None, self._writer.join)
        await self._loop.run_in_executor(None, self._keeper.join)
        if self._pool is not None:
            self._pool.close()  # after the writer, who waits for what the workers seal
        if self._stopped is not None or unfinished or self.no_space is not None:
            self.store.abandon()
            return
        try:
            self.store.close()
        except Exception as exc:
            self.store.abandon()
            if not is_disk_full(exc):
                raise
            _log.warning("the disk is full: the journal is left for the next start to read (%s)", exc)
