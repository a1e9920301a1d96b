"""Queries for programs and notebooks: run, verify, replay.

    from veen.lake.query import api
    result = api.run("./hub", {"scope": ["record/app/http"], "filter": {}, "projection": ["*"],
                               "evidence": {"mode": "full"}}, keys=keyring)
    result.digest.rows_hash, list(result.rows())
    api.verify("./hub", result, keys=keyring).ok

`engine="spark"` gives the same bytes. With a `store`, results stay and can be fetched again by their result_id.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Required, TypedDict, Unpack

from veen.client.errors import UnknownStream
from veen.client.identity.keyring import Keyring
from veen.core import canonical
from veen.core.canonical import Json
from veen.core.errors import VeenError
from veen.core.labels import stream_id_of
from veen.core.objects.identity import HubIdentity
from veen.io.places import open_fs
from veen.io.stores import TableStore
from veen.lake.log.columns import ENTRIES
from veen.lake.log.decryption import reader_of
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.keys import KeyFile, keys_for_tasks
from veen.lake.log.prefix import LabelRange, Prefix, make_prefix
from veen.lake.log.slices import Slice
from veen.lake.query.control import ExecutionControl, Progress
from veen.lake.query.descriptor import QueryDescriptor, new_result_id, normalise
from veen.lake.query.digest import ResultDigest, heads_of
from veen.lake.query.engine import LocalSource, MatchSource, QueryOutcome, ResultSink, execute, plan_query
from veen.lake.query.errors import QUERY_REFUSALS, EvidenceFailed, ExecutionFailed, ForbiddenScope, InvalidDescriptor
from veen.lake.query.evidence import Leaves
from veen.lake.query.fields import seconds_of
from veen.lake.query.recording import result_id_of
from veen.lake.query.store import ResultStore
from veen.lake.query.table_plan import PlannedSource, PlanReport, TablePlan, TableSource, log_plan, plan_tables
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Literal["python", "spark"]
ENGINES: Final[tuple[Engine, ...]] = ("python", "spark")
Keys = Keyring | KeyFile
_SAME: Final = ("query_id", "row_count", "rows_hash", "evidence_hash")  # what replays agree on (QRY-28)


class Execution(TypedDict, total=False):
    """Arguments of executing a query; only `keys` is required."""

    keys: Required[Keys]
    engine: Engine
    identity: HubIdentity | None
    spark: "SparkSession | None"


class Recorded(Protocol):
    """Record of an execution: enough to repeat it."""

    @property
    def descriptor(self) -> QueryDescriptor: ...
    @property
    def digest(self) -> ResultDigest: ...
    @property
    def coverage(self) -> Json: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A completed query. Rows are read from their store."""

    descriptor: QueryDescriptor
    digest: ResultDigest
    coverage: Json
    skipped: Mapping[str, int]  # entries in range that could be no row, by reason
    ignored_filters: tuple[str, ...]
    plan: PlanReport  # how it was answered: no part of the digest
    unknown_fields: tuple[str, ...]  # paths of conditions that no event in scope has: `unknown_fields`
    _rows: Callable[[], Iterator[bytes]]

    def rows(self) -> Iterator[dict[str, Json]]:
        """Yield rows in the order of the result; numbers are int or Decimal."""
        return (canonical.parse(row) for row in self._rows())


class _Memory:
    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def row(self, row: bytes) -> None:
        self.rows.append(row)

    def evidence(self, entry: bytes) -> None:
        """Ignore the entry; only its hash is needed."""


class _Nowhere:
    def row(self, row: bytes) -> None:
        """Ignore the row; only its hash is needed."""

    evidence = row


