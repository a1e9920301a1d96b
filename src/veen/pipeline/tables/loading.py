"""Loading: entries of a log become rows of bronze and silver, each exactly once.

The manifest knows how far each label was loaded. A load reads what lies behind that, writes files, and commits them
together with the new heads; so whatever is repeated, interrupted or run twice, a row is there once. Tasks are pure
functions of a job and a part of the log: Spark runs them, or one process does.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from veen.core.hubkeys import HubIdentity
from veen.pipeline import bronze
from veen.pipeline.bronze import Level
from veen.pipeline.columns import ENTRIES, Column, arrow_schema, chosen
from veen.pipeline.events import EventJob, EventWork, event_batches, timed_tasks
from veen.pipeline.files import absolute, open_fs
from veen.pipeline.inventory import pin
from veen.pipeline.opening import Clock
from veen.pipeline.plan import Piece, budget
from veen.pipeline.prefix import Place, Prefix, make_prefix
from veen.pipeline.query.keys import KeyFile
from veen.pipeline.session import described
from veen.pipeline.tables.errors import LoadFailed, LogMoved, OtherHub
from veen.pipeline.tables.log import TableLog
from veen.pipeline.tables.manifest import Change, DataFile, Head, State
from veen.pipeline.tables.parts import TARGET_BYTES, Writer
from veen.pipeline.tables.schema import BRONZE, arrow_of
from veen.pipeline.tables.store import TableStore
from veen.pipeline.works import over
from veen.storage.fs import Fs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Engine", "LoadJob", "Loaded", "commit_prefix", "load", "load_task", "run_tasks"]

Engine = Literal["python", "spark"]

LOADED: Final = ("bronze", "silver")
MAX_ENTRIES: Final = 5_000_000  # of one commit: what a crash can cost
RESULTS: Final = (
    Column("kind", "STRING", pa.string(), "file, or head"),
    Column("name", "STRING", pa.string(), "the table, or the label"),
    Column("value", "STRING", pa.string(), "JSON"),
)
_DERIVED: Final = ("ts", "ok", "reason")
_READ: Final = (
    *chosen([column.name for column in BRONZE if column.name not in _DERIVED], ENTRIES),
    *chosen(["ok"], ENTRIES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """What every task knows. A path of keys, and no key (D-120)."""

    uri: str
    to: TableStore
    keys: KeyFile
    level: Level = "hash"
    identity: HubIdentity | None = None
    target_bytes: int = TARGET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a load has done."""

    version: int
    entries: int = 0
    commits: int = 0
    files: int = 0
    heads: Mapping[str, Head] = field(default_factory=dict)


# --- tasks -------------------------------------------------------------------------------------------------------


def load_task(job: LoadJob, works: Sequence[EventWork]) -> Iterator[pa.RecordBatch]:
    """Write the rows of some works; what comes out says which files, and how far the time of labels went."""
    store = job.to
    heads: dict[str, Head] = {}
    results: list[dict[str, str]] = []
    for table, batches in (("bronze", _bronze(job, works)), ("silver", _silver(job, works))):
        writer = Writer(store, table, target_bytes=job.target_bytes)
        for batch in batches:
            writer.add(batch)
            if table == "bronze" and batch.num_rows:
                label, head = _head_of(batch)
                heads[label] = heads.get(label, head).later(head)
        results += ({"kind": "file", "name": table, "value": json.dumps(one.to_json())} for one in writer.done())
    results += ({"kind": "head", "name": label, "value": json.dumps(head)} for label, head in heads.items())
    yield pa.RecordBatch.from_pylist(results, schema=arrow_schema(RESULTS))


def _head_of(batch: pa.RecordBatch) -> tuple[str, Head]:
    """How far a batch goes; it is of one label and in its order."""
    seqs, roots = batch.column("stream_seq"), batch.column("mmr_root")
    known = np.flatnonzero(roots.is_valid().to_numpy(zero_copy_only=False))
    head = Head(seqs[-1].as_py(), batch.column("ts")[-1].as_py())
    if known.size:
        head = head._replace(root_seq=seqs[int(known[-1])].as_py(), mmr_root=roots[int(known[-1])].as_py().hex())
    return batch.column("label")[0].as_py().hex(), head


def _bronze(job: LoadJob, works: Sequence[EventWork]) -> Iterator[pa.RecordBatch]:
    fs = open_fs(job.uri)
    for place, piece, before_ts in works:
        _check_there(fs, piece)
        yield from bronze_batches(fs, place, piece, Clock(before_ts), level=job.level, identity=job.identity)


def _check_there(fs: Fs, piece: Piece) -> None:
    """Rows stay as they were loaded, so a file that cannot be read just now must not become damage for good."""
    if piece.ref.kind in ("missing", "active"):  # an active chunk is found again under its sealed name
        return
    try:
        file = fs.open(piece.ref.path)
    except FileNotFoundError as exc:
        raise LogMoved(f"{piece.ref.path}: was there a moment ago") from exc
    try:
        file.read_at(0, 1)
    finally:
        file.close()


def _silver(job: LoadJob, works: Sequence[EventWork]) -> Iterator[pa.RecordBatch]:
    return event_batches(EventJob(job.uri, job.keys, job.level, job.identity), works)


