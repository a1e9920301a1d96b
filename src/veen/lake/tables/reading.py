"""Reading of tables: only files that a manifest names.

A DataFrame or an iteration is one version of a table: later changes do not reach it. Files that `compact` replaces
remain until `vacuum`; files that `erase` replaces are removed at once, and a reader of an older version gets an error.

Tables as Arrow, Polars or DuckDB tables, in one process: one version, each file held to its hash in the manifest.

A summary of the tables, from the manifest alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from veen.core import cbor
from veen.core.event import Order
from veen.io.stores import TableStore
from veen.lake.log.frames import polars_frame
from veen.lake.spark.runner import over
from veen.lake.tables.errors import NoTable
from veen.lake.tables.manifest import DataFile, TableHead, TableLog, TableState
from veen.lake.tables.parts import read_part
from veen.lake.tables.schema import (
    COLUMNS,
    DAY,
    HOUR,
    PARTITIONS,
    arrow_of,
    columns_of,
    ddl_of,
    definition_of,
    is_partitioned,
    is_state,
    load_declarations,
    sid_of,
    state_declarations,
    state_definition,
)

if TYPE_CHECKING:
    import duckdb
    import polars
    from pyspark.sql import DataFrame, SparkSession


def ready_tables(state: TableState) -> tuple[str, ...]:
    """Return the tables that can be read: fixed ones, and those complete as the installed overlays declare them."""
    typed = (name for name, table in load_declarations().items() if state.typed.get(name) == definition_of(table))
    states = (name for name, table in state_declarations().items() if _is_ready(state, name, state_definition(table)))
    return (*COLUMNS, *sorted(typed), *sorted(states))


def _is_ready(state: TableState, table: str, definition: str) -> bool:
    """Return True if a fold made this table, and all folds made it with this declaration."""
    definitions = [meta["tables"][table] for meta in state.meta.values() if table in (meta.get("tables") or ())]
    return bool(definitions) and all(text == definition for text in definitions)


def select_files(
    state: TableState,
    table: str,
    *,
    streams: Collection[bytes] | None = None,
    first_ts: int | None = None,
    last_ts: int | None = None,
) -> tuple[DataFile, ...]:
    """Return the files that can have rows of these streams and this time (of ts, inclusive)."""
    columns_of(table)
    if table not in ready_tables(state):
        what = f"--fold {state_declarations()[table].fold} and its overlay" if is_state(table) else "its overlay"
        raise NoTable(f"{table} is not complete at version {state.version}: run `veen table load` with {what}")
    sids = None if streams is None else {sid_of(stream_id) for stream_id in streams}
    return tuple(
        file
        for file in state.of(table)
        if (sids is None or _part(file.group, "sid") in sids)
        and (first_ts is None or file.last_ts >= first_ts)
        and (last_ts is None or file.first_ts <= last_ts)
    )


def read(
    spark: "SparkSession",
    to: str | TableStore,
    table: str = "silver",
    *,
    version: int | None = None,
    streams: Collection[bytes] | None = None,
    first_ts: int | None = None,
    last_ts: int | None = None,
) -> "DataFrame":
    """Return one version of a table as a DataFrame. The bounds select files, not rows: add `where`.

    Tasks read the files by `read_part`, as every engine does: a file that differs from its manifest ends the query with
    TableDamaged. Spark's own reader of Parquet would not notice.
    """
    log = TableLog(to)
    files = select_files(log.require_state(version), table, streams=streams, first_ts=first_ts, last_ts=last_ts)
    schema = ddl_of(table)
    if not files:
        return spark.createDataFrame([], schema)
    store = log.store
    columns = (*columns_of(table), *PARTITIONS) if is_partitioned(table) else columns_of(table)

    def batches(file: DataFile) -> Iterator[pa.RecordBatch]:
        yield from _with_partitions(table, file, read_part(store, table, file)).to_batches()

    return over(spark, files, batches, columns)


def _with_partitions(table: str, file: DataFile, content: pa.Table) -> pa.Table:
    if not is_partitioned(table):
        return content
    day = date.fromisoformat(_part(file.group, "day"))
    content = content.append_column(
        "sid", pa.repeat(pa.scalar(_part(file.group, "sid"), pa.string()), content.num_rows)
    )
    return content.append_column("day", pa.repeat(pa.scalar(day, pa.date32()), content.num_rows))


def _part(group: str, name: str) -> str:
    return next((member.partition("=")[2] for member in group.split("/") if member.startswith(f"{name}=")), "")


# --- the canonical row stream -------------------------------------------------------------------------------------


def rows(
    to: str | TableStore | TableLog, table: str = "silver", *, version: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every row in logical order (D-27). Hold the files of an hour at a time; need no Spark."""
    log = to if isinstance(to, TableLog) else TableLog(to)
    state = log.require_state(version)
    files = select_files(state, table)
    if not is_partitioned(table):
        for file in files:
            yield from read_part(log.store, table, file).to_pylist()
        return
    contents: dict[str, pa.Table] = {}  # of the files that reach into the hour
    for first, last, inside in _by_hour(files):
        contents = {
            file.path: contents[file.path] if file.path in contents else read_part(log.store, table, file)
            for file in inside
        }
        hour_rows: list[dict[str, Any]] = []
        for content in contents.values():
            times = content.column("ts").to_numpy()
            hour_rows += content.filter(pa.array((times >= first) & (times <= last))).to_pylist()
        hour_rows.sort(key=_order)
        yield from hour_rows