def run(
    data_dir: str,
    given: bytes | str | Mapping[str, Any],
    *,
    keys: Keys,
    engine: Engine = "python",
    store: ResultStore | None = None,
    identity: HubIdentity | None = None,
    result_id: str | None = None,
    spark: "SparkSession | None" = None,
    now: Callable[[], int] = lambda: int(time.time()),
    tables: str | TableStore | None = None,
) -> Result:
    """Answer a query over a data directory. Without a store, rows are held in memory.

    `keys` open the streams of the scope; a stream without a read key is ForbiddenScope. `identity` is the hub's, where
    it is pinned; without it the directory's own is trusted. `tables` are tables of the same log: entries that they are
    proven to cover are answered from them, with the same rows and digest (`Result.plan` tells which).
    """
    descriptor, ignored = normalise(given)
    result_id = result_id or new_result_id()
    check_scope(descriptor, keys)

    def execute_into(sink: ResultSink) -> QueryOutcome:
        return answer_into(
            sink,
            data_dir,
            descriptor,
            result_id=result_id,
            keys=keys,
            engine=engine,
            identity=identity,
            spark=spark,
            now=now,
            tables=tables,
            on_plan=reports.append,
        )

    reports: list[PlanReport] = []
    rows: Callable[[], Iterator[bytes]]
    if store is None:
        memory = _Memory()
        outcome = execute_into(memory)
        rows = lambda: iter(memory.rows)  # noqa: E731 - one of two ways to the rows
    else:
        store.submit(descriptor, result_id)
        try:
            with store.start(result_id) as writer:
                outcome = execute_into(writer)
            store.complete(result_id, outcome.digest, outcome.coverage)
        except Exception as exc:
            _fail(store, result_id, exc)
            raise
        rows = lambda: store.rows(result_id)  # noqa: E731 - as above
    return Result(
        descriptor=descriptor,
        digest=outcome.digest,
        coverage=outcome.coverage.value,
        skipped=outcome.coverage.skipped,
        ignored_filters=ignored,
        plan=reports[-1],
        unknown_fields=unknown_fields(
            data_dir,
            descriptor,
            outcome.digest,
            outcome.coverage.value,
            keys=keys,
            engine=engine,
            identity=identity,
            spark=spark,
        ),
        _rows=rows,
    )


def unknown_fields(
    data_dir: str,
    descriptor: QueryDescriptor,
    digest: ResultDigest,
    coverage: Json,
    *,
    keys: Keys,
    engine: Engine = "python",
    identity: HubIdentity | None = None,
    spark: "SparkSession | None" = None,
) -> tuple[str, ...]:
    """Return the paths of conditions that no event in scope has, if nothing matched the conditions.

    A misspelt path matches no event, and its answer of no rows looks like a proof of absence. The events of the scope
    and time of the query are read again for it, up to the same heads.
    """
    paths = sorted({condition.field.name for condition in descriptor.filter.where if condition.field.path})
    is_total = descriptor.aggregate is not None and not descriptor.aggregate.group_by  # a row, also over no event
    if not paths or (digest.row_count and not is_total):
        return ()
    probe, _ = normalise(
        {
            "scope": list(descriptor.scope),
            "filter": {"time": descriptor.filter.to_json()["time"]},
            "projection": ["event_type"],
            "aggregate": {"group_by": [], "metrics": ["count", *(f"min({path})" for path in paths)]},
            "evidence": {"mode": "none"},
        }
    )
    memory, control = _Memory(), ExecutionControl()
    prefix = plan_query(data_dir, probe, heads=heads_of(coverage), identity=identity)
    outcome = _execute(prefix, probe, new_result_id(), keys, engine, spark, memory, lambda: int(time.time()), control)
    row, ignored = canonical.parse(memory.rows[0]), outcome.coverage.value["values_ignored"]
    if not row["count"]:
        return ()  # no event at all: the coverage says so
    return tuple(path for path in paths if row[f"min({path})"] is None and not ignored.get(f"min({path})"))


def answer_into(
    sink: ResultSink,
    data_dir: str,
    descriptor: QueryDescriptor,
    *,
    result_id: str,
    keys: Keys,
    engine: Engine = "python",
    identity: HubIdentity | None = None,
    spark: "SparkSession | None" = None,
    now: Callable[[], int] = lambda: int(time.time()),
    tables: str | TableStore | None = None,
    on_plan: Callable[[PlanReport], None] = lambda report: None,
    control: ExecutionControl | None = None,
) -> QueryOutcome:
    """Answer a normalised query whose scope is checked, row by row into `sink`, for callers with their own store.

    `on_plan` is called with the plan, before the first row. `control` has the progress and may stop it.
    """
    control = control or ExecutionControl()
    prefix = plan_query(data_dir, descriptor, identity=identity)
    if tables is None:
        on_plan(log_plan(prefix))
        return _execute(prefix, descriptor, result_id, keys, engine, spark, sink, now, control)
    plan = plan_tables(tables, prefix, descriptor, keys.load() if isinstance(keys, KeyFile) else keys)
    on_plan(plan.report if isinstance(plan, TablePlan) else plan)
    table_plan = plan if isinstance(plan, TablePlan) else None
    return _execute(prefix, descriptor, result_id, keys, engine, spark, sink, now, control, table_plan)


def _fail(store: ResultStore, result_id: str, exc: Exception) -> None:
    store.fail(result_id, *failure_of(exc))


def failure_of(exc: Exception) -> tuple[str, str]:
    """Return the error_code and message that are stored of a failed execution."""
    if isinstance(exc, QUERY_REFUSALS):
        return exc.error_code, str(exc)
    if isinstance(exc, VeenError):
        return "execution_failed", str(exc)
    return "internal_error", type(exc).__name__  # foreign words may quote anything


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    descriptor: QueryDescriptor
    digest: ResultDigest
    coverage: Json


