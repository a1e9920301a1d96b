"""Submit, execute, deliver. Every answer to a client is recorded in the log first.

    submit    normalise, check, record query.submitted, wait for its receipt; then execute
    execute   rows, coverage and digest durable in the store; record query.result, wait for its receipt; then COMPLETED
    cancel    stop the execution; record query.failed with the code `cancelled`, wait for its receipt; then FAILED
    deliver   record query.audit.v1, wait for its receipt; then send the rows

A crash between any two of these steps loses nothing: at a start the history of the log and the store give the state of
each query. A digest that was prepared and not recorded is recorded; everything else runs again under its result_id. A
client that disconnects ends nothing: its query is recorded, and it may ask again. `max_seconds` limits an execution. An
end that the log does not accept is recorded later. Rows are kept for a while, digests forever in the log. All methods
belong to one event loop; queries are answered in threads.

`FairSlots` shares the places for executions fairly among principals.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.read.reading import Entry
from veen.client.read.streams import ErasedRange
from veen.client.transport.calls import is_not_found
from veen.core import canonical
from veen.core.canonical import Json
from veen.core.errors import VeenError
from veen.core.objects.identity import HubIdentity
from veen.lake.query import api
from veen.lake.query.api import Engine, Keys
from veen.lake.query.control import ExecutionControl
from veen.lake.query.descriptor import QueryDescriptor, normalise
from veen.lake.query.digest import ResultDigest
from veen.lake.query.engine import ResultSink, plan_query
from veen.lake.query.errors import (
    QUERY_REFUSALS,
    DuplicateQuery,
    ExecutionFailed,
    ForbiddenScope,
    QueryCancelled,
    QueryError,
    QueryNotFound,
)
from veen.lake.query.recording import ACCESSES, EXECUTIONS, REQUESTS, RESULTS, make_failed, make_result, make_submitted
from veen.lake.query.store import DEFAULT_LIMIT, ResultPage, ResultStore, Status
from veen.overlays.framework.schema import Draft
from veen.overlays.operations import queryaudit
from veen.products.queryservice.history import QueryHistory, RecordedRequest
from veen.products.queryservice.observe import ResultRetention, ServiceMetrics, line
from veen.products.queryservice.principals import Principals, QueryPrincipal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FairSlots:
    """Gives a free place to the principal with the fewest, then to the longest waiting. Belongs to one event loop.

    With several places the last is not for a principal that has all the others, so nobody waits behind the queries of
    one person alone.
    """

    def __init__(self, count: int) -> None:
        self._count, self._most = count, max(1, count - 1)  # of all, and of one principal
        self._taken: Counter[str] = Counter()  # by principal
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []  # in the order in which they came

    @asynccontextmanager
    async def place(self, who: str, turn: "asyncio.Future[None]") -> AsyncIterator[None]:
        """Wait for a place and hold it. An exception that is set on `turn` ends the waiting."""
        self._waiting.append((who, turn))
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # given, and not wanted any more
                self._release(who)
            raise
        try:
            yield
        finally:
            self._release(who)

    def _release(self, who: str) -> None:
        self._taken[who] -= 1
        self._grant()

    def _grant(self) -> None:
        while self._taken.total() < self._count:
            self._waiting = [(who, turn) for who, turn in self._waiting if not turn.done()]
            ready = [(who, turn) for who, turn in self._waiting if self._taken[who] < self._most]
            if not ready:
                return
            who, turn = min(ready, key=lambda waiting: self._taken[waiting[0]])  # of equal ones the first
            self._taken[who] += 1
            turn.set_result(None)


_log = logging.getLogger(__name__)
_STREAMS: Final = (REQUESTS, RESULTS, EXECUTIONS)
_ORIGIN: Final = "veen-query"
_SWEEP_SECONDS: Final = 60.0
_BATCH: Final = 1_000  # entries of the log that are added at a time


class Unavailable(QueryError):
    """The log cannot be written now, or too many queries wait: nothing was done."""

    error_code = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of a query service."""

    data_dir: str
    keys: Keys
    engine: Engine = "python"
    identity: HubIdentity | None = None  # the hub's, where it is pinned
    subject_id: str = "service:query"  # the subject of query.result (QRY-17)
    authors: frozenset[bytes] = frozenset()  # earlier client keys of the service: records by others are ignored
    spark: "SparkSession | None" = None
    workers: int = 4  # executions at a time; of one principal, one fewer
    sync_entries: int = 50_000  # largest query that is answered at once
    max_waiting: int = 100  # queries that have not ended, of all principals; of one principal half of them
    max_seconds: float = 3600.0  # of one execution
    record_seconds: float = 30.0  # how long the log may take to accept a record
    retry_seconds: float = 30.0  # until an end that the log did not take is recorded again
    keep_bytes: int = 10 << 30  # of results that have ended; the newest is kept whatever its size
    keep_seconds: float = 30 * 86400.0
    now: Callable[[], int] = field(default=lambda: int(time.time()))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubmission:
    """The answer to a submission: with `digest` and `rows` if the query was answered at once."""

    status: Status
    digest: ResultDigest | None = None
    rows: tuple[Json, ...] = ()


