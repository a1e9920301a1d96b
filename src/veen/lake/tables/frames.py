"""Tables as Arrow, Polars or DuckDB tables, in one process: one version, each file held to its hash in the manifest."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from veen.io.stores import TableStore
from veen.lake.log.frames import polars_frame
from veen.lake.tables.log import TableLog
from veen.lake.tables.parts import read_part
from veen.lake.tables.reading import chosen_files, ready_tables
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
    """One version of a table in memory; the bounds choose files, not rows. Rows stand in the order of the files."""
    log = TableLog(to)
    files = chosen_files(log.existing(version), table, streams=streams, first_ts=first_ts, last_ts=last_ts)
    parts = [read_part(log.store, table, file) for file in files]
    return pa.concat_tables(parts) if parts else arrow_of(table).empty_table()


def to_polars(to: str | TableStore, table: str = "silver", *, version: int | None = None) -> "polars.DataFrame":
    """The same as a DataFrame of Polars; needs the extra lake."""
    return polars_frame(to_arrow(to, table, version=version))


def register_duckdb(
    connection: "duckdb.DuckDBPyConnection", to: str | TableStore, *, version: int | None = None
) -> tuple[str, ...]:
    """A view for each table that has files or is complete, under its own name; which they are."""
    state = TableLog(to).existing(version)
    names = tuple(sorted(name for name in ready_tables(state) if name not in COLUMNS or state.of(name)))
    for name in names:
        connection.register(name, to_arrow(to, name, version=state.version))
    return names
