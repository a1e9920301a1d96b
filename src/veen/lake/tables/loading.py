"""Loading: entries of a log become rows of bronze and silver, each exactly once.

The manifest has the position up to which each label was loaded. A load reads what follows, writes files, and commits
them together with the new heads; so a load that is repeated, interrupted or run twice still stores each row once. Tasks
are pure functions of a job and a part of the log, run by Spark or by one process.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veen.core.objects.identity import HubIdentity
from veen.io.local import Fs
from veen.io.places import absolute, open_fs
from veen.io.stores import TableStore
from veen.lake.log.columns import ENTRIES, Column, arrow_schema, select_columns, to_batches
from veen.lake.log.decryption import columns_of, reader_mark
from veen.lake.log.entries import Level, ReadSpec, batches
from veen.lake.log.events import SILVER, EventJob, rows_of
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import Clock, Prefix, make_prefix
from veen.lake.log.slices import Slice, budget
from veen.lake.spark.runner import collect, divide_timed
from veen.lake.tables.errors import LoadFailed, LogMoved, OtherHub
from veen.lake.tables.index import index_of, paths_after
from veen.lake.tables.manifest import Change, DataFile, TableHead, TableLog, TableState
from veen.lake.tables.parts import TARGET_BYTES, PartWriter, read_part
from veen.lake.tables.schema import BRONZE, arrow_of, definition_of, load_declarations, to_typed_batches
from veen.overlays.framework.typed_table import TypedTable
from veen.overlays.recorder.events import EVENTS_TABLE
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Engine = Literal["python", "spark"]

LOADED: Final = ("bronze", "silver")
MAX_ENTRIES: Final = 5_000_000  # of one commit: what a crash can cost
RESULTS: Final = (
    Column("kind", "STRING", pa.string(), "file, head or reader"),
    Column("name", "STRING", pa.string(), "the table, the label or the stream"),
    Column("value", "STRING", pa.string(), "JSON"),
)
_DERIVED: Final = ("ts", "ok", "reason")
_READ: Final = (
    *select_columns([column.name for column in BRONZE if column.name not in _DERIVED], ENTRIES),
    *select_columns(["ok"], ENTRIES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Arguments of every task: the path of the keys, never a key (D-120)."""

    uri: str
    to: TableStore
    keys: KeyFile
    level: Level = "hash"
    identity: HubIdentity | None = None
    target_bytes: int = TARGET_BYTES
    typed: Mapping[str, str] = field(default_factory=dict)  # typed tables and the hashes of their declarations
    indexes: tuple[str, ...] = ()  # paths of payloads that have an index


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Result of a load."""

    version: int
    entries: int = 0
    commits: int = 0
    files: int = 0
    heads: Mapping[str, TableHead] = field(default_factory=dict)


# --- tasks -------------------------------------------------------------------------------------------------------


def load_task(job: LoadJob, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Write the rows of some slices; yield the files, and the new heads of labels.

    Each entry is read and checked once: its batch gives the rows of bronze, then those of silver, then typed ones.
    """
    declared = _check_declarations(job.typed)
    names = ("bronze", "silver", *(table.name for table in declared))
    writers = {name: PartWriter(job.to, name, target_bytes=job.target_bytes, paths=job.indexes) for name in names}
    heads: dict[str, TableHead] = {}

    def add_bronze(batch: pa.RecordBatch) -> None:
        writers["bronze"].add(batch)
        if batch.num_rows:
            label, head = _head_of(batch)
            heads[label] = heads.get(label, head).later(head)

    for batch in _read_silver(job, slices, add_bronze):
        writers["silver"].add(batch)
        for name, part in to_typed_batches(batch, declared):
            writers[name].add(part)
    results = list(_file_results(writers.values()))
    results += ({"kind": "head", "name": label, "value": json.dumps(head)} for label, head in heads.items())
    results += _reader_results(job, slices)
    yield pa.RecordBatch.from_pylist(results, schema=arrow_schema(RESULTS))


