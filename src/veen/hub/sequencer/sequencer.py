"""The sequencer: verify in parallel, order on one thread, make durable, then answer (decisions.md 20).

    submit      check structure at once; hand the signature to the verifiers, in order
    sequence    verdicts return in order: decide, State.admit, sign, frame, join the open group
    commit      one group at a time in the writer thread; the next one collects meanwhile
    answer      after the sync: apply the group to the files, call back those who wait

A message becomes durable in `_write`, which runs in the writer thread and is the only place that waits for the disk.
No RECEIPT is delivered before `_on_written` reports that its group is on the disk.

Everything but the sync and the verification runs on the event loop's thread; there are no locks. Other threads get
their work through a queue and report back with `call_soon_threadsafe`. Where `veen_native` is built
(docs/native.md), its threads check structure and signature, sign and frame, and the writer thread waits for them.
Decisions, refusals, order and durability are the same code either way.
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
from veen.hub.admission.decide import Refuse, Resolver, check_structure, decide, with_location
from veen.hub.admission.policy import Policy
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

# While more messages are being verified, a group waits for this many: a sync for fewer costs more than it gains. It is
# a bound on verifications, not a timer: no receipt leaves before its sync, so nothing is lost by waiting (decisions.md
# 24).
_GROUP: Final = 64
_NO_SPACE: Final = "the hub's disk is full"
_IDLE_LABELS: Final = 32  # labels whose files a quiet hub writes in one turn of the event loop
_HEADS_AT_ONCE: Final = 256  # labels that `fence` reads in one turn of the event loop
_STEP_PAUSE: Final = 0.002  # seconds between two steps of `Store.learn_keys`


class Signer(Protocol):
    """Source of the key that signs at a time (D-41)."""

    def signing_key_at(self, hub_ts: int) -> SigningKey: ...


class Overloaded(VeenError):
    """Refusal to start on another message now. Nothing was decided about the message (D-58)."""

    hint = "Send again after a moment."

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Stopped(VeenError):
    """The hub stopped before this message became durable. A resync shows if the log has it."""

    hint = "Connect again when the hub is back and resync: the message may or may not be in the log."

    def __str__(self) -> str:
        return "the hub stopped before the message was acknowledged"


class NotDurable(VeenError):
    """The hub could not make a message or record durable. After `wait_settled` it is certain that the log does not
    have it.

    It is an error and never a cancelled future: a cancelled future looks like a caller that disconnected.
    """

    hint = "Send again when the hub has room. What was sent may be in the log: look before you send something new."

    def __str__(self) -> str:
        return "the hub could not make the record durable"


class NotPrimary(VeenError):
    """Another hub writes this log: this hub is a replica, is fenced, or was replaced (D-78)."""

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
    """A verified entry of a primary: the bytes as received, and the decoded objects."""

    raw: bytes
    msg: Msg
    receipt_raw: bytes
    receipt: Receipt


Outcome = bytes | Refuse  # the RECEIPT, or the refusal
Done = Callable[[Outcome | None], None]  # the waiting caller; None: the message never became durable


class _Job:
    """One message between `admit` and its answer. Owned by the event loop's thread. `done` is called exactly once,
    by `_answer`."""

    __slots__ = ("address", "done", "limits", "msg", "raw", "started", "verified")

    def __init__(
        self, raw: bytes, msg: Msg | native.Checked | None, done: Done, started: float, address: str, limits: Limits
    ) -> None:
        # `msg` is None while threads of the native module check it, under the limits in force when it arrived.
        self.raw, self.msg, self.done, self.address, self.limits = raw, msg, done, address, limits
        self.started = self.verified = started


@dataclass(slots=True)
class _OpenGroup:
    """The entries and records that one sync makes durable.

    While it is `Sequencer._open`, the event loop's thread owns and fills it. While it is `Sequencer._writing`, the
    writer thread owns `group` and `receipts` (`finish`); the event loop's thread reads `entries` and adds to
    `refusals`, which the writer does not use. From `_on_written` on the event loop's thread owns all of it again.
    """

    sealed: native.SealedGroup | None = None  # the native module signs and frames here; `finish` then fills `group`
    decided: list[Admitted | ControlRecord] = field(default_factory=list)
    group: Group = field(default_factory=Group)
    answers: list[tuple[_Job, Admitted]] = field(default_factory=list)
    receipts: list[bytes] = field(default_factory=list)  # in step with `answers` once the group is finished
    # Entries of `answers` by (row of the client, client_seq), to recognize a copy that arrives before the sync.
    entries: dict[tuple[int, int], Admitted] = field(default_factory=dict)
    # Refusals that name an entry of this group: delivered once it is durable, never before (D-165).
    refusals: list[tuple[_Job, Refuse]] = field(default_factory=list)
    controls: list[tuple[asyncio.Future[ControlRecord], ControlRecord]] = field(default_factory=list)
    copied: list[tuple[asyncio.Future[None], list[bytes]]] = field(default_factory=list)  # with their labels

    def __len__(self) -> int:
        return len(self.decided)

    def finish(self) -> bytes:
        """Return the bytes for the journal. Wait for the threads of the native module, if they sign."""
        if self.sealed is not None:
            parts = self.sealed.parts()
            self.group.fill(self.decided, [(data, entry_hash) for data, entry_hash, _ in parts])
            self.receipts += [receipt for _, _, receipt in parts if receipt is not None]
        return self.group.payload()


class Sequencer:
    """Owner of the store's write side. Create it inside a running event loop.

    Every field is owned by the event loop's thread, but for the two task queues, which any thread may use, and
    `store.journal`, which the writer thread owns while `_writing` is set. Legal combinations:

        - `_writing` is a group: the writer works, and nothing else touches the journal.
        - `_retired` is clear: a retirement is queued for the keeper, runs there, or waits for room (in `_unretired`).
        - `_unretired` is set: `_retired` is clear, `_full` is set, `_closing` is not.
        - `_reopening`: decisions are ahead of the journal, so nothing is sequenced and `_settled` is clear, until
          the store is opened again. `_unretired` is None: the journal still has what the retirement would have saved.
        - `is_recovering`: `_reopening` or `_stopped` is set, and the keeper thread opens the store again. It writes the
          files that `store` reads, so nobody reads through `store` meanwhile (decisions.md 498).
        - `_stopped` is set by a failure and never cleared: `_settled` and `_idle` are set, `_reopening` is not, and
          nothing is accepted.
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
        """Start the writer and keeper threads and the verifiers.

        `workers` is the number of threads of the native `module`, or of verifier processes if there is none. With 0
        workers this thread does everything, in Python. A `replica` decides and signs nothing: it writes what
        `replicate` is given (decisions.md 221).
        """
        self.observer: Observer = observer or NullObserver()
        self.store, self._signer, self.policy, self._resolver = store, signer, policy, resolver
        self._not_before = not_before
        self._replica = replica
        self.replaced = False  # True once a replica was promoted in the place of this hub
        self._fencing = False  # `fence` has begun: nothing more is accepted
        self._clock = clock if isinstance(clock, HubClock) else HubClock(clock)
        if not self._clock.begun:
            self._clock.begin(store.state.hub_ts)
        if store.state.control is not None:
            self._new_second_after(store.state.control)
        self._max_queue, self._failed, self._reopen = max_queue, failed, reopen
        self._profiles = frozenset(profile.profile_id() for profile in policy.profiles)
        self._loop = asyncio.get_running_loop()
        self.depth = 0  # messages accepted by `admit` and not answered yet
        self._verifying: deque[_Job] = deque()  # in the order of submission, which is the order of the verdicts
        self._pool: NativePool | None = None
        self._verifier: InlineVerifier | WorkerVerifier | None = None  # where there is no pool
        if module is not None and workers:
            limits = store.state.limits
            self._pool = NativePool(
                module, self._loop, workers, self._profiles, limits, self._on_verdicts, self._verifier_died
            )
        elif workers:
            self._verifier = WorkerVerifier(self._loop, workers, self._on_signatures, self._verifier_died)
        else:
            self._verifier = InlineVerifier(self._on_signatures)
        self._open = self._new_group()  # collects decisions while `_writing` is on its way to the disk
        self._writing: _OpenGroup | None = None  # is being made durable; None: the writer is free
        self._retired = asyncio.Event()  # set: no retirement (moving the journal into the chunks) is under way
        self._retired.set()
        self._unretired: Retirement | None = None  # waits for `resume`
        self._full = False  # the last retirement failed on a full disk
        self._reopening = False  # a write failed on a full disk: `resume` opens the store again
        self.is_recovering = False  # the keeper thread is doing so
        self._settled = asyncio.Event()  # set unless `_reopening`
        self._settled.set()
        self._closing = False  # `close` has begun
        self._stopped: BaseException | None = None  # the failure that stopped the hub
        self._idle = asyncio.Event()  # set: everything accepted is answered
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
        """Run the steps one by one in the keeper thread, so that a retirement can come in between."""

        def step() -> None:
            for _ in steps:
                time.sleep(_STEP_PAUSE)  # let other threads have the interpreter
                self._keeper_tasks.put(step)
                return

        self._keeper_tasks.put(step)

    # --- in ----------------------------------------------------------------------------------------------

    def admit(self, raw: bytes, done: Done, address: str = "") -> Refuse | None:
        """Accept one MSG. Return a refusal, or None and call `done` later with the outcome. `address` is for the
        observer.

        Overloaded or Stopped are raised before anything is decided. The outcome comes through a callback and not a
        future: a future costs more than all other work for a message on this thread, apart from its signature.
        """
        if self._stopped is not None:
            raise Stopped
        if (policy := self.not_primary) is not None:
            refuse = NotPrimary(policy).refuse()
            self.observer.on_refused(refuse, len(raw), client_id=read_claimed_client(raw), address=address)
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
            assert self._verifier is not None  # noqa: S101 - or the pool accepted it: both find the same malformed
            self._verifier.submit(checked.sig + Msg.digest_of(raw) + checked.client_id)
        return None

    def _count_malformed(self, refuse: Refuse, raw: bytes, started: float, address: str) -> None:
        total_s, client_id = time.perf_counter() - started, read_claimed_client(raw)
        self.observer.on_refused(refuse, len(raw), total_s=total_s, client_id=client_id, address=address)

    def submit(self, raw: bytes) -> "asyncio.Future[Outcome]":
        """Admit a message and return its outcome as a future; NotDurable if the message never became durable."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()

        def done(outcome: Outcome | None) -> None:
            if answer.done():  # the caller has disconnected
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
        """Append the control record that `make(hub_ts)` returns at its turn; return None if `make` returns None.

        With `new_second` the record has a hub_ts that no entry before it has. Its effect then depends on the second
        alone, as readers of the log without the journal's order need it.

        With `request_id` a request.done record follows in the same group, so that a retry finds the outcome
        (decisions.md 384).

        Raise NotDurable if the record was made and the disk did not take it. Any other error was raised before it
        was made.
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
        """Reason why this hub does not write its log: replica, replaced or fenced; None if it writes."""
        if self._replica:
            return "replica"
        if self.replaced:
            return "replaced"
        return "fenced" if self._fencing or self.store.state.fenced else None

    async def fence(self) -> ControlRecord:
        """Admit nothing more, and append a hub.fence record once all accepted messages are answered.

        The record counts the entries and covers the heads, so a replica that has both can prove that nothing is
        missing (D-78, decisions.md 223).
        """
        if self.not_primary is not None:
            raise NotPrimary(self.not_primary)
        self._fencing = True
        try:
            await self.drain()
            await self.wait_settled()

            body = await self._fence_body()
            record = await self._append_record(lambda _: body, new_second=True)
        finally:
            self._fencing = False  # `state.fenced` takes over, if the record was made
        assert record is not None  # noqa: S101 - `body` always makes one
        return record

    async def _fence_body(self) -> HubFence:
        """Read the heads of all labels, a page in each turn: readers are served meanwhile, and nothing is admitted."""
        while True:
            store, heads = self.store, list[tuple[bytes, int, bytes]]()
            page = store.heads(0, None, _HEADS_AT_ONCE)
            while page:
                heads += [(head.label, head.size, head.root()) for head in page if head.size]
                await asyncio.sleep(0)
                if self._reopening or self.store is not store:
                    break
                page = store.heads(page[-1].epoch, page[-1].label, _HEADS_AT_ONCE)
            await self.wait_settled()
            if self.store is store:  # otherwise a full disk had it opened again meanwhile: read all heads once more
                return HubFence(upto=store.entry_count, root=root_of_heads(heads))

    async def replicate(self, items: Sequence[CopiedEntry | ControlRecord]) -> None:
        """Append the decisions of a primary, byte by byte; they are durable and readable on return.

        The caller has verified every item. An item that does not continue this log is a StorageError and stops the
        hub: its state in memory is then ahead of the disk, and only a restart can take that back.
        """
        if self._stopped is not None:
            raise Stopped
        if (reason := self.no_space) is not None:
            raise Overloaded(reason)
        state, opened = self.store.state, self._open
        assert self._replica and opened.sealed is None  # noqa: S101, PT018 - a replica signs nothing
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
            raise Overloaded(_NO_SPACE) from None  # the log has none of the items

    def _copy(self, item: CopiedEntry) -> Admitted:
        """Admit an entry to the state, and check that it gets the place and root of the primary's RECEIPT."""
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
        """True if clients that were refused for overload may send again."""
        return self.depth <= self._max_queue // 2

    def now(self) -> int:
        """Return the hub_ts that a message would get now."""
        return self._now()

    # --- order -------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Return hub_ts: the clock, but never before a hub_ts already given out, nor before the hub's first key
        (D-28).

        While the wall clock is behind that, `HubClock` goes on with the monotonic one (D-167).
        """
        return max(int(self._clock()), self.store.state.hub_ts, self._not_before)

    def _on_signatures(self, verdicts: bytes) -> None:
        """Handle verdicts of the verifier: one byte each, in the order of submission; 1 is a valid signature."""
        now, hub_ts = time.perf_counter(), self._now()
        key = self._signer.signing_key_at(hub_ts)
        for verdict in verdicts:
            job = self._verifying.popleft()
            job.verified = now
            self._on_verdict(job, verdict == 1, hub_ts, key)
        self._commit()

    def _on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Handle verdicts of the native module, in the order of submission."""
        now, hub_ts = time.perf_counter(), self._now()
        key = self._signer.signing_key_at(hub_ts)
        for verdict in verdicts:
            job = self._verifying.popleft()
            if verdict:
                job.verified, job.msg = now, verdict
                self._on_verdict(job, True, hub_ts, key)
                continue
            # Python decides each refusal, so that both ways refuse with the same code and detail.
            checked = check_structure(job.raw, self._profiles, job.limits)
            if isinstance(checked, Refuse):
                self._answer(job, checked)
                self._count_malformed(checked, job.raw, job.started, job.address)
                continue
            job.verified, job.msg = now, checked
            good = verdict is None and verify(checked.client_id, Msg.digest_of(job.raw), checked.sig)
            self._on_verdict(job, good, hub_ts, key)
        self._commit()

    def _on_verdict(self, job: _Job, good: bool, hub_ts: int, key: SigningKey) -> None:
        assert job.msg is not None  # noqa: S101 - its structure was checked
        if self._stopped is not None or self._reopening:
            self._answer(job, None)
        elif good:
            self._sequence(job, job.msg, hub_ts, key)
        else:
            refuse = Refuse(Refusal.SIG_INVALID, {"field": "sig"})
            self._refuse(job, job.msg, with_location(self.store.state, job.msg, refuse, self._find_entry))

    def _sequence(self, job: _Job, msg: Msg | native.Checked, hub_ts: int, key: SigningKey) -> None:
        """Decide about a message and give it its place in the log. No other function does."""
        state, opened = self.store.state, self._open
        decision = decide(state, self.policy, self._resolver, msg, hub_ts, self._find_entry, size=len(job.raw))
        if self.replaced or state.fenced:  # since `admit` accepted it
            decision = NotPrimary(self.not_primary or "").refuse()
        if isinstance(decision, Refuse):
            self._refuse(job, msg, decision)
            return
        for body in decision.records:
            self._stage_control(body, hub_ts)
        # From here on the state in memory is ahead of the disk. If the write fails, `_fail` delivers no receipt and the
        # store is opened again from the disk: nothing is undone step by step.
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
            assert self._pool is not None  # noqa: S101 - it begins such groups
            self._pool.seal(opened.sealed, key, job.raw, admitted)
        else:
            receipt = issue_bytes(key, msg.label, admitted.stream_seq, admitted.leaf_hash, admitted.mmr_root, hub_ts)
            opened.group.add_entry(admitted, job.raw, receipt)
            opened.receipts.append(receipt)
        opened.decided.append(admitted)
        opened.answers.append((job, admitted))
        opened.entries[admitted.client_row, admitted.client_seq] = admitted

    def _refuse(self, job: _Job, msg: Msg | native.Checked, refuse: Refuse) -> None:
        """Answer at once; or, if the refusal names an entry that is not durable yet, together with that entry
        (D-165)."""
        if "stream_seq" in refuse.detail:
            state = self.store.state
            cursor = state.client(state.labels[msg.label], msg.client_id)
            for group in (self._writing, self._open):
                if cursor is not None and group is not None and (cursor.row, msg.client_seq) in group.entries:
                    group.refusals.append((job, refuse))
                    return
        self._answer_refused(job, refuse)

    def _answer_refused(self, job: _Job, refuse: Refuse) -> None:
        self._answer(job, refuse)
        msg, verify_s, total_s = job.msg, job.verified - job.started, time.perf_counter() - job.started
        assert msg is not None  # noqa: S101 - its structure was checked
        self.observer.on_refused(refuse, len(job.raw), verify_s, total_s, msg.label, msg.client_id, job.address)

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
        """Start the next second after a policy record (D-167): the record is in force from that second on (D-101)."""
        if isinstance(record.body, POLICY_BODIES):
            self._clock.at_least(record.hub_ts + 1)

    def _find_entry(self, label: Label, client_row: int, client_seq: int) -> tuple[int, bytes] | None:
        """Return stream_seq and leaf of a client's message, durable or still on its way to the disk."""
        for group in (self._writing, self._open):
            if group is not None and (admitted := group.entries.get((client_row, client_seq))) is not None:
                return admitted.stream_seq, admitted.leaf_hash
        return self.store.find_applied_entry(label.label, client_row, client_seq)

    # --- durable -----------------------------------------------------------------------------------------

    def _new_group(self) -> _OpenGroup:
        return _OpenGroup(self._pool.begin_group() if self._pool is not None else None)

    def _commit(self) -> None:
        """Start writing the open group if the writer is free."""
        # Every path that may have filled the open group or freed the writer ends here, so no timer is needed.
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
        # The journal rolls before this group, so that the old segment can retire while the new one is written. One
        # retirement at a time: the store holds the state of one (`Store.capture`).
        roll = self.store.can_retire and self._retired.is_set()
        self._tasks.put(lambda: self._write(writing, roll))

    def _write(self, writing: _OpenGroup, roll: bool) -> None:
        """Write and sync one group, in the writer thread: the only place that waits for the disk before an answer."""
        error: BaseException | None = None
        started = time.perf_counter()
        try:
            payload = writing.finish()
            started = time.perf_counter()  # without the wait for the threads that sign
            if roll:
                patiently(self.store.journal.roll)
            self.store.journal.write(payload)  # returns after the sync: from here on the group is durable
        except BaseException as exc:
            error = exc
        self._loop.call_soon_threadsafe(self._on_written, error, roll, time.perf_counter() - started)

    def _on_written(self, error: BaseException | None, rolled: bool, sync_s: float) -> None:
        """Apply a durable group, then answer: a reader who knows a receipt can read its entry at once."""
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
            self._answer(job, receipt)
        for job, refuse in writing.refusals:
            self._answer_refused(job, refuse)
        if self._listeners:
            labels = [admitted.label.label for _, admitted in writing.answers]
            labels += [label for _, copied in writing.copied for label in copied]
            for listener in self._listeners:
                listener(labels)
        if len(writing):
            self.observer.on_group(len(writing), sync_s)
        now = time.perf_counter()
        for (job, admitted), receipt in answers:
            self.observer.on_accepted(
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
        """Write files of some labels ahead of the next retirement; return True if there are more."""
        try:
            return self.store.flush_some(labels)
        except Exception as exc:
            self._fail(exc, None)
            return False

    async def flush_idle(self) -> None:
        """Write ahead of the next retirement while the hub is quiet, in small steps."""
        more = True
        while more and self._stopped is None and not self._reopening:
            more = self._flush(_IDLE_LABELS)
            await asyncio.sleep(0)

    def retire_idle(self) -> bool:
        """Start to move the journal into the chunks if nothing else is being written; return True if it was started."""
        busy = self._writing is not None or len(self._open) or not self._retired.is_set()
        if self._stopped is not None or self._reopening or busy:
            return False
        writing = self._writing = _OpenGroup()  # an empty group: nobody else uses the journal while it rolls
        self._idle.clear()
        self._tasks.put(lambda: self._write(writing, True))
        return True

    def _retire(self) -> None:
        """Hand the old journal segment to the keeper thread, with copies of the cursors as they are now."""
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
        self._loop.call_soon_threadsafe(self._on_persisted, retirement, error, time.perf_counter() - started)

    def _on_persisted(self, retirement: Retirement, error: BaseException | None, seconds: float) -> None:
        # After UnsyncedError the files must be written again: a second sync of the same pages could report success
        # without writing them. So that error goes to `_fail`, which opens the store again, from the journal
        # (decisions.md 21).
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
        self.observer.on_retired(seconds)
        if self._reopening:
            self.resume()  # it waited for the files; whatever the retirement met, the journal has all of it
        elif error is not None:
            self._fail(error, None)
        elif self._stopped is None:
            self.store.finish_retirement()

    def _fail(self, error: BaseException, writing: _OpenGroup | None) -> None:
        """Answer all waiting callers with a failure. A full disk may recover; any other error stops the hub
        (decisions.md 21)."""
        for group in (writing, self._open):
            if group is not None:
                for job, _ in group.answers:
                    self._answer(job, None)
                for job, _ in group.refusals:
                    self._answer(job, None)
                waiting: list[asyncio.Future[Any]] = [done for done, _ in group.controls]
                waiting += [copying for copying, _ in group.copied]
                for future in waiting:
                    if not future.done():  # the caller may have disconnected
                        future.set_exception(NotDurable())
        self._open = self._new_group()
        if is_disk_full(error) and self._reopen is not None and self._stopped is None:
            self._reopening = True
            self._settled.clear()
            if self._unretired is not None:  # the journal still has what it would have saved
                self._unretired, self._full = None, False
                self._retired.set()
            self.resume()
            return
        self._stop(error)

    def _stop(self, error: BaseException) -> None:
        self._mark_stopped(error)
        if self._failed is not None:
            self._failed(error)

    def _mark_stopped(self, error: BaseException) -> None:
        self._stopped, self._reopening = error, False
        self._settled.set()
        self._idle.set()

    @property
    def no_space(self) -> str | None:
        """Reason why nothing is accepted after a full disk, else None. `resume` tries again."""
        return _NO_SPACE if self._reopening or self._full else None

    def resume(self, *, reopen: bool = True) -> None:
        """Retry what failed on a full disk. Opening the store again reads the journal; `reopen=False` skips it."""
        if self._stopped is not None:
            return
        if self._unretired is not None:
            retirement, self._unretired = self._unretired, None
            self._keeper_tasks.put(lambda: self._persist(retirement))
        elif self._reopening and reopen and self._retired.is_set() and self._writing is None and not self.is_recovering:
            self.is_recovering = True
            self._keeper_tasks.put(self._recover)

    def _recover(self) -> None:
        """Open the store again, in the keeper thread: reading the journal may take seconds."""
        assert self._reopen is not None  # noqa: S101 - `_fail` checks it before `_reopening` is set
        opened: Store | BaseException
        try:
            opened = self._reopen()  # recovery goes back to the last durable point (decisions.md 16)
        except BaseException as exc:
            opened = exc
        self._loop.call_soon_threadsafe(self._on_recovered, opened)

    def _on_recovered(self, opened: Store | BaseException) -> None:
        """Continue with the store that was opened again, stay refusing on a full disk, or stop."""
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
        """True once a failure stopped the hub. The next start shows what became durable."""
        return self._stopped is not None

    async def wait_settled(self) -> None:
        """Wait until it is certain which decisions became durable: the store is open again, or the hub has stopped."""
        await self._settled.wait()

    def _verifier_died(self, what: str = "a verifier process ended unexpectedly") -> None:
        """Fail what is not being written; the group in the writer thread becomes durable or fails by itself."""
        if self._stopped is None:
            self._fail(StorageError(what), None)

    def _answer(self, job: _Job, outcome: Outcome | None) -> None:
        self.depth -= 1  # first: the callback may look at `has_room`
        try:
            job.done(outcome)
        except Exception:  # a fault in one callback must not keep the other messages of its group waiting
            _log.exception("an answer could not be delivered")

    # --- threads -----------------------------------------------------------------------------------------

    async def run_between_retirements(self, work: Callable[[], T]) -> T:
        """Run blocking work in the keeper thread, so that no retirement removes a file meanwhile.

        When cancelled, wait for the work: nothing may run after the directory is unlocked.
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
            except Exception:  # the thread must serve later retirements; `_persist` reports its own errors
                _log.exception("work beside the log failed")

    async def drain(self) -> None:
        """Wait until everything accepted is answered."""
        await self._idle.wait()

    async def abort(self) -> None:
        """Stop at once and leave the directory to recovery; for tests, and for a hub that must not continue."""
        self._mark_stopped(self._stopped or Stopped())
        await self.close()

    async def close(self) -> None:
        """Drain, leave the directory clean, stop the threads. After a full disk, leave the rest to recovery."""
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
            self._pool.close()  # after the writer thread, which waits for these workers to seal
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
