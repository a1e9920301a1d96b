"""Polars: the opened entries of a log as a DataFrame (docs/pipeline.md)."""

from veen.lake.log.frames import to_polars

__all__ = ["to_polars"]