def _check_declarations(typed: Mapping[str, str]) -> list[TypedTable]:
    """Return the declarations of typed tables. Raise LoadFailed if a task has other ones than the driver.

    Rows of a table that a task does not know would be lost.
    """
    tables = load_declarations()
    for name, definition in typed.items():
        if name not in tables or definition_of(tables[name]) != definition:
            raise LoadFailed(f"{name}: the overlay that declares it is missing, or another version, where a task runs")
    return [tables[name] for name in sorted(typed)]


def _file_results(writers: Iterable[PartWriter]) -> Iterator[dict[str, str]]:
    for writer in writers:
        for file in writer.finish():
            yield {"kind": "file", "name": writer.table, "value": json.dumps(file.to_json())}


def _reader_results(job: LoadJob, slices: Sequence[Slice]) -> Iterator[dict[str, str]]:
    keyring = job.keys.load()
    names = {keys.stream_id for keys in keyring.entries}
    streams = {part.stream.match_stream(names) for part in slices}
    for stream_id in sorted({stream.stream_id or b"" for stream in streams if stream is not None}):
        yield {"kind": "reader", "name": stream_id.hex(), "value": reader_mark(keyring, stream_id, job.level)}


def _head_of(batch: pa.RecordBatch) -> tuple[str, TableHead]:
    """Return label and head of a batch, which is of one label and in its order."""
    seqs, roots = batch.column("stream_seq"), batch.column("mmr_root")
    rooted = np.flatnonzero(roots.is_valid().to_numpy(zero_copy_only=False))
    head = TableHead(seqs[-1].as_py(), batch.column("ts")[-1].as_py())
    if rooted.size:
        last = int(rooted[-1])
        head = head._replace(root_seq=seqs[last].as_py(), mmr_root=roots[last].as_py().hex())
    return batch.column("label")[0].as_py().hex(), head


def _check_present(fs: Fs, part: Slice) -> Slice:
    """Raise LogMoved if the file of a slice is gone.

    Rows stay as they were loaded, so a file that cannot be read for the moment must not become permanent damage.
    """
    if part.chunk.kind in ("missing", "journal", "active"):  # an active chunk is found again under its sealed name
        return part
    try:
        file = fs.open(part.chunk.path)
    except FileNotFoundError as exc:
        raise LogMoved(f"{part.chunk.path}: was there a moment ago") from exc
    try:
        file.read_at(0, 1)
    finally:
        file.close()
    return part


def _read_silver(
    job: LoadJob, slices: Sequence[Slice], add_bronze: Callable[[pa.RecordBatch], None]
) -> Iterator[pa.RecordBatch]:
    """Yield rows of SILVER; pass those of BRONZE to `add_bronze` as they are read."""
    fs, clock = open_fs(job.uri), Clock()
    spec = ReadSpec(columns=_READ, level=job.level, identity=job.identity)
    opener = EventJob(job.uri, job.keys, job.level, job.identity).opener()

    def enter_slices() -> Iterator[Slice]:
        for part in slices:
            clock.enter(part)
            if part.is_missing:
                for batch in _bronze_of_hole(part, clock):
                    add_bronze(batch)
            yield part

    def read(part: Slice) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in columns_of(part)]
        for batch in batches(fs, _check_present(fs, part), spec):
            if (rows := _bronze_of(part, batch, clock)).num_rows:
                add_bronze(rows)
            yield batch.select(names)

    events = (event for event, _, _ in opener.entries(fs, enter_slices(), read=read))
    return to_batches(rows_of(events, opener.names), arrow_schema(SILVER))


def _bronze_of_hole(part: Slice, clock: Clock) -> Iterator[pa.RecordBatch]:
    stream = part.stream
    position = {"label": stream.label, "epoch": stream.epoch, "stream_id": _stream_id(part), "ts": clock.ts}
    rows = (position | {"stream_seq": seq, "ok": False, "reason": "missing"} for seq in part.seqs())
    return to_batches(rows, arrow_of("bronze"))


