"""Tables of a log: bronze, silver and gold in Parquet, loaded exactly once (docs/tables.md).

from veen.pipeline import tables
tables.load("./hub", "./tables", keys=KeyFile("reader.keys"))
tables.read(spark, "./tables", "silver").where("day = '2025-11-19' AND ok")
"""

from veen.pipeline.tables.errors import LoadFailed, LogMoved, NoTable, OtherHub, TableBusy, TableDamaged
from veen.pipeline.tables.gold import Refreshed, cuts_of, refresh, replace_gold
from veen.pipeline.tables.loading import Loaded, load
from veen.pipeline.tables.log import TableLog
from veen.pipeline.tables.reading import chosen_files, digest, read, rows
from veen.pipeline.tables.rewriting import KEEP_SEC, Rewritten, Vacuumed, compact, erase, vacuum
from veen.pipeline.tables.schema import COLUMNS, ddl_of
from veen.pipeline.tables.showing import Shown, TableShown, show
from veen.pipeline.tables.streaming import stream

__all__ = [
    "COLUMNS",
    "KEEP_SEC",
    "LoadFailed",
    "Loaded",
    "LogMoved",
    "NoTable",
    "OtherHub",
    "Refreshed",
    "Rewritten",
    "Shown",
    "TableBusy",
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
    "load",
    "read",
    "refresh",
    "replace_gold",
    "rows",
    "show",
    "stream",
    "vacuum",
]