def bronze_batches(
    fs: Fs, place: Place, piece: Piece, clock: Clock, *, level: Level = "hash", identity: HubIdentity | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of BRONZE: what the frames say, as far as they can be believed."""
    schema = arrow_of("bronze")
    stream_id = None if place.is_foreign else place.stream_id
    if piece.ref.kind == "missing":
        for first in range(piece.first, piece.last + 1, 4096):
            rows = [
                {"label": place.label, "epoch": place.epoch, "stream_id": stream_id, "stream_seq": seq}
                | {"ts": clock.ts, "ok": False, "reason": "missing"}
                for seq in range(first, min(piece.last, first + 4095) + 1)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
        return
    erased = piece.ref.kind in ("receipts", "heads")
    found = bronze.batches(fs, piece.ref, _READ, level=level, identity=identity, first=piece.first, last=piece.last)
    for batch in found:
        seqs = batch.column("stream_seq").to_numpy()
        inside = (seqs >= piece.first) & (seqs <= piece.last)
        if not inside.all():  # bytes behind the last entry, which are none
            batch = batch.filter(pa.array(inside))
        if not batch.num_rows:
            continue
        times = batch.column("hub_ts").fill_null(0).to_numpy()
        ts = np.maximum.accumulate(np.maximum(times, clock.ts))
        clock.tick(int(ts[-1]))
        known = batch.column("leaf_hash").is_valid().to_pylist()
        oks = batch.column("ok").to_pylist()
        reasons = [
            None if ok else "erased" if erased and leaf else "damaged" for ok, leaf in zip(oks, known, strict=True)
        ]
        made = {name: batch.column(name) for name in batch.schema.names} | {
            "ts": pa.array(ts, pa.int64()),
            "reason": pa.array(reasons, pa.string()),
            "stream_id": pa.array([stream_id] * batch.num_rows, pa.binary()),
            "epoch": pa.array([place.epoch] * batch.num_rows, pa.int64()),
        }
        yield pa.record_batch({name: made[name] for name in schema.names}, schema=schema)


# --- driving -----------------------------------------------------------------------------------------------------


def run_tasks(
    spark: "SparkSession | None",
    count: int,
    run: Callable[[int], Iterable[pa.RecordBatch]],
    what: str,
) -> list[dict[str, Any]]:
    """The results of tasks, of those attempts that counted."""
    if spark is None or not count:
        return [row for number in range(count) for batch in run(number) for row in batch.to_pylist()]
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from veen.pipeline.query.onspark import words_of

    try:
        with described(spark, what):
            return [row.asDict() for row in over(spark, count, run, RESULTS).collect()]
    except (PySparkException, Py4JError) as exc:
        raise LoadFailed(words_of(str(exc))) from None  # its text can be pages long


def commit_prefix(
    log: TableLog,
    state: State,
    prefix: Prefix,
    job: LoadJob,
    *,
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    kind: str = "load",
    batch: tuple[str, int] | None = None,
) -> State:
    """Load one prefix and commit it."""
    tasks = timed_tasks(spark, prefix, parts)
    found = run_tasks(spark, len(tasks), lambda number: load_task(job, tasks[number]), f"tables: {kind}")
    add: dict[str, list[DataFile]] = {table: [] for table in LOADED}
    heads: dict[str, Head] = {}
    for row in found:
        if row["kind"] == "file":
            add[row["name"]].append(DataFile.from_json(json.loads(row["value"])))
        else:
            head = Head(*json.loads(row["value"]))
            heads[row["name"]] = heads.get(row["name"], state.heads.get(row["name"], head)).later(head)
    change = Change(
        kind=kind,
        at=log.now,
        hub=prefix.identity.hub_id.hex() if prefix.identity else None,
        batch=batch,
        heads=heads,
        add={table: tuple(files) for table, files in add.items()},
    )
    return log.commit(state, change)


def load(
    path: str,
    to: str | TableStore,
    *,
    keys: KeyFile,
    engine: Engine = "spark",
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    streams: Collection[bytes] | None = None,
    verify: Level = "hash",
    max_entries: int = MAX_ENTRIES,
    target_bytes: int = TARGET_BYTES,
) -> Loaded:
    """Bring the tables at `to` up to the log at `path`; with nothing new, nothing is written.

    What was loaded stays as it is: entries that no key opened are rows with the reason `sealed`, also when a later load
    comes with more keys.
    """
    if engine == "spark" and spark is None:
        from veen.pipeline.session import spark_session

        spark = spark_session("veen-tables")
    used = spark if engine == "spark" else None
    log = TableLog(to)
    first = state = log.state()
    pinned = pin(path)
    check_hub(state, pinned.identity)
    whole = make_prefix(path, streams=streams, since=state.marks, pinned=pinned, roots=False)
    heads = {label.hex(): head for label, head in whole.heads.items()}
    job = LoadJob(
        uri=absolute(path),
        to=log.store,
        keys=keys.absolute(),
        level=verify,
        identity=pinned.identity,
        target_bytes=target_bytes,
    )
    while True:
        start = {label: state.heads[label].upto_seq for label in heads if label in state.heads}
        upto = {bytes.fromhex(label): head for label, head in budget(start, heads, max_entries).items()}
        prefix = make_prefix(path, streams=streams, since=state.marks, upto=upto, pinned=pinned, roots=False)
        if not prefix.labels:
            break
        state = commit_prefix(log, state, prefix, job, spark=used, parts=parts)
    state = log.made(state)
    return Loaded(
        version=state.version,
        entries=whole.entries,
        commits=state.version - first.version,
        files=sum(len(state.of(table)) - len(first.of(table)) for table in LOADED),
        heads=state.heads,
    )


def check_hub(state: State, identity: HubIdentity | None) -> None:
    if state.hub is not None and identity is not None and state.hub != identity.hub_id.hex():
        raise OtherHub(f"the tables are of hub {state.hub}, the log is of {identity.hub_id.hex()}")
