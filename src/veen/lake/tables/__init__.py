"""Tables of a log: bronze, silver and gold in Parquet, loaded exactly once (docs/tables.md).

from veen.lake import tables
tables.load("./hub", "./tables", keys=KeyFile("reader.keys"))
tables.read(spark, "./tables", "silver").where("day = '2025-11-19' AND ok")
"""

from veen.lake.tables.errors import LoadFailed, LogMoved, NoTable, OtherHub, TableBusy, TableDamaged
from veen.lake.tables.gold import Refreshed, cuts_of, refresh, replace_gold, tables_of
from veen.lake.tables.loading import LoadReport, load
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.publishing import PublishedTable, PublishRefused, iceberg_catalog, publish
from veen.lake.tables.reading import (
    Shown,
    TableShown,
    digest,
    read,
    register_duckdb,
    rows,
    select_files,
    show,
    to_arrow,
    to_polars,
)
from veen.lake.tables.rewriting import KEEP_SEC, Rewritten, Vacuumed, compact, erase, vacuum
from veen.lake.tables.schema import COLUMNS, ddl_of
from veen.lake.tables.streaming import stream
from veen.lake.tables.verifying import TableCheck, verify

__all__ = [
    "COLUMNS",
    "KEEP_SEC",
    "LoadFailed",
    "LoadReport",
    "LogMoved",
    "NoTable",
    "OtherHub",
    "PublishRefused",
    "PublishedTable",
    "Refreshed",
    "Rewritten",
    "Shown",
    "TableBusy",
    "TableCheck",
    "TableDamaged",
    "TableLog",
    "TableShown",
    "Vacuumed",
    "compact",
    "cuts_of",
    "ddl_of",
    "digest",
    "erase",
    "iceberg_catalog",
    "load",
    "publish",
    "read",
    "refresh",
    "register_duckdb",
    "replace_gold",
    "rows",
    "select_files",
    "show",
    "stream",
    "tables_of",
    "to_arrow",
    "to_polars",
    "vacuum",
    "verify",
]