class _Unanswered(NamedTuple):
    """A request that was sent and got no receipt. A retry sends the same message, so there is one result_id."""

    descriptor: QueryDescriptor
    subject_id: str
    received_at: int


class ServiceStopped(Exception):
    """Reason of an execution stopped by the end of the service: its next start continues it."""


class Execution:
    """An execution in progress. Belongs to the event loop of the service."""

    def __init__(self, request: RecordedRequest) -> None:
        self.request = request
        self.control = ExecutionControl(request.result_id, pool=request.subject_id)
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done when it has a place
        self.is_recording = False  # its end is on the way to the log

    def stop(self, reason: Exception) -> None:
        """Stop at the next task, or at once if the execution has not begun."""
        self.control.stop(reason)
        if not self.turn.done():
            self.turn.set_exception(reason)
            self.turn.exception()  # retrieved, so that asyncio does not report it


class QueryService:
    """One log, one store. Created by `open`; `aclose` stops executions, and a later start continues them."""

    def __init__(self, client: Client, store: ResultStore, principals: Principals, settings: ServiceSettings) -> None:
        self._client, self._store, self._settings = client, store, settings
        self.principals = principals
        self._history = QueryHistory(
            settings.authors | {client.client_id}, store.history_path, inputs=_inputs_of(client)
        )
        self._executions: dict[str, tuple[Execution, asyncio.Task[None]]] = {}  # that have not ended, by result_id
        self._slots = FairSlots(settings.workers)
        self._submitting = asyncio.Lock()  # makes the lookup and the record of a query_id one step
        self._unanswered: dict[str, _Unanswered] = {}  # requests whose receipt did not come, by query_id
        self._settling: asyncio.Task[None] | None = None  # records them again; at most one, and None before the first
        self._unrecorded: dict[str, Draft] = {}  # ends that the log did not take, by result_id
        self._failures: dict[str, Exception] = {}  # why, where such an end is a failure
        self._retries: dict[str, asyncio.TimerHandle] = {}  # when they are recorded again
        self.retention = ResultRetention(store, keep_bytes=settings.keep_bytes, keep_seconds=settings.keep_seconds)
        self._sweeping: asyncio.Task[None] | None = None
        self.metrics = ServiceMetrics()

    @classmethod
    async def open(
        cls, client: Client, store: ResultStore, principals: Principals, settings: ServiceSettings
    ) -> "QueryService":
        """Read the history, record prepared ends, and continue unfinished queries."""
        service = cls(client, store, principals, settings)
        for stream in (*_STREAMS, ACCESSES):
            await client.recover(stream)  # records sealed without an answer
        await service._check_history()
        await service._read_history(_STREAMS)
        if service._history.erased:
            words = f"{service._history.erased} entries of the query streams were erased before they were read"
            line(_log, "start", f"{words}: their queries are not known", level=logging.WARNING)
        for request in service._history.open_requests():
            service._settle(request)
        for result_id in store.result_ids():
            recorded = service._history.results.get(result_id)
            if recorded is not None and result_id not in service._executions:
                service._settle(recorded)
        service._remove_results()
        service._sweeping = asyncio.create_task(service._sweep(), name="results to remove")
        return service

    async def _check_history(self) -> None:
        """Clear the stored history if it was made from another log."""
        epochs = {}
        for stream in _STREAMS:
            for label, epoch in (await self._client.labels_of(stream)).items():
                epochs[label] = stream, epoch
        for label, (upto, root) in self._history.cuts().items():
            stream, epoch = epochs.get(label, (REQUESTS, -1))
            try:
                receipt = None if epoch < 0 else await self._client.receipt(stream, upto, epoch=epoch)
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
                receipt = None
            if receipt is None or receipt.mmr_root != root:
                line(_log, "start", "the kept history is of another log: reading all of it", level=logging.WARNING)
                self._history.forget()
                return

    async def _read_history(self, streams: Sequence[str]) -> None:
        """Add new entries of the streams, behind those known and those that the hub has erased."""
        for stream in streams:
            after = {label: upto for label, (upto, _) in self._history.cuts().items()}
            batch: list[Entry | ErasedRange] = []
            async with contextlib.aclosing(self._client.read_kept(stream, after=after)) as items:
                async for item in items:
                    batch.append(item)
                    if len(batch) >= _BATCH:
                        self._add_history(batch)
                        batch.clear()
            self._add_history(batch)

    def _add_history(self, batch: Sequence[Entry | ErasedRange]) -> None:
        with self._history.batch():
            for item in batch:
                if isinstance(item, ErasedRange):
                    self._history.erase(item.label, item.first, item.last)
                    continue
                if item.event is not None:
                    self._history.add(item.event)
                self._history.cut(item.receipt.label, item.seq, item.receipt.mmr_root)

    def _settle(self, request: RecordedRequest) -> None:
        """Make the store agree with the log, and execute requests that have no end in either."""
        result_id, store = request.result_id, self._store
        if not store.has_result(result_id):
            if result_id in self._history.digests or result_id in self._history.failures:
                return  # ended elsewhere, or its rows are gone: the log still has the digest
            store.adopt(request.descriptor, result_id)
        if store.status(result_id).state in ("completed", "failed"):
            store.discard_failed(result_id)
        elif (error_code := self._history.failures.get(result_id)) is not None:
            store.fail(result_id, error_code, "the execution ended before the service was started again")
            self.retention.add(result_id)
        else:
            self._begin(request)

    @property
    def erased(self) -> int:
        """Number of entries of the query streams that were erased before this service read them."""
        return self._history.erased

    @property
    def running(self) -> int:
        return len(self._executions)

    async def wait_idle(self) -> None:
        """Wait until no execution is left."""
        while self._executions:
            await asyncio.wait([task for _, task in self._executions.values()])

    async def aclose(self) -> None:
        tasks = [task for task in (self._sweeping, self._settling) if task is not None]
        for task in tasks:
            task.cancel()
        for execution, task in self._executions.values():
            execution.stop(ServiceStopped())
            if execution.is_recording:
                task.cancel()
            tasks.append(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        for retry in self._retries.values():
            retry.cancel()
        self._history.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._remove_results()
            with contextlib.suppress(VeenError, OSError):  # the log cannot be read now: a later start reads more
                await self._read_history(_STREAMS)

    def _remove_results(self) -> None:
        """Remove old results. Failures are retried later; no query fails because of them."""
        try:
            self.retention.sweep()
        except (OSError, *QUERY_REFUSALS) as exc:
            line(_log, "retention", f"results cannot be removed: {exc}", level=logging.ERROR)

    def replace_principals(self, principals: Principals) -> None:
        """Replace the principals. Executions of principals that are no longer listed fail."""
        self.principals = principals
        for execution, _ in self._executions.values():
            if principals.by_subject(execution.request.subject_id) is None:
                execution.stop(_gone(execution.request))

    # --- submit --------------------------------------------------------------------------------------------

    async def submit(self, principal: QueryPrincipal, data: bytes) -> QuerySubmission:
        """Record a query and execute it. The same query of the same principal again is the first one (D-133)."""
        descriptor, _ = normalise(data)
        principal.check(descriptor)
        api.check_scope(descriptor, self._settings.keys)
        async with self._submitting:
            request = await self._accept_request(principal, descriptor)
        result_id = request.result_id
        if result_id in self._executions and await self._is_small(descriptor):
            await self._wait_for_end(result_id)
        status = self.status(principal, result_id)
        if status.state == "completed":
            page = self._page(result_id, 0, DEFAULT_LIMIT)
            if not page.has_more:
                await self._audit(principal, request, page.digest)
                self.metrics.count_delivery(len(page.rows))
                return QuerySubmission(status=status, digest=page.digest, rows=page.rows)
        if status.state == "failed":
            kind = QueryCancelled if status.error_code == QueryCancelled.error_code else ExecutionFailed
            raise kind(f"result {result_id}: {status.message}")
        return QuerySubmission(status=status)

    async def _accept_request(self, principal: QueryPrincipal, descriptor: QueryDescriptor) -> RecordedRequest:
        query_id, subject_id = descriptor.query_id, principal.subject_id
        earlier = self._history.requests.get(query_id)
        unanswered = self._unanswered.get(query_id)  # it may be in the log already, so the same message is sent
        for before in (earlier, unanswered):
            if before is not None and (before.subject_id, before.descriptor) != (subject_id, descriptor):
                raise DuplicateQuery(f"query_id {query_id} was used before")
        if earlier is not None:
            return earlier
        if unanswered is not None:
            await self._catch_up()
            if (request := self._history.requests.get(query_id)) is not None:
                return request
        else:
            self._check_room(subject_id)
            unanswered = self._unanswered[query_id] = _Unanswered(descriptor, subject_id, self._settings.now())
        return await self._record_request(unanswered)

    async def _catch_up(self) -> None:
        """Find the requests without a receipt that the log has, and start their executions.

        A sealed request is sent with the next message of the stream, so it may be in the log although its own call
        failed. Only requests that the log does not have afterwards are recorded again. The caller holds `_submitting`.
        """
        try:
            async with asyncio.timeout(self._settings.record_seconds):
                await self._client.recover(REQUESTS)
                await self._read_history([REQUESTS])
        except (VeenError, OSError, TimeoutError) as exc:
            self._record_requests_later()
            raise Unavailable(f"the log cannot be read: {str(exc) or type(exc).__name__}") from exc
        for query_id in list(self._unanswered):
            if (request := self._history.requests.get(query_id)) is not None:
                del self._unanswered[query_id]
                self._adopt(request)

    async def _record_request(self, unanswered: _Unanswered) -> RecordedRequest:
        """Record a request, and begin its execution when the log has it. The caller holds `_submitting`."""
        descriptor, subject_id, received_at = unanswered
        draft = make_submitted(
            descriptor,
            subject_id=subject_id,
            principal_id=self._client.client_id,
            received_at=received_at,
            origin=_ORIGIN,
        )
        try:
            msg_id, seq = await self._record(REQUESTS, draft, once=True)
        except Unavailable:
            self._record_requests_later()
            raise
        del self._unanswered[descriptor.query_id]
        request = RecordedRequest(descriptor=descriptor, subject_id=subject_id, msg_id=msg_id, stream_seq=seq)
        self._history.add_request(request)
        self._adopt(request)
        return request

    def _adopt(self, request: RecordedRequest) -> None:
        """Execute a request that is now in the log."""
        self._store.adopt(request.descriptor, request.result_id)
        self.metrics.submitted += 1
        line(_log, "submit", "recorded", result_id=request.result_id)
        self._begin(request)

    def _record_requests_later(self) -> None:
        """Record requests without a receipt again after a while, whether or not their clients come back.

        Otherwise an outage of the hub would leave the room of `max_waiting` full of them for good.
        """
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._record_requests(), name="requests without a receipt")

    async def _record_requests(self) -> None:
        while self._unanswered:
            await asyncio.sleep(self._settings.retry_seconds)
            async with self._submitting:
                with contextlib.suppress(Unavailable):  # the log still takes none
                    await self._catch_up()
                    for unanswered in list(self._unanswered.values()):
                        await self._record_request(unanswered)

    def _check_room(self, subject_id: str) -> None:
        """Raise Unavailable if too many queries are unfinished; one subject gets at most half of the room."""
        most = self._settings.max_waiting
        subjects = [execution.request.subject_id for execution, _ in self._executions.values()]
        subjects += [unanswered.subject_id for unanswered in self._unanswered.values()]
        own = subjects.count(subject_id)
        if len(subjects) >= most or own >= (most + 1) // 2:
            raise Unavailable(f"{len(subjects)} queries have not ended yet, {own} of yours: try again later")

    async def _is_small(self, descriptor: QueryDescriptor) -> bool:
        def entries() -> int:
            prefix = plan_query(self._settings.data_dir, descriptor, identity=self._settings.identity)
            return sum(part.entries for part in prefix.slices)

        try:
            return await asyncio.to_thread(entries) <= self._settings.sync_entries
        except VeenError:
            return True  # the execution fails at once, and says why

    # --- execute -------------------------------------------------------------------------------------------

    def _begin(self, request: RecordedRequest) -> Execution:
        if (retry := self._retries.pop(request.result_id, None)) is not None:
            retry.cancel()
        execution = Execution(request)
        task = asyncio.create_task(self._execute(execution), name=f"query {request.result_id}")
        self._executions[request.result_id] = execution, task
        task.add_done_callback(lambda _: self._executions.pop(request.result_id, None))
        return execution

    async def _wait_for_end(self, result_id: str) -> None:
        """Wait for an execution; cancelling the caller does not cancel it."""
        if (entry := self._executions.get(result_id)) is not None:
            await asyncio.wait([entry[1]])

    async def _execute(self, execution: Execution) -> None:
        request, result_id = execution.request, execution.request.result_id
        try:
            if (failure := self._failures.get(result_id)) is not None:
                raise failure
            digest = self._store.load_prepared(result_id)
            if digest is None:
                digest = await self._answer_in_thread(execution)
            execution.is_recording = True  # a stop comes too late from here on: the digest may reach the log
            await self._record_digest(digest)
            self._store.complete_prepared(result_id)
            self._on_end(result_id, "completed")
            line(_log, "execute", "completed", result_id=result_id, rows=digest.row_count)
        except ServiceStopped:
            line(_log, "execute", "stopped; the next start continues", result_id=result_id)
        except Unavailable as exc:  # the log cannot be written: pending, until it can
            line(_log, "execute", f"waits for the log: {exc}", level=logging.WARNING, result_id=result_id)
            self._retry_later(request)
        except Exception as exc:
            if not isinstance(exc, VeenError):
                _log.exception("the execution of %s failed", result_id)  # a defect; clients see its type alone
            execution.is_recording = True
            await self._fail(request, exc)

    def _retry_later(self, request: RecordedRequest) -> None:
        loop = asyncio.get_running_loop()
        self._retries[request.result_id] = loop.call_later(self._settings.retry_seconds, self._begin, request)

    def _on_end(self, result_id: str, how: str) -> None:
        self.metrics.count_end(how)
        self.retention.add(result_id)
        self._remove_results()

    async def _answer_in_thread(self, execution: Execution) -> ResultDigest:
        """Answer the query in a thread, once there is a place, within `max_seconds`."""
        request, control, most = execution.request, execution.control, self._settings.max_seconds
        async with self._slots.place(request.subject_id, execution.turn):
            control.check()
            self._store.reset(request.result_id)
            begin = time.perf_counter()
            late = ExecutionFailed(f"the execution took more than the {most:g} s that it may take")
            alarm = asyncio.get_running_loop().call_later(most, control.stop, late)
            try:
                return await asyncio.to_thread(self._answer, request, control)
            finally:
                alarm.cancel()
                self.metrics.execution.observe(time.perf_counter() - begin)

    def _answer(self, request: RecordedRequest, control: ExecutionControl) -> ResultDigest:
        """Answer the query. Runs in a thread."""
        settings, result_id = self._settings, request.result_id
        principal = self.principals.by_subject(request.subject_id)
        if principal is None:
            raise _gone(request)
        principal.check(request.descriptor)
        api.check_scope(request.descriptor, settings.keys)
        with self._store.start(result_id) as writer:
            outcome = api.answer_into(
                _Bounded(writer, principal.max_rows),
                settings.data_dir,
                request.descriptor,
                result_id=result_id,
                keys=settings.keys,
                engine=settings.engine,
                identity=settings.identity,
                spark=settings.spark,
                now=settings.now,
                control=control,
            )
        self._store.prepare(result_id, outcome.digest, outcome.coverage)
        return outcome.digest

    async def _record_digest(self, digest: ResultDigest) -> None:
        if (recorded := self._history.digests.get(digest.result_id)) is not None:  # before a crash
            if recorded != digest:
                raise ExecutionFailed(f"result {digest.result_id}: the log has another digest of it than was made now")
            return
        draft = make_result(
            digest,
            subject_id=self._settings.subject_id,
            principal_id=self._client.client_id,
            answered_at=self._settings.now(),
            origin=_ORIGIN,
        )
        await self._record_end(RESULTS, digest.result_id, draft)
        self._history.add_digest(digest)

    async def _fail(self, request: RecordedRequest, exc: Exception) -> None:
        error_code, message = api.failure_of(exc)
        draft = make_failed(
            request.descriptor.query_id,
            request.result_id,
            error_code,
            subject_id=request.subject_id,
            principal_id=self._client.client_id,
            failed_at=self._settings.now(),
            origin=_ORIGIN,
        )
        try:
            await self._record_end(EXECUTIONS, request.result_id, draft)
        except Unavailable as unavailable:
            words = f"its failure is not recorded: {unavailable}"
            line(_log, "execute", words, level=logging.WARNING, result_id=request.result_id, error_code=error_code)
            self._failures[request.result_id] = exc
            self._retry_later(request)
            return
        self._failures.pop(request.result_id, None)
        self._history.add_failure(request.result_id, error_code)
        self._store.fail(request.result_id, error_code, message)
        self._on_end(request.result_id, "cancelled" if isinstance(exc, QueryCancelled) else "failed")
        line(_log, "execute", "failed", result_id=request.result_id, error_code=error_code)

    async def _record_end(self, stream: str, result_id: str, draft: Draft) -> None:
        """Record an end once: an unconfirmed one may be in the log, and is sent again as it was sealed."""
        draft = self._unrecorded.setdefault(result_id, draft)
        await self._record(stream, draft, once=True)
        del self._unrecorded[result_id]

    async def cancel(self, principal: QueryPrincipal, result_id: str) -> Status:
        """Cancel a query of this principal: failed, with the code `cancelled`. An earlier end is not changed.

        A query whose digest is on its way to the log is completed by it. Raise Unavailable if the end cannot be
        recorded: the execution is stopped then, and the call may be repeated.
        """
        request = self._request(principal, result_id)
        if request.subject_id != principal.subject_id:
            raise ForbiddenScope(f"result {result_id}: only its submitter may cancel the query")
        if self.status(principal, result_id).state in ("completed", "failed"):
            return self.status(principal, result_id)
        execution = entry[0] if (entry := self._executions.get(result_id)) is not None else self._begin(request)
        execution.stop(QueryCancelled("the submitter cancelled the query"))
        await self._wait_for_end(result_id)
        status = self.status(principal, result_id)
        if status.state not in ("completed", "failed"):
            raise Unavailable(f"result {result_id} is stopped, but the log does not take the record: cancel it again")
        return status

    # --- deliver -------------------------------------------------------------------------------------------

    def _request(self, principal: QueryPrincipal, result_id: str) -> RecordedRequest:
        request = self._history.results.get(result_id)
        if request is None or not principal.may_see(request.subject_id):
            raise QueryNotFound(f"there is no result {result_id}")
        return request

    def _deliverable(self, principal: QueryPrincipal, result_id: str) -> RecordedRequest:
        """Return a request whose result may be delivered: the scope of the caller may have become smaller (D-190)."""
        request = self._request(principal, result_id)
        principal.check_scope(request.descriptor)
        return request

    def status(self, principal: QueryPrincipal, result_id: str) -> Status:
        request = self._request(principal, result_id)
        if self._store.has_result(result_id):
            status, entry = self._store.status(result_id), self._executions.get(result_id)
            return status if entry is None else replace(status, progress=entry[0].control.progress)
        return Status(
            query_id=request.descriptor.query_id,
            result_id=result_id,
            state="completed" if result_id in self._history.digests else "failed",
            error_code=self._history.failures.get(result_id),
        )

    async def result(self, principal: QueryPrincipal, result_id: str, offset: int, limit: int) -> Mapping[str, Json]:
        """Return a page of rows. If the delivery cannot be recorded, no row is sent (D-135)."""
        request = self._deliverable(principal, result_id)
        page = self._page(result_id, offset, limit)
        await self._audit(principal, request, page.digest)
        self.metrics.count_delivery(len(page.rows))
        return page.to_json()

    def _page(self, result_id: str, offset: int, limit: int) -> ResultPage:
        self._check_kept(result_id)
        return self._store.page(result_id, offset, limit)

    def _check_kept(self, result_id: str) -> None:
        """Raise QueryNotFound if a result was removed."""
        if not self._store.has_result(result_id):
            raise QueryNotFound(
                f"the rows of {result_id} are not kept any more; the log has the digest. "
                "Submit the query again with another query_id"
            )

    def coverage(self, principal: QueryPrincipal, result_id: str) -> Json:
        """Return the coverage of a result: with it any holder of the log can repeat the query."""
        self._deliverable(principal, result_id)
        self._check_kept(result_id)
        return self._store.coverage(result_id)

    def descriptor(self, principal: QueryPrincipal, query_id: str) -> Mapping[str, Json]:
        """Return the descriptor of a query, and the place of its record in the log (QRY-24)."""
        request = self._history.requests.get(query_id)
        if request is None or not principal.may_see(request.subject_id):
            raise QueryNotFound(f"there is no query {query_id}")
        return {
            "descriptor": request.descriptor.to_json(),
            "record_event": {
                "stream": REQUESTS,
                "seq": request.stream_seq,
                "hub_id": self._client.hub_id.hex(),
                "receipt_id": f"rcpt-{request.msg_id.hex()}",
            },
        }

    async def _audit(self, principal: QueryPrincipal, request: RecordedRequest, digest: ResultDigest) -> None:
        scope = request.descriptor.scope
        draft = queryaudit.audit(
            principal.client_id,
            canonical.encode(list(scope)).decode(),
            self.principals.class_of(scope),
            query_parameters=request.descriptor.to_bytes(),
            result_digest=sha256(digest.to_bytes()).digest(),  # D-136
            request_time=self._settings.now(),
        )
        await self._record(ACCESSES, draft)

    # --- the log -------------------------------------------------------------------------------------------

    async def _record(self, stream: str, draft: Draft, *, once: bool = False) -> tuple[bytes, int]:
        """Record a draft; return msg_id and position of the verified receipt. Raise Unavailable otherwise.

        `once`: an equal record that was sealed before is this one.
        """
        try:
            async with asyncio.timeout(self._settings.record_seconds):
                sent = await self._client.send(stream, draft.body, schema=draft.schema, once=once)
        except (VeenError, OSError, TimeoutError) as exc:
            self.metrics.unrecorded += 1
            raise Unavailable(f"the log does not take the record: {str(exc) or type(exc).__name__}") from exc
        return sent.receipt.leaf_hash, sent.seq


def _inputs_of(client: Client) -> str:
    """Return the hub and the read keys that decide the contents of a history."""
    keys = sorted(keys.reader_pk.hex() for stream in _STREAMS for keys in client.keyring.readers(stream))
    return " ".join((client.hub_id.hex(), *keys))


def _gone(request: RecordedRequest) -> ExecutionFailed:
    return ExecutionFailed(f"{request.subject_id} may not ask any more")


class _Bounded:
    """A sink that fails a result with too many rows."""

    def __init__(self, sink: ResultSink, max_rows: int) -> None:
        self._sink, self._left, self._max_rows = sink, max_rows, max_rows

    def row(self, row: bytes) -> None:
        if not self._left:
            raise ExecutionFailed(f"the result has more than the {self._max_rows} rows that this principal may get")
        self._left -= 1
        self._sink.row(row)

    def evidence(self, entry: bytes) -> None:
        self._sink.evidence(entry)