def _bronze_of(part: Slice, batch: pa.RecordBatch, clock: Clock) -> pa.RecordBatch:
    """Return rows of BRONZE from the frames of a slice, with the fields that can be trusted."""
    schema = arrow_of("bronze")
    seqs = batch.column("stream_seq").to_numpy()
    inside = (seqs >= part.first) & (seqs <= part.last)
    if not inside.all():  # bytes behind the last entry, which are none
        batch = batch.filter(pa.array(inside))
    if not batch.num_rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    times = batch.column("hub_ts").fill_null(0).to_numpy()
    ts = np.maximum.accumulate(np.maximum(times, clock.ts))
    clock.tick(int(ts[-1]))
    gone = pc.if_else(pc.is_valid(batch.column("leaf_hash")), "erased" if part.is_erased else "damaged", "damaged")
    columns = {name: batch.column(name) for name in batch.schema.names} | {
        "ts": pa.array(ts, pa.int64()),
        "reason": pc.if_else(batch.column("ok"), pa.scalar(None, pa.string()), gone),
        "stream_id": pa.repeat(pa.scalar(_stream_id(part), pa.binary()), batch.num_rows),
        "epoch": pa.repeat(pa.scalar(part.stream.epoch, pa.int64()), batch.num_rows),
    }
    return pa.record_batch({name: columns[name] for name in schema.names}, schema=schema)


def _stream_id(part: Slice) -> bytes | None:
    return None if part.stream.is_foreign else part.stream.stream_id


# --- driving -----------------------------------------------------------------------------------------------------


def commit_prefix(
    log: TableLog,
    state: TableState,
    prefix: Prefix,
    job: LoadJob,
    *,
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    kind: str = "load",
    batch: tuple[str, int] | None = None,
) -> TableState:
    """Load one prefix and commit it."""
    state = complete_typed(log, state, job.typed, spark=spark)
    tasks = divide_timed(spark, prefix, parts, failure=LoadFailed)
    results = collect(
        spark, tasks, lambda slices: load_task(job, slices), RESULTS, what=f"tables: {kind}", failure=LoadFailed
    )
    add: dict[str, list[DataFile]] = {table: [] for table in (*LOADED, *job.typed)}
    heads: dict[str, TableHead] = {}
    readers: dict[str, str] = {}
    for row in results:
        if row["kind"] == "reader":
            readers[row["name"]] = row["value"] if readers.get(row["name"], row["value"]) == row["value"] else ""
        elif row["kind"] == "file":
            add[row["name"]].append(DataFile.from_json(row["name"], json.loads(row["value"])))
        else:
            head = TableHead(*json.loads(row["value"]))
            heads[row["name"]] = heads.get(row["name"], state.heads.get(row["name"], head)).later(head)
    change = Change(
        kind=kind,
        at=log.now,
        hub=prefix.identity.hub_id.hex() if prefix.identity else None,
        batch=batch,
        heads=heads,
        add={table: tuple(files) for table, files in add.items()},
        typed=job.typed,
        readers=readers,
        indexes=job.indexes,
    )
    return log.commit(state, change)


def definitions_of_typed() -> dict[str, str]:
    """Return the typed tables that a load fills, with the hashes of their declarations."""
    return {name: definition_of(table) for name, table in load_declarations().items()}


