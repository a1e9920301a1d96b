"""Compaction, erasure and vacuum: merge small files, drop erased payloads, remove files that no manifest names.

Each is a commit like a load: new files first, then one manifest. A crash before it leaves files that `vacuum` removes;
a crash after it leaves replaced files, which the manifest lists until they are removed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.io.stores import TableStore
from veen.lake.log.columns import arrow_schema
from veen.lake.spark.runner import collect
from veen.lake.tables.errors import LoadFailed
from veen.lake.tables.gold import refresh
from veen.lake.tables.loading import LOADED, RESULTS, check_hub
from veen.lake.tables.manifest import MANIFESTS, TABLES, Change, DataFile, TableLog, TableState, manifest_path
from veen.lake.tables.parts import TARGET_BYTES, read_part, write_part
from veen.lake.tables.publishing import DELTA_LOG
from veen.lake.tables.schema import arrow_of, is_typed, load_declarations, state_declarations
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP_SEC: Final = 86_400  # how long readers of older versions may take, and a load may run
_ERASED: Final = {"receipts", "heads"}
_NO_PAYLOAD: Final = {"bronze": ("profile_id", "ct_hash", "msg"), "silver": ("schema", "hdr", "body")}
_NO_RECEIPT: Final = {"bronze": ("mmr_root", "receipt"), "silver": ()}

Ranges = Mapping[str, Sequence[tuple[int, int, str]]]  # by label in hex: first, last, and what is left of the chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Result of `compact` or `erase`."""

    version: int
    files_before: int = 0
    files_after: int = 0
    rows: int = 0  # rows whose payload was erased


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """Numbers of the files that `vacuum` removed, by the reason."""

    version: int
    replaced: int = 0
    orphans: int = 0
    manifests: int = 0


def _encode_result(table: str, file: DataFile | None, replaced: Iterable[str], rows: int = 0) -> pa.RecordBatch:
    """Encode the result of a task. `file` replaces the files in `replaced`; None if no row is left."""
    new = None if file is None else file.to_json()
    value = json.dumps({"file": new, "replaced": list(replaced), "rows": rows})
    return pa.RecordBatch.from_pylist([{"kind": "file", "name": table, "value": value}], schema=arrow_schema(RESULTS))


def _commit(
    log: TableLog, state: TableState, kind: str, results: Iterable[Mapping[str, Any]], **more: Any
) -> TableState:
    add: dict[str, list[DataFile]] = {}
    remove: list[str] = []
    for row in results:
        value = json.loads(row["value"])
        if value["file"] is not None:
            add.setdefault(row["name"], []).append(DataFile.from_json(row["name"], value["file"]))
        remove += value["replaced"]
    added = {table: tuple(files) for table, files in add.items()}
    return log.commit(state, Change(kind=kind, at=log.now, add=added, remove=tuple(remove), **more))


# --- compaction ----------------------------------------------------------------------------------------------------


def compact(
    to: str | TableStore,
    *,
    spark: "SparkSession | None" = None,
    target_bytes: int = TARGET_BYTES,
    tables: Sequence[str] | None = None,
) -> Rewritten:
    """Merge small files of a stream and day. Rows do not change; readers of older versions are not disturbed."""
    log = TableLog(to)
    state = log.require_state()
    loaded = (*LOADED, *(table for table in sorted(load_declarations()) if table in state.typed))
    work = [(table, group) for table in tables or loaded for group in _group_small(state.of(table), target_bytes)]
    if not work:
        return Rewritten(version=state.version)
    store, paths = log.store, state.indexes

    def merge(task: tuple[str, tuple[DataFile, ...]]) -> Iterator[pa.RecordBatch]:
        table, files = task
        rows = pa.concat_tables([read_part(store, table, file) for file in files])
        merged = write_part(store, table, files[0].group, rows, paths=paths)
        yield _encode_result(table, merged, (file.path for file in files))

    results = collect(spark, work, merge, RESULTS, what="tables: compact", failure=LoadFailed)
    state = _commit(log, state, "compact", results)
    return Rewritten(version=state.version, files_before=sum(len(files) for _, files in work), files_after=len(work))


def _group_small(files: Sequence[DataFile], target_bytes: int) -> Iterator[tuple[DataFile, ...]]:
    """Yield groups of small files of one stream and day, in order of time, a task for each."""
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if file.size < target_bytes // 2:
            groups.setdefault(file.group, []).append(file)
    for group in sorted(groups):
        run: list[DataFile] = []
        for file in sorted(groups[group], key=lambda file: (file.first_ts, file.path)):
            if run and sum(member.size for member in run) + file.size > target_bytes:
                if len(run) > 1:
                    yield tuple(run)
                run = []
            run.append(file)
        if len(run) > 1:
            yield tuple(run)


# --- erasure -------------------------------------------------------------------------------------------------------


def erase(path: str, to: str | TableStore, *, spark: "SparkSession | None" = None) -> Rewritten:
    """Remove from the tables the payloads that the hub erased under its retention policy, and all replaced files.

    The rows stay, as a load would make them now: `ok` false, reason `erased`. States in gold are folded again from the
    rest. Readers of older versions get errors about removed files: erasure intends that.
    """
    log = TableLog(to)
    state = log.require_state()
    if any(dead.why == "erase" for dead in state.dead.values()):  # an erasure that was interrupted
        state = _remove_replaced(log, state)
    pinned = pin(path)
    check_hub(state, pinned.identity)
    fresh: dict[str, list[tuple[int, int, str]]] = {}
    for label, label_pin in pinned.labels.items():
        name = label.hex()
        done = set(state.erased.get(name, ()))
        ranges: list[tuple[int, int, str]] = [
            (chunk.start_seq, chunk.end_seq, chunk.kind) for chunk in label_pin.chunks if chunk.kind in _ERASED
        ]
        if name in state.heads and (new := [chunk for chunk in ranges if chunk not in done]):
            fresh[name] = new
    results: list[dict[str, Any]] = []
    if fresh:
        results = _rewrite(log, state, fresh, spark)
        applied = {label: tuple(sorted({*state.erased.get(label, ()), *new})) for label, new in fresh.items()}
        state = _commit(log, state, "erase", results, erased=applied)
    changed = [refresh(log.store, fold, spark=spark).changed for fold in sorted(state.meta)]  # also one begun before
    state = log.require_state()
    if results or any(changed):
        state = _remove_replaced(log, state)
    values = [json.loads(row["value"]) for row in results]
    return Rewritten(
        version=state.version,
        files_before=len(values),
        files_after=sum(value["file"] is not None for value in values),
        rows=sum(value["rows"] for row, value in zip(results, values, strict=True) if row["name"] == "silver"),
    )


