"""Arrow: the opened entries of a log as a table, or as batches (docs/pipeline.md)."""

from veen.lake.log.frames import arrow_batches, to_arrow

__all__ = ["arrow_batches", "to_arrow"]
