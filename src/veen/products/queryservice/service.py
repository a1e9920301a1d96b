"""Submit, execute, deliver. Whatever is said to a client stands in the log first.

submit    normalise, check, record query.submitted, wait for its receipt; then execute
execute   rows, coverage and digest durable in the store; record query.result, wait for its receipt; then COMPLETED
deliver   record query.audit.v1, wait for its receipt; then the rows leave

A crash between any two of these steps loses nothing: at a start the history of the log and the store say where each
query is. A digest that was prepared and not recorded is recorded; everything else runs again under its result_id. All
methods belong to one event loop; queries are answered in threads.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from veen.client.client import Client
from veen.core.errors import VeenError
from veen.core.objects.identity import HubIdentity
from veen.overlays.framework.body import Draft
from veen.overlays.operations import queryaudit
from veen.products.queryservice.history import QueryHistory, RecordedRequest
from veen.products.queryservice.principals import Principals, QueryPrincipal
from veen.query import api, canonical
from veen.query.api import Engine, Keys
from veen.query.canonical import Json
from veen.query.descriptor import QueryDescriptor, normalise
from veen.query.digest import ResultDigest
from veen.query.engine import ResultSink
from veen.query.errors import DuplicateQuery, ExecutionFailed, QueryError, QueryNotFound
from veen.query.planning import plan_query
from veen.query.recording import (
    ACCESSES,
    EXECUTIONS,
    REQUESTS,
    RESULTS,
    failed_event,
    result_event,
    submitted_event,
)
from veen.query.store import DEFAULT_LIMIT, ResultStore, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_STREAMS: Final = (REQUESTS, RESULTS, EXECUTIONS)
_ORIGIN: Final = "veen-query"


class Unavailable(QueryError):
    """The log cannot be written now, or too many queries wait: nothing was done."""

    error_code = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How queries are answered."""

    data_dir: str
    keys: Keys
    engine: Engine = "python"
    identity: HubIdentity | None = None  # the hub's, where it is pinned
    spark: "SparkSession | None" = None
    workers: int = 2  # executions at a time
    sync_entries: int = 50_000  # a query that touches no more is answered at once
    max_waiting: int = 100  # queries that have not ended, of all principals
    record_seconds: float = 30.0  # how long the log may take to accept a record
    now: Callable[[], int] = field(default=lambda: int(time.time()))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySubmission:
    """What a client is told: `digest` and `rows` if the query was answered at once."""

    status: Status
    digest: ResultDigest | None = None
    rows: tuple[Json, ...] = ()


