"""Tables of a log: bronze, silver and gold in Parquet, loaded exactly once (docs/tables.md).

from veen import tables
tables.load("./hub", "./tables", keys=KeyFile("reader.keys"))
tables.read(spark, "./tables", "silver").where("day = '2025-11-19' AND ok")
"""

from veen.tables.errors import LoadFailed, LogMoved, NoTable, OtherHub, TableBusy, TableDamaged
from veen.tables.frames import register_duckdb, to_arrow, to_polars
from veen.tables.gold import Refreshed, cuts_of, refresh, replace_gold, tables_of
from veen.tables.loading import LoadReport, load
from veen.tables.log import TableLog
from veen.tables.publishing import PublishedTable, PublishRefused, iceberg_catalog, publish
from veen.tables.reading import chosen_files, digest, read, rows
from veen.tables.rewriting import KEEP_SEC, Rewritten, Vacuumed, compact, erase, vacuum
from veen.tables.schema import COLUMNS, ddl_of
from veen.tables.showing import Shown, TableShown, show
from veen.tables.streaming import stream
from veen.tables.verifying import TableCheck, verify

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
    "chosen_files",
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
    "show",
    "stream",
    "tables_of",
    "to_arrow",
    "to_polars",
    "vacuum",
    "verify",
]
