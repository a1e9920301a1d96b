"""Tables as Arrow, Polars or DuckDB tables, in one process: one version, each file held to its hash in the manifest."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from veen.io.stores import TableStore
from veen.lake.log.frames import polars_frame
from veen.lake.tables.log import TableLog
from veen.lake.tables.parts import read_part
from veen.lake.tables.reading import ready_tables, select_files
from veen.lake.tables.schema import COLUMNS, arrow_of

if TYPE_CHECKING:
    import duckdb
    import polars


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