class QueryService:
    """One log, one store. Made by `open`; `aclose` waits for no execution: a later start goes on."""

    def __init__(self, client: Client, store: ResultStore, principals: Principals, settings: ServiceSettings) -> None:
        self._client, self._store, self._principals, self._settings = client, store, principals, settings
        self._history = QueryHistory()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # executions that have not ended, by result_id
        self._slots = asyncio.Semaphore(settings.workers)
        self._submitting = asyncio.Lock()  # a query_id is looked up and recorded in one step
        self.counts: dict[str, int] = dict.fromkeys(("submitted", "completed", "failed", "refused", "rows"), 0)

    @classmethod
    async def open(
        cls, client: Client, store: ResultStore, principals: Principals, settings: ServiceSettings
    ) -> "QueryService":
        """Read what the log says, record what was prepared, and go on with what was not finished."""
        service = cls(client, store, principals, settings)
        for stream in (*_STREAMS, ACCESSES):
            await client.recover(stream)  # records that were sealed and not answered
        for stream in _STREAMS:
            async with contextlib.aclosing(client.read(stream)) as entries:
                async for entry in entries:
                    if entry.event is not None:
                        service._history.add(entry.event)
        for request in service._history.results.values():
            service._settle(request)
        return service

    def _settle(self, request: RecordedRequest) -> None:
        """Make the store agree with the log, and execute what has no end in either."""
        result_id, store = request.result_id, self._store
        if not store.has_result(result_id):
            if result_id in self._history.digests or result_id in self._history.failures:
                return  # ended elsewhere, or its rows are gone: the log still has the digest
            store.adopt(request.descriptor, result_id)
        if store.status(result_id).state in ("completed", "failed"):
            return
        if (error_code := self._history.failures.get(result_id)) is not None:
            store.fail(result_id, error_code, "the execution failed before the service was started again")
        else:
            self._begin(request)

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- submit --------------------------------------------------------------------------------------------

    async def submit(self, principal: QueryPrincipal, data: bytes) -> QuerySubmission:
        """Record a query and execute it. The same query of the same principal again is the first one (D-133)."""
        descriptor, _ = normalise(data)
        principal.check(descriptor)
        api.check_scope(descriptor, self._settings.keys)
        async with self._submitting:
            request = await self._recorded(principal, descriptor)
        result_id = request.result_id
        if (task := self._tasks.get(result_id)) is not None and await self._is_small(descriptor):
            await asyncio.wait([task])
        status = self.status(principal, result_id)
        if status.state == "completed":
            page = self._store.page(result_id, 0, DEFAULT_LIMIT)
            if not page.has_more:
                await self._audit(principal, request, page.digest)
                self.counts["rows"] += len(page.rows)
                return QuerySubmission(status=status, digest=page.digest, rows=page.rows)
        if status.state == "failed":
            raise ExecutionFailed(f"result {result_id}: {status.message}")
        return QuerySubmission(status=status)

    async def _recorded(self, principal: QueryPrincipal, descriptor: QueryDescriptor) -> RecordedRequest:
        earlier = self._history.requests.get(descriptor.query_id)
        if earlier is not None:
            same = earlier.subject_id == principal.subject_id and earlier.descriptor == descriptor
            if not same:
                raise DuplicateQuery(f"query_id {descriptor.query_id} was used before")
            return earlier
        if len(self._tasks) >= self._settings.max_waiting:
            raise Unavailable(f"{len(self._tasks)} queries have not ended yet: try again later")
        draft = submitted_event(
            descriptor,
            subject_id=principal.subject_id,
            principal_id=self._client.client_id,
            received_at=self._settings.now(),
            origin=_ORIGIN,
        )
        msg_id, seq = await self._record(REQUESTS, draft)
        request = RecordedRequest(descriptor=descriptor, subject_id=principal.subject_id, msg_id=msg_id, stream_seq=seq)
        self._history.add_request(request)
        self._store.adopt(descriptor, request.result_id)
        self.counts["submitted"] += 1
        self._begin(request)
        return request

    async def _is_small(self, descriptor: QueryDescriptor) -> bool:
        def entries() -> int:
            prefix = plan_query(self._settings.data_dir, descriptor, identity=self._settings.identity)
            return sum(part.entries for part in prefix.slices)

        try:
            return await asyncio.to_thread(entries) <= self._settings.sync_entries
        except VeenError:
            return True  # the execution fails at once, and says why

    # --- execute -------------------------------------------------------------------------------------------

    def _begin(self, request: RecordedRequest) -> None:
        task = asyncio.create_task(self._execute(request), name=f"query {request.result_id}")
        self._tasks[request.result_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.result_id, None))

    async def _execute(self, request: RecordedRequest) -> None:
        result_id = request.result_id
        async with self._slots:
            try:
                digest = self._store.prepared(result_id)
                if digest is None:
                    self._store.reset(result_id)
                    digest = await asyncio.to_thread(self._answer, request)
                await self._record_digest(request, digest)
                self._store.complete_prepared(result_id)
                self.counts["completed"] += 1
            except Unavailable as exc:  # the log cannot be written: pending, until the service starts again
                _log.warning("result %s waits for the log: %s", result_id, exc)
            except Exception as exc:
                if not isinstance(exc, VeenError):
                    _log.exception("the execution of %s failed", result_id)  # a defect; clients see its type alone
                await self._fail(request, exc)

    def _answer(self, request: RecordedRequest) -> ResultDigest:
        """Runs in a thread."""
        settings, result_id = self._settings, request.result_id
        principal = self._principals.by_subject(request.subject_id)
        if principal is None:
            raise ExecutionFailed(f"{request.subject_id} may not ask any more")
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
            )
        self._store.prepare(result_id, outcome.digest, outcome.coverage)
        return outcome.digest

    async def _record_digest(self, request: RecordedRequest, digest: ResultDigest) -> None:
        if digest.result_id in self._history.digests:  # recorded before a crash
            return
        draft = result_event(
            digest,
            subject_id=request.subject_id,
            principal_id=self._client.client_id,
            answered_at=self._settings.now(),
            origin=_ORIGIN,
        )
        await self._record(RESULTS, draft)
        self._history.digests[digest.result_id] = digest

    async def _fail(self, request: RecordedRequest, exc: Exception) -> None:
        error_code, message = api.failure_of(exc)
        draft = failed_event(
            request.descriptor.query_id,
            request.result_id,
            error_code,
            subject_id=request.subject_id,
            principal_id=self._client.client_id,
            failed_at=self._settings.now(),
            origin=_ORIGIN,
        )
        try:
            await self._record(EXECUTIONS, draft)
        except Unavailable as unavailable:
            _log.warning("the failure of %s is not recorded: %s", request.result_id, unavailable)
            return
        self._history.failures[request.result_id] = error_code
        self._store.fail(request.result_id, error_code, message)
        self.counts["failed"] += 1

    # --- deliver -------------------------------------------------------------------------------------------

    def _request(self, principal: QueryPrincipal, result_id: str) -> RecordedRequest:
        request = self._history.results.get(result_id)
        if request is None or not principal.may_see(request.subject_id):
            raise QueryNotFound(f"there is no result {result_id}")
        return request

    def status(self, principal: QueryPrincipal, result_id: str) -> Status:
        request = self._request(principal, result_id)
        if self._store.has_result(result_id):
            return self._store.status(result_id)
        return Status(
            query_id=request.descriptor.query_id,
            result_id=result_id,
            state="completed" if result_id in self._history.digests else "failed",
            error_code=self._history.failures.get(result_id),
        )

    async def result(self, principal: QueryPrincipal, result_id: str, offset: int, limit: int) -> Mapping[str, Json]:
        """A page of rows. If the delivery cannot be recorded, no row leaves (D-135)."""
        request = self._request(principal, result_id)
        if not self._store.has_result(result_id):
            raise QueryNotFound(f"the rows of {result_id} are not kept any more; the log has the digest")
        page = self._store.page(result_id, offset, limit)
        await self._audit(principal, request, page.digest)
        self.counts["rows"] += len(page.rows)
        return page.to_json()

    def coverage(self, principal: QueryPrincipal, result_id: str) -> Json:
        """What a result covers: with it anyone who has the log executes the query again."""
        self._request(principal, result_id)
        return self._store.coverage(result_id)

    def descriptor(self, principal: QueryPrincipal, query_id: str) -> Mapping[str, Json]:
        """What was asked, and where that stands in the log (QRY-24)."""
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
            self._principals.class_of(scope),
            query_parameters=request.descriptor.to_bytes(),
            result_digest=sha256(digest.to_bytes()).digest(),  # D-136
            request_time=self._settings.now(),
        )
        await self._record(ACCESSES, draft)

    # --- the log -------------------------------------------------------------------------------------------

    async def _record(self, stream: str, draft: Draft) -> tuple[bytes, int]:
        """msg_id and position, once the receipt is verified; Unavailable otherwise."""
        try:
            async with asyncio.timeout(self._settings.record_seconds):
                sent = await self._client.send(stream, draft.body, schema=draft.schema)
        except (VeenError, OSError, TimeoutError) as exc:
            self.counts["refused"] += 1
            raise Unavailable(f"the log does not take the record: {str(exc) or type(exc).__name__}") from exc
        return sent.receipt.leaf_hash, sent.seq


class _Bounded:
    """A sink that ends a result with too many rows."""

    def __init__(self, sink: ResultSink, max_rows: int) -> None:
        self._sink, self._left, self._max_rows = sink, max_rows, max_rows

    def row(self, row: bytes) -> None:
        if not self._left:
            raise ExecutionFailed(f"the result has more than the {self._max_rows} rows that this principal may get")
        self._left -= 1
        self._sink.row(row)

    def verified(self, entry: bytes) -> None:
        self._sink.verified(entry)
