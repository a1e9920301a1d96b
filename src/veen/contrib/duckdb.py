"""DuckDB: the opened entries of a log as a relation of a connection (docs/pipeline.md)."""

from veen.lake.log.frames import register_duckdb

__all__ = ["register_duckdb"]