def load_stored(store: ResultStore, result_id: str) -> Recorded:
    """Return a stored result, to verify or replay. Raise ResultForged unless its rows match its digest."""
    store.check(result_id)
    digest = store.digest(result_id)
    return _Stored(descriptor=store.descriptor(digest.query_id), digest=digest, coverage=store.coverage(result_id))


def make_recorded(descriptor: QueryDescriptor, digest: ResultDigest) -> Recorded:
    """Make the record of a query of another zone from its two recorded events.

    It suffices to replay the query, not to verify it (QRY-28).
    """
    if descriptor.query_id != digest.query_id:
        raise InvalidDescriptor("query_id", "descriptor and digest are of two queries")
    return _Stored(descriptor=descriptor, digest=digest, coverage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two executions of one query."""

    before: ResultDigest
    after: ResultDigest
    compared: tuple[str, ...]

    @property
    def differences(self) -> tuple[str, ...]:
        return tuple(name for name in self.compared if getattr(self.before, name) != getattr(self.after, name))

    @property
    def ok(self) -> bool:
        return not self.differences


def verify(data_dir: str, recorded: Recorded, **how: Unpack[Execution]) -> Comparison:
    """Execute again over exactly the covered entries; an omitted, added or changed row shows.

    The roots of the coverage are compared, too: a log that was rewritten since does not pass.
    """
    heads = heads_of(recorded.coverage)
    after = _execute_again(data_dir, recorded, heads, **how)
    rooted = () if recorded.digest.rows_root is None else ("rows_root",)  # absent in digests of earlier releases
    return Comparison(before=recorded.digest, after=after, compared=(*_SAME, *rooted, "coverage_hash"))


def check_fresh(
    data_dir: str, recorded: Recorded, *, identity: HubIdentity | None = None, lag_seconds: int = 60
) -> None:
    """Raise EvidenceFailed if a result omits an entry that was in the log `lag_seconds` before its execution.

    Roots and rows of a result may be true and old: a service that covers less than there was, or that answers with a
    result of last week, passes `verify`. The lag allows for entries that a copy of the log got a little later.
    """
    covered = heads_of(recorded.coverage)
    executed = seconds_of(recorded.digest.executed_at)
    for label_range in plan_query(data_dir, recorded.descriptor, identity=identity).labels:
        first_left_out = covered.get(label_range.label, 0) + 1
        entry = _entry_at(data_dir, label_range, first_left_out)
        if entry is not None and entry["hub_ts"] is not None and entry["hub_ts"] + lag_seconds < executed:
            raise EvidenceFailed(
                f"label {label_range.label.hex()}: the result covers it up to entry {first_left_out - 1}, and "
                f"entry {first_left_out} stood in the log {executed - entry['hub_ts']} s before the query was executed"
            )


def check_requested(
    data_dir: str, recorded: Recorded, record_event: Mapping[str, Json], *, lag_seconds: int = 60
) -> bool:
    """Raise EvidenceFailed if a result was executed before its request was in the log: it is an old one.

    A result_id that follows from its request (D-136) is bound to one entry, whose time the hub has set. Return False if
    this cannot be checked here: the log is not the one that the service writes to, or the result_id is arbitrary.
    """
    stream, seq, receipt_id = (record_event.get(name) for name in ("stream", "seq", "receipt_id"))
    if type(stream) is not str or type(seq) is not int or type(receipt_id) is not str:
        return False
    digest = recorded.digest
    for label_range in make_prefix(data_dir, streams={stream_id_of(stream)}, pinned=pin(data_dir), roots=False).labels:
        entry = _entry_at(data_dir, label_range, seq)
        if entry is None or entry["leaf_hash"] is None or f"rcpt-{entry['leaf_hash'].hex()}" != receipt_id:
            continue
        if result_id_of(entry["leaf_hash"]) != digest.result_id or entry["hub_ts"] is None:
            continue
        if seconds_of(digest.executed_at) + lag_seconds < entry["hub_ts"]:
            raise EvidenceFailed(
                f"result {digest.result_id} was executed at {digest.executed_at}, "
                f"{entry['hub_ts'] - seconds_of(digest.executed_at)} s before its request stood in the log"
            )
        return True
    return False


def _entry_at(data_dir: str, label_range: LabelRange, seq: int) -> dict[str, Any] | None:
    """Return hub_ts and leaf_hash of an entry; None if the range does not have it."""
    columns = tuple(column for column in ENTRIES if column.name in ("hub_ts", "leaf_hash"))
    for chunk in label_range.chunks:
        if chunk.start_seq <= seq <= min(chunk.end_seq, label_range.head):
            part = Slice.whole(chunk)._replace(first=seq, last=seq)
            for batch in batches(open_fs(data_dir), part, ReadSpec(columns=columns)):
                for row in batch.to_pylist():
                    return dict(row)
    return None


def replay(data_dir: str, recorded: Recorded, **how: Unpack[Execution]) -> Comparison:
    """Execute the same descriptor over all that this directory has now, as another zone does (QRY-28, D-110)."""
    after = _execute_again(data_dir, recorded, None, **how)
    return Comparison(before=recorded.digest, after=after, compared=_SAME)


def replay_over(prefix: Prefix, source: MatchSource, recorded: Recorded, *, leaves: Leaves) -> Comparison:
    """Execute the same descriptor in this zone over events of another zone, read elsewhere (D-110)."""
    descriptor, result_id = recorded.descriptor, recorded.digest.result_id
    outcome = execute(prefix, descriptor, result_id, source, _Nowhere(), now=lambda: int(time.time()), leaves=leaves)
    return Comparison(before=recorded.digest, after=outcome.digest, compared=_SAME)


def _execute_again(
    data_dir: str,
    recorded: Recorded,
    heads: Mapping[bytes, int] | None,
    *,
    keys: Keys,
    engine: Engine = "python",
    identity: HubIdentity | None = None,
    spark: "SparkSession | None" = None,
) -> ResultDigest:
    descriptor, digest = recorded.descriptor, recorded.digest
    check_scope(descriptor, keys)
    prefix = plan_query(data_dir, descriptor, heads=heads, identity=identity)
    now, control = lambda: int(time.time()), ExecutionControl()
    outcome = _execute(prefix, descriptor, digest.result_id, keys, engine, spark, _Nowhere(), now, control)
    return outcome.digest


def check_scope(descriptor: QueryDescriptor, keys: Keys) -> None:
    """Raise ForbiddenScope unless `keys` open every stream of the scope."""
    keyring = keys.load() if isinstance(keys, KeyFile) else keys
    for name in descriptor.scope:
        try:
            reader = reader_of(keyring, stream_id_of(name))
        except UnknownStream as exc:
            raise ForbiddenScope(f"stream {name!r} is not known or may not be read") from exc
        if not reader.keys:
            raise ForbiddenScope(f"stream {name!r} is not known or may not be read")


def _execute(
    prefix: Prefix,
    descriptor: QueryDescriptor,
    result_id: str,
    keys: Keys,
    engine: Engine,
    spark: "SparkSession | None",
    sink: ResultSink,
    now: Callable[[], int],
    control: ExecutionControl,
    plan: TablePlan | None = None,
) -> QueryOutcome:
    with _open_source(prefix, descriptor, keys, engine, spark, plan, control) as source:
        return execute(prefix, descriptor, result_id, source, sink, now=now, control=control)


@contextmanager
def _open_source(
    prefix: Prefix,
    descriptor: QueryDescriptor,
    keys: Keys,
    engine: Engine,
    spark: "SparkSession | None",
    plan: TablePlan | None,
    control: ExecutionControl,
) -> Iterator[MatchSource]:
    if engine == "python":
        keyring = keys.load() if isinstance(keys, KeyFile) else keys
        if plan is None:
            yield LocalSource(prefix, descriptor, keyring, control)
        else:
            proven = None if plan.proven is None else LocalSource(plan.proven, descriptor, keyring, control)
            table, rest = TableSource(plan.task, descriptor), LocalSource(plan.rest, descriptor, keyring, control)
            yield PlannedSource(plan, [table, rest], proven)
        return
    from veen.lake.query.on_spark import SparkSource
    from veen.lake.spark.progress import control_jobs
    from veen.lake.spark.session import spark_session

    session = spark or spark_session("veen query", log_bytes=prefix.size, register=False)

    def source(key_file: KeyFile) -> MatchSource:
        if plan is None:
            return SparkSource(session, prefix, descriptor, key_file)
        proven = None if plan.proven is None else SparkSource(session, plan.proven, descriptor, key_file)
        return PlannedSource(plan, [SparkSource(session, plan.rest, descriptor, key_file, table=plan.task)], proven)

    def report(done: int, total: int) -> None:
        control.set(Progress(done, total))

    with control_jobs(session, control.name, pool=control.pool, stopped=control.stopped, report=report):
        try:
            if isinstance(keys, KeyFile):
                yield source(keys)
                return
            # Executors of this machine read the keys of the scope; a cluster is given a KeyFile that all can reach.
            wanted = [key for name in descriptor.scope for key in keys.readers(stream_id_of(name))]
            with keys_for_tasks(wanted) as key_file:
                yield source(key_file)
        except ExecutionFailed:
            control.check()  # a job that was cancelled fails: why is known here alone
            raise