def _by_hour(files: Iterable[DataFile]) -> Iterator[tuple[int, int, list[DataFile]]]:
    """Yield each hour with the files that reach into it. A file is visited in its own hours only."""
    waiting = sorted(files, key=lambda file: file.first_ts, reverse=True)  # the next one is the last
    inside: list[DataFile] = []
    for first, last in _hours(tuple(waiting)):
        inside = [file for file in inside if file.last_ts >= first]
        while waiting and waiting[-1].first_ts <= last:
            inside.append(waiting.pop())
        yield first, last, inside


def _hours(files: Iterable[DataFile]) -> Iterator[tuple[int, int]]:
    """Yield the hours in which there can be rows.

    No file spans more than a day, unless its times are beyond the calendar.
    """
    ends = {(file.first_ts // HOUR, file.last_ts // HOUR) for file in files}
    begun = -1
    for first, last in sorted(ends):
        first = max(first, begun + 1)
        if last - first > 2 * DAY // HOUR:
            yield first * HOUR, last * HOUR + HOUR - 1
        else:
            for hour in range(first, last + 1):
                yield hour * HOUR, hour * HOUR + HOUR - 1
        begun = max(begun, last)


def _order(row: dict[str, Any]) -> Order:
    return row["ts"], row["stream_id"] or b"", row["epoch"], row["stream_seq"], row["leaf_hash"] or b""


def digest(to: str | TableStore | TableLog, table: str = "silver", *, version: int | None = None) -> str:
    """Return SHA-256 of the canonical row stream: equal tables have equal digests, whatever their files."""
    names, hasher = arrow_of(table).names, sha256()
    for row in rows(to, table, version=version):
        hasher.update(cbor.encode([_plain(row[name]) for name in names]))
    return hasher.hexdigest()


def _plain(value: Any) -> Any:
    """Convert a timestamp to seconds, as bodies and receipts have it."""
    return int(value.timestamp()) if isinstance(value, datetime) else value


def to_arrow(
    to: str | TableStore,
    table: str = "silver",
    *,
    version: int | None = None,
    streams: Collection[bytes] | None = None,
    first_ts: int | None = None,
    last_ts: int | None = None,
) -> pa.Table:
    """Read one version of a table into memory, in the order of its files. The bounds select files, not rows."""
    log = TableLog(to)
    files = select_files(log.require_state(version), table, streams=streams, first_ts=first_ts, last_ts=last_ts)
    parts = [read_part(log.store, table, file) for file in files]
    return pa.concat_tables(parts) if parts else arrow_of(table).empty_table()


def to_polars(to: str | TableStore, table: str = "silver", *, version: int | None = None) -> "polars.DataFrame":
    """Read one version of a table into a Polars DataFrame. Requires the extra lake."""
    return polars_frame(to_arrow(to, table, version=version))


def register_duckdb(
    connection: "duckdb.DuckDBPyConnection", to: str | TableStore, *, version: int | None = None
) -> tuple[str, ...]:
    """Register a view for each table that has files or is complete; return their names."""
    state = TableLog(to).require_state(version)
    names = tuple(sorted(name for name in ready_tables(state) if name not in COLUMNS or state.of(name)))
    for name in names:
        connection.register(name, to_arrow(to, name, version=state.version))
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShown:
    """Summary of one table."""

    table: str
    rows: int
    files: int
    size: int
    groups: int  # directories: stream and day, or folds
    digest: str | None = None  # of the canonical row stream, if asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Summary of all tables of one place at one version."""

    version: int
    hub: str | None
    tables: tuple[TableShown, ...]
    heads: Mapping[str, TableHead]
    states: Mapping[str, str]  # by fold: its state_hash
    replaced: int  # files that wait for `vacuum`
    indexes: tuple[str, ...] = ()  # paths of payloads


def show(to: str | TableStore, *, version: int | None = None, digests: bool = False) -> Shown:
    """Summarize the tables. With `digests` read every row, and so verify every file."""
    log = TableLog(to)
    state = log.require_state(version)
    infos = []
    for table in state.files:
        files = state.of(table)
        infos.append(
            TableShown(
                table=table,
                rows=sum(file.rows for file in files),
                files=len(files),
                size=sum(file.size for file in files),
                groups=len({file.group for file in files}),
                digest=digest(log, table, version=state.version) if digests else None,
            )
        )
    return Shown(
        version=state.version,
        hub=state.hub,
        tables=tuple(sorted(infos, key=lambda file: file.table)),
        heads=dict(sorted(state.heads.items())),
        states={fold: meta["state_hash"] for fold, meta in sorted(state.meta.items())},
        replaced=len(state.dead),
        indexes=state.indexes,
    )