def _rewrite(log: TableLog, state: TableState, fresh: Ranges, spark: "SparkSession | None") -> list[Any]:
    """Rewrite each file that may have rows in the ranges, one task each."""
    store, paths = log.store, state.indexes
    work = [
        (table, file)
        for table in (*LOADED, *filter(is_typed, state.files))
        for file in state.of(table)
        if any(file.has(label, a, b) for label, ranges in fresh.items() for a, b, _ in ranges)
    ]

    def rewrite(task: tuple[str, DataFile]) -> Iterator[pa.RecordBatch]:
        table, file = task
        if is_typed(table):
            left, count = _without_rows(read_part(store, table, file, as_written=True), fresh)
            if count:
                new = write_part(store, table, file.group, left, paths=paths) if left.num_rows else None
                yield _encode_result(table, new, (file.path,), count)
            return
        rows, count = _without_payload(table, read_part(store, table, file), fresh)
        if count:
            yield _encode_result(table, write_part(store, table, file.group, rows), (file.path,), count)

    return collect(spark, work, rewrite, RESULTS, what="tables: erase", failure=LoadFailed)


def _without_payload(table: str, found: pa.Table, ranges: Ranges) -> tuple[pa.Table, int]:
    """Return the rows as a load would make them now, and the number of changed ones."""
    rows = found.to_pylist()
    count = 0
    for row in rows:
        kind = next((kind for a, b, kind in ranges.get(row["label"].hex(), ()) if a <= row["stream_seq"] <= b), None)
        if kind is None or row["leaf_hash"] is None:  # not in a range; or damaged before, and without a payload
            continue
        gone = (*_NO_PAYLOAD[table], *(_NO_RECEIPT[table] if kind == "heads" else ()))
        changed = row | dict.fromkeys(gone) | {"ok": False, "reason": "erased"}
        count += changed != row
        row.update(changed)
    return pa.Table.from_pylist(rows, schema=arrow_of(table)), count


def _without_rows(content: pa.Table, ranges: Ranges) -> tuple[pa.Table, int]:
    """Return typed rows without those of erased entries, and the number of removed ones."""
    places = zip(content.column("label").to_pylist(), content.column("stream_seq").to_pylist(), strict=True)
    stays = [not any(a <= seq <= b for a, b, _ in ranges.get(label.hex(), ())) for label, seq in places]
    return content.filter(pa.array(stays, pa.bool_())), stays.count(False)


def _remove_replaced(log: TableLog, state: TableState) -> TableState:
    """Remove all replaced files: those that compaction replaced may hold payloads that are erased now.

    Indexes in earlier manifests may, too: a manifest that repeats everything replaces them.
    """
    gone = tuple(sorted(state.dead))
    if not gone:
        return state
    # Files go before the manifest that forgets them: after a crash `dead` still names the rest, and `erase` goes on.
    for path in gone:
        log.store.remove(path)
    state = log.commit(state, Change(kind="erase", at=log.now, gone=gone), whole=True)
    _remove_old_manifests(log, state, 0)
    return state


# --- vacuum --------------------------------------------------------------------------------------------------------


def vacuum(to: str | TableStore, *, keep_sec: int = KEEP_SEC) -> Vacuumed:
    """Remove files that were replaced, or never committed, more than `keep_sec` ago, and unneeded manifests."""
    log = TableLog(to)
    state = log.require_state()
    gone = tuple(sorted(path for path, dead in state.dead.items() if dead.at + keep_sec <= log.now))
    for path in gone:
        log.store.remove(path)
    if gone:
        state = log.commit(state, Change(kind="vacuum", at=log.now, gone=gone))
    named = {path for files in state.files.values() for path in files} | set(state.dead)
    orphans = [
        file.path
        for table in (*TABLES, *sorted({*load_declarations(), *state_declarations(), *state.files} - {*TABLES}))
        for file in log.store.walk(table)
        if file.path not in named and file.age_sec >= keep_sec and not file.path.startswith(f"{table}/{DELTA_LOG}/")
    ]
    for path in orphans:
        log.store.remove(path)
    return Vacuumed(
        version=state.version,
        replaced=len(gone),
        orphans=len(orphans),
        manifests=_remove_old_manifests(log, state, keep_sec),
    )


def _remove_old_manifests(log: TableLog, state: TableState, keep_sec: int) -> int:
    """Remove manifests before the last one that repeats everything, and drafts of failed commits; return the count."""
    base = log.last_base(state)
    removed = 0
    for file in log.store.walk(MANIFESTS):
        name = file.path.rpartition("/")[2]
        number = name.removesuffix(".json")
        old = number.isdecimal() and int(number) < base
        draft = not number.isdecimal() and name != "latest"
        if (old or draft) and file.age_sec >= keep_sec and file.path != manifest_path(state.version):
            log.store.remove(file.path)
            removed += 1
    return removed