def complete_typed(
    log: TableLog, state: TableState, typed: Mapping[str, str], *, spark: "SparkSession | None" = None
) -> TableState:
    """Derive typed tables that are new, or were declared again, from silver. Needs no keys."""
    new = {name: text for name, text in typed.items() if state.typed.get(name) != text}
    if not state.version or not new:
        return state
    store, paths = log.store, state.indexes

    def derive(file: DataFile) -> Iterator[pa.RecordBatch]:
        declared = _check_declarations(new)
        writers = {table.name: PartWriter(store, table.name, paths=paths) for table in declared}
        for name, part in to_typed_batches(read_part(store, "silver", file), declared):
            writers[name].add(part)
        yield pa.RecordBatch.from_pylist(list(_file_results(writers.values())), schema=arrow_schema(RESULTS))

    results = collect(spark, state.of("silver"), derive, RESULTS, what="tables: typed", failure=LoadFailed)
    add: dict[str, list[DataFile]] = {name: [] for name in new}
    for row in results:
        add[row["name"]].append(DataFile.from_json(row["name"], json.loads(row["value"])))
    change = Change(
        kind="typed",
        at=log.now,
        add={name: tuple(files) for name, files in add.items()},
        remove=tuple(file.path for name in new for file in state.of(name)),
        typed={**state.typed, **new},
    )
    return log.commit(state, change)


def complete_indexes(
    log: TableLog, state: TableState, paths: tuple[str, ...], *, spark: "SparkSession | None" = None
) -> TableState:
    """Give every file of recorder events the indexes of these paths and no others. Files do not change."""
    store, table = log.store, EVENTS_TABLE.name
    files = [file for file in state.of(table) if file.file_index is not None and {*file.file_index.paths} != {*paths}]
    if not files and state.indexes == paths:
        return state

    def describe(file: DataFile) -> Iterator[pa.RecordBatch]:
        rows = read_part(store, table, file, check_paths=False)
        index = index_of(table, rows, paths)
        value = json.dumps(file._replace(file_index=index).to_json())
        yield pa.RecordBatch.from_pylist(
            [{"kind": "file", "name": table, "value": value}], schema=arrow_schema(RESULTS)
        )

    results = collect(spark, files, describe, RESULTS, what="tables: index", failure=LoadFailed)
    described = tuple(DataFile.from_json(table, json.loads(row["value"])) for row in results)
    return log.commit(state, Change(kind="index", at=log.now, add={table: described}, indexes=paths))


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
    indexes: Collection[str] = (),
    drop_indexes: Collection[str] = (),
) -> LoadReport:
    """Bring the tables at `to` up to the log at `path`; write nothing if there are no new entries.

    `indexes` are paths of payloads (`payload.amount`) that queries select by: each file of recorder events, existing
    ones included, has an index of them from now on, until `drop_indexes` names them.

    Loaded rows do not change: an entry that no key opened remains a row with the reason `sealed`, also when a later
    load has more keys.
    """
    if engine == "spark" and spark is None:
        from veen.lake.spark.session import spark_session

        spark = spark_session("veen-tables")
    used = spark if engine == "spark" else None
    log = TableLog(to)
    first = state = log.state()
    paths = paths_after(state.indexes, indexes, drop_indexes)
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
        typed=definitions_of_typed(),
        indexes=paths,
    )
    while True:
        start = {label: state.heads[label].upto_seq for label in heads if label in state.heads}
        upto = {bytes.fromhex(label): head for label, head in budget(start, heads, max_entries).items()}
        prefix = make_prefix(path, streams=streams, since=state.marks, upto=upto, pinned=pinned, roots=False)
        if not prefix.labels:
            break
        state = commit_prefix(log, state, prefix, job, spark=used, parts=parts)
    state = complete_typed(log, log.ensure_made(state, job.typed), job.typed, spark=used)
    state = complete_indexes(log, state, paths, spark=used)
    return LoadReport(
        version=state.version,
        entries=whole.entries,
        commits=state.version - first.version,
        files=sum(len(state.of(table)) - len(first.of(table)) for table in LOADED),
        heads=state.heads,
    )


def check_hub(state: TableState, identity: HubIdentity | None) -> None:
    """Raise OtherHub if the tables are of another hub than the log."""
    if state.hub is not None and identity is not None and state.hub != identity.hub_id.hex():
        raise OtherHub(f"the tables are of hub {state.hub}, the log is of {identity.hub_id.hex()}")
